"""Philox4x32-10, the random number generator of ATen on CUDA.

A step turns a counter of four 32-bit words and a key of two into four random words, by ten rounds of two products.
ATen takes the key from the generator's seed, the lower half of the counter from its offset (a quarter of it), and the
upper half, the subsequence, from the thread's number.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the words of the key grow by from round to round
WORD = 0xFFFFFFFF


def philox(
    seed: torch.Tensor, counter: torch.Tensor, subsequence: torch.Tensor, lane: torch.Tensor
) -> torch.Tensor:
    """The word `lane` (0 to 3) of a step; int64, arguments that broadcast."""
    c = [counter & WORD, counter >> 32 & WORD, subsequence & WORD, subsequence >> 32 & WORD]
    k = [seed & WORD, seed >> 32 & WORD]
    for _ in range(ROUNDS):
        (high0, low0), (high1, low1) = _product(c[0], MULTIPLIERS[0]), _product(c[2], MULTIPLIERS[1])
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [word + step & WORD for word, step in zip(k, WEYL)]
    words = torch.stack(torch.broadcast_tensors(*c), -1)
    return words.gather(-1, lane.expand(words.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _product(word: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper and the lower word of a product; its 64 bits may wrap to a negative number."""
    product = word * multiplier
    return product >> 32 & WORD, product & WORD
