"""The kinds of guards, one class each. The C++ check of the same name is in `native/guards/checks/`.

`KINDS` has an instance of each class. The order of the classes is the order in which the guard tree checks the guards of one
object: cheap checks and likely failures first. No check runs user code; only leaf constants are compared for equality.
"""

from __future__ import annotations

import collections
import itertools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.guards import global_state
from smelt.guards.class_facts import ClassFacts
from smelt.guards.leaf_equality import same_leaf
from smelt.guards.object_text import class_text, identity_difference, identity_text, part_text, short_text
from smelt.guards.read_source import FAILURES, HOOKS, MODULE_DICTS, Missing, instance_dict
from smelt.guards.source import Source, key_text
from smelt.guards.stored_form import FormWriter, Unstorable
from smelt.guards.tensor_facts import TensorFacts, shape_text, stride_text, tensor_facts
from smelt.guards.weak_identity import GONE, strong, weak, weak_if_identity_hashed
from smelt.shapes.expr import Expression, evaluate_with, leaves, postfix, text
from smelt.tracing.fake.fake_tensor import is_dual

Read = Callable[[Source], Any]  # the object at a source; raises Missing (`Reader`)
Subject = tuple[object, ...]  # what a guard is about; equal for guards of two captures
Known = Mapping[tuple[str, Subject], Sequence[Any]]  # by kind and subject, the values of guards that hold
Failure = tuple[str, str, str]  # where, expected, found
SizeRead = tuple[int, int, int]  # dimension, word, guard (`specialized_sizes.py`)


class _Nodes(Protocol):
    """The nodes of a guard tree, as the values of native checks refer to them (`tree_layout.py`)."""

    def index(self, source: Source) -> int: ...
    def operand(self, source: Source) -> tuple[str, int]: ...
    def size_reads(self, tensor: Source) -> tuple[SizeRead, ...]: ...


class GuardKind:
    """A kind of guard: the fact that `value` states about the object at `source`, or about several objects."""

    name: str  # of the guard and of its C++ check
    rank: int  # the position among `KINDS`
    template: str  # of `text`
    implies: ClassVar[tuple[str, ...]] = ()  # kinds that are redundant at the same source
    is_identity: ClassVar[bool] = False  # `value` is an object, of which the guard has a weak reference
    is_constant: ClassVar[bool] = False  # the object equals the leaf constant `value`
    is_relation: ClassVar[bool] = False  # about several objects: checked at the last of their nodes
    reads_numbers: ClassVar[bool] = False  # the objects are numbers; checks of tensors read sizes
    of_instance: ClassVar[bool] = False  # the object's own `__dict__` lacks `value`
    # What the guard fixes of an object, if a graph break may replace a guard that keeps failing.
    aspect: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "", text: str = "") -> None:
        if name:
            cls.name, cls.rank, cls.template = name, len(KINDS), text
            KINDS[name] = cls()

    def store(self, value: Any) -> Any:
        """What a guard stores of `value`."""
        return weak(value) if self.is_identity else value

    def load(self, stored: Any) -> Any:
        """The value that `store` got; `GONE` in place of a destroyed object."""
        return strong(stored)

    def value_source(self, source: Source) -> Source:
        """Where the call has `value` itself, if the kind `is_identity`."""
        return source

    def sources(self, source: Source | None, value: Any) -> tuple[Source, ...]:
        """The sources of all objects that the guard is about, if the kind `is_relation`."""
        raise NotImplementedError

    def subject(self, source: Source | None, value: Any) -> Subject:
        """What the guard is about, equal for guards of two captures."""
        return () if source is None else source.path

    def holds(self, source: Source | None, value: Any, read: Read) -> bool:
        """Whether the fact holds. Raises `FAILURES`, which count as a mismatch."""
        raise NotImplementedError

    def follows(self, source: Source | None, value: Any, known: Known) -> bool:
        """Whether the known guards imply the fact. False: they may imply it all the same."""
        return any(_same(other, value) for other in known.get((self.name, self.subject(source, value)), ()))

    def text(self, x: str, value: Any) -> str:
        """The fact as an expression; `x` is the text of the source."""
        return self.template.format(x=x, value=value)

    def failure(self, source: Source | None, value: Any, read: Read) -> Failure:
        """Why the fact does not hold."""
        raise NotImplementedError

    def native_value(self, source: Source | None, value: Any, nodes: _Nodes) -> object:
        """The value that the C++ check takes."""
        return value

    def stored(self, native: Any, root: object, writer: FormWriter) -> Any:
        """The stored form of the value that the C++ check takes. `root`: the object of a root of kind const; None for
        another source. Raises Unstorable if the fact does not hold in another process, or cannot be expressed there."""
        return writer.value(native)


