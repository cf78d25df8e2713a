"""Higher-order operators that torch compiles even in eager mode: flex attention and functional control flow."""

import math

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import smelt
from smelt.report.inspect import graph_count, reasons
from tests.harness.agreement import same

torch.manual_seed(0)
Q, K, V = (torch.randn(2, 2, 16, 8) for _ in range(3))
SLOPES, BIAS = torch.tensor([0.5, 0.25]), torch.randn(2, 16, 16)
ROWS, COLUMNS = torch.arange(16)[:, None], torch.arange(16)[None]
CAUSAL = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)


def distance(score, b, h, i, j):
    return score + (i - j) * 0.1


def slopes(score, b, h, i, j):
    return score + SLOPES[h] * (j - i)


def bias(score, b, h, i, j):
    return score + BIAS[h, i, j]


def attention(change=lambda s: s, mask=None, scale=8**-0.5):
    """Attention by its formula."""
    scores = change(Q @ K.transpose(-2, -1) * scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ V


FLEX = {
    "plain": ({}, lambda: attention()),
    "a function of positions": (
        {"score_mod": distance},
        lambda: attention(lambda s: s + (ROWS - COLUMNS) * 0.1),
    ),
    "a tensor by head": (
        {"score_mod": slopes},
        lambda: attention(lambda s: s + SLOPES[:, None, None] * (COLUMNS - ROWS)),
    ),
    "a tensor by head and position": ({"score_mod": bias}, lambda: attention(lambda s: s + BIAS)),
    "a block mask": ({"block_mask": CAUSAL}, lambda: attention(mask=ROWS >= COLUMNS)),
    "both": (
        {"block_mask": CAUSAL, "score_mod": distance, "scale": 0.3},
        lambda: attention(lambda s: s + (ROWS - COLUMNS) * 0.1, ROWS >= COLUMNS, 0.3),
    ),
}


@pytest.mark.parametrize("name", FLEX)
def test_flex_attention_equals_its_formula(name):
    options, formula = FLEX[name]
    compiled = smelt.compile(lambda q, k, v: flex_attention(q, k, v, **options) * 2)
    for _ in range(2):
        torch.testing.assert_close(compiled(Q, K, V), formula() * 2)
    assert graph_count(compiled) == 1 and not reasons(compiled)


def test_flex_attention_raises_as_in_eager():
    for arguments in ((Q, K[:, :1], V[:, :1]), (Q.clone().requires_grad_(), K, V)):
        with pytest.raises((ValueError, NotImplementedError)) as eager:
            flex_attention(*arguments)
        with pytest.raises(type(eager.value)) as found:
            smelt.compile(lambda *a: flex_attention(*a))(*arguments)
        assert str(found.value) == str(eager.value)


def test_flex_attention_with_a_learned_bias():
    learned = nn.Parameter(torch.zeros(2, 16, 16))
    compiled = smelt.compile(
        lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + learned[h, i, j])
    )
    out = compiled(Q, K, V)
    assert graph_count(compiled) == 1 and not reasons(compiled)
    (found,) = torch.autograd.grad(out.square().sum(), learned)
    plain = torch.zeros(2, 16, 16, requires_grad=True)
    (expected,) = torch.autograd.grad(attention(lambda s: s + plain).square().sum(), plain)
    torch.testing.assert_close(found, expected)


WEIGHT = torch.randn(3, 3)
STEPS = torch.tensor(5)


def choice(x):
    y = torch.cond(x.sum() > 0, lambda a: a.sin() @ WEIGHT, lambda a: a.cos(), (x * 2,))
    return y + x


def nested_choice(x):
    def positive(a):
        return torch.cond(a.max() > 1, lambda b: {"y": b * 2}, lambda b: {"y": b * 3}, (a,))

    return torch.cond(x.sum() > 0, positive, lambda a: {"y": a.cos()}, (x,))["y"]


def choice_of_python(x):
    return torch.cond(x.shape[0] > 3, lambda a: a.sin(), lambda a: a.cos(), (x,))


def loop(x):
    return while_loop(lambda i, a: i < STEPS, lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), x))[1]


def scanned(x):
    last, all_of_them = scan(lambda c, row: (c + row.sin(), c * row), torch.zeros(3), x, dim=0)
    return all_of_them + last


def scanned_backwards(x):
    return scan(lambda c, v: (c * 0.5 + v, c * v), torch.zeros(4), x, dim=1, reverse=True)[1]


def associative(x):
    return associative_scan(lambda a, b: a * b, x, 1, combine_mode="generic")


def mapped(x):
    return map_rows(lambda row, w: row * 2 + w, x, WEIGHT[0])


def scanned_by_hand(x):
    carry, rows = torch.zeros(3), []
    for row in x:
        rows.append(carry * row)
        carry = carry + row.sin()
    return torch.stack(rows) + carry


def scanned_backwards_by_hand(x):
    carry, columns = torch.zeros(4), []
    for v in reversed(x.unbind(1)):
        columns.insert(0, carry * v)
        carry = carry * 0.5 + v
    return torch.stack(columns)


