"""Custom `autograd.Function`s: their backwards are part of the compiled backward, where nobody can tell it from eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import smelt
from smelt import events
from tests.harness.agreement import same
from tests.harness.catalogue import DEVICE
from tests.harness.training import BACKENDS, both, gradients, leaf, raised

FACTOR = 3.0


class Round(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Reverse(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.alpha * g, None


class Gelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (0.5 * (1 + torch.erf(x * 0.5**0.5)) + x * torch.exp(-0.5 * x * x) * 0.3989422804014327)


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, scale = ctx.saved_tensors
        h = g * weight
        return (h - x * scale.pow(2) * (h * x).mean(-1, keepdim=True)) * scale, (g * x * scale).sum(0), None


class SwiGLU(Function):
    @staticmethod
    def forward(a, b):
        return F.silu(a) * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        s = a.sigmoid()
        to_a = g * b * s * (1 + a * (1 - s)) if ctx.needs_input_grad[0] else None
        return to_a, g * a * s if ctx.needs_input_grad[1] else None


class Quantize(Function):
    @staticmethod
    def forward(ctx, x, scale, low, high):
        levels = (x / scale).round()
        ctx.mask = (levels >= low) & (levels <= high)
        return levels.clamp(low, high) * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask, None, None, None


class LinearCrossEntropy(Function):
    """Chunk by chunk; the gradient is computed on the way forward."""

    @staticmethod
    def forward(ctx, x, weight, target, n_chunks):
        to_x, to_weight, loss = torch.zeros_like(x), torch.zeros_like(weight), x.new_zeros(())
        for part, wanted, place in zip(x.chunk(n_chunks), target.chunk(n_chunks), to_x.chunk(n_chunks)):
            logits = part @ weight.t()
            loss = loss + F.cross_entropy(logits, wanted, reduction="sum")
            error = logits.softmax(-1) - F.one_hot(wanted, weight.shape[0])
            place.copy_(error @ weight)
            to_weight += error.t() @ part
        ctx.save_for_backward(to_x, to_weight)
        return loss

    @staticmethod
    def backward(ctx, g):
        to_x, to_weight = ctx.saved_tensors
        return g * to_x, g * to_weight, None, None


class Clip(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.5, 0.5)


class Pair(Function):
    @staticmethod
    def forward(ctx, x, zeros, name):
        ctx.set_materialize_grads(zeros)
        return x * 2, x.argmax(), x.sin(), name

    @staticmethod
    def backward(ctx, a, places, b, name):
        assert name is None
        parts = [0 if a is None else a * 2, 0 if b is None else b * 7]
        return sum(parts), None, None


class Again(Function):
    """Computes again what it differentiates."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).sin()

    @staticmethod
    def backward(ctx, g):
        x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = (x @ w).sin()
        return torch.autograd.grad(y, (x, w), g)


