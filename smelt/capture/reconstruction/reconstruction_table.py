"""The table of reconstruction kinds: one row for each kind of object that may be created during capture.

A row (`ReconstructionKind`) lists the objects that the creation needs, and writes the Python that creates and fills the
object. Objects of mutable kinds can be created empty and filled later, which reconstructs cycles. No row runs user code: the
`__new__` of the built-in base creates instances, `object.__setattr__` and the base's methods store their state.
"""

from __future__ import annotations

import collections
import enum
import functools

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.reconstruction.builtin_containers import CONTAINERS, dict_text, pairs, result_tuple
from smelt.capture.reconstruction.function_reconstruction import FUNCTIONS
from smelt.capture.reconstruction.generic_aliases import ALIASES, MEMBER, typing_alias_kind
from smelt.capture.reconstruction.instance_reconstruction import instance_kind
from smelt.capture.reconstruction.nested_tensors import NESTED
from smelt.capture.reconstruction.numpy_values import numpy_kind
from smelt.capture.reconstruction.proxy_reconstruction import PROXIES
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported
from smelt.capture.reconstruction.traceback_reconstruction import TRACEBACKS
from smelt.capture.reconstruction.type_variables import VARIABLES
from smelt.capture.reconstruction.wrapper_tensors import WRAPPER
from smelt.tracing.record.wrapper_subclasses import is_wrapper_class

# By exact type. Packages above add their own rows: iterators, generators, handles of hooks.
RECONSTRUCTION_KINDS: dict[type, ReconstructionKind] = {
    **CONTAINERS,
    **FUNCTIONS,
    **PROXIES,
    **TRACEBACKS,
    **ALIASES,
    **VARIABLES,
    **NESTED,
}


# C classes whose rows above ignore the `__dict__` of their instances.
_WITH_ATTRIBUTES = frozenset((collections.OrderedDict, functools.partial))


def _with_attributes(kind: ReconstructionKind) -> ReconstructionKind:
    """The row of an object of `kind` that has attributes."""

    def fill(x: object, text: Expressions, name: str) -> list[str]:
        contents = kind.fill(x, text, name) if kind.empty is not None and kind.fill is not None else []
        return [*contents, f"{name}.__dict__.update({dict_text(vars(x), text)})"]

    return ReconstructionKind(
        kind.needs if kind.empty is None else lambda x: (),
        kind.create,
        kind.empty or kind.create,
        fill,
        lambda x: [*kind.holds(x), *pairs(vars(x))],
        named=True,
    )


def reconstruction_kind_of(x: object) -> ReconstructionKind:
    """The row of `x`, which was created during capture. Raises Unsupported."""
    cls = type(x)
    found = RECONSTRUCTION_KINDS.get(cls) or numpy_kind(x) or typing_alias_kind(x)
    if found is not None:
        return _with_attributes(found) if cls in _WITH_ATTRIBUTES and vars(x) else found
    if isinstance(x, torch.Tensor) and is_wrapper_class(cls):
        return WRAPPER
    if isinstance(x, enum.Enum):
        return MEMBER
    if hasattr(cls, "n_sequence_fields"):
        return result_tuple(cls)
    if not _native.made_by_python(cls) and not isinstance(x, BaseException):
        raise unsupported(x)
    if cls.__module__.startswith("smelt.capture."):
        raise unsupported(x, "an internal object of smelt, such as an unfinished generator")
    kind = instance_kind(cls)  # type: ignore[arg-type]
    if isinstance(kind, str):
        raise unsupported(x, kind)
    return kind
