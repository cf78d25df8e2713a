"""What models of transformers do that stood in the way of one graph, or breaks it, in small.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

import torch

from tests.harness.catalogue import program, tensor


@program(graphs=1, later=1)
def operator_of_plain_numbers_gives_a_size():
    """Longformer, LED: the number of chunks is a tensor of no dimensions."""

    def fn(x, window):
        chunks = torch.div(512, window, rounding_mode="trunc") - 1
        return x.new_zeros((2, chunks + 1, 3)) + x, chunks

    return fn, [(tensor(3), 256), (tensor(1), 256), (tensor(3), 256)]


@program(graphs=1, later=1)
def operator_of_plain_numbers_is_computed_with():
    def fn(x):
        return x * torch.div(5, 2), torch.add(700, 3), torch.mul(2.5, 300)

    return fn, [(tensor(3),), (tensor(3),), (tensor(2, 2),)]


@program(graphs=1, later=1)
def lengths_are_checked():
    """Flaubert: an assertion on the largest length."""

    def fn(lengths, causal):
        positions = torch.arange(4)
        assert lengths.max().item() <= 4
        mask = positions < lengths[:, None]
        return mask, positions[None, None, :] <= positions[None, :, None] if causal else mask

    return fn, [(torch.tensor([2, 4]), True), (torch.tensor([1, 3]), False), (torch.tensor([5, 3]), False)]


@program(graphs=1)
def rows_are_split_by_expert():
    """JetMoE: the number of rows of each expert decides the split."""

    def fn(x, scores, weights):
        best = scores.topk(1, dim=1).indices
        counts = torch.zeros_like(scores).scatter(1, best, 1).long().sum(0).tolist()
        order = best.flatten().sort(dim=0, stable=True).indices
        parts = x[order].split(counts, dim=0)
        rows = torch.cat([part @ weights[i] for i, part in enumerate(parts)])
        return torch.zeros_like(rows).index_add(0, order, rows)

    weights = tensor(3, 4, 4)
    return fn, [(tensor(5, 4), tensor(5, 3), weights) for _ in range(3)]


@program(graphs=1)
def masked_rows_go_another_way():
    """Higgs Audio: rows of one kind are taken out, transformed and put back, layer after layer."""

    def fn(x, mask, layers):
        for layer in layers:
            x = x.masked_scatter(mask.unsqueeze(-1), layer(x[mask]))
            x = x.masked_scatter(~mask.unsqueeze(-1), x[~mask] * 2)
        return x

    layers = [torch.nn.Linear(3, 3) for _ in range(3)]
    return fn, [(tensor(2, 4, 3), tensor(2, 4) > 0, layers) for _ in range(3)]
