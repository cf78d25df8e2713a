"""The target that a test is about, where it is about one: the width of vectors, masks, generated products.

Code of either width runs on any x86-64 with AVX2: LLVM cuts a vector that is wider than the host's. Only `scalef`, one
instruction of AVX-512, is the host's own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from smelt.codegen.llvm.host_cpu import LEVELS, Host, host
from smelt.targets import cpu


def of_bits(bits: int, masks: bool) -> Host:
    """This host with vectors of `bits`; itself, if these are its own."""
    own = host()
    same = (own.bits, own.masks) == (bits, masks)
    return own if same else replace(own, bits=bits, masks=masks, scalef=False)


# AVX2 without any other feature of the host, and AVX-512.
NARROW, WIDE = LEVELS["x86-64-v3"], of_bits(512, masks=True)


def generate_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products, convolutions and windows are generated where that was measured to be faster on a Zen 5."""
    monkeypatch.setitem(cpu.PRODUCT_COSTS, host().cpu, cpu.ZEN5)
