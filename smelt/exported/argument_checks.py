"""The guards of a captured call as checks of a program's arguments, and what they say of its declared dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.errors import ExportError
from smelt.exported.dynamic_dims import Declared, dim_text, paste, range_text, text_of
from smelt.exported.input_checks import (
    RULE_KINDS,
    NumberOf,
    Path,
    Rule,
    SizeRule,
    TensorRule,
    class_name,
    computed,
)
from smelt.exported.program_file import can_be_encoded
from smelt.exported.result_nest import fields_of
from smelt.guards.guard import Guard
from smelt.guards.guard_kinds import KINDS
from smelt.guards.source import Source
from smelt.guards.tensor_facts import ANY_OR_ONE, TensorFacts
from smelt.shapes.expr import INFINITE, Expr, Expression, Size, Sym, free_syms, leaves
from smelt.tracing.record.traced import Traced
from smelt.user_lines import is_own

# Guards whose facts are settled also where they rest on an argument: of classes, functions and autograd.
_SETTLED = frozenset(
    {
        "type_version",
        "function",
        "no_hooks",
        "slot",
        "unhooked_leaf",
        "drops_silently",
        "write_restriction",
        "global_state",
    }
)
_OF_CLASSES = frozenset(
    {"type", "cell", "default", "kwdefault"}
)  # steps of sources, behind which nothing is an argument's
_LONGEST = 1 << 48  # a size that no tensor has: that of a repeated one must stay below 2 ** 63
_ROOTS = {1: "args", 2: "kwargs"}  # the slots of the captured frame; slot 0 is the model


class ArgumentNames:
    """Names of arguments for messages, as the signature has them."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], bound: inspect.BoundArguments
    ) -> None:
        names = []
        for p in bound.signature.parameters.values():
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
            elif p.kind is p.VAR_POSITIONAL:
                names += [f"{p.name}[{i}]" for i in range(len(args) - len(names))]
        self._names = names
        self.paths: dict[str, tuple[str, Any]] = {
            name: ("args", i) for i, name in enumerate(names[: len(args)])
        }
        self.paths |= {name: ("kwargs", name) for name in kwargs}

    def __call__(self, root: str, key: Any) -> str:
        if root == "kwargs":
            return str(key)
        return self._names[key] if key < len(self._names) else f"args[{key}]"


_DISTINCT, _TYPE = KINDS["distinct"], KINDS["type"]


