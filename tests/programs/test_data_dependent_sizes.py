"""Programs whose sizes data decide: one graph, and eager's results for all data, none and one selected among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import same
from tests.harness.data_sizes import Make, Ran, run

Mask = Callable[[int], torch.Tensor]


@dataclass(frozen=True)
class Program:
    """`make(mask)` gives the arguments, of masks that `mask(n)` gives. `trains`: also with gradients. `module`: has them.
    `again`: for which data the original function may run."""

    function: Callable[..., Any]
    make: Make
    trains: bool = True
    module: Any = None
    again: str = ""


PROGRAMS: dict[str, Program] = {}


def program(make: Make, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = Program(function, make, **options)
        return function

    return add


def rows(mask: Mask) -> tuple[Any, ...]:
    return torch.randn(12, 8), mask(12)


def tokens(mask: Mask) -> tuple[Any, ...]:
    return torch.randn(3, 4, 8), mask(12).view(3, 4)


def images(mask: Mask) -> tuple[Any, ...]:
    keep = mask(24)
    return torch.where(keep, 1.0, -1.0).view(6, 4) * (1 + torch.rand(6, 4)), torch.randn(6, 4)


def ids(mask: Mask) -> tuple[Any, ...]:
    return torch.where(mask(12), torch.arange(12), 0), torch.randn(12, 8)


# ---- masks


@program(rows)
def sum_of_rows(x, m):
    return x[m].sum(0)


@program(images, again="none one")
def mean_and_spread(x, y):
    chosen = x[x > 0]
    return chosen.mean(), chosen.std(), (y[x > 0] * chosen).sum()


@program(lambda mask: (torch.randn(12, 5), torch.randint(0, 5, (12,)), mask(12)))
def loss_of_labelled(logits, target, m):
    return F.cross_entropy(logits[m], target[m])


@program(images)
def selected(x, y):
    return x.masked_select(x > 0).exp(), torch.masked_select(y, x > 0) * 2


@program(rows, trains=False, again="one")
def written_in_place(x, m):
    x[m] = x[m] * 2 + 1
    return x


@program(rows)
def scattered_back(x, m):
    places = m.nonzero().squeeze(1)
    return torch.zeros_like(x).index_add_(0, places, torch.tanh(x[places]))


@program(images)
def by_places(x, y):
    i, j = torch.where(x > 0)
    return y[i, j] * 2, i * 4 + j


@program(rows)
def both_parts(x, m):
    return torch.cat([x[m] * 2, x[~m] / 2])


@program(images, trains=False)
def centre(x, y):
    return torch.argwhere(x > 0).float().mean(0)


@program(lambda mask: (torch.randn(3, 12, 4), mask(12)))
def columns(x, m):
    return x[:, m].softmax(1)


@program(tokens, again="none")
def packed(x, m):
    return F.layer_norm(x[m], (8,)), x[m].shape[0]


@program(tokens, again="one")
def unpacked(x, m):
    y = torch.zeros_like(x)
    y[m] = F.gelu(x[m])
    return y


@program(rows, again="one")
def distances(x, m):
    chosen = F.normalize(x[m], dim=1)
    return chosen @ chosen.t(), (chosen[:, None] - chosen[None]).abs().sum(-1)


@program(rows, again="none")
def attention_over_chosen(x, m):
    kept = x[m]
    return F.scaled_dot_product_attention(x[None], kept[None], kept[None])


# ---- places and masks, and what is written between


@program(rows)
def places_that_are_written_after(x, m):
    places = m.nonzero()
    y = x[m].sin()
    places.add_(1)
    return y


@program(rows)
def places_that_are_written_before(x, m):
    (places,) = torch.where(m)
    places.zero_()
    return x[m].cos(), places


@program(rows)
def places_of_one_mask_twice(x, m):
    first, second = m.nonzero(), m.nonzero()
    y = x[m] + second
    first.mul_(2)
    return y, first.sum(), second, x[m]


@program(tokens, again="one none all most")
def masks_that_are_computed_again(x, m):
    y = x * 2
    y[~m] += F.gelu(y[~m])
    y[m] += y[m].tanh()
    y[~m] += y[~m].sin()
    return y


@program(lambda mask: (torch.randn(12), mask(12)), trains=False, again="none one all most")
def masks_of_what_is_written(x, m):
    y = torch.where(m, x.abs() + 1, x.abs() - 5)
    first = y[y > 0].sum()
    y.neg_().add_(2)
    return first, y[y > 0] * 2


# ---- mixture of experts


class Experts(nn.Module):
    """Each token goes to its best experts, whose results are added up."""

    def __init__(self, top: int = 1, skips: bool = False) -> None:
        super().__init__()
        self.top, self.skips = top, skips
        self.route = nn.Linear(8, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        weights = (self.route(x) + m[:, None] * torch.tensor([9.0, 0, 0])).softmax(-1)
        best, chosen = weights.topk(self.top, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if self.skips and token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * best[token, slot, None])
        return out


torch.manual_seed(0)
for _name, _module, _again in (
    ("experts", Experts(), ""), ("two_experts", Experts(2), ""),
    ("experts_that_may_be_skipped", Experts(1, True), "none all most"),
):  # fmt: skip
    PROGRAMS[_name] = Program(_module, rows, module=_module, again=_again)


@program(ids)
def sorted_by_expert(expert, x):
    order = (expert % 3).argsort(stable=True)
    counts = torch.bincount(expert % 3, minlength=3)
    return x[order] * 2, counts


@program(lambda mask: (mask(12), torch.randn(12, 8)), again="none one all most")
def pieces_by_counts(m, x):
    count = m.sum()
    first, second = x[m.int().argsort(descending=True)].split([count.item(), 12 - count.item()])
    return first * 2, second.sum(0)


@program(rows, again="none one")
def expert_with_capacity(x, m):
    places = m.nonzero()[:, 0]
    kept = places[: min(places.shape[0], 5)]
    return x.index_select(0, kept) * 3


@program(lambda mask: (torch.randn(12, 8), 1 + mask(12).long()))
def repeated(x, times):
    return x.repeat_interleave(times, 0) * 2


# ---- ragged batches


@program(lambda mask: (torch.randn(24, 8), 2 * mask(4).long() + 2))
def segments(x, lengths):
    which = torch.repeat_interleave(torch.arange(4), lengths)
    return torch.zeros(4, 8).index_add_(0, which, x[: which.shape[0]])


@program(lambda mask: (torch.randn(20, 8), mask(4)))
def split_by_lengths(x, m):
    lengths = torch.where(m, 5, 3)
    parts = x[: int(lengths.sum())].split(lengths.tolist())
    return torch.stack([part.mean(0) for part in parts])


@program(rows, again="none one two most")
def pairs_of_rows(x, m):
    pairs = x[m].view(-1, 2, 8)
    return pairs.sum(1), x[m].cos().reshape(-1, 16).mean(1)


@program(rows, again="none one two all most")
def as_many_rows_as_a_table(x, m):
    return x[m].view(2, 3, 8).exp().sum(0) + x[m].view(6, 8)[1:4]


@program(ids)
def each_once(id, x):
    values, back = torch.unique(id, return_inverse=True)
    return (x[values] * 2)[back], values


@program(ids, trains=False)
def run_lengths(id, x):
    return torch.unique_consecutive(id, return_inverse=True, return_counts=True)


@program(ids, trains=False)
def rows_once(id, x):
    return torch.unique(torch.stack([id, id // 2], 1), dim=0, return_counts=True)


@program(rows, again="none one all most")
def prefix(x, m):
    n = int(m.sum())
    return x[:n].cumsum(0), x[n:] + 1


@program(rows)
def bounded_by_tensors(x, m):
    n = m.sum()
    return x[:n] * 2, n


@program(tokens)
def mean_of_each(x, m):
    flat = x[m]
    which = m.nonzero()[:, 0]
    total = torch.zeros(3, 8).index_add_(0, which, flat)
    return total / m.sum(1, keepdim=True).clamp(min=1)


@program(tokens)
def softmax_of_each(x, m):
    scores = x[m][:, 0]
    which = m.nonzero()[:, 0]
    top = torch.full((3,), -1e9).scatter_reduce(0, which, scores, "amax")
    weights = (scores - top[which]).exp()
    return weights / torch.zeros(3).index_add(0, which, weights)[which]


@program(rows, trains=False)
def positions(x, m):
    n = m.sum().item()
    return torch.arange(n) * 2, torch.zeros(n, 3), torch.ones(2, n).cumsum(1)


# ---- boxes


def boxes(mask: Mask) -> tuple[Any, ...]:
    corner = torch.rand(12, 2) * 10
    return torch.cat([corner, corner + 1 + torch.rand(12, 2) * 5], 1), torch.where(
        mask(12), 0.9, 0.1
    ) + 0.01 * torch.rand(12)


def overlaps(a, b):
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = lambda c: (c[:, 2:] - c[:, :2]).prod(-1)  # noqa: E731
    return shared / (area(a)[:, None] + area(b)[None] - shared)


@program(boxes, trains=False)
def suppressed(b, scores):
    order = scores.argsort(descending=True)
    b, scores = b[order], scores[order]
    worst = overlaps(b, b).triu(1).amax(0)
    keep = worst <= 0.3
    return b[keep], scores[keep]


@program(boxes)
def above_threshold(b, scores):
    keep = scores > 0.5
    return b[keep], scores[keep], keep.nonzero().squeeze(1)


@program(boxes, trains=False, again="none")
def suppressed_above_threshold(b, scores):
    b = b[scores > 0.5]
    keep = overlaps(b, b).triu(1).amax(0) < 0.5
    return b[keep].clamp(0, 8)


@program(boxes, again="one")
def matched(b, scores):
    chosen = b[scores > 0.5]
    best, which = overlaps(chosen, b[:5]).max(1)
    return F.smooth_l1_loss(chosen, b[:5][which]), best


@program(boxes)
def of_each_class(b, scores):
    kind = (scores * 100).long() % 2
    return [(b[kind == k] * 2, scores[kind == k].sum()) for k in range(2)]


# ---- sampling and beams


def logits(mask: Mask) -> tuple[Any, ...]:
    return (torch.where(mask(12), 3.0, -3.0) + 0.1 * torch.randn(12),)


@program(logits, trains=False, again="one two")
def top_p(logits):
    probabilities, order = logits.softmax(-1).sort(descending=True)
    keep = probabilities.cumsum(-1) - probabilities < 0.9
    kept = probabilities[keep]
    return order[keep][torch.multinomial(kept / kept.sum(), 1)]


@program(logits, trains=False)
def top_k_by_mass(logits):
    k = (logits > 0).sum().item()
    values, places = logits.topk(k)
    return values.softmax(-1), places


@program(logits)
def entropy_of_likely(logits):
    p = logits.softmax(-1)
    likely = p[p > 1 / 24]
    return -(likely * likely.log()).sum()


@program(lambda mask: (torch.arange(12), mask(12)), trains=False)
def accepted(draft, m):
    n = m.int().cumprod(0).sum()
    taken = m.sum().item()
    return draft[:taken], n + 1


def beams(mask: Mask) -> tuple[Any, ...]:
    return torch.randint(0, 9, (12, 5)), torch.randn(12), mask(12)


@program(beams)
def alive(words, scores, done):
    going = ~done
    return words[going], scores[going].log_softmax(0)


@program(beams)
def finished(words, scores, done):
    which = done.nonzero()[:, 0]
    length = (words[which] > 2).sum(1)
    return scores[which] / length.clamp(min=1) ** 0.6, words[which]


@program(beams, trains=False)
def reordered(words, scores, done):
    n = (~done).sum().item()
    order = torch.where(done, -1e9, scores).topk(n).indices
    return words.index_select(0, order), n


@program(lambda mask: (torch.randn(12, 8), torch.randn(12, 8), mask(12)), trains=False)
def cache_of_alive(keys, values, m):
    keys.copy_(keys * 2)
    return keys[m], values[m], m.sum()


def check_ran(p: Program, ran: Ran) -> None:
    assert ran.is_one_graph, ran.reasons
    assert set(ran.again) <= set(p.again.split()), ran.again


@pytest.mark.parametrize("name", PROGRAMS)
def test_inference(name: str) -> None:
    p = PROGRAMS[name]
    ran = run(p.function, p.make, gradients=False, module=p.module)
    check_ran(p, ran)


@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if p.trains])
def test_training(name: str) -> None:
    p = PROGRAMS[name]
    ran = run(p.function, p.make, gradients=True, module=p.module)
    check_ran(p, ran)


def test_at_least_40_programs() -> None:
    assert len(PROGRAMS) >= 40


@pytest.mark.parametrize(
    "options", [{"options": {"verify_stages": True}}, {"dynamic": True}], ids=["verify", "dynamic"]
)
def test_other_options(options: dict[str, Any]) -> None:
    for name in ("mean_and_spread", "scattered_back", "each_once", "two_experts", "packed", "prefix"):
        p = PROGRAMS[name]
        for gradients in (False, True):
            smelt.reset()  # equal compilations share their entries
            assert run(p.function, p.make, gradients=gradients, module=p.module, **options).is_one_graph, name


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_that_run_operator_by_operator(backend: str) -> None:
    for name in ("mean_and_spread", "scattered_back", "each_once", "two_experts", "packed", "prefix"):
        p = PROGRAMS[name]
        assert run(p.function, p.make, gradients=False, module=p.module, backend=backend).is_one_graph, name
        run(p.function, p.make, gradients=True, module=p.module, backend=backend)
    p = PROGRAMS["written_in_place"]
    ran = run(p.function, p.make, gradients=False, backend=backend)
    assert ran.is_one_graph == (backend == "aot_eager")  # "eager" writes inputs before all sizes are known


def summed(values: Any) -> Any:
    return sum(map(summed, values)) if isinstance(values, list) else values


def nested_list(x: torch.Tensor) -> Any:
    (first, _), *_ = rows = x.tolist()
    return x * 2, torch.ones(first + 1).sum(), rows


def sum_of_nested_list(x: torch.Tensor) -> Any:
    return x + summed(x.tolist()), len(x.tolist())


@pytest.mark.parametrize("function", [nested_list, sum_of_nested_list])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"backend": "eager"}], ids=str)
def test_lists_of_integers(function: Callable[..., Any], options: dict[str, Any]) -> None:
    compiled = smelt.compile(function, fullgraph=True, **options)
    for shape in ((2, 2), (3, 2), (2, 2, 2), (1, 2, 3), (3, 2)):
        x = torch.randint(2, 9, shape)
        if function is nested_list and len(shape) > 2:
            continue
        got, want = compiled(x), function(x)
        same(got, want)


def test_rows_of_many_groups() -> None:
    def f(x: torch.Tensor, counts: torch.Tensor) -> Any:
        return torch.cat([part.relu() * k for k, part in enumerate(x.split(counts.tolist()))])

    compiled = smelt.compile(f, fullgraph=True, backend="eager")
    x, counts = torch.randn(62, 3), torch.tensor([0, 4, *[2] * 29, 0])
    for shift in range(3):
        same(compiled(x, counts.roll(shift)), f(x, counts.roll(shift)))
    assert len(entries(compiled)) == 1


def test_a_long_list_breaks_the_graph() -> None:
    compiled = smelt.compile(sum_of_nested_list)
    for length in (40, 41):
        x = torch.arange(length)
        same(compiled(x), sum_of_nested_list(x))
    assert [reason.kind.id for reason in reasons(compiled)] == ["data-dependent-value"]
