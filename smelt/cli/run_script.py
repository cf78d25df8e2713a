"""Execution of scripts as by `python script.py`: `__main__`, `sys.argv`, `sys.path`, tracebacks and exit status."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType, TracebackType

INTERRUPTED = 130  # what a shell reports of a program that SIGINT ended


class NoScript(Exception):
    """A file that cannot be read; the text names it and says why."""


def run_script(path: str, arguments: Sequence[str]) -> int:
    """Run the file as `__main__`, and return the status that Python would end with. Exceptions are shown as Python
    shows them, without smelt's frames below the script's. Raises NoScript.

    The process stays the script's: nothing is restored, for code that runs at exit or in other threads.
    """
    source = _read(path)
    main = _module("__main__", path)
    sys.modules["__main__"] = main
    sys.argv[:] = [path, *arguments]
    _search_directory_of(path)
    if sys.excepthook.__module__.partition(".")[0] == "typer":
        sys.excepthook = sys.__excepthook__
    try:
        exec(_compiled(source, path), main.__dict__)
    except SystemExit as end:
        return _status(end)
    except BaseException as error:
        return show(error, main)
    return 0


def show(error: BaseException, module: ModuleType) -> int:
    """Show an exception as Python does, from the first frame of the module's code on; return the exit status."""
    error.__traceback__ = _own(error.__traceback__, module)
    sys.excepthook(type(error), error, error.__traceback__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def load(path: str) -> ModuleType:
    """The file as a module other than `__main__`. Raises NoScript, and SystemExit where the file raises: its exception has
    then been shown."""
    source = _read(path)
    module = _module(os.path.splitext(os.path.basename(path))[0], path)
    sys.modules[module.__name__] = module
    _search_directory_of(path)
    try:
        exec(_compiled(source, path), module.__dict__)
    except Exception as error:
        raise SystemExit(show(error, module)) from None
    return module


def _read(path: str) -> bytes:
    try:
        with io.open_code(os.path.abspath(path)) as file:
            return file.read()
    except OSError as error:
        raise NoScript(f"{path}: {error.strerror}") from None


def _compiled(source: bytes, path: str) -> CodeType:
    code: CodeType = compile(source, os.path.abspath(path), "exec", dont_inherit=True)
    return code


def _module(name: str, path: str) -> ModuleType:
    file = os.path.abspath(path)
    module = ModuleType(name)
    module.__dict__.update(
        __file__=file,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader(name, file),
        __cached__=None,
    )
    return module


def _search_directory_of(path: str) -> None:
    """Search modules beside the script instead of in the folder of `smelt` or of the shell."""
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _own(traceback: TracebackType | None, module: ModuleType) -> TracebackType | None:
    """The traceback from the module's first frame on; None if the module did not begin to run."""
    while traceback is not None and traceback.tb_frame.f_globals is not module.__dict__:
        traceback = traceback.tb_next
    return traceback