class Doubled(Function):
    """Writes its argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Product(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g * torch.is_autocast_enabled("cpu")


class Other(Function):
    """A gradient of another dtype, to be summed; and it calls another custom function."""

    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return (Clip.apply(g) + Round.apply(g)).double().expand(2, *g.shape)


class Fills(Function):
    """Writes what it has made itself."""

    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        out = torch.zeros_like(g)
        out[1:] = g[1:]
        return out.mul_(3)


def amp(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return Product.apply(x, w).float()


class Scaled(Function):
    """With an `apply` of its own, and defaults."""

    @classmethod
    def apply(cls, x, *more, **named):
        return super().apply(x * 2, *more, **named) + 1

    @staticmethod
    def forward(x, factor=3.0):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class ScaledMore(Scaled):
    pass


TARGET = torch.tensor([0, 2, 1, 0], device=DEVICE)
PROGRAMS = {
    "an apply of its own": lambda x, w: Scaled.apply(x @ w).sin(),
    "an apply that is inherited": lambda x, w: ScaledMore.apply(x @ w, 2.0).sin(),
    "a method of the class, kept": lambda x, w: (lambda apply: apply(x @ w) + apply(x))(Gelu.apply),
    "straight through": lambda x, w: (Round.apply(x @ w * 3) * x).sum(),
    "gradient reversal": lambda x, w: (Reverse.apply(x @ w, 0.3) @ w).tanh(),
    "reversal of an input": lambda x, w: Reverse.apply(x, 0.3) @ w,
    "gelu": lambda x, w: Gelu.apply(x @ w) @ w,
    "rms norm": lambda x, w: RMSNorm.apply(x @ w, w[0], 1e-5),
    "swiglu": lambda x, w: SwiGLU.apply(x @ w, x) + SwiGLU.apply(x, (x @ w).detach()),
    "quantizer": lambda x, w: Quantize.apply(x, 0.25, -3, 3) @ Quantize.apply(w, 0.25, -3, 3),
    "chunked loss": lambda x, w: LinearCrossEntropy.apply(x.tanh(), w, TARGET, 2) * 2,
    "loss beside logits": lambda x, w: (LinearCrossEntropy.apply(x, w, TARGET, 3), x @ w.t()),
    "clipped": lambda x, w: Clip.apply(x @ w).sin(),
    "one of two": lambda x, w: Pair.apply(x @ w, True, "a")[2] * 3,
    "two of two": lambda x, w: Pair.apply(x @ w, True, "a"),
    "none for zero": lambda x, w: Pair.apply(x @ w, False, "a")[0] * 3,
    "computes again": lambda x, w: Again.apply(x.sin(), w),
    "writes its argument": lambda x, w: Doubled.apply(x @ w).sin(),
    "autocast": amp,
    "other dtype and shape": lambda x, w: Other.apply(x @ w),
    "fills": lambda x, w: Fills.apply(x @ w),
    "in a checkpoint": lambda x, w: checkpoint(lambda y: Gelu.apply(y @ w).sin(), x, use_reentrant=False),
}


@both()
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_each_way(compile, name):
    f, x, w = compile(PROGRAMS[name]), leaf(4, 3), leaf(3, 3)
    for _ in range(2):
        given = f(x, w)
        given = [t for t in (given if isinstance(given, tuple) else (given,)) if isinstance(t, torch.Tensor)]
        sum((t * torch.randn(t.shape)).sum() for t in given if t.requires_grad).backward()
    return given, gradients(x, w)


@pytest.mark.parametrize("function", [Scaled, ScaledMore, Gelu])
def test_an_apply_of_its_own_is_called_once_where_calls_run_as_they_are(function):
    f = lambda x: function.apply(x * 2).sin()  # noqa: E731
    x = leaf(3)
    same_x = x.detach().clone().requires_grad_()
    given, expected = smelt.compile(f, backend="eager")(x), f(same_x)
    given.sum().backward()
    expected.sum().backward()
    assert torch.equal(given, expected) and torch.equal(x.grad, same_x.grad)


@both()
@pytest.mark.parametrize("of", [(0,), (1,), (0, 1)])
def test_some_outputs_are_differentiated(compile, of):
    f, x, w = (
        compile(lambda x, w: (Gelu.apply(x @ w), LinearCrossEntropy.apply(x, w, TARGET, 2))),
        leaf(4, 3),
        leaf(3, 3),
    )
    y = f(x, w)
    sum(y[i].sum() for i in of).backward()
    return gradients(x, w)


@both()
def test_what_one_output_alone_leads_to_has_no_gradient(compile):
    f, x, w = compile(lambda x, w: (x.sin(), Gelu.apply(w))), leaf(3), leaf(3)
    f(x, w)[0].sum().backward()
    return gradients(x, w)


@both()
def test_retained_graph(compile):
    f, x = compile(lambda x: Clip.apply(Gelu.apply(x)).sum()), leaf(3)
    y = f(x)
    y.backward(retain_graph=True)
    y.backward()
    return gradients(x)


@both()
@pytest.mark.parametrize("function", [Gelu, Clip, lambda: None], ids=["gelu", "clip", "once"])
def test_second_derivatives(compile, function):
    if isinstance(function, type):
        f = compile(lambda x, w: function.apply(x * 3) * w)
    else:
        f = compile(lambda x, w: RMSNorm.apply(x, w[0], 1e-5))
    x, w = leaf(4, 3), leaf(4, 3)
    (g,) = torch.autograd.grad(f(x, w).sin().sum(), x, create_graph=True)
    return g, raised(lambda: g.pow(2).sum().backward()), gradients(x, w)


@both()
def test_saved_tensor_that_is_written(compile):
    f, x = compile(lambda x: Gelu.apply(x)), leaf(3)
    y = f(x)
    with torch.no_grad():
        x.add_(1)
    kind, text = raised(lambda: y.sum().backward())
    return kind, "modified by an inplace operation" in text


# ------------------------------------------------------------------------------------- what a backward reads


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2.0

    def forward(self, x):
        return Reads.apply(x, self) * 2


class Reads(Function):
    shift = 0.5

    @staticmethod
    def forward(ctx, x, net):
        ctx.net = net
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * FACTOR * ctx.net.factor + Reads.shift, None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["global", "attribute", "class", "backward"])
def test_what_it_reads_is_guarded(backend, what, monkeypatch):
    net = Net()
    f = smelt.compile(lambda x: net(x), backend=backend)

    def gradient(fn):
        x = torch.ones(3, requires_grad=True)
        fn(x).sum().backward()
        return x.grad

    def check():
        same(gradient(f), gradient(net), "")

    check()
    if what == "global":
        monkeypatch.setitem(globals(), "FACTOR", 5.0)
    elif what == "attribute":
        net.factor = 7.0
    elif what == "class":
        monkeypatch.setattr(Reads, "shift", 1.5)
    else:
        monkeypatch.setattr(Reads, "backward", staticmethod(lambda ctx, g: (g * 11, None)))
    check()
    assert len(smelt.report.inspect.entries(f)) == 2


@both()
def test_what_the_program_sets_after_the_call(compile):
    net = Net()

    def fn(x):
        y = Reads.apply(x, net)
        net.factor = 10.0
        return y * 2

    f, x = compile(fn), leaf(3)
    f(x).sum().backward()
    return gradients(x), net.factor


class Keeps(Function):
    """Keeps a list of tensors, or a dictionary of lists."""

    @staticmethod
    def forward(ctx, x, values):
        ctx.values = values
        return x * (values if isinstance(values, list) else values["a"])[0]

    @staticmethod
    def backward(ctx, g):
        values = ctx.values if isinstance(ctx.values, list) else ctx.values["a"]
        return g * values[0] * len(values), None


@both()
@pytest.mark.parametrize("change", ["", "item", "more", "another"])
def test_a_container_of_tensors(compile, change):
    def fn(x, values):
        y = Keeps.apply(x, values) + Keeps.apply(x, {"a": values})
        if change == "item":
            values[0] = x * 5
        elif change == "more":
            values.append(x)
        elif change == "another":
            values = [x * 7]
        return y * values[0]

    f, x = compile(fn), leaf(3)
    for held in ([leaf(3), leaf(3)], [leaf(3), leaf(3)], [leaf(3), leaf(3), leaf(3)]):
        values = list(held)
        f(x, values).sum().backward()
    return gradients(x, *held), len(values)


@both()
def test_containers_of_the_program(compile):
    def fn(x, w):
        values = [w, x]
        y = Keeps.apply(x, values)
        values[0] = x * 5
        return y

    f, x, w = compile(fn), leaf(3), leaf(3)
    f(x, w).sum().backward()
    return gradients(x), w.grad


@pytest.mark.parametrize("handles", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
@both(whole=False)
def test_a_checkpoint_around_a_compiled_call_with_effects(compile, breaks, handles):
    """The checkpoint ends its second run by an exception, as soon as all values are saved."""
    linear, norm, seen = nn.Linear(4, 4), nn.BatchNorm1d(4), []

    @compile
    def f(x):
        seen.append(len(seen))
        if handles:
            try:
                h = norm(linear(x))
            except ValueError:
                h = x
        else:
            h = norm(linear(x))
        if breaks:
            smelt.graph_break()
        return F.dropout(linear(h), 0.3).exp()

    x = leaf(3, 4)
    for _ in range(2):
        checkpoint(f, x, use_reentrant=False).sum().backward()
    return gradients(x, *linear.parameters()), norm.running_mean, norm.num_batches_tracked, torch.rand(1)


@both()
def test_a_checkpoint_of_a_list(compile):
    f = compile(lambda x, ws: checkpoint(lambda x, ws: (x * ws[0]).sin() * ws[1], x, ws, use_reentrant=False))
    x, ws = leaf(3), [leaf(3), leaf(3)]
    f(x, ws).sum().backward()
    return gradients(x, *ws)


class Appends(Function):
    @staticmethod
    def forward(ctx, x, values):
        values.append(x * 2)
        values[0] = x * 3
        return x * len(values)

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
def test_a_forward_that_changes_a_list_of_tensors(backend, differentiated):
    def seen(f):
        torch.manual_seed(0)
        x, values = leaf(3), [torch.ones(3)]
        with torch.set_grad_enabled(differentiated):
            return f(x, values), values, len(values)

    compiled = smelt.compile(lambda x, values: Appends.apply(x, values), backend=backend)
    for _ in range(2):
        same(seen(compiled), seen(Appends.apply), "")


@pytest.mark.parametrize("backend", ["eager", lambda graph, inputs: graph.forward])
@pytest.mark.parametrize("values", [lambda w: [w, w], lambda w: {"a": [w]}, lambda w: [2.0]])
def test_a_container_that_changes_behind_the_call(backend, values):
    """The graph of such a backend calls `forward`, each time with a new container."""

    def fn(x, w):
        held = values(w)
        y = Keeps.apply(x, held)
        (held if isinstance(held, list) else held["a"])[0] = x * 5
        return y

    def seen(f):
        torch.manual_seed(0)
        x, w = leaf(3), leaf(3)
        f(x, w).sum().backward()
        return gradients(x)

    compiled = smelt.compile(fn, backend=backend)
    for _ in range(2):
        same(seen(compiled), seen(fn), "")


# ------------------------------------------------------------------------------------- what autograd does itself


def simple(backward):
    """A function with this backward."""

    class Simple(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.count, ctx.seen = 1, []
            return x * 2

    Simple.backward = staticmethod(backward)
    return Simple


LOG = []


def _counts(ctx, g):
    ctx.count += 1
    return g * ctx.count


def _prints(ctx, g):
    print("backward")
    return g


def _logs(ctx, g):
    LOG.append(1)
    return g


def _reads_a_value(ctx, g):
    return g if g.sum().item() > 0 else g * 2


def _raises(ctx, g):
    raise LookupError("no gradient")


def _inside(ctx, g):
    (x,) = ctx.saved_tensors
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        x.sin().backward(g)
    return x.grad


TABLE = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
REFUSED = {
    "random numbers": (lambda ctx, g: g * torch.rand_like(g), "draws random numbers"),
    "writes the gradient": (lambda ctx, g: g.mul_(2), "writes a tensor"),
    "writes a saved tensor": (lambda ctx, g: ctx.saved_tensors[0].detach().mul_(g), "writes a tensor"),
    "print": (_prints, "changes an environment object"),
    "outside list": (_logs, "changes an environment object"),
    "own count": (_counts, "changes its ctx"),
    "own list": (lambda ctx, g: (ctx.seen.append(1), g)[1], "changes its ctx"),
    "value": (_reads_a_value, "item"),
    "raises": (_raises, "no gradient"),
    "backward inside": (_inside, "backward"),
    "another tensor": (lambda ctx, g: g * TABLE, "that the forward does not"),
}


def check_refused(program, says, backend, make=lambda: (leaf(3),)):
    """The program is right, with autograd's own backward, for this reason."""

    def run(fn):
        torch.manual_seed(0)
        inputs = make()
        found = []
        for _ in range(2):
            given = fn(*inputs)
            given = given if isinstance(given, tuple) else (given,)
            found.append(raised(lambda: sum(t.sum() for t in given).backward()))  # noqa: B023
        return found, given, gradients(*inputs)

    compiled, seen = smelt.compile(program, backend=backend), []
    want = run(program)
    with events.subscribed(lambda e: seen.append(e) if e.kind == "no-joint-graph" else None):
        same(run(compiled), want, "")
    assert [says in e.data["reason"].detail for e in seen] == [True], seen
    assert not smelt.report.inspect.reasons(compiled)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, backend):
    backward, says = REFUSED[name]
    function = simple(backward)
    check_refused(lambda x: function.apply(x * 2).sin(), says, backend)


