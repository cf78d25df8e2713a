"""Shadow execution of a compiled graph beside the eager graph, for its first calls."""

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
from smelt.verify.isolated_state import Generators, twins, written
from smelt.verify.reproducer import write
from smelt.verify.result_comparison import Before, Outcome, difference, outcome

log = logging.getLogger("smelt")


class Watching:
    """Wraps the compiled graphs of one trace with the comparison; without the option `verify` returns them as they
    are.

    Args:
        recompile: compiles a graph of the trace, or a subgraph, with other options.
        differs: called after a difference, once per graph.
    """

    def __init__(
        self, config: Config, recompile: Recompile, differs: Callable[[Reason], None] | None = None
    ) -> None:
        self._config, self._recompile = config, recompile
        self._differs = differs or (lambda reason: log.warning("smelt: %s", reason))

    def beside(
        self,
        compiled: Compiled,
        graph: Graph,
        eager: Callable[[Graph], Compiled],
        given: frozenset[int] = frozenset(),
    ) -> Compiled:
        """The wrapper of `compiled`. `eager` makes the eager form of `graph`; `given`: donated inputs."""
        if not self._config.verify:
            return compiled
        return BesideEager(self._watch(), compiled, eager(graph), graph, given)

    def loaded(
        self,
        load: Callable[[Values], Compiled],
        graph: Graph,
        eager: Callable[[Graph, frozenset[int]], Compiled],
        given: frozenset[int] = frozenset(),
    ) -> Callable[[Values], Compiled]:
        """The same for a graph with symbolic sizes; `load` compiles it for concrete ones."""
        if not self._config.verify:
            return load
        watch = self._watch()

        def beside(values: Values) -> Compiled:
            at = substitute(graph, values)
            return BesideEager(watch, load(values), eager(at, given), at, given)

        return beside

    def _watch(self) -> Watch:
        return Watch(self._config, self._recompile, self._differs)


class Watch:
    """State of one graph: the number of calls left to compare, and whether compiled code was wrong."""

    def __init__(self, config: Config, recompile: Recompile, differs: Callable[[Reason], None]) -> None:
        self.left = config.verify
        self.failed = False
        self._config = replace(config, verify=0)
        self._recompile, self._differs = recompile, differs

    def found(self, graph: Graph, before: Before, how: str) -> None:
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


class BesideEager:
    """Called in place of `compiled`. While it compares, results and writes are eager's."""

    def __init__(
        self, watch: Watch, compiled: Compiled, eager: Compiled, graph: Graph, given: frozenset[int]
    ) -> None:
        self.watch, self.compiled, self.eager, self.graph = watch, compiled, eager, graph
        self._written = written(graph)
        self._apart = self._written | given
        self._generators = Generators(graph)

    def __call__(self, tensors: tuple[Any, ...]) -> Any:
        watch = self.watch
        if watch.failed:
            return self.eager(tensors)
        if not watch.left:
            return self.compiled(tensors)
        watch.left -= 1
        generators = self._generators
        before = Before(twins(tensors, self._written), generators.states(), generators)
        actual = outcome(self.compiled, before.fresh(self._apart), generators)
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
            self.watch.found(self.graph, before, how)


def compiled_of(made: Compiled) -> Any:
    """The compiled callable inside the comparison."""
    return made.compiled if isinstance(made, BesideEager) else made
