"""The autograd nodes of a compiled frame around the graph's own: between wrapper subclasses and their inner tensors.

    wrapper of the environment -> gradient inputs -> graph -> inner tensors -> wrapper

The gradient inputs have no data of interest: they lead the gradients that the graph computes to the wrapper, as one wrapper
(`smelt/tracing/record/wrapper_gradients.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.tracing.record.wrapper_gradients import InputGradient, Path, WrapperLayout


@dataclass(frozen=True)
class GradientBuilder:
    """Builds a wrapper's gradient from the gradients of its gradient inputs, one for each path in `used`, and from the
    wrapper's own tensors at `own`. `layout`: of the gradient; None for a plain tensor."""

    used: tuple[Path, ...]
    own: tuple[Path, ...]
    layout: WrapperLayout | None

    @classmethod
    def of(cls, gradient: InputGradient) -> GradientBuilder:
        """The builder for a recorded gradient. The parts of that of a plain tensor have its size."""
        is_plain = gradient.layout is not None and not gradient.tensors
        return cls(((),) * len(gradient.used) if is_plain else gradient.used, gradient.own, gradient.layout)

    def build(
        self,
        gradients: Sequence[torch.Tensor | None],
        examples: Sequence[torch.Tensor],
        own: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """The gradient, of the size of `examples[0]`. A part that is undefined is zero, like its example."""
        defined = [torch.zeros_like(x) if g is None else g.detach() for g, x in zip(gradients, examples[1:])]
        return defined[0] if self.layout is None else self.layout.build((*defined, *own), examples[0].shape)


class _Inputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, builder: GradientBuilder, wrapper: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.builder, ctx.own = builder, [_at(wrapper, path) for path in builder.own]
        ctx.examples = [_example(wrapper, path) for path in ((), *builder.used)]
        return tuple(x.detach() for x in ctx.examples[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if all(g is None for g in gradients):
            return None, None
        return None, _once_differentiable(ctx.builder.build(gradients, ctx.examples, ctx.own))


class _Result(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: WrapperLayout, hidden: list[torch.Tensor], *inner: torch.Tensor) -> Any:
        (wrapper,) = hidden
        tensors = layout.parts(wrapper)
        assert tensors is not None
        ctx.layout, ctx.parts = layout, [(x.shape, x.dtype) for x in inner]
        ctx.own = [tensors[i] for i in range(len(inner), len(tensors))]
        return wrapper

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        parts = _parts_of_tangent(ctx, tangent)
        if parts is None:
            parts = _parts_of_tangent(ctx, _converted(ctx, tangent))
        if parts is None:
            raise _unlike(ctx.layout, tangent)
        return None, None, *parts


def _parts_of_tangent(ctx: Any, tangent: object) -> list[torch.Tensor] | None:
    """The inner tensors of a tangent; None for one that is unlike the result."""
    tensors = ctx.layout.parts(tangent)
    n = len(ctx.parts)
    if tensors is None or [(tensors[i].shape, tensors[i].dtype) for i in range(n)] != ctx.parts:
        return None
    if any(
        hasattr(tensors[i], "__tensor_flatten__") for i in range(n)
    ):  # wrappers nested deeper than the result's
        return None
    is_like = all(_is_same(tensors[n + i], x) for i, x in enumerate(ctx.own))
    return [tensors[i] for i in range(n)] if is_like else None


def _converted(ctx: Any, tangent: Any) -> object:
    """A tangent of another class, converted by its own method to one like the result; None where it has no method."""
    convert = getattr(tangent, "__coerce_same_metadata_as_tangent__", None)
    if convert is None:
        return None
    inner = [torch.empty(shape, dtype=dtype, device=tangent.device) for shape, dtype in ctx.parts]
    _, metadata = ctx.layout.build((*inner, *ctx.own), tangent.shape).__tensor_flatten__()  # type: ignore[attr-defined]
    # As torch calls it: a method for other attributes only takes one argument.
    return convert(metadata) if type(tangent) is ctx.layout.cls else convert(metadata, ctx.layout.cls)


class _Once(torch.autograd.Function):
    """The identity; its backward raises."""

    @staticmethod
    def forward(ctx: Any, hidden: list[torch.Tensor], source: torch.Tensor) -> torch.Tensor:
        return hidden[0]

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(
            "smelt: a compiled function with gradients through a wrapper subclass can be differentiated once; use "
            "smelt.disable on it for higher derivatives"
        )


def _once_differentiable(gradient: torch.Tensor) -> torch.Tensor:
    """`gradient`; with create_graph=True, one whose backward raises."""
    if not torch.is_grad_enabled():
        return gradient
    return _Once.apply([gradient], torch.empty(0, requires_grad=True))  # type: ignore[no-any-return, no-untyped-call]


def _unlike(layout: WrapperLayout, tangent: object) -> RuntimeError:
    return RuntimeError(
        f"smelt: the gradient of a compiled function's result, a {layout.cls.__qualname__}, must be one with the same "
        f"attributes, but it is a {type(tangent).__qualname__} without them"
    )


def _is_same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x is y or (x.dtype is y.dtype and torch.equal(x, y))


def _at(wrapper: torch.Tensor, path: Path) -> torch.Tensor:
    found: Any = wrapper
    for name in path:
        found = vars(found)[name]
    return found  # type: ignore[no-any-return]


def _example(wrapper: torch.Tensor, path: Path) -> torch.Tensor:
    """A tensor without data, with the size of a tensor in the wrapper."""
    like = _at(wrapper, path)
    return torch.empty((), dtype=like.dtype, device=like.device).expand(like.shape)


def gradient_inputs(wrapper: torch.Tensor, builder: GradientBuilder) -> tuple[torch.Tensor, ...]:
    """The gradient inputs of a wrapper, whose gradients flow to it."""
    with torch.enable_grad():
        return _Inputs.apply(builder, wrapper)  # type: ignore[no-any-return, no-untyped-call]


def add_history(wrapper: torch.Tensor, layout: WrapperLayout, inner: tuple[torch.Tensor, ...]) -> None:
    """Have the gradient of a wrapper flow to `inner`, its inner tensors as the graph returned them."""
    with torch.enable_grad():
        _Result.apply(layout, [wrapper], *inner)  # type: ignore[no-untyped-call]


def protect(outputs: Sequence[torch.Tensor], wrappers: Sequence[torch.Tensor]) -> None:
    """Have the backward of a graph's outputs raise if one of `wrappers`, whose inner tensors it reads, was written since:
    operators of wrappers do not count their writes of inner tensors. It also raises for a second derivative."""
    versions = [(weakref.ref(x), x._version) for x in wrappers]

    def check(tangents: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        for reference, version in versions:
            wrapper = reference()
            if wrapper is not None and wrapper._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{type(wrapper).__qualname__} {list(wrapper.shape)}] is at version {wrapper._version}; expected "
                    f"version {version} instead."
                )
        return tuple(None if t is None else _once_differentiable(t.detach()) for t in tangents)

    for node in {t.grad_fn for t in outputs} - {None}:
        node.register_prehook(check)  # type: ignore[union-attr]
