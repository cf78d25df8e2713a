"""Output of the captured function: what it prints, logs and warns of is deferred to the compiled frame, in program order.

Capture itself writes nothing. A handler works out what eager would write (text of known objects is made at once, text of
tensors by the compiled frame, see `texts`), and adds a `Call` to the effects. What decided that something is written, and
where to, is guarded; streams and log handlers of classes that smelt does not know are refused, for they could change what
the function sees later on.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

from torch import nn

from smelt.capture.base.handlers import FUNCTIONS, Handler, builtin, function, method, unsupported
from smelt.capture.base.values import LEAF_TYPES, instance_dict, is_constant
from smelt.capture.breaks import chains
from smelt.capture.breaks.chains import CHAIN_MODULE
from smelt.capture.machine.vm import VM
from smelt.capture.outside import contents
from smelt.capture.outside.effects import Call
from smelt.capture.protocol import attributes
from smelt.capture.protocol.formatting import convert
from smelt.capture.standins.texts import Text
from smelt.reasons import OUTPUT

# Packages whose streams and log handlers keep what is written to themselves.
_KNOWN_PACKAGES = frozenset(
    {
        "_io",
        "io",
        "codecs",
        "logging",
        "_pytest",
        "pytest",
        "ipykernel",
        "IPython",
        "colorama",
        "tqdm",
        "rich",
        "smelt",
    }
)


def _is_known(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _KNOWN_PACKAGES


def defer(vm: VM, fn: Any, *args: Any, **kwargs: Any) -> None:
    """`fn(*args, **kwargs)` is to be called by the compiled frame."""
    vm.outside.origins.const(fn)
    vm.outside.log.call(Call(fn, args + tuple(kwargs.values()), tuple(kwargs)))


# ---------------------------------------------------------------------------------------------------- printing


@builtin(print)
def _print(vm: VM, args: Any, kwargs: Any) -> None:
    options = {"sep": None, "end": None, "file": None, "flush": False, **kwargs}
    if len(options) > 4:
        raise TypeError(f"print() got an unexpected keyword argument {list(options)[4]!r}")
    for name in ("sep", "end"):
        if type(options[name]) not in (type(None), str, Text):
            raise unsupported(f"print with an object as {name}", OUTPUT)
    given = {k: v for k, v in options.items() if v is not None and k not in ("flush", "sep")}
    if options["file"] is None:
        if _standard_stream(vm, "stdout") is None:
            return
    else:
        _check_stream(vm, options["file"])
    if vm.truth(options["flush"]):
        given["flush"] = True
    separator = " " if options["sep"] is None else options["sep"]
    parts = [a if type(a) in (str, Text) else convert(vm, str, a) for a in args]
    if all(type(p) is str for p in (*parts, separator)):
        parts = [separator.join(cast(list[str], parts))]
    if len(parts) > 1 and separator != " ":
        given["sep"] = separator
    defer(vm, print, *parts, **given)


def _standard_stream(vm: VM, name: str) -> Any:
    """sys.stdout or sys.stderr, whose class is guarded."""
    if vm.outside.log.touches(vars(sys), name):
        raise unsupported(f"sys.{name} was replaced inside the function", OUTPUT)
    stream = attributes.load_attr(vm, sys, name)
    if stream is not None:
        _check_stream(vm, stream)
    return stream


def _check_stream(vm: VM, stream: Any) -> None:
    if not _is_known(stream) or id(stream) not in vm.outside.origins:
        raise unsupported(f"writing to a {type(stream).__qualname__}", OUTPUT)


@method(io.IOBase, "write")
def _write(vm: VM, stream: Any, text: Any) -> int:
    _check_text_stream(vm, stream, [text])
    if type(text) is Text:
        raise unsupported("how much of a tensor's text was written is asked", OUTPUT)
    defer(vm, call_method, stream, "write", text)
    return len(text)


@method(io.IOBase, "writelines")
def _write_lines(vm: VM, stream: Any, lines: Any) -> None:
    lines = vm.elements(lines)
    _check_text_stream(vm, stream, lines)
    defer(vm, call_method, stream, "writelines", lines)


@method(io.IOBase, "flush")
def _flush(vm: VM, stream: Any) -> None:
    _check_text_stream(vm, stream, ())
    defer(vm, call_method, stream, "flush")


def _check_text_stream(vm: VM, stream: Any, lines: Sequence[Any]) -> None:
    _check_stream(vm, stream)
    if not isinstance(stream, io.TextIOBase) or not all(type(x) in (str, Text) for x in lines):
        raise unsupported(f"writing bytes to a {type(stream).__qualname__}", OUTPUT)


def call_method(owner: Any, name: str, *args: Any) -> None:
    getattr(owner, name)(*args)


# ------------------------------------------------------------------------------------------------------ places


@dataclass(frozen=True)
class Place:
    """A line of the user's, as warnings and logs name it."""

    filename: str
    line: int
    function: str
    globals: dict[str, Any]


