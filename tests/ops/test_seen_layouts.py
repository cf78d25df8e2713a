"""How results lie on a GPU, told from one call beside what is said of a CPU."""

import torch

from smelt.ops.layouts.observed_layouts import compared

meta = torch.device("meta")


def empty(*shape, dtype=torch.float32, order=None):
    order = order or tuple(range(len(shape)))
    return torch.empty_permuted(shape, order, dtype=dtype, device=meta)


def test_order_dtype_and_fixed_sizes_are_those_of_the_gpu():
    last = (0, 2, 3, 1)
    found = empty(2, 3, 4, 5), empty(3), empty(2, 3)
    said = empty(2, 3, 4, 5, order=last), empty(0), empty(2, 3, dtype=torch.bfloat16)
    seen = compared(found, said, {3})
    image, saved, statistics = seen.of(
        (empty(7, 3, 8, 9, order=last), empty(0), empty(7, 3, dtype=torch.bfloat16))
    )
    assert (image.shape, image.stride()) == ((7, 3, 8, 9), empty(7, 3, 8, 9).stride())
    assert saved.shape == (3,)
    assert (statistics.shape, statistics.dtype) == ((7, 3), torch.float32)


def test_what_one_call_does_not_tell():
    assert compared(empty(4), empty(0), {3}) is None  # 4 may be another number next time
    gaps = torch.empty_strided((2, 3), (8, 1), device=meta)
    assert compared(gaps, empty(2, 3), set()) is None
