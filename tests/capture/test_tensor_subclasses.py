"""Tensors of subclasses: what code of their own does is done at a graph break, all else is compiled."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import smelt
from smelt.report.inspect import graph_count
from tests.harness.agreement import check_no_failure

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


class Plain(torch.Tensor):
    """A subclass without behaviour."""


class Unit(torch.Tensor):
    """Has an attribute, which results of operators do not inherit, and a method."""

    unit = "m"

    def scaled(self, by):
        return self * by + len(self.unit)

    @property
    def label(self):
        return f"<{self.unit}>"


class Logged(torch.Tensor):
    calls: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


class Scaled(torch.Tensor):
    """A wrapper subclass: `elem` times `factor`."""

    @staticmethod
    def __new__(cls, elem, factor):
        return torch.Tensor._make_wrapper_subclass(
            cls, elem.size(), dtype=elem.dtype, device=elem.device, requires_grad=elem.requires_grad
        )

    def __init__(self, elem, factor):
        self.elem, self.factor = elem, factor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def plain(a):
            return a.elem * a.factor if isinstance(a, Scaled) else a

        out = func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))
        return Scaled(out, 2.0) if func is torch.ops.aten.mul.Tensor else out

    def __repr__(self):
        return f"Scaled({self.factor})"


class Renamed(torch.Tensor):
    """Overrides methods, an operator and a property of tensors."""

    def __add__(self, other):
        return torch.Tensor.mul(self, other)

    def sum(self, *args):
        return 42.0

    @property
    def shape(self):
        return "shape"

    def __len__(self):
        return 17


class Marked(nn.Parameter):
    """A parameter with a type of its own."""


def plain(kind=Plain):
    return lambda: X.clone().as_subclass(kind)


def with_unit(unit="km"):
    made = X.clone().as_subclass(Unit)
    made.unit = unit
    return made


def jagged():
    return torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4) * 2], layout=torch.jagged)


def strided_nested():
    return torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4) * 2])


def used_late(s, x):
    y = torch.relu(x * 2) + 1
    return (s * 2 + 1), y.sum()


def handed_on(s, x):
    return [s, x * 2], s is s, type(s).__name__, isinstance(s, torch.Tensor), isinstance(s, nn.Parameter)


def attributes(s, x):
    s.note = 3
    return s.unit, s.label, s.scaled(x.sum()), x * s.note, hasattr(s, "nothing")


def metadata(s, x):
    return x * s.dim(), s.dtype, s.size(0) if not s.is_nested else 0, s.requires_grad, s.layout


def written(s, x):
    s.mul_(2)
    s[0] = 1.0
    y = s.view(-1)
    y.add_(x.sum())
    return s, y, x + 1


def overridden(s, x):
    return s + 2, s.sum(), s.shape, len(s), x * 2


def logged(s, x):
    del Logged.calls[:]
    y = x * 3
    z = s + y
    z = z.relu().reshape(-1)
    return z, list(Logged.calls), type(z) is type(s)


def in_containers(s, x):
    found = {"a": s, "b": (x * 2, s)}
    return found, any(v is s for v in found["b"]), s in [s]


def wrapped(s, x):
    y = s * 2
    return y, y.factor, s.elem * x, torch.add(x, s)


def in_a_handler(s, x):
    try:
        return s @ torch.ones(99), x
    except RuntimeError as error:
        return str(error)[:20], x * 2


def texts(s, x):
    return repr(s), str(s), f"{s}", x + 1


def copied(s, x):
    a, b = copy.copy(s), copy.deepcopy(s)
    return a, b, type(a), type(b), x * 2


def listed(s, x):
    return torch.stack([s, s]), torch.cat((x, x)), list(s.unbind())


def differentiated(s, x):
    y = (s * x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return y.detach(), g * 2, type(g)


def converted(s, x):
    return s.as_subclass(torch.Tensor) + x, x.as_subclass(Unit) * 2, torch.Tensor._make_subclass(Plain, x)


def of_jagged(s, x):
    y = x.relu() * 2
    out = (s * 2).values() + 1
    return out, y, s.offsets()


def under_no_function(s, x):
    with torch._C.DisableTorchFunctionSubclass():
        y = s * 2
    return y, type(y), x + 1


UNCOMPARED = (
    "elem",
    "_metadata_cache",
    "_size",
    "_strides",
)  # of wrappers: symbols of which no two are equal


def agree(got, want):
    if isinstance(want, torch.Tensor):
        assert type(got) is type(want) and got.requires_grad == want.requires_grad
        assert (got.grad_fn is None) == (want.grad_fn is None)
        assert list(vars(got)) == list(vars(want))
        agree(*([v for k, v in vars(t).items() if k not in UNCOMPARED] for t in (got, want)))
        if want.is_nested:
            for g, w in zip(got.unbind(), want.unbind(), strict=True):
                torch.testing.assert_close(g, w)
            return
        got, want = (getattr(t, "elem", t) for t in (got, want))
        got, want = (t.detach().as_subclass(torch.Tensor) for t in (got, want))
        torch.testing.assert_close(got, want)
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want):
            agree(g, w)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        agree(list(got.values()), list(want.values()))
    else:
        assert got == want


def scaled():
    return Scaled(X.clone(), 3.0)


def leaf(make):
    return lambda: make().detach().requires_grad_()


def parameter():
    return Marked(X.clone())


GENERAL = (
    used_late,
    handed_on,
    metadata,
    written,
    in_containers,
    in_a_handler,
    copied,
    listed,
    differentiated,
    texts,
)
MAKERS = {
    "plain": plain(),
    "unit": with_unit,
    "logged": plain(Logged),
    "overriding": plain(Renamed),
    "wrapper": scaled,
    "parameter": parameter,
    "needing_grad": leaf(plain()),
    "buffer": lambda: nn.Buffer(X.clone()),
}
PROGRAMS = [(fn, make) for make in MAKERS for fn in GENERAL]
OWN = [
    (attributes, with_unit),
    (overridden, plain(Renamed)),
    (logged, plain(Logged)),
    (wrapped, scaled),
    (converted, plain()),
    (converted, with_unit),
    (of_jagged, jagged),
    (handed_on, jagged),
    (metadata, jagged),
    (handed_on, strided_nested),
    (metadata, strided_nested),
    (used_late, jagged),
    (used_late, strided_nested),
    (under_no_function, plain()),
    (under_no_function, plain(Logged)),
]


def outcome(fn, s, x):
    try:
        return fn(s, x), s, x
    except Exception as error:
        return type(error), str(error)[:60], s, x


def check(fn, make):
    compiled = smelt.compile(fn)
    needs_grad = X.clone().requires_grad_()
    for odd, x in ((make, X), (make, X + 1), (make, needs_grad), (X.clone, X), (make, X)):
        agree(outcome(compiled, odd(), x.clone()), outcome(fn, odd(), x.clone()))
        check_no_failure(compiled)
    return compiled


@pytest.mark.parametrize("fn, make", PROGRAMS)
def test_any_operation(fn, make):
    check(fn, MAKERS[make])


@pytest.mark.parametrize("fn, make", OWN)
def test_what_a_class_does(fn, make):
    check(fn, make)


def test_copies_keep_attributes_and_gradients():
    def fn(x, w):
        a, b = copy.copy(x), copy.deepcopy(w)
        return a, vars(a), b, b.grad, x + w

    marked, leaf = X.clone(), X.clone().requires_grad_()
    compiled = smelt.compile(fn)
    for marks, grad in (({}, None), ({"note": 3}, None), ({}, X), ({"note": 3}, X)):
        vars(marked).clear()
        vars(marked).update(marks)
        leaf.grad = grad
        agree(compiled(marked, leaf), fn(marked, leaf))


def test_what_was_computed_with_gradients_is_not_copied():
    def fn(x):
        return copy.deepcopy(x * 2)

    compiled = smelt.compile(fn)
    agree(compiled(X), fn(X))
    with pytest.raises(RuntimeError, match="created explicitly by the user"):
        compiled(X.clone().requires_grad_())


def test_the_mark_of_a_parameter_is_guarded():
    def fn(s, x):
        return isinstance(s, nn.Parameter), x * 2

    compiled = smelt.compile(fn)
    for s in (plain()(), nn.Parameter(plain()()), plain()()):
        agree(compiled(s, X), fn(s, X))


def test_programs_go_on_around():
    for make in (scaled, plain(Logged), jagged, strided_nested):
        compiled = smelt.compile(used_late)
        compiled(make(), X)
        assert graph_count(compiled) == 2