KINDS: dict[str, GuardKind] = {}


class _ObjectKind(GuardKind):
    """A fact about one object."""

    def accepts(self, x: Any, value: Any) -> bool:
        raise NotImplementedError

    def difference(self, x: Any, value: Any) -> Failure | None:
        """What failed: a suffix of the source, expected, found. None: the entire guard."""
        return None

    def holds(self, source: Source | None, value: Any, read: Read) -> bool:
        assert source is not None
        return self.accepts(read(source), value)

    def failure(self, source: Source | None, value: Any, read: Read) -> Failure:
        assert source is not None
        where = source.source
        try:
            x = read(source)
        except Missing:
            return where, self.text(where, value), "nothing there"
        if value is GONE:
            return where, "an object that is gone", short_text(x)
        suffix, expected, found = self.difference(x, value) or ("", self.text(where, value), short_text(x))
        return where + suffix, expected, found


class _Type(_ObjectKind, name="type"):
    """`type(x) is value`."""

    is_identity = True

    def stored(self, native: Any, root: object, writer: FormWriter) -> Any:
        return writer.identical(native)

    def value_source(self, source: Source) -> Source:
        return source.child("type", None)

    def accepts(self, x: Any, value: Any) -> bool:
        return type(x) is value

    def text(self, x: str, value: Any) -> str:
        return f"type({x}) is {identity_text(value)}"

    def difference(self, x: Any, value: type) -> Failure:
        return ".__class__", class_text(value), class_text(type(x))


class _Id(_ObjectKind, name="id"):
    """`x is value`. The value is kept alive only if its class has no weak references."""

    is_identity = True
    implies = ("type",)

    def stored(self, native: Any, root: object, writer: FormWriter) -> Any:
        return writer.identical(native)

    def accepts(self, x: Any, value: Any) -> bool:
        return x is value

    def text(self, x: str, value: Any) -> str:
        return f"{x} is {identity_text(value)}" if value is not None else f"{x} is None"

    def difference(self, x: Any, value: Any) -> Failure:
        return "", *identity_difference(value, x)


class _Eq(_ObjectKind, name="eq", text="{x} == {value!r}"):
    """`same_leaf(x, value)`; the value is a leaf constant."""

    implies = ("type",)
    is_constant = True
    aspect = "the value of"

    def accepts(self, x: Any, value: Any) -> bool:
        return same_leaf(x, value)

    def difference(self, x: Any, value: Any) -> Failure:
        return "", repr(value), short_text(x)


class _Number(_Type, name="number"):
    """`type(x) is value` (int or float); an int fits in 64 bits."""

    is_identity = False

    def accepts(self, x: Any, value: Any) -> bool:
        return type(x) is value and (value is float or -(1 << 63) <= x < 1 << 63)

    def follows(self, source: Source | None, value: Any, known: Known) -> bool:
        subject = self.subject(source, value)
        if (self.name, subject) in known:
            return super().follows(source, value, known)
        return any(self.accepts(constant, value) for constant in known.get((_Eq.name, subject), ()))


class _Len(_ObjectKind, name="len", text="len({x}) == {value}"):
    """`len(x) == value`; of a subclass of a builtin container, the length of that container."""

    aspect = "the length of"

    def accepts(self, x: Any, value: Any) -> bool:
        return _length(x) == value

    def difference(self, x: Any, value: Any) -> Failure:
        return "", f"length {value}", f"length {_length(x)}"


def _length(x: Any) -> int:
    for kind in (dict, list, tuple, set, frozenset):
        if issubclass(type(x), kind):
            return kind.__len__(x)
    return len(x)


