"""Views, aliases and writes: what results share with each other and with inputs, what may be written afterwards, by whom
gradients are seen. Each program is compared with eager on several kinds of inputs, with several things done to its results.
"""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch import nn

import smelt
from tests.harness.agreement import check_no_failure, same

PROGRAMS = {}


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


def text_of(error):
    """What an error says, but for the names of autograd's nodes."""
    return re.sub(r"(Output \d of )\w+", r"\1it", re.sub(r"\w+Backward\w*", "it", str(error)))


@program
def inputs_back(x, y):
    return x, y, x, [x]


@program
def view_of_view(x, y):
    a = x[0]
    b = a[1:]
    return a, b, b.view(-1)


@program
def views_and_math(x, y):
    a = x.t()
    return a, a * 2, x.view(-1)[::2]


@program
def as_strided(x, y):
    return x.as_strided((2, 2), (1, 1)), x.as_strided((2,), (2,), 1)


@program
def as_strided_write(x, y):
    z = x * 1
    z.as_strided((2,), (3,)).add_(1)
    return z, z[0]


@program
def as_strided_write_in(x, y):
    x.as_strided((2,), (3,)).mul_(2)
    return x * 2


@program
def data_(x, y):
    d = x.data
    return d, d[0], d.t()


@program
def data_write(x, y):
    x.data.add_(1)
    return x * 2, x.data


@program
def data_assign(x, y):
    z = x * 1
    z = z.detach()
    z.data = y.detach()
    return z, z is y, z * 2


@program
def detach_views(x, y):
    d = x.detach()
    return d, d[0], x[0].detach()


@program
def detach_bases(x, y):
    d = x.detach()
    e = (x * 2).detach()
    p = x[0].detach()
    bases = d, d[0], d.t()[1:], e, e[1], p[1:], p[:2]
    return *bases, x.data, x.data[0]


@program
def detach_write(x, y):
    d = (x * 2).detach()
    d.add_(1)
    return d, x * 2


@program
def detach_inplace(x, y):
    z = x * 2
    z.detach_()
    return z, z.requires_grad


@program
def set_other(x, y):
    z = torch.empty(0)
    z.set_(y.detach())
    return z, z * 2


@program
def resize(x, y):
    z = (x * 1).detach()
    z.resize_(2, 2)
    return z


@program
def expand_(x, y):
    e = x[:1].expand(3, 3)
    return e, e + 1


@program
def expand_write(x, y):
    e = (x * 1)[:1].expand(3, 3)
    try:
        e.add_(1)
    except RuntimeError as err:
        return str(err)
    return e


@program
def expand_write_in(x, y):
    e = x.detach()[0, 0].expand(3)
    try:
        e.mul_(2)
    except RuntimeError as err:
        return str(err)
    return e


@program
def split_write(x, y):
    a, b, c = (x * 1).split(1)
    try:
        a.add_(1)
    except RuntimeError as err:
        return text_of(err)
    return a


@program
def split_return(x, y):
    return x.split(1)


@program
def split_return_comp(x, y):
    z = x * 2
    return z.split(1), z


@program
def unbind_nograd(x, y):
    with torch.no_grad():
        a, b, c = x.unbind()
    a.add_(1) if not a.requires_grad else None
    return a, b


@program
def chunk_write_base(x, y):
    z = x * 1
    z.chunk(3)
    z.add_(1)
    return z, z * 2


@program
def chunk_write_base_use(x, y):
    z = x * 1
    a = z.chunk(3)
    z.add_(1)
    try:
        return a[0] * 2
    except RuntimeError as e:
        return text_of(e)


@program
def view_through_break(x, y):
    z = x * 2
    v = z[0]
    smelt.graph_break()
    v.add_(1)
    return z, v


@program
def view_of_in_through_break(x, y):
    v = x.detach()[0]
    smelt.graph_break()
    v.add_(1)
    return v, x * 1


