"""A process whose entries are stored in memory alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from smelt import config
from smelt.warm import entry_store


@pytest.fixture
def warm() -> Iterator[None]:
    entry_store.forget()
    with config.set(warm_start=True, kernel_cache=False), torch.no_grad():
        yield
    entry_store.forget()