class _Tensor(_ObjectKind, name="tensor"):
    """A tensor that the `TensorFacts` in `value` admit."""

    implies = ("type",)

    def accepts(self, x: Any, value: TensorFacts) -> bool:
        return issubclass(type(x), torch.Tensor) and value.admits(tensor_facts(x)) and not is_dual(x)

    def follows(self, source: Source | None, value: TensorFacts, known: Known) -> bool:
        return any(map(value.covers, known.get((self.name, self.subject(source, value)), ())))

    def native_value(self, source: Source | None, value: TensorFacts, nodes: _Nodes) -> object:
        assert source is not None
        reads = nodes.size_reads(source)
        return (value, reads) if reads else value

    def stored(self, native: Any, root: object, writer: FormWriter) -> Any:
        return writer.tensor(native)

    def text(self, x: str, value: TensorFacts) -> str:
        f = value
        extra = f", requires_grad={f.requires_grad}" if f.requires_grad else ""
        extra += f", layout={f.layout}" if f.layout is not torch.strided else ""
        extra += ", conj_or_neg=True" if f.conj_neg else ""
        extra += ", inference=True" if f.inference else ""
        extra += "" if f.type is torch.Tensor else f", type={class_text(f.type)}"
        shape = f"{shape_text(f.shape)}, stride={stride_text(f.stride)}"
        return f"is_tensor({x}, {f.dtype}, shape={shape}, device={str(f.device)!r}{extra})"

    def difference(self, x: Any, value: TensorFacts) -> Failure:
        if not isinstance(x, torch.Tensor):
            return "", value.type.__name__, type(x).__name__
        actual = value.generalize(tensor_facts(x))
        for name in ("layout", *TensorFacts.__dataclass_fields__):  # strides follow from the layout
            a, b = getattr(value, name), getattr(actual, name)
            if a != b:
                return f".{name}", _field_text(name, a), _field_text(name, b)
        return "", "a tensor like before", "another"


def _field_text(name: str, value: Any) -> str:
    """A field of `TensorFacts`. Sizes and strides without wildcards print as torch prints them."""
    if name in ("shape", "stride") and min(value, default=0) < 0:
        return shape_text(value) if name == "shape" else stride_text(value)
    return class_text(value) if isinstance(value, type) else str(value)


class _Function(_ObjectKind, name="function", text="unchanged_function({x})"):
    """Code, defaults and keyword defaults of the function x are the three objects in `value`."""

    parts = ("__code__", "__defaults__", "__kwdefaults__")

    def stored(self, native: Any, root: object, writer: FormWriter) -> Any:
        return writer.function(native, root)

    def accepts(self, x: Any, value: tuple[Any, Any, Any]) -> bool:
        return all(getattr(x, name) is part for name, part in zip(self.parts, value))

    def difference(self, x: Any, value: tuple[Any, Any, Any]) -> Failure:
        for name, expected in zip(self.parts, value):
            found = getattr(x, name, None)
            if found is not expected:
                return f".{name}", part_text(expected), part_text(found)
        return "", "a function", short_text(x)


class _TypeVersion(_ObjectKind, name="type_version", text="unchanged_class({x})"):
    """The `ClassFacts` in `value` admit the class x: no attribute that the trace depends on changed."""

    def accepts(self, x: Any, value: ClassFacts) -> bool:
        return value.admits(x)

    def follows(self, source: Source | None, value: ClassFacts, known: Known) -> bool:
        return any(facts.implies(value) for facts in known.get((self.name, self.subject(source, value)), ()))

    def difference(self, x: Any, value: ClassFacts) -> Failure:
        name = value.changed(x)
        return (
            (f".{name}" if name else ""),
            f"class {x.__name__} as it was",
            "that one of its attributes changed",
        )

    def native_value(self, source: Source | None, value: ClassFacts, nodes: _Nodes) -> object:
        return value.native

    def stored(self, native: Any, root: object, writer: FormWriter) -> Any:
        return writer.class_facts(native)


class _NoHooks(_ObjectKind, name="no_hooks", text="no_hooks({x})"):
    """The nn.Module x has no forward or backward (pre-)hooks of its own."""

    def accepts(self, x: Any, value: None) -> bool:
        return not any(instance_dict(x)[name] for name in HOOKS)

    def difference(self, x: Any, value: None) -> Failure:
        own = instance_dict(x)
        name = next((n for n in HOOKS if own.get(n)), "")
        return f".{name}", "no hooks", f"{len(own.get(name, ()))}"


class _NotInDict(_ObjectKind, name="not_in_dict", text="{value!r} not in {x}.__dict__"):
    """`value not in x.__dict__`: the instance does not shadow a class attribute."""

    of_instance = True

    def accepts(self, x: Any, value: str) -> bool:
        return value not in _own_attributes(x)

    def difference(self, x: Any, value: str) -> Failure:
        return (
            f".{value}",
            "no such attribute on the instance",
            short_text(instance_dict(x).get(value, "one")),
        )


