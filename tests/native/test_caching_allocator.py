"""Large blocks of memory: kept for the next call, with those in use never more than twice what was in use at once."""

import os

import torch

import smelt
from smelt import _native
from tests.harness.processes import start

MIB = 1 << 20


def doubled(n_mib: int) -> torch.Tensor:
    """A result of `n_mib` MiB that a plan allocates."""
    return _doubled(torch.ones(n_mib * MIB // 4))


_doubled = smelt.compile(lambda x: x * 2)


def test_a_block_is_kept_and_used_again() -> None:
    smelt.reset()
    first = doubled(16)
    address = first.data_ptr()
    assert _native.cached_block_bytes() == 0
    del first
    assert _native.cached_block_bytes() == 16 * MIB
    again = doubled(16)
    assert again.data_ptr() == address
    assert _native.cached_block_bytes() == 0
    assert torch.equal(again, torch.full_like(again, 2.0))


_TWICE = """
import torch, smelt
from smelt import _native
MIB = 1 << 20
double = smelt.compile(lambda x: x * 2, options={"recompile_limit": 64})
most = 0
for n in (*range(4, 60, 4), 10, 20, 30, 40, 50):
    most = max(n, most)
    double(torch.ones(n * MIB // 4))
    assert 0 < _native.cached_block_bytes() <= 2 * most * MIB, n
"""


def test_no_more_is_kept_than_twice_what_was_in_use_at_once() -> None:
    """In a process of its own: what other tests hold counts as in use."""
    done = start(_TWICE)
    assert done.returncode == 0, done.stderr


def test_a_block_much_too_large_is_not_taken() -> None:
    smelt.reset()
    held = doubled(32)
    del held
    small = doubled(4)
    assert small.untyped_storage().nbytes() == 4 * MIB
    assert _native.cached_block_bytes() == 32 * MIB


def test_reset_frees_what_is_kept() -> None:
    result = doubled(16)
    del result
    assert _native.cached_block_bytes() > 0
    smelt.reset()
    assert _native.cached_block_bytes() == 0


def test_results_can_be_resized_and_written() -> None:
    result = doubled(16)
    before = _native.cached_block_bytes()
    result.resize_(32 * MIB // 4)
    assert _native.cached_block_bytes() == before + 16 * MIB
    result.fill_(3.0)
    assert torch.equal(doubled(16), torch.full((16 * MIB // 4,), 2.0))


def test_a_fork_has_blocks_of_its_own() -> None:
    result = doubled(16)
    del result
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # OpenMP has no threads here
        good = torch.equal(doubled(16), torch.full((16 * MIB // 4,), 2.0))
        os._exit(0 if good else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