@functools.cache
def _module_frames() -> tuple[Place, Place]:
    """The two frames of torch between the caller of a module and its `forward`, which the VM leaves out."""

    class Probe(nn.Module):
        def forward(self) -> tuple[Place, Place]:
            inner = sys._getframe(1)
            assert inner.f_back is not None
            return _place_of(inner), _place_of(inner.f_back)

    found: tuple[Place, Place] = Probe()()
    return found


def _place_of(frame: FrameType) -> Place:
    code = frame.f_code
    return Place(code.co_filename, frame.f_lineno, code.co_name, frame.f_globals)


def place_at(vm: VM, level: int, skip: Callable[[str], bool] = lambda filename: False) -> Place | int:
    """The place `level - 1` callers up, as `stacklevel` counts; a number where that is above the captured frame: how many
    callers of the compiled frame up."""
    frame = vm.frame
    while frame is not None:
        for place in _places(vm, frame):
            if not skip(place.filename):
                level -= 1
            if level <= 0:
                return place
        frame = frame.parent
    return level


def _places(vm: VM, frame: Any) -> Iterator[Place]:
    """The places that eager has for a frame of the VM: more where it stands for several, none where it is smelt's own."""
    name = frame.globals.get("__name__")
    if name == CHAIN_MODULE:
        for point in chains.callers(frame):
            line = vm.decode(point.source).line(point.at - 1)
            yield Place(line.filename, line.line, point.source.co_name, point.scope)
    elif name != "smelt.api":
        original = frame.code.original
        source = frame.function.__code__ if original is None else original.source
        yield Place(frame.line.filename, frame.line.line, source.co_name, frame.globals)
        if any(f is frame.parent for f in vm.frames.module_callers):
            yield from _module_frames()


def _caller(level: int) -> Place:
    """The place `level` callers above the compiled frame, not counting frames of smelt; the outermost if there are fewer."""
    frame: FrameType | None = sys._getframe(1)
    found = _place_of(sys._getframe(1))
    while frame is not None and level > 0:
        if not str(frame.f_globals.get("__name__", "")).startswith(("smelt.", CHAIN_MODULE)):
            level -= 1
            found = _place_of(frame)
        frame = frame.f_back
    return found


# ---------------------------------------------------------------------------------------------------- warnings


@builtin(warnings.warn)
@function(warnings.warn)
def _warn(vm: VM, args: Any, kwargs: Any) -> None:
    call = inspect.signature(_warn_signature).bind(*args, **kwargs)
    call.apply_defaults()
    message, category, level = call.args[:3]
    if call.arguments["source"] is not None or call.kwargs.get("skip_file_prefixes"):
        raise unsupported("warnings.warn with a source or skipped prefixes", OUTPUT)
    if isinstance(message, Warning):
        category = type(message)
    elif type(message) not in (str, Text):
        raise unsupported(f"a {type(message).__qualname__} as a warning's message", OUTPUT)
    category = UserWarning if category is None else category
    if not (isinstance(category, type) and issubclass(category, Warning)):
        raise TypeError(f"category must be a Warning subclass, not {type(category).__name__!r}")
    place = place_at(vm, level)
    action = _warning_action(vm, message, category, place)
    if action == "error":
        raise unsupported("a warning that is an error", OUTPUT)
    if action == "ignore":
        return
    if any(isinstance(manager, warnings.catch_warnings) for manager, _ in vm.contexts.entered):
        raise unsupported("a warning inside catch_warnings", OUTPUT)
    if isinstance(place, int):
        defer(vm, warn_caller, message, category, place)
    else:
        vm.outside.origins.const(place.globals)
        defer(vm, warn, message, category, place.filename, place.line, place.globals)


def _warn_signature(
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    source: Any = None,
    *,
    skip_file_prefixes: Any = (),
) -> None: ...


