"""GPUs on which calls run eagerly."""

import importlib.util

import pytest
import torch

from smelt.config import Config
from smelt.errors import Unsupported
from smelt.targets import cuda, unusable


@pytest.fixture
def gpu(monkeypatch):
    """One on which everything works, for what `unusable` asks."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return torch.device("cuda", 0)


def test_one_that_works(gpu):
    assert cuda.unusable(gpu) is unusable(gpu) is None


@pytest.mark.parametrize(
    ("where", "name", "value", "why"),
    [
        (torch.cuda, "get_device_capability", lambda device: (7, 5), "compute capability 8.0"),
        (importlib.util, "find_spec", lambda name: None, "Triton is not installed"),
    ],
)
def test_others(gpu, monkeypatch, where, name, value, why):
    monkeypatch.setattr(where, name, value)
    with pytest.raises(Unsupported, match=f"a tensor on cuda:0: .*{why}"):
        cuda.target([gpu], Config())
