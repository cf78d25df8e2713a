"""Lines of the user's code."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_OWN = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True)
class Line:
    """The user's source line that caused a node, or that a reason is about."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{file_name(self.filename)}:{self.line} in {self.function}"


def file_name(filename: str) -> str:
    """The name of a file as tracebacks show it: that of a notebook's cell is `Cell In[2]`."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of_cell = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)
    return " ".join(name_of_cell(filename) or (filename,))


def is_own(filename: str) -> bool:
    """Whether a file, or a text that begins with its name, is smelt's own: what calls a module, or steps a generator."""
    return filename.startswith((_OWN, "<smelt "))


def location(filename: str, line: int) -> str:
    """A line in few words: `model.py:12`."""
    return f"{os.path.basename(file_name(filename))}:{line}"


def parameters_called(function: FunctionType) -> tuple[str, ...]:
    """The user's names for the items of `*args` of smelt's own `function`, which passes them to the user's function as
    positional arguments. They end before a name that `function` uses itself. Empty for the user's functions."""
    called, own = getattr(function, "__wrapped__", None), function.__code__
    if not is_own(own.co_filename) or not isinstance(called, FunctionType):
        return ()
    names = called.__code__.co_varnames[own.co_argcount : called.__code__.co_argcount]
    return tuple(itertools.takewhile(lambda name: name not in own.co_varnames, names))


def title_of(name: str, called: Any) -> str:
    """A callable in few words: `Model (model.py:12)`. The line is the first of what a decorator's function wraps, of what an
    object is called by; without one that is the user's there is the name alone. Where a function is defined within another,
    the other is left out."""
    name = name.rpartition("<locals>.")[2]
    function = getattr(called, "__wrapped__", called)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if not isinstance(code, CodeType) or is_own(code.co_filename):
        return name
    return f"{name} ({location(code.co_filename, code.co_firstlineno)})"
