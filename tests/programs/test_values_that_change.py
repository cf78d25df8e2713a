"""Programs of which some value is another at each call: they are compiled a few times, not again and again.

Each program runs 13 times, eager and compiled, in two worlds that `make` creates, with equal results, effects and random
numbers. `most` is the number of entries that it may need.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import string
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn as rnn_utils

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure, compare, observe, tensors

CALLS = 13
World = tuple[
    Callable[..., Any], Callable[[int], tuple[Any, ...]]
]  # the program, and its arguments by number of the call
ROWS: dict[str, tuple[Callable[[], World], int]] = {}


def program(most: int) -> Callable[[Callable[[], World]], Callable[[], World]]:
    """Register a function that creates a world."""

    def add(make: Callable[[], World]) -> Callable[[], World]:
        ROWS[make.__name__] = make, most
        return make

    return add


def check(make: Callable[[], World], most: int, **options: Any) -> Any:
    (fn, arguments), (own, own_arguments) = make(), make()
    compiled = smelt.compile(own, **options)
    for number in range(CALLS):
        torch.manual_seed(number)
        passed = own_arguments(number)
        torch.manual_seed(number)
        compare_calls(compiled, passed, fn, arguments(number), number)
    found = [e.guards for e in entries(compiled)]
    assert len(found) <= most, "\n\n".join(found)
    check_no_failure(compiled)
    return compiled


def compare_calls(compiled: Any, passed: Any, fn: Any, arguments: Any, seed: int = 0) -> None:
    """Compare results, tensors among the arguments, which may be of classes of two worlds, and random numbers."""
    got, want = observe(compiled, passed, seed), observe(fn, arguments, seed)
    got.arguments, want.arguments = tensors(passed), tensors(arguments)
    compare(got, want)


def tensor() -> torch.Tensor:
    return torch.rand(4, 16) + 0.1


# ---------------------------------------------------------------------------------------------- class attributes


@program(most=1)
def attribute_of_a_metaclass_that_nothing_reads() -> World:
    class Meta(type):
        hits = 0

    class Scale(metaclass=Meta):
        factor = 3.0

    def arguments(number: int) -> tuple[Any, ...]:
        Meta.hits += 1
        return (tensor(),)

    return lambda x: x * Scale.factor, arguments


@program(most=2)
def attribute_of_a_metaclass() -> World:
    class Meta(type):
        factor = 1.0

    class Scale(metaclass=Meta):
        pass

    def arguments(number: int) -> tuple[Any, ...]:
        Meta.factor = number + 0.5
        return (tensor(),)

    return lambda x: x * Scale.factor, arguments


@program(most=2)
def attribute_of_a_base_class_through_an_instance() -> World:
    class Base:
        rate = 1.0

    class Derived(Base):
        bias = 0.5

    held = Derived()

    def arguments(number: int) -> tuple[Any, ...]:
        Base.rate = 0.1 * number
        return (tensor(),)

    return lambda x: x * held.rate + held.bias, arguments


@program(most=1)
def names_added_to_a_base_class() -> World:
    class Base:
        rate = 2.0

    class Derived(Base):
        pass

    def arguments(number: int) -> tuple[Any, ...]:
        setattr(Base, f"extra_{number}", number)
        return (tensor(),)

    return lambda x: x * Derived.rate, arguments


@program(most=3)
def cache_and_hits_of_a_class() -> World:
    class Cached:
        table = None
        hits = 0

        @classmethod
        def scaled(cls, x: torch.Tensor) -> torch.Tensor:
            if cls.table is None:
                cls.table = 3.0
            cls.hits += 1
            return x * cls.table + cls.hits

    return Cached.scaled, lambda number: (tensor(),)


@program(most=2)
def dataclass_that_counts_its_instances() -> World:
    @dataclasses.dataclass
    class Sample:
        made: ClassVar[int] = 0
        value: float = 2.0

        def __post_init__(self) -> None:
            type(self).made += 1

    return lambda x, sample: x * sample.value + Sample(3.0).value, lambda number: (tensor(), Sample())


@program(most=1)
def counters_of_the_classes_of_modules() -> World:
    class Layer(nn.Linear):
        steps = 0

    class Net(nn.Module):
        steps = 0

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Layer(16, 4), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    torch.manual_seed(0)
    net = Net()

    def arguments(number: int) -> tuple[Any, ...]:
        Net.steps += 1
        Layer.steps += 1
        return (tensor(),)

    return net, arguments


@program(most=1)
def slots_properties_and_static_methods_of_a_class_that_counts() -> World:
    class Slotted:
        __slots__ = ("value",)
        made = 0

        def __init__(self) -> None:
            Slotted.made += 1
            self.value = 2.0

        @property
        def double(self) -> float:
            return self.value * 2

        @staticmethod
        def shifted(x: torch.Tensor) -> torch.Tensor:
            return x + 1

    return lambda x, made: made.shifted(x) * made.double, lambda number: (tensor(), Slotted())


# ---------------------------------------------------------------------------------------- packed sequences


def of_lengths(number: int) -> list[int]:
    return [5, 1 + number % 4, 2, 3 + number % 3]


@program(most=1)
def packed_lstm_of_lengths_in_a_tensor() -> World:
    torch.manual_seed(0)
    net, head = nn.LSTM(3, 4, batch_first=True, bidirectional=True), nn.Linear(8, 2)

    def fn(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = rnn_utils.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = net(packed)
        out, lengths = rnn_utils.pad_packed_sequence(out, batch_first=True)
        return head(out).relu(), lengths, h.sum(), c

    return fn, lambda number: (torch.rand(4, 5, 3), torch.tensor(of_lengths(number)))


class Packed(nn.Module):
    """Calls a network inside of another module, where the break has frames above it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def encode(self, packed: rnn_utils.PackedSequence) -> rnn_utils.PackedSequence:
        return self.network(input=packed)[0]

    def forward(self, x: torch.Tensor, lengths: Any) -> Any:
        packed = rnn_utils.pack_padded_sequence(x.sin(), lengths=lengths, enforce_sorted=False)
        out = self.encode(packed)
        return rnn_utils.pad_packed_sequence(out, padding_value=-1.0)[0].cos()


