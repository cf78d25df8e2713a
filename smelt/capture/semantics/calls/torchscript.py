"""Calls of TorchScript functions and modules: their graph is interpreted node by node on fakes.

The graph, not the Python source, defines the result: `2 ** n` is a float, ints have 64 bits, names have their values at
compile time. Anything unsupported (conditions on tensor values, exceptions, containers that are passed in or held by a
module, classes) breaks the graph, and TorchScript runs the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch
from torch import nn

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, unsupported
from smelt.capture.environment import wrap_values
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.semantics.calls.nn_module_calls import has_hooks
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.guards.source import Source
from smelt.torch_private import (
    Block,
    DisableTorchDispatch,
    DisableTorchFunction,
    FunctionSchema,
    Graph,
    JitType,
    Node,
    OpOverload,
    ScriptModule,
    parse_schema,
)
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import specialize


class _Module(Protocol):
    """TorchScript's own module object, a `ScriptModule`."""

    def getattr(self, name: str, /) -> object: ...
    def _get_method(self, name: str, /) -> _Script: ...


class _Script(Protocol):
    """A callable: a `torch.jit.ScriptFunction`, a method, or a module (which has no schema)."""

    inlined_graph: Graph
    schema: FunctionSchema
    _c: _Module


def call_script(vm: VM, fn: object, args: Args, kwargs: Kwargs) -> object:
    """Call of a `torch.jit.ScriptFunction`."""
    script = cast(_Script, fn)
    return _call(vm, fn, script.inlined_graph, script.schema, (), args, kwargs)


def call_script_module(vm: VM, module: nn.Module, args: Args, kwargs: Kwargs) -> object:
    """Call of a scripted or traced module without hooks of its own."""
    script = cast(_Script, module)
    source = vm.env.sources.get(id(module))
    if source is None:
        raise _refusal("created in the call")
    if has_hooks(vm, module):
        raise _refusal("with hooks of all modules")
    if "_c" not in vars(module):  # a traced module, which delegates to the module created by tracing
        source = source.child("attr", "_actual_script_module")
    module_ref = _ModuleRef(script._c, source.child("attr", "_c"))
    schema = script._c._get_method("forward").schema
    return _call(vm, module, script.inlined_graph, schema, (module_ref,), args, kwargs)


def refuse_script_method(vm: VM, fn: object, args: Args, kwargs: Kwargs) -> object:
    """Refuse a method taken from a scripted module: its source is unknown."""
    raise _refusal("a method")


def _call(
    vm: VM,
    script: object,
    graph: Graph,
    schema: FunctionSchema,
    owner: tuple[object, ...],
    args: Args,
    kwargs: Kwargs,
) -> object:
    vm.frames.call_site = None
    if id(script) not in vm.env.sources:
        raise _refusal("created in the call")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise _refusal("under autocast")  # TorchScript applies autocast itself
    vm.env.facts.use_identity(script)
    arguments = _bind(schema, len(owner), args, kwargs)
    run = _GraphInterpreter(vm)
    try:
        return run.block(graph, (*owner, *arguments))[0]
    except Unsupported:
        raise
    except Exception as error:  # TorchScript raises its own error types
        raise _refusal(f"it raises {type(error).__name__}") from None


def _refusal(what: str) -> Unsupported:
    return unsupported(f"a function or module of TorchScript ({what})")


def _bind(schema: FunctionSchema, owners: int, args: Args, kwargs: Kwargs) -> list[object]:
    """Values of the parameters after the first `owners`."""
    parameters = schema.arguments[owners:]
    names = [p.name for p in parameters]
    if len(args) > len(names) or not set(kwargs) <= set(names[len(args) :]):
        raise _refusal("its arguments do not fit")
    arguments = dict(zip(names, args)) | kwargs
    missing = [p.name for p in parameters if p.name not in arguments and not p.has_default_value()]
    if missing:
        raise _refusal("its arguments do not fit")
    return [_convert_argument(p.type, arguments.get(p.name, p.default_value)) for p in parameters]


def _convert_argument(kind: JitType, value: object) -> object:
    """`value` converted to a TorchScript type."""
    value, name = specialize(value), kind.kind()
    if name == "OptionalType":
        return None if value is None else _convert_argument(kind.getElementType(), value)
    if name == "TensorType" and type(value) is FakeTensor and value.subclass in (None, nn.Parameter):
        return value
    if name == "FloatType" and type(value) is int:
        return float(value)
    if type(value) is _PLAIN_TYPES.get(name):
        return value
    raise _refusal(f"an argument is a {type(value).__name__}")


_PLAIN_TYPES = {
    "IntType": int,
    "FloatType": float,
    "BoolType": bool,
    "StringType": str,
    "NoneType": type(None),
}


class _ModuleRef:
    """A module inside a graph: TorchScript's own object and its source."""

    def __init__(self, module: _Module, source: Source) -> None:
        self.module, self.source = module, source


