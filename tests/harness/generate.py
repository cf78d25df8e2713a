"""Random small Python programs, as source text.

`write_program(choices)` writes a module with a function `program(x, n, items, table)`: `x` is a tensor of two dimensions,
`n` an integer, `items` a list of tensors and `table` a dictionary of them. Everything random is a `pick`, where 0 is the
simplest choice; so whatever shrinks a list of numbers (hypothesis, or `shrink` here) shrinks programs.

Programs are well-typed by construction: each variable has a kind ("full": a tensor shaped like `x`; "row", "column",
"scalar": one that broadcasts to it; "int", "list", "dict"). Names made inside a block are forgotten after it. Tensors hold
small whole numbers, so that arithmetic is exact whatever its order and conditions cannot flip by rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Protocol

from tests.harness import generate_worlds

PRELUDE = """\
import contextlib
import torch
import smelt

LOG = []
COUNT = 0

class Stop(Exception):
    pass

class Box:
    def __init__(self, value, count=0):
        self.value = value
        self.count = count
    def add(self, other):
        self.value = self.value + other
        self.count += 1
        return self.value
    @property
    def double(self):
        return self.value * 2
    def __call__(self, a):
        return a + self.value
    def __getitem__(self, i):
        return self.value + i
    def __len__(self):
        return self.count
    def __iter__(self):
        for i in range(2):
            yield self.value - i
    def __add__(self, other):
        return Box(self.value + other, self.count + 1)
    def broken(self, a):
        self.count += 1
        smelt.graph_break()
        self.value = self.value + a.sum().item()
        return a + self.value
    @property
    def breaking(self):
        smelt.graph_break()
        return self.value + 1

class Scope:
    def __init__(self, swallows):
        self.swallows = swallows
    def __enter__(self):
        LOG.append("enter")
        return 2
    def __exit__(self, kind, error, traceback):
        LOG.append(None if kind is None else kind.__name__)
        return self.swallows and kind is Stop

@contextlib.contextmanager
def scope(value):
    LOG.append("in")
    try:
        yield value
    finally:
        LOG.append("out")

class Breaking:
    def __enter__(self):
        LOG.append("enter")
        smelt.graph_break()
        return 1
    def __exit__(self, kind, error, traceback):
        smelt.graph_break()
        LOG.append(None if kind is None else kind.__name__)
        return kind is Stop

def deep(a, k):
    if k <= 0:
        smelt.graph_break()
        return a + a.sum().item()
    try:
        return deep(a + 1, k - 1) - k
    finally:
        LOG.append(k)

def raises(a, k):
    if k > 1:
        raise Stop(k)
    return a + k

def pieces(a):
    try:
        got = yield a
        LOG.append(got)
        smelt.graph_break()
        yield a + 1
    finally:
        LOG.append("closed")

STATE = Box(torch.ones(3))