def _warning_action(vm: VM, message: Any, category: type, place: Place | int) -> str:
    """What the filters, which are guarded, say; they must not depend on text or a place that is known only later."""
    filters: Any = attributes.load_attr(vm, warnings, "filters")
    origin = vm.outside.origins.known(filters)
    vm.outside.facts.guard("len", origin, len(filters))
    for i, entry in enumerate(filters):
        vm.outside.facts.guard("id", origin.child("item", i), entry)
    text = message if type(message) in (str, Text) else convert(vm, str, message)
    for action, pattern, kind, module, line in filters:
        if not issubclass(category, kind):
            continue
        if (pattern is not None and type(text) is Text) or ((module or line) and isinstance(place, int)):
            raise unsupported("a warning whose filter is not known", OUTPUT)
        if pattern is not None and not pattern.match(text):
            continue
        if isinstance(place, int) or _matches(place, module, line):
            return str(action)
    return "default"


def _matches(place: Place, module: Any, line: int) -> bool:
    name = place.globals.get("__name__") or "<string>"
    return (module is None or module.match(name)) and line in (0, place.line)


def warn(message: Any, category: type[Warning], filename: str, line: int, namespace: dict[str, Any]) -> None:
    """`warnings.warn` as if called from there."""
    registry = namespace.setdefault("__warningregistry__", {})
    name = namespace.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, line, module=name, registry=registry)


def warn_caller(message: Any, category: type[Warning], level: int) -> None:
    place = _caller(level)
    warn(message, category, place.filename, place.line, place.globals)


# -------------------------------------------------------------------------------------------------------- logs

_OWN = ("_log", "handle", "makeRecord", "findCaller", "callHandlers", "filter")


def _log(level: int | None, exception: bool = False) -> Handler:
    """Methods of loggers: what is not enabled does nothing."""

    def handler(vm: VM, args: Any, kwargs: Any) -> None:
        logger, *rest = args
        wanted = level if level is not None else rest.pop(0)
        if vm.call(attributes.load_attr(vm, logger, "isEnabledFor"), (wanted,), {}):
            if kwargs.get("exc_info", exception):
                error = unsupported("logging an exception with its traceback", OUTPUT)
                error.breaks = (
                    False  # the traceback of an exception that was raised in capture is not eager's
                )
                raise error
            if isinstance(logger, logging.LoggerAdapter):
                _log_adapted(vm, logger, wanted, rest, kwargs)
            else:
                _record(vm, logger, wanted, rest, kwargs)

    return handler


