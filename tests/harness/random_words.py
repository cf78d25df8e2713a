"""Philox4x32-10 in numpy's unsigned arithmetic of 64 bits, beside which smelt's is tested."""

from __future__ import annotations

import numpy as np


def reference(seed: int, counter: np.ndarray, subsequence: np.ndarray) -> np.ndarray:
    """The four words of each step."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [counter & mask, counter >> half, subsequence & mask, subsequence >> half]
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(second >> half) ^ c[1] ^ k[0], second & mask, (first >> half) ^ c[3] ^ k[1], first & mask]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return np.stack(c, -1)
