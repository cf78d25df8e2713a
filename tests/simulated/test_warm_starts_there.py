"""Stored entries of the simulated device that another process cannot use: other GPUs, kernels that the driver refuses."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

import smelt
from smelt import _native, config
from smelt.plan.serialization import packed
from smelt.plan.value_encoding import decode, encoded
from smelt.report import inspect
from smelt.warm import entry_store, find_entry

pytestmark = pytest.mark.simulated_cuda


@pytest.fixture(autouse=True)
def warm() -> Iterator[None]:
    entry_store.forget()
    with config.set(warm_start=True, kernel_cache=False), torch.no_grad():
        yield
    entry_store.forget()


def program() -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2 + 1

    return f


def captures(x: torch.Tensor, **options: object) -> int:
    """The number of entries that a new compiled function makes, rather than finds, for a call. Checks the result."""
    compiled = smelt.compile(program(), **options)
    torch.testing.assert_close(compiled(x), program()(x))
    return len(inspect.entries(compiled))


def test_only_the_same_gpu_finds_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, device="cuda")
    assert [captures(x), captures(x)] == [1, 0]
    known = find_entry.identity
    monkeypatch.setattr(find_entry, "identity", lambda device: (*known(device)[:-1], "another cuDNN"))
    assert captures(x) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_that_the_driver_refuses_are_a_miss_with_one_warning(
    dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(6, device="cuda")
    captures(x, dynamic=dynamic)
    (key,) = entry_store.known()
    [(digest, stored)] = entry_store.entries_under(key, (), config.defaults())
    libraries = decode(_native.unpacked(stored.plans[0].libraries), {})
    bad = tuple((tuple(b"no image" for _ in images), names, end) for images, names, end in libraries)
    entry_store.drop(key, digest, config.defaults())
    plan = replace(stored.plans[0], libraries=packed(encoded(bad)))
    entry_store.keep(key, replace(stored, plans=(plan,)).to_bytes(), config.defaults())
    with caplog.at_level(logging.WARNING, "smelt"):
        captures(x, dynamic=dynamic)
    assert [("loading the kernel" in r.getMessage()) for r in caplog.records] == [True]
