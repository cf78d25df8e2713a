"""A faster copy of Triton's own code generator, from a syntax tree to Triton's IR.

It serves products, and kernels that `traced_frontend.py` cannot trace. The generator is pure Python, which one thread
at a time runs, so kernels that compile in parallel wait for it. Half of its time goes to work without use here: a
warning filter for each node of the tree, source locations of operations (cached PTX has none), the signatures of
Triton's functions, computed again for each call, and the text of each function, read back from a file. This module
changes a copy of Triton's module; the program's stays as it is.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import linecache
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

from smelt.codegen.triton.kernel_source import KERNEL, Source

_numbers = itertools.count()


def code_generator(own: ModuleType) -> ModuleType:
    """A copy of `own`, Triton's module `triton.compiler.code_generator`, that produces the same IR faster, without
    locations. Raises AttributeError for an unknown version of it."""
    spec = importlib.util.spec_from_file_location(own.__name__, own.__file__)
    assert spec is not None and spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    generator = copy.CodeGenerator
    for name in ("visit", "generic_visit", "_maybe_set_loc_to_name"):
        getattr(generator, name)
    generator.visit = _visit
    generator._maybe_set_loc_to_name = _clear_location
    copy.inspect = _Inspect()
    copy.ast_to_ttir  # noqa: B018  (what is asked of it)
    return copy


def _visit(self: Any, node: ast.AST | None) -> Any:
    if node is None:
        return None
    outer, self.cur_node = self.cur_node, node
    found = getattr(self, f"visit_{type(node).__name__}", self.generic_visit)(node)
    self.cur_node = outer
    return found


def _clear_location(self: Any, value: object, name: str) -> None:
    return None


class _Inspect:
    """The module `inspect` with cached signatures."""

    def __init__(self) -> None:
        self._of_function = functools.cache(inspect.signature)
        self._of_method = functools.cache(_bound)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def signature(self, function: Callable[..., Any]) -> inspect.Signature:
        """As inspect's, cached by the function of a bound method, which is created at each access."""
        if inspect.isfunction(function):
            return self._of_function(function)
        if inspect.ismethod(function) and inspect.isfunction(function.__func__):
            return self._of_method(function.__func__)
        return inspect.signature(function)


def _bound(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function as a bound method."""
    return inspect.signature(MethodType(function, object()))


def declared(source: Source) -> Any:
    """The `triton.jit` function `kernel` of `source`, for `code_generator` only: Python sees only its parameters, and
    Triton receives its text. Raises AttributeError if Triton's functions do not accept a text."""
    helpers, kernel = source.text.split(KERNEL)
    parameters = kernel.partition("\n")[0]
    function = _defined(f"{KERNEL}{parameters}\n    pass\n", dict(_namespace(helpers)))["kernel"]
    function._unsafe_update_src(f"def kernel({kernel}")
    return function


@functools.lru_cache(256)
def _namespace(helpers: str) -> dict[str, Any]:
    """The definitions in the text before a kernel, cached since many kernels share them."""
    return _defined(helpers, {})


def _defined(text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """`namespace` with the definitions of `text`. Triton reads functions back from their file as it creates them."""
    filename = f"smelt_triton_part_{next(_numbers)}.py"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace["__name__"] = "smelt_triton"
    try:
        exec(compile(text, filename, "exec"), namespace)
    finally:
        linecache.cache.pop(filename, None)
    return namespace