BY_HAND = {scanned: scanned_by_hand, scanned_backwards: scanned_backwards_by_hand}
PROGRAMS = [
    choice, nested_choice, choice_of_python, loop, scanned, scanned_backwards, associative, mapped,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_control_flow(fn):
    torch.manual_seed(1)
    x = torch.randn(4, 3).abs()
    compiled = smelt.compile(fn)
    for sign in (1, -1, 1):
        found, expected = ((x * sign).requires_grad_() for _ in range(2))
        a, b = compiled(found), fn(expected)
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
        a.square().sum().backward()
        BY_HAND.get(fn, fn)(expected).square().sum().backward()  # torch 2.11 differentiates scan wrongly
        torch.testing.assert_close(found.grad, expected.grad)


def test_wrong_arguments_of_control_flow_raise_as_in_eager():
    for fn in (
        lambda x: torch.cond(x.sum() > 0, lambda a: a, 5, (x,)),
        lambda x: torch.cond(x > 0, lambda a: a, lambda a: a, (x,)),
        lambda x: scan(lambda c, v: (c, v), torch.zeros(3), x, dim=0, reverse=1),
    ):
        with pytest.raises(RuntimeError) as eager:
            fn(torch.ones(2, 3))
        with pytest.raises(RuntimeError) as found:
            smelt.compile(fn)(torch.ones(2, 3))
        assert str(found.value) == str(eager.value)


WRONG_CARRIES = {  # the step of a scan, initial values, rows, dimension
    "another shape": (lambda c, x: (c + x, c + x), torch.zeros(1, 2), torch.ones(3, 1, 2), 1),
    "another type": (lambda c, x: ((c + x).double(), c + x), torch.zeros(2), torch.ones(3, 2), 0),
    "other strides": (
        lambda c, x: ((c + x).t().contiguous().t(), c * x),
        torch.zeros(2, 2),
        torch.ones(3, 2, 2),
        0,
    ),
    "another structure": (lambda c, x: ((c[0] + x, c[0] * 2), x * 1), (torch.zeros(2),), torch.ones(3, 2), 0),
    "a number": (lambda c, x: (1, x * 2), torch.zeros(2), torch.ones(3, 2), 0),
    "a number as a row": (lambda c, x: (c + x, 3), torch.zeros(2), torch.ones(3, 2), 0),
    "three results": (lambda c, x: (c + x, x * 1, x * 2), torch.zeros(2), torch.ones(3, 2), 0),
    "no tuple": (lambda c, x: c + x, torch.zeros(2), torch.ones(3, 2), 0),
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", WRONG_CARRIES)
def test_a_scan_that_changes_its_carry_raises_as_in_eager(name, fullgraph):
    step, start, rows, dim = WRONG_CARRIES[name]

    def fn(start, rows):
        last, outputs = scan(step, start, rows, dim=dim)
        return last, outputs

    with pytest.raises(Exception) as eager:
        fn(start, rows)
    with pytest.raises(type(eager.value)) as found:
        smelt.compile(fn, fullgraph=fullgraph)(start, rows)
    assert str(found.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_a_loop_that_changes_its_values_raises_as_in_eager():
    def double(x):
        return while_loop(lambda i, a: i < STEPS, lambda i, a: (i + 1, a.double()), (torch.tensor(0), x))[1]

    with pytest.raises(Exception) as eager:
        double(torch.ones(2))
    for fullgraph in (False, True):
        with pytest.raises(type(eager.value)):
            smelt.compile(double, fullgraph=fullgraph)(torch.ones(2))


def in_a_dictionary(x):
    last, rows = scan(
        lambda c, row: ({"sum": c["sum"] + row}, [row * 2, {"y": c["sum"] * row}]), {"sum": torch.zeros(3)}, x
    )
    return last, rows


def in_a_tuple(x):
    return scan(lambda c, row: ((c[0] + row, c[1] * row), (row * 2,)), (torch.zeros(3), torch.ones(3)), x)


def in_a_list(x):
    return scan(lambda c, row: [[c[0] + row], row * 2], (torch.zeros(3),), x)


@pytest.mark.parametrize("fn", [in_a_dictionary, in_a_tuple, in_a_list])
def test_structure_of_a_scan(fn):
    x = torch.randn(4, 3)
    compiled = smelt.compile(fn)
    same(compiled(x), fn(x))
    assert graph_count(compiled) == 1 and not reasons(compiled)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_encoder_with_a_padding_mask(norm_first, train):
    """Torch's modules branch on whether they are compiled and whether a mode observes their calls."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).train(train)
    x = torch.randn(3, 5, 16)
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]]).bool()
    for mask in (padding[:2], padding, None):
        given = x if mask is None else x[: len(mask)]
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                compiled = smelt.compile(model)
                expected = model(given, src_key_padding_mask=mask)
                for _ in range(2):
                    found = compiled(given, src_key_padding_mask=mask)
                    torch.testing.assert_close(found, expected, equal_nan=True)


def test_mode_of_the_trace_is_invisible():
    def fn(x):
        asked = (
            torch.overrides.has_torch_function((x,)),
            torch.overrides.has_torch_function_unary(x),
            torch.overrides.has_torch_function_variadic(x, x),
        )
        return x * 2, asked

    compiled = smelt.compile(fn)
    assert compiled(Q)[1] == fn(Q)[1] == (False, False, False)
    assert graph_count(compiled) == 1
