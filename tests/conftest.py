"""Shared set-up: deterministic seeds, and timm beside a CPU-only torch (benchmarks/models.py declares what it needs)."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
