"""`logging`: methods of loggers and adapters, and module functions, which log to the root logger."""

from __future__ import annotations

import logging
import operator
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import FUNCTIONS, Args, Handler, Kwargs, function, unsupported
from smelt.capture.base.value_kinds import LEAF_TYPES, instance_dict, is_constant
from smelt.capture.environment import container_contents
from smelt.capture.semantics import attributes
from smelt.capture.semantics.values.formatting import convert
from smelt.capture.stdlib.output.caller_lines import caller_line, line_at
from smelt.capture.stdlib.output.deferred_calls import defer, is_trusted_output
from smelt.capture.vm.vm import VM
from smelt.reasons import OUTPUT

# Methods whose override in a logger class could change what is logged.
_OVERRIDABLE = ("_log", "handle", "makeRecord", "findCaller", "callHandlers", "filter")
# file, line and function, or the number of callers above the compiled frame
_Location = tuple[str, int, str] | int


def _log_handler(level: int | None, exception: bool = False) -> Handler:
    """Handler of a logger method; `level` None: it is the first argument. Disabled levels create no record."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> None:
        logger, *values = args
        record_level = level if level is not None else cast(int, values.pop(0))
        if vm.call(attributes.load_attr(vm, logger, "isEnabledFor"), (record_level,), {}):
            if kwargs.get("exc_info", exception):
                error = unsupported("logging an exception with its traceback", OUTPUT)
                # the traceback of an exception raised during capture differs from eager's
                error.breaks = False
                raise error
            if isinstance(logger, logging.LoggerAdapter):
                _log_adapted(vm, logger, record_level, values, kwargs)
            else:
                _defer_record(vm, cast(logging.Logger, logger), record_level, values, kwargs)

    return handler


def _log_adapted(vm: VM, adapter: object, level: int, args: Args, kwargs: Kwargs) -> None:
    process = attributes.load_attr(vm, adapter, "process")
    processed = vm.call(process, (args[0], dict(kwargs)), {})
    message, kwargs = cast("tuple[object, Kwargs]", processed)
    logger = attributes.load_attr(vm, adapter, "logger")
    if isinstance(logger, logging.LoggerAdapter):
        _log_adapted(vm, logger, level, (message, *args[1:]), kwargs)
    else:
        _defer_record(vm, cast(logging.Logger, logger), level, (message, *args[1:]), kwargs)


def _defer_record(vm: VM, logger: logging.Logger, level: int, args: Args, kwargs: Kwargs) -> None:
    """Defer the creation and handling of a log record."""
    message, *values = args
    kwargs = dict(kwargs)
    extra = cast("Kwargs | None", kwargs.pop("extra", None))
    stack_level = cast(int, kwargs.pop("stacklevel", 1))
    if any(kwargs.values()) or not (set(kwargs) <= {"exc_info", "stack_info"}):
        raise unsupported(f"logging with {', '.join(kwargs)}", OUTPUT)
    _check_logger(vm, logger)
    line = line_at(vm, stack_level, skip=_is_logging_file)
    message, log_args = _message(vm, message, tuple(values))
    location: _Location = line if isinstance(line, int) else (line.filename, line.line, line.function)
    defer(vm, log, logger, level, message, log_args, location, _extra(vm, extra))


def _is_logging_file(filename: str) -> bool:
    return filename == logging._srcfile  # type: ignore[attr-defined]


def _check_logger(vm: VM, logger: logging.Logger) -> None:
    """Guard the handlers that a record reaches. Raises Unsupported if it reaches user code."""
    if id(logger) not in vm.env.sources:
        vm.env.sources.const(logger)
    cls = type(logger)
    if any(vm.type_info(cls).find(n)[2] not in (logging.Logger, logging.Filterer) for n in _OVERRIDABLE):
        raise unsupported(f"logging with a {cls.__qualname__}, which has methods of its own", OUTPUT)
    log = vm.env.log
    at: logging.Logger | None = logger
    while at is not None:
        if at in log or at.handlers in log:
            raise unsupported(f"logging to {at.name}, which was changed inside the function", OUTPUT)
        for handler in vm.elements(_load_guarded(vm, at, "handlers")):
            stream = (instance_dict(handler) or {}).get("stream")
            if (
                not is_trusted_output(handler)
                or (stream is not None and not is_trusted_output(stream))
                or handler in log
            ):
                raise unsupported(f"logging to a {type(handler).__qualname__}", OUTPUT)
        if vm.truth(_load_guarded(vm, at, "filters")):
            raise unsupported(f"logging to {at.name}, which has filters", OUTPUT)
        above = _load_guarded(vm, at, "parent") if _load_guarded(vm, at, "propagate") else None
        at = cast("logging.Logger | None", above)


def _message(vm: VM, message: object, values: tuple[object, ...]) -> tuple[object, tuple[object, ...]]:
    """Message and arguments of a record; the arguments are formatted in their current state."""
    if not values:
        return (message if is_constant(message) else convert(vm, str, message)), ()
    if all(type(v) in LEAF_TYPES for v in values) and type(message) is str:
        try:
            message % (values[0] if len(values) == 1 and isinstance(values[0], dict) else values)
        except Exception as e:  # logging reports the error with its origin
            raise unsupported(f"a log message that does not fit its arguments: {e}", OUTPUT) from None
        return message, values
    named = len(values) == 1 and isinstance(values[0], dict) and values[0]  # as LogRecord does
    try:
        return vm.binary(operator.mod, convert(vm, str, message), named or values), ()
    except (TypeError, ValueError, KeyError, OverflowError) as e:
        raise unsupported(f"a log message that does not fit its arguments: {e}", OUTPUT) from None


def _extra(vm: VM, extra: Kwargs | None) -> Kwargs | None:
    if extra is None:
        return None
    found = dict(cast("Kwargs", container_contents.native_view(vm.env, extra, deep=False)))
    if not all(map(is_constant, found.values())):
        raise unsupported("logging with objects as extra", OUTPUT)
    return found


def log(
    logger: logging.Logger,
    level: int,
    message: object,
    args: tuple[object, ...],
    location: _Location,
    extra: Kwargs | None,
) -> None:
    """`logger.log(level, message, *args)` as if called at `where`."""
    if isinstance(location, int):
        caller = caller_line(location)
        location = (caller.filename, caller.line, caller.function)
    filename, line, function_name = location
    record = logger.makeRecord(
        logger.name, level, filename, line, message, args, None, function_name, extra, None
    )
    logger.handle(record)


def _root_log_handler(level: int | None, exception: bool = False) -> Handler:
    """Handler of a module function of `logging`. Eager installs a handler if there is none, which is refused here."""
    log_to = _log_handler(level, exception)

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> None:
        root = logging.getLogger()
        if not vm.truth(_load_guarded(vm, root, "handlers")):
            raise unsupported("logging to the root logger, which has no handler", OUTPUT)
        log_to(vm, (root, *args), kwargs)

    return handler


def _load_guarded(vm: VM, obj: object, name: str) -> object:
    """An attribute of a logger, guarded."""
    vm.env.sources.find_or_const(obj)
    return attributes.load_attr(vm, obj, name)


@function(logging.Logger.isEnabledFor)
def _is_enabled(vm: VM, args: tuple[logging.Logger, int], kwargs: Kwargs) -> bool:
    """Reads and so guards the inputs of the decision, not the logger's cache, which may be cleared at any time."""
    logger, level = args
    if _load_guarded(vm, logger, "disabled"):
        return False
    if cast(int, _load_guarded(vm, _load_guarded(vm, logger, "manager"), "_disable")) >= level:
        return False
    return bool(level >= cast(int, _effective_level(vm, (logger,), {})))


