"""What is new in CPython 3.14: syntax that older versions cannot parse (hence programs as text), deferred annotations."""

import functools
import linecache
import sys
import typing

import pytest
import torch

import smelt
from smelt.report.inspect import reasons
from tests.harness.agreement import same

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="syntax and library of Python 3.14")

SOURCE = """
import contextlib, functools, inspect, typing
from string.templatelib import Interpolation, Template

def shown(part):
    return part if isinstance(part, str) else (part.value, part.expression, part.conversion, part.format_spec)

# ---- t-strings

def template_is_returned(x):
    y = x * 2
    made = t"a {y} b{x.shape[0]!r:>{3}}"
    return made.strings, [shown(part) for part in made]

def template_is_read(x):
    made = t"a {x + 1}{'b'}" + t"c"
    return made.strings, made.values[0] * 2, [part.expression for part in made.interpolations]

def template_over_a_break(x):
    made = t"{x * 2:.2f}"
    smelt.graph_break()
    return [shown(part) for part in made], x + 1

def template_is_matched(x):
    match t"{x}".interpolations[0]:
        case Interpolation(value, expression, None, ""):
            return value + 1, expression

def template_as_text(x):
    return x + 1, str(t"{3}"), repr(t"{x.shape}")

# ---- exceptions

def no_parentheses(x):
    try:
        [][x.dim()]
    except ValueError, IndexError:
        return x + 1

def no_parentheses_in_groups(x):
    try:
        raise ExceptionGroup("several", [ValueError(1), KeyError(2)])
    except* ValueError, KeyError:
        x = x + 1
    return x

def leaves_finally(x):
    for i in range(3):
        try:
            x = x + 1
        finally:
            if i == 1:
                break
    try:
        raise ValueError
    finally:
        return x * 2

# ---- annotations

ran = []

def effect():
    ran.append(1)
    return int

def nobody_asks(x):
    def inner(a: Undefined, b: effect() = 1) -> x: return a + b
    return inner(x)

def function_is_returned(x):
    def inner(a: Undefined): return a
    return inner(x), inner.__annotate__ is None

def function_is_asked(x):
    def inner(a: int, b: "text" = 1) -> list[int]: return a
    return inner(x), inner.__annotations__, inner.__annotate__(1)

def annotation_with_an_effect(x):
    def inner(a: effect()): return a
    return inner(x), inner.__annotations__, len(ran)

def annotation_of_a_tensor(x):
    y = x * 2
    def inner(a: y): return a
    return inner.__annotations__["a"] + 1

def class_is_made(x):
    class C:
        n: Undefined
        k: int = 3
        def scaled(self, y: Undefined) -> Undefined: return y * self.k
    return C().scaled(x), C.k

def annotated(a: int, b: Tensor) -> None: pass
def annotated_with_an_effect(a: effect()): pass

def outside_function_is_asked(x):
    return x + 1, list(annotated.__annotations__.values())

def outside_function_with_an_effect(x):
    return x + 1, annotated_with_an_effect.__annotations__

class Annotated:
    n: int
    t: Tensor

class AnnotatedWithAnEffect:
    n: effect()

def outside_class_is_asked(x):
    return x + 1, list(Annotated.__annotations__.values())

def outside_class_with_an_effect(x):
    return x + 1, AnnotatedWithAnEffect.__annotations__

def class_is_asked(x):
    class C:
        n: int
        k: list[int] = 3
    return x + len(C.__annotations__), C.__annotations__["n"]

def signature(x):
    return x + len(inspect.signature(annotated).parameters)

# ---- partial calls

_ = functools.Placeholder
less_one = functools.partial(torch.sub, _, 1.0)

class Model:
    def __init__(self): self.k = 2
    def scaled(self, x, b): return x * self.k + b
    more = functools.partial(scaled, b=1)

def partial_is_a_method(x):
    return Model().more(x), Model.more(Model(), x)

def placeholders(x):
    several = functools.partial(lambda *args, **named: (args, named), _, 2, _, 4, z=3)
    one = functools.partial(several, 1)
    errors = []
    for fails in (lambda: several(1), lambda: functools.partial(several, _)):
        try:
            fails()
        except TypeError as error:
            errors.append(str(error))
    return less_one(x), several(x, 3, 5), one(3), functools.partial(one, 9, 5)(7), errors

def placeholder_is_returned(x):
    made = functools.partial(torch.sub, _, x)
    return made.args[0] is _, made(x)

# ---- `with`, loops, calls

class Manager:
    def __init__(self): self.log = []
    def __enter__(self): self.log.append("in"); return self
    def __exit__(self, *error): self.log.append(error[0]); return error[0] is ValueError

def managers(x):
    first = Manager()
    with first as m, Manager():
        x = x + 1
        smelt.graph_break()
        x = x * 2
    with m:
        smelt.graph_break()
        raise ValueError
    return x, first.log

def what_is_no_manager(x):
    class Half:
        def __enter__(self): pass
    class Asynchronous:
        async def __aenter__(self): pass
        async def __aexit__(self, *error): pass
    errors = []
    for manager in (3, Half(), Asynchronous()):
        try:
            with manager: pass
        except TypeError as error:
            errors.append(str(error))
    return x + 1, errors

def broken_manager(x):
    class Broken:
        def __enter__(self): smelt.graph_break(); return 2
        def __exit__(self, *error): smelt.graph_break(); return True
    with Broken() as n:
        x = x * n
        raise ValueError
    return x + 1

def loops(x):
    for i in range(3):
        for j in (1, 2):
            x = x + j
            smelt.graph_break()
            if j == i: break
    else:
        x = x * 2
    return x, [smelt.graph_break() for _ in range(2)], [*range(5)][1:3], x[1:2]

def quantifiers(x):
    return all(v is not None for v in (x, 1)), any(v is x for v in [x]), tuple(v + 1 for v in (x, x))

def arguments(x):
    def inner(*args, **named): return args, named
    return inner(*[x], **{}), inner(*(x, 1), **{"a": x}), inner(x, b=x, *[3])

def unions(x):
    made = typing.Union[int, str]
    return x + 1, made == int | str, isinstance(3, made), made | None
"""


