"""The dispatch mode, beneath autograd and autocast: it sees the ATen operators that a call dispatches to."""

from __future__ import annotations

from typing import Any

import torch

from smelt.errors import CreatesSizes
from smelt.graph.operator_effects import effects, is_composite
from smelt.graph.pytree import map_leaves
from smelt.ops.created_sizes import declare_created_sizes
from smelt.ops.registry import row
from smelt.ops.trace_rules import TraceRule
from smelt.reasons import UNSUPPORTED_OBJECT
from smelt.torch_private import DisableTorchFunction, OpOverload, TorchDispatchMode
from smelt.tracing.fake.fake_tensor import FakeTensor, has_unrecorded
from smelt.tracing.record import recording_rules
from smelt.tracing.record.call_arguments import Args, Kwargs, Unnameable
from smelt.tracing.record.changed_defaults import adapted
from smelt.tracing.record.nested_tensors import has_nested
from smelt.tracing.record.number_inputs import specialize_arguments
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.record.wrapper_subclasses import wrappers_in
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, wrap_symbolic


class DispatchMode(TorchDispatchMode):
    """Records each operator at the aten level. An operator that C code runs outside of every torch-level call is
    recorded at both levels."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import its own compiler to skip the mode

    def __init__(self, parts: TraceParts) -> None:
        super().__init__()
        self._call = parts.call
        self._call_recorder = parts.torch_recorder
        self._operator_recorder = parts.aten_recorder
        self._numbers = parts.numbers
        self._wrapper_gradients = parts.wrapper_gradients
        self._nested = parts.nested

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._call.pause_depth:
            return func(*args, **kwargs)
        if self._nested.used:
            if has_nested(args, kwargs):
                return self._nested.dispatch(self, func, types, args, kwargs)
            if self._call.hidden_keys is not None:
                self._nested.check_hidden(func, args, kwargs)
        if self._call.wrappers and wrappers_in(self._call, args, kwargs):
            return self._call_class(func, types, args, kwargs)
        if self._call.node is not None:
            return self._run(func, args, kwargs)
        with DisableTorchFunction():
            return self._run_alone(func, args, kwargs)

    def _call_class(self, func: OpOverload, types: Any, args: Args, kwargs: Kwargs) -> Any:
        """The result of the wrappers' `__torch_dispatch__`. Only the operators that it runs are recorded."""
        call = self._call
        before = call.node, call.in_dispatch
        if call.backwards is None:
            call.node = None
        call.in_dispatch = True
        known = self._wrapper_gradients
        try:
            with self:
                kinds = tuple(cls for cls in types if cls is not FakeTensor)  # plain tensors in eager
                arguments, options = known.without_proxies((tuple(args), kwargs))
                if self._numbers.symbols is not None:
                    arguments, options = map_leaves((arguments, options), tuple(SYMBOLIC), wrap_symbolic)
                return known.as_proxies(call.call_dispatch(func, kinds, arguments, options))
        finally:
            call.node, call.in_dispatch = before

    def _run_alone(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator outside of every torch-level call, with a torch-level node of its own."""
        if row(func).trace_rule is TraceRule.LIFT:  # returns a constant
            return self._run(func, args, kwargs)
        call = self._call
        try:
            node = self._call_recorder.node(func, args, kwargs)
        except Unnameable as error:
            raise call.unsupported(UNSUPPORTED_OBJECT, str(error)) from error
        call.node, call.mutated = node, False
        try:
            out = self._run(func, args, kwargs)
        finally:
            call.node = None
        if call.mutated or has_unrecorded(out):
            self._call_recorder.record(node, func, out)
        return out

    def _run(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        if self._call.changed:
            kwargs = adapted(self._call, func, args, kwargs)
        if self._numbers.symbols is not None:
            args, kwargs = specialize_arguments(func, args, kwargs, only_sizes=self._call.is_opaque)
        rule = recording_rules.RULES.get(row(func).trace_rule)
        if rule is not None:
            out = rule(self._operator_recorder, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if (torch.is_inference_mode_enabled() or self._call.in_dispatch) and is_composite(func):
            with self:  # as autograd does where it runs
                return func.decompose(*args, **kwargs)
        try:
            return self._operator_recorder.run(func, args, kwargs)
        except CreatesSizes:
            if effects(func).dynamic_shape or not declare_created_sizes(func):
                raise
        return self._run(func, args, kwargs)
