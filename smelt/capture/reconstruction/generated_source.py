"""Functions that smelt writes as source: compiled frames and chains. Tracebacks show their lines."""

from __future__ import annotations

import itertools
import linecache
import re
import types
import weakref
from typing import cast

_serial = itertools.count()


def identifier(name: str) -> str:
    """`name`, a code object's, as a part of an identifier: any text can be one."""
    return re.sub(r"\W+", "_", name).strip("_")


def compile_source(source: str, name: str, shown: str, scope: dict[str, object]) -> types.FunctionType:
    """The function `name` that `source` defines, with `scope` as its globals. Its file is called `<smelt shown #N>`."""
    filename = f"<smelt {shown} #{next(_serial)}>"
    exec(compile(source, filename, "exec", dont_inherit=True), scope)
    function = cast(types.FunctionType, scope.pop(name))
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(function, linecache.cache.pop, filename, None)
    return function
