"""Storages of the environment: their identity and size are guarded, and nothing else of them is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import entries

WHOLE = torch.arange(12.0)
OTHER = torch.ones(4)


def _is_a_part(x: Any, y: Any) -> Any:
    return x * 2 if x.untyped_storage().nbytes() > x.numel() * x.element_size() else x


def _share(x: Any, y: Any) -> Any:
    return x + y if x.untyped_storage() is y.untyped_storage() else x - y


def _elements(x: Any, y: Any) -> Any:
    return x + len(x.untyped_storage()) // 4 + y.untyped_storage().size()


@pytest.mark.parametrize("f", [_is_a_part, _share, _elements])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"backend": "eager"}])
def test_storages_of_tensors(f: Callable[..., Any], options: Any) -> None:
    compiled = smelt.compile(f, fullgraph=True, **options)
    pairs = [
        (WHOLE[:4], WHOLE[4:8]),
        (OTHER, WHOLE[:4]),
        (OTHER, OTHER),
        (WHOLE[2:6], OTHER),
        (WHOLE[:4], WHOLE[:4]),
    ]
    for x, y in (*pairs, *pairs):
        torch.testing.assert_close(compiled(x, y), f(x, y))
    n = len(entries(compiled))
    compiled(*pairs[0])
    assert len(entries(compiled)) == n


def test_a_storage_that_grows() -> None:
    storage = torch.ones(4).untyped_storage()
    sized = smelt.compile(lambda x: x + storage.size() + len(storage), fullgraph=True)
    assert sized(torch.zeros(())).item() == 32
    storage.resize_(40)
    assert sized(torch.zeros(())).item() == 80


def test_a_storage_that_leaves() -> None:
    y, storage = smelt.compile(lambda x: (x + 1, x.untyped_storage()), fullgraph=True)(WHOLE)
    assert storage is WHOLE.untyped_storage() and torch.equal(y, WHOLE + 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s[0],
        lambda s: s.tolist()[0],
        lambda s: s.clone().size(),
        lambda s: s.data_ptr() % 2,
    ],
)
def test_what_is_refused(read: Callable[[Any], Any]) -> None:
    storage = torch.zeros(2).untyped_storage()
    with pytest.raises(Unsupported):
        smelt.compile(lambda x: x + read(storage), fullgraph=True)(WHOLE)
    with pytest.raises(Unsupported):
        smelt.compile(lambda x: x + (x * 2).untyped_storage().size(), fullgraph=True)(WHOLE)


@pytest.mark.parametrize(
    "is_full",
    [bool, lambda s: bool(s), lambda s: any([s]), lambda s: (s or 0) != 0],
    ids=range(4),  # noqa: F632, SIM208
)
def test_whether_a_storage_is_empty_is_guarded(is_full: Callable[[Any], bool]) -> None:
    def fn(x: Any, storage: Any) -> Any:
        return x + 1 if is_full(storage) else x - 1

    compiled = smelt.compile(fn, backend="eager")
    for n in (0, 3, 0, 5):
        storage = torch.arange(float(n)).untyped_storage()
        assert torch.equal(compiled(WHOLE, storage), fn(WHOLE, storage))


def _freed(x: Any) -> Any:
    y, storage = torch.sin(x + 1), x.untyped_storage()
    storage.resize_(0)
    return torch.cos(y), storage.size(), storage is x.untyped_storage()


def _written_and_grown(x: Any) -> Any:
    x.mul_(2)
    storage = x.untyped_storage()
    before = storage.nbytes()
    return x[1:].sum(), storage.resize_(before * 2) is storage, before, len(storage)


@pytest.mark.parametrize("f", [_freed, _written_and_grown])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"backend": "eager"}])
def test_a_storage_that_is_resized(f: Callable[..., Any], options: Any) -> None:
    compiled = smelt.compile(f, fullgraph=True, **options)
    for _ in range(3):
        mine, theirs = torch.arange(10.0), torch.arange(10.0)
        got, want = compiled(mine), f(theirs)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:]
        assert mine.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
    assert len(entries(compiled)) == 1


def test_a_storage_that_is_resized_and_used() -> None:
    def used(x: Any, y: Any) -> Any:
        x.untyped_storage().resize_(80)
        x.copy_(y)
        return x + 1

    def under_gradients(x: Any, w: Any) -> Any:
        y = (x * w).sum()
        x.untyped_storage().resize_(0)
        return y

    w = torch.ones(10, requires_grad=True)
    for f, other in ((used, torch.arange(10.0)), (under_gradients, w)):
        with pytest.raises(Unsupported):
            smelt.compile(f, fullgraph=True)(torch.ones(10), other)
    x, y = torch.ones(10), torch.arange(10.0)
    x.untyped_storage().resize_(0)
    assert torch.equal(smelt.compile(used)(x, y), y + 1) and torch.equal(x, y)