@program
def base_through_break(x, y):
    z = x * 2
    v = z[0]
    smelt.graph_break()
    z.mul_(3)
    return v + 1, z


@program
def view_nograd(x, y):
    with torch.no_grad():
        v = x[0]
    return v, v.requires_grad, v.is_leaf


@program
def view_nograd_comp(x, y):
    z = x * 2
    with torch.no_grad():
        v = z[0]
    return v, z, v * 2


@program
def view_nograd_write(x, y):
    z = x * 2
    with torch.no_grad():
        v = z[0]
        v.add_(1)
    return z * 2, v.detach()


@program
def view_nograd_write_after(x, y):
    z = x * 2
    with torch.no_grad():
        v = z[0]
    try:
        v.add_(1)
    except RuntimeError as e:
        return str(e)
    return z, v


@program
def inf_view(x, y):
    with torch.inference_mode():
        v = x[0]
        w = x * 2
    return v, w, v.is_inference(), w.is_inference()


@program
def inf_write(x, y):
    with torch.inference_mode():
        w = x * 2
        w.add_(1)
    return w


@program
def write_in(x, y):
    z = x * 1
    z[0].add_(y[0])
    z.t()[0].mul_(2)
    return z


@program
def write_in_arg(x, y):
    y.mul_(2)
    y[0] = 5
    return y, y[0], x * y


@program
def version(x, y):
    a = x._version
    y.add_(1)
    y.add_(1)
    return a, x * 2


@program
def version_comp(x, y):
    z = x * 2
    a = z._version
    z.add_(1)
    return a, z._version, z


@program
def ptr(x, y):
    z = x.view(-1)
    return z.data_ptr() == x.data_ptr(), (x * 2).data_ptr() == x.data_ptr(), x[1].data_ptr() - x.data_ptr()


@program
def setto(x, y):
    return x.is_set_to(x.view_as(x)), x.is_set_to(y), x.detach().is_set_to(x)


@program
def offset(x, y):
    return (
        x[1].storage_offset(),
        x[1, 1:].storage_offset(),
        (x * 2)[2].storage_offset(),
        x.t().is_contiguous(),
    )


