"""Recording: one run of the user's code on fakes, written down at the torch level and at the aten level at once.

A `Trace` pushes two modes of torch. The function mode sees each call of the user (`torch.relu`, `Tensor.view`) before
anything happens; it runs the call with itself out of the way, so only the outermost call is recorded, and only if it gave
or changed tensors. The dispatch mode, beneath autograd and autocast, sees the ATen operators the call came down to. Each
aten node names the torch-level node that caused it. An operator that C code runs outside of any torch-level call is
recorded at both levels.

Shape functions are slow (some 0.1 to 1 ms) and depend on metadata alone, so their answers are kept per operator and
argument specs (`smelt.trace.shapes`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.forward_ad import enter_dual_level
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.errors import Unsupported
from smelt.graph import state
from smelt.graph.effects import Effects, effects, is_composite
from smelt.graph.ir import Line, Node
from smelt.graph.numbers import Expression
from smelt.reasons import DATA_DEPENDENT, INTERNAL, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason, ReasonKind
from smelt.trace import foreach, fused, joint, known, masked, selected, sequences, shapes, special
from smelt.trace.builder import Builder, identifier
from smelt.trace.fake import FakeTensor, Storages, check_supported, computed, wrap
from smelt.trace.functions import CustomFunctions, UserBackward, check_records
from smelt.trace.graphs import Record, Traced, build, needs_grad
from smelt.trace.joint import Recorded
from smelt.trace.opaque import OpaqueCall
from smelt.trace.outputs import NotDifferentiable, refuse
from smelt.trace.symbols import (
    PLAIN_TYPE,
    SYMBOLIC,
    NumberInput,
    PlainNumbersOnly,
    Symbols,
    has_symbols,
    hint,
    number_arguments,
    plain_parts,
    settled,
)
from smelt.trace.targets import PASSED, REFUSED, STATEFUL, name_of, read_of, target_of

_DisableDispatch = torch._C._DisableTorchDispatch
_DisableFunction = torch._C.DisableTorchFunction
_DisableTransforms = torch._C._DisableFuncTorch
_functorch_level = torch._C._functorch.maybe_current_level
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor

_READS_MEMORY = "its data is not allocated"  # from torch's message when C++ asks a fake for its memory

# Types of argument leaves that nodes hold as they are.
_LEAVES: frozenset[type] = frozenset(
    {
        int, float, bool, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout,
        torch.memory_format, torch.Size, type(NotImplemented), range,
    }
)  # fmt: skip


def _zeros_like(value: Any) -> Any:
    """`value` with real tensors, of zeros, in place of fakes. Raises Unnameable for large ones."""
    if type(value) is FakeTensor:
        if value.elem.numel() > _LARGE:
            raise special.Unnameable("a large tensor")
        with _DisableDispatch(), _DisableFunction():
            zeros = torch.empty_strided(value.elem.size(), value.elem.stride(), dtype=value.elem.dtype)
            zeros.zero_().requires_grad_(value.requires_grad)
            return zeros if value.is_leaf else zeros + 0
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(_zeros_like, value))
    if type(value) is dict:
        return {k: _zeros_like(v) for k, v in value.items()}
    return value


def _require_grad(fake: FakeTensor) -> None:
    """`fake.requires_grad_()`, which a transform would forbid."""
    functorch = torch._C._functorch
    allowed = functorch.get_inplace_requires_grad_allowed() if _functorch_level() is not None else None
    if allowed is False:
        functorch.set_inplace_requires_grad_allowed(True)
    fake.requires_grad_(True)
    if allowed is False:
        functorch.set_inplace_requires_grad_allowed(False)


def _check_writable(args: tuple[Any, ...]) -> None:
    """What eager checks where it counts a tensor's version. The eager call itself says it in its own words."""
    target = args[0] if args else None
    if type(target) is FakeTensor and target.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")


def _pop_saved_tensor_hooks() -> Iterator[tuple[Any, Any]]:
    """The caller's hooks, innermost first, which are the user's code and must not see fakes."""
    autograd: Any = torch._C._autograd
    while (hooks := autograd._top_saved_tensors_default_hooks(True)) is not None:
        autograd._pop_saved_tensors_default_hooks()
        yield hooks


_LARGE = 10_000_000  # elements
_OPERATOR_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)


