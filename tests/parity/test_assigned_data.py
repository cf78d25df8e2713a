"""Programs that assign to the `data` of a tensor: what later operators, the caller and autograd see of it."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure, same


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def tensor(*shape):
    return torch.randn(*shape)


def _state(value):
    """What a caller can observe of a tensor besides its values."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone(), value.requires_grad, value.is_leaf, value.grad


def _versions(values):
    return [0 if v.is_inference() else v._version for v in values]


def _shares(values):
    memory = [v.untyped_storage().data_ptr() if v.numel() else 0 for v in values]
    return [[a == b for a in memory] for b in memory]


def _observe(fn, make, calls=3):
    torch.manual_seed(0)
    found = []
    for _ in range(calls):
        arguments = make()
        try:
            result = fn(*arguments)
        except Exception as error:
            found.append((type(error).__name__, str(error)))
            continue
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        every = [v for v in (*results, *arguments) if isinstance(v, torch.Tensor)]
        found.append([_state(v) for v in (*results, *arguments)])
        found.append([[a is b for a in every] for b in every])
        found.append(_shares(every))
        found.append([version > 0 for version in _versions(arguments)])
        with torch.no_grad():
            for v in (v for v in every if not v.is_inference()):
                before = _versions(every)
                v.add_(1)
                found.append([now > old for now, old in zip(_versions(every), before)])
    return found


def same_as_eager(fn, make, *, graphs=1, backend="smelt"):
    want = _observe(fn, make)
    compiled = smelt.compile(fn, backend=backend)
    same(_observe(compiled, make), want)
    check_no_failure(compiled)
    if graphs is not None:
        assert len(entries(compiled)) == graphs, (len(entries(compiled)), reasons(compiled))
    return compiled


def with_inplace_write(x, y):
    x.data = y
    x.add_(1)
    return x


def with_old_data(x, y):
    x.data = y
    y.data = torch.zeros([0])
    return x


def with_later_write_of_the_new_data(x, y):
    x.data = y
    y.add_(1)
    return x * 2


def with_writes_of_both(x, y):
    x.data = y
    x.mul_(2)
    y.add_(1)
    return y + x, x.sum()


def with_swap(x, y):
    t = x.data
    x.data = y.data
    y.data = t
    return x - y


def with_other_shape(x, y):
    x.data = y[:2].half().unsqueeze(1).expand(2, 4).contiguous()
    return x.shape[0], x.stride()[0], x.sum(dim=1), x.dtype == torch.float16


def with_itself(x, y):
    x.data = x
    x.data = x.data.neg()
    return x + y


def with_result(x, y):
    new = y * 2
    x.data = new
    return new, x.data


def with_row(x, y):
    base = torch.stack([y, y + 1])
    x.data = base[1]
    base.add_(1)
    return x * 2


def with_two_values(x, y):
    x.data = y
    first = x * 2
    x.data = y + 1
    return first, x * 3


def with_condition(x, y):
    x.data = y.abs()
    return x + 1 if x.shape[0] > 2 and x.is_contiguous() else x - 1