@program
def storage(x, y):
    return x.untyped_storage().nbytes(), x[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@program
def contiguous_same(x, y):
    c = x.contiguous()
    return c, c is x, x.t().contiguous(), x.to(x.dtype), x.to(x.dtype) is x


@program
def reshape_alias(x, y):
    return x.reshape(-1), x.t().reshape(-1), x.reshape(x.shape), x.flatten(), x.ravel()


@program
def squeeze_(x, y):
    z = (x * 1).unsqueeze(0)
    w = z.squeeze_(0)
    return w, z, w is z


@program
def t_(x, y):
    z = x * 1
    z.t_()
    return z, z.stride()


@program
def unsqueeze_in(x, y):
    z = y.detach()
    z.unsqueeze_(0)
    return z, y.shape


@program
def swapped(x, y):
    a = x.transpose(0, 1)
    a2 = a.transpose(0, 1)
    return a2, a2 is x, a


@program
def diag(x, y):
    z = x * 1
    z.diagonal().fill_(0)
    return z, z.diagonal()


@program
def index_write(x, y):
    z = x * 1
    z[torch.tensor([0, 1])] = y[:2]
    z[z > 1] = 0
    return z, z[0]


@program
def masked(x, y):
    z = x * 1
    z.masked_fill_(y > 0, 3.0)
    return z


@program
def copy_to_view(x, y):
    z = torch.zeros(3, 3)
    z[1].copy_(x[0])
    return z, z[1]


@program
def out_arg(x, y):
    z = torch.empty(3, 3)
    r = torch.add(x.detach(), 1, out=z)
    return r, r is z


@program
def out_view(x, y):
    z = torch.zeros(3, 3)
    r = torch.mul(x.detach()[0], 2, out=z[1])
    return z, r


@program
def retain(x, y):
    z = x * 2
    z.retain_grad() if z.requires_grad else None
    v = z[0]
    return z, v


@program
def hook(x, y):
    z = x * 2
    v = z[0]
    if v.requires_grad:
        v.register_hook(lambda grad: grad * 2)
    return v, z


@program
def reqgrad(x, y):
    z = y.detach().clone().requires_grad_()
    return z, z * x


@program
def reqgrad_view(x, y):
    z = y.detach()[0].requires_grad_()
    return z, z * 2


@program
def swap_inputs(x, y):
    t = y.clone()
    y.copy_(x.detach())
    return t, y


@program
def iadd_name(x, y):
    x = x * 1
    w = x
    x += y
    return x, w, x is w


@program
def loop_views(x, y):
    z = x * 1
    for r in z:
        r.detach().add_(1)
    return z


@program
def loop_views_w(x, y):
    z = x.detach() * 1
    for r in z:
        r.add_(1)
    return z, z[0]


@program
def list_views(x, y):
    z = x * 1
    rows = [z[i] for i in range(3)]
    rows[0] = rows[0] + 1
    return rows, z


@program
def real_imag(x, y):
    c = torch.complex(x.detach(), y.detach())
    c.real.add_(1)
    return c, c.real, torch.view_as_real(c)


@program
def view_dtype(x, y):
    z = x.detach() * 1
    i = z.view(torch.int32)
    i.zero_()
    return z, i


@program
def alias_of_break(x, y):
    a = x.view(-1)
    smelt.graph_break()
    b = a.view(3, 3)
    return a, b, b[0]


@program
def nograd_break(x, y):
    with torch.no_grad():
        v = x[0]
        smelt.graph_break()
        w = v[1:]
    return v, w


@program
def unfold(x, y):
    z = x * 1
    u = z.unfold(0, 2, 1)
    return u, z


@program
def unfold_write(x, y):
    z = x * 1
    u = z.unfold(0, 2, 1)
    try:
        u.add_(1)
    except RuntimeError as e:
        return str(e)
    return u


@program
def repeated_out(x, y):
    z = x * 2
    return z, z, z.view(-1), (z,), {"a": z}


@program
def detach_alias_out(x, y):
    z = x * 2
    return z, z.detach(), z.data, z.detach()[0]


@program
def parameter_data(x, y):
    q = nn.Parameter(y.detach())
    return q * 2


@program
def new_views(x, y):
    z = x.new_zeros(3, 3)
    v = z[0]
    v.copy_(x[0])
    return v, z


@program
def movedim(x, y):
    return x.movedim(0, 1), x.swapaxes(0, 1), x.unsqueeze(0).squeeze(0), x[None], x[...]


@program
def slice_all(x, y):
    a = x[:]
    return a, a is x


@program
def narrow_write(x, y):
    z = x * 1
    z.narrow(0, 0, 2).mul_(y[:2])
    return z, z.narrow(0, 1, 1)


@program
def select_scatter(x, y):
    return x.select_scatter(y[0], 0, 0), x.slice_scatter(y[:1], 0, 0, 1)


@program
def inplace_relu(x, y):
    z = x * 1
    r = torch.relu_(z)
    return z, r, r is z, nn.functional.relu(z, inplace=True) is z


@program
def out_of_detach_chain(x, y):
    z = x * 2
    d = z.detach()
    e = d.view(-1)
    e[0] = 9
    return z, d, e


@program
def write_view_then_read_base(x, y):
    y.view(-1)[0].fill_(4)
    return y.sum(), y


@program
def clone_view(x, y):
    return x[0].clone(), x.t().clone(), x.clone()[0]


@program
def lift(x, y):
    z = torch.tensor([1.0, 2.0])
    z.add_(1)
    return z, z[0]


@program
def zero_grad_view(x, y):
    z = x * 1
    z.zero_()
    return z, z * 2


@program
def stack_views(x, y):
    s = torch.stack(x.unbind())
    return s, s[0]


@program
def no_grad_write_base(x, y):
    z = x * 1
    v = z[0]
    with torch.no_grad():
        z.add_(1)
    return v * 2, z


@program
def no_grad_write_leaf(x, y):
    with torch.no_grad():
        x.mul_(2)
    return x * 3


@program
def view_as_own(x, y):
    return x.view_as(x), x.expand_as(x), x.view(3, 3), torch.ops.aten.alias(x)


@program
def inf_mode_break(x, y):
    with torch.inference_mode():
        a = x.detach() * 2
        smelt.graph_break()
        b = a[0]
        b.add_(1)
    return a, b


class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, g):
        return g.view(3, 3)