class ArgumentChecks:
    """Checks of arguments, made from the guards of a capture. `sizes` and `rules` are those of the program."""

    def __init__(
        self,
        names: ArgumentNames,
        captured: CapturedFrame,
        traced: Traced,
        declared: Sequence[Declared],
        state: Mapping[int, str],
    ) -> None:
        self._names, self._captured, self._traced = names, captured, traced
        self._state = {captured.input_sources[i]: name for i, name in state.items()}
        mutated = {traced.inputs[i].storage_key for i in traced.mutated}
        self._written = {
            source
            for fake, source in zip(traced.inputs, captured.input_sources)
            if fake.storage_key in mutated
        }
        self._declared = {self._declared_path(d): d for d in declared}
        self._inputs = {
            path: fake
            for fake, source in zip(traced.inputs, captured.input_sources)
            if (path := self.path(source)) is not None
        }
        self._specs = {
            path: placeholder.spec
            for placeholder, source in zip(traced.aten_graph.placeholders, captured.input_sources)
            if (path := self.path(source)) is not None
        }
        self.sizes = [self._size_rule(sym) for sym in traced.sizes]
        self.rules: list[TensorRule | Rule] = []
        for guard in (*captured.guards, *captured.env.facts.gradient_reads):
            rule = self._rule(guard)
            if rule is not None and rule not in self.rules:
                self.rules += (rule, *self._field_rules(guard, rule))

    def path(self, source: Source) -> Path | None:
        """The path of an argument or of a part of it; None for a source outside the arguments."""
        if root_of(source) is None:
            return None
        steps: list[tuple[str, Any]] = []
        at: Source = source
        while at.base is not None:
            steps.append((at.kind, at.key))
            at = at.base
        root = _ROOTS[at.index]
        steps.reverse()
        if not steps:
            return ((root, None),)
        return ((root, steps[0][1]), *steps[1:])

    def text(self, source: Source) -> str:
        """The name of an argument or of a part of it, for messages."""
        path = self.path(source)
        if path is None:
            return source.source
        return self._text(path)

    def _text(self, path: Path) -> str:
        (root, key), *steps = path
        text = "the arguments" if key is None else self._names(root, key)
        for kind, key in steps:
            text += {"item": f"[{key!r}]", "call": "()", "element": f".flatten()[{key}]"}.get(kind, f".{key}")
        return text

    def _declared_path(self, d: Declared) -> tuple[Path, int]:
        name, *keys = d.of
        root = self._names.paths.get(str(name))
        if root is None:  # of *args
            first, *keys = keys
            root = self._names.paths[f"{name}[{first}]"]
        return (root, *(("item", key) for key in keys)), d.dim

    def declared_at(self, tensor: Source, dim: int) -> Declared | None:
        """The declaration of a dimension, or None."""
        path = self.path(tensor)
        return None if path is None else self._at(path, dim)

    def _at(self, path: Path, dim: int) -> Declared | None:
        plain = (path[0], *(("item", key) for _, key in path[1:]))
        return self._declared.get((path, dim)) or self._declared.get((plain, dim))

    def _size_rule(self, sym: Sym) -> SizeRule:
        size = self._traced.sizes[sym]
        s = size.source
        over = None if s.over is None else int(s.over)
        numbers = s.dim, s.divisor, over, s.is_remainder, sym.lo, sym.hi
        tensors = len(self._captured.input_sources)
        if size.input >= tensors:
            expression = self._traced.numbers[size.input - tensors].symbol.expression
            return SizeRule(sym, self.number(expression), "a number of the arguments", "", *numbers)
        source = self._captured.input_sources[size.input]
        path = self.path(source)
        if path is None:
            raise ExportError(f"a size of {source.source} is dynamic: only sizes of arguments may be")
        declared = self._at(path, s.dim)
        name = declared.name if declared is not None else ""
        return SizeRule(sym, path, self._text(path), name, *numbers)

    def number(self, expression: Expression) -> NumberOf:
        """A number as the program computes it. Raises ExportError if it depends on more than the arguments."""
        of = leaves(expression)
        paths = [self.path(source) for source in of]
        known = tuple(path for path in paths if path is not None)
        if len(known) < len(paths):
            raise ExportError("a number of the call does not follow from its arguments; make it a constant")
        return NumberOf(tree_of(expression, {id(source): i for i, source in enumerate(of)}), known)

    def _rule(self, guard: Guard) -> TensorRule | Rule | None:
        """The check of a guard; None if the export settles it or the binding of arguments implies it."""
        kind = guard.kind.name
        sources = (
            guard.sources if guard.kind.is_relation else (guard.source,) if guard.source is not None else ()
        )
        paths = [self.path(source) for source in sources]
        line = "" if guard.line is None or is_own(guard.line.filename) else str(guard.line)
        if not paths or all(path is None for path in paths) or kind in _SETTLED:
            return None
        if kind == "no_overlap":
            return self._no_overlap(sources, line)
        if any(path is None for path in paths):
            return self._mixed(guard, [path for path in paths if path is not None], line)
        known = tuple(path for path in paths if path is not None)
        if known[0][0][1] is None:  # of the tuple or dict of the arguments themselves
            return None
        if kind == "tensor":
            assert guard.facts is not None
            return self._tensor_rule(known[0], guard.facts)
        value: Any = guard.value
        if kind == "id":
            if value is None or value is True or value is False:
                kind = "eq"
            else:
                raise ExportError(
                    f"{self._text(known[0])} is {guard.text.partition(' is ')[2] or 'an object'}: a program takes tensors, "
                    "numbers, strings and containers of these. Make it an attribute of the model"
                )
        if kind == "type":
            value = class_name(value)
        elif kind == "number":
            value = value.__name__
        elif kind in ("shared_storage", "distinct", "alias"):
            value = None
        elif kind == "expression":
            return self._expression(guard, known, line)
        if kind not in RULE_KINDS or not can_be_encoded(value):
            raise ExportError(
                f"the call depends on {self._text(known[0])} in a way that no program checks: "
                f"{self._shown(guard, sources)}. Make it an attribute of the model"
            )
        names = ", ".join(map(self._text, known))
        key, is_in = value if kind == "contains" else ("", True)
        texts = {
            "contains": f"{names} must {'' if is_in else 'not '}have the key {key!r}",
            "type": f"{names} must be a {value}",
            "len": f"{names} must have length {value}",
            "keys": f"{names} must have the keys {value!r}",
            "eq": f"{names} must be {value!r}",
            "distinct": f"{names} must be different objects",
            "alias": f"{names} must be one object, as at the export",
            "shared_storage": f"{names} must share memory",
            "not_in_dict": f"{names} must have no attribute {value!r}",
            "no_attr": f"{names} must have no attribute {value!r}",
        }
        return Rule(kind, known, value, texts.get(kind, f"{names}: {self._shown(guard, sources)}"), line)

    def _field_rules(self, guard: Guard, rule: TensorRule | Rule) -> list[Rule]:
        """The rule for C++ with the fields of a named tuple or dataclass, if `guard` checks such a class."""
        fields = fields_of(guard.value) if guard.kind is _TYPE else None
        if fields is None or not isinstance(rule, Rule):
            return []
        text = f"{self._text(rule.paths[0])} must have the fields {', '.join(fields)}"
        return [Rule("fields", rule.paths, tuple(fields), text, "")]

    def _no_overlap(self, sources: Sequence[Source], line: str) -> Rule:
        """That arguments share no memory with what is written, and those that are written with nothing. A result may be a
        tensor of the state, and the next argument."""
        paths: list[Path] = []
        flags: list[tuple[bool, bool]] = []  # is it an argument, is it written
        for source in sources:
            path, is_written = self.path(source), source in self._written
            if path is not None or source in self._state:
                paths.append(path if path is not None else (("state", self._state[source]),))
                flags.append((path is not None, is_written))
        arguments = [self._text(path) for path, (is_argument, _) in zip(paths, flags) if is_argument]
        state = [repr(path[0][1]) for path, (is_argument, _) in zip(paths, flags) if not is_argument]
        shown = ", ".join(state[:3]) + (", ..." if len(state) > 3 else "")
        text = f"{', '.join(arguments)} must share no memory" + (f" with the state {shown}" if state else "")
        return Rule("no_overlap", tuple(paths), tuple(flags), text, line)

    def _mixed(self, guard: Guard, paths: list[Path], line: str) -> Rule | None:
        """A relation between arguments and the model."""
        if guard.kind is _DISTINCT:
            if len(paths) < 2:
                return None
            names = ", ".join(map(self._text, paths))
            return Rule("distinct", tuple(paths), None, f"{names} must be different objects", line)
        raise ExportError(
            f"the call depends on a relation of {self._text(paths[0])} to the model's own state: {guard.text}. "
            "Pass a tensor of its own"
        )

    def _tensor_rule(self, path: Path, facts: TensorFacts) -> TensorRule:
        spec = self._specs.get(path)
        least = 1 if ANY_OR_ONE in facts.shape else 2
        if facts.type not in (torch.Tensor, nn.Parameter):
            raise ExportError(f"{self._text(path)} is a {facts.type.__name__}: programs take plain tensors")
        shape: tuple[Any, ...] = tuple(n if n >= 0 else None for n in facts.shape)
        stride: tuple[Any, ...] = tuple(n if n >= 0 else None for n in facts.stride)
        if spec is not None and facts.layout is torch.strided:
            shape, stride = tuple(spec.shape), tuple(spec.stride)
        elif any(n < -1 for n in facts.stride):
            raise ExportError(
                f"{self._text(path)} has a layout that no program checks; pass a contiguous tensor"
            )
        is_parameter = facts.type is nn.Parameter
        return TensorRule(
            path,
            self._text(path),
            facts.dtype,
            facts.device,
            facts.layout,
            shape,
            stride,
            least,
            is_parameter,
            tuple(map(self._note, shape)),
        )

    def _note(self, size: Size | None) -> str:
        """What messages say of an expected size that is an expression."""
        if not isinstance(size, Expr):
            return ""
        known = [
            (s.symbol, f"dimension {s.dim} of {s.text}") for s in self.sizes if s.symbol in free_syms(size)
        ]
        if known and size is known[0][0]:
            return f", as {known[0][1]} is"
        return f", which is {size}, where " + ", ".join(f"{sym} is {text}" for sym, text in known)

    def _expression(self, guard: Guard, paths: tuple[Path, ...], line: str) -> Rule | None:
        expression, expected = guard.value
        of = leaves(expression)
        tree = tree_of(expression, {id(source): i for i, source in enumerate(of)})
        value = expected.__name__ if isinstance(expected, type) else expected
        return Rule("expression", paths, (tree, value), f"{self._shown(guard, of)} must hold", line)

    def _shown(self, guard: Guard, sources: Iterable[Source]) -> str:
        """A guard with the names of arguments."""
        shown = guard.text
        for source in sources:
            shown = shown.replace(source.source, self.text(source))
        return shown

    # ---- declarations

    def check_declared(self) -> None:
        """Raise ExportError if the capture restricts declared sizes more than their declarations do."""
        seen: dict[Sym, Declared] = {}
        for (path, dim), d in self._declared.items():
            spec = next((s for p, s in self._specs.items() if self._at(p, dim) is d), None)
            if not d.name:
                continue
            if spec is None:
                self._check_unused(path, dim, d)
                continue
            size = spec.shape[dim]
            if not isinstance(size, Sym):
                self._contradicted(d, size)
                continue
            other = seen.setdefault(size, d)
            if other.name != d.name:
                raise ExportError(
                    f"dimension {d.dim} of {text_of(d.of)}, the Dim {d.name!r}, must equal dimension {other.dim} of "
                    f"{text_of(other.of)}, the Dim {other.name!r}{self._why(path, dim)}. Declare one Dim for both: "
                    f"{paste(d, dim_text(other))}"
                )
            low, high = d.min if d.min is not None else 2, d.max if d.max is not None else INFINITE
            if size.lo > max(low, 1) or size.hi < min(high, _LONGEST):
                raise self._narrower(d, size.lo, size.hi, path)
        for rule in self.rules:
            if isinstance(rule, Rule) and rule.is_expression:
                self._check_condition(rule)

    def _check_unused(self, path: Path, dim: int, d: Declared) -> None:
        """Check the declaration of a tensor of which the graph uses nothing."""
        for rule in self.rules:
            if isinstance(rule, TensorRule) and self._at(rule.path, dim) is d and rule.shape[dim] is None:
                if rule.least > max(d.min if d.min is not None else 2, 1):
                    raise self._narrower(d, rule.least, INFINITE, path)

    def _narrower(self, d: Declared, low: int, high: int, path: Path) -> ExportError:
        most = d.max if high >= INFINITE else high
        return ExportError(
            f"dimension {d.dim} of {text_of(d.of)} is declared {dim_text(d)}, but the program needs it "
            f"{range_text(low, high)}{self._why(path, d.dim)}. Declare {paste(d, dim_text(replace(d, min=low, max=most)))}"
        )

    def _contradicted(self, d: Declared, size: Any) -> None:
        what = f"{size}" if isinstance(size, int) else f"of the form {size}"
        raise ExportError(
            f"dimension {d.dim} of {text_of(d.of)} is declared {dim_text(d)}, but the program needs it to be {what}. "
            f"Declare {paste(d, 'None' if isinstance(size, int) else 'Dim.AUTO')}"
        )

    def _check_condition(self, rule: Rule) -> None:
        """Raise ExportError for a condition on sizes with declared names that their declarations do not imply."""
        declared = [
            d
            for path in rule.paths
            if path[-2:-1] == (("member", "shape"),) and (d := self._at(path[:-2], path[-1][1]))
        ]
        named = [d for d in declared if d.name]
        if not named or self._implied(rule, declared):
            return
        where = f" ({rule.line})" if rule.line else ""
        raise ExportError(
            f"{rule.text}{where}, which the declaration of dimension {named[0].dim} of {text_of(named[0].of)}, "
            f"{dim_text(named[0])}, does not say. Declare {paste(named[0], 'Dim.AUTO')}"
        )

    def _implied(self, rule: Rule, declared: Sequence[Declared]) -> bool:
        """Whether a condition on one size, which is a range, holds for the least and the largest declared value."""
        if len({d.name for d in declared}) != 1 or len(declared) != len(rule.paths):
            return False
        ends = [
            max(d.min if d.min is not None else 2, 1) if low else (d.max if d.max is not None else 1 << 40)
            for low in (True, False)
            for d in declared[:1]
        ]
        return all(computed(rule.value[0], lambda i, n=n: n) == rule.value[1] for n in ends)  # type: ignore[misc]

    def _why(self, path: Path, dim: int) -> str:
        """The user's line of a guard on a size."""
        for guard in self._captured.guards:
            sources = guard.sources if guard.kind.is_relation else (guard.source,) if guard.source else ()
            for source in sources:
                at = self.path(source)
                if (
                    at is not None
                    and at[-1:] == (("item", dim),)
                    and at[:-2] == path
                    and guard.line is not None
                ):
                    return f" at {guard.line}"
        return ""


def root_of(source: Source) -> str | None:
    """The slot of arguments in which a source begins, if its path leads only through values of the arguments."""
    at: Source | None = source
    while at is not None:
        if at.kind in _OF_CLASSES:
            return None
        if at.base is None:
            return _ROOTS.get(at.index) if at.kind == "arg" else None
        at = at.base
    return None


def tree_of(e: Any, leaf: Mapping[int, int]) -> Any:
    """An expression as nested tuples (`input_checks.computed`)."""
    if not isinstance(e, Expression):
        return e
    if e.op == "leaf":
        return "leaf", leaf[id(e.args[0])]
    if e.op == "const":
        return e.args[0]
    return (e.op, *(tree_of(a, leaf) for a in e.args))
