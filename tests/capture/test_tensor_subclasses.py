"""Tensor subclasses: operators that they override run at a graph break, all others are compiled."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import smelt
from smelt.report.inspect import graph_count
from tests.harness.agreement import check_no_failure, tensors
from tests.harness.subclasses import Logged, Marked, Plain

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


class Unit(torch.Tensor):
    """Has an attribute, which results of operators do not inherit, and a method."""

    unit = "m"

    def scaled(self, by):
        return self * by + len(self.unit)

    @property
    def label(self):
        return f"<{self.unit}>"


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
        got, want = outcome(compiled, odd(), x.clone()), outcome(fn, odd(), x.clone())
        agree(got, want)
        check_no_failure(compiled)
        assert aliases(got) == aliases(want)
    return compiled


def strided(value):
    return [t for t in tensors(value) if not t.is_nested and not isinstance(t, Scaled)]


def aliases(result):
    """Which tensors are one object, are views, or share memory."""
    found = strided(result)
    starts = [t.untyped_storage().data_ptr() for t in found]
    at = range(len(found))
    return (
        [(i, j, found[i] is found[j]) for i in at for j in at if starts[i] == starts[j]],
        [(t.is_leaf, getattr(t._base, "shape", None) if t._base is found[0] else 0) for t in found],
    )


@pytest.mark.parametrize("fn, make", PROGRAMS)
def test_any_operation(fn, make):
    check(fn, MAKERS[make])


@pytest.mark.parametrize("fn, make", OWN)
def test_class_behaviour(fn, make):
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


def test_results_with_gradients_are_not_copied():
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


def test_programs_continue_around():
    for make in (scaled, plain(Renamed), strided_nested):
        smelt.reset()  # equal compilations share their graphs
        compiled = smelt.compile(used_late)
        compiled(make(), X)
        assert graph_count(compiled) == 2


# ------------------------------------------------------------------------------------- classes without behaviour


class Narrow(Plain):
    """A subclass of a subclass."""


class Mixin:
    kind = "mixed"

    def twice(self):
        return self * 2

    @classmethod
    def made_of(cls, x):
        return x.as_subclass(cls)

    @staticmethod
    def help():
        return "help"


class Mixed(Mixin, torch.Tensor):
    pass


class Silent(torch.Tensor):
    """Results of operators are plain."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def several_results(s, x):
    values, indices = s.max(0)
    parts = s.split(2, dim=-1)
    return values, indices, parts, type(s.max(0)).__name__, torch.topk(s, 2), s.unbind(0), list(s)


def functions_of_torch(s, x):
    w = s * 2 + x
    y = nn.functional.gelu(nn.functional.linear(s, w))
    y = nn.functional.dropout(y, 0.5, False) + nn.functional.softmax(y, -1)
    z = torch.einsum("ij,ij->i", s, s), torch.where(s > 0, s, x), torch.norm(s), 1 - s, s**2, -s, s @ w.T
    return y, z, [type(t) for t in (y, *z)], nn.functional.layer_norm(x, (4,), weight=s[0]), s.T, s.mT


def views_and_writes(s, x):
    v = s.view(-1)
    v[0] = 5
    s[1] = x[1] * 3
    w = s.t()
    w.add_(1)
    u = s + 1
    u.mul_(2)
    return v, w, s, u, v.data, s.detach(), type(s.data), u.contiguous() is u


def indices(s, x):
    i = s.argmax(-1)
    return (
        x[i.clamp(0, 2)],
        s[0],
        s[x > 0] if s.numel() == 0 else s[:, 1:],
        s[i.clamp(0, 2)],
        x.index_select(0, i.clamp(0, 2)),
    )


def becomes_what_was_there(s, x):
    y = x * 2
    z = y.add_(s)
    return y, z, type(y), type(z)


def out_is_plain(s, x):
    y = torch.empty_like(x)
    z = torch.add(s, 1, out=y)
    return type(y), type(z), y, z


