"""The place of this process among several that run one program, such as those that torchrun starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from torch import distributed


class Rank(NamedTuple):
    """The process `number` of `total`, from 0 on. Prints as `rank 1 of 2`."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"rank {self.number} of {self.total}"


def own_rank() -> Rank | None:
    """The rank of this process in torch's default group, or by the variables that torchrun sets; None if it is alone."""
    if distributed.is_available() and distributed.is_initialized():
        rank = Rank(distributed.get_rank(), distributed.get_world_size())
    else:
        number, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        rank = Rank(int(number), int(count)) if number.isdecimal() and count.isdecimal() else Rank(0, 1)
    return rank if rank.total > 1 else None


def is_first() -> bool:
    """Whether this process is rank 0 or alone."""
    rank = own_rank()
    return rank is None or rank.number == 0


def own_path(path: Path) -> Path:
    """`path` for this process: `report.html` of rank 0 and of a process alone, `report.rank1.html` of rank 1."""
    rank = own_rank()
    return path if rank is None or is_first() else path.with_suffix(f".rank{rank.number}{path.suffix}")
