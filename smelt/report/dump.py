"""Artifact files: each compilation writes its artifacts as it produces them, and reads edited ones.

A `Dump` subscribes to compilation events (`events.py`); without one nothing is done or retained. The files of an entry
begin with the function's name and the entry's number among those of functions of that name since the dump began. A
compilation that fails and is retried under other assumptions takes no number.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from smelt import events
from smelt.autograd.partition import Partition
from smelt.capture.driver.cache_entries import Entry
from smelt.capture.emit.compiled_frame import CompiledFrame
from smelt.capture.emit.torch_graph_overrides import editing_programs
from smelt.errors import ArtifactError
from smelt.graph.graph_callable import GraphFunction, moved
from smelt.graph.graph_overrides import Role, editing
from smelt.graph.ir import Graph
from smelt.plan.steps import Plan
from smelt.ranks import own_path
from smelt.report import artifact_text
from smelt.report.artifact_text import Written
from smelt.report.edited_frames import frame_of
from smelt.report.edited_graphs import graph_of, program_of
from smelt.report.edited_joints import joint_of
from smelt.report.edited_sources import is_edited
from smelt.runtime.whole_files import check_writable, write_whole, written_whole
from smelt.schedule.schedule import Schedule
from smelt.schedule.schedule_printer import print_schedule
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.traced import Traced

log = logging.getLogger("smelt")


@dataclass
class _Compilation:
    """State of a compilation in progress: of a frame (`name`), or of a backward."""

    name: str = ""
    any_sizes: bool = False  # sizes or numbers are symbols
    edited: set[str] = field(default_factory=set)  # the roles that edited files replace
    joint: Joint | None = None
    parts: Partition | None = None
    schedules: list[Schedule] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    functions: list[GraphFunction] = field(default_factory=list)


class Dump:
    """Writes files into `directory` if it `writes`, and compiles edited files if it `overrides`.

    `files`: the written files, in order. Thread-safe.
    """

    def __init__(self, directory: Path, writes: bool, overrides: bool) -> None:
        self.directory = directory
        self.writes = writes
        self.overrides = overrides
        self.files: list[Path] = []
        self._counts: dict[str, int] = {}
        self._compilations: dict[int, _Compilation] = {}  # by thread
        self._last: dict[int, Path] = {}  # by thread: the file of its latest frame
        self._joints: list[tuple[Joint, str]] = []  # of entries with a backward: their prefix
        self._bodies: dict[str, tuple[Path, int]] = {}  # by text of a program: its file and first line
        self._lock = threading.RLock()

    def __call__(self, event: events.Event) -> None:
        """Handle an event. Failures to write are logged."""
        handle = _HANDLERS.get(event.kind)
        if handle is None:
            return
        try:
            with self._lock:
                handle(self, event)
        except Exception as error:
            log.warning("smelt: %s: cannot be written: %s: %s", self.directory, type(error).__name__, error)

    # ---- events

    def _begin(self, event: events.Event) -> None:
        self._compilations[threading.get_ident()] = _Compilation(_stem(event.name))

    def _begin_backend(self, event: events.Event) -> None:
        traced = event.data["traced"]
        self._now().any_sizes = bool(traced.sizes or traced.numbers or traced.unbacked is not None)

    def _begin_backward(self, event: events.Event) -> None:
        self._compilations[threading.get_ident()] = _Compilation()

    def _end(self, event: events.Event) -> None:
        self._compilations.pop(threading.get_ident(), None)

    def _now(self) -> _Compilation:
        return self._compilations.setdefault(threading.get_ident(), _Compilation())

    def _cut(self, event: events.Event) -> None:
        now = self._now()
        now.joint, now.parts = event.data["joint"], event.data["parts"]

    def _scheduled(self, event: events.Event) -> None:
        self._now().schedules.append(event.data["schedule"])

    def _planned(self, event: events.Event) -> None:
        self._now().plans.append(event.data["plan"])

    def _as_python(self, event: events.Event) -> None:
        self._now().functions.append(event.data["function"])

    def _stage(self, event: events.Event) -> None:
        """Handle a stage. A plan for other sizes, created by a call, belongs to no compilation."""
        if event.name == "instance" and not self._now().name:
            self._end(event)

    def _installed(self, event: events.Event) -> None:
        now = self._compilations.pop(threading.get_ident(), None)
        if now is None:
            return
        prefix = self._prefix(now.name)
        self._counts[now.name] = self._counts.get(now.name, 0) + 1
        if now.joint is not None:
            self._joints.append((now.joint, prefix))
        self._write_entry(prefix, event.data["entry"], event.data["function"], now)

    def _broke(self, event: events.Event) -> None:
        path = self._last.get(threading.get_ident())
        if path is not None:
            end = artifact_text.comment(f"The graph ends here: {event.data['reason']}")
            write_whole(path, f"{path.read_text(encoding='utf-8')}\n{end}")

    def _backward(self, event: events.Event) -> None:
        now = self._compilations.pop(threading.get_ident(), None)
        prefix = next((p for joint, p in self._joints if joint is event.data["joint"]), None)
        if now is not None and prefix is not None and self.writes:
            self._write_code(f"{prefix}.backward", now)
            self._link_functions(now.functions)

    # ---- files

    def _prefix(self, name: str) -> str:
        return f"{name}.{self._counts.get(name, 0)}"

    def _write_entry(self, prefix: str, entry: Entry, function: FunctionType, now: _Compilation) -> None:
        self._write_frame(prefix, entry, now)
        source = artifact_text.resume_text(function)
        if source is not None:
            self._write_text(f"{prefix}.source.py", source)
        if "torch" in now.edited:
            self._warn_of_others(prefix)
            return
        hints = {sym.name: hint for sym, hint in entry.traced.hints.items()}
        for role, graph, more in _graphs(entry, now):
            if role not in now.edited:
                written, constants = _graph_file(prefix, role, graph, entry.name, hints, more)
                if self._write(f"{prefix}.{role}.py", written) and constants:
                    with written_whole(self.directory / f"{prefix}.{role}.pt") as file:
                        torch.save(constants, file)
        self._write_code(prefix, now)
        self._link_functions(now.functions)

    def _warn_of_others(self, prefix: str) -> None:
        """Warn of edited files that have no effect because the torch-level graph is edited."""
        for role in ("aten", "joint", "forward", "backward"):
            path = (self.directory / f"{prefix}.{role}.py").resolve()
            if path.exists() and is_edited(path, ""):
                log.warning("smelt: %s is edited, but not compiled: %s.torch.py is edited, too", path, prefix)

    def _write_frame(self, prefix: str, entry: Entry, now: _Compilation) -> None:
        self._last.pop(threading.get_ident(), None)
        if "frame" in now.edited:
            return
        path = self._write(f"{prefix}.frame.py", frame := artifact_text.frame_text(entry))
        if path is None:
            return
        self._last[threading.get_ident()] = path
        compiled = entry.callees[0]
        if isinstance(compiled, FunctionType) and compiled.__code__.co_filename.startswith("<smelt "):
            compiled.__code__ = moved(compiled.__code__, str(path), frame.line - 1)

    def _write_code(self, prefix: str, now: _Compilation) -> None:
        if now.schedules:
            self._write_text(f"{prefix}.loops.txt", "\n\n".join(map(print_schedule, now.schedules)) + "\n")
        if now.plans:
            self._write_text(f"{prefix}.plan.txt", artifact_text.plans_text(now.plans))
        for ending, text in artifact_text.sources_text(now.plans).items():
            self._write_text(f"{prefix}.{ending}", text)

    def _write_text(self, name: str, text: str) -> None:
        self._write(name, Written(text, text, 1))

    def _write(self, name: str, written: Written) -> Path | None:
        """Write a file and return it; None if none is to be written, or if an edited file without effect is preserved."""
        path = (self.directory / name).resolve()
        is_python = path.suffix == ".py" and not path.name.endswith((".triton.py", ".source.py"))
        if self.overrides and is_python and path.exists() and is_edited(path, written.text):
            log.warning("smelt: %s is edited, but not compiled: %s", path, _HINT)
            return None
        if not self.writes:
            return None
        write_whole(path, written.text)
        if path not in self.files:
            self.files.append(path)
        if is_python:
            self._bodies[written.body] = path, written.line
        return path

    def _link_functions(self, functions: list[GraphFunction]) -> None:
        """Let debuggers find graphs that run as Python in their files."""
        for function in functions:
            found = self._bodies.get(function.code)
            if found is not None:
                function.stands_in(str(found[0]), found[1])

    # ---- edited graphs and frames

    def edited(self, role: Role, captured: Any) -> Any:
        """What to compile or install for `captured` in this thread's current compilation: `captured` unless its file is
        edited.

        Raises ArtifactError for an edited graph that cannot replace it. Such a frame is logged and preserved.
        """
        if role == "frame":
            return self._edited_frame(captured)
        path = self._edited_file(role, captured.graph if role == "joint" else captured)
        if path is None:
            return captured
        if role == "joint":
            return joint_of(path, captured)
        return graph_of(path, captured, gradients=0 if role == "backward" else None)

    def edited_program(self, traced: Traced) -> FunctionType | None:
        """The edited torch-level graph; None if there is none."""
        path = self._edited_file("torch", traced.torch_graph)
        return None if path is None else program_of(path, traced)

    def _edited_file(self, role: str, graph: Graph) -> Path | None:
        """The file that overrides a graph of this thread's current compilation; None if it is not edited. Raises
        ArtifactError if it cannot."""
        with self._lock:
            now = self._now()
            if not now.name:
                return None
            prefix = self._prefix(now.name)
        path = (self.directory / f"{prefix}.{role}.py").resolve()
        if not path.exists():
            return None
        written, _ = _graph_file(prefix, role, graph, now.name, {}, "")
        if not is_edited(path, written.text):
            return None
        if now.any_sizes and role != "torch":
            raise ArtifactError(
                f"{path} is edited, but the graph is compiled for sizes, or numbers, that change from call to "
                "call: compile with dynamic=False"
            )
        now.edited.add(role)
        log.info("smelt: %s is compiled in place of the captured graph", path)
        return path

    def _edited_frame(self, frame: CompiledFrame) -> CompiledFrame:
        with self._lock:
            now = self._now()
            path = (self.directory / f"{self._prefix(now.name)}.frame.py").resolve()
        try:
            if not now.name or not path.exists() or not is_edited(path, frame.source):
                return frame
            made = frame_of(path, frame)
        except (ArtifactError, OSError) as error:
            log.warning("smelt: %s (%s runs as smelt wrote it)", error, now.name)
            now.edited.add("frame")
            return frame
        now.edited.add("frame")
        log.info("smelt: %s runs in place of the compiled frame", path)
        return made


_HINT = (
    "edit the .torch.py file, or the .aten.py file, or, where gradients are needed, the .joint.py file or the .forward.py "
    "and .backward.py files, or delete this"
)
_HANDLERS: dict[str, Callable[[Dump, events.Event], None]] = {
    "capture-start": Dump._begin,
    "backend-start": Dump._begin_backend,
    "partition": Dump._cut,
    "schedule": Dump._scheduled,
    "plan": Dump._planned,
    "graph-code": Dump._as_python,
    "stage": Dump._stage,
    "entry-installed": Dump._installed,
    "graph-break": Dump._broke,
    "eager-fallback": Dump._end,
    "backward-start": Dump._begin_backward,
    "backward-compiled": Dump._backward,
}


def _stem(name: str) -> str:
    """The base name of the files of a function with this qualified name."""
    last = name.rsplit("<locals>.", 1)[-1]
    return re.sub(r"[^\w.]+", "_", last).strip("_.") or "function"


def _graphs(entry: Entry, now: _Compilation) -> Iterator[tuple[str, Graph, str]]:
    """(role, graph, description) of each graph."""
    traced = entry.traced
    yield "torch", traced.torch_graph, ""
    yield "aten", traced.forward_graph, ""
    joint = now.joint or traced.joint
    if joint is not None:
        yield "joint", joint.graph, ""
    if now.parts is not None:
        yield "forward", now.parts.forward, f"\n\nSaved for the backward:\n{now.parts.describe()}"
        yield "backward", now.parts.backward, ""


_TITLES = {
    "torch": "the calls of the program",
    "aten": "the ATen operators of these calls",
    "joint": "forward and backward as one graph",
    "forward": "the forward: results, then saved values",
    "backward": "the backward: gradients, from saved values and tangents",
}


def _graph_file(
    prefix: str, role: str, graph: Graph, name: str, hints: Mapping[str, int], more: str
) -> tuple[Written, dict[str, torch.Tensor]]:
    """The program of a graph, and the tensors that it reads from a file."""
    title = f"{name}: {_TITLES[role]}.{more}"
    written = artifact_text.graph_text(graph, title, hints, f"{prefix}.{role}.pt")
    return written, artifact_text.constants_of(graph)


# -------------------------------------------------------------------------------------------- what users turn on


@contextmanager
def dumping(directory: str | os.PathLike[str], override: bool = False, writes: bool = True) -> Iterator[Dump]:
    """Write artifacts of compilations within the context; with `override`, compile edited graphs.

    Raises OSError if `directory` cannot be created, or no file in it.
    """
    path = Path(directory)
    if writes:
        path.mkdir(parents=True, exist_ok=True)
        check_writable(path / "file")
    dump = Dump(path, writes, override)
    with ExitStack() as on:
        on.enter_context(events.subscribed(dump))
        if override:
            on.enter_context(editing(dump.edited))
            on.enter_context(editing_programs(dump.edited_program))
        yield dump


_of_environment = ExitStack()  # never closed


def from_environment(environment: Mapping[str, str]) -> None:
    """Enable `SMELT_DUMP` and `SMELT_OVERRIDE` for the process: directories, which may be the same. Of several ranks, each
    writes a directory of its own (`own_path`), and all read the edited files of one."""
    to, by = environment.get("SMELT_DUMP", ""), environment.get("SMELT_OVERRIDE", "")
    written = own_path(Path(to)) if to else None
    if written:
        _of_environment.enter_context(dumping(written, override=bool(by) and Path(by) == written))
    if by and Path(by) != written:
        _of_environment.enter_context(dumping(by, override=True, writes=False))