@program
def custom_view(x, y):
    v = Flat.apply(x)
    return v


@program
def custom_view_write(x, y):
    v = Flat.apply(x * 1)
    try:
        v.add_(1)
    except RuntimeError as e:
        return str(e)
    return v


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


@program
def custom_dirty(x, y):
    z = x * 1
    w = Dirty.apply(z)
    return w, z, w is z


@program
def custom_dirty_view(x, y):
    z = x * 1
    try:
        w = Dirty.apply(z[0])
    except RuntimeError as e:
        return str(e)
    return w, z


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3))
        self.register_buffer("b", torch.zeros(4))
        self.register_buffer("v", self.b[1:])
        self.register_buffer("wv", self.w.detach()[0])

    def forward(self, x, y):
        self.v.add_(1)
        return self.w[0] + self.v, self.v, self.b if x.sum().dim() else self.wv


class WritesABuffer(Buffers):
    def forward(self, x, y):
        self.b[0] = 7
        r = self.wv * 2 + x
        self.wv = self.w.detach()[1]
        return r, self.b[0], self.wv


class ReplacesBuffers(Buffers):
    def forward(self, x, y):
        self.b = self.b + 1
        self.v = self.b[1:]
        return self.v, self.b * 1, self.w[0]


MODULES = (Buffers, WritesABuffer, ReplacesBuffers)


def numbers(*shape):
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def overlapping():
    memory = numbers(4, 3)
    return memory[:3], memory[1:]


KINDS = {
    "plain": lambda: (numbers(3, 3), torch.ones(3, 3)),
    "leaf": lambda: ((numbers(3, 3) * 1).requires_grad_(), torch.ones(3, 3)),
    "a leaf and a view": lambda: (numbers(3, 3).requires_grad_(), torch.ones(3, 3)),
    "computed": lambda: (numbers(3, 3).requires_grad_() * 1, torch.ones(3, 3)),
    "view": lambda: ((numbers(3, 3, 3).requires_grad_() * 1)[1], torch.ones(4, 3)[1:]),
    "one of several": lambda: ((numbers(3, 3, 3).requires_grad_() * 1).unbind()[1], torch.ones(4, 3)[1:]),
    "one tensor twice": lambda: (torch.ones(3, 3),) * 2,
    "overlapping": overlapping,
}


def tried(run):
    try:
        return run()
    except (RuntimeError, ValueError) as error:
        return text_of(error)


def gradients(found, inputs):
    wanted = [x for x in inputs if x.requires_grad]
    return [
        tried(lambda: torch.autograd.grad((t * t).sum(), wanted, allow_unused=True, retain_graph=True))  # noqa: B023
        for t in found
        if t.requires_grad
    ]


def backward(found, inputs):
    for t in found:
        if t.requires_grad and tried(lambda: t.is_leaf) is False:  # noqa: B023
            yield tried(lambda: (t * t).sum().backward(retain_graph=True))  # noqa: B023


def write(t, value):
    def run():
        t.mul_(value)

    return tried(run)


