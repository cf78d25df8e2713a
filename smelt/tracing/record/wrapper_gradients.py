"""Gradients through wrapper subclasses: autograd differentiates the wrappers, and the joint graph has their inner tensors.

Autograd records operators on wrappers as it does on other tensors, and its backward runs their `__torch_dispatch__`. Only
the ends differ:

    gradient inputs -> _Enter -> proxy of a wrapper of the environment -> ... -> result -> _Leave -> its inner tensors

* A *gradient input* is an input of the graph that the forward does not read. Its gradient is one part of the wrapper's: the
  gradient of an inner tensor, or all of it where that is a plain tensor.
* The proxy takes the wrapper's part in autograd's graph. `__torch_dispatch__` and the program see the wrapper itself. A
  wrapper with symbolic sizes has a proxy without gradients, since its own sizes are those of the captured call.
* `_Leave` gives the inner tensors of a result a history, when the program has ended, and builds the tangent of the result
  from theirs. A tangent is assumed to have the attributes of its result; the compiled frame checks it.

The compiled frame has the same nodes around the graph's own (`autograd/wrapper_nodes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.pytree import leaves, map_leaves
from smelt.shapes.expr import Sym, contiguous_stride, free_syms
from smelt.torch_private import DisableFuncTorch, DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.backward.autograd_graph import reachable_edges
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.record.wrapper_subclasses import wrapper_like, wrapper_of_size
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import size_of
from smelt.tracing.symbolic.symbolic_layouts import SymbolicLayout

T = TypeVar("T")
Path = tuple[str, ...]  # the attributes that lead from a wrapper to an inner tensor


@dataclass(frozen=True)
class Part:
    """The tensor number `index` of those that a wrapper is built from."""

    index: int


@dataclass(frozen=True)
class WrapperLayout:
    """A wrapper without its inner tensors. `attributes`: a `Part`, the layout of an inner wrapper, or the value itself.
    `of_size`: creates it for the sizes of a call, contiguous; None if all sizes are fixed."""

    cls: type
    create: Callable[[], torch.Tensor]
    attributes: Mapping[str, Any]
    of_size: Callable[..., torch.Tensor] | None

    @classmethod
    def of(cls, wrapper: torch.Tensor, index_of: Mapping[int, int]) -> WrapperLayout:
        """The layout of a wrapper that the trace created. `index_of`: the numbers of inner tensors, by id."""
        attributes: dict[str, Any] = {}
        for name, value in vars(wrapper).items():
            if isinstance(value, torch.Tensor) and id(value) not in index_of:
                attributes[name] = cls.of(value, index_of)
            else:
                attributes[name] = Part(index_of[id(value)]) if id(value) in index_of else value
        of_size = wrapper_of_size(wrapper) if sizes_of(wrapper) else None
        return cls(type(wrapper), wrapper_like(wrapper), attributes, of_size)

    def build(self, tensors: Sequence[torch.Tensor], size: torch.Size | None = None) -> torch.Tensor:
        """A wrapper with this layout around `tensors`. `size`: its size in a call, if that is symbolic here."""
        if self.of_size is None or size is None:
            wrapper = self.create()
        else:
            wrapper = self.of_size(size, strides=contiguous_stride(tuple(size)))
        for name, value in self.attributes.items():
            if isinstance(value, WrapperLayout):
                value = value.build(tensors)
            wrapper.__dict__[name] = tensors[value.index] if isinstance(value, Part) else value
        return wrapper

    def parts(self, wrapper: object) -> dict[int, torch.Tensor] | None:
        """The tensors of a wrapper by their numbers; None for one with another layout."""
        if type(wrapper) is not self.cls or vars(wrapper).keys() != self.attributes.keys():
            return None
        found: dict[int, torch.Tensor] = {}
        for name, expected in self.attributes.items():
            value = vars(wrapper)[name]
            if isinstance(expected, Part):
                if not isinstance(value, torch.Tensor):
                    return None
                found[expected.index] = value
            elif isinstance(expected, WrapperLayout):
                inner = expected.parts(value)
                if inner is None:
                    return None
                found |= inner
            elif value is not expected and (isinstance(value, torch.Tensor) or value != expected):
                return None
        return found


@dataclass
class InputGradient:
    """The gradient of a wrapper of the environment. `inputs`: the gradient inputs, for all of it and for each inner tensor
    with a differentiable dtype. `used`: the paths of those with a gradient. `layout`: of the gradient, whose tensors are
    those of `used`, then those of the wrapper itself at `own`; None for a plain tensor.

    Or the gradient, a wrapper, of a plain tensor: `proxy` is that tensor, `inputs` are for the gradient's inner tensors."""

    proxy: torch.Tensor
    tensors: Mapping[Path, FakeTensor]
    inputs: Mapping[Path, FakeTensor]
    used: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()
    layout: WrapperLayout | None = None

    def split(self, gradient: torch.Tensor | None, is_plain: bool) -> list[torch.Tensor | None]:
        """The gradients of the gradient inputs. Raises NotDifferentiable for a gradient that the inputs cannot have."""
        if gradient is None:
            return [None] * len(self.inputs)
        if is_plain:
            self.used = ((),)
        parts: Mapping[Path, torch.Tensor] = {(): gradient} if is_plain else self._parts(gradient)
        for path, part in parts.items():
            expected = self.inputs.get(path)
            if expected is None or (expected.shape, expected.dtype) != (part.shape, part.dtype):
                raise refuse(f"the gradient of a {type(self.proxy).__qualname__} has other inner tensors")
        return [parts.get(path) for path in self.inputs]

    def _parts(self, gradient: torch.Tensor) -> dict[Path, FakeTensor]:
        found = dict(inner_tensors(gradient, vars))
        self._check_sizes(gradient)
        parts = {path: t for path, t in found.items() if is_differentiable(t)}
        mine = {id(t): path for path, t in self.tensors.items()}
        others = {id(t): mine.get(id(t)) for path, t in found.items() if path not in parts}
        if None in others.values():
            raise refuse(f"the gradient of a {type(self.proxy).__qualname__} has an inner tensor of its own")
        self.used, self.own = tuple(parts), tuple(path for path in others.values() if path is not None)
        order = [*map(id, parts.values()), *others]
        self.layout = WrapperLayout.of(gradient, {tensor: i for i, tensor in enumerate(order)})
        return parts

    def _check_sizes(self, gradient: torch.Tensor) -> None:
        """Raise NeedsFixedSize for a gradient with symbolic sizes that the compiled frame cannot create."""
        inner = [
            x for x in vars(gradient).values() if isinstance(x, torch.Tensor) and type(x) is not FakeTensor
        ]
        symbols = frozenset[Sym]().union(*map(sizes_of, inner))
        with DisableTorchFunction(), DisableTorchDispatch():
            size, stride = (tuple(map(size_of, n)) for n in (gradient.size(), gradient.stride()))
        if stride != contiguous_stride(size):
            symbols |= sizes_of(gradient)
        if symbols:
            raise NeedsFixedSize("the gradient of a wrapper subclass", symbols)


