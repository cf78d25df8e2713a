"""`torch.backends.cuda.SDPAParams` that the program creates, reads, passes to torch and returns."""

from __future__ import annotations

import pytest
import torch
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

import smelt
from smelt.report.inspect import entries

FIELDS = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")


def fields(params: SDPAParams) -> list[object]:
    return [getattr(params, name) for name in FIELDS]


@pytest.mark.parametrize("mask", [None, torch.zeros(5, 5)])
def test_created_parameters_hold_the_tensors_of_the_program(mask: torch.Tensor | None) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, n: float) -> tuple[object, ...]:
        q += 1
        params = SDPAParams(q, k, k * 2, mask, n, True, False)
        return params, {"same": params}, params.query + 1, params.value, isinstance(params, SDPAParams)

    compiled = smelt.compile(fn, fullgraph=True)
    for n in (0.0, 0.25):
        q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
        theirs = q.clone()
        want, got = fn(theirs, k, n), compiled(q, k, n)
        assert type(got[0]) is SDPAParams and got[1]["same"] is got[0] and got[4] is True
        assert got[0].query is q and got[0].key is k and got[0].attn_mask is mask and got[0].value is got[3]
        torch.testing.assert_close((*got[2:4], q), (*want[2:4], theirs))
        assert fields(got[0])[4:] == fields(want[0])[4:] == [n, True, False]


def test_what_torch_decides_by_them() -> None:
    def fn(q: torch.Tensor) -> object:
        params = SDPAParams(q, q, q, None, 0.0, True, False)
        return q * 2, can_use_flash_attention(params), can_use_efficient_attention(params)

    compiled = smelt.compile(fn, fullgraph=True, dynamic=True)
    for length in (4, 6):
        q = torch.randn(1, 2, length, 8)
        assert compiled(q)[1:] == fn(q)[1:]
    assert len(entries(compiled)) == 2  # their C++ code reads sizes
