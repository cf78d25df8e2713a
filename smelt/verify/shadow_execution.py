"""Shadow execution: the first calls of a compiled graph also run the eager graph, and the results are compared."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from smelt.config import Config
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph
from smelt.reasons import DIFFERS, Reason
from smelt.shapes.expr import Values
from smelt.shapes.substitute import substitute
from smelt.verify.bisect import Bisection, Recompile, stages
from smelt.verify.isolated_state import Generators, isolated_inputs, written
from smelt.verify.reproducer import write
from smelt.verify.result_comparison import Before, Outcome, difference, outcome

log = logging.getLogger("smelt")


class ShadowExecution:
    """Wraps the compiled graphs of one trace with the comparison, if the option `verify` is on.

    Args:
        recompile: compiles a graph of the trace, or a subgraph, with other options.
        differs: called after a difference, once per graph.
    """

    def __init__(
        self, config: Config, recompile: Recompile, differs: Callable[[Reason], None] | None = None
    ) -> None:
        self._config, self._recompile = config, recompile
        self._differs = differs or (lambda reason: log.warning("smelt: %s", reason))

    def wrap(
        self,
        load: Callable[[Values], Compiled],
        graph: Graph,
        eager: Callable[[Graph, frozenset[int]], Compiled],
        donated: frozenset[int] = frozenset(),
    ) -> Callable[[Values], Compiled]:
        """`load`, whose results compare; `load` itself without the option.

        Args:
            load: compiles `graph` for the values of its size symbols.
            eager: makes the eager form of a graph with donated inputs.
        """
        if not self._config.verify:
            return load
        state = self._state()

        def wrapped(values: Values) -> Compiled:
            at = substitute(graph, values)
            return ComparedCall(state, load(values), eager(at, donated), at, donated)

        return wrapped

    def _state(self) -> GraphState:
        return GraphState(self._config, self._recompile, self._differs)


class GraphState:
    """The state of one graph. `left`: the number of calls to compare; `failed`: whether compiled code was wrong."""

    def __init__(self, config: Config, recompile: Recompile, differs: Callable[[Reason], None]) -> None:
        self.left = config.verify
        self.failed = False
        self._config = replace(config, verify=0)
        self._recompile, self._differs = recompile, differs

    def report(self, graph: Graph, before: Before, how: str) -> None:
        """Record that compiled code differs, locate the operator, and report."""
        self.failed = True
        after = before.generators.states()
        try:
            reason = self._reason(graph, before, how)
        except Exception as error:  # the search must not end a program that has its results
            reason = Reason(DIFFERS, f"{how}; the operator was not found: {type(error).__name__}: {error}")
        finally:
            before.generators.restore(after)
        self._differs(reason)

    def _reason(self, graph: Graph, before: Before, how: str) -> Reason:
        located = Bisection(graph, before, lambda g: self._recompile(g, self._config)).locate()
        if located is None:
            return Reason(DIFFERS, f"{how}; the graph, compiled once more for these sizes, does not differ")
        names = " and ".join(dict.fromkeys(str(node.target) for node in located.calls))
        last = located.calls[-1]
        which = f"{names}, {last.name} in the graph: {located.difference}"
        path = write(located, self._config, f"{which}, at {last.line}.")
        without = [_switched(name) for name in stages(located, self._config, self._recompile)]
        stage = f"not with {', '.join(without)}" if without else "with any of the stages left out, too"
        return Reason(DIFFERS, f"{which}; {stage}; reproducer: {path or 'none'}", last.line)


def _switched(name: str) -> str:
    return "threads=1" if name == "threads" else f"{name}=False"


class ComparedCall:
    """A call of `compiled` or, while results are compared, of both forms: results and writes are then eager's."""

    def __init__(
        self, state: GraphState, compiled: Compiled, eager: Compiled, graph: Graph, donated: frozenset[int]
    ) -> None:
        self.state, self.compiled, self.eager, self.graph = state, compiled, eager, graph
        self._written = written(graph)
        self._copied = self._written | donated
        self._generators = Generators(graph)

    def __call__(self, tensors: tuple[Any, ...]) -> Any:
        state = self.state
        if state.failed:
            return self.eager(tensors)
        if not state.left:
            return self.compiled(tensors)
        state.left -= 1
        generators = self._generators
        before = Before(isolated_inputs(tensors, self._written), generators.states(), generators)
        actual = outcome(self.compiled, before.run_inputs(self._copied), generators)
        generators.restore(before.states)
        try:
            results = self.eager(tensors)
        except Exception as error:
            self._compare(before, Outcome(error=error), actual)
            raise
        self._compare(before, Outcome(results, tensors, generators.states()), actual)
        return results

    def _compare(self, before: Before, expected: Outcome, actual: Outcome) -> None:
        after = before.generators.states()
        how = difference(self.graph, before, expected, actual)
        before.generators.restore(after)
        if how is not None:
            self.state.report(self.graph, before, how)


def compiled_of(made: Compiled) -> Any:
    """The compiled callable inside the comparison."""
    return made.compiled if isinstance(made, ComparedCall) else made
