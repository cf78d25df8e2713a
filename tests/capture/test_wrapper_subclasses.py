"""Traceable wrapper subclasses: `__torch_dispatch__` is part of the program, inner tensors are inputs and results."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map, tree_map_only

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import graph_count, records
from tests.harness.agreement import check_no_failure

aten = torch.ops.aten
X = torch.arange(6.0).reshape(2, 3) / 3 - 0.5


class Pair(torch.Tensor):
    """Two tensors; each operator runs on both. `label` is part of its context."""

    @staticmethod
    def __new__(cls, first, second, label=""):
        return torch.Tensor._make_wrapper_subclass(
            cls, first.size(), strides=first.stride(), dtype=first.dtype, device=first.device
        )

    def __init__(self, first, second, label=""):
        self.first, self.second, self.label = first, second, label

    def __tensor_flatten__(self):
        return ["first", "second"], self.label

    @staticmethod
    def __tensor_unflatten__(inner, label, size, stride):
        return Pair(inner["first"], inner["second"], label)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if not all(issubclass(kind, cls) for kind in types):
            return NotImplemented
        outs = [
            func(*tree_map_only(cls, part, args), **tree_map_only(cls, part, kwargs or {}))
            for part in (lambda pair: pair.first, lambda pair: pair.second)
        ]
        if not isinstance(outs[0], torch.Tensor):
            return tuple(cls(*both) for both in zip(*outs)) if isinstance(outs[0], (tuple, list)) else outs[0]
        return return_and_correct_aliasing(func, args, kwargs or {}, cls(*outs))

    def __repr__(self):
        return f"Pair({self.first}, {self.second}, {self.label!r})"

    def swapped(self):
        return Pair(self.second, self.first, self.label)


class Quantized(torch.Tensor):
    """A weight as int8 and a scale for each row, which `linear` takes."""

    @staticmethod
    def __new__(cls, data, scale, bits=8):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            dtype=scale.dtype,
            device=data.device,
            requires_grad=False,
        )

    def __init__(self, data, scale, bits=8):
        self.data_8, self.scale, self.bits = data, scale, bits

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantize(self):
        return self.data_8.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["data_8", "scale"], (self.bits,)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size=None, stride=None):
        return cls(inner["data_8"], inner["scale"], *context)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, *bias = args
            return F.linear(x, weight.dequantize(), *bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func in (aten.detach.default, aten.clone.default):
            (w,) = args
            copied = cls(func(w.data_8), func(w.scale), w.bits)
            return return_and_correct_aliasing(func, args, kwargs or {}, copied)
        if func is aten.t.default:
            return args[0].dequantize().t()
        if func is aten.mm.default:
            return func(*[a.dequantize() if isinstance(a, cls) else a for a in args])
        raise NotImplementedError(f"{func}")

    def __repr__(self):
        return f"Quantized({self.data_8}, {self.scale}, {self.bits})"


class Plainly(Quantized):
    """Its operators go to `__torch_dispatch__` alone."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def pair(rows=2, dtype=torch.float32, label=""):
    first = torch.arange(rows * 3.0).reshape(rows, 3).to(dtype) / 3 - 0.5
    return Pair(first, first.cos(), label)


def shown(value):
    """What the value holds, with classes and metadata, for comparison: numbers to four decimals."""
    if isinstance(value, torch.Tensor):
        metadata = type(value), value.dtype, tuple(value.shape), tuple(value.stride()), value.requires_grad
        if hasattr(value, "__tensor_flatten__"):
            return metadata, {name: shown(part) for name, part in vars(value).items()}
        return metadata, value.detach().double().mul(1e4).round().tolist()
    if isinstance(value, (list, tuple)):
        return type(value), [shown(part) for part in value]
    return {k: shown(v) for k, v in value.items()} if isinstance(value, dict) else value


def check(fn, *calls, graphs=None, **options):
    """Compare each call eager and compiled, results and arguments, and count graphs."""
    compiled = smelt.compile(fn, **{"fullgraph": True, **options})
    for make in calls:
        mine, theirs = make(), make()
        with torch.no_grad():
            assert shown(compiled(*mine)) == shown(fn(*theirs))
        assert shown(mine) == shown(theirs)
    check_no_failure(compiled)
    assert graphs is None or graph_count(compiled) == graphs
    return compiled


def arithmetic(p):
    return p + 1, p * p, 2 - p, p.sum(), (p @ p.t()).relu().softmax(-1)


def several_results(p):
    top, bottom = p.chunk(2)
    values, places = p.sort(1)
    return top * bottom, values, places


def rearranged(p):
    return (
        torch.cat([p, p], 1),
        torch.stack([p, p + 1]),
        p.view(3, 2) * 1,
        p[0].sin(),
        p.T.contiguous(),
        p[:, 1:] + 0,
    )


def metadata(p):
    return (
        p.shape,
        p.dtype,
        p.dim(),
        p.size(0),
        p.stride(),
        len(p),
        isinstance(p, Pair),
        type(p).__name__,
        p.numel(),
    )


def parts(p):
    names, label = p.__tensor_flatten__()
    return [getattr(p, name).sin() for name in names], label, p.first, p.swapped() * 2


def written(p):
    p.first.add_(1)
    q = p.clone()
    q.mul_(2).add_(p)
    return q, p


def kept(p):
    return {"same": p, "again": [p, p * 1]}


