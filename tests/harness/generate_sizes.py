"""Random programs that are valid for all sizes of their inputs, as source text.

`write_sized_program(choices)` gives a `SizedProgram`: a module with a function `program(x, y, ...)` that computes with
tensors in terms of its inputs' sizes `p`, `q` and `r`, and what its inputs are. Everything random is a `pick`, as in
generate.py.

The shape of each variable is known as expressions (`Dim`), which are equal if they are at all of `PROBES`: ordinary sizes,
0, 1 and equal ones. Values are of kinds: "whole" (floats that are small whole numbers, exact in any order), "rough" (other
floats), "index" (int64), "mask" (bool), "complex". What jumps (comparisons, sorting, maxima) is computed of exact kinds
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tests.harness import (
    sized_complex,
    sized_moves,
    sized_pointwise,
    sized_products,
    sized_reductions,
    sized_statements,
    sized_views,
)
from tests.harness.generate import Choices
from tests.harness.sized_values import NAMES, Dim, Value, dim

SHAPES = (
    "p q",
    "q",
    "p",
    "p 1",
    "1 q",
    "p q r",
    "q p",
    "p q 4",
    "r q",
    "q r",
    "p p",
    "p 3 q",
    "",
    "4 q",
    "2 p 3 q",
    "r",
)
LEADING = ("p q", "p q r", "p q 4", "q p", "p 8", "p 4 q", "p")  # of the first input

OPERATORS = (
    *sized_pointwise.OPERATORS,
    *sized_views.OPERATORS,
    *sized_moves.OPERATORS,
    *sized_reductions.OPERATORS,
    *sized_products.OPERATORS,
    *sized_statements.OPERATORS,
    *sized_complex.OPERATORS,
)


@dataclass(frozen=True)
class Input:
    """An argument: `written` if the program writes it."""

    name: str
    dims: tuple[Dim, ...]
    kind: str
    written: bool = False


@dataclass(frozen=True)
class SizedProgram:
    """`sizes`: the names of sizes that the inputs have."""

    source: str
    inputs: tuple[Input, ...]
    sizes: tuple[str, ...]
    grad: bool


@dataclass(frozen=True)
class SizedOptions:
    grad: bool = False
    statements: int = 9


@dataclass
class Writer:
    """Writes one program: its variables, and what operators choose with."""

    choices: Choices
    options: SizedOptions
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    results: list[str] = field(default_factory=list)  # besides variables
    written: set[str] = field(default_factory=set)

    def pick(self, n: int) -> int:
        return self.choices.pick(n)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.pick(len(choices))]

    def chance(self, n: int) -> bool:
        """Once in n."""
        return self.pick(n) == n - 1

    def value(self, *kinds: str, rank: int = 0) -> Value | None:
        """A variable of one of the kinds with at least `rank` dimensions; the newest first."""
        found = [v for v in reversed(self.values) if (not kinds or v.kind in kinds) and len(v.dims) >= rank]
        return self.one_of(found) if found else None

    def size(self, of: Dim) -> str:
        """Text for a size: an expression, or a dimension of a variable that has it."""
        if isinstance(of.text, str) and of.text.isdigit() and self.pick(3) < 2:
            return of.text
        places = [
            form.format(v.name, d)
            for v in self.values
            for d, other in enumerate(v.dims)
            if other == of
            for form in ("{}.shape[{}]", "{}.size({})")
        ]
        return self.one_of([of.text, *places[:6]])

    def statement(self) -> None:
        """A line; what an operator cannot be applied to is passed over."""
        for _ in range(20):
            operator = self.one_of(OPERATORS)
            made = operator(self)
            if made is not None and self._fits(made):
                if isinstance(made, Value):
                    self.assign(made)
                return

    def _fits(self, made: Value | bool) -> bool:
        return not isinstance(made, Value) or (
            len(made.dims) <= 5
            and max(map(prod, zip(*(d.values for d in made.dims), strict=True)), default=1) <= 60_000
        )

    def assign(self, made: Value) -> Value:
        """A new variable."""
        name = f"t{len(self.values)}"
        self.lines.append(f"{name} = {made.name}")
        self.values.append(Value(name, made.dims, made.kind))
        return self.values[-1]


def looks(w: Writer) -> list[str]:
    """Expressions of views of variables, several of one: results that share memory with each other, and perhaps with none
    that is returned itself."""
    made = []
    for _ in range(1 + w.pick(3)):
        v = w.one_of(w.values[-4:])
        forms = [
            "{}.flatten()",
            "{}.view_as({})",
            "{}.detach()",
            "{}.unsqueeze(0)",
            "{}.expand(2, *{}.shape)",
            "{}.mT.mT",
        ]
        forms = forms[:-1] if len(v.dims) < 2 else forms
        if v.dims:
            forms += ["{}[1:]", "{}.transpose(0, -1)", "{}[..., :2]", "{}.split(2)[-1]"]
        if v.kind == "complex":
            forms += ["{}.conj()", "{}.real", "{}.imag", "{}.conj().imag"]
        made += [w.one_of(forms).format(v.name, v.name) for _ in range(1 + w.pick(2))]
    return made


def write_sized_program(choices: Choices, options: SizedOptions) -> SizedProgram:
    """A program, with its inputs."""
    w = Writer(choices, options)
    inputs = []
    for k in range(1 + w.pick(3)):
        shape = w.one_of(LEADING if k == 0 else SHAPES)
        kind = "whole" if k == 0 else w.one_of(["whole", "whole", "whole", "index", "mask"])
        inputs.append(Value("xyz"[k], tuple(map(dim, shape.split())), kind))
    header = []
    for name in NAMES:
        places = [f"{v.name}.shape[{v.dims.index(dim(name))}]" for v in inputs if dim(name) in v.dims]
        header.append(f"{name} = {places[0]}" if places else "")
    known = tuple(name for name, text in zip(NAMES, header) if text)
    w.values += inputs
    w.lines += filter(None, header)
    for _ in range(2 + w.pick(options.statements)):
        w.statement()
    made = [v.name for v in w.values if v.name.startswith("t")]
    results = [*(made[-1:] or ["x"]), *made[-2:-1], *made[-4:-3], *made[:1], *w.results]
    if w.chance(3):
        results += looks(w)
    if w.chance(4):
        results.append(w.one_of([*known, f"{w.values[-1].name}.shape", f"{w.values[-1].name}.numel()"]))
    w.lines.append(f"return {', '.join(dict.fromkeys(results))},")
    names = ", ".join(v.name for v in inputs)
    body = "".join(f"    {line}\n" for line in w.lines)
    source = f"import torch\nimport torch.nn.functional as F\n\ndef program({names}):\n{body}"
    return SizedProgram(
        source, tuple(Input(v.name, v.dims, v.kind, v.name in w.written) for v in inputs), known, options.grad
    )