@pytest.mark.parametrize(
    "fn",
    [
        with_inplace_write, with_old_data, with_later_write_of_the_new_data, with_writes_of_both, with_swap,
        with_other_shape, with_itself, with_result, with_row, with_two_values, with_condition,
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["smelt", "eager", "aot_eager"])
def test_without_gradients(fn, backend):
    same_as_eager(fn, lambda: (tensor(6), tensor(6)), backend=backend)


def _view_of_x(x, y):
    x.data = y
    return x.view(2, 3)


def _detached_x(x, y):
    x.data = y
    return x.detach()


def _view_before(x, y):
    v = x.view(2, 3)
    x.data = y
    v.add_(1)
    return x + 1, v


def _written_before(x, y):
    x.add_(1)
    x.data = y
    return x + 1


def _written_through_data(x, y):
    x.data = y
    x.data.mul_(3)
    return x.sum()


def _item(x, y):
    x.data = y
    return y * x[0].item(), round(float(x.sum()), 3)


def _branch(x, y):
    x.data = y
    return x + 1 if x[0] > 0 else x - 1


def _numpy(x, y):
    x.data = y
    return torch.from_numpy(x.numpy() * 2)


def _text(x, y):
    x.data = y
    return f"{x}"


def _inplace_shape(x, y):
    x.data = y.view(2, 3)
    x.t_()
    return x + 1


def _storage(x, y):
    x.data = y
    return x.data_ptr() == y.data_ptr(), x._version, x.storage_offset(), x.is_set_to(y)


def _created(x, y):
    z = torch.empty(6)
    z.data = y
    z.add_(1)
    return z


def _no_tensor(x, y):
    x.data = 3


def _copies(x, y):
    x.data = y * 2
    return copy.deepcopy(x), x.clone()


def _attribute(x, y):
    x.note = 1
    x.data = y
    x.other = x.note + 1
    return x.other


def _requires_grad(x, y):
    x.data = y
    x.requires_grad_()
    return x.sum()


def _iterated(x, y):
    x.data = y
    return [row + 1 for row in x], len(x), x in [x]


def _index(x, y):
    i = x.abs().long() % 3
    i.data = i + 1
    return y[i]


SPARSE = torch.eye(6).to_sparse()


def _sparse_outside(x, y):
    x.data = SPARSE
    return x.is_sparse


def _sparse(x, y):
    x.data = y.to_sparse()
    return x.is_sparse


def _under_inference(x, y):
    with torch.inference_mode():
        x.data = y * 2
        z = x + 1
    return z


def _function(x, y):
    x.data = y
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)


def _reshaped_in_place(x, y):
    x.data = y
    x.unsqueeze_(0)
    return x + 1


def _deleted_attribute(x, y):
    x.note = 1
    x.data = y
    del x.note
    return hasattr(x, "note"), x + 1


def _keys(x, y):
    x.data = y
    return len({x: 1, y: 2}), x in {x, y}


@pytest.mark.parametrize(
    "fn",
    [
        _sparse_outside, _reshaped_in_place, _deleted_attribute, _keys, _view_of_x, _detached_x, _view_before,
        _written_before, _written_through_data, _item, _branch, _numpy, _text, _inplace_shape, _storage, _created,
        _no_tensor, _copies, _attribute, _requires_grad, _iterated, _index, _sparse, _under_inference, _function,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["two", "same", "views"])
def test_other_uses(fn, kind):
    def make():
        x = tensor(12)
        return {"two": (tensor(6), tensor(6)), "same": (x[:6], x[:6]), "views": (x[:6], x[3:9])}[kind]

    def one(fn):
        return (lambda x, _: fn(x, x)) if kind == "same" else fn

    same_as_eager(one(fn), make, graphs=None)


# ------------------------------------------------------------------------------------------------------ gradients


def _both(program, *, graphs=None):
    """Compare what `program(compile)` gives, eager and compiled."""
    compiled = []
    torch.manual_seed(0)
    want = program(lambda f: f)
    torch.manual_seed(0)
    got = program(lambda f: compiled.append(smelt.compile(f)) or compiled[-1])
    same(got, want)
    for c in compiled:
        check_no_failure(c)
    if graphs is not None:
        assert [len(entries(c)) for c in compiled] == graphs, [reasons(c) for c in compiled]


def test_descent_outside_of_the_forward():
    def program(compile):
        model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), tensor(5, 3)

        def step(lr):
            for p in model.parameters():
                p.data = p.data - lr * p.grad.data
                p.grad = None

        run = compile(step)
        losses = []
        for _ in range(4):
            loss = model(x).square().sum()
            loss.backward()
            run(0.1)
            losses.append(loss.detach())
        return losses, [(p.detach(), p.grad, p._version) for p in model.parameters()]

    _both(program, graphs=[1])


def test_a_training_step_with_descent():
    def program(compile):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

        def step(x):
            loss = model(x).square().sum()
            loss.backward()
            for p in model.parameters():
                p.data = p.data - 0.1 * p.grad
                p.grad.zero_()
            return loss.detach()

        run = compile(step)
        return [run(tensor(5, 3)) for _ in range(4)], [(p.detach(), p.grad) for p in model.parameters()]

    _both(program)