THEN = {
    "gradients": gradients,
    "backward": lambda found, inputs: list(backward(found, inputs)),
    "a result is written": lambda found, inputs: [write(found[0], 2), *gradients(found, inputs)],
    "another is written": lambda found, inputs: [write(found[min(1, len(found) - 1)], 2)],
    "a result is written with gradients": lambda found, inputs: write(found[0], WEIGHT.clone()),
    "an input is written": lambda found, inputs: write(inputs[0], 2),
    "an input is written with gradients": lambda found, inputs: write(inputs[0], WEIGHT.clone()),
}
WEIGHT = torch.tensor(2.0, requires_grad=True)


def tensors_in(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    return [value] if isinstance(value, torch.Tensor) else []


def facts(tensors, versions):
    storages = [t.untyped_storage()._cdata for t in tensors]
    return [
        (
            tried(lambda: (t * 1).detach()),  # noqa: B023
            t.detach().clone(),
            t.storage_offset(),
            tried(lambda: t.is_leaf),  # noqa: B023
            [i for i, other in enumerate(tensors) if other is t],
            [i for i, other in enumerate(storages) if other == storage],
            None if version is None else t._version - version,  # writes since the call
        )
        for t, storage, version in zip(tensors, storages, versions)
    ]


def observed(fn, inputs, then):
    result = tried(lambda: fn(*inputs))
    found = tensors_in(result)
    own = [*fn.parameters(), *fn.buffers()] if isinstance(fn, nn.Module) else []
    every = [*found, *inputs, *own]
    versions = [None if t.is_inference() else t._version for t in every]
    before = facts(every, versions)
    done = THEN[then](found, inputs) if found else None
    left = [t.grad.clone() for t in every if tried(lambda: t.is_leaf) is True and t.grad is not None]  # noqa: B023
    return result if not found else len(found), before, done, facts(every, versions), left


def made(name):
    torch.manual_seed(0)
    return PROGRAMS[name] if name in PROGRAMS else next(m for m in MODULES if m.__name__ == name)()


# How often its memory was written is in the text of the error, which a graph counts once (docs/tracing.md).
COUNTED = {"write_in_arg": ("a result is written", "another is written", "an input is written")}
# What differs: the limits of docs/tracing.md, and where in its storage a result lies.
SKIPPED = {
    ("no_grad_write_leaf", "view"),  # written without gradients: autograd knows the view as it was before
    ("no_grad_write_leaf", "one of several"),
    ("unbind_nograd", "a leaf and a view"),  # looked at without gradients: whose `requires_grad` it has
    ("view_nograd", "a leaf and a view"),
    ("select_scatter", "view"),  # eager copies the whole storage
    ("select_scatter", "one of several"),
    ("select_scatter", "overlapping"),
}


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
@pytest.mark.parametrize("name", [*PROGRAMS, *(m.__name__ for m in MODULES)])
def test_views_are_eagers(name, backend):
    for at, (kind, then) in enumerate(itertools.product(KINDS, THEN)):
        if (
            at % 3 != (backend == "smelt")  # each backend has a third of the pairs, no two the same
            or (name, kind) in SKIPPED
            or then in COUNTED.get(name, ())
        ):
            continue
        eager, original = made(name), made(name)
        compiled = smelt.compile(original, backend=backend)
        for _ in range(2):
            want = observed(eager, KINDS[kind](), then)
            same(observed(compiled, KINDS[kind](), then), want, f"{kind}, {then}")
        check_no_failure(compiled)


@pytest.mark.parametrize("kind", KINDS)
def test_detached_views_share_what_they_are_views_of(kind):
    compiled = smelt.compile(PROGRAMS["detach_bases"], backend="aot_eager")
    seen = []
    for fn in (PROGRAMS["detach_bases"], compiled):
        x, y = KINDS[kind]()
        every = [*fn(x, y), x]
        bases = [t if t._base is None else t._base for t in every]
        seen.append([[i for i, base in enumerate(bases) if base is bases[k]] for k in range(len(every))])
    assert seen[0] == seen[1]
    check_no_failure(compiled)
