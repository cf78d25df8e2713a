"""Captures one call for `smelt.symbolic_trace`, without running it or installing an entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt import config
from smelt.backends import backend_registry
from smelt.backends.explicit_numbers import ExplicitGraph, with_explicit_numbers
from smelt.capture.driver.cache_entries import HookResult
from smelt.capture.driver.capture_attempts import Attempt
from smelt.capture.driver.capture_errors import NotRepeatable, UserException
from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.driver.frame_compiler import FrameCompiler
from smelt.capture.environment.side_effects import CacheHit, Effect
from smelt.capture.reconstruction.traceback_reconstruction import without_smelt_frames
from smelt.errors import SmeltError
from smelt.exported.captured_state import effect_phrase, restores
from smelt.graph.ir import Graph
from smelt.graph.pytree import PLAIN, leaves
from smelt.guards.guard_kinds import KINDS
from smelt.guards.source import Source
from smelt.shapes.expr import Expression
from smelt.torch_private import tree_flatten
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.sym_numbers import NUMBERS

_ARGUMENT = re.compile(r"L\['(?:args|kwargs)'\]\[(.*?)\]")


@dataclass(frozen=True)
class Condition:
    """`expression` is `holds`. Its leaves are sources; `sizes` maps the id of each to an input and its dimension."""

    expression: Expression
    holds: bool
    sizes: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Recording:
    """The graph of one call.

    Attributes:
        graph: at the torch level with nodes for its numbers.
        inputs: the tensors of the call that are its inputs.
        result: the result, in which fakes stand for tensors, symbols for numbers.
        made: what each of these is, by its id: an input, a node of the graph, or a plain number.
        effects: what the call does to objects outside of it, as texts.
        changed: the ids of these objects.
        conditions: those on sizes of inputs alone.
    """

    traced: Traced
    graph: Graph
    inputs: tuple[torch.Tensor, ...]
    result: Any
    made: Mapping[int, Any]
    effects: tuple[str, ...]
    changed: frozenset[int]
    conditions: tuple[Condition, ...]


def record(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool, level: str
) -> Recording:
    """The record of one call. Raises Unsupported if it is not one graph, and the exceptions of the program."""
    recorder = _Recorder(dynamic, level)
    outcome = recorder(_call, (target, args, kwargs))  # type: ignore[arg-type]
    if callable(outcome):  # the program raises
        _call(target, args, kwargs)
        outcome()
    if recorder.recording is None:
        raise SmeltError("nothing was captured: a capture is active, or smelt is disabled")
    return recorder.recording


def _call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return target(*args, **kwargs)


class _Recorder(FrameCompiler):
    def __init__(self, dynamic: bool, level: str) -> None:
        eager = backend_registry.lookup("eager")
        super().__init__(
            eager, replace(config.defaults(), control_flow="break"), fullgraph=True, dynamic=dynamic
        )
        self.recording: Recording | None = None
        self._level = level

    def first_attempt(self) -> Attempt:
        """The attempt of a compilation, with the calls of modules."""
        return replace(super().first_attempt(), records_modules=True)

    def install(
        self, fn: Any, slots: tuple[Any, ...], captured: CapturedFrame, why: object, begin: float
    ) -> None:
        """Record the captured frame in place of installing an entry."""
        if captured.draws:
            raise SmeltError(
                "the program draws random numbers of Python or NumPy: draw them outside, or with torch"
            )
        if captured.assumed:  # a condition that a compiled frame would check
            raise NotRepeatable
        traced, result = captured.traced, captured.result
        numbers = leaves(result, tuple(NUMBERS))
        explicit = ExplicitGraph(traced.forward_graph)
        if self._level == "torch":
            explicit = with_explicit_numbers(traced, True, [number.node for number in numbers])
        elif traced.unbacked is not None:
            raise SmeltError(
                "a size depends on data, which graphs of ATen operators cannot hold: trace at the torch level"
            )
        returned = explicit.graph.output.args[0]
        made = {
            id(fake): returned[explicit.results[i] if explicit.results else i]
            for i, fake in enumerate(traced.outputs)
        }
        reals = [real for f in traced.inputs if (real := captured.env.trace.inputs.real(f)) is not None]
        if len(reals) != len(traced.inputs):
            raise SmeltError("the program reads a NumPy array, which is no tensor that a graph can hold")
        found = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, FakeTensor)]
        reals_of = {id(fake): captured.env.trace.inputs.real(fake) for fake in found}
        made |= {fake: real for fake, real in reals_of.items() if real is not None}
        made |= {id(number): value for number, value in zip(numbers, explicit.numbers)}
        effects = _effects(captured)
        texts = [_ARGUMENT.sub(r"the argument \1", effect_phrase(effect, captured)) for effect in effects]
        self.recording = Recording(
            traced,
            explicit.graph,
            tuple(reals),
            result,
            made,
            tuple(dict.fromkeys(texts)),
            frozenset(id(effect.target) for effect in effects),
            tuple(_conditions(captured)),
        )

    def handle_user_exception(self, fn: Any, error: UserException) -> HookResult:
        """Raise the program's exception. One that may hold values of the capture comes from an eager call instead."""
        if not all(type(value) in PLAIN for value in error.error.args):
            return super().handle_user_exception(fn, error)
        raise error.error.with_traceback(without_smelt_frames(error.error.__traceback__))


def _effects(captured: CapturedFrame) -> list[Effect]:
    """What the call does outside of the graph, for the user to see."""

    def is_seen(effect: Effect) -> bool:
        return not (
            isinstance(effect, CacheHit)
            or isinstance(effect.target, torch.autocast)
            or restores(effect, captured)
        )

    return list(filter(is_seen, captured.effects))


_EXPRESSION = KINDS["expression"]


def _conditions(captured: CapturedFrame) -> Iterator[Condition]:
    inputs = {source.path: i for i, source in enumerate(captured.input_sources)}
    for guard in captured.guards:
        if guard.kind is _EXPRESSION and isinstance(guard.value[1], bool):
            found = [(id(source), _size(source, inputs)) for source in guard.sources]
            sizes = {source: size for source, size in found if size is not None}
            if len(sizes) == len(found):
                expression, holds = guard.value
                yield Condition(expression, holds, sizes)


def _size(source: Source, inputs: Mapping[Any, int]) -> tuple[int, int] | None:
    """The input and its dimension, if the source is a size of an input."""
    shape = source.base
    if source.kind != "item" or shape is None or shape.key != "shape" or shape.base is None:
        return None
    return (inputs[shape.base.path], source.key) if shape.base.path in inputs else None
