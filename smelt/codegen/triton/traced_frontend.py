"""Triton's form of a printed kernel, by running its text as Python.

The names of the kernel hold operands (`traced_operands.py`), whose operators make the operations of the form, and `tl` is a
`Language` that does. Triton's own code generator walks the syntax tree, and asks at each node what it may be; Python runs
compiled code, and knows. All of either is Python, which one thread at a time runs: where many kernels are compiled side by
side, it is what they wait for.

What comes out is what Triton's generator gives after the first of its passes. A text that is not as they are printed raises
some exception: whoever asks then takes Triton's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, SimpleNamespace
from typing import Any

from smelt.codegen.triton.kernel_source import KERNEL, Source
from smelt.codegen.triton.scalar_types import Kind, of_signature, promoted
from smelt.codegen.triton.traced_language import Language
from smelt.codegen.triton.traced_operands import Form, Operand, Types

_LOOP = "    for "
_ASSIGNED = re.compile(r" *(\w+(?:, \w+)*) (?:[-+*/]|//)?= ")


def form_of(source: Source, ir: Any, context: Any, types: Types, asserts: bool) -> Any:
    """The module, in `context`, of which `types` holds types that are known already. `ir`: Triton's module of that name.
    `asserts`: whether assertions are compiled."""
    helpers, kernel = source.text.split(KERNEL)
    statements = _statements(kernel.partition("\n")[2])
    builder = ir.builder(context)
    form = Form(builder, types)
    module = builder.create_module()
    arguments = {name: of_signature(kind) for name, kind in source.signature.items() if kind != "constexpr"}
    function = _function(form, module, arguments, source)
    values = {
        name: Operand(form, function.args(i), kind, ()) for i, (name, kind) in enumerate(arguments.items())
    }
    names = _Names(form, values | dict(source.constants))
    loops = _Loops(form, names, statements.assigned)
    exec(statements.code, _module(helpers, Language(form, ir, asserts), loops), names)
    if next(loops.assigned, None) is not None:
        raise TypeError("a loop that did not begin")
    builder.ret([])
    function.finalize()
    module.context = context
    if not module.verify():
        raise TypeError("a form that is not valid")
    return module


def _function(form: Form, module: Any, arguments: Mapping[str, Kind], source: Source) -> Any:
    """The function, open for its body."""
    builder = form.builder
    kind = builder.get_function_ty([form.type(k) for k in arguments.values()], [])
    function = builder.get_or_insert_function(module, "kernel", kind, "public", False)
    module.push_back(function)
    builder.set_insertion_point_to_start(function.add_entry_block())
    for number, name in enumerate(arguments):
        if name in source.aligned:
            function.set_arg_attr(number, "tt.divisibility", 16)
    return function


# ---- the text


@dataclass(frozen=True)
class _Statements:
    """The kernel's body, and for each loop in it, in order, the names that it assigns."""

    code: CodeType
    assigned: tuple[frozenset[str], ...]


def _statements(body: str) -> _Statements:
    code = compile(body.removeprefix("    ").replace("\n    ", "\n"), "kernel", "exec")
    assigned: list[frozenset[str]] = []
    around: list[tuple[int, int]] = []  # enclosing loops of the line: their indents and indices in `assigned`
    for line in body.split("\n") if _LOOP in body else ():
        indent = len(line) - len(line.lstrip())
        while around and indent <= around[-1][0]:
            around.pop()
        if line.startswith("for ", indent):
            around.append((indent, len(assigned)))
            assigned.append(frozenset())
        elif (found := _ASSIGNED.match(line)) is not None:
            for _, i in around:
                assigned[i] |= frozenset(found[1].split(", "))
    return _Statements(code, tuple(assigned))


@functools.lru_cache(256)
def _compiled(helpers: str) -> CodeType:
    return compile(helpers, "helpers", "exec")


def _module(helpers: str, language: Language, loops: Callable[..., Any]) -> dict[str, Any]:
    """What stands above the kernel, which is the same for many; `range` is for its loops."""
    triton = SimpleNamespace(language=language, jit=lambda function: function)
    namespace = {"__builtins__": {"__import__": _importer(triton), "range": loops, "float": float}}
    exec(_compiled(helpers), namespace)
    return namespace


def _importer(triton: object) -> Callable[..., object]:
    def imported(name: str, *_: object) -> object:
        if name not in ("triton", "triton.language"):
            raise ImportError(name)
        return triton

    return imported


# ---- names and loops


class _Names(dict[str, Any]):
    """The names of the kernel. A number that has a name is a scalar."""

    def __init__(self, form: Form, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._form = form

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, (int, float)):
            value = self._form.operand(value)
        super().__setitem__(name, value)


class _Loops:
    """What `range` is: a loop of the form, whose body runs once. What it assigns of the names that there were before it is
    carried from step to step; other names end with it."""

    def __init__(self, form: Form, names: _Names, assigned: tuple[frozenset[str], ...]) -> None:
        self.form, self.names, self.assigned = form, names, iter(assigned)

    def __call__(self, start: Operand | int, end: Operand | int, step: int) -> Iterator[Operand]:
        """Gives the loop's number, once."""
        form, names, builder = self.form, self.names, self.form.builder
        assigned = next(self.assigned)
        bounds = [form.operand(x) for x in (start, end, step)]
        if step <= 0 or any(not x.kind.is_integer or x.shape for x in bounds):
            raise TypeError("a loop that counts down, or no integers")
        kind = promoted(promoted(bounds[0].kind, bounds[1].kind), bounds[2].kind)
        handles = [builder.create_int_cast(x.handle, form.type(kind), kind.signed) for x in bounds]
        before = dict(names)
        carried = {name: value for name, value in before.items() if name in assigned}
        insertion_point = builder.get_insertion_point()
        operation = builder.create_for_op(*handles, [x.handle for x in carried.values()])
        body = operation.get_body(0)
        builder.set_insertion_point_to_start(body)
        for i, (name, x) in enumerate(carried.items()):
            names[name] = Operand(form, body.arg(i + 1), x.kind, x.shape)
        yield Operand(form, operation.get_induction_var(), kind, ())
        ends = [names[name] for name in carried]
        if [(x.kind, x.shape) for x in ends] != [(x.kind, x.shape) for x in carried.values()]:
            raise TypeError("a name that changes its type in a loop")
        if ends:
            builder.create_yield_op([x.handle for x in ends])
        builder.restore_insertion_point(insertion_point)
        names.clear()
        names.update(before)
        for i, (name, x) in enumerate(carried.items()):
            names[name] = Operand(form, operation.get_result(i), x.kind, x.shape)
