"""Compilation of generated source: compiled frames and continuation stacks. Tracebacks show their lines."""

from __future__ import annotations

import itertools
import linecache
import re
import types
import weakref
from typing import cast

_serial = itertools.count()

# a global of compiled frames, whose `__name__` may be that of the user's module
COMPILED_SCOPE = "__smelt_compiled__"


def identifier(name: str) -> str:
    """`name`, the arbitrary name of a code object, as a part of an identifier."""
    return re.sub(r"\W+", "_", name).strip("_")


def compile_source(source: str, name: str, label: str, scope: dict[str, object]) -> types.FunctionType:
    """The function `name` that `source` defines, with `scope` as its globals. Its file name is `<smelt label #N>`."""
    filename = f"<smelt {label} #{next(_serial)}>"
    exec(compile(source, filename, "exec", dont_inherit=True), scope)
    function = cast(types.FunctionType, scope.pop(name))
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(function, linecache.cache.pop, filename, None)
    return function