def test_averaged_parameters():
    def program(compile):
        model, average = nn.Linear(3, 2), nn.Linear(3, 2)

        def update(x):
            with torch.no_grad():
                for p, q in zip(model.parameters(), average.parameters()):
                    q.data = q.data * 0.9 + p.data * 0.1
                    q.data.clamp_(-1, 1)
                return average(x) + model(x)

        run = compile(update)
        return [run(tensor(4, 3)) for _ in range(3)], [(p.detach(), p._version) for p in average.parameters()]

    _both(program, graphs=[1])


def test_forward_after_normalized_weights():
    def program(compile):
        w = leaf(3, 3)

        def forward(x):
            w.data = w.data / w.data.norm()
            return (x @ w).tanh().sum()

        run, found = compile(forward), []
        for _ in range(3):
            loss = run(tensor(4, 3))
            loss.backward()
            found.append((loss.detach(), w.grad.clone(), w.detach().clone()))
        return found

    _both(program)


@pytest.mark.parametrize("how", [lambda w: w * w, lambda w: w.exp()])
def test_data_is_set_between_use_and_backward(how):
    def program(compile):
        w = leaf(3)

        def forward(x):
            z = how(w)
            w.data = x
            return z, w * 3

        z, u = compile(forward)(tensor(3))
        return z.detach(), torch.autograd.grad(z.sum() + u.sum(), w)

    _both(program)


def test_use_through_a_checkpoint_or_a_function():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    def program(compile):
        w = leaf(3)

        def forward(x, how):
            w.data = x * 2
            z = (
                Scale.apply(w)
                if how
                else torch.utils.checkpoint.checkpoint(torch.sin, w, use_reentrant=False)
            )
            return z.sum()

        run, found = compile(forward), []
        for how in (True, False):
            loss = run(tensor(3), how)
            loss.backward()
            found.append((loss.detach(), w.grad.clone()))
        return found

    _both(program)


def test_gradient_is_set_and_read_around_it():
    def program(compile):
        w = leaf(3)
        w.grad = tensor(3)

        def f(x):
            w.data = x
            before = w.grad * 2
            w.grad = x.sum(0, keepdim=True).expand(3).clone()
            w.grad.add_(1)
            return before, w.grad, w.requires_grad, w.is_leaf

        run = compile(f)
        return [run(tensor(3)) for _ in range(3)], w.grad, w.detach()

    _both(program)


def test_gradient_of_the_former_shape():
    def program(compile):
        w = leaf(3)

        def f(x):
            w.grad = x
            w.data = torch.cat([x, x])
            return w.grad

        return compile(f)(tensor(3)), w.grad, w.detach()

    _both(program)


def test_a_source_that_requires_gradients():
    def program(compile):
        x, y = tensor(3), leaf(3)

        def f(x):
            z = y * 2
            x.data = z
            return x + 1, z.sum()

        u, loss = compile(f)(x)
        loss.backward()
        return u, x.requires_grad, x, y.grad

    _both(program)


def test_sizes_that_change():
    def program(compile):
        def f(x, y):
            x.data = y * 2
            return x.sum(0) + x.shape[0], x

        run = compile(f)
        return [run(tensor(n, 2), tensor(m, 2)) for n, m in ((3, 3), (4, 4), (1, 1), (6, 2), (7, 8), (0, 2))]

    _both(program)


def test_a_tensor_read_from_two_places():
    def program(compile):
        class Holder:
            pass

        h = Holder()
        h.a = h.b = tensor(3)

        def f(x):
            h.a.data = x * 2
            return h.b + 1, h.a is h.b

        run = compile(f)
        found = [run(tensor(3)) for _ in range(2)]
        h.b = tensor(3)
        return found, run(tensor(3)), h.a, h.b

    _both(program)


def test_a_saved_tensor_is_written_after_its_data_was_set():
    """The compiled write increments the version that autograd checks."""

    def program(compile):
        w = leaf(3)
        x = w * 2
        y = x.exp() * x

        def f(d):
            with torch.no_grad():
                x.data = d
                x.add_(1)

        compile(f)(tensor(3))
        try:
            y.sum().backward()
        except RuntimeError as error:
            return str(error)[:60]
        return w.grad

    _both(program)


