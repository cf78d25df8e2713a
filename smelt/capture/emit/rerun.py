"""A graph that raises: the call is made again by the original function, for its exception and the effects before it.

The compiled frame runs all tensor operations first and then the stores. Where an operator raises (an index out of range),
eager would have done the stores that come before it, and gone to the handler around it. A graph that only gives results
leaves nothing behind when it raises, so the call can start again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import CodeType

from smelt.capture.protocol.binding import VARARGS, VARKEYWORDS
from smelt.graph.ir import Graph
from smelt.graph.passes import has_effect

log = logging.getLogger("smelt")


def is_repeatable(graph: Graph) -> bool:
    """Whether a graph that raises has changed nothing: no operator in it has an effect."""
    return not any(has_effect(node) for node in graph.nodes)


def rerun(original: Callable[..., object], failure: Exception, *args: object, **kwargs: object) -> object:
    """Calls `original` for the exception that eager raises, after the graph has raised `failure`. If it does not raise, the
    graph was wrong, and a warning says so."""
    result = original(*args, **kwargs)
    log.warning(
        "smelt: the graph of %s raised %r, the function itself did not", original.__qualname__, failure
    )
    return result


def rerun_for_handler(
    original: Callable[..., object], failure: Exception, *args: object, **kwargs: object
) -> object:
    """Calls `original`, which has handlers, and so may handle what the graph has raised."""
    return original(*args, **kwargs)


def guarded_call(call: Sequence[str], code: CodeType, slots: Sequence[str], original: str) -> list[str]:
    """The lines of `call`, and of what happens when they raise."""
    return [
        "failure = None",
        "try:",
        *(f"    {line}" for line in call),
        "except Exception as error:",
        "    failure = error",
        "if failure is not None:",
        f"    return rerun({', '.join((original, 'failure', *_arguments(code, slots)))})",
    ]


def _arguments(code: CodeType, slots: Sequence[str]) -> list[str]:
    """A call with what is in a frame's argument slots: positional, keyword-only, *args, **kwargs."""
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    rest = list(slots[named:])
    positional = [*slots[:count], *([f"*{rest.pop(0)}"] if code.co_flags & VARARGS else [])]
    keywords = [f"{name}={slot}" for name, slot in zip(code.co_varnames[count:named], slots[count:named])]
    return [*positional, *keywords, *([f"**{rest.pop(0)}"] if code.co_flags & VARKEYWORDS else [])]