def two_classes(s, x):
    n = x.as_subclass(Narrow)
    return n + s, s + n, type(n + s)


def unrelated_classes(s, x):
    try:
        return s + x.as_subclass(Mixed)
    except TypeError as error:
        return str(error)[:40]


def queries(s, x):
    return (
        isinstance(s, Plain), isinstance(s, (int, torch.Tensor)), isinstance(x, Plain), type(s) is type(s + 1),
        isinstance(s, nn.Parameter), s.__class__, issubclass(type(s), torch.Tensor), torch.is_tensor(s),
        isinstance(s, nn.Buffer), torch.overrides.has_torch_function((s,)), callable(s), hasattr(s, "twice"),
    )  # fmt: skip


def constants(s, x):
    return (
        torch.tensor(s.sum().item()),
        torch.as_tensor(s),
        torch.zeros_like(s),
        s.new_zeros(2),
        torch.ones(3),
        s.tolist(),
    )


def back_and_forth(s, x):
    p = s.as_subclass(torch.Tensor)
    q = p.as_subclass(Plain)
    p.add_(1)
    return p, q, type(p * 2), type(q * 2), p is s, x.as_subclass(Plain).as_subclass(torch.Tensor)


def noted(s, x):
    s.note = x * 2
    y = s + 1
    y.note = "computed"
    return s.note, y.note, hasattr(s + y, "note"), y, vars(y)


def methods(s, x):
    t = x.as_subclass(Mixed)
    return t.twice(), t.kind, Mixed.made_of(x) + 1, t.help(), t.made_of(x), type(t.twice())


def to_numpy(s, x):
    a = (s * 2).detach().numpy()
    return a.sum() * 2, torch.from_numpy(a) + 1


def parameters(s, x):
    p = nn.Parameter(s.detach() * 2)
    return type(p), p, isinstance(p, nn.Parameter)


def transformed(s, x):
    return torch.vmap(lambda r: r * 2)(s), torch.func.grad(lambda t: (t * s).sum())(x)