# Of functions whose C++ code does not run on fakes, or leaves a backward that cannot be recorded.
_BODIES = {**sequences.BODIES, **selected.BODIES, **masked.BODIES}


class _FunctionMode(TorchFunctionMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._call = trace._call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PASSED:
            return func(*args, **(kwargs or {}))
        return self._call(func, args, kwargs or {})


class _DispatchMode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its own compiler to shield the mode from it

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._operator = trace._operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._operator(func, args, kwargs or {})


class Trace:
    """Records what happens to fake tensors while it is entered; `finish` gives the graphs. For one use, on one thread.

    `where()` says which user line is running. `on_unknown(real)` is asked for the fake of a real tensor that turns up
    inside native code; without it such a tensor is Unsupported.
    """

    def __init__(self, where: Callable[[], Line | None] | None = None) -> None:
        self.where: Callable[[], Line | None] = where or (lambda: None)
        self.on_unknown: Callable[[torch.Tensor], FakeTensor] | None = None
        self.on_read: Callable[[FakeTensor], Any] | None = None
        self.torch = Builder("torch")
        self.aten = Builder("aten")
        self.inputs: list[FakeTensor] = []
        self.tangents: list[FakeTensor] = []  # what the backward starts from
        self.records: list[Record] = []
        self.wrote = False  # some operator wrote memory
        self.written: set[int] = set()  # the storages that operators wrote
        self.frozen: set[int] = set()  # the storages that must not be written: others see the same memory
        # Tensors whose storage is addressed from its start: the offsets of the inputs that share it matter.
        self.counted_from_start: list[FakeTensor] = []
        self.copies = selected.Copies()  # made in place of views
        self.kept: set[Node] = set()  # torch-level nodes that change a tensor without writing memory
        self.failed: Reason | None = None  # why `finish` must refuse
        # id of an input that requires grad -> its `grad_fn` to begin with
        self.first_history: dict[int, Any] = {}
        # inputs that a method of STATEFUL was called on, by its name
        self.restated: dict[str, list[FakeTensor]] = {}
        self.hooked: list[FakeTensor] = []  # tensors that a hook was registered on
        self.differentiate = False  # a backend wants the joint graph
        self._names: dict[int, str] = {}
        self._storages = Storages()
        self._by_real: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._reals: dict[int, torch.Tensor] = {}
        self._source: Node | None = None  # the torch-level call that is running
        self._changed = False  # it wrote memory
        self._opaque = False  # it is one whose Python code is the user's
        self._called_opaque = False
        self._open_levels = 0  # of forward-mode differentiation
        self._left_autocast = False  # since the latest node
        self._state = self.first_state = state.read()
        self._modes = (_DispatchMode(self), _FunctionMode(self))
        self.symbols: Symbols | None = None  # of the symbolic numbers, where there are any
        self.numbers: dict[Expression, NumberInput] = {}  # those that an operator was given
        self._paused = 0
        self.custom: CustomFunctions | None = None  # those that were applied
        self._recorded: tuple[list[FakeTensor], Recorded | None] | None = None
        self._line_of: Mapping[Any, Line | None] | None = None  # while the backward is recorded
        self._in_user_backward = False

    # ---- context

    def __enter__(self) -> Trace:
        shapes.trim()
        self._state = self.first_state = state.read()
        self._saved_tensor_hooks = list(_pop_saved_tensor_hooks())
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, tb)
        for hooks in reversed(self._saved_tensor_hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Real torch computation by smelt itself, not recorded."""
        self._paused += 1
        try:
            with _DisableFunction(), _DisableTransforms():
                yield
        finally:
            self._paused -= 1

    # ---- inputs

    def fake(self, real: torch.Tensor, name: str = "") -> FakeTensor:
        """The fake that stands for `real` (always the same one). `name` is how graphs call it.

        Raises Unsupported for subclasses and for layouts other than strided.
        """
        entry = self._by_real.get(id(real))
        if entry is not None:
            return entry[1]
        if type(real) is FakeTensor:
            return real
        with _DisableDispatch(), _DisableFunction(), _DisableTransforms():
            check_supported(real)
            with torch.inference_mode(real.is_inference()):
                fake = wrap(self._storages.elem_like(real), real.device)
            if real.requires_grad:
                _require_grad(fake) if _is_leaf(real) else computed(fake)
                self.first_history[id(fake)] = fake.grad_fn
            if isinstance(real, torch.nn.Parameter):
                fake._is_param = True  # type: ignore[attr-defined]
        self._by_real[id(real)] = (real, fake)
        self._reals[id(fake)] = real
        self._names[id(fake)] = identifier(name) if name else ""
        self.inputs.append(fake)
        return fake

    def real(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The tensor that an input fake stands for; None for what was computed."""
        return self._reals.get(id(fake))

    def is_input(self, fake: torch.Tensor) -> bool:
        return id(fake) in self._reals

    @property
    def needs_autograd(self) -> bool:
        """Whether a call changed what autograd knows of an input."""
        return bool(self.restated)

    def _placeholder(self, fake: FakeTensor, builder: Builder) -> Node:
        if id(fake) not in self._reals:
            if self._called_opaque:
                raise self.unsupported(
                    UNSUPPORTED_OBJECT, "a tensor made inside a custom function or checkpoint is kept"
                )
            raise self.unsupported(
                INTERNAL, "a tensor of this trace was made by a call that was not recorded"
            )
        stem = self._names[id(fake)] or "input"
        name = builder.name(stem)
        node = Node("placeholder", name, (), {}, name, fake.spec)
        if builder is self.torch:
            fake.torch_node = node
        else:
            fake.aten_node = node
        return node

    def unsupported(self, kind: ReasonKind, detail: str) -> Unsupported:
        return Unsupported(Reason(kind, detail, self.where()))

    def _unknown(self, real: torch.Tensor) -> FakeTensor:
        """The fake of a real tensor found inside native code."""
        entry = self._by_real.get(id(real))
        if entry is not None:
            return entry[1]
        if special.is_internal_scalar(real):
            return self.constant(real)
        if self.on_unknown is not None:
            return self.on_unknown(real)
        raise self.unsupported(
            UNSUPPORTED_OBJECT, f"a tensor of shape {list(real.shape)} that native code holds"
        )

    def constant(self, value: torch.Tensor) -> FakeTensor:
        """A fake for a tensor whose value is part of the program."""
        with _DisableTransforms(), _DisableDispatch():
            elem = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
            fake = wrap(elem, value.device)
        name = self.aten.name("constant")
        self.aten.graph.constants[name] = value
        node = Node("get_attr", name, (), {}, name, fake.spec, self._line(), self._source)
        self.aten.graph.nodes.append(node)
        self.records.append(Record(node, fake))
        fake.aten_node = node
        if self._source is None:  # otherwise the torch-level call that made it names it
            self.torch.graph.constants[name] = value
            fake.torch_node = self.torch.make("get_attr", name, (), {}, name, fake.spec, node.line)
        return fake

    # ---- torch level

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A torch-level call: run it, and record it if it gave or changed tensors."""
        if self._paused:
            return func(*args, **kwargs)
        if func in REFUSED:
            folded = known.fold_call(self, func, args, kwargs)
            if folded is not known.UNKNOWN:
                return folded
            raise self.unsupported(*REFUSED[func])
        if self._opaque:
            return self._call_inside(func, args, kwargs)
        if _functorch_level() is not None:
            return func(*args, **kwargs)
        if self.symbols is not None:
            args, kwargs = settled(args), settled(kwargs)
        try:
            source = self._torch_node(func, args, kwargs)
        except special.Unnameable:  # its operators are recorded one by one
            return func(*args, **kwargs)
        self._source, self._changed = source, False
        failure: Exception | None = None
        try:
            out = self._run_call(func, args, kwargs)
        except BaseException as error:
            if self._only_symbols_failed(error, args, kwargs):
                self._source = None
                return self._call(func, *plain_parts((args, kwargs)))
            if isinstance(error, RuntimeError) and _READS_MEMORY in str(error):
                raise self.unsupported(DATA_DEPENDENT, f"{name_of(func)} reads memory") from error
            if isinstance(error, Unsupported) and error.reason.kind is DATA_DEPENDENT:
                raise self.unsupported(*read_of(func)) from None
            if isinstance(error, _OPERATOR_ERRORS) and not isinstance(error, Unsupported):
                failure = None if self._changed else self._error_of_real_tensors(func, args, kwargs)
                if failure is None:
                    self.failed = Reason(
                        UNSUPPORTED_EFFECT, f"{name_of(func)} raised {type(error).__name__}", self._line()
                    )
            if failure is None:
                raise
        finally:
            self._source = None
        if failure is not None:  # raised where nothing is handled: it has no context of ours
            raise failure
        if self._changed or func in STATEFUL or _has_new(out):
            self._record_call(source, func, out)
            if func in STATEFUL and self.is_input(args[0]):
                self.restated.setdefault(func.__name__, []).append(args[0])
        return out

    def _run_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, or what takes its place."""
        body = _BODIES.get(func)
        if body is not None and not kwargs:
            return body(self, func, args)
        each = foreach.BODIES.get(func) or fused.BODIES.get(func)
        out = NotImplemented if each is None else each(args, kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out

    def _only_symbols_failed(
        self, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the call is to be made again with plain numbers: for what does not take others, and for its text."""
        if self.symbols is None or self._changed or isinstance(error, Unsupported):
            return False
        return has_symbols((args, kwargs))

    # ---- symbolic numbers

    def _number(self, value: Any, builder: Builder) -> Any:
        """The placeholder of a symbolic number; the number itself where nothing in it may change."""
        symbol = value.node
        if symbol.symbols.is_pinned(symbol.expression):
            return symbol.value
        found = self.numbers.get(symbol.expression)
        if found is None:
            found = self.numbers[symbol.expression] = NumberInput(symbol)
        return found.node(builder)

    def _pin_unusual(
        self, func: OpOverload, args: Any, kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """An operator's arguments, symbolic only where a number may differ without changing the result's metadata."""
        names = [] if self._opaque else number_arguments(func)
        arguments = func._schema.arguments
        return (
            tuple(v if a.name in names else plain_parts(v) for v, a in zip(args, arguments)),
            {k: v if k in names else plain_parts(v) for k, v in kwargs.items()},
        )

    def _call_inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A torch-level call of the user's code inside an opaque call."""
        try:
            return func(*args, **kwargs)
        except _OPERATOR_ERRORS as error:
            if not isinstance(error, Unsupported):
                detail = f"{name_of(func)} raised {type(error).__name__}"
                self.failed = Reason(UNSUPPORTED_EFFECT, detail, self._line())
            raise

    def opaque(self, target: OpaqueCall, run: Callable[[], Any]) -> Any:
        """`run()`, which does on fakes what `target` does: at the torch level one call, whatever functions it calls."""
        if self._source is not None or self._paused:
            return run()
        if self.symbols is not None:
            raise PlainNumbersOnly(Reason(UNSUPPORTED_OBJECT, "a number that changes from call to call"))
        nodes = tuple(self._torch_argument(t) for t in target.tensors)
        target.tensors = []  # the graph outlives the trace
        source = Node("call_function", target, nodes, {}, "")
        self._source, self._changed, self._opaque = source, False, True
        try:
            out = run()
        except Exception as error:  # what it did before it raised is not recorded
            self.failed = Reason(
                UNSUPPORTED_EFFECT, f"{name_of(target)} raised {type(error).__name__}", self._line()
            )
            raise
        finally:
            self._source, self._opaque = None, False
        self.kept.add(source)
        self._called_opaque = True
        self._record_call(source, target, out)
        return out

    def _error_of_real_tensors(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Exception | None:
        """What `func` raises in eager, whose text may be another than that of its shape function."""
        try:
            real_args, real_kwargs = _zeros_like((args, kwargs))
            with _DisableDispatch(), _DisableFunction(), _DisableTransforms():
                func(*real_args, **real_kwargs)
        except special.Unnameable:
            return None
        except _OPERATOR_ERRORS as error:
            error.__context__ = None  # the shape function's error, which is being handled here
            return error.with_traceback(None)
        return None

    def _torch_node(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """The torch-level node of a call, not in the graph yet. Raises Unnameable for arguments that no graph can hold."""
        node_args = tuple(self._torch_argument(a) for a in args)
        return Node(
            "call_function", func, node_args, {k: self._torch_argument(v) for k, v in kwargs.items()}, ""
        )

    def _torch_argument(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            return value.torch_node or self._placeholder(value, self.torch)
        if kind in _LEAVES:
            return value
        if kind in SYMBOLIC:
            return self._number(value, self.torch)
        if isinstance(value, torch.Tensor):
            if _is_wrapped(value):  # by a transform that is over
                raise special.Unnameable("a tensor of a transform")
            return self._torch_argument(self._unknown(value))
        if isinstance(value, (list, tuple)):
            items = [self._torch_argument(v) for v in value]
            return items if kind is list else tuple(items)
        if isinstance(value, dict):
            return {k: self._torch_argument(v) for k, v in value.items()}
        if kind is slice:
            return slice(*map(self._torch_argument, (value.start, value.stop, value.step)))
        return special.other_argument(value)

    def _record_call(self, source: Node, func: Any, out: Any) -> None:
        self._sync_state()
        source.op, source.target, extra = target_of(func)
        source.args += extra
        source.name = self.torch.name(name_of(func))
        if source.line is None:
            source.line = self.where()
        self.torch.graph.nodes.append(source)
        self._name_results(source, out)

    def _name_results(self, node: Node, out: Any) -> Any:
        """Lets every new fake in `out` know its torch-level node; fills in `node.spec`."""
        if type(out) is FakeTensor:
            node.spec = out.spec
            if out.torch_node is None:
                out.torch_node = node
        elif isinstance(out, (list, tuple, dict)):
            keys = list(out) if isinstance(out, dict) else range(len(out))
            node.spec = tuple(self._name_item(node, key, out[key]) for key in keys)
        return node.spec

    def _name_item(self, node: Node, key: Any, value: Any) -> Any:
        if type(value) is FakeTensor and value.torch_node is not None:
            return value.spec
        if not isinstance(value, (FakeTensor, list, tuple, dict)):
            return None
        item = self.torch.make("call_function", operator.getitem, (node, key), {}, "getitem", None, node.line)
        return self._name_results(item, value)

    def _sync_state(self, now: state.State | None = None) -> None:
        """Records grad mode and autocast at the torch level when they differ from what the graph so far implies."""
        now = now or state.read()
        if self._left_autocast:
            self._left_autocast = False
            self.torch.make(
                "call_function", torch.clear_autocast_cache, (), {}, "clear_cache", None, self.where()
            )
        if now != self._state:
            for function, args in state.difference(self._state, now):
                self.torch.make("call_function", function, args, {}, name_of(function), None, self.where())
            self._state = now

    def switch_level(self, function: Callable[[], Any]) -> None:
        """A level of forward-mode differentiation is entered or left by `function`."""
        node = self.torch.make("call_function", function, (), {}, name_of(function), None, self.where())
        self.kept.add(node)
        self._open_levels += 1 if function is enter_dual_level else -1

    def leave_autocast(self) -> None:
        """The user's code is about to leave an autocast context. With the outermost one eager drops its casts."""
        self._left_autocast |= state.autocast_depth() == 1

    # ---- aten level

    def _line(self) -> Line | None:
        if self._line_of is not None:
            return self._line_of.get(torch._C._current_autograd_node())
        source = self._source
        if source is None:
            return self.where()
        if source.line is None:
            source.line = self.where()
        return source.line

    def _operator(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An ATen operator beneath autograd."""
        if self._paused:
            return func(*args, **kwargs)
        if self._source is not None:
            return self._run_operator(func, args, kwargs)
        with _DisableFunction():
            return self._operator_alone(func, args, kwargs)

    def _operator_alone(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator outside of every torch-level call: its own torch-level node."""
        if func in special.LIFTS:  # gives a constant
            return self._run_operator(func, args, kwargs)
        try:
            source = self._torch_node(func, args, kwargs)
        except special.Unnameable as error:
            raise self.unsupported(UNSUPPORTED_OBJECT, str(error)) from error
        self._source, self._changed = source, False
        try:
            out = self._run_operator(func, args, kwargs)
        finally:
            self._source = None
        if self._changed or _has_new(out):
            self._record_call(source, func, out)
        return out

    def _run_operator(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.symbols is not None:
            args, kwargs = self._pin_unusual(func, args, kwargs)
        rule = special.RULES.get(func)
        if rule is not None:
            out = rule(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if torch.is_inference_mode_enabled() and is_composite(func):
            with self._modes[0]:  # what autograd does in other modes
                return func.decompose(*args, **kwargs)
        return self.run(func, args, kwargs)

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator on metadata and records its aten node."""
        key: list[Any] = [func]
        nodes: list[Any] = []
        for a in args:
            kind = type(a)
            if kind is FakeTensor:
                nodes.append(a.aten_node or self._placeholder(a, self.aten))
                key.append(id(a._spec or a.spec))
            elif kind is int or a is None:
                nodes.append(a)
                key.append(a)
            else:
                nodes.append(self._aten_argument(a, key))
        node_kwargs = {}
        for name, a in kwargs.items():
            key.append(name)
            node_kwargs[name] = self._aten_argument(a, key)
        info = effects(func)
        if info.writes:
            _check_writable(args)
        if self.symbols is not None:
            args, kwargs = tuple(map(hint, args)), {k: hint(v) for k, v in kwargs.items()}
        out, spec = shapes.infer(self, func, info, tuple(key), args, kwargs)
        node = self.aten.make(
            "call_function",
            func,
            tuple(nodes),
            node_kwargs,
            shapes.stem(func),
            spec,
            self._line(),
            self._source,
        )
        if info.writes:
            self._note_writes(_storages(info, args, kwargs))
        self._name_aten(node, out)
        return out

    def _note_writes(self, storages: Iterator[int]) -> None:
        self.wrote = self._changed = True
        written = set(storages)
        self.written |= written
        self.copies.note_written(written)
        if not self.frozen.isdisjoint(self.written):
            raise self.unsupported(
                UNSUPPORTED_EFFECT, "a tensor is written that shares memory with a NumPy array"
            )

    def _name_aten(self, node: Node, out: Any) -> None:
        if type(out) is FakeTensor:
            if out.aten_node is None:
                out.aten_node = node
        elif isinstance(out, (tuple, list)):
            for i, value in enumerate(out):
                if type(value) is FakeTensor and value.aten_node is None:
                    value.aten_node = self.aten.make(
                        "call_function",
                        operator.getitem,
                        (node, i),
                        {},
                        "getitem",
                        value._spec,
                        node.line,
                        node.source,
                    )
        self.records.append(Record(node, out))

    def _aten_argument(self, value: Any, key: list[Any]) -> Any:
        """`value` as a node argument; appends what a shape function may see of it to `key`."""
        kind = type(value)
        if kind is FakeTensor:
            key.append(id(value.spec))
            return value.aten_node or self._placeholder(value, self.aten)
        if kind is list or kind is tuple:
            key.append((kind, len(value)))
            return [self._aten_argument(v, key) for v in value]
        if kind is float or kind is bool or kind is complex:
            key.append((kind, value))
            return value
        if kind in _LEAVES:
            key.append(value)
            return value
        if kind in SYMBOLIC:
            key.append((PLAIN_TYPE[kind], "symbolic"))
            return self._number(value, self.aten)
        if isinstance(value, torch.Tensor):
            return self._aten_argument(self._unknown(value), key)
        try:
            return special.other_argument(value)
        except special.Unnameable as error:
            raise self.unsupported(UNSUPPORTED_OBJECT, str(error)) from error

    def change_metadata(self, fake: FakeTensor, elem: torch.Tensor, node: Node) -> None:
        """`fake` is now the view `elem` of what it was, given by `node`. What it was lives on as another fake, so that
        earlier nodes keep theirs."""
        before = wrap(fake.elem, fake._device, fake.spec)
        before.aten_node, before.torch_node = fake.aten_node, fake.torch_node
        for record in self.records:
            record.replace(fake, before)
        fake.elem, fake._spec, fake.aten_node = elem, None, node
        self.records.append(Record(node, fake))
        self._changed = True
        if self._source is not None:
            self.kept.add(self._source)

    # ---- values

    def value_of(self, fake: FakeTensor) -> torch.Tensor | None:
        """The value of a small tensor that depends on constants only; None when it does not."""
        return known.evaluate(self, fake)

    def read_number(self, fake: FakeTensor) -> Any:
        """The number that a tensor of one element holds, if whoever asked for this trace knows one; else None."""
        return None if self.on_read is None or self._opaque else self.on_read(fake)

    def refuse_value(self, what: str) -> Unsupported:
        return self.unsupported(DATA_DEPENDENT, what)

    # ---- result

    def forget_inputs(self) -> None:
        """Lets go of the real tensors, and of who asked for this trace."""
        self.on_unknown = self.on_read = None
        self._by_real.clear()
        self._reals.clear()

    def finish(self, outputs: Sequence[torch.Tensor]) -> Traced:
        """The graphs that compute `outputs` (fakes of this trace). Call it after the trace was left."""
        if self._recorded is None:
            self.record_backward(outputs)
        assert self._recorded is not None
        fakes, recorded = self._recorded
        if len(fakes) != len(outputs) or any(f is not self.fake(t) for f, t in zip(fakes, outputs)):
            raise refuse("the backward was recorded of other results")
        with _DisableFunction(), _DisableDispatch():
            try:
                return build(self, fakes, recorded)
            except Unsupported as error:
                if recorded is None:
                    raise
                raise NotDifferentiable(error.reason) from error

    def record_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Records the backward of `outputs`, where it is wanted. Nothing may be recorded afterwards."""
        if self.failed is not None:
            raise Unsupported(self.failed)
        if self._open_levels:
            raise self.unsupported(UNSUPPORTED_EFFECT, "a level of forward-mode differentiation stays open")
        with _DisableFunction(), _DisableDispatch():
            self._sync_state(self.first_state)
            fakes = [self.fake(t) for t in outputs]
            for fake in fakes:
                fake.torch_node = fake.torch_node or self._placeholder(fake, self.torch)
                fake.aten_node = fake.aten_node or self._placeholder(fake, self.aten)
            differentiate = self.differentiate and needs_grad(self, fakes)
        recorded = None
        if differentiate:
            with _DisableFunction():
                recorded = joint.record(self, fakes)
            if self.failed is not None:
                raise NotDifferentiable(self.failed)
        self._recorded = fakes, recorded

    def add_tangent(self, fake: FakeTensor, name: str) -> None:
        """`fake` is an input of the backward alone."""
        fake.aten_node = Node("placeholder", name, (), {}, self.aten.name(name), fake.spec)
        self.tangents.append(fake)

    @contextmanager
    def recording_backward(self, lines: Mapping[Any, Line | None]) -> Iterator[None]:
        """Operators that autograd's engine runs are recorded at the aten level alone. `lines`: by node of autograd."""
        self._source, self._line_of = Node("call_function", "backward", (), {}, "backward"), lines
        try:
            # as where eager's backward runs
            with torch._C._DisableAutocast() if self.custom is None else _autocast_off():
                yield
        finally:
            self._source, self._line_of = None, None

    def run_backward(self, run: Callable[[], Any]) -> Any:
        """`run()`, which has autograd's engine compute gradients."""
        return run() if self.custom is None else self.custom.window(run)

    @property
    def records_backward(self) -> bool:
        """Whether autograd's engine runs to record the joint graph."""
        return self._source is not None and (self._line_of is not None or self._in_user_backward)

    @contextmanager
    def user_backward(self, name: str) -> Iterator[UserBackward]:
        """While autograd's engine runs: a backward of the user's is called, and recorded as such."""
        assert self.custom is not None
        source = Node("call_function", "backward", (), {}, self.torch.name(name))
        call = UserBackward(name, source)
        start = len(self.records)
        before = self._source, self._line_of, self._opaque, self._in_user_backward
        self._source, self._line_of, self._opaque, self._in_user_backward = source, None, True, True
        try:
            with torch._C._EnableTorchFunction():
                yield call
        finally:
            self._source, self._line_of, self._opaque, self._in_user_backward = before
        check_records(call, self.records[start:])
        self.custom.called.append(call)


@contextmanager
def _autocast_off() -> Iterator[None]:
    """Autocast is off, as a setting, which the user's code may read and change."""
    on = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    for device in on:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in on:
            torch.set_autocast_enabled(device, True)


def _storages(info: Effects, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[int]:
    """The storages of what an operator writes."""
    for name in info.writes:
        value = info.argument(name, args, kwargs)
        for fake in value if isinstance(value, (list, tuple)) else (value,):
            if type(fake) is FakeTensor:
                yield fake.storage_key


def _is_leaf(real: torch.Tensor) -> bool:
    """Raises Unsupported for a view that autograd has given up on, because what it is a view of was written."""
    try:
        return real.is_leaf
    except RuntimeError as error:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a view whose base was written in place")) from error


def _has_new(out: Any) -> bool:
    """Whether `out` holds a fake that no torch-level node gave yet."""
    if type(out) is FakeTensor:
        return out.torch_node is None
    if isinstance(out, (tuple, list)):
        return any(_has_new(v) for v in out)
    if isinstance(out, dict):
        return any(_has_new(v) for v in out.values())
    return False


__all__ = ["Effects", "Trace", "Traced"]