class _GraphInterpreter:
    """Interpreter of one TorchScript graph. Values are Python values; environment tensors are fakes. Known tensors
    (constants, and numbers converted to tensors) stay real until they are combined with a fake."""

    def __init__(self, vm: VM) -> None:
        self.vm = vm
        self.values: dict[int, object] = {}

    def block(self, block: Block | Graph, inputs: Sequence[object]) -> list[object]:
        """Results of a block or graph with these inputs."""
        self.values.update(zip((v.unique() for v in block.inputs()), inputs, strict=True))
        for node in block.nodes():
            results = self.node(node)
            self.values.update(zip((v.unique() for v in node.outputs()), results, strict=True))
        return [self.values[v.unique()] for v in block.outputs()]

    def node(self, node: Node) -> Sequence[object]:
        """Results of one node."""
        kind = node.kind()
        structure = _STRUCTURES.get(kind)
        if structure is not None:
            return structure(self, node, [self.values[v.unique()] for v in node.inputs()])
        if not kind.startswith(("aten::", "prim::")) or node.schema() == "(no schema)":
            raise _refusal(kind)
        args = [self.values[v.unique()] for v in node.inputs()]
        container = _CONTAINERS.get(kind)
        if container is not None and type(args[0]) in (list, tuple, dict, str):
            return [container(*args)]
        return self.operator(node, args)

    def operator(self, node: Node, args: list[object]) -> Sequence[object]:
        """Results of a torch operator."""
        schema = parse_schema(node.schema())
        namespace, name = schema.name.split("::")
        tensors = any(_is_tensor_type(r.type) for r in schema.returns)
        if len(schema.returns) != 1 and not tensors:
            raise _refusal(schema.name)
        metadata = _METADATA.get(schema.name)
        if metadata is not None and type(args[0]) is FakeTensor:
            return [metadata(*args)]
        function = getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")
        keywords = {p.name: a for p, a in zip(schema.arguments, args, strict=True) if p.kwarg_only}
        positional = [a for p, a in zip(schema.arguments, args, strict=True) if not p.kwarg_only]
        known = not _contains_type(FakeTensor, args)
        if (
            known
            and (_contains_type(torch.Tensor, args) or not tensors)
            and _is_pure(function, schema, tensors)
        ):
            with _without_recording():  # on numbers
                result = function(*positional, **keywords)
        elif tensors:
            keywords = {k: self.shown(v) for k, v in keywords.items()}
            result = run_native(self.vm, function, [self.shown(a) for a in positional], keywords)
        else:
            raise _refusal(f"{schema.name} reads the value of a tensor")
        if len(schema.returns) == 1:
            return [list(result) if type(result) is tuple else result]
        return result

    def shown(self, value: object) -> object:
        """`value` as an argument in the captured graph."""
        if type(value) is list:
            return [self.shown(v) for v in cast("list[object]", value)]
        if type(value) is not torch.Tensor or not isinstance(value, torch.Tensor):
            return value
        with _without_recording():
            number = value.item() if _is_wrapped_number(value) else None
        if number is not None:
            return number
        return wrap_values.wrap(self.vm.env, value, self.vm.env.sources.const(value))

    def read(self, module_ref: _ModuleRef, name: str) -> object:
        """An attribute of a module."""
        value, source = module_ref.module.getattr(name), module_ref.source.child("script", name)
        if type(value) is ScriptModule:
            return _ModuleRef(cast(_Module, value), source)
        if isinstance(value, torch.Tensor) or type(value) in _PLAIN_TYPES.values():
            return specialize(wrap_values.wrap(self.vm.env, value, source))
        raise _refusal(f"a module holds a {type(value).__name__}")


@contextmanager
def _without_recording() -> Iterator[None]:
    """Context in which operators run without being recorded."""
    with DisableTorchDispatch(), DisableTorchFunction():
        yield


def _contains_type(kind: type, value: object) -> bool:
    """Whether `value` has this type or contains a value that does."""
    if isinstance(value, (list, tuple)):
        return any(_contains_type(kind, v) for v in value)
    return isinstance(value, kind)


def _is_tensor_type(kind: JitType) -> bool:
    name = kind.kind()
    return name == "TensorType" or (
        name in ("ListType", "OptionalType") and _is_tensor_type(kind.getElementType())
    )


def _is_wrapped_number(value: torch.Tensor) -> bool:
    """Whether a tensor is a wrapped Python number, whose dtype does not promote other tensors."""
    lower = torch.half if value.is_floating_point() else torch.int8
    return value.ndim == 0 and torch.result_type(torch.empty((), dtype=lower), value) is lower


def _is_pure(function: OpOverload, schema: FunctionSchema, tensors: bool) -> bool:
    """Whether an operator on known values can be evaluated once during capture."""
    if tensors or schema.name == "aten::item":
        is_random = torch.Tag.nondeterministic_seeded in function.tags
        return not is_random and not any(p.alias_info is not None for p in schema.arguments)
    return schema.name in _PURE