def test_a_break_after_it():
    def program(compile):
        def f(x, y):
            x.data = y
            n = x.sum().item()
            x.add_(n)
            return x * 2

        run = compile(f)
        return [(run(x, tensor(3)), x, x._version) for x in (tensor(3), tensor(3))]

    _both(program, graphs=[1])


@pytest.mark.parametrize("fn", [_view_of_x, _detached_x])
def test_a_view_that_leaves_breaks_the_graph_before_the_assignment(fn):
    compiled = same_as_eager(fn, lambda: (tensor(6), tensor(6)), graphs=None)
    assert [r.detail for r in reasons(compiled)] == ["the data of a tensor is set"]


# ------------------------------------------------------------------------------- torch's own assignments, in modules


def _net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _convert(m, x):
    return m.to(torch.bfloat16).float()(x)


def _double(m, x):
    return m.double()(x.double())


def _clamp(m, x):
    for layer in (m[0], m[2]):
        layer.weight.data = layer.weight.data.clamp(-0.1, 0.1)
    return m(x)


def _from_vector(m, x):
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(m.parameters()) * 0.5, m.parameters())
    return m(x)


def _after_use(m, x):
    y = m(x)
    for p in m.parameters():
        p.data = p.data * 0.5
    return y


@pytest.mark.parametrize("fn", [_convert, _double, _clamp, _from_vector, _after_use])
@pytest.mark.parametrize("grad", [False, True])
def test_modules(fn, grad):
    def program(compile):
        model, found = _net(), []
        run = compile(lambda x: fn(model, x))
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                y = run(tensor(5, 3))
                if grad:
                    model.zero_grad()
                    y.sum().backward()
                found.append((y.detach(), [(p.detach().clone(), p.grad) for p in model.parameters()]))
        return found

    _both(program, graphs=None if grad or fn is _double else [1])


def _written(x, y):
    x.data = x.data * 2
    return y + 0


def _each_of_a_list(*tensors):
    for t in tensors:
        t.data = t.data - 1
    return sum(t.sum() for t in tensors)


def _swapped(a, b, c):
    a.data, b.data = b.data, a.data
    return c * 2


@pytest.mark.parametrize(
    "fn, equal",
    [(_written, (0, 0)), (_each_of_a_list, (0, 0)), (_each_of_a_list, (0, 1, 0)), (_swapped, (0, 1, 1))],
)
def test_arguments_that_are_one_tensor_in_a_later_call(fn, equal):
    def program(compile):
        run, found = compile(fn), []
        for order in (range(len(equal)), equal, range(len(equal)), equal):
            tensors = [torch.arange(3.0) + i for i in range(len(equal))]
            arguments = [tensors[i] for i in order]
            found.append((run(*arguments), [t.clone() for t in arguments]))
        return found

    same(program(smelt.compile), program(lambda f: f))


@pytest.mark.parametrize("flag", [False, True])
def test_a_flag_set_before_the_data(flag):
    def fn(x, y):
        x.requires_grad_(flag)
        x.data = y
        return x * 3

    def program(run):
        x = torch.ones(2, requires_grad=not flag)
        y = run(x, torch.full((2,), 5.0))
        return x.requires_grad, y.requires_grad, y.detach()

    compiled = smelt.compile(fn)
    for _ in range(2):
        same(program(compiled), program(fn))
    check_no_failure(compiled)


def test_arrays_that_are_drawn_beside_assigned_data():
    """Such an input of the graph is no tensor of the environment, which could be the assigned one."""

    def fn(x, y):
        x.data = x.data * 2
        return x * torch.from_numpy(np.random.rand(3)), torch.from_numpy(ARRAY) + y

    def program(compile):
        run, found = compile(fn), []
        for seed in range(3):
            np.random.seed(seed)
            x = torch.ones(3)
            found.append((run(x, torch.ones(3)), x))
        return found

    compiled = smelt.compile(fn)
    same(program(lambda _: compiled), program(lambda f: f))
    assert len(entries(compiled)) == 1 and not reasons(compiled)