def checkpointed(s, x):
    return torch.utils.checkpoint.checkpoint(lambda t: (t * s).relu(), x, use_reentrant=False)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        Doubled.seen = type(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def custom(s, x):
    return Doubled.apply(s), Doubled.apply(s + x), Doubled.seen


def leaf_inside(s, x):
    y = (s * 2).detach().requires_grad_()
    return y, y.is_leaf, (y * x).sum()


def trained(s, x):
    w = x.detach().clone().requires_grad_()
    (w * s).sum().backward()
    return w.grad, type(w.grad)


def formatted(s, x):
    return repr(s[0].detach()), str((s + 1).detach()), f"{x.sum():.2f}"


def broken(s, x):
    y = s * 2
    smelt.graph_break()
    z = y + x
    if z.sum() > 0:
        z = z + 1
    return y, z, type(y), type(z)


def in_objects(s, x):
    found = {"y": s + 1, "z": [s, (s * 2).view(-1)]}
    found["w"] = found["z"][1]
    return found, found["w"] is found["z"][1]


def disabled(s, x):
    with torch._C.DisableTorchFunctionSubclass():
        y = s * 2
    return y, type(y), s * 2


DIFFICULT = [
    several_results, functions_of_torch, views_and_writes, indices, becomes_what_was_there, out_is_plain, two_classes,
    unrelated_classes, queries, constants, back_and_forth, noted, methods, to_numpy, parameters, transformed, checkpointed,
    custom, leaf_inside, trained, formatted, broken, in_objects, disabled,
]  # fmt: skip
KINDS = {
    "plain": plain(),
    "narrow": plain(Narrow),
    "mixed": plain(Mixed),
    "silent": plain(Silent),
    "parameter": parameter,
}
KINDS |= {"needing_grad": leaf(plain()), "computed": lambda: leaf(plain())() * 2, "unit": with_unit}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fn", DIFFICULT)
def test_classes_without_behaviour(fn, kind):
    check(fn, KINDS[kind])


def gradients(fn, s, x):
    """What the results, and then the arguments' gradients, are."""
    ended = [t for t in strided(fn(s, x)) if t.requires_grad and t.grad_fn is not None]
    torch.autograd.backward([t.sum() for t in ended])
    return ended, s.grad if s.is_leaf else 0, type(s.grad if s.is_leaf else 0), x.grad, type(x.grad)


@pytest.mark.parametrize("fn", [several_results, functions_of_torch, indices, methods, in_objects, broken])
@pytest.mark.parametrize("kind", ["plain", "needing_grad", "computed", "silent", "parameter"])
def test_gradients(fn, kind):
    compiled = smelt.compile(fn)
    for _ in range(2):
        got, want = (gradients(f, KINDS[kind](), X.clone().requires_grad_()) for f in (compiled, fn))
        agree(got, want)


def further_results(s, x):
    y = s * x
    y.retain_grad()
    seen = []
    y.register_hook(lambda g: seen.append(type(g)) or g * 2)
    z = (y * y).sum()
    return y, z, seen


@pytest.mark.parametrize("kind", ["plain", "needing_grad", "narrow", "silent"])
def test_operators_on_a_result(kind):
    def observed(fn):
        x = X.clone().requires_grad_()
        y, z, seen = fn(KINDS[kind](), x)
        inner = torch.autograd.grad(z, y, retain_graph=True)[0]
        z.backward()
        return y, z, seen, inner, x.grad, y.grad, type(y.grad)

    compiled = smelt.compile(further_results)
    for _ in range(2):
        agree(observed(compiled), observed(further_results))


def test_one_graph():
    for fn in (
        several_results,
        functions_of_torch,
        views_and_writes,
        methods,
        noted,
        in_objects,
        back_and_forth,
    ):
        compiled = smelt.compile(fn, fullgraph=True)
        compiled(plain()(), X.clone())
        assert graph_count(compiled) == 1


class Labelled(torch.Tensor):
    """Has an `__init__` of its own."""

    def __init__(self, x):
        self.label = tuple(x.shape)


class Forwarding(torch.Tensor):
    """Its handler is not called where it is created."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError


@pytest.mark.parametrize("kind", [Unit, Plain, Labelled, Forwarding, Marked])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_instance_of_a_tensor(kind, requires_grad):
    """`Subclass(tensor)` is an alias of the tensor."""

    def computed(x):
        return kind(x + 1)

    def aliased(x):
        return kind(x)

    def twice(x):
        return kind(kind(x * 2))

    def shown(fn):
        x = X.clone().requires_grad_(requires_grad)
        out = fn(x)
        with torch._C.DisableTorchFunctionSubclass():
            if requires_grad:
                (out * out).sum().backward()
            shares = out.data_ptr() == x.data_ptr()
            return (
                type(out),
                vars(out),
                out.tolist(),
                out.requires_grad,
                shares,
                x.grad is None or x.grad.tolist(),
            )

    for program in (computed, aliased, twice):
        compiled = smelt.compile(program, fullgraph=kind is not Marked)
        for _ in range(2):
            try:
                expected = shown(program)
            except RuntimeError as error:
                assert kind is Marked, error
                continue
            assert shown(compiled) == expected
        check_no_failure(compiled)


def test_changed_class():
    class Mine(torch.Tensor):
        unit = 1

        def twice(self):
            return self * 2

    def fn(s):
        return s.twice() * s.unit, (s + 1)

    compiled = smelt.compile(fn)

    def same():
        agree(compiled(X.as_subclass(Mine)), fn(X.as_subclass(Mine)))

    same()
    Mine.unit = 3
    same()
    Mine.twice = lambda self: self * 5
    same()
    Mine.__add__ = lambda self, other: "added"
    same()
    del Mine.__add__
    Mine.__torch_function__ = classmethod(lambda cls, func, types, args, kwargs=None: "handled")
    Mine.twice = lambda self: 3
    same()
