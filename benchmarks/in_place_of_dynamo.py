"""smelt in place of torch.compile for tests that were written for Dynamo (`benchmarks/sweep_pytorch.py`).

`install` redirects the entry points of torch's compiler (`torch.compile`, `torch._dynamo.optimize`, `optimize_assert`,
`compile_fx`) in this process, and the class of compiled modules (`torch._dynamo.OptimizedModule`). A test that calls
AOTAutograd or Inductor below them compiles nothing with smelt and is skipped. `install` also imports test modules with their
assertions about the compiler made tolerant: a statement that only asserts what Dynamo counts or writes (frames, operators,
graphs, guards, logs, code) notes a difference, and the test continues. Where a test expects an exception of Dynamo's, one of
smelt's will do, or none if smelt compiles the program.

This process is a benchmark: unlike smelt, it imports torch's compiler, whose settings and counters the tests use.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.machinery
import importlib.util
import logging
import re
import sys
import traceback
import types
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import smelt
from benchmarks.unittest_runs import Finder
from smelt.callables import CompiledModule
from smelt.cli.torch_compile_redirect import compile as compile_as_torch

# What Dynamo counts or writes, in the text of a statement.
_INTERNAL = re.compile(
    r"\.frame_count|\.op_count|\bop_count\b|\bframe_count\b|\bcounters\b|\bgraphs?\b|\bgms?\b|graph_module|GraphModule"
    r"|_graphs\b|graph_break|guard|\brecords?\b|\blogs?\b|log_stream|\bnum_\w*(compile|graph|break)|compile_count|metrics"
    r"|\.code\b|normalize_gm|recompil|cache_entr|_debug_get|torch\._dynamo\.(utils|exc|convert_frame|variables)|trace_rules"
    r"|compile_times|\bbreak_reasons\b|nodes?\b|\bhas_op\b|_called\b|eval_frame|source_fn|_and_get_\w*code|function_events"
    r"|\bseen_frames\b|\bcompile_ids?\b|call_count|len\((c\d|entries)\)|FileCheck|\bin code\b|\bcode[).[,]|source_codes?\b"
    r"|traceback\.format_exc\(\)|\.example_inputs\b|\bexp_graph\b"
)
_VALUES = re.compile(
    r"\bsame\(|allclose|opt_fn\(|opt_f\(|compiled\w*\(|opt_m\w*\("
)  # which are never tolerated
_GRAPH = re.compile(r"(^|[._])(gm|gms|graph|graphs|graph_module|exported_program)(\[.*\])?$")
_COLLECTS = ("append", "extend", "add", "update")  # methods that put what they are given into a collection
_ASSERTS = re.compile(r"^(assert\b|FileCheck\(|(self|test_case)\.(assert|check_\w*count|_check)\w*\()")
_COMPILERS = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch.fx",
    "torch._subclasses",
    "smelt",
)
_DIFFERS = "__differs_from_dynamo__"

_compile_of_torch = torch.compile

notes: list[str] = []  # of the test that runs: the statements about the compiler that did not hold
uses = 0  # calls of an entry point of the compiler


def is_about_the_compiler(text: str) -> bool:
    """Whether a statement asserts only what the compiler counts or writes."""
    return bool(_INTERNAL.search(text)) and not _VALUES.search(text)


def _variables(node: ast.AST) -> set[str]:
    """The variables in an expression; builtins and the test itself count for none."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names - set(dir(builtins)) - {"self", "pprint", "re", "torch"}


def _runs_a_graph(node: ast.AST, about: set[str]) -> bool:
    """Whether an expression calls a graph, or something that was derived from one: that gives values."""
    called = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(
        f.attr == "forward"
        if isinstance(f, ast.Attribute)
        else ast.unparse(f) in about or _GRAPH.search(ast.unparse(f))
        for f in called
    )


def _assigned(statement: ast.stmt) -> tuple[list[ast.expr], ast.expr] | None:
    """What a statement assigns, or adds to a collection: (targets, value)."""
    if isinstance(statement, ast.Assign):
        return statement.targets, statement.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) == 1:
        return ([call.func.value], call.args[0]) if call.func.attr in _COLLECTS else None
    return None


def derived_names(function: ast.FunctionDef) -> set[str]:
    """Variables of a test that only hold what the compiler counts or writes: each value assigned to them is computed from
    graphs, counters and the like, and from no result of the program."""
    values: dict[str, list[ast.expr]] = {}
    for statement in ast.walk(function):
        assigned = _assigned(statement) if isinstance(statement, ast.stmt) else None
        for target in assigned[0] if assigned else ():
            if isinstance(target, ast.Name):
                values.setdefault(target.id, []).append(assigned[1])
    about: set[str] = set()
    for name, assigned_values in values.items():  # in order: a name may derive from earlier ones
        known = [v for v in assigned_values if not _is_empty(v)]
        if known and all(_is_derived(v, about) for v in known):
            about.add(name)
    return about