ARRAY = np.arange(3.0)


def _moved_gradient(x, y):
    y.grad, x.grad = x.grad, None
    return y.grad


def _accumulated(x, y):
    (x * y).sum().backward()
    return x.detach() - y.detach()


def _last_of_three(x, y):
    for tensor, factor in ((x, 1), (y, 2), (x, 3)):
        tensor.grad = tensor.detach() * factor
    return x.detach() + 1


def _frozen_for_a_moment(x, y):
    x.requires_grad_(False)
    product = y * 2
    x.requires_grad_(True)
    return product


def _hooked(x, y):
    x.register_hook(lambda grad: grad * 5)
    (y * 2).sum().backward()


def _noted(x, y):
    before = hasattr(y, "note")
    x.note = "x"
    found = before, getattr(y, "note", "nothing")
    y.note = "y"
    return found, x.note


@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize(
    "fn", [_moved_gradient, _accumulated, _last_of_three, _frozen_for_a_moment, _hooked, _noted]
)
def test_state_of_arguments_that_are_one_tensor_in_a_later_call(fn, has_grad):
    def program(compile):
        run, found = compile(fn), []
        for is_one in (False, True, False, True):
            x = torch.arange(3.0, requires_grad=True)
            y = x if is_one else torch.full((3,), 2.0, requires_grad=True)
            for t in (x, y) if has_grad else ():
                t.grad = t.detach() + 5
            result = run(x, y)
            state = [(t.grad, t.requires_grad, getattr(t, "note", None)) for t in (x, y)]
            found.append((result, getattr(result, "requires_grad", None), state))
        return found

    same(program(smelt.compile), program(lambda f: f))


def test_gradients_of_separate_parameters_need_one_entry():
    parameters = [torch.nn.Parameter(torch.full((2,), float(i))) for i in range(20)]

    def fn(x):
        sum((p * x).sum() for p in parameters).backward()
        for p in parameters:
            p.data.sub_(p.grad)
            p.grad = None

    compiled = smelt.compile(fn)
    for i in range(3):
        compiled(torch.full((2,), float(i)))
    assert len(entries(compiled)) == 1 and not reasons(compiled)
    same([p.detach() for p in parameters], [torch.full((2,), float(i - 3)) for i in range(20)])


def _product(x, w):
    return x @ w


def _through_views(x, w):
    return F.linear(x, w.reshape(4, 4)) + w[1]


def _recomputed(x, w):
    return x * torch.sigmoid(w * 2).exp()


def _both_ways(x, w):
    return F.layer_norm(F.linear(x, w), (4,), w[0], w[1]).relu() * (w * w).sum()


def _two_results(x, w):
    hidden = (x * w.sin()).tanh()
    return hidden @ w, hidden * w


def _replace(w):
    w.data = w.data * 3


def _transpose(w):
    w.data = w.data.t()


def _to_another_shape(w):
    w.data = torch.ones(2)


def _set_to_views(w):
    w.data = w.data[:]
    w.data = torch.zeros(6, 4)[1:5]


@pytest.mark.parametrize("assign", [_replace, _transpose, _to_another_shape, _set_to_views])
@pytest.mark.parametrize("fn", [_product, _through_views, _recomputed, _both_ways, _two_results])
def test_data_set_between_forward_and_backward(fn, assign):
    """Eager's nodes read the new data of a tensor that they saved, and the old memory in views of it and in other values."""

    def program(compile):
        run, found = compile(fn), []
        for which in ("x", "w", "both"):
            torch.manual_seed(0)
            x, w = leaf(4, 4), leaf(4, 4)
            results = run(x, w)
            for name, t in (("x", x), ("w", w)):
                if which in (name, "both"):
                    assign(t)
            try:
                sum(r.sum() for r in results).backward()
            except RuntimeError as e:
                found.append(type(e))
            found.append((x.grad, w.grad))
        return found

    same(program(smelt.compile), program(lambda f: f))


