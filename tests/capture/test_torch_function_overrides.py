"""Handlers of torch's functions, `__torch_function__`, on tensor subclasses and other objects."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import (
    handle_torch_function,
    has_torch_function,
    has_torch_function_unary,
    has_torch_function_variadic,
    is_tensor_method_or_property,
)

import smelt
from tests.harness.agreement import check_no_failure, tensors

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5
LOG: list = []


def name(func):
    return str(getattr(func, "__name__", func))


class Logged(torch.Tensor):
    """Notes each call, and leaves the rest to torch."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append((cls.__name__, name(func), [t.__name__ for t in types], len(args), kwargs is None))
        return super().__torch_function__(func, types, args, kwargs)


class Deeper(Logged):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append("deeper")
        return super().__torch_function__(func, types, args, kwargs)


class Tagged(torch.Tensor):
    """Has an attribute that results inherit."""

    @staticmethod
    def __new__(cls, data, tag="none"):
        made = torch.as_tensor(data).as_subclass(cls)
        made.tag = tag
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        tags = [a.tag for a in args if isinstance(a, cls) and hasattr(a, "tag")]
        if isinstance(out, cls) and not hasattr(out, "tag"):
            out.tag = "+".join(tags)
        return out


class Changing(torch.Tensor):
    """Changes arguments, functions and results."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.sub:
            func = torch.Tensor.add
        if func in (torch.sum, torch.Tensor.sum):
            return "a sum"
        if func is F.relu:
            kwargs["inplace"] = False
            return super().__torch_function__(torch.tanh, types, args[:1])
        plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
        out = func(*plain, **kwargs)
        return out.as_subclass(cls) if isinstance(out, torch.Tensor) else out


class Refusing(torch.Tensor):
    """Handles some calls only."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.mul, torch.Tensor.mul) or not all(
            issubclass(t, (torch.Tensor, cls)) for t in types
        ):
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs)


class Other(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append("other")
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return out.as_subclass(torch.Tensor) if isinstance(out, torch.Tensor) else out


class Table(torch.Tensor):
    """Handlers of its own for some functions, as libraries write them."""

    HANDLERS: dict = {}

    @staticmethod
    def implements(*functions):
        def decorator(handler):
            for function in functions:
                Table.HANDLERS[function] = handler
            return handler

        return decorator

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.HANDLERS:
            return cls.HANDLERS[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return out


@Table.implements(torch.add, torch.Tensor.add)
def table_add(a, b):
    LOG.append("table")
    return (a * 2 + torch.ones(4)).as_subclass(Table)


class Static(torch.Tensor):
    @staticmethod
    def __torch_function__(func, types, args=(), kwargs=None):
        LOG.append(name(func))
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})


class Failing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.relu:
            raise ValueError(f"no {func.__name__}")
        return super().__torch_function__(func, types, args, kwargs)