def _is_empty(value: ast.expr) -> bool:
    """Whether an expression is an empty collection."""
    return ast.unparse(value) in ("[]", "{}", "set()", "dict()", "list()")


def _is_derived(value: ast.expr, about: set[str]) -> bool:
    text = ast.unparse(value)
    if (
        _VALUES.search(text)
        or _runs_a_graph(value, about)
        or re.search(r"compile\(|optimize\(|CompileCounter", text)
    ):
        return False
    return bool(_INTERNAL.search(text)) or bool(_variables(value) & about)


class _Tolerant(ast.NodeTransformer):
    """Puts each assertion about the compiler in a `try` that notes what it raises."""

    def __init__(self) -> None:
        self._derived: set[str] = set()  # of the function

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self._derived = self._derived, self._derived | derived_names(node)
        try:
            return self.generic_visit(node)
        finally:
            self._derived = outer

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return self._tolerant(node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return self._tolerant(node)

    def _tolerant(self, node: ast.stmt) -> ast.stmt:
        text = ast.unparse(node)
        if not _ASSERTS.match(text) or not (is_about_the_compiler(text) or self._is_on_derived(node, text)):
            return node
        note = ast.Expr(ast.Call(ast.Name(_DIFFERS, ast.Load()), [ast.Constant(text)], []))
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [note])
        tolerant = ast.Try([node], [handler], [], [])
        return ast.fix_missing_locations(ast.copy_location(tolerant, node))

    def _is_on_derived(self, node: ast.stmt, text: str) -> bool:
        """Whether an assertion is about nothing but variables that hold what the compiler counts or writes."""
        names = _variables(node)
        is_derived = bool(names) and names <= self._derived and not _VALUES.search(text)
        return is_derived and not _runs_a_graph(node, self._derived)


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with tolerant assertions. There is no bytecode cache."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        tree = _Tolerant().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)  # type: ignore[no-any-return]


def note_difference(text: str) -> None:
    """Note that a statement about the compiler does not hold."""
    notes.append(text.splitlines()[0][:100])


# ------------------------------------------------------------------------------------------------- entry points


def install(folder: Path) -> None:
    """Redirect this process's torch.compile to smelt, and import the tests below `folder` with tolerant assertions. Does
    nothing a second time."""
    if torch.compile is _compile:
        return
    setattr(builtins, _DIFFERS, note_difference)
    own_assertions = ("torch._dynamo.testing",)
    sys.meta_path.insert(0, Finder(folder, _Loader, own_assertions))
    _redirect_errors()
    from torch import _dynamo
    from torch._dynamo import testing
    from torch._dynamo.backends import registry
    from torch._inductor import compile_fx
    from torch._inductor import utils as inductor

    torch.compile = _compile
    for module in (_dynamo, testing):  # not in `eval_frame`: torch._dynamo.export calls those of its own
        module.optimize, module.optimize_assert = _optimize, _optimize_assert
    _dynamo.OptimizedModule = CompiledModule
    compile_fx.compile_fx = _compile_fx
    inductor.run_and_get_code = _run_and_get_code
    for name in _BELOW_COMPILE:
        _skip_unless_a_backend_calls(name)
    found = registry.lookup_backend
    registry.lookup_backend = lambda name: _compile_fx if name == "inductor" else found(name)
    reset = _dynamo.reset
    _dynamo.reset = torch.compiler.reset = lambda: (reset(), smelt.reset())
    _tolerate_expected_errors()


def _redirect_errors() -> None:
    """Tests catch torch's exceptions: smelt's that mean the same become subclasses of them."""
    from torch._dynamo import exc

    unsupported, backend = smelt.errors.Unsupported, smelt.errors.BackendError
    unsupported.__bases__ = (*unsupported.__bases__, exc.Unsupported)
    backend.__bases__ = (*backend.__bases__, exc.BackendCompilerFailed)
    for failed in (unsupported, backend):
        if failed.__init__ is not exc.BackendCompilerFailed.__init__:
            continue
        failed.__init__ = smelt.errors.SmeltError.__init__  # type: ignore[method-assign]


# The modules of torch whose calls of torch.compile are the test's.
_FOR_TESTS = ("torch._dynamo.testing", "torch.nn.modules.module", "torch.testing.")


def _compile(model: Any = None, **arguments: Any) -> Any:
    """`torch.compile` by smelt, under Dynamo's settings of this moment; torch's own where torch calls it itself, as
    operators with functions as arguments do in eager code."""
    global uses
    caller = sys._getframe(1)
    while caller.f_back is not None and caller.f_globals is globals():
        caller = caller.f_back
    name = str(caller.f_globals.get("__name__"))
    if name.startswith("torch.") and not name.startswith(_FOR_TESTS):
        with mock.patch.object(torch._dynamo, "optimize", torch._dynamo.eval_frame.optimize):
            return _compile_of_torch(model, **arguments)
    uses += 1
    arguments["backend"] = _backend(arguments.get("backend"))
    arguments.setdefault("recompile_limit", torch._dynamo.config.recompile_limit)
    if model is None:
        return lambda model: _compile(model, **arguments)
    return compile_as_torch(model, **arguments)


