"""Programs that need a process of their own.

Such a process is forked from one that has imported torch, which takes two seconds: a server, started with the first program,
that does nothing else. The program sees a process of `python -c`: its arguments, folder, environment and output are its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

# One job a line: the child leaves the loop and is the program; the parent answers with its exit code.
_SERVER = """
import gc, importlib, json, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.collect()
gc.freeze()  # collections in the children, as they import smelt, would look through torch's objects
jobs, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
for line in jobs:
    job = json.loads(line)
    child = os.fork()
    if not child:
        break
    answers.write(json.dumps({"pid": child}) + "\\n")
    answers.flush()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answers.write(json.dumps({"code": code}) + "\\n")
    answers.flush()
else:
    os._exit(0)
jobs.close(), answers.close()
os.setsid()
os.chdir(job["cwd"])
os.environ.clear()
os.environ.update(job["env"])
for number, name in enumerate(job["streams"]):
    stream = os.open(name, os.O_WRONLY if number else os.O_RDONLY)
    os.dup2(stream, number)
    os.close(stream)
sys.argv[1:] = []
exec(compile(job["program"], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
"""


class _Server:
    def __init__(self, imports: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, *imports],
            cwd=ROOT,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lock = threading.Lock()

    def run(self, job: dict[str, Any], timeout: float) -> int:
        """The exit code of the job's process. Raises TimeoutExpired, and ends the process, after `timeout` seconds."""
        jobs, answers = self.process.stdin, self.process.stdout
        assert jobs is not None and answers is not None
        with self.lock:
            jobs.write(json.dumps(job) + "\n")
            jobs.flush()
            child = json.loads(answers.readline())["pid"]
            late = threading.Event()

            def end() -> None:
                late.set()
                os.killpg(child, signal.SIGKILL)

            timer = threading.Timer(timeout, end)
            timer.start()
            code: int = json.loads(answers.readline())["code"]
            timer.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(job["program"], timeout)
        return code

    def end(self) -> None:
        """End the process, which holds some 300 MB."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.lock:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


_SERVERS = 3  # that wait at a time
_servers: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], _Server] = {}  # most recently used last
_lock = threading.Lock()


def _server(imports: tuple[str, ...], env: Mapping[str, str]) -> _Server:
    """The server for these modules and this environment, but for pytest's own variables, which name the test."""
    key = imports, tuple(sorted((k, v) for k, v in env.items() if not k.startswith("PYTEST_")))
    with _lock:
        found = _servers.pop(key, None) or _Server(imports, dict(key[1]))
        _servers[key] = found
        ended = [_servers.pop(k) for k in list(_servers)[:-_SERVERS]]
    for server in ended:
        server.end()
    return found


def start(
    program: str,
    *,
    stdin: str = "",
    cwd: Path | str = ROOT,
    env: Mapping[str, str] | None = None,
    imports: tuple[str, ...] = ("torch",),
    startup: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """The ended process of `program`, with the modules `imports` imported. `startup`: what of the environment is read when
    Python starts or torch is imported; the rest is in `env`."""
    server = _server(imports, os.environ if startup is None else startup)
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        for stream, text in zip(streams, (stdin, "", "")):
            stream.write_text(text)
        job = {
            "program": program,
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "streams": [str(stream) for stream in streams],
        }
        code = server.run(job, timeout)
        return subprocess.CompletedProcess(program, code, streams[1].read_text(), streams[2].read_text())


def run(program: str, env: Mapping[str, str] | None = None) -> object:
    """What `program` prints as JSON, in a process of its own."""
    done = start(program, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
