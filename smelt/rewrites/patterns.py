"""Patterns of aten nodes, and rules for the nodes that match.

    pattern ::= Capture(name)                     any value
              | Fact(function, name)              a value with a fact: `name` is bound to `function(value, facts)`
              | Call(operators, *patterns)        a call with these first arguments, in any order if `commutative`
              | OneOf(*patterns)                  alternatives
              | Through(rules, pattern, name)     `pattern`, or what a rule computes from `x`, which is Through in its turn
              | Where(pattern, condition)         with a condition on what is bound
              | constant                          an equal value
    rule    ::= Rule(pattern, apply)              `apply(match)`: the replacement, or Refused with the reason

    str(Call(bmm, Call(_softmax, Capture("scores")), Capture("v")))   ->   bmm(_softmax(scores), v)

Matching backtracks over alternatives. A name stands for one value, also a name that the caller binds. `node` is what the
entire pattern matches, in Through's rules one step. Conditions read `facts` about the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from smelt.graph.ir import Graph, Node, argument_nodes

T = TypeVar("T")


class Refused(Exception):
    """The reason why a rule does not apply to what its pattern matches."""


@dataclass(frozen=True)
class Match:
    """The values of names, and the facts about the graph."""

    facts: Any
    bound: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.bound[name]

    def bind(self, name: str, value: Any) -> Iterator[Match]:
        """The match with `name` bound to `value`, if it is not bound to another one. No name binds nothing."""
        if name and name not in self.bound:
            yield Match(self.facts, {**self.bound, name: value})
        elif not name or self.bound[name] == value:
            yield self


class Pattern:
    """A set of values. `operators`: the only ones whose calls are in it, if that is so."""

    operators: frozenset[Any] | None = None

    def _matches(self, value: Any, match: Match) -> Iterator[Match]:
        """The extensions of `match` in which `value` is in the set."""
        raise NotImplementedError

    def first(self, value: Any, facts: Any = None, **bound: Any) -> Match | None:
        """The first match of `value`, with these names bound; None if there is none."""
        if self.operators is not None and value.target not in self.operators:
            return None
        return next(self._matches(value, Match(facts, {"node": value, **bound})), None)


@dataclass(frozen=True)
class Capture(Pattern):
    """Any value."""

    name: str = ""

    def _matches(self, value: Any, match: Match) -> Iterator[Match]:
        return match.bind(self.name, value)

    def __str__(self) -> str:
        return self.name or "_"


@dataclass(frozen=True)
class Fact(Pattern):
    """A value of which `function(value, facts)` is not None. The name is bound to that fact."""

    function: Callable[[Any, Any], Any]
    name: str

    def _matches(self, value: Any, match: Match) -> Iterator[Match]:
        fact = self.function(value, match.facts)
        return iter(()) if fact is None else match.bind(self.name, fact)

    def __str__(self) -> str:
        return f"{self.function.__name__.strip('_')}({self.name})"


class Call(Pattern):
    """A call of one of the operators `ops` whose first arguments match `arguments`."""

    def __init__(self, ops: Any, *arguments: Any, name: str = "", commutative: bool = False) -> None:
        self.operators: frozenset[Any] = frozenset(ops if isinstance(ops, Iterable) else (ops,))
        self.arguments, self.name, self.commutative = arguments, name, commutative

    def _matches(self, value: Any, match: Match) -> Iterator[Match]:
        if isinstance(value, Node) and value.target in self.operators:
            values = value.args[: len(self.arguments)]
            for order in itertools.permutations(values) if self.commutative else (values,):
                for found in match.bind(self.name, value) if len(values) == len(self.arguments) else ():
                    yield from _all_match(self.arguments, order, found)

    def __str__(self) -> str:
        names = sorted({op.__name__.partition(".")[0] for op in self.operators})
        return f"{'|'.join(names)}({', '.join(map(str, self.arguments))})"


def _all_match(patterns: Sequence[Any], values: Sequence[Any], match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
    elif isinstance(patterns[0], Pattern):
        for found in patterns[0]._matches(values[0], match):
            yield from _all_match(patterns[1:], values[1:], found)
    elif patterns[0] == values[0]:
        yield from _all_match(patterns[1:], values[1:], match)


class OneOf(Pattern):
    """A value that matches one of `patterns`, tried in order."""

    def __init__(self, *patterns: Pattern) -> None:
        self.patterns = patterns
        operators = [p.operators for p in patterns if p.operators is not None]
        self.operators = frozenset().union(*operators) if len(operators) == len(patterns) else None

    def _matches(self, value: Any, match: Match) -> Iterator[Match]:
        return itertools.chain.from_iterable(p._matches(value, match) for p in self.patterns)

    def __str__(self) -> str:
        return f"({' | '.join(map(str, self.patterns))})"


class Where(Pattern):
    """What matches `pattern` and meets `condition`."""

    def __init__(self, pattern: Pattern, condition: Callable[[Match], bool]) -> None:
        self.pattern, self.condition, self.operators = pattern, condition, pattern.operators

    def _matches(self, value: Any, match: Match) -> Iterator[Match]:
        return filter(self.condition, self.pattern._matches(value, match))

    def __str__(self) -> str:
        return f"{self.pattern} where {self.condition.__name__.strip('_')}"


@dataclass(frozen=True)
class Rule(Generic[T]):
    """`apply` for what matches `pattern`."""

    pattern: Pattern
    apply: Callable[[Match], T]


@dataclass(frozen=True)
class Through(Pattern):
    """What matches `pattern`, behind any number of steps. `name` is bound to what their rules return, in execution order."""

    steps: tuple[Rule[Any], ...]
    pattern: Pattern
    name: str

    def _matches(self, value: Any, match: Match, later: tuple[Any, ...] = ()) -> Iterator[Match]:
        for found in self.pattern._matches(value, match):
            yield from found.bind(self.name, later)
        for rule in self.steps:
            for step in rule.pattern._matches(value, Match(match.facts, {"node": value})):
                yield from self._matches(step["x"], match, (rule.apply(step), *later))

    def __str__(self) -> str:
        return f"{self.name}*({self.pattern})"


def apply_first(rules: Iterable[Rule[T]], value: Any, facts: Any = None, **bound: Any) -> T | None:
    """What the first rule that matches `value` returns; None if none matches. Raises its Refused."""
    for rule in rules:
        if (match := rule.pattern.first(value, facts, **bound)) is not None:
            return rule.apply(match)
    return None


def users_of(graph: Graph) -> dict[Node, list[Node]]:
    """The users of each node, each once, in order."""
    users: dict[Node, list[Node]] = {node: [] for node in graph}
    for node in graph:
        for argument in dict.fromkeys(argument_nodes(node)):
            users[argument].append(node)
    return users