@pytest.mark.parametrize("assign", [_replace, _transpose, _set_to_views])
@pytest.mark.parametrize("fn", [_product, _through_views, _recomputed, _both_ways, _two_results])
def test_data_set_before_a_backward_with_a_graph(fn, assign):
    """The first derivative is eager's. The values of the forward are gone, so a second one is eager's or raises."""

    def second(run, which):
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4)
        total = sum(r.sum() for r in run(x, w))
        assign(x if which == "x" else w)
        first = torch.autograd.grad(total, (x, w), create_graph=True)
        try:
            total = sum(g.square().sum() for g in first)
            return [g.detach() for g in first], torch.autograd.grad(total, (x, w))
        except RuntimeError as error:
            assert "can be differentiated once" in str(error)
            return [g.detach() for g in first], None

    run = smelt.compile(fn)
    for which in "xw":
        (want, want_second), (got, got_second) = second(fn, which), second(run, which)
        torch.testing.assert_close(got, want)
        if got_second is not None:
            torch.testing.assert_close(got_second, want_second)


@pytest.mark.parametrize("assign", [_replace, _transpose, _set_to_views])
@pytest.mark.parametrize("fn", [_product, _through_views, _recomputed])
def test_data_set_between_two_derivatives(fn, assign):
    def program(compile):
        run, found = compile(fn), []
        for which in "xw":
            torch.manual_seed(0)
            x, w = leaf(4, 4), leaf(4, 4)
            first = torch.autograd.grad(run(x, w).sum(), (x, w), create_graph=True)
            assign(x if which == "x" else w)
            found.append(torch.autograd.grad(sum(g.square().sum() for g in first), (x, w)))
        return found

    _both(program)


def _exponential(x, w):
    return (x * w).exp()


def _cut(x, w):
    hidden = (x * w).tanh()
    return hidden, (hidden * w).sin()


def _of_a_leaf(w):
    return leaf(4) * 1


def _of_w(w):
    return w * 2


def _hooked_of_w(w):
    x = w * 2
    x.register_hook(lambda grad: grad * 2)
    return x


@pytest.mark.parametrize("make", [_of_a_leaf, _of_w, _hooked_of_w])
@pytest.mark.parametrize("fn", [_exponential, _cut])
@pytest.mark.parametrize("assigned", "xw")
def test_data_set_between_two_derivatives_beside_a_tensor_with_a_history(fn, make, assigned):
    """Eager's second derivative, or an error where gradients would flow on to another input."""

    def derivatives(run, inputs):
        torch.manual_seed(0)
        w = leaf(4)
        x = make(w)
        results = run(x, w)
        y = results[-1] if fn is _cut else results
        wanted = [x if name == "x" else w for name in inputs]
        first = torch.autograd.grad(y.sum(), wanted, create_graph=True)
        _replace(w if assigned == "w" else x)
        try:
            return first, torch.autograd.grad(sum(g.sum() for g in first), w)
        except RuntimeError as error:
            assert "was set between two derivatives" in str(error)
            return first, None

    run = smelt.compile(fn)
    for inputs in ("x", "w", "xw"):
        (want, want_second), (got, got_second) = derivatives(fn, inputs), derivatives(run, inputs)
        torch.testing.assert_close(got, want)
        if got_second is not None:
            torch.testing.assert_close(got_second, want_second)
        assert got_second is not None or assigned == "x" or fn is _cut or make is not _of_a_leaf


def test_hooks_on_saved_tensors_of_two_results():
    """The second result reads the weight of the first, which hooks pack once."""

    def fn(x, w, u):
        return torch.sin(x * w), w * u

    def gradients(f):
        torch.manual_seed(0)
        leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            a, b = f(*leaves)
        (a.sum() + b.sum()).backward()
        return [t.grad for t in leaves]

    torch.testing.assert_close(gradients(smelt.compile(fn)), gradients(fn))


def test_a_view_without_gradients_is_written_before_it():
    """Autograd refuses to say what the history of such a view is."""

    def fn(x, p):
        x[1:].mul_(2)
        p.data = p.data * 2
        return p.sum()

    with torch.no_grad():
        same_as_eager(fn, lambda: (leaf(3, 3), leaf(3)), graphs=None)