@program(most=1)
def packed_rnn_in_another_module() -> World:
    torch.manual_seed(0)
    return Packed(nn.RNN(3, 4)), lambda number: (torch.rand(5, 4, 3), torch.tensor(of_lengths(number)))


@program(most=1)
def gradients_of_a_packed_gru() -> World:
    torch.manual_seed(0)
    model = Packed(nn.GRU(3, 4, num_layers=2))

    def fn(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        loss = model(x.requires_grad_(), lengths).square().mean()
        return loss, torch.autograd.grad(loss, [x, *model.parameters()])

    return fn, lambda number: (torch.rand(5, 4, 3), torch.tensor(of_lengths(number)))


def lengths_in_a_list(number: int) -> list[int]:
    return [[4, 2 + number % 3, 3][(number + i) % 3] for i in range(3)]


@program(most=3)
def packed_lstm_of_lengths_in_a_list() -> World:
    torch.manual_seed(0)
    net = nn.LSTM(3, 4, batch_first=True)

    def fn(x: torch.Tensor, lengths: list[int]) -> Any:
        packed = rnn_utils.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        return rnn_utils.pad_packed_sequence(net(packed)[0], batch_first=True)[0].relu()

    return fn, lambda number: (torch.rand(3, 5, 3), lengths_in_a_list(number))


@program(most=3)
def packed_gru_of_rows_cut_by_a_comprehension() -> World:
    torch.manual_seed(0)
    net = nn.GRU(3, 4)

    def fn(x: torch.Tensor, lengths: list[int]) -> Any:
        rows = [x[i, :n].sin() for i, n in enumerate(lengths)]
        out, h = net(rnn_utils.pack_sequence(rows, enforce_sorted=False))
        return rnn_utils.pad_packed_sequence(out)[0] * 2, h

    return fn, lambda number: (torch.rand(3, 5, 3), lengths_in_a_list(number))


@program(most=3)
def packed_and_padded_rows_of_which_one_is_a_whole_row() -> World:
    def fn(x: torch.Tensor, lengths: list[int]) -> Any:
        rows = [x[i, :n].sin() for i, n in enumerate(lengths)]
        packed = rnn_utils.pack_sequence(rows, enforce_sorted=False)
        return rnn_utils.pad_sequence(rows, batch_first=True, padding_value=-1.0) * 2, packed.data + 1

    return fn, lambda number: (torch.rand(3, 4, 3), lengths_in_a_list(number))


@program(most=2)
def padded_rows_of_an_argument() -> World:
    def fn(rows: list[torch.Tensor]) -> Any:
        padded = rnn_utils.pad_sequence(rows, padding_side="left")
        rows.append(padded[0] * 2)
        return padded.relu(), rnn_utils.pad_sequence(rows[1:]).exp()

    return fn, lambda number: ([torch.rand(2 + (number * 7 + i * 3) % 11, 3) for i in range(3)],)


@program(most=3)
def rows_cut_in_loops_over_lists_of_numbers() -> World:
    def fn(x: torch.Tensor, lengths: list[int]) -> Any:
        sums = [x[i, :n].sum() for i, n in zip(range(3), lengths)]
        for n in lengths:
            sums.append(x[:, :n].mean())
        return sums, sum(lengths), sorted(lengths)

    return fn, lambda number: (torch.rand(3, 5, 3), lengths_in_a_list(number))


@program(most=4)
def list_of_numbers_that_changes_after_a_loop() -> World:
    def fn(x: torch.Tensor, lengths: list[int]) -> Any:
        found = []
        for i, n in enumerate(lengths):
            found.append(x[i, :n] * 2)
            if i == 1:
                lengths.append(1)
            if i == 2:
                break
        return found, lengths

    return fn, lambda number: (torch.rand(4, 5, 3), lengths_in_a_list(number))


@program(most=1)
def packed_sequence_of_a_wrong_length() -> World:
    torch.manual_seed(0)
    net = nn.GRU(3, 4)

    def fn(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        return net(rnn_utils.pack_padded_sequence(x, lengths, enforce_sorted=False))[1]

    return fn, lambda number: (torch.rand(5, 2, 3), torch.tensor([5, number % 3]))


# ---------------------------------------------------------------------------------------- positions in tensors


@program(most=3)
def index_of_a_list_of_positions() -> World:
    return lambda x, p: x[:, [p, p + 1]] * 2, lambda number: (tensor(), number + 2)


@program(most=3)
def index_of_lists_beside_a_tensor() -> World:
    def fn(x: torch.Tensor, p: int, rows: torch.Tensor) -> torch.Tensor:
        return x[rows, [p, p - 1]] + x[[0, 1], [-p, 3]]

    return fn, lambda number: (tensor(), number + 2, torch.tensor([1, 3]))


@program(most=3)
def index_of_a_list_that_ends_out_of_bounds() -> World:
    return lambda x, p: x[:, [p, 0]].sum(), lambda number: (tensor(), number + 5)


@program(most=3)
def gradient_of_a_list_of_positions() -> World:
    def fn(x: torch.Tensor, p: int) -> Any:
        x.requires_grad_()
        x[:, [p, p + 1]].square().sum().backward()
        return x.grad

    return fn, lambda number: (tensor(), number + 2)


@program(most=5)
def diagonal_to_the_right() -> World:
    def fn(x: torch.Tensor, p: int) -> Any:
        return x.diagonal(offset=p) * 2, torch.diagonal(x[:, :4], p % 3)

    return fn, lambda number: (tensor(), number + 2)


@program(most=4)
def diagonal_below_of_batches() -> World:
    def fn(x: torch.Tensor, p: int) -> Any:
        return x.diagonal(-p, 1, 2).sum(), (x * 2).diagonal(-p, dim1=-1, dim2=0)

    return fn, lambda number: (torch.rand(20, 20, 18), number + 2)


@program(most=4)
def slices_of_an_argument() -> World:
    def fn(x: torch.Tensor, columns: slice, index: tuple[slice, slice]) -> Any:
        return x[:, columns] * 2, columns.start, x[index].sum(), columns, [columns is index[1], index[0].stop]

    return fn, lambda number: (
        tensor(),
        slice(number + 2, -1),
        (slice(None, 3), slice(number // 2 + 2, None, 2)),
    )


@program(most=3)
def all_but_the_last_columns() -> World:
    return lambda x, p: x[:, :-p] * 2, lambda number: (tensor(), number + 1)


# ---------------------------------------------------------------------------------------------------- places


@program(most=3)
def column_that_is_written() -> World:
    def fn(x: torch.Tensor, at: int) -> torch.Tensor:
        cache = torch.zeros(4, 20)
        cache[:, at] = x[:, 0]
        cache[:, at] += 1
        return cache

    return fn, lambda number: (tensor(), number)


@program(most=3)
def column_from_the_end() -> World:
    def fn(x: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        y = x.clone()
        y[:, at["from_end"]] = 2.0
        return y + x[:, at["from_end"], None]

    return fn, lambda number: (tensor(), {"from_end": -number - 1})


@program(most=3)
def place_in_a_dataclass() -> World:
    @dataclasses.dataclass
    class State:
        buffer: torch.Tensor
        at: int = 0

    state = State(torch.zeros(4, 20))

    def fn(x: torch.Tensor) -> torch.Tensor:
        state.buffer[:, state.at] = x[:, 1]
        state.at += 1
        return state.buffer * 2

    return fn, lambda number: (tensor(),)


@program(most=3)
def key_value_cache_of_a_module() -> World:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(4, 32))
            self.at = [0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = self.at[0]
            self.keys[:, at : at + 2] = x[:, :2]
            self.at[0] += 2
            return self.keys.sum(1)

    return Cache(), lambda number: (tensor(),)


@program(most=3)
def window_that_moves() -> World:
    return lambda x, at: x[:, at : at + 3].exp() + x.narrow(1, at, 3), lambda number: (tensor(), number)


@pytest.mark.parametrize(
    "make", [column_that_is_written, column_from_the_end, key_value_cache_of_a_module, window_that_moves]
)
def test_places_with_dynamic_sizes(make: Callable[[], World]) -> None:
    check(make, 4, dynamic=True)


# ------------------------------------------------------------------------------------------------- parameters


def _two(x: torch.Tensor, f: Callable[..., Any], **parameters: Any) -> Any:
    return f(x, x.flip(0), **parameters)


PARAMETERS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "huber": lambda x, v: _two(x, F.huber_loss, delta=v),
    "smooth_l1": lambda x, v: _two(x, F.smooth_l1_loss, beta=v, reduction="none"),
    "margin_ranking": lambda x, v: F.margin_ranking_loss(x, x.flip(1), x.new_ones(4, 16), margin=v),
    "hinge": lambda x, v: F.hinge_embedding_loss(x, (x > 0.5) * 2 - 1, margin=v),
    "cosine_embedding": lambda x, v: F.cosine_embedding_loss(x, x.flip(0), torch.tensor([1, -1, 1, -1]), v),
    "triplet": lambda x, v: F.triplet_margin_loss(x, x.flip(0), x.flip(1), margin=v, eps=v / 100),
    "poisson": lambda x, v: _two(x, F.poisson_nll_loss, log_input=False, eps=v),
    "label_smoothing": lambda x, v: F.cross_entropy(x, torch.tensor([1, -100, 3, 0]), label_smoothing=v),
    "smoothed_probabilities": lambda x, v: F.cross_entropy(
        x, x.softmax(-1), label_smoothing=v, reduction="sum"
    ),
    "layer_norm": lambda x, v: F.layer_norm(x, (16,), x[0], x[1], v),
    "rms_norm": lambda x, v: F.rms_norm(x, (16,), x[0], eps=v),
    "group_norm": lambda x, v: F.group_norm(x, 4, x[0], eps=v),
    "instance_norm": lambda x, v: F.instance_norm(x.view(2, 2, 16), eps=v),
    "batch_norm_eps": lambda x, v: F.batch_norm(x, x[0].detach(), x[1].detach(), eps=v),
    "normalize": lambda x, v: F.normalize(x, eps=v),
    "cosine_similarity": lambda x, v: _two(x, F.cosine_similarity, eps=v),
    "dropout": lambda x, v: F.dropout(x, v) + F.dropout1d(x, v) + F.alpha_dropout(x, v, True),
    "dropout_in_evaluation": lambda x, v: F.dropout(x, v, training=False) * 2,
    "attention": lambda x, v: F.scaled_dot_product_attention(*[x.view(1, 2, 2, 16)] * 3, scale=v),
    "quantile": lambda x, v: (torch.quantile(x, v), x.quantile(v, dim=1), (x / (x > 0.3)).quantile(v, dim=0)),
    "nan_to_num": lambda x, v: (x.log() / (x - x[0])).nan_to_num(v, posinf=v),
    "logit": lambda x, v: x.logit(eps=v / 2),
    "isclose": lambda x, v: torch.isclose(x, x.flip(0), atol=v),
    "pad": lambda x, v: F.pad(x, (1, 2), value=v),
    "drawn": lambda x, v: (x.clone().uniform_(-v, v), x.clone().bernoulli_(v), x.clone().exponential_(v)),
    "normal": lambda x, v: (x.clone().normal_(v, v), torch.normal(0.0, v, (3, 16))),
    "clamped": lambda x, v: x.clamp(-v, v) + F.leaky_relu(x - 0.5, v) + torch.full((4, 16), v),
    "alphas": lambda x, v: torch.add(x, x, alpha=v) + torch.addcmul(x, x, x, value=v) + x.lerp(x[0], v),
}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("grad", [False, True])
def test_parameter(name: str, grad: bool) -> None:
    fn = PARAMETERS[name]

    def differentiated(x: torch.Tensor, v: float) -> Any:
        results = fn(x, v)
        first = results[0] if isinstance(results, tuple) else results
        return (results, *torch.autograd.grad(first.sum(), x)) if first.requires_grad else results

    def make() -> World:
        return lambda x, v: fn(x, v), lambda number: (tensor().requires_grad_(grad), 0.05 + 0.06 * number)

    compiled = check(make, 3)
    if not grad:
        return
    for number in (3, 5):
        x = tensor().requires_grad_()
        torch.manual_seed(1)
        expected = differentiated(x, 0.1 * number)
        torch.manual_seed(1)
        out = compiled(x, 0.1 * number)
        first = out[0] if isinstance(out, tuple) else out
        if first.requires_grad:
            torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], expected[-1], equal_nan=True)


@pytest.mark.parametrize("p", [0.0, 1.0, 0.3])
def test_parameter_at_which_torch_takes_another_path(p: float) -> None:
    def fn(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout(x, p) * 2

    compiled = smelt.compile(fn)
    for now in (0.1, 0.2, p, 0.4):
        x = tensor()
        compare_calls(compiled, (x, now), fn, (x, now))


def test_parameter_that_is_refused() -> None:
    def fn(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout(x, p) * 2

    compiled = smelt.compile(fn)
    x = tensor()
    for p in (0.1, 0.2, 1.5, 0.3):
        compare_calls(compiled, (x, p), fn, (x, p))


@program(most=2)
def momentum_of_a_batch_norm() -> World:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16)

    def arguments(number: int) -> tuple[Any, ...]:
        norm.momentum = 1 / (number + 2)
        return (tensor(),)

    return lambda x: (norm(x), norm.running_mean * 1, norm.running_var * 1), arguments


@program(most=2)
def hand_written_optimizer() -> World:
    @torch.no_grad()
    def step(parameters: list[torch.Tensor], rate: float, decay: float) -> list[torch.Tensor]:
        for p in parameters:
            p.mul_(1 - rate * decay).add_(p.sign(), alpha=-rate)
        return [p * 1 for p in parameters]

    return step, lambda number: ([tensor(), tensor()], 0.1 / (number + 1), 0.01 * (number + 1))


# ------------------------------------------------------------------------------- scalars, strings, functions


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, v: x * v["n"],
        lambda x, v: x.clamp(max=v["n"]) + torch.full((4, 16), v["n"]),
        lambda x, v: (x, torch.tensor(v["n"])),
        lambda x, v: (x + float(v["n"]), v["n"], [v["n"]]),
    ],
)
def test_numpy_scalar(kind: Any, fn: Any) -> None:
    check(lambda: (lambda x, v: fn(x, v), lambda number: (tensor(), {"n": kind(number + 2)})), 2)


def test_arithmetic_of_numpy_scalars() -> None:
    def fn(x: torch.Tensor, step: np.int64, rate: np.float64) -> Any:
        return x * (rate * 2 + 1) / (step + 1) if rate < 100 else x, -rate, step * 3

    check(lambda: (fn, lambda number: (tensor(), np.int64(number), np.float64(number + 0.5))), 2)


@program(most=2)
def strings_that_are_only_stored() -> World:
    log: dict[str, Any] = {}
    lines: list[str] = []

    class Run:
        name = ""

    run = Run()

    def fn(x: torch.Tensor, name: str) -> Any:
        log["last"] = name
        lines.append(f"run {name}: {x.shape[0]}")
        run.name = name
        return x * 2, name, {"name": name + "!"}, isinstance(name, str)

    return fn, lambda number: (tensor(), f"step {number}")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, name: x * len(name),
        lambda x, name: x * 2 if name == "step 3" else x,
        lambda x, name: x * (name in ("step 1", "step 7")),
        lambda x, name: x * int(name[-1]),
        lambda x, name: (x, {name: 1}, name.upper()),
        lambda x, name: (x, id(name) == id(name), name is name),
    ],
)
def test_strings_that_are_read_are_guarded(fn: Any) -> None:
    """Such a function may be compiled for each string; its results are eager's."""
    compiled = smelt.compile(lambda x, name: fn(x, name))
    for number in range(CALLS):
        x = tensor()
        compare_calls(compiled, (x, f"step {number}"), fn, (x, f"step {number}"))


