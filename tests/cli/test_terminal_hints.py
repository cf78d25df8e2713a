"""What smelt says unasked on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

BREAKS = """
import torch, smelt
def inner(x):
    smelt.graph_break()
    return x + 1
@smelt.compile
def f(x, n):
    y = inner(x) * 2
    for _ in range(n):
        smelt.graph_break()
        y = y.sin()
    return y
@smelt.compile
def raises(x):
    raise ValueError(x.shape)
try:
    raises(torch.ones(2))
except ValueError:
    print("before", flush=True)
f(torch.ones(2), 1)
print("between", flush=True)
f(torch.ones(2), 2)
f(torch.ones(2, 2), 1)
print("after", flush=True)
"""

LONG = """
import time, torch, smelt
from smelt import terminal_hints
terminal_hints.LONG = terminal_hints._INTERVAL = 0.05
def backend(gm, inputs):
    time.sleep(0.4)
    return gm.forward
@smelt.compile(backend=backend)
def slow(x):
    return x + 1
slow(torch.ones(2))
print("done", flush=True)
"""

FAILS = """
import time, torch, smelt
from smelt import terminal_hints
terminal_hints.LONG = terminal_hints._INTERVAL = 0.05
graphs = []
def backend(gm, inputs):
    graphs.append(gm)
    if len(graphs) == 2:
        time.sleep(0.4)
        raise RuntimeError("no device")
    return gm.forward
@smelt.compile(backend=backend)
def f(x):
    y = x + 1
    smelt.graph_break()
    return y * 2
f(torch.ones(2))
"""


def on_terminal(tmp_path: Path, program: str, **env: str) -> str:
    """What a script shows on a terminal: stdout and stderr."""
    script = tmp_path / "script.py"
    script.write_text(program)
    terminal, other_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, script.name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        stdout=other_end,
        stderr=other_end,
    ) as process:
        os.close(other_end)
        shown = b""
        while True:
            try:
                read = os.read(terminal, 4096)
            except OSError:  # the process has ended
                break
            if not read:
                break
            shown += read
    os.close(terminal)
    assert process.returncode == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


def test_graph_breaks_are_one_line_after_the_first_call_with_any(tmp_path):
    before, rest = on_terminal(tmp_path, BREAKS).split("before\n")
    between, after = rest.split("between\n")
    assert "graph break" not in before
    (line,) = between.splitlines()
    assert line.startswith("smelt: 2 graph breaks; `smelt explain script.py` says where and why")
    assert after == "after\n"


def test_the_line_names_the_rank(tmp_path):
    shown = on_terminal(tmp_path, BREAKS, RANK="1", WORLD_SIZE="4")
    line = "smelt: rank 1 of 4: 2 graph breaks; `torchrun ... -m smelt explain script.py` says where and why"
    assert line in shown


@pytest.mark.parametrize("how", ("variable", "no terminal"))
def test_nothing_is_said_where_it_is_not_wanted(tmp_path, how):
    if how == "variable":
        shown = on_terminal(tmp_path, BREAKS, SMELT_HINTS="0")
    else:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", BREAKS], env=env, capture_output=True, text=True, timeout=120
        )
        shown = done.stdout + done.stderr
    assert shown == "before\nbetween\nafter\n"


def test_long_compilations_show_their_progress(tmp_path):
    shown = on_terminal(tmp_path, LONG)
    assert "\rsmelt: compiling slow, 0 s" in shown
    assert shown.endswith("\rdone\n")  # the line has been cleared


def test_a_fallback_is_counted_and_its_message_replaces_the_progress(tmp_path):
    *_, message, line = on_terminal(tmp_path, FAILS).removesuffix("\n").split("\n")
    assert line.split("\r")[-1].startswith("smelt: 1 graph break, 1 fallback; ")
    progress, text = message.split("\r")[-2:]
    assert progress.startswith("smelt: compiling") and text.startswith("smelt: resume_in_f_at_")