@dataclass(eq=False)
class ResultGradient:
    """The gradient of a result. `layout`: of the result and of its tangent, whose tensors are `parts`, which have a
    gradient, then `own`, which have none. `edges[i]` stands for `parts[i]` with its history."""

    layout: WrapperLayout
    parts: tuple[FakeTensor, ...]
    own: tuple[FakeTensor, ...]
    edges: tuple[object, ...]


class _Enter(torch.autograd.Function):
    """From the gradient inputs of a wrapper to its proxy."""

    @staticmethod
    def forward(ctx: Any, gradients: WrapperGradients, found: InputGradient, *inputs: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.gradients, ctx.found = gradients, found
        return found.proxy

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        (gradient,) = tangents
        return None, None, *ctx.found.split(gradient, type(gradient) is FakeTensor)


class _Leave(torch.autograd.Function):
    """From a result to its inner tensors."""

    @staticmethod
    def forward(ctx: Any, gradients: WrapperGradients, found: ResultGradient, result: torch.Tensor) -> Any:
        ctx.gradients, ctx.found = gradients, found
        return found.parts

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        tangent = ctx.found.layout.build((*tangents, *ctx.found.own))
        ctx.gradients.add_created(tangent)
        return None, None, tangent


@dataclass
class WrapperGradients:
    """The wrappers at both ends of a trace's autograd graph.

    Attributes:
        is_used: an operator on wrappers was differentiated.
        environment: the ids of the wrappers of the environment.
        proxies: by id of a wrapper of the environment.
        inputs: by id of a wrapper of the environment that has a gradient.
        originals: by id of a proxy: its wrapper.
        results: by id of a result, with the result.
    """

    call: CurrentCall
    trace_inputs: Inputs
    is_used: bool = False
    environment: set[int] = field(default_factory=set)
    proxies: dict[int, torch.Tensor] = field(default_factory=dict)
    inputs: dict[int, InputGradient] = field(default_factory=dict)
    originals: dict[int, torch.Tensor] = field(default_factory=dict)
    results: dict[int, tuple[torch.Tensor, ResultGradient]] = field(default_factory=dict)

    def add_input(self, wrapper: torch.Tensor, layout: SymbolicLayout | None) -> None:
        """Add a wrapper of the environment. `layout`: its sizes and strides, if some are symbolic."""
        self.call.wrappers[id(wrapper)] = wrapper
        self.environment.add(id(wrapper))
        if layout is not None:
            with self.call.paused():
                proxy = wrapper_of_size(wrapper)(layout.shape, strides=layout.stride)
            self._add_proxy(wrapper, proxy)

    def _add_proxy(self, wrapper: torch.Tensor, proxy: torch.Tensor) -> None:
        self.call.wrappers[id(proxy)] = proxy
        self.proxies[id(wrapper)] = proxy
        self.originals[id(proxy)] = wrapper

    def with_proxies(self, values: Any, differentiates: bool) -> Any:
        """`values` with proxies in place of wrappers of the environment that have symbolic sizes, or, if `differentiates`,
        require gradients."""
        if not differentiates:
            return self.as_proxies(values)
        self.is_used = True
        return map_leaves(values, torch.Tensor, self._differentiated)

    def _differentiated(self, x: torch.Tensor) -> torch.Tensor:
        if id(x) in self.environment and id(x) not in self.inputs and requires_grad(x):
            self._enter(x)
        return self.proxies.get(id(x), x)

    def without_proxies(self, values: Any) -> Any:
        """`values` with the wrappers in place of their proxies."""
        if not self.originals:
            return values
        return map_leaves(values, torch.Tensor, lambda x: self.originals.get(id(x), x))

    def as_proxies(self, values: T) -> T:
        """`values` with the proxies of wrappers that have one."""
        if not self.proxies:
            return values
        return map_leaves(values, torch.Tensor, lambda x: self.proxies.get(id(x), x))  # type: ignore[no-any-return]

    def _enter(self, wrapper: torch.Tensor) -> None:
        proxy = self.proxies.get(id(wrapper))
        tensors = dict(inner_tensors(wrapper, self.call.load_attributes))
        with DisableTorchDispatch(), DisableTorchFunction(), DisableFuncTorch(), torch.enable_grad():
            proxy = wrapper_like(wrapper)() if proxy is None else proxy
            like: dict[Path, torch.Tensor] = {(): proxy}
            like |= {path: t for path, t in tensors.items() if is_differentiable(t)}
            inputs = {path: self._gradient_input(t) for path, t in like.items()}
            found = InputGradient(proxy, tensors, inputs)
            _Enter.apply(self, found, *inputs.values())  # type: ignore[no-untyped-call]
        self.inputs[id(wrapper)] = found
        self._add_proxy(wrapper, found.proxy)

    def _gradient_input(self, like: torch.Tensor) -> FakeTensor:
        with torch.inference_mode(False):
            one = torch.empty((), dtype=like.dtype, device=like.device, requires_grad=True)
            size = tuple(like.elem.size()) if type(like) is FakeTensor else tuple(like.size())
            real = one.expand([n.node.value if isinstance(n, torch.SymInt) else n for n in size])
            layout = SymbolicLayout(size, (0,) * len(size), {}) if has_symbols(size) else None
            fake = self.trace_inputs.fake(real, "gradient", layout)
        self.trace_inputs.drop_size_sources(fake)
        return fake

    def is_result(self, x: object) -> bool:
        """Whether `x` is a wrapper that requires gradients."""
        return id(x) in self.call.wrappers and requires_grad(x)

    def leave(self, result: torch.Tensor) -> None:
        """Give the inner tensors of a result its history. Raises NotDifferentiable."""
        name = type(result).__qualname__
        tensors = [t for _, t in inner_tensors(result, vars)]
        parts = tuple(t for t in tensors if is_differentiable(t))
        own = tuple(t for t in tensors if not is_differentiable(t))
        with DisableTorchFunction(), DisableTorchDispatch(), DisableFuncTorch(), torch.enable_grad():
            if result.grad_fn is None:
                raise refuse(f"a {name} that is a leaf made inside is returned")
            if any(self.trace_inputs.holds(t) or t.requires_grad for t in parts) or len(
                {*map(id, parts)}
            ) < len(parts):
                raise refuse(f"inner tensors of a {name} are inputs, or belong to several results")
            order = {id(t): i for i, t in enumerate((*parts, *own))}
            found = ResultGradient(
                WrapperLayout.of(result, order), parts, own, tuple(object() for _ in parts)
            )
            _Leave.apply(self, found, result)  # type: ignore[no-untyped-call]
        self.results[id(result)] = result, found

    def enter_plain(self, x: FakeTensor, gradient: torch.Tensor) -> list[tuple[FakeTensor, Any]]:
        """Gradient inputs for an input that is a plain tensor, whose recorded gradient is a wrapper, with their gradients.
        Raises NotDifferentiable."""
        parts = {path: t for path, t in inner_tensors(gradient, vars) if is_differentiable(t)}
        if any((t.shape, t.dtype) != (x.shape, x.dtype) for t in parts.values()):
            raise refuse(f"the gradient of a tensor is a {type(gradient).__qualname__} of other tensors")
        with DisableTorchDispatch(), DisableTorchFunction(), DisableFuncTorch(), torch.enable_grad():
            found = InputGradient(x, {}, {path: self._gradient_input(t) for path, t in parts.items()})
            gradients = found.split(gradient, False)
        self.inputs[id(x)] = found
        self.originals[id(x)] = x
        return list(zip(found.inputs.values(), gradients, strict=True))

    def gradient_inputs(self) -> Iterator[tuple[FakeTensor, torch.Tensor, Path]]:
        """The gradient inputs, with their wrappers and paths."""
        for found in self.inputs.values():
            for path, fake in found.inputs.items():
                yield fake, self.originals[id(found.proxy)], path

    def recorded_inputs(self) -> Iterator[tuple[torch.Tensor, InputGradient]]:
        """The wrappers of the environment that the recorded backward gives a gradient."""
        for found in self.inputs.values():
            if found.used:
                yield self.originals[id(found.proxy)], found

    def add_created(self, wrapper: torch.Tensor) -> None:
        """Add a wrapper that the trace created, and those in it."""
        self.call.wrappers[id(wrapper)] = wrapper
        for value in vars(wrapper).values():
            if isinstance(value, torch.Tensor) and type(value) is not FakeTensor:
                self.add_created(value)

    def count_results(self, values: Sequence[FakeTensor]) -> int:
        """The number of results that `values` belong to, if wrappers were differentiated."""
        found = {id(t): id(result) for result, g in self.results.values() for t in g.parts}
        return len({found.get(id(v), id(v)) for v in values}) if self.is_used else 0

    def check_results(self, roots: Sequence[Any]) -> None:
        """Raise NotDifferentiable where other results are computed from a result: its gradient would not flow through it."""
        nodes = {*roots, *(node for node, _ in reachable_edges(roots))} if self.results else set()
        readers: dict[tuple[Any, int], int] = {}
        for node in nodes:
            for edge in node.next_functions:
                readers[edge] = readers.get(edge, 0) + 1
        for result, _ in self.results.values():
            if readers.get((result.grad_fn, result.output_nr), 0) > 1:
                raise refuse(
                    f"other results are computed from a {type(result).__qualname__} that is returned"
                )


def sizes_of(wrapper: torch.Tensor) -> frozenset[Sym]:
    """The symbols in the sizes and strides of a wrapper."""
    with DisableTorchFunction(), DisableTorchDispatch():
        numbers = (*wrapper.size(), *wrapper.stride())
        return frozenset[Sym]().union(*(free_syms(size_of(n)) for n in numbers))


def requires_grad(values: Any) -> bool:
    """Whether a tensor in `values` requires gradients."""
    with DisableTorchFunction():
        return any(t.requires_grad for t in leaves(values, torch.Tensor))


def is_differentiable(x: torch.Tensor) -> bool:
    """Whether tensors of this dtype have gradients."""
    return x.dtype.is_floating_point or x.dtype.is_complex


def inner_tensors(
    wrapper: torch.Tensor, attributes: Callable[[torch.Tensor], Mapping[str, Any]], at: Path = ()
) -> Iterator[tuple[Path, FakeTensor]]:
    """The fakes in a wrapper and in the wrappers in it, with their paths. Raises NotDifferentiable for tensors elsewhere."""
    for name, value in attributes(wrapper).items():
        path = (*at, name)
        if type(value) is FakeTensor:
            yield path, value
        elif isinstance(value, torch.Tensor):
            yield from inner_tensors(value, attributes, path)
        elif leaves(value, torch.Tensor):
            raise refuse(f"a {type(wrapper).__qualname__} holds tensors in a container")