_compile.__smelt_disable__ = True  # type: ignore[attr-defined]


def _optimize(
    backend: Any = "inductor",
    *,
    nopython: bool = False,
    dynamic: bool | None = None,
    disable: bool = False,
    **others: Any,
) -> Callable[[Any], Any]:
    return lambda model: _compile(
        model, backend=backend, fullgraph=nopython, dynamic=dynamic, disable=disable
    )


def _optimize_assert(backend: Any, *, dynamic: bool | None = None, **others: Any) -> Callable[[Any], Any]:
    return _optimize(backend, nopython=True, dynamic=dynamic)


_SAME = ("smelt", "eager", "aot_eager")
_NEAREST = {
    "aot_eager_decomp_partition": "aot_eager",
    "aot_eager_default_partitioner": "aot_eager",
    "eager_noexcept": "eager",
    "eager_debug": "eager",
    "pre_dispatch_eager": "eager",
}


def _backend(backend: Any) -> Any:
    """The backend of smelt for one of torch's. A function that only counts calls of Inductor's stands for Inductor."""
    if backend is None or backend == "inductor" or backend is _compile_fx:
        return "smelt"
    if isinstance(backend, str):
        from torch._dynamo.backends.registry import lookup_backend

        name = _NEAREST.get(backend, backend)
        return name if name in _SAME else lookup_backend(backend)
    code = getattr(backend, "__code__", None)
    if code is not None and "compile_fx" in code.co_names and "called" in code.co_freevars:
        backend.__closure__[code.co_freevars.index("called")].cell_contents = True
        return "smelt"
    return backend


def _compile_fx(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """Inductor's entry point, by smelt: compiles a captured graph."""
    return smelt.compile(gm.forward)


def _run_and_get_code(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
    """The result of `fn`, and an empty text in place of Inductor's code, so that a test goes on to compare results."""
    torch._dynamo.reset()
    return fn(*args, **kwargs), [""]


_BELOW_COMPILE = (
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "compiled_function",
    "compiled_module",
    "aot_export_module",
    "aot_export_joint_simple",
    "compile_fx_inner",
)


def _skip_unless_a_backend_calls(name: str) -> None:
    """A test that calls a function of AOTAutograd's or Inductor's by itself compiles nothing with smelt. A backend may call
    it: tests with backends of their own compile with smelt first."""
    import functorch.compile
    from torch._functorch import aot_autograd
    from torch._inductor import compile_fx

    modules = [m for m in (aot_autograd, functorch.compile, compile_fx) if hasattr(m, name)]
    of_torch = getattr(modules[0], name)

    @functools.wraps(of_torch)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not uses:
            raise unittest.SkipTest(f"{name} without smelt")
        return of_torch(*args, **kwargs)

    for module in modules:
        setattr(module, name, checked)


# ------------------------------------------------------------------------------------------------- exceptions


def _tolerate_expected_errors() -> None:
    """A test that expects an exception of the compiler's, or a text of one, holds if smelt raises its own or none."""
    context = unittest.case._AssertRaisesContext  # type: ignore[attr-defined]
    leave = context.__exit__

    @functools.wraps(leave)
    def tolerant(self: Any, kind: Any, error: Any, where: Any) -> bool:
        expected = self.expected if isinstance(self.expected, tuple) else (self.expected,)
        about = any(cls.__module__.startswith(_COMPILERS) for cls in expected)
        raised = kind is not None and kind.__module__.startswith(_COMPILERS)
        if not about and not raised:
            return bool(leave(self, kind, error, where))
        try:
            if leave(self, kind, error, where):
                return True
        except AssertionError:
            pass
        if not about and not issubclass(kind, expected):
            return False
        note_difference(f"expects {', '.join(c.__name__ for c in expected)}")
        self.exception = error if error is not None else expected[0].__new__(expected[0])
        return True

    context.__exit__ = tolerant


def stands_on_internals(error: BaseException, folder: Path) -> bool:
    """Whether the test's own statement about the compiler raised, not what it called."""
    frames = traceback.extract_tb(error.__traceback__)
    at = max((i for i, frame in enumerate(frames) if folder in Path(frame.filename).parents), default=None)
    if at is None:
        return False
    below = frames[at + 1 :]
    checks = all(re.search(r"unittest/|expecttest/|torch/testing/", frame.filename) for frame in below)
    return checks and is_about_the_compiler(frames[at].line or "")


class Warnings(logging.Handler):
    """Collects what smelt reports as its own defects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.bugs: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "bug in smelt" in text:
            self.bugs.append(text.splitlines()[0])
