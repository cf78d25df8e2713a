"""Small programs, eager and compiled. Each is a class of behaviour that users rely on."""

import dataclasses
import functools
import itertools
import math
from collections import OrderedDict, namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.harness.agreement import check

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    name: str = "r"
    extra: dict = dataclasses.field(default_factory=dict)


def add_one(x):
    return x + 1


def gelu_bias(x, b):
    return F.gelu(x + b)


def softmax(x):
    return torch.softmax(x * 2, dim=-1)


def layer_norm(x, w, b):
    return F.layer_norm(x + 1, (x.shape[-1],), w, b)


def returns_input(x, y):
    return x, y + x, x


def returns_view(x):
    return x.view(-1), x.t(), x[1:, ::2]


def view_of_result(x):
    y = x * 2
    return y, y.view(-1), y[0]


def mutates(x):
    x.add_(1)
    return x * 2


def mutates_view(x):
    x[0].mul_(3)
    x[:, 1] = 7.0
    return x.sum()


def mutates_intermediate(x):
    y = x.clone()
    y[0] += 1
    y.t().relu_()
    return y


def out_argument(x, out):
    torch.mul(x, 3, out=out)
    return out + 1


def containers(x):
    return {"a": x + 1, "b": [x * 2, (x - 1, None, 3)], "p": Pair(x, x.exp())}, OrderedDict(z=x.sin())


def dataclass_result(x):
    return Result(x.cos(), extra={"k": x.sum()})


def keyword(x, *rest, scale=2.0, **more):
    for r in rest:
        x = x + r
    return x * scale + more.get("shift", 0)


def comprehension(x):
    return torch.stack([x[i] * i for i in range(x.shape[0]) if i % 2 == 0] + [x[0]])


def closure(x):
    scale = 3.0

    def inner(y):
        return y * scale

    return inner(x) + functools.partial(torch.add, alpha=2)(x, x)


def generator(x):
    def parts():
        for i in range(3):
            yield x * i

    return sum(parts())


def try_except(x):
    try:
        if x.shape[0] > 0:
            raise ValueError("no")
        y = x
    except ValueError as error:
        y = x + len(str(error))
    finally:
        x = x * 2
    return x + y


def match_statement(x, kind):
    match kind:
        case "double":
            return x * 2
        case {"scale": s}:
            return x * s
        case _:
            return x


def with_statement(x):
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = y @ y.t()
    return y, z


def bfloat16_chain(x):
    y = x.to(torch.bfloat16)
    return (y * 1.1 + y).float(), torch.sigmoid(y)


def integer_math(x):
    i = (x * 10).to(torch.int64)
    return i // 3, i % 3, -i, i.float().sqrt().nan_to_num(), i > 2, (i & 3) | 4, i / 4


def reductions(x):
    return (
        x.sum(0),
        x.mean((0, 1), keepdim=True),
        x.amax(-1),
        x.argmax(1),
        x.var(1),
        x.std(),
        (x > 0).any(1),
        x.cumsum(0),
    )


def concatenation(x):
    return torch.cat([x, x * 2, x[:1]]), F.pad(x, (1, 2), value=3.0), torch.stack([x, -x], 1)


def iterates_dictionary(x, table):
    for _key, value in table.items():
        x = x + value
    return x * len(table)


def string_program(x):
    shape = f"{x.shape[0]}x{x.shape[1]}"
    return x.reshape(*[int(p) for p in shape.split("x")][::-1]) * math.pi


def zip_chain(x):
    total = x
    for a, b in zip(itertools.chain([1, 2], [3]), itertools.count()):
        total = total + a * b
    return total


def random_numbers(x):
    return x + torch.rand_like(x), torch.randn(3), F.dropout(x, 0.5, training=True)


def raises(x):
    y = x + 1
    raise KeyError(f"bad {y.shape[0]}")


def bad_shapes(x):
    return x @ x[:, :-1].t()[:-1].t() @ torch.ones(17, 2)


def matmul_bias(x, w, b):
    return F.relu(F.linear(x, w, b)) @ w


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def where_mask(x):
    mask = torch.arange(x.shape[-1]) <= torch.arange(x.shape[0])[:, None]
    return torch.where(mask, x, float("-inf")).softmax(-1)


def constant_tensor(x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor(3).item() + x


def scalar_tensor(x):
    return x * x.max(), x - x.mean()


def mat(*shape):
    return lambda: tuple(torch.randn(s) for s in (shape or ((4, 5),)))


PROGRAMS = {
    add_one: mat(),
    gelu_bias: mat((4, 5), (5,)),
    softmax: mat((3, 37)),
    layer_norm: mat((3, 37), (37,), (37,)),
    returns_input: mat((4, 5), (4, 5)),
    returns_view: mat(),
    view_of_result: mat(),
    mutates: mat(),
    mutates_view: mat(),
    mutates_intermediate: mat(),
    out_argument: mat((4, 5), (4, 5)),
    containers: mat(),
    dataclass_result: mat(),
    keyword: mat((4, 5), (5,)),
    comprehension: mat(),
    closure: mat(),
    generator: mat(),
    try_except: mat(),
    match_statement: lambda: (torch.randn(3), {"scale": 2.5}),
    with_statement: mat(),
    bfloat16_chain: mat(),
    integer_math: mat(),
    reductions: mat(),
    concatenation: mat(),
    iterates_dictionary: lambda: (torch.randn(3), {"a": torch.randn(3), "b": torch.ones(3)}),
    string_program: mat(),
    zip_chain: mat(),
    random_numbers: mat(),
    matmul_bias: mat((4, 5), (5, 5), (5,)),
    attention: mat((1, 2, 7, 8), (1, 2, 7, 8), (1, 2, 7, 8)),
    where_mask: mat((5, 5)),
    constant_tensor: mat(),
    scalar_tensor: mat(),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(program, backend):
    check(program, PROGRAMS[program], backend=backend)


@pytest.mark.parametrize("program", [raises, bad_shapes], ids=lambda p: p.__name__)
def test_exception_of_the_user(program):
    check(program, mat(), captured=False)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale: float = 1.0):
        self.calls += 1
        return self.act(self.norm(self.conv(x))).mean((2, 3)) * scale


def test_module_with_a_counter_buffer():
    module = Block().eval()
    check(lambda m, x: m(x, scale=2.0), lambda: (module, torch.randn(2, 3, 8, 8)))