@function(logging.Logger.getEffectiveLevel)
def _effective_level(vm: VM, args: Args, kwargs: Kwargs) -> object:
    logger: object
    (logger,) = args
    while logger is not None:
        level = _load_guarded(vm, logger, "level")
        if level:
            return level
        logger = _load_guarded(vm, logger, "parent")
    return logging.NOTSET


@function(logging.LoggerAdapter.isEnabledFor)
def _adapter_is_enabled(vm: VM, args: Args, kwargs: Kwargs) -> object:
    inner = attributes.load_attr(vm, args[0], "logger")
    return vm.call(attributes.load_attr(vm, inner, "isEnabledFor"), tuple(args[1:]), {})


for _name, _level in (
    ("debug", logging.DEBUG), ("info", logging.INFO), ("warning", logging.WARNING), ("warn", logging.WARNING),
    ("error", logging.ERROR), ("exception", logging.ERROR), ("critical", logging.CRITICAL), ("log", None),
):  # fmt: skip
    for _owner, _handler in (
        (logging.Logger, _log_handler),
        (logging.LoggerAdapter, _log_handler),
        (logging, _root_log_handler),
    ):
        _logs = getattr(_owner, _name, None)
        if _logs is not None:
            FUNCTIONS[_logs] = _handler(_level, _name == "exception")
