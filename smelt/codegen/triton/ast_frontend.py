"""Triton's own code generator, from a syntax tree to Triton's form, without what no kernel of smelt's needs.

For products, and for what cannot be executed (`traced_frontend.py`). All of it is Python, which one thread at a time
runs: where many kernels are compiled side by side, it is what they wait for. Half of its time goes to what is thrown
away: a warning filter for each node of the tree, where each operation stands in the text (PTX is kept without that),
the signatures of Triton's functions, again for each call, and the text of each function, read back from a file. A copy
of its module is changed here; the module that the program uses stays as it is.
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
    """A copy of `own`, Triton's module `triton.compiler.code_generator`, that gives the same form sooner, without places.
    Raises AttributeError where that is another than is known."""
    spec = importlib.util.spec_from_file_location(own.__name__, own.__file__)
    assert spec is not None and spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    generator = copy.CodeGenerator
    for name in ("visit", "generic_visit", "_maybe_set_loc_to_name"):
        getattr(generator, name)
    generator.visit = _visit
    generator._maybe_set_loc_to_name = _set_no_place
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


def _set_no_place(self: Any, value: object, name: str) -> None:
    return None


class _Inspect:
    """The module `inspect`, which remembers the signatures of functions."""

    def __init__(self) -> None:
        self._of_function = functools.cache(inspect.signature)
        self._of_method = functools.cache(_bound)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def signature(self, function: Callable[..., Any]) -> inspect.Signature:
        """As inspect's. Methods are made anew each time, and hold their objects: their functions' are remembered."""
        if inspect.isfunction(function):
            return self._of_function(function)
        if inspect.ismethod(function) and inspect.isfunction(function.__func__):
            return self._of_method(function.__func__)
        return inspect.signature(function)


def _bound(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function as the method of some object."""
    return inspect.signature(MethodType(function, object()))


def declared(source: Source) -> Any:
    """The `triton.jit` function `kernel` of `source`, for `code_generator` alone: Python knows nothing but its parameters,
    and its text is given to Triton as it is. Raises AttributeError where Triton's functions do not take a text."""
    helpers, kernel = source.text.split(KERNEL)
    parameters = kernel.partition("\n")[0]
    function = _defined(f"{KERNEL}{parameters}\n    pass\n", dict(_namespace(helpers)))["kernel"]
    function._unsafe_update_src(f"def kernel({kernel}")
    return function


@functools.lru_cache(256)
def _namespace(helpers: str) -> dict[str, Any]:
    """What the text above a kernel defines, which is the same for many."""
    return _defined(helpers, {})


def _defined(text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """`namespace` with what `text` defines. Triton reads functions back from their file as it makes them."""
    filename = f"smelt_triton_part_{next(_numbers)}.py"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace["__name__"] = "smelt_triton"
    try:
        exec(compile(text, filename, "exec"), namespace)
    finally:
        linecache.cache.pop(filename, None)
    return namespace
