"""Tracebacks: of what the VM interpreted, made of frames that never ran; and how compiled frames make them anew."""

from __future__ import annotations

import types

from smelt import _native
from smelt.capture.base.vm_frames import is_smelts
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, Kind


def entry(
    rest: types.TracebackType | None,
    code: types.CodeType,
    scope: dict[str, object],
    offset: int,
    line: int | None,
) -> types.TracebackType:
    """A traceback that begins in a call of `code`, at the instruction at byte `offset`, and goes on with `rest`."""
    if code.co_freevars:  # `f_locals` reads their cells, which a frame that never ran does not have
        code = code.replace(co_freevars=())
    return types.TracebackType(
        rest, _native.traceback_frame(code, scope), offset, line or code.co_firstlineno
    )


def users_part(found: types.TracebackType | None) -> types.TracebackType | None:
    """`found` without the frames of smelt that it begins with."""
    while found is not None and is_smelts(found.tb_frame.f_globals):
        found = found.tb_next
    return found


def _next(at: types.TracebackType) -> types.TracebackType | None:
    return users_part(at.tb_next)


def _text(at: types.TracebackType, text: Expressions) -> str:
    frame = at.tb_frame
    code = text.constant(frame.f_code, f"code_of_{frame.f_code.co_name}")
    scope = text.constant(frame.f_globals, "globals")
    return f"traceback_entry({text(_next(at))}, {code}, {scope}, {at.tb_lasti}, {at.tb_lineno})"


TRACEBACKS: dict[type, Kind] = {types.TracebackType: Kind(lambda at: (_next(at),), _text)}
provide(traceback_entry=entry)