class _NoAttr(_NotInDict, name="no_attr", text="no_attribute({x}, {value!r})"):
    """The name `value` is neither in the `__dict__` of x nor among its parameters, buffers and modules."""

    of_instance = False

    def accepts(self, x: Any, value: str) -> bool:
        own = _own_attributes(x)
        return value not in own and all(value not in own.get(d, ()) for d in MODULE_DICTS)


def _own_attributes(x: object) -> Any:
    try:
        return instance_dict(x)
    except Missing:
        return {}


class _Slot(_ObjectKind, name="slot"):
    """Whether the slot `value[0]` of x, declared in `__slots__`, is set is `value[1]`."""

    def accepts(self, x: Any, value: tuple[str, bool]) -> bool:
        name, is_set = value
        found = next((vars(cls)[name] for cls in type(x).__mro__ if name in vars(cls)), None)
        if type(found) is not types.MemberDescriptorType:
            return False
        try:
            found.__get__(x, type(x))
        except AttributeError:
            return not is_set
        return is_set

    def text(self, x: str, value: tuple[str, bool]) -> str:
        return f"{'' if value[1] else 'not '}hasattr({x}, {value[0]!r})"

    def difference(self, x: Any, value: tuple[str, bool]) -> Failure:
        name, is_set = value
        texts = ("nothing there", "something")
        return f".{name}", texts[is_set], texts[not is_set]


class _UnhookedLeaf(_ObjectKind, name="unhooked_leaf", text="no_gradient_hooks({x})"):
    """The tensor x is a leaf of autograd's graph whose gradients no hook observes."""

    def accepts(self, x: Any, value: None) -> bool:
        return _native.is_unhooked_leaf(x)


class _WriteRestriction(_ObjectKind, name="write_restriction"):
    """`_native.write_restriction(x) == value`: why autograd refuses an in-place write of the tensor x."""

    predicates = ("may_be_written", "is_leaf", "is_view_of_leaf", "is_restricted_view")

    def accepts(self, x: Any, value: int) -> bool:
        return _native.write_restriction(x) == value

    def text(self, x: str, value: int) -> str:
        return f"{self.predicates[value]}({x})"


class _DropsSilently(_ObjectKind, name="drops_silently"):
    """`_native.drops_silently(x, *value)`: the program cannot observe that x drops what it has at the place `value`: a kind
    and a name."""

    def accepts(self, x: Any, value: tuple[str, Any]) -> bool:
        return _native.drops_silently(x, *value)

    def text(self, x: str, value: tuple[str, Any]) -> str:
        return f"drops_silently({x}, {value[1]!r})"

    def difference(self, x: Any, value: tuple[str, Any]) -> Failure:
        return f", {value[0]} {value[1]!r}", "an object without a finalizer", "one that has or holds one"


class _Contains(_ObjectKind, name="contains"):
    """`(value[0] in x) is value[1]` for a dictionary or set; comparing `value[0]` runs no Python code."""

    aspect = "a key of"

    def store(self, value: tuple[Any, bool]) -> tuple[Any, bool]:
        return weak_if_identity_hashed(value[0]), value[1]

    def load(self, stored: tuple[Any, bool]) -> tuple[Any, bool]:
        return strong(stored[0]), stored[1]

    def accepts(self, x: Any, value: tuple[Any, bool]) -> bool:
        kind = next((k for k in (dict, set) if issubclass(type(x), k)), type(x))
        return kind.__contains__(x, value[0]) is value[1]

    def text(self, x: str, value: tuple[Any, bool]) -> str:
        return f"{key_text(value[0])} {'in' if value[1] else 'not in'} {x}"

    def difference(self, x: Any, value: tuple[Any, bool]) -> Failure:
        key, is_in = value
        texts = (f"{key_text(key)} not in it", f"{key_text(key)} in it")
        return "", texts[is_in], texts[not is_in]


class _Keys(_ObjectKind, name="keys", text="tuple({x}) == {value!r}"):
    """`tuple(x) == value`: the keys of a dictionary or the elements of a set, in order."""

    aspect = "the keys of"

    def accepts(self, x: Any, value: tuple[Any, ...]) -> bool:
        return same_leaf(_keys(x), value)

    def difference(self, x: Any, value: tuple[Any, ...]) -> Failure:
        return "", f"keys {value!r}", f"keys {_keys(x)!r}"


