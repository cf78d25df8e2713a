"""Which torch-level functions are recorded, refused or passed through, and how a recorded call is written as a node.

torch passes a function mode the function object that the user called: `torch.relu`, `Tensor.view` (a method
descriptor), `Tensor.T.__get__` (a getter). `target_of` converts it to the node form: call_function, call_method, or
`getattr`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from smelt.graph.ir import OpKind
from smelt.reasons import DATA_DEPENDENT, TENSOR_CONDITION, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, ReasonKind
from smelt.torch_private import OpOverload

T = torch.Tensor


def _getters(names: str) -> list[Any]:
    return [getattr(T, n).__get__ for n in names.split() if hasattr(T, n)]


def _setters(names: str) -> list[Any]:
    return [getattr(T, n).__set__ for n in names.split()]


def _methods(names: str) -> list[Any]:
    return [getattr(T, n) for n in names.split() if hasattr(T, n)]


# Functions that only read metadata: neither recorded nor inspected.
PASSED: frozenset[Any] = frozenset(
    _getters(
        "shape dtype device layout ndim requires_grad is_leaf is_cuda is_cpu is_meta is_mps is_xpu is_sparse is_quantized "
        "is_mkldnn is_nested is_vulkan is_sparse_csr is_ipu is_xla is_maia is_mtia itemsize nbytes names _version "
        "grad_fn output_nr _backward_hooks retains_grad volatile _is_view name is_hpu"
    )
    + _methods(
        "size stride dim storage_offset numel nelement ndimension is_contiguous is_floating_point is_complex is_conj "
        "is_neg is_signed element_size get_device __len__ is_same_size has_names _is_view is_inference is_shared "
        "is_pinned is_coalesced type_as is_distributed _has_symbolic_sizes_strides dim_order __hash__ is_set_to"
    )
    + [
        torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.numel, torch.result_type, torch.can_cast,
        torch.is_conj, torch.is_neg, torch.is_signed, torch.is_inference, torch.is_same_size,
        torch.get_device,
    ]
) - {T.type_as}  # fmt: skip

# Functions that change a tensor without running an operator; they are always recorded.
STATEFUL: frozenset[Any] = frozenset(_methods("requires_grad_ retain_grad detach_"))

REFUSED: dict[Any, tuple[ReasonKind, str]] = {}


def _refuse(kind: ReasonKind, functions: list[Any], what: str) -> None:
    for function in functions:
        REFUSED[function] = (kind, what.format(getattr(function, "__name__", function)))


_refuse(
    DATA_DEPENDENT,
    _methods(
        "numpy tolist __array__ __dlpack__ data_ptr storage untyped_storage _typed_storage apply_ map_ map2_ share_memory_"
    ),
    "Tensor.{} reads memory",
)
_refuse(DATA_DEPENDENT, [T.__repr__, T.__format__], "a tensor is formatted as text")
_refuse(UNSUPPORTED_EFFECT, _methods("register_hook register_post_accumulate_grad_hook"), "Tensor.{}")
_refuse(UNSUPPORTED_EFFECT, _methods("backward set_ resize_ resize_as_ rename_ names swap_"), "Tensor.{}")
_refuse(UNSUPPORTED_EFFECT, _setters("data grad"), "a tensor's data or grad was assigned")
_refuse(UNSUPPORTED_EFFECT, _setters("requires_grad"), "requires_grad was assigned")
_refuse(UNSUPPORTED_EFFECT, [torch.autograd.backward], "torch.autograd.backward")
_refuse(UNSUPPORTED_OBJECT, _methods("__deepcopy__ __reduce_ex__"), "copying or pickling a traced tensor")

# The reason for a read of a value, where torch runs the same operator for several functions.
_READS: dict[Any, tuple[ReasonKind, str]] = {
    T.__bool__: (TENSOR_CONDITION, "bool() of a tensor"),
    T.__contains__: (TENSOR_CONDITION, "in a tensor"),
    T.is_nonzero: (TENSOR_CONDITION, "Tensor.is_nonzero"),
    torch.is_nonzero: (TENSOR_CONDITION, "torch.is_nonzero"),
    **{
        f: (DATA_DEPENDENT, f"{f.__name__.strip('_')}() of a tensor")
        for f in (T.__int__, T.__float__, T.__complex__)
    },
    T.__index__: (DATA_DEPENDENT, "a tensor as an index or a count"),
}


def read_of(function: Any) -> tuple[ReasonKind, str]:
    """The reason for a graph break where a torch function reads the value of a tensor."""
    found = _READS.get(function)
    if found is not None:
        return found
    owner = "Tensor" if getattr(T, getattr(function, "__name__", ""), None) is function else "torch"
    return DATA_DEPENDENT, f"{owner}.{name_of(function)}"


# Special methods with a function in `operator`, which prints better than a dunder call.
_OPERATOR_NAMES = (
    "getitem setitem add sub mul truediv floordiv mod pow matmul and or xor lshift rshift eq ne lt le gt ge neg invert "
    "abs iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift"
)
_OPERATORS: dict[str, Callable[..., Any]] = {
    f"__{name}__": getattr(operator, f"__{name}__") for name in _OPERATOR_NAMES.split(" ")
}

Target = tuple[OpKind, Any, tuple[Any, ...]]  # kind, target, extra trailing arguments


def _tensor_methods() -> dict[Any, Target]:
    table: dict[Any, Target] = {}
    for name in dir(T):
        value: Any = getattr(T, name, None)
        if hasattr(value, "__get__") and type(value).__name__ in ("getset_descriptor", "property"):
            table[value.__get__] = ("call_function", getattr, (name,))
        elif callable(value) and not isinstance(value, type):
            try:
                function = _OPERATORS.get(name)
                table.setdefault(
                    value, ("call_function", function, ()) if function else ("call_method", name, ())
                )
            except TypeError:  # unhashable
                continue
    return table


_TARGETS = _tensor_methods()


def target_of(function: Any) -> Target:
    """The node form of a call of `function`."""
    found = _TARGETS.get(function)
    return found if found is not None else ("call_function", function, ())


def name_of(function: Any) -> str:
    """A readable stem for the node's name."""
    _kind, target, extra = target_of(function)
    if extra:
        return str(extra[0])
    if isinstance(target, str):
        return target.strip("_") or "call"
    if isinstance(target, OpOverload):
        return target._schema.name.split("::")[1]
    return getattr(target, "__name__", type(target).__name__).strip("_") or "call"