def _log_adapted(vm: VM, adapter: Any, level: int, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    process = attributes.load_attr(vm, adapter, "process")
    told = vm.call(process, (args[0], dict(kwargs)), {})
    message, kwargs = cast(tuple[Any, dict[str, Any]], told)
    logger = attributes.load_attr(vm, adapter, "logger")
    if isinstance(logger, logging.LoggerAdapter):
        _log_adapted(vm, logger, level, (message, *args[1:]), kwargs)
    else:
        _record(vm, logger, level, (message, *args[1:]), kwargs)


def _record(vm: VM, logger: Any, level: int, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Defers the making and handling of a log record."""
    message, *values = args
    kwargs = dict(kwargs)
    extra = kwargs.pop("extra", None)
    stack_level = kwargs.pop("stacklevel", 1)
    if any(kwargs.values()) or not (set(kwargs) <= {"exc_info", "stack_info"}):
        raise unsupported(f"logging with {', '.join(kwargs)}", OUTPUT)
    _check_logger(vm, logger)
    place = place_at(vm, stack_level, skip=_is_logging_file)
    message, rest = _message(vm, message, tuple(values))
    where: Any = place if isinstance(place, int) else (place.filename, place.line, place.function)
    defer(vm, log, logger, level, message, rest, where, _extra(vm, extra))


def _is_logging_file(filename: str) -> bool:
    return filename == logging._srcfile  # type: ignore[attr-defined]


def _check_logger(vm: VM, logger: Any) -> None:
    """Guards whom a record reaches. Raises Unsupported where that is code of the user's."""
    if id(logger) not in vm.outside.origins:
        vm.outside.origins.const(logger)
    cls = type(logger)
    if any(vm.type_info(cls).find(n)[2] not in (logging.Logger, logging.Filterer) for n in _OWN):
        raise unsupported(f"logging with a {cls.__qualname__}, which has methods of its own", OUTPUT)
    log = vm.outside.log
    while logger is not None:
        if logger in log or logger.handlers in log:
            raise unsupported(f"logging to {logger.name}, which was changed inside the function", OUTPUT)
        for handler in vm.elements(_state(vm, logger, "handlers")):
            stream = (instance_dict(handler) or {}).get("stream")
            if not _is_known(handler) or (stream is not None and not _is_known(stream)) or handler in log:
                raise unsupported(f"logging to a {type(handler).__qualname__}", OUTPUT)
        if vm.truth(_state(vm, logger, "filters")):
            raise unsupported(f"logging to {logger.name}, which has filters", OUTPUT)
        logger = _state(vm, logger, "parent") if _state(vm, logger, "propagate") else None


def _message(vm: VM, message: Any, values: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Message and arguments of a record, whose text is that of now."""
    if not values:
        return (message if is_constant(message) else convert(vm, str, message)), ()
    if all(type(v) in LEAF_TYPES for v in values) and type(message) is str:
        try:
            message % (values[0] if len(values) == 1 and isinstance(values[0], dict) else values)
        except Exception as e:  # logging reports that, and where it came from
            raise unsupported(f"a log message that does not fit its arguments: {e}", OUTPUT) from None
        return message, values
    named = len(values) == 1 and isinstance(values[0], dict) and values[0]  # as LogRecord does
    try:
        return vm.binary(operator.mod, convert(vm, str, message), named or values), ()
    except (TypeError, ValueError, KeyError, OverflowError) as e:
        raise unsupported(f"a log message that does not fit its arguments: {e}", OUTPUT) from None


def _extra(vm: VM, extra: Any) -> Any:
    if extra is None:
        return None
    found = dict(contents.view(vm.outside, extra, deep=False))
    if not all(map(is_constant, found.values())):
        raise unsupported("logging with objects as extra", OUTPUT)
    return found


def log(logger: Any, level: int, message: Any, args: Any, where: Any, extra: Any) -> None:
    """`logger.log` as if called from there."""
    if isinstance(where, int):
        place = _caller(where)
        where = (place.filename, place.line, place.function)
    filename, line, function_name = where
    record = logger.makeRecord(
        logger.name, level, filename, line, message, args, None, function_name, extra, None
    )
    logger.handle(record)


def _log_to_root(level: int | None, exception: bool = False) -> Handler:
    """The functions of module logging; they make a handler where there is none."""
    log_to = _log(level, exception)

    def handler(vm: VM, args: Any, kwargs: Any) -> None:
        root = logging.getLogger()
        if not vm.truth(_state(vm, root, "handlers")):
            raise unsupported("logging to the root logger, which has no handler", OUTPUT)
        log_to(vm, (root, *args), kwargs)

    return handler


def _state(vm: VM, obj: Any, name: str) -> Any:
    vm.outside.origins.known(obj)
    return attributes.load_attr(vm, obj, name)


@function(logging.Logger.isEnabledFor)
def _is_enabled(vm: VM, args: Any, kwargs: Any) -> bool:
    """Reads, and so guards, what the answer follows from; the logger's own cache may be stale or cleared at any time."""
    logger, level = args
    if _state(vm, logger, "disabled"):
        return False
    if _state(vm, _state(vm, logger, "manager"), "_disable") >= level:
        return False
    return bool(level >= _effective_level(vm, (logger,), {}))


@function(logging.Logger.getEffectiveLevel)
def _effective_level(vm: VM, args: Any, kwargs: Any) -> Any:
    (logger,) = args
    while logger is not None:
        level = _state(vm, logger, "level")
        if level:
            return level
        logger = _state(vm, logger, "parent")
    return logging.NOTSET


@function(logging.LoggerAdapter.isEnabledFor)
def _adapter_is_enabled(vm: VM, args: Any, kwargs: Any) -> Any:
    inner = attributes.load_attr(vm, args[0], "logger")
    return vm.call(attributes.load_attr(vm, inner, "isEnabledFor"), tuple(args[1:]), {})


for _name, _level in (
    ("debug", logging.DEBUG), ("info", logging.INFO), ("warning", logging.WARNING), ("warn", logging.WARNING),
    ("error", logging.ERROR), ("exception", logging.ERROR), ("critical", logging.CRITICAL), ("log", None),
):  # fmt: skip
    for _owner, _handler in ((logging.Logger, _log), (logging.LoggerAdapter, _log), (logging, _log_to_root)):
        _logs = getattr(_owner, _name, None)
        if _logs is not None:
            FUNCTIONS[_logs] = _handler(_level, _name == "exception")
