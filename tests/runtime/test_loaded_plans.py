"""Plans are counted and their memory is freed while other threads load and free some."""

from __future__ import annotations

import sys
import threading
from typing import Any, cast

import pytest

from smelt import runtime
from tests.harness.threads import in_threads


class Plan:
    """What of a plan is asked."""

    idle_bytes = 8

    def release(self) -> int:
        return 0


def test_threads_load_plans_while_others_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_loaded", type(runtime._loaded)())
    done = threading.Event()
    kept = [runtime.track(cast(Any, Plan())) for _ in range(400)]

    def load() -> None:
        while not done.is_set():
            some = [runtime.track(cast(Any, Plan())) for _ in range(20)]
            del some

    def count() -> None:
        try:
            for _ in range(400):
                assert runtime.held_bytes() >= 8 * len(kept)
                runtime.release_all()
        finally:
            done.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads([load, load, count])
    finally:
        sys.setswitchinterval(before)
    assert runtime.held_bytes() == 8 * len(kept)
