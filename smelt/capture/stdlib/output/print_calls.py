"""`print`, and `write`, `writelines` and `flush` of text streams."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, method, unsupported
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.capture.semantics import attributes
from smelt.capture.semantics.values.formatting import convert
from smelt.capture.stdlib.output.deferred_calls import defer, is_trusted_output
from smelt.capture.vm.vm import VM
from smelt.reasons import OUTPUT


@builtin(print)
def _print(vm: VM, args: Args, kwargs: Kwargs) -> None:
    options: dict[str, object] = {"sep": None, "end": None, "file": None, "flush": False, **kwargs}
    if len(options) > 4:
        raise TypeError(f"print() got an unexpected keyword argument {list(options)[4]!r}")
    for name in ("sep", "end"):
        if type(options[name]) not in (type(None), str, TextProxy):
            raise unsupported(f"print with an object as {name}", OUTPUT)
    passed = {k: v for k, v in options.items() if v is not None and k not in ("flush", "sep")}
    if options["file"] is None:
        if _standard_stream(vm, "stdout") is None:
            return
    else:
        _check_stream(vm, options["file"])
    if vm.truth(options["flush"]):
        passed["flush"] = True
    separator: object = " " if options["sep"] is None else options["sep"]
    parts: list[object] = [a if type(a) in (str, TextProxy) else convert(vm, str, a) for a in args]
    if all(type(p) is str for p in (*parts, separator)):
        parts = [cast(str, separator).join(cast("list[str]", parts))]
    if len(parts) > 1 and separator != " ":
        passed["sep"] = separator
    defer(vm, print, *parts, **passed)


def _standard_stream(vm: VM, name: str) -> object:
    """`sys.stdout` or `sys.stderr`, whose class is guarded; None if there is none."""
    if vm.env.log.has_written_name(vars(sys), name):
        raise unsupported(f"sys.{name} was replaced inside the function", OUTPUT)
    stream = attributes.load_attr(vm, sys, name)
    if stream is not None:
        _check_stream(vm, stream)
    return stream


def _check_stream(vm: VM, stream: object) -> None:
    """Raise Unsupported for a stream created by the function or of an unknown class."""
    if not is_trusted_output(stream) or id(stream) not in vm.env.sources:
        raise unsupported(f"writing to a {type(stream).__qualname__}", OUTPUT)


@method(io.IOBase, "write")
def _write(vm: VM, stream: object, text: str | TextProxy) -> int:
    _check_text_stream(vm, stream, [text])
    if isinstance(text, TextProxy):
        raise unsupported("the return value of writing a tensor's text is read", OUTPUT)
    defer(vm, call_method, stream, "write", text)
    return len(text)


@method(io.IOBase, "writelines")
def _write_lines(vm: VM, stream: object, iterable: object) -> None:
    lines = vm.elements(iterable)
    _check_text_stream(vm, stream, lines)
    defer(vm, call_method, stream, "writelines", lines)


@method(io.IOBase, "flush")
def _flush(vm: VM, stream: object) -> None:
    _check_text_stream(vm, stream, ())
    defer(vm, call_method, stream, "flush")


def _check_text_stream(vm: VM, stream: object, lines: Sequence[object]) -> None:
    _check_stream(vm, stream)
    if not isinstance(stream, io.TextIOBase) or not all(type(x) in (str, TextProxy) for x in lines):
        raise unsupported(f"writing bytes to a {type(stream).__qualname__}", OUTPUT)


def call_method(owner: object, name: str, *args: object) -> None:
    """`owner.name(*args)`, as a function for compiled frames."""
    getattr(owner, name)(*args)
