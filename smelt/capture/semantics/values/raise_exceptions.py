"""Raising, chaining and matching of exceptions as in CPython (Python/errors.c, Objects/exceptions.c).

The interpreter that runs the VM does not handle the user's exceptions and so sets no `__context__`; `chain` sets it once per
raise, when the raising frame sees the exception.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import function
from smelt.capture.environment import container_contents
from smelt.capture.semantics import result_polyfills
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, Reason

_NOT_EXCEPTIONS = "catching classes that do not inherit from BaseException is not allowed"
_GROUPS = "catching ExceptionGroup with except* is not allowed. Use except instead."


class _Thread(threading.local):
    caller_exception: BaseException | None = None


_thread = _Thread()


@contextmanager
def caller_handling(error: BaseException | None) -> Iterator[None]:
    """Context of a compiled function's call by a caller that is handling `error`."""
    _thread.caller_exception = error
    try:
        yield
    finally:
        _thread.caller_exception = None


def caller_exception() -> BaseException | None:
    """The exception that the caller of the captured function is handling."""
    return _thread.caller_exception


def remove_context(error: BaseException, host: BaseException | None) -> None:
    """Remove `host`, which the interpreter that runs the VM is handling, from the context chain of `error`."""
    for at in contexts(error) if host is not None else ():
        if at.__context__ is host:
            at.__context__ = None


def contexts(error: BaseException) -> Iterator[BaseException]:
    """`error` and its chain of contexts, each once; the program may have created a cycle."""
    at: BaseException | None = error
    visited: set[int] = set()
    while at is not None and id(at) not in visited:
        visited.add(id(at))
        yield at
        at = at.__context__


function(result_polyfills.reraise_error)(lambda vm, args, kwargs: vm.reraise(args[0]))


def chain(error: BaseException, handled: BaseException | None) -> None:
    """Set the context of `error`, raised while `handled` is handled, without creating a cycle."""
    if handled is None or handled is error:
        return
    for at in contexts(handled):
        if at.__context__ is error:
            at.__context__ = None
            break
    error.__context__ = handled


def create_exception(vm: VM, what: object) -> BaseException:
    """The exception raised by `raise what`."""
    if isinstance(what, type) and issubclass(what, BaseException):
        error = vm.call(what, (), {})
        if not isinstance(error, BaseException):
            raise TypeError(
                f"calling {what!r} should have returned an instance of BaseException, not {type(error)!r}"
            )
        return error
    if not isinstance(what, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if id(what) in vm.env.sources:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "an exception of the environment is raised"))
    return what


def set_cause(vm: VM, error: BaseException, cause: object) -> None:
    """`raise error from cause`."""
    if isinstance(cause, type) and issubclass(cause, BaseException):
        cause = vm.call(cause, (), {})
    if cause is not None and not isinstance(cause, BaseException):
        raise TypeError("exception causes must derive from BaseException")
    error.__cause__ = cause


def _is_exception_class(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, BaseException)


def check_classes(classes: object, grouped: bool = False) -> tuple[type, ...]:
    """The classes of an `except` clause (`except*`: grouped) as a tuple. Raises TypeError for other objects."""
    named = classes if isinstance(classes, tuple) else (classes,)
    if not all(map(_is_exception_class, named)):
        raise TypeError(_NOT_EXCEPTIONS)
    if grouped and any(issubclass(cls, BaseExceptionGroup) for cls in named):
        raise TypeError(_GROUPS)
    return named


def matches(error: BaseException, classes: tuple[type, ...]) -> bool:
    """Whether an `except` clause with these classes catches `error`; `__subclasscheck__` is not called."""
    return any(cls in type(error).__mro__ for cls in classes)


def split_group(
    vm: VM, error: BaseException | None, classes: object
) -> tuple[BaseException | None, BaseException | None]:
    """The part of `error` that `except* classes` catches, and the remainder; None for an empty part."""
    named = check_classes(classes, grouped=True)
    if error is None:
        return None, None
    if matches(error, named):
        group = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
        return group, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    container_contents.guard_exception(vm.env, error)
    pair = vm.call_native(error.split, (classes,))
    if not isinstance(pair, tuple) or len(pair) < 2:
        raise TypeError(f"{type(error).__name__}.split must return a tuple, got {type(pair).__name__}")
    return pair[0], pair[1]


def combine_raised(
    vm: VM, original: BaseException, raised: Sequence[BaseException | None]
) -> BaseException | None:
    """The exception raised after the clauses of `try ... except*`; `raised` has what each clause raised or did not catch."""
    # After a graph break the list is an environment object.
    errors = cast("list[BaseException]", [e for e in vm.elements(raised) if e is not None])
    if not errors or not isinstance(original, BaseExceptionGroup):
        return errors[0] if errors else None
    reraised = [e for e in errors if _is_unchanged_part(e, original)]
    new = [e for e in errors if not _is_unchanged_part(e, original)]
    projection = _projection(vm, original, reraised)
    if not new:
        return projection
    return BaseExceptionGroup("", new if projection is None else [*new, projection])


def _is_unchanged_part(error: BaseException, original: BaseException) -> bool:
    """Whether `error` was split off `original` and reraised unchanged."""
    names = ("__traceback__", "__cause__", "__context__")
    return all(getattr(error, n) is getattr(original, n) for n in names)


def _projection(vm: VM, original: BaseExceptionGroup, errors: list[BaseException]) -> BaseException | None:
    """`original` restricted to the exceptions in `parts`."""
    container_contents.guard_exception(vm.env, original)
    kept_ids = {id(leaf) for error_part in errors for leaf in _leaves(error_part)}

    def keep(error: BaseException) -> bool:
        return not isinstance(error, BaseExceptionGroup) and id(error) in kept_ids

    if not kept_ids:
        return None
    return cast("BaseException | None", vm.call_native(original.subgroup, (keep,)))


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
