"""Threads that compile, call, read and write the same small models: no thread sees what capture works with.

SMELT_STRESS_SECONDS sets how long they do (2).
"""

from __future__ import annotations

import gc
import os
import sys
import threading

import pytest
import torch

import smelt
from benchmarks import server
from smelt.capture.environment.mutation_log import MutationLog

SECONDS = float(os.environ.get("SMELT_STRESS_SECONDS", "2"))


def test_a_server() -> None:
    served = server.serve(SECONDS)
    assert not served.wrong, served.wrong[:5]
    assert served.done["compiled_call"]


@pytest.mark.parametrize("kind", server.MODELS)
def test_another_thread_during_capture(kind: type[server.Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks when the trace has made all its changes, and they are still in place."""
    model = kind().eval()
    model(torch.zeros(1, server.SIZE))
    before, limit, found = model.kept(), sys.getrecursionlimit(), []
    effects = MutationLog.effects

    def look() -> None:
        found.append(server.strangers(model))
        found.append([] if torch.equal(model.kept(), before) else ["another tensor"])
        found.append([] if gc.isenabled() and sys.getrecursionlimit() == limit else ["a setting"])

    def effects_and_look(log: MutationLog, *args: object) -> object:
        looking = threading.Thread(target=look)
        looking.start()
        looking.join()
        return effects(log, *args)

    monkeypatch.setattr(MutationLog, "effects", effects_and_look)
    with torch.no_grad():
        smelt.compile(model)(torch.ones(1, server.SIZE))
    assert found
    assert not any(found), found