def _keys(x: Any) -> tuple[Any, ...]:
    """The keys or elements of `x` in order of iteration; no `__iter__` of a subclass runs."""
    for kind in (collections.OrderedDict, dict, set, frozenset):
        if issubclass(type(x), kind):
            return tuple(kind.__iter__(x))
    return tuple(x)


class _SetTable(_ObjectKind, name="set_table", text="same_history({x})"):
    """`_native.set_table(x) == value`: the set x will iterate over added elements in the same order."""

    def accepts(self, x: Any, value: object) -> bool:
        return issubclass(type(x), (set, frozenset)) and _native.set_table(x) == value

    def stored(self, native: Any, root: object, writer: FormWriter) -> Any:
        raise Unstorable("the order in which a set iterates over elements that are added")


class _Alias(GuardKind, name="alias"):
    """The objects at `source` and at the source `value` are identical."""

    is_relation = True

    def sources(self, source: Source | None, value: Source) -> tuple[Source, ...]:
        assert source is not None
        return source, value

    def holds(self, source: Source | None, value: Source, read: Read) -> bool:
        first, second = self.sources(source, value)
        return read(first) is read(second)

    def text(self, x: str, value: Source) -> str:
        return f"{x} is {value.source}"

    def failure(self, source: Source | None, value: Source, read: Read) -> Failure:
        return str(source), f"the same object as {value.source}", "another"

    def native_value(self, source: Source | None, value: Source, nodes: _Nodes) -> object:
        return min(map(nodes.index, self.sources(source, value)))  # the check is at the other node


class _Distinct(GuardKind, name="distinct"):
    """The objects at the sources `value` are pairwise different; `source` is the first of these."""

    is_relation = True
    function = "all_different"
    expected, found = "two objects", "one"

    def key(self, x: Any) -> int:
        """What must differ."""
        return id(x)

    def sources(self, source: Source | None, value: tuple[Source, ...]) -> tuple[Source, ...]:
        return tuple(value)

    def holds(self, source: Source | None, value: tuple[Source, ...], read: Read) -> bool:
        objects = [read(each) for each in value]
        return len(set(map(self.key, objects))) == len(objects)

    def text(self, x: str, value: tuple[Source, ...]) -> str:
        return f"{self.function}({', '.join(each.source for each in value)})"

    def failure(self, source: Source | None, value: tuple[Source, ...], read: Read) -> Failure:
        """Names the first two sources with the same key; all sources if an object is missing."""
        seen: dict[int, Source] = {}
        try:
            for each in value:
                first = seen.setdefault(self.key(read(each)), each)
                if first is not each:
                    return f"{first.source} and {each.source}", self.expected, self.found
        except (Missing, AttributeError, RuntimeError):
            pass
        return self.text("", value), self.expected, self.found

    def native_value(self, source: Source | None, value: tuple[Source, ...], nodes: _Nodes) -> object:
        return tuple(map(nodes.index, value))


class _NoOverlap(_Distinct, name="no_overlap"):
    """The tensors and NumPy arrays at the sources `value` share no memory; needed only if one of them is mutated."""

    function = "no_shared_storage"
    expected, found = "no shared memory", "that they share it"

    def key(self, x: torch.Tensor | np.ndarray) -> int:
        return id(x) if isinstance(x, np.ndarray) else x.untyped_storage()._cdata

    def holds(self, source: Source | None, value: tuple[Source, ...], read: Read) -> bool:
        return super().holds(source, value, read) and are_disjoint(read(each) for each in value)


def are_disjoint(memory: Iterable[torch.Tensor | np.ndarray]) -> bool:
    """Whether tensors, with their storages, and arrays share no memory."""
    ranges = sorted(filter(None, map(_addresses, memory)))
    return all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def _addresses(x: torch.Tensor | np.ndarray) -> tuple[int, int] | None:
    if isinstance(x, np.ndarray):
        extent = x.itemsize + sum((n - 1) * s for n, s in zip(x.shape, x.strides)) if x.size else 0
        start = x.ctypes.data
    else:
        storage = x.untyped_storage()
        start, extent = storage.data_ptr(), storage.nbytes()
    return (start, start + extent) if extent else None