@program(most=2)
def functions_made_anew() -> World:
    class Holder:
        act: Any = None

    holder, table = Holder(), {"act": None}

    def arguments(number: int) -> tuple[Any, ...]:
        holder.act = lambda x: x + 1
        table["act"] = lambda x: x * 3
        return (tensor(),)

    return lambda x: holder.act(x) * table["act"](x), arguments


@program(most=2)
def function_in_a_cell_with_a_closure_made_anew() -> World:
    act: Any = None

    def make(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x * by

    def arguments(number: int) -> tuple[Any, ...]:
        nonlocal act
        act = make(2.0)
        return (tensor(),)

    return lambda x: act(x) + 1, arguments


@program(most=2)
def partials_made_anew_with_a_number_that_changes() -> World:
    def scaled(x: torch.Tensor, by: float, shift: float) -> torch.Tensor:
        return x * by + shift

    def arguments(number: int) -> tuple[Any, ...]:
        return (
            tensor(),
            functools.partial(scaled, by=number + 0.5),
            functools.partial(torch.mul, other=number + 0.5),
        )

    return lambda x, f, g: f(x, shift=1.0) + g(x), arguments


@pytest.mark.parametrize(
    "function", [rnn_utils.pad_sequence, lambda rows: rnn_utils.pack_sequence(rows).data]
)
def test_one_graph_of_rows_has_their_lengths(function: Any) -> None:
    compiled = smelt.compile(lambda rows: function(rows) * 2, fullgraph=True)
    for number in range(4):
        rows = [torch.rand(9 - number, 3), torch.rand(3, 3)]
        assert torch.equal(compiled(rows), function(rows) * 2)


@pytest.mark.parametrize("name", list(ROWS))
def test_values_that_change(name: str) -> None:
    make, most = ROWS[name]
    check(make, most)


# ---------------------------------------------------------------------------------- what still is compiled again


def test_a_method_that_is_replaced_at_each_call_is_reported_once() -> None:
    class Box:
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x

    box = Box()
    compiled = smelt.compile(lambda x: box.scaled(x))
    for number in range(CALLS):
        Box.scaled = lambda self, x, by=number: x * by  # type: ignore[method-assign]
        assert torch.equal(compiled(torch.ones(3)), torch.ones(3) * number)
    (reason,) = reasons(compiled)
    assert reason.kind.id == "recompile-limit" and "Box.scaled" in str(reason)


@pytest.fixture
def shadowed() -> Iterator[tuple[Any, Any, Any]]:
    class Base:
        value = 1.0

    class Derived(Base):
        pass

    held = Derived()
    compiled = smelt.compile(lambda x: x * held.value)
    assert compiled(torch.ones(2))[0] == 1
    Derived.unrelated = 3  # from now on attributes are compared
    assert compiled(torch.ones(2))[0] == 1 and len(entries(compiled)) == 1
    yield compiled, Base, Derived


@pytest.mark.parametrize(
    "value, expected",
    [(5.0, 5), (property(lambda self: 7.0), 7), (property(lambda self: self.unrelated), 3)],
)
def test_an_attribute_that_shadows_another(shadowed: Any, value: Any, expected: float) -> None:
    compiled, base, derived = shadowed
    for _ in range(2):
        derived.value = value
        assert compiled(torch.ones(2))[0] == expected
        del derived.value
        assert compiled(torch.ones(2))[0] == 1
    base.value = 2.0
    assert compiled(torch.ones(2))[0] == 2


def test_special_methods_and_bases_that_change(shadowed: Any) -> None:
    compiled, base, derived = shadowed
    derived.__getattribute__ = lambda self, name: 9.0
    assert compiled(torch.ones(2))[0] == 9
    del derived.__getattribute__
    assert compiled(torch.ones(2))[0] == 1
    derived.__bases__ = (type("Other", (), {"value": 4.0}),)
    assert compiled(torch.ones(2))[0] == 4


@pytest.mark.parametrize("loss, name", [(F.huber_loss, "delta"), (F.smooth_l1_loss, "beta")])
def test_losses_of_infinite_errors_have_the_gradients_of_eager(loss, name):
    def f(x, y, number):
        return loss(x, y, **{name: number})

    compiled = smelt.compile(f)
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.4, -3.0], requires_grad=True)
    for number in (0.3, 0.5, 0.7, 0.9):
        want, got = (torch.autograd.grad(g(x, torch.zeros(5), number), x)[0] for g in (f, compiled))
        torch.testing.assert_close(got, want, equal_nan=True)


