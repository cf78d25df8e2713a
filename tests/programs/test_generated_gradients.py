"""200 random programs whose tensors all require gradients: results, errors and gradients are eager's."""

from __future__ import annotations

import pytest
import torch

from tests.harness.generate import Options, Seeded, write_program
from tests.harness.generated import outcome

OPTIONS = Options(grad=True, statements=4)
AT_ONCE = 50


@pytest.mark.parametrize(
    ("backend", "first"),
    [("smelt", k) for k in range(0, 100, AT_ONCE)] + [("aot_eager", k) for k in range(100, 200, AT_ONCE)],
)
def test_gradients_agree_with_eager(backend: str, first: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for seed in range(first, first + AT_ONCE):
            source = write_program(Seeded(seed), OPTIONS)
            problem = outcome(source, OPTIONS, backend)
            assert problem is None, f"seed {seed}: {problem}\n{source}"
    finally:
        torch.set_num_threads(threads)