class _SharedStorage(_NoOverlap, name="shared_storage"):
    """The tensors at the sources `value` are in one storage; needed only if one of them is mutated."""

    function = "one_storage"
    expected, found = "that they share memory", "that they do not"

    def holds(self, source: Source | None, value: tuple[Source, ...], read: Read) -> bool:
        return len({self.key(read(each)) for each in value}) == 1

    def failure(self, source: Source | None, value: tuple[Source, ...], read: Read) -> Failure:
        return self.text("", value), self.expected, self.found


class _Expression(GuardKind, name="expression"):
    """The expression `value[0]` over numbers at sources gives `value[1]`: True, False, or a result of that type."""

    is_relation = reads_numbers = True
    aspect = "a condition on"

    def sources(self, source: Source | None, value: tuple[Expression, Any]) -> tuple[Source, ...]:
        return leaves(value[0])

    def subject(self, source: Source | None, value: tuple[Expression, Any]) -> Subject:
        return _expression_key(value[0]), value[1]

    def holds(self, source: Source | None, value: tuple[Expression, Any], read: Read) -> bool:
        def number(source: Source) -> Any:
            x = read(source)
            if type(x) not in (int, float, bool):  # arithmetic on other objects could run user code
                raise Missing(f"{source.source} is no number")
            return x

        expression, expected = value
        found = evaluate_with(expression, number)
        return type(found) is expected if isinstance(expected, type) else found is expected

    def follows(self, source: Source | None, value: tuple[Expression, Any], known: Known) -> bool:
        if (self.name, self.subject(source, value)) in known:
            return True
        try:
            return self.holds(source, value, lambda leaf: _known_number(leaf, known))
        except FAILURES:
            return False

    def text(self, x: str, value: tuple[Expression, Any]) -> str:
        expression, expected = value
        written = text(expression, lambda leaf: str(leaf.source))
        if isinstance(expected, type):
            return f"type({written}) is {expected.__name__}"
        bare = written[1:-1] if written.startswith("(") else written
        return bare if expected else f"not {written}"

    def failure(self, source: Source | None, value: tuple[Expression, Any], read: Read) -> Failure:
        found = []
        for leaf in leaves(value[0]):
            try:
                found.append(f"{leaf.source} = {short_text(read(leaf))}")
            except Missing:
                found.append(f"no {leaf.source}")
        return self.text("", value), "this to hold", ", ".join(found)

    def native_value(self, source: Source | None, value: tuple[Expression, Any], nodes: _Nodes) -> object:
        return postfix(value[0], nodes.operand), value[1]


def _expression_key(e: Expression) -> Subject:
    """Equal for expressions of two captures over the same paths."""
    if e.op == "const":
        return type(e.args[0]), repr(e.args[0])
    return (e.op, *(e.args[0].path if e.op == "leaf" else map(_expression_key, e.args)))


def _known_number(source: Source, known: Known) -> Any:
    """The constant number at `source`. Raises Missing."""
    shape = source.base
    found = list(known.get((_Eq.name, source.path), ()))
    if source.kind == "item" and shape is not None and shape.base is not None and shape.key == "shape":
        all_facts = known.get((_Tensor.name, shape.base.path), ())
        found = [size for size in (facts.shape[source.key] for facts in all_facts) if size >= 0]
    if not found:
        raise Missing(f"no number is known of {source.source}")
    return found[0]


_COMPARED = frozenset({int, float, bool, str, bytes, complex, slice, range, frozenset, torch.device})


def _same(a: Any, b: Any) -> bool:
    """Whether the values of two guards of one kind state the same fact."""
    if a is b:
        return True
    if type(a) is Source and type(b) is Source:
        return a.path == b.path
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) in _COMPARED and same_leaf(a, b)


class _GlobalState(GuardKind, name="global_state"):
    """`global_state.snapshot() == value`: grad mode, autocast, default dtype and the like. The source is None."""

    def holds(self, source: Source | None, value: global_state.Snapshot, read: Read) -> bool:
        return global_state.snapshot() == value

    def stored(self, native: global_state.Snapshot, root: object, writer: FormWriter) -> Any:
        fields = global_state.decode(native)
        if (
            fields["torch_function_modes"] or fields["torch_dispatch_modes"]
        ):  # compared by the addresses of their classes
            raise Unstorable("a mode of torch is active")
        return writer.value(native)

    def text(self, x: str, value: global_state.Snapshot) -> str:
        return f"global_state({global_state.describe(value)})"

    def failure(self, source: Source | None, value: global_state.Snapshot, read: Read) -> Failure:
        return "global state", *global_state.difference(value, global_state.snapshot())