@dataclasses.dataclass
class Texts:
    """Objects that hold a text: native code that is given one reads the text itself."""

    text: str

    def __post_init__(self) -> None:
        self.items, self.entries = [self.text], {"k": self.text}
        self.queue = collections.deque(self.items)
        self.error, self.nested = RuntimeError(self.text), ValueError(((self.text,), 1), [self.text])
        self.template = string.Template(f"$x {self.text}")


READERS: dict[str, Callable[[Texts], object]] = {
    "text of an error": lambda t: f"{t.error} {t.error!r}",
    "text of a nested error": lambda t: str(t.nested),
    "text of containers": lambda t: f"{t.items} {t.entries} {t.queue}",
    "join": lambda t: ",".join(t.items),
    "membership": lambda t: "1" in t.items,
    "equality": lambda t: (t.items == ["1"], t.entries == {"k": "1"}),
    "order": lambda t: sorted(t.items),
    "set": lambda t: set(t.items),
    "copies": lambda t: (t.items + ["z"], list(t.queue), copy.copy(t.items), copy.deepcopy(t.entries)),
    "map": lambda t: list(map(str.upper, t.items)),
    "template": lambda t: t.template.substitute(x=1),
}


NUMBER_READERS: dict[str, Callable[[list[Any]], object]] = {
    "text": str,
    "equality": lambda items: items == [np.float64(1)],
    "order": lambda items: (sorted(items), max(items)),
    "text of an error": lambda items: str(RuntimeError(*items)),
    "count": lambda items: items.count(1),
}