def converted(p):
    return p.to(torch.float64), p.half().float(), torch.zeros_like(p), p.new_ones(2)


@pytest.mark.parametrize("backend", ["smelt", "eager", "aot_eager"])
@pytest.mark.parametrize(
    "program", [arithmetic, several_results, rearranged, metadata, parts, written, kept, converted]
)
def test_a_wrapper_as_an_argument(program, backend):
    check(program, lambda: (pair(),), lambda: (pair(),), backend=backend)


def test_torch_s_own_wrapper():
    def fn(x):
        return x.exp() + x.a, x.mean(0), TwoTensor(x.b, x.a) * 3

    check(fn, *[lambda: (TwoTensor(X.clone(), X + 1),)] * 2, graphs=1)


def test_wrappers_of_wrappers():
    check(lambda p: (p.sin() + 1, p.first.second), lambda: (Pair(pair(), pair()),), graphs=1)


@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_a_wrapper_created_inside(backend):
    def fn(x):
        p = Pair(x, x + 1, "made")
        q = (p * 2).swapped()
        return q.first + q.second, p, Pair(p.first, q.first), p.label

    check(fn, *[lambda: (X.clone(),)] * 2, graphs=1, backend=backend)


@pytest.mark.parametrize("kind", [Quantized, Plainly])
@pytest.mark.parametrize("as_parameter", [False, True])
def test_a_quantized_weight(kind, as_parameter):
    torch.manual_seed(0)
    layer = nn.Linear(3, 4, bias=False)
    weight = kind.of(torch.randn(4, 3))
    layer.weight = nn.Parameter(weight, requires_grad=False)

    def fn(x):
        return layer(x) if as_parameter else x @ weight.t(), weight.bits, weight.clone(), kind.of(x)

    check(fn, *[lambda: (X.clone(),)] * 3, graphs=1)


def test_a_quantized_weight_below_gradients():
    layer = nn.Linear(3, 4)
    layer.weight = nn.Parameter(Quantized.of(torch.randn(4, 3)), requires_grad=False)

    def gradients(fn):
        x = X.clone().requires_grad_()
        fn(x).square().sum().backward()
        found = x.grad, layer.bias.grad
        layer.bias.grad = None
        return found

    compiled = smelt.compile(layer, fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(layer))


def test_guards_see_the_class_the_metadata_the_context_and_inner_tensors():
    def fn(p):
        return p * 2 + len(getattr(p, "label", "none")), p.size(0)

    makes = (
        lambda: (pair(),), lambda: (pair(),), lambda: (pair(3),), lambda: (pair(dtype=torch.float64),), lambda: (X.clone(),),
        lambda: (pair(label="other"),), lambda: (Pair(X, X),), lambda: (Pair(pair(), pair()),), lambda: (pair(),),
    )  # fmt: skip
    check(fn, *makes)


def test_effects_of_a_handler_are_replayed():
    seen = []

    class Seen(Pair):
        @classmethod
        def __torch_dispatch__(cls, func, types, args, kwargs=None):
            seen.append(func)
            return func(*tree_map(lambda t: t.first if isinstance(t, cls) else t, args), **(kwargs or {}))

    def fn(p):
        return (p + 1).sin() + (p * 2).first if hasattr(p * 2, "first") else (p + 1).sin()

    compiled = smelt.compile(fn, fullgraph=True)
    counts = []
    for function in (fn, compiled, compiled):
        seen.clear()
        result = function(Seen(X, X + 1))
        counts.append((seen[:], shown(result)))
    assert counts[0] == counts[1] == counts[2]


def test_a_break_between_operators():
    def fn(p):
        q = p.sin()
        if q.first.sum() > -100:
            q = q + 1
        return q * 2

    compiled = check(fn, *[lambda: (pair(),)] * 3, fullgraph=False)
    assert [reason.kind.id for _, record in records(compiled) for reason in record.breaks] == [
        "data-dependent-condition"
    ]


def test_an_error_of_a_handler_is_eager_s():
    def fn(w):
        try:
            return w.exp()
        except NotImplementedError as error:
            return str(error)

    check(fn, lambda: (Plainly.of(X),), fullgraph=False)


def gradients_through(p):
    return (p * 2).sum()


def written_in_place(p):
    return p.add_(1)


def a_view_leaves(p):
    return p.view(-1)


def an_attribute_is_set(p):
    p.label = "new"
    return p * 1


@pytest.mark.parametrize("program", [gradients_through, written_in_place, a_view_leaves, an_attribute_is_set])
def test_what_is_not_captured(program):
    """Whole graphs refuse it with a reason, others break there."""

    def made():
        p = TwoTensor(X.clone(), X.clone(), requires_grad=program is gradients_through)
        return p

    with pytest.raises(Unsupported, match="TwoTensor"):
        smelt.compile(program, fullgraph=True)(made())
    compiled = smelt.compile(program)
    for _ in range(2):
        mine, theirs = made(), made()
        assert shown(compiled(mine)) == shown(program(theirs))
        assert shown(mine) == shown(theirs)
    check_no_failure(compiled)


def test_gradients_through_a_wrapper_are_eager_s():
    def gradient(fn):
        p = TwoTensor(X.clone(), X + 1, requires_grad=True)
        fn(p).sum().backward()
        return shown(p.grad)

    def fn(p):
        return (p * p).sin() * 2

    assert gradient(functools.partial(smelt.compile(fn))) == gradient(fn)
