"""The servers that fork the programs of tests: one for all tests of an environment, and few."""

import os

import pytest

from tests.harness import processes

PARENT = "import os; print(os.getppid())"


def test_tests_share_a_server(monkeypatch: pytest.MonkeyPatch):
    parents = set()
    for name in ("one", "another"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", name)
        parents.add(processes.start(PARENT, imports=("json",)).stdout)
    assert len(parents) == 1


def test_few_servers_wait():
    def parent(number: int) -> int:
        env = {**os.environ, "SMELT_OF_A_TEST": str(number)}
        return int(processes.start(PARENT, imports=("json",), startup=env).stdout)

    first, *others = (parent(number) for number in range(processes._SERVERS + 2))
    assert len({first, *others}) == processes._SERVERS + 2
    assert len(processes._servers) == processes._SERVERS
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert parent(0) not in (first, *others[-processes._SERVERS + 1 :])