# ---- nodes other than operators


def _constant(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    if node.hasAttribute("value") and node.kindOf("value") == "t":
        return [node.t("value")]
    return [node.output().toIValue()]


def _if(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    (condition,) = args
    if type(condition) is not bool:
        raise _refusal("a condition")
    then, otherwise = node.blocks()
    return run.block(then if condition else otherwise, ())


def _loop(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    (limit, go_on, *carried), (body,) = args, node.blocks()
    iteration = 0
    while go_on and iteration < cast(int, limit):
        go_on, *carried = run.block(body, (iteration, *carried))
        iteration += 1
        if iteration > _MAX_ITERATIONS:
            raise _refusal("a long loop")
    return carried


_MAX_ITERATIONS = 10_000


def _tuple(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    if not node.output().type().annotation_str.startswith("Tuple["):
        raise _refusal("a named tuple")
    return [tuple(args)]


def _unpack(run: _GraphInterpreter, node: Node, args: Args) -> Sequence[object]:
    return cast("Sequence[object]", args[0])


def _attribute(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    return [run.read(cast(_ModuleRef, args[0]), node.s("name"))]


def _index(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    values, index = cast("tuple[tuple[object, ...], int]", args)
    return [values[index]]


def _is(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    return [args[0] is args[1]]  # one of them is None


def _uninitialized(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    return [None]  # assigned before it is read


def _tensor_of_number(run: _GraphInterpreter, node: Node, args: Args) -> list[object]:
    with _without_recording():
        return [torch.tensor(args[0])]


_STRUCTURES: dict[str, Callable[[_GraphInterpreter, Node, Args], Sequence[object]]] = {
    "prim::Constant": _constant,
    "prim::If": _if,
    "prim::Loop": _loop,
    "prim::ListConstruct": lambda run, node, args: [list(args)],
    "prim::TupleConstruct": _tuple,
    "prim::DictConstruct": lambda run, node, args: [dict(zip(args[::2], args[1::2]))],
    "prim::ListUnpack": _unpack,
    "prim::TupleUnpack": _unpack,
    "prim::GetAttr": _attribute,
    "prim::TupleIndex": _index,
    "aten::__is__": _is,
    "aten::__isnot__": lambda run, node, args: [args[0] is not args[1]],
    "prim::unchecked_cast": lambda run, node, args: [args[0]],
    "prim::Uninitialized": _uninitialized,
    "prim::NumToTensor": _tensor_of_number,
}


def _append(values: list[object], value: object) -> list[object]:
    values.append(value)
    return values


def _size(x: torch.Tensor, dim: int | None = None) -> object:
    return list(x.shape) if dim is None else x.shape[dim]


def _dtype(x: torch.Tensor) -> object:
    with _without_recording():
        return torch.ops.prim.dtype.default(torch.empty((), dtype=x.dtype))


# Metadata of a fake, as TorchScript represents it
_METADATA: dict[str, Callable[..., object]] = {
    "aten::size": _size,
    "aten::dim": lambda x: x.dim(),
    "aten::numel": lambda x: x.numel(),
    "aten::len": lambda x: x.shape[0],
    "aten::is_floating_point": lambda x: x.is_floating_point(),
    "aten::is_complex": lambda x: x.is_complex(),
    "prim::dtype": _dtype,
    "prim::device": lambda x: x.device,
    "prim::is_cuda": lambda x: x.device.type == "cuda",
}

# Operators on containers and strings, of which torch's operators would receive copies
_CONTAINERS: dict[str, Callable[..., object]] = {
    "aten::__getitem__": lambda values, at: values[at],
    "aten::__contains__": lambda values, value: value in values,
    "aten::add": lambda a, b: a + b,
    "aten::append": _append,
    "aten::len": len,
    "aten::list": list,
    "aten::slice": lambda values, start, stop, step: values[start:stop:step],
}

# Pure operators on numbers and strings
_PURE = frozenset(
    (
        "aten::Bool", "aten::Float", "aten::FloatImplicit", "aten::Int", "aten::IntImplicit", "aten::ScalarImplicit",
        "aten::__and__", "aten::__derive_index", "aten::__not__", "aten::__or__", "aten::__range_length", "aten::__xor__",
        "aten::abs", "aten::add", "aten::all", "aten::any", "aten::ceil", "aten::div", "aten::eq", "aten::exp",
        "aten::floor", "aten::floordiv", "aten::format", "aten::ge", "aten::gt", "aten::le", "aten::log", "aten::lt",
        "aten::max", "aten::min", "aten::mul", "aten::ne", "aten::neg", "aten::pow", "aten::remainder", "aten::round",
        "aten::sqrt", "aten::str", "aten::sub", "aten::sum", "prim::abs", "prim::max", "prim::min",
    )
)  # fmt: skip