"""


CALLS = 6  # of each program


class Choices(Protocol):
    def pick(self, n: int) -> int:
        """A number from 0 to n - 1; 0 is the simplest."""


@dataclass
class Seeded:
    """Choices that a seed decides; `made` remembers them."""

    seed: int
    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def pick(self, n: int) -> int:
        self.made.append(self._random.randrange(n))
        return self.made[-1]


@dataclass
class Replayed:
    """Choices made before, or edited ones; 0 where there are none left."""

    numbers: Sequence[int]
    made: list[int] = field(default_factory=list)

    def pick(self, n: int) -> int:
        at = len(self.made)
        self.made.append(min(self.numbers[at], n - 1) if at < len(self.numbers) else 0)
        return self.made[-1]


def shrink(numbers: list[int], fails: Callable[[list[int]], bool], tries: int = 150) -> list[int]:
    """A shorter or smaller list for which `fails` still holds."""
    improved = True
    while improved and tries > 0:
        improved = False
        for candidate in _smaller(numbers):
            tries -= 1
            if tries <= 0:
                break
            if fails(candidate):
                numbers, improved = candidate, True
                break
    return numbers


def _smaller(numbers: list[int]) -> Iterator[list[int]]:
    width = max(1, len(numbers) // 2)
    while width:
        for at in range(0, len(numbers), width):
            yield numbers[:at] + numbers[at + width :]
        for at in range(0, len(numbers), width):
            if any(numbers[at : at + width]):
                yield [*numbers[:at], *[0] * len(numbers[at : at + width]), *numbers[at + width :]]
        width //= 2


@dataclass(frozen=True)
class Options:
    """`breaks`: operations that the capture may not get across. `grad`: all tensors require gradients; with `worlds` some
    have hooks. `branches`: most conditions are on tensors. `worlds`: programs change what is outside of them, and it
    changes between calls."""

    breaks: bool = False
    grad: bool = False
    worlds: bool = False
    branches: bool = False
    statements: int = 10


KINDS = ("full", "row", "column", "scalar")
_BROADCAST = {frozenset({"row", "column"}): "full"}


def broadcast(a: str, b: str) -> str:
    found = _BROADCAST.get(frozenset({a, b}))
    return found or min(a, b, key=KINDS.index)


class Program:
    """Writes one program."""

    def __init__(self, choices: Choices, options: Options) -> None:
        self.pick = choices.pick
        self.options = options
        self.lines: list[str] = []
        self.names: dict[str, list[str]] = {kind: [] for kind in (*KINDS, "int", "list", "dict", "box")}
        self.left = options.statements
        self.depth = 0
        self.loops = 0  # loops around the statement, inside its function
        self.tries = 0  # handlers of Stop around it, inside its function
        self.functions = 0
        self.made = 0
        self.fixed: set[str] = (
            set()
        )  # names that must not be assigned here: counters, an enclosing function's variables

    # ---- choosing

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.pick(len(choices))]

    def chance(self, n: int) -> bool:
        """Once in n."""
        return self.pick(n) == n - 1

    def name(self, stem: str) -> str:
        self.made += 1
        return f"{stem}{self.made}"

    # ---- blocks

    def line(self, text: str) -> None:
        self.lines.append("    " * (self.depth + 1) + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """An indented block, whose new names are forgotten after it."""
        known = {kind: list(names) for kind, names in self.names.items()}
        self.line(header)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1
        self.names = known

    def statements(self, most: int = 3, stop: int = 4) -> None:
        """Up to `most` statements; after each it ends once in `stop`."""
        for _ in range(most):
            if self.left <= 0 or self.pick(stop) == 0:
                return
            self.statement()

    def statement(self) -> None:
        self.left -= 1
        simple = [
            self.assign,
            self.assign,
            self.augment,
            self.integer,
            self.write,
            self.containers,
            self.containers,
            self.boxes,
        ]
        compound = [
            self.branch,
            self.for_loop,
            self.while_loop,
            self.attempt,
            self.context,
            self.function,
            self.generator,
        ]
        leave = [self.leave]
        table: list[Callable[[], None]] = simple + (compound if self.depth < 3 else []) + leave
        if self.options.breaks:
            table += [self.breaks, self.breaks, self.breaks]
        if self.options.branches:
            table += [self.branch] * 6 + [self.leave] * 2 + [self.while_loop] * (self.depth < 3)
        if self.options.worlds:
            table += [self.effect] * 8
        self.one_of(table)()

    # ---- tensors

    def variable(self, *kinds: str) -> tuple[str, str]:
        found = [(name, kind) for kind in kinds for name in self.names[kind]]
        return self.one_of(found)

    def tensor(self, depth: int = 2) -> tuple[str, str]:
        """An expression and its kind."""
        if depth == 0 or self.pick(3) == 0:
            return self.variable(*KINDS)
        return self.one_of(
            [
                self._binary,
                self._unary,
                self._part,
                self._reduced,
                self._element,
                self._called,
                self._chosen,
                self._scaled,
            ]
            + ([self._broken] if self.options.breaks else [])
            + ([self._differentiated] * 3 if self.options.grad else [])
            + ([self._hooked] * 2 if self.options.grad and self.options.worlds else [])
        )(depth - 1)

    def full(self, depth: int = 2) -> str:
        text, kind = self.tensor(depth)
        return text if kind == "full" else f"({self.variable('full')[0]} + {text})"

    def _binary(self, depth: int) -> tuple[str, str]:
        (a, k), (b, m) = self.tensor(depth), self.tensor(depth)
        form = self.one_of(
            [
                "({} + {})",
                "({} - {})",
                "torch.maximum({}, {})",
                "torch.minimum({}, {})",
                "({} * {}).clamp(-9, 9)",
            ]
        )
        return form.format(a, b), broadcast(k, m)

    def _unary(self, depth: int) -> tuple[str, str]:
        a, kind = self.tensor(depth)
        return self.one_of(
            ["(-{})", "{}.relu()", "{}.abs()", "{}.clone()", "{}.clamp(max=5)", "{}.detach()"]
        ).format(a), kind

    def _differentiated(self, depth: int) -> tuple[str, str]:
        """What autograd saves values, indices or masks for; results are whole numbers still."""
        a, b = self.full(depth), self.full(0)
        return self.one_of(
            [
                f"({a} * {b} * {b}).clamp(-9, 9)",
                f"({a} @ {b}.t() @ x).clamp(-9, 9)",
                f"{a}.square().clamp(max=9)",
                f"{a}.cumsum(0).clamp(-9, 9)",
                f"torch.cat([{a}, {b}])[1 : {b}.shape[0] + 1]",
                f"torch.stack([{a}, {b}], 1).amax(1)",
                f"{a}.index_select(0, torch.arange(x.shape[0]) // 2)",
                f"{a}.gather(1, torch.tensor([[0, 2, 2]]).expand(x.shape))",
                f"{a}.flip(0).roll(1, 1)",
                f"{a}.masked_fill({b} > 1, 2)",
                f"{a}.sort(0).values",
                f"({a} / 2 + {b}.pow(2)).clamp(-9, 9)",
                f"torch.nn.functional.pad({a}, (1, 0))[:, :3]",
                f"torch.addcmul({a}, {b}, x).clamp(-9, 9)",
                f"torch.where({b} > 0, {a}, {b} * 2)",
                f"{a}.chunk(2)[1].repeat(2, 1)",
                f"torch.nn.functional.hardtanh({a}, -3, 3)",
                f"torch.nn.functional.leaky_relu({a}, 0.5)",
            ]
        ), "full"

    def _hooked(self, depth: int) -> tuple[str, str]:
        return self.filled(self.one_of(generate_worlds.HOOKS), depth), "full"

    def _scaled(self, depth: int) -> tuple[str, str]:
        a, kind = self.tensor(depth)
        return self.one_of(["({} + {})", "({1} - {0})", "({} * {}).clamp(-9, 9)"]).format(
            a, self.number()
        ), kind

    def _part(self, depth: int) -> tuple[str, str]:
        a = self.variable("full")[0]
        form, kind = self.one_of(
            [
                ("{}[0]", "row"),
                ("{}[-1]", "row"),
                ("{}[:, :1]", "column"),
                ("{}.t()[0][:, None]", "column"),
                ("{}[0, 1]", "scalar"),
                ("{}.reshape(-1).view_as({})", "full"),
                ("{}.unbind(0)[0]", "row"),
                ("{}.t().t()", "full"),
                ("{}[:1].squeeze(0)", "row"),
            ]
        )
        return form.format(a, a), kind

    def _reduced(self, depth: int) -> tuple[str, str]:
        a, kind = self.tensor(depth)
        forms = [("{}.sum()", "scalar"), ("{}.amax()", "scalar")]
        if kind == "full":
            forms += [("{}.sum(0)", "row"), ("{}.amax(0)", "row"), ("{}.sum(1, keepdim=True)", "column")]
        form, kind = self.one_of(forms)
        return form.format(a), kind

    def _element(self, depth: int) -> tuple[str, str]:
        a, b = self.variable("full")[0], self.variable("full")[0]
        items, table = self.one_of(self.names["list"]), self.one_of(self.names["dict"])
        return self.one_of(
            [
                f"({items} + [{a}])[0]",
                f"[*{items}, {a}][-1]",
                f'{table}.get("{self.one_of("abcd")}", {a})',
                f"({a}, {b})[{self.number()} % 2]",
                f'{{"a": {a}, **{table}}}["a"]',
                f"next(iter({items}), {a})",
                f"sum([{a}, *{items}])",
                f"[v + 1 for v in [{a}, {b}]][1]",
                f"max([{a}, *{items}], key=lambda v: v.shape)",
            ]
        ), "full"

    def _called(self, depth: int) -> tuple[str, str]:
        a = self.full(depth)
        forms = [
            f"(lambda v, k=2: v + k)({a})",
            f"(lambda *v: v[-1])({a}, {self.full(0)})",
            f"STATE({a})",
            f"(lambda v, *, k: v - k)({a}, **{{'k': n}})",
            f"(Box({a}) + 1).value",
            f"sorted([{a}, {self.full(0)}], key=lambda v: v.dim())[0]",
            f"(lambda v: [v + i for i in range(2)])({a})[1]",
            f"[[v + w for w in (1, 2)] for v in ({a}, x)][1][0]",
            f"{{k: v for k, v in zip('ab', [{a}, x])}}['a']",
            f"dict(a={a}, b=x).popitem()[1]",
        ]
        if self.tries:
            forms += [f"raises({a}, {self.number()})"] * 2
        return self.one_of(forms), "full"

    def _chosen(self, depth: int) -> tuple[str, str]:
        a, b = self.full(depth), self.full(depth)
        return self.one_of(
            [f"({a} if {self.condition()} else {b})", f"torch.where({a} > {self.number()}, {a}, {b})"]
        ), "full"

    def _broken(self, depth: int) -> tuple[str, str]:
        a = self.full(depth)
        return self.one_of(
            [
                f"(smelt.graph_break() or {a})",
                f"({a} + {self.full(0)}.sum().item())",
                f"({a} if {self.full(0)}.sum() > 0 else {self.full(0)})",
                f"deep({a}, {self.number()} % 3)",
                f"Box({a}).broken({self.full(0)})",
                f"Box({a}).breaking",
                f"next(pieces({a}))",
                f"sum(pieces({a}))",
                f"[v for v in pieces({a})][-1]",
                f"[v + v.sum().item() for v in ({a}, x)][0]",
                f"max([{a}, x], key=lambda v: v.sum().item())",
                f"(lambda v, k: v + k)(*[{a}], **{{'k': {self.full(0)}.amax().item()}})",
                f"({self.full(0)}.sum() > 0 and {a}) + {self.full(0)}",
            ]
        ), "full"

    # ---- the world outside

    def filled(self, template: str, depth: int = 1) -> str:
        """A template of `generate_worlds` with expressions in its places."""
        makers: dict[str, Callable[[], str]] = {
            "full": lambda: self.full(depth),
            "name": lambda: self.variable("full")[0],
            "number": self.number,
            "items": lambda: self.one_of(self.names["list"]),
            "table": lambda: self.one_of(self.names["dict"]),
            "key": lambda: self.one_of("abcd"),
        }
        used = [place for _, place, _, _ in Formatter().parse(template) if place]
        return template.format(**{place: makers[place]() for place in dict.fromkeys(used)})

    def effect(self) -> None:
        self.line(self.filled(self.one_of(generate_worlds.EFFECTS)))

    def change(self) -> list[str]:
        """The body of `change`: before each call but the first, up to two statements."""
        lines = ["call, x, n, items, table = given"]
        for call in range(1, CALLS):
            for _ in range(self.pick(3)):
                lines.append(f"if call == {call}: {self.one_of(generate_worlds.CHANGES).format()}")
        return [*lines, "return x, n, items, table"]

    # ---- numbers and conditions

    def number(self) -> str:
        return self.one_of(
            [
                "1",
                "2",
                "0",
                "n",
                "x.shape[0]",
                "len(LOG)",
                *self.names["int"],
                f"len({self.names['list'][0]})",
                "len(STATE)",
            ]
        )

    def condition(self) -> str:
        items, table = self.one_of(self.names["list"]), self.one_of(self.names["dict"])
        plain = [
            f"{self.number()} > {self.number()}",
            "x.shape[0] > 2",
            items,
            f'"{self.one_of("abcd")}" in {table}',
            f"not {table}",
            f"{self.number()} % 2 == 0",
            f"0 <= {self.number()} < 2",
            f"isinstance({self.variable('full')[0]}, torch.Tensor)",
            f"{self.variable('full')[0]} is {self.variable('full')[0]}",
            f"{self.number()} in {{1, 2}}",
            "STATE.count and n > 1",
            f"{items} == []",
            "n == 1 or x.dim() == 3",
        ]
        if self.options.breaks or self.options.branches:
            t = self.full(1)
            plain *= not self.options.branches or self.chance(6)
            plain += [
                f"{t}.sum() > 0",
                f"bool(({t} > 1).any())",
                f"{t}.amax().item() > {self.number()}",
                f"0 < {t}.sum() < 9",
                f"not {t}.any()",
                f"{t}.sum() > {self.number()} and {t}.min() < 0",
            ]
        return self.one_of(plain)

    # ---- simple statements

    def assign(self) -> None:
        text, kind = self.tensor()
        if self.chance(3):
            targets = [n for n in self.names[kind] if n not in self.fixed]
            if targets:
                self.line(f"{self.one_of(targets)} = {text}")
                return
        form = self.pick(6)
        name = self.name("t")
        if form == 5 and kind == "full":
            walker = self.name("w")
            self.line(f"{walker} = iter([{text}, {self.full(1)}, {self.full(0)}])")
            self.statements(1)
            self.line(f"{name} = next({walker}) + next({walker}, x)")
            self.names[kind].append(name)
            return
        if form == 4:
            other, other_kind = self.tensor(1)
            second = self.name("t")
            self.line(f"{name}, {second} = {text}, {other}")
            self.names[other_kind].append(second)
        elif form == 3:
            rest = self.name("l")
            self.line(f"{name}, *{rest} = [{text}, {self.full(1)}, {self.full(0)}]")
            self.names["list"].append(rest)
        else:
            self.line(f"{name} = {text}")
        self.names[kind].append(name)

    def augment(self) -> None:
        targets = [n for n in self.names["full"] if n not in self.fixed]
        if targets:
            self.line(f"{self.one_of(targets)} {self.one_of(['+=', '-='])} {self.tensor(1)[0]}")

    def integer(self) -> None:
        targets = [n for n in self.names["int"] if n not in self.fixed]
        if targets and self.chance(2):
            self.line(f"{self.one_of(targets)} += {self.number()}")
            return
        name = self.name("i")
        form = self.one_of(
            ["{0} = ({1} + {2}) % 4", "{0} = len(range({1})) + {2}", "_ = ({0} := {1} % 3) + {2}"]
        )
        self.line(form.format(name, self.number(), self.number()))
        self.names["int"].append(name)

    def write(self) -> None:
        """In place, through views as well."""
        a = self.variable("full")[0]
        value = self.tensor(1)
        row = value[0] if value[1] in ("row", "scalar") else self.one_of(["1", "2"])
        self.line(
            self.one_of(
                [
                    f"{a}.add_({value[0]})",
                    f"{a}[0] = {row}",
                    f"{a}[:, 1] = {self.number()}",
                    f"{a}[0].mul_(2)",
                    f"{a}.t()[1].sub_(1)",
                    f"{a}.clamp_(-9, 9)",
                    f"{a}[-1, 0] += 1",
                    f"{a}[{a} > 3] = 0",
                    f"{a}[:, {self.number()} % 3].neg_()",
                    f"{a}.view(-1)[1:3].zero_()",
                ]
            )
        )

    def containers(self) -> None:
        items, table = self.one_of(self.names["list"]), self.one_of(self.names["dict"])
        a, key = self.full(1), self.one_of("abcd")
        name = self.name("v")
        made = {
            f"{name} = [v + 1 for v in {items}]": "list",
            f"{name} = {items}[1:] + [{a}]": "list",
            f"{name} = list(reversed({items}))": "list",
            f"{name} = [{a} for _ in range({self.number()}) if n]": "list",
            f"{name} = [*{items}, *[{a}]]": "list",
            f"{name} = {items}": "list",
            f'{name} = {{"a": {a}, "{key}": x}}': "dict",
            f"{name} = {{k: v * 1 for k, v in {table}.items()}}": "dict",
            f"{name} = {{**{table}, 'c': {a}}}": "dict",
            f"{name} = dict({table})": "dict",
            f"{name} = list({table}.values())": "list",
        }
        done = [
            f"{items}.append({a})",
            f"{items}.extend([{a}, {self.full(0)}])",
            f"{items}.insert(0, {a})",
            f"{items}.reverse()",
            f"{items}[:1] = [{a}]",
            f"{items}.pop() if {items} else None",
            f"del {items}[1:]",
            f"{items} += [{a}]" if items not in self.fixed else f"{items}.append({a})",
            f'{table}["{key}"] = {a}',
            f'{table}.setdefault("{key}", {a})',
            f'{table}.pop("{key}", None)',
            f"{table}.update({key}={a})",
            f"LOG.append({self.number()})",
            f"LOG.append(len({items}))",
            f"LOG.append(sorted({{{self.number()}, 1}}))",
            f'LOG.append(f"{{n}} {{x.shape}} {{len({items})}}")',
            f"STATE.value = {self.variable('full')[0]}[0].detach().clone()",
        ]
        text = self.one_of([*done, *made])
        self.line(text)
        if text in made:
            self.names[made[text]].append(name)

    def boxes(self) -> None:
        name = self.name("b")
        box = self.one_of(["STATE", *self.names["box"]])
        value = self.name("t")
        self.line(
            self.one_of(
                [
                    f"{name} = Box({self.full(1)}, {self.number()})",
                    f"{box}.count += 1",
                    f"{name} = Box({self.full(0)})",
                    f"LOG.append(len({box}))",
                    f"{box}.extra = {self.number()}",
                    f"LOG.append(hasattr({box}, 'extra'))",
                    f"{name} = Box({box}.double + {self.full(0)})",
                ]
            )
        )
        if self.lines[-1].lstrip().startswith(f"{name} ="):
            self.names["box"].append(name)
            return
        if box != "STATE":
            added = f"{box}.add({self.full(0)})"
            forms = [added, f"{box}.double", f"{box}[n]", f"{box}.value", f"sum({box})"]
            self.line(f"{value} = {self.one_of(forms)}")
            self.names["full"].append(value)

    def leave(self) -> None:
        """Out of a loop, a handler or the function."""
        forms = ["LOG.append(n)"]
        if self.loops:
            forms += ["break", "continue"] * 2
        if self.tries:
            forms += ["raise Stop(n)"] * 3
        if self.depth and self.functions == 0:
            forms += [f"return {self.full(0)}, n"]
        elif self.depth and self.functions == 1:
            forms += [f"return {self.full(0)}"]
        with self.block(f"if {self.condition()}:"):
            self.line(self.one_of(forms))

    # ---- compound statements

    def branch(self) -> None:
        with self.block(f"if {self.condition()}:"):
            self.statements()
        if self.chance(3):
            with self.block(f"elif {self.condition()}:"):
                self.statements()
        if self.chance(2):
            with self.block("else:"):
                self.statements()

    def for_loop(self) -> None:
        items, table = self.one_of(self.names["list"]), self.one_of(self.names["dict"])
        i, v = self.name("i"), self.name("t")
        header, made = self.one_of(
            [
                (f"for {i} in range({self.number()} % 4):", {"int": [i]}),
                (f"for {i}, {v} in enumerate({items}[:3]):", {"int": [i], "full": [v]}),
                (f"for {v} in {items}[:2] + [{self.full(0)}]:", {"full": [v]}),
                (f"for {i}, {v} in zip(range(2), {items}):", {"int": [i], "full": [v]}),
                (f"for {v} in list({table}.values()):", {"full": [v]}),
                (f"for {v} in {self.variable('full')[0]}:", {"row": [v]}),
                (f"for {i} in (1, 0, 2):", {"int": [i]}),
                (f"for {v} in map(lambda v: v + 1, {items}[:2]):", {"full": [v]}),
                (f"for {v} in reversed({items}[:3]):", {"full": [v]}),
                *([(f"for {v} in pieces({self.full(0)}):", {"full": [v]})] if self.options.breaks else []),
                (f"for {v} in (v + 1 for v in {items}[:2]):", {"full": [v]}),
                (f"for {v} in STATE:", {"row": [v]}),
            ]
        )
        self._loop(header, made)

    def while_loop(self) -> None:
        if self.options.branches and self.chance(2):
            t = self.name("t")  # the body does not name it, so that the loop ends
            self.line(f"{t} = {self.full(0)}.abs().sum()")
            return self._loop(f"while {t} < {self.one_of(['30', '60'])}:", {}, first=f"{t} = {t} + 13")
        i = self.name("i")
        self.line(f"{i} = 0")
        self._loop(
            f"while {i} < {self.one_of(['2', '3', 'n % 4'])}:", {"int": [i]}, first=f"{i} += 1", fixed={i}
        )

    def _loop(
        self, header: str, made: dict[str, list[str]], first: str = "", fixed: set[str] = frozenset()
    ) -> None:  # type: ignore[assignment]
        with self.block(header), self._inside(loops=self.loops + 1, fixed=self.fixed | fixed):
            for kind, names in made.items():
                self.names[kind] += names
            if first:
                self.line(first)
            self.statements()
        if self.chance(4):
            with self.block("else:"):
                self.statements(2)

    def attempt(self) -> None:
        form = self.pick(4)  # 0: except, 1: except and finally, 2: except and else, 3: finally
        with self.block("try:"), self._inside(tries=self.tries + (form != 3)):
            self.statements()
            if form != 3 and self.chance(2):
                self.line("raise Stop(n)")
        if form != 3:
            with self.block(
                self.one_of(["except Stop as e:", "except (Stop, KeyError):", "except Exception as e:"])
            ):
                if "as e" in self.lines[-1]:
                    self.line(
                        self.one_of(
                            ["LOG.append(str(e))", "LOG.append(repr(e.__context__))", "LOG.append(e.args)"]
                        )
                    )
                self.statements(2)
                if self.tries and self.chance(4):
                    self.line(self.one_of(["raise", "raise Stop(n + 1)", "raise KeyError(n) from None"]))
        if form == 2:
            with self.block("else:"):
                self.statements(2)
        if form in (1, 3):
            with (
                self.block("finally:"),
                self._inside(loops=0),
            ):
                self.statements(2)

    def context(self) -> None:
        i = self.name("i")
        header = self.one_of(
            [
                "with Scope(False):",
                f"with Scope(True) as {i}:",
                f"with scope({self.number()}) as {i}:",
                "with torch.no_grad():",
                f"with Scope(False), scope(1) as {i}:",
                "with contextlib.suppress(Stop):",
                *([f"with Breaking() as {i}:"] if self.options.breaks else []),
                "with contextlib.nullcontext():",
                "with torch.enable_grad():",
            ]
        )
        swallows = "True" in header or "suppress" in header or "Breaking" in header
        with self.block(header), self._inside(tries=self.tries + swallows):
            if f"as {i}" in header:
                self.names["int"].append(i)
            self.statements()
            if swallows and self.chance(3):
                self.line("raise Stop(n)")

    def function(self) -> None:
        """A closure that is called, perhaps twice."""
        name, a, k = self.name("f"), self.name("t"), self.name("i")
        header = self.one_of(
            [
                f"def {name}({a}, {k}=1):",
                f"def {name}({a}, *, {k}=2):",
                f"def {name}({a}, {k}=1, *rest, **more):",
            ]
        )
        outer = self.names
        shared = [n for n in outer["int"] if n not in self.fixed]
        with self.block(header), self._inside(loops=0, tries=0, functions=1, fixed=self._all_names()):
            if shared and self.chance(2):
                self.line(f"nonlocal {shared[0]}")
                self.line(f"{shared[0]} += 1")
            self.names = {kind: list(names) for kind, names in self.names.items()}
            self.names["full"].append(a)
            self.names["int"].append(k)
            self.statements()
            self.line(f"return {self.full(1)}")
        result = self.name("t")
        arguments = self.one_of([self.full(1), f"{self.full(1)}, {k}={self.number()}"])
        self.line(f"{result} = {name}({arguments})")
        if self.chance(3):
            self.line(f"{result} = {result} + {name}({result})")
        self.names["full"].append(result)

    def generator(self) -> None:
        name, a, v = self.name("g"), self.name("t"), self.name("l")
        with (
            self.block(f"def {name}({a}):"),
            self._inside(loops=0, tries=0, functions=2, fixed=self._all_names()),
        ):
            self.names["full"].append(a)
            with self.block(f"for _ in range({self.one_of(['2', 'n % 3'])}):"):
                self.statements(2)
                self.line(f"yield {self.full(1)}")
            if self.chance(3):
                self.line(f"yield from [{a}, {self.full(0)}]")
        self.line(
            self.one_of(
                [
                    f"{v} = list({name}({self.full(0)}))",
                    f"{v} = [v + 1 for v in {name}({self.full(0)})]",
                    f"{v} = [next({name}({self.full(0)}), x)]",
                    f"{v} = [max(2, n) + v for _, v in zip(range(2), {name}({self.full(0)}))]",
                    f"{v} = [sum({name}({self.full(0)}), x)]",
                ]
            )
        )
        self.names["list"].append(v)

    def _all_names(self) -> set[str]:
        return {name for names in self.names.values() for name in names}

    @contextmanager
    def _inside(self, **state: Any) -> Iterator[None]:
        before = {key: getattr(self, key) for key in state}
        vars(self).update(state)
        yield
        vars(self).update(before)

    # ---- breaks

    def breaks(self) -> None:
        name = self.name("i")
        t = self.full(1)
        text = self.one_of(
            [
                "smelt.graph_break()",
                f"{name} = int({t}.sum().item()) % 3",
                f"print({t})",
                f"print(f'{{{self.variable('full')[0]}.sum()}} {{n}}')",
                "print(n, len(LOG))",
                f"{name} = int({t}.amax()) % 4",
                f"{name} = len({t}.tolist())",
                f"LOG.append({t}.sum().item())",
            ]
        )
        self.line(text)
        if text.startswith(name):
            self.names["int"].append(name)


def prelude(options: Options) -> str:
    """What stands above the program's function."""
    return PRELUDE + (generate_worlds.PRELUDE if options.worlds else "")


def write_program(choices: Choices, options: Options) -> str:
    """The source of a module with the function `program`; with `worlds` also `change`, which is given the number of a call
    and its arguments before each call, and gives the arguments to use."""
    p = Program(choices, options)
    for kind, names in (("full", ["x"]), ("int", []), ("list", ["items"]), ("dict", ["table"])):
        p.names[kind] += names
    p.fixed = {"n"}
    if p.chance(4):
        p.line("global COUNT")
        p.line("COUNT = (COUNT + 1) % 2")
    if options.grad:
        p.line("x = x * 1")
    p.statements(options.statements, stop=20)
    results = [*p.names["full"][-2:], *p.names["row"][-1:], *p.names["scalar"][-1:], *p.names["int"][-2:]]
    results += [*p.names["list"][-2:], *p.names["dict"][-1:], *(f"{b}.value" for b in p.names["box"][-1:])]
    p.line(f"return {', '.join(dict.fromkeys(results))},")
    source = prelude(options)
    if options.worlds:
        source += "def change(given):\n" + "\n".join(f"    {line}" for line in p.change()) + "\n\n"
    return source + "def program(x, n, items, table):\n" + "\n".join(p.lines) + "\n"
