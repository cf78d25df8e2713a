"""Tracebacks of interpreted frames, built from frames that never ran, and their reconstruction."""

from __future__ import annotations

import types

from smelt import _native
from smelt.capture.base.vm_frames import is_smelt_scope
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind


def traceback_entry(
    following: types.TracebackType | None,
    code: types.CodeType,
    scope: dict[str, object],
    offset: int,
    line: int | None,
    held: object = None,
) -> types.TracebackType:
    """A traceback that begins in a frame of `code`, at the instruction at byte `offset`, and continues with `following`.
    It keeps `held` alive."""
    if code.co_freevars:  # `f_locals` reads their cells, which a frame that never ran lacks
        code = code.replace(co_freevars=())
    holder = () if held is None else ({"": held},)
    frame = _native.traceback_frame(code, scope, *holder)
    return types.TracebackType(following, frame, offset, line or code.co_firstlineno)


def without_smelt_frames(found: types.TracebackType | None) -> types.TracebackType | None:
    """`found` without its leading frames of smelt."""
    while found is not None and is_smelt_scope(found.tb_frame.f_globals):
        found = found.tb_next
    return found


def _next(at: types.TracebackType) -> types.TracebackType | None:
    return without_smelt_frames(at.tb_next)


def _text(at: types.TracebackType, text: Expressions) -> str:
    frame = at.tb_frame
    code = text.constant(frame.f_code, f"code_of_{frame.f_code.co_name}")
    scope = text.constant(frame.f_globals, "globals")
    return f"traceback_entry({text(_next(at))}, {code}, {scope}, {at.tb_lasti}, {at.tb_lineno})"


TRACEBACKS: dict[type, ReconstructionKind] = {
    types.TracebackType: ReconstructionKind(lambda at: (_next(at),), _text)
}
provide(traceback_entry=traceback_entry)