@functools.cache
def module() -> dict[str, typing.Any]:
    scope = {"torch": torch, "smelt": smelt, "__name__": "programs_of_314", "Tensor": torch.Tensor}
    linecache.cache["<programs of 3.14>"] = (len(SOURCE), None, SOURCE.splitlines(True), "<programs of 3.14>")
    exec(compile(SOURCE, "<programs of 3.14>", "exec"), scope)
    return scope


PROGRAMS = [
    "template_is_returned", "template_is_read", "template_over_a_break", "template_is_matched",
    "template_as_text", "no_parentheses", "no_parentheses_in_groups", "leaves_finally", "nobody_asks",
    "function_is_returned", "function_is_asked", "annotation_with_an_effect", "annotation_of_a_tensor",
    "class_is_made", "outside_function_is_asked", "outside_function_with_an_effect", "outside_class_is_asked",
    "outside_class_with_an_effect", "class_is_asked", "signature", "partial_is_a_method", "placeholders",
    "placeholder_is_returned", "managers", "what_is_no_manager", "broken_manager", "loops", "quantifiers",
    "arguments", "unions",
]  # fmt: skip
# Programs in which a graph breaks although they do not ask for it.
BREAKING = {
    "outside_function_with_an_effect",
    "outside_class_with_an_effect",
    "template_as_text",
    "template_over_a_break",
    "loops",
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of `finally` that is left
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    fn = module()[name]
    compiled = smelt.compile(fn, backend="eager")
    for call in range(3):
        x = torch.arange(3.0) + call
        module()["ran"].clear()
        got = compiled(x)
        ran = len(module()["ran"])
        module()["ran"].clear()
        same(got, fn(x))
        assert ran >= len(module()["ran"])  # what is asked for once is kept
    asked = {"graph-break-requested"} if name not in BREAKING else {r.kind.id for r in reasons(compiled)}
    assert {r.kind.id for r in reasons(compiled)} <= asked


def test_guards_make_no_annotations():
    ran = []

    def effect():
        ran.append(1)
        return int

    def made():
        def annotated(a: effect()):
            return a  # noqa: E704

        return annotated

    def fn(x, f):
        return x + len(f.__annotations__)

    compiled, asked = smelt.compile(fn, backend="eager"), made()
    assert asked.__annotations__ == {"a": int} and len(ran) == 1
    same(compiled(torch.ones(2), asked), torch.full((2,), 2.0))
    assert len(ran) == 1
    same(compiled(torch.ones(2), made()), torch.full((2,), 2.0))
    assert len(ran) == 2  # as eager: once, by the program