class Breaking(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.add:
            smelt.graph_break()
            LOG.append(out.shape)
        return out


class Weight(nn.Parameter):
    """A parameter that notes what is done with it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append(name(func))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Measured:
    """No tensor."""

    def __init__(self, value, unit):
        self.value, self.unit = value, unit

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append(name(func))
        units = [a.unit for a in args if isinstance(a, cls)]
        plain = [a.value if isinstance(a, cls) else a for a in args]
        return cls(func(*plain, **(kwargs or {})), "*".join(units))


def operators(s, x):
    y = s + 1
    z = 2 - y * x
    return y, z, z @ x.T, -s, s**2, s > 0, x + s, abs(s), s == s


def functions(s, x):
    return (
        F.relu(s),
        F.linear(x, s),
        torch.cat([x, s]),
        torch.sum(s),
        F.softmax(s, -1),
        torch.where(s > 0, s, x),
    )


def methods(s, x):
    return (
        s.mean(),
        s.view(-1),
        s.reshape(4, 3).t(),
        s.max(0),
        s.split(2, -1),
        s.unbind(0),
        s.clamp(min=0),
        s.sum(0),
    )


def properties(s, x):
    return (
        s.shape,
        s.dtype,
        s.ndim,
        s.T,
        s.requires_grad,
        s.device,
        s.is_leaf,
        s.grad,
        s.mT,
        s.is_sparse,
        s.layout,
    )


def metadata(s, x):
    return (
        len(s),
        s.size(),
        s.size(0),
        s.dim(),
        s.numel(),
        s.stride(),
        s.is_floating_point(),
        s.is_contiguous(),
    )


def iterated(s, x):
    return [r * 2 for r in s], list(zip(s, x)), tuple(s.sum(0)), reversed(s)


def indexed(s, x):
    i = torch.tensor([0, 2])
    s[0] = 5.0
    s[1, :2] = x[0, :2]
    return s[0], s[:, 1], s[i], x[s.argmax(0).as_subclass(torch.Tensor).clamp(0, 2)], s[None], s[..., 0]


def in_place(s, x):
    y = s.add_(1)
    s *= 2
    x.add_(s)
    z = s.view(-1)
    z.zero_()
    return y, y is s, x, z


def kinds(s, x):
    y = s + x
    return (
        type(y),
        isinstance(y, type(s)),
        isinstance(y, torch.Tensor),
        type(s.data),
        type(s.detach()),
        type(y[0]),
    )


def attributes(s, x):
    s.note = "kept"
    y = s + 1
    y.note = x
    return getattr(y, "note", None), s.note, hasattr(s * 2, "note"), y


def asked(s, x):
    return (
        has_torch_function((s, x)), has_torch_function_unary(s), has_torch_function_unary(x),
        has_torch_function_variadic(x, s), is_tensor_method_or_property(torch.Tensor.add), torch.is_tensor(s),
    )  # fmt: skip


def api(a, b=None):
    if has_torch_function_variadic(a, b):
        return handle_torch_function(api, (a, b), a, b=b)
    return a * 3 if b is None else a + b


def own_function(s, x):
    return api(s), api(x), api(x, s), api(s, b=x)


def layers(s, x):
    torch.manual_seed(0)
    return (
        F.layer_norm(s, (4,)),
        F.gelu(s),
        F.dropout(s, 0.5, False),
        F.conv1d(s[None], torch.ones(2, 3, 1)),
        F.mse_loss(s, x),
    )


def handlers_off(s, x):
    with torch._C.DisableTorchFunctionSubclass():
        y = s + x
        z = s.shape
    return y, z, type(y), s + x


def in_a_list(s, x):
    items = [s]
    items.append(items)  # type: ignore[arg-type]
    return len(items), torch.stack([s, x]), torch.cat((s, s)), torch.stack([x, x])


def out_argument(s, x):
    y = torch.empty(3, 4)
    z = torch.add(s, x, out=y)
    return y, type(z)


def classes_made(s, x):
    y = x.as_subclass(type(s))
    return y + 1, type(y), y.as_subclass(torch.Tensor) * 2


def errors(s, x):
    try:
        return s @ torch.ones(99)
    except RuntimeError as error:
        return str(error)[:30]


def conditions(s, x):
    y = s * 2
    if y.sum() > 100:
        return y
    return y - 1 if bool((s > -100).all()) else x


def copies(s, x):
    return copy.copy(s), copy.deepcopy(s), pickle.loads(pickle.dumps(x)), s.clone()


def texts(s, x):
    return repr(s.detach()), f"{type(s).__name__}", str(x)


def views(s, x):
    v = s[0]
    w = v.view(2, 2)
    return v, w, s.expand(2, 3, 4), s.unsqueeze(0), s.flatten()


def mixed(s, x):
    o = x.as_subclass(Other)
    try:
        return s + o, o + s, torch.cat([o, s])
    except TypeError as error:
        return str(error)[:50]


def broken(s, x):
    y = s + 1
    smelt.graph_break()
    z = y * x
    return y, z, type(y), type(z)


def gradients_inside(s, x):
    w = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((w * s).sum() if isinstance(s, Logged) else (w * x).sum(), w)
    return type(g), g


def keywords(s, x):
    return (
        torch.add(input=s, other=x),
        torch.sum(input=s, dim=0),
        torch.clamp(s, min=0, max=1),
        s.add(other=2),
    )


def operators_of_torch(s, x):
    return torch.ops.aten.add(s, 1), torch.ops.aten.mul.Tensor(x, s)


def settings(s, x):
    with torch.no_grad():
        y = s * 2
    with torch.autocast("cpu", torch.bfloat16):
        z = s @ x.T
    return y, z


def transforms(s, x):
    return torch.vmap(lambda r: r * 2)(s), torch.func.grad(lambda t: (t * t).sum())(x)


def modules(s, x):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
    return net(s)


def numbers(s, x):
    return (
        float(s.sum()) if not isinstance(s, Changing) else 0,
        abs(s),
        int(s[0, 0]),
        s[0, 1].item(),
        s.tolist(),
        round(s),
    )


def states(s, x):
    s.grad = None
    s.requires_grad_()
    s.requires_grad = False
    s.data = s.data
    return s.grad, x * 2


def sharing(s, x):
    y = s.detach()
    y.add_(1)
    return y, s


PROGRAMS = [
    operators, functions, methods, properties, metadata, iterated, indexed, in_place, kinds, attributes, asked,
    own_function, layers, handlers_off, in_a_list, out_argument, classes_made, errors, conditions, copies, texts, views,
    mixed, broken, gradients_inside, keywords, operators_of_torch, settings, transforms, modules, sharing, numbers,
    states,
]  # fmt: skip
KINDS = [Logged, Deeper, Tagged, Changing, Refusing, Other, Table, Static, Failing, Breaking]


def make(kind, grad=False):
    made = X.clone().as_subclass(kind)
    if kind is Tagged:
        made.tag = "first"
    with torch._C.DisableTorchFunctionSubclass():
        return made.requires_grad_() if grad else made


def agree(got, want):
    if isinstance(want, torch.Tensor):
        assert type(got) is type(want) and got is not want
        with torch._C.DisableTorchFunctionSubclass():
            assert got.requires_grad == want.requires_grad and (got.grad_fn is None) == (want.grad_fn is None)
            assert list(vars(got)) == list(vars(want))
            agree(list(vars(got).values()), list(vars(want).values()))
            plain = [t.detach().as_subclass(torch.Tensor) for t in (got, want)]
            torch.testing.assert_close(*plain, equal_nan=True)
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want), (got, want)
        for g, w in zip(got, want):
            agree(g, w)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        agree(list(got.values()), list(want.values()))
    elif isinstance(want, Measured):
        agree((got.value, got.unit), (want.value, want.unit))
    else:
        assert got == want, (got, want)


def outcome(fn, *args):
    """The result and effects of a call, and the records of handlers, also in the backward."""
    del LOG[:]
    try:
        result = fn(*args)
    except Exception as error:
        result = type(error), str(error)[:40]
    with torch._C.DisableTorchFunctionSubclass():
        ended = [t for t in tensors(result) if t.grad_fn is not None]
        if ended:
            torch.autograd.backward([t.sum() for t in ended])
        grads = [t.grad for t in args if isinstance(t, torch.Tensor) and t.is_leaf]
    return result, args, grads, list(LOG)


def check(fn, *makers, calls=2):
    compiled = smelt.compile(fn)
    for _ in range(calls):
        got, want = (outcome(f, *(m() for m in makers)) for f in (compiled, fn))
        agree(got, want)
    check_no_failure(compiled)
    return compiled


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_class_with_a_handler(fn, kind):
    check(fn, lambda: make(kind), X.clone)


@pytest.mark.parametrize("kind", [Logged, Tagged, Other, Static])
@pytest.mark.parametrize(
    "fn", [operators, functions, methods, in_place, views, indexed, broken, settings, sharing]
)
def test_gradients(fn, kind):
    check(fn, lambda: make(kind, grad=True), X.clone)
    check(fn, lambda: make(kind), lambda: X.clone().requires_grad_())


def test_empty_kwargs_are_passed_on():
    def f(x):
        return torch.cos(x, **{}), torch.cos(x), x.add(x, **{}), x.size(**{}), x.size()

    x = torch.randn(3).as_subclass(Logged)
    found = []
    for g in (f, smelt.compile(f)):
        LOG.clear()
        g(x)
        found.append(list(LOG))
    assert found[0] == found[1]
    assert {entry[-1] for entry in found[0]} == {True, False}