CONSTANT = simple(lambda ctx, g: torch.ones_like(ctx.saved_tensors[0]))
SEVERAL = {
    "clipped": (lambda x: (lambda h: (h.sin(), h.cos()))(Clip.apply(x)), "need not be linear"),
    "clipped cut": (lambda x: (lambda h: (h, h.cos()))(Clip.apply(x)), "need not be linear"),
    "constant": (lambda x: (CONSTANT.apply(x), x.sin()), "depends on none"),
    "none for zero": (lambda x: Pair.apply(x, False, "")[::2], "takes None for zero"),
    "view of an input": (lambda x: Reverse.apply(x, 0.3), "is a view"),
    "view of a result": (lambda x: (lambda h: (h, Reverse.apply(h, 0.3)))(x * 2), "is a view"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SEVERAL)
def test_refused_beside_other_outputs(name, backend):
    program, says = SEVERAL[name]
    check_refused(program, says, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_returned_changes_in_the_backward(backend):
    class Notes(Function):
        @staticmethod
        def forward(ctx, x, notes):
            ctx.notes = notes
            return x * 2

        @staticmethod
        def backward(ctx, g):
            ctx.notes.append("called")
            return g, None

    def fn(x):
        notes = ["made"]
        return Notes.apply(x, notes).sum(), notes

    f, x = smelt.compile(fn, backend=backend), leaf(3)
    y, notes = f(x)
    y.backward()
    assert x.grad is not None
    assert notes[0] == "made"


CURRIED = pytest.mark.skipif(
    not hasattr(torch.utils.checkpoint, "_checkpoint_impl"),
    reason="torch has checkpoint as a decorator since 2.14",
)


@CURRIED
@both()
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_as_a_decorator(compile, reentrant):
    @checkpoint(use_reentrant=reentrant)
    def block(x, w):
        return Gelu.apply(x @ w).sin()

    f, x, w = compile(lambda x, w: block(x, w) + 1), leaf(4, 3), leaf(3, 3)
    f(x, w).sum().backward()
    return gradients(x, w)


@CURRIED
@both()
def test_checkpoint_made_inside(compile):
    def program(x, w):
        wrapped = checkpoint(use_reentrant=False, preserve_rng_state=False)(lambda a, b: (a @ b).sin())
        return wrapped(x, w).cos()

    f, x, w = compile(program), leaf(4, 3), leaf(3, 3)
    f(x, w).sum().backward()
    return gradients(x, w)


@pytest.mark.skipif(
    not hasattr(Function, "set_output_grad_dtype"),
    reason="torch has it since 2.14",
)
@both(whole=False, ahead=False)
def test_dtypes_of_the_gradients_of_outputs(compile):
    class Cast(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_output_grad_dtype(torch.float32)
            return x.bfloat16()

        @staticmethod
        def backward(ctx, g):
            return (g * 2).to(torch.float32)

    f, x = compile(lambda x: Cast.apply(x).sin()), leaf(3)
    f(x).float().sum().backward()
    return gradients(x)
