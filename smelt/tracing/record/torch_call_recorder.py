"""Recording at the torch level: a call of the user's code becomes a node, with the settings that it ran under."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd.forward_ad import enter_dual_level

from smelt.errors import NeedsFixedSize
from smelt.graph import torch_settings
from smelt.graph.ir import Node
from smelt.reasons import TENSOR_SUBCLASS, UNSUPPORTED_CALL, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, is_functorch_wrapped_tensor
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.functionalize.recorded_writes import Writes
from smelt.tracing.record.call_arguments import LEAF_TYPES, Args, Kwargs, Unnameable, other_argument
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.number_inputs import NumberInputs
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.record.tape import Tape
from smelt.tracing.record.torch_functions import name_of, target_of
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC
from smelt.tracing.symbolic.symbolic_numbers import PlainNumbersOnly


class TorchCallRecorder:
    """Records torch-level calls. Invariant: the torch-level graph so far, run from the settings (grad mode, inference
    mode, autocast) in `first_state`, ends under the settings of its latest call."""

    def __init__(
        self, call: CurrentCall, tape: Tape, inputs: Inputs, writes: Writes, numbers: NumberInputs
    ) -> None:
        self._call = call
        self._tape = tape
        self._inputs = inputs
        self._writes = writes
        self._numbers = numbers
        # the node of the tensor that a call returns anew, as `add_` does
        self.same_results: dict[Node, Node] = {}
        self._open_levels = 0  # of forward-mode differentiation
        self._left_autocast = False  # since the latest node
        self._state = self.first_state = torch_settings.read()

    # ---- calls

    def node(self, func: Any, args: Args, kwargs: Kwargs) -> Node:
        """The torch-level node of a call, not in the graph yet. Raises Unnameable for arguments that graphs cannot
        hold."""
        node_args = tuple(self._argument(a) for a in args)
        return Node("call_function", func, node_args, {k: self._argument(v) for k, v in kwargs.items()}, "")

    def _argument(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            return value.torch_node or self._inputs.torch_node(value)
        if kind is torch.Size and has_symbols(value):
            return tuple(map(self._argument, value))
        if kind in LEAF_TYPES:
            return value
        if kind in SYMBOLIC:
            return self._numbers.node(value, self._tape.torch)
        if isinstance(value, torch.Tensor):
            if is_functorch_wrapped_tensor(value):  # by a transform that has ended
                raise Unnameable("a tensor of a transform")
            return self._argument(self._inputs.fake_for_native(value))
        if isinstance(value, (list, tuple)):
            items = [self._argument(v) for v in value]
            return items if kind is list else tuple(items)
        if isinstance(value, dict):
            return {k: self._argument(v) for k, v in value.items()}
        if kind is slice:
            return slice(*map(self._argument, (value.start, value.stop, value.step)))
        return other_argument(value)

    def record(self, node: Node, func: Any, out: Any) -> None:
        """Append `node` (from `self.node`): the call of `func` that returned `out`."""
        self.record_settings(torch_settings.read())
        node.op, node.target, extra = target_of(func)
        node.args += extra
        node.name = self._tape.torch.name(name_of(func))
        if node.line is None:
            node.line = self._call.where()
        self._tape.torch.graph.nodes.append(node)
        self._name_results(node, out)
        self._writes.record_call(node)

    def _name_results(self, node: Node, out: Any) -> Any:
        """Set the torch-level node of every new fake in `out` to `node`, and fill in `node.spec`."""
        if type(out) is FakeTensor:
            node.spec = out.spec
            if out.torch_node is None:
                out.torch_node = node
            elif out.torch_node is not node:
                self.same_results[node] = out.torch_node
        elif isinstance(out, (list, tuple, dict)):
            keys = list(out) if isinstance(out, dict) else range(len(out))
            node.spec = tuple(self._name_item(node, key, out[key]) for key in keys)
        return node.spec

    def _name_item(self, node: Node, key: Any, value: Any) -> Any:
        if type(value) is FakeTensor and value.torch_node is not None:
            return value.spec
        if not isinstance(value, (FakeTensor, list, tuple, dict)):
            return None
        item = self._tape.torch.make(
            "call_function", operator.getitem, (node, key), {}, "getitem", None, node.line
        )
        return self._name_results(item, value)

    def run_opaque(self, target: OpaqueCall, run: Callable[[], Any]) -> Any:
        """The result of `run()`, which does on fakes what `target` does: one torch-level call, whatever functions it
        calls."""
        call = self._call
        if call.node is not None or call.pause_depth:
            return run()
        if call.has_subclasses:
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(target)} with tensors of a subclass")
        if self._inputs.rebound:
            self._inputs.check_rebound(name_of(target), target.operands)
        if call.modes:
            raise call.unsupported(UNSUPPORTED_CALL, f"{name_of(target)} under a mode of the user's")
        symbols = self._numbers.symbols
        has_unbacked = symbols is not None and bool(symbols.unbacked.numbers)
        if self._numbers.sizes and has_unbacked:
            raise NeedsFixedSize(f"{name_of(target)} with symbolic sizes", self._numbers.sizes)
        refusal = PlainNumbersOnly(Reason(UNSUPPORTED_OBJECT, "a number that changes from call to call"))
        nodes = tuple(self._argument(t) for t in target.operands)
        target.operands = []  # the graph outlives the trace
        node = Node("call_function", target, nodes, {}, "")
        call.node, call.mutated, call.is_opaque = node, False, True
        try:
            with nullcontext() if symbols is None else symbols.refused(refusal):
                out = run()
        except Exception as error:  # the effects before the error are not recorded
            call.fail(name_of(target), error)
            raise
        finally:
            call.node, call.is_opaque = None, False
        self._tape.effectful.add(node)
        call.had_opaque = True
        self.record(node, target, out)
        return out

    # ---- settings

    def begin(self) -> None:
        """Start the graph under the current settings."""
        self._state = self.first_state = torch_settings.read()

    def record_settings(self, now: torch_settings.TorchSettings) -> None:
        """Record grad mode and autocast where they differ from the settings that the graph so far ends under."""
        if self._left_autocast:
            self._left_autocast = False
            self._add_call(torch.clear_autocast_cache, (), "clear_cache")
        if now != self._state:
            for function, args in torch_settings.difference(self._state, now):
                self._add_call(function, args, name_of(function))
            self._state = now

    def _add_call(self, function: Callable[..., object], args: tuple[object, ...], stem: str) -> Node:
        return self._tape.torch.make("call_function", function, args, {}, stem, None, self._call.where())

    def leave_autocast(self) -> None:
        """The user's code is about to exit an autocast context. Eager clears its cast cache with the outermost one."""
        self._left_autocast |= torch_settings.autocast_depth() == 1

    def switch_level(self, function: Callable[[], object]) -> None:
        """Record that `function` enters or exits a level of forward-mode differentiation."""
        self._tape.effectful.add(self._add_call(function, (), name_of(function)))
        self._open_levels += 1 if function is enter_dual_level else -1

    def finish(self) -> None:
        """Restore the settings that the graph began under. Raises Unsupported where a level of forward-mode
        differentiation stays open."""
        if self._open_levels:
            raise self._call.unsupported(
                UNSUPPORTED_EFFECT, "a level of forward-mode differentiation stays open"
            )
        with DisableTorchFunction(), DisableTorchDispatch():
            self.record_settings(self.first_state)