@pytest.mark.parametrize("name", NUMBER_READERS)
def test_numpy_scalars_that_native_code_reads(name: str) -> None:
    read = NUMBER_READERS[name]
    compiled = smelt.compile(lambda x, items: (x * 2, read(items)))
    for number in (0, 1, 2, 1, 0, 33):
        assert compiled(torch.ones(2), [np.float64(number)])[1] == read([np.float64(number)])
    check_no_failure(compiled)


@pytest.mark.parametrize("name", READERS)
def test_texts_that_native_code_reads(name: str) -> None:
    read = READERS[name]
    compiled = smelt.compile(lambda x, texts: (x * 2, read(texts)))
    for text in ("0", "1", "2", "1", "0", "33"):
        assert compiled(torch.ones(2), Texts(text))[1] == read(Texts(text))
    check_no_failure(compiled)


@pytest.mark.filterwarnings("ignore:dropout2d")
def test_dropout2d_of_three_dimensions_has_a_batch() -> None:
    """The other dropouts of channels take an input with a dimension less as one without a batch."""

    def fn(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout2d(x, p)

    compiled = smelt.compile(fn)
    for p in (0.2, 0.5, 0.3):
        torch.manual_seed(1)
        expected = fn(torch.ones(3, 4, 5), p)
        torch.manual_seed(1)
        assert torch.equal(compiled(torch.ones(3, 4, 5), p), expected)
