"""Programs that use `torch.func` and `torch.vmap`.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

import functools
import time

import torch
import torch.func
import torch.nn.functional as F
from torch import nn

from tests.harness.catalogue import program


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


@program(graphs=1)
def vmap_of_a_lambda():
    def fn(x):
        return torch.vmap(lambda row: row.sum() * 2)(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1, later=1)
def vmap_with_in_dims_and_out_dims():
    def fn(x, w):
        return torch.vmap(lambda a, b: a @ b, in_dims=(1, None), out_dims=1)(x, w)

    return fn, [(rand(4, 3), rand(4, 2)), (rand(4, 3), rand(4, 2)), (rand(4, 5), rand(4, 2))]


@program(graphs=1)
def nested_vmap():
    def fn(x, y):
        outer = torch.vmap(torch.vmap(torch.dot, in_dims=(None, 0)), in_dims=(0, None))
        return outer(x, y)

    return fn, [(rand(3, 4), rand(5, 4)), (rand(3, 4), rand(5, 4)), (rand(3, 4), rand(5, 4))]


@program(graphs=1, later=1)
def vmap_as_a_decorator_of_a_nested_function():
    def fn(x):
        @torch.vmap
        def norm(row):
            return row / row.norm()

        return norm(x) + 1

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(2, 4),)]


@program(graphs=1)
def vmap_over_dictionaries():
    def fn(x, y):
        out = torch.vmap(lambda d: {"sum": d["a"] + d["b"], "first": d["a"][0]})({"a": x, "b": y})
        return out["sum"], out

    return fn, [(rand(3, 4), rand(3, 4)), (rand(3, 4), rand(3, 4)), (rand(3, 4), rand(3, 4))]


@program(graphs=1)
def vmap_with_in_dims_as_a_dictionary():
    def fn(x, y):
        return torch.vmap(lambda d: d["a"] * d["b"], in_dims=({"a": 0, "b": None},))({"a": x, "b": y})

    return fn, [(rand(3, 4), rand(4)), (rand(3, 4), rand(4)), (rand(3, 4), rand(4))]


@program(graphs=1)
def vmap_with_different_randomness():
    def fn(x):
        return torch.vmap(lambda row: row + torch.rand(4), randomness="different")(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vmap_with_same_randomness():
    def fn(x):
        return torch.vmap(lambda row: F.dropout(row, 0.5), randomness="same")(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=0, eager=["user-exception"])
def vmap_with_randomness_error():
    def fn(x):
        return torch.vmap(lambda row: row + torch.rand(4))(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vmap_of_several_outputs():
    def fn(x):
        low, high = torch.vmap(lambda row: (row.min(), row.max(0)), out_dims=0)(x)
        return low, high.values, high.indices

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vmap_in_chunks():
    def fn(x):
        return torch.vmap(lambda row: row.softmax(-1), chunk_size=2)(x)

    return fn, [(rand(5, 4),), (rand(5, 4),), (rand(5, 4),)]


@program(graphs=1)
def vmap_reads_shapes_and_types():
    def fn(x):
        def inner(row):
            assert row.shape == (4,) and row.ndim == 1 and row.dtype is torch.float32
            assert isinstance(row, torch.Tensor)
            return row * row.shape[0] + len(row) + row.size(0)

        return torch.vmap(inner)(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vmap_with_indexing_and_where():
    def fn(x):
        def inner(row):
            head, *rest = row.unbind()
            y = torch.where(row > 0, row, -row)
            return y[1:] + y[:-1] + head + sum(rest)

        return torch.vmap(inner)(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vmap_writes_its_own_tensor():
    def fn(x):
        def inner(row):
            out = torch.zeros_like(row)
            out[0] = row[1]
            out += row
            out.mul_(2)
            return out

        return torch.vmap(inner)(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vmap_writes_its_argument():
    def fn(x):
        return torch.vmap(lambda row: row.add_(1))(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vmap_of_closed_over_tensor():
    def fn(x, w):
        return torch.vmap(lambda row: F.linear(row, w))(x)

    return fn, [(rand(3, 4), rand(5, 4)), (rand(3, 4), rand(5, 4)), (rand(3, 4), rand(5, 4))]


@program(graphs=1, later=1)
def vmap_of_a_module():
    layer = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.LayerNorm(5)).requires_grad_(False)

    def fn(x):
        return torch.vmap(layer)(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(2, 4),)]


@program(graphs=0, eager=["user-exception"])
def vmap_with_mismatched_sizes_raises():
    def fn(x, y):
        return torch.vmap(torch.add)(x, y)

    return fn, [(rand(3, 4), rand(2, 4)), (rand(3, 4), rand(2, 4)), (rand(3, 4), rand(2, 4))]


@program(graphs=0, eager=["user-exception"])
def vmap_with_an_item_raises():
    def fn(x):
        return torch.vmap(lambda row: row * row.sum().item())(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def an_error_inside_vmap_is_caught():
    def fn(x):
        try:
            return torch.vmap(lambda row: row.view(7))(x)
        except RuntimeError:
            return torch.vmap(lambda row: row + 1)(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def an_exception_of_the_user_leaves_vmap():
    def fn(x):
        def inner(row):
            raise KeyError("inside")

        try:
            torch.vmap(inner)(x)
        except KeyError as e:
            return x * 2, str(e)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def grad_of_a_lambda():
    def fn(x):
        return torch.func.grad(lambda y: (y**2).sum())(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def a_tensor_with_a_history_is_first_read_inside_transforms():
    holder = {"weight": torch.randn(3, requires_grad=True) * 2}

    def fn(x):
        rows = torch.vmap(lambda row: row * holder["weight"])(x)
        return rows, torch.func.grad(lambda y: (y * holder["weight"]).sum())(x)

    return fn, [(rand(2, 3),), (rand(2, 3),), (rand(2, 3),)]


@program(graphs=1)
def grad_with_argnums():
    def fn(x, y):
        return torch.func.grad(lambda a, b: (a * b.sin()).sum(), argnums=(0, 1))(x, y)

    return fn, [(rand(3), rand(3)), (rand(3), rand(3)), (rand(3), rand(3))]


@program(graphs=1)
def grad_and_value():
    def fn(x):
        gradient, value = torch.func.grad_and_value(lambda y: y.tanh().sum())(x)
        return gradient, value

    return fn, [(rand(3),), (rand(3),), (rand(3),)]


@program(graphs=1)
def grad_with_aux():
    def fn(x):
        def loss(y):
            out = y.exp()
            return out.sum(), {"out": out, "twice": out * 2}

        return torch.func.grad(loss, has_aux=True)(x)

    return fn, [(rand(3),), (rand(3),), (rand(3),)]


@program(graphs=1)
def second_derivative():
    def fn(x):
        return torch.func.grad(torch.func.grad(lambda y: y**3))(x.sum())

    return fn, [(rand(3),), (rand(3),), (rand(3),)]


@program(graphs=1)
def per_sample_gradients():
    def fn(w, x, t):
        def loss(w, x, t):
            return F.mse_loss(x @ w, t)

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(w, x, t)

    return fn, [(rand(4, 2), rand(3, 4), rand(3, 2)) for _ in range(3)]


@program(graphs=1)
def grad_of_a_vmapped_function():
    def fn(x):
        return torch.func.grad(lambda y: torch.vmap(lambda r: r.norm())(y).sum())(x)

    return fn, [(rand(3, 4),), (rand(3, 4),), (rand(3, 4),)]


@program(graphs=1)
def vjp():
    def fn(x, v):
        out, pull = torch.func.vjp(lambda y: y.sin() * 2, x)
        return out, pull(v)

    return fn, [(rand(3), rand(3)) for _ in range(3)]


@program(graphs=1)
def vjp_with_aux_and_several_inputs():
    def fn(x, y):
        out, pull, aux = torch.func.vjp(lambda a, b: ((a * b, a + b), a.sum()), x, y, has_aux=True)
        return out, pull((x, y)), aux

    return fn, [(rand(3), rand(3)) for _ in range(3)]


@program(graphs=1)
def jvp():
    def fn(x, v):
        return torch.func.jvp(torch.tanh, (x,), (v,))

    return fn, [(rand(3), rand(3)) for _ in range(3)]


@program(graphs=1)
def jvp_with_aux():
    def fn(x, v):
        return torch.func.jvp(lambda y: (y * y, y + 1), (x,), (v,), has_aux=True)

    return fn, [(rand(3), rand(3)) for _ in range(3)]


@program(graphs=1, later=1)
def jacobian_by_rows():
    def fn(x):
        return torch.func.jacrev(lambda y: y.sin() * y.sum())(x)

    return fn, [(rand(3),), (rand(3),), (rand(4),)]


@program(graphs=1)
def jacobian_in_chunks():
    def fn(x):
        return torch.func.jacrev(lambda y: y.sin() * y.sum(), chunk_size=1)(x)

    return fn, [(rand(3),), (rand(3),), (rand(3),)]


@program(graphs=1)
def jacobian_by_columns():
    def fn(x):
        return torch.func.jacfwd(lambda y: y.sin() * y.sum())(x)

    return fn, [(rand(3),), (rand(3),), (rand(3),)]


@program(graphs=1)
def hessian():
    def fn(x):
        return torch.func.hessian(lambda y: (y**3).sum() * y[0])(x)

    return fn, [(rand(3),), (rand(3),), (rand(3),)]


@program(graphs=1)
def hessian_vector_product():
    def fn(x, v):
        loss = lambda y: y.sin().sum()  # noqa: E731
        return torch.func.jvp(torch.func.grad(loss), (x,), (v,))[1]

    return fn, [(rand(3), rand(3)) for _ in range(3)]


@program(graphs=1)
def batched_jacobian():
    def fn(x, w):
        return torch.vmap(torch.func.jacrev(lambda y: torch.tanh(w @ y)))(x)

    return fn, [(rand(2, 3), rand(4, 3)) for _ in range(3)]


@program(graphs=0, breaks=["unsupported-call"], eager=["unsupported-object"])
def linearize():
    def fn(x, v):
        out, jvp_of = torch.func.linearize(lambda y: y.sin() * 3, x)
        return out, jvp_of(v)

    return fn, [(rand(3), rand(3)) for _ in range(3)]


@program(graphs=1)
def functional_call_of_a_module():
    layer = nn.Linear(4, 2).requires_grad_(False)

    def fn(w, b, x):
        return torch.func.functional_call(layer, {"weight": w, "bias": b}, (x,))

    return fn, [(rand(2, 4), rand(2), rand(3, 4)) for _ in range(3)], layer


@program(graphs=1)
def functional_call_with_the_own_parameters():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).requires_grad_(False)
    params = dict(net.named_parameters())

    def fn(x):
        scaled = {k: v * 2 for k, v in params.items()}
        return torch.func.functional_call(net, scaled, x)

    return fn, [(rand(3, 4),) for _ in range(3)], net


@program(graphs=1)
def functional_call_writes_buffers():
    net = nn.BatchNorm1d(4).requires_grad_(False)
    buffers = {k: v.clone() for k, v in net.named_buffers()}

    def fn(x):
        return torch.func.functional_call(net, buffers, (x,))

    return fn, [(rand(5, 4),) for _ in range(3)], lambda: (net, buffers)


@program(graphs=1)
def gradients_of_a_functional_call():
    net = nn.Linear(4, 2).requires_grad_(False)
    params = {k: v.detach() for k, v in net.named_parameters()}

    def fn(x, t):
        def loss(params):
            return F.mse_loss(torch.func.functional_call(net, params, (x,)), t)

        return torch.func.grad(loss)(params)

    return fn, [(rand(3, 4), rand(3, 2)) for _ in range(3)], net


@program(graphs=1)
def an_ensemble_of_stacked_modules():
    nets = [nn.Linear(4, 2).requires_grad_(False) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(nets)
    params = {k: v.detach() for k, v in params.items()}
    base = nn.Linear(4, 2).to("meta")

    def fn(x):
        def one(p, b, x):
            return torch.func.functional_call(base, (p, b), (x,))

        return torch.vmap(one, in_dims=(0, 0, None))(params, buffers, x)

    return fn, [(rand(5, 4),) for _ in range(3)]


@program(graphs=1)
def stack_module_state_inside():
    nets = [nn.Linear(4, 2).requires_grad_(False) for _ in range(3)]

    def fn(x):
        params, _ = torch.func.stack_module_state(nets)
        return torch.einsum("bi,noi->nbo", x, params["weight"])

    return fn, [(rand(5, 4),) for _ in range(3)]


@program(graphs=1)
def a_transformed_function_made_outside():
    gradient = torch.func.grad(lambda y: (y**2).sum())

    def fn(x):
        return gradient(x) + 1

    return fn, [(rand(3),) for _ in range(3)]


@program(graphs=1)
def a_transformed_function_is_compiled():
    gradient = torch.func.grad(lambda y: (y.sin() ** 2).sum())
    return gradient, [(rand(3),) for _ in range(3)]


@program(graphs=1)
def a_batched_partial():
    def scale(row, by):
        return row * by

    def fn(x):
        return torch.vmap(functools.partial(scale, by=3))(x)

    return fn, [(rand(3, 4),) for _ in range(3)]


@program(graphs=1)
def grad_under_no_grad():
    def fn(x):
        with torch.no_grad():
            return torch.func.grad(lambda y: (y**2).sum())(x)

    return fn, [(rand(3),) for _ in range(3)]


@program(graphs=1)
def no_grad_inside_grad():
    def fn(x):
        def loss(y):
            with torch.no_grad():
                scale = y.detach().norm()
            return (y / scale).sum()

        return torch.func.grad(loss)(x)

    return fn, [(rand(3),) for _ in range(3)]


@program(graphs=1)
def gradient_steps_in_a_loop():
    def fn(x, w):
        step = torch.func.grad(lambda w: ((x @ w) ** 2).mean())
        for _ in range(3):
            w = w - 0.1 * step(w)
        return w

    return fn, [(rand(5, 3), rand(3)) for _ in range(3)]


@program(graphs=2, breaks=["input-output"])
def a_break_inside_vmap():
    def fn(x):
        def inner(row):
            scaled = row * 2
            time.monotonic()
            return scaled + 1

        return torch.vmap(inner)(x + 1).sin()

    return fn, [(rand(3, 4),) for _ in range(3)]


@program(graphs=2, breaks=["input-output"])
def a_break_inside_grad():
    def fn(x):
        def loss(y):
            time.monotonic()
            return (y**2).sum()

        return torch.func.grad(loss)(x * 2) + 1

    return fn, [(rand(3),) for _ in range(3)]


@program(graphs=2, breaks=["input-output", "input-output"])
def a_break_inside_a_forward_derivative():
    def fn(x):
        def inner(y):
            time.monotonic()
            return y.sin()

        return torch.func.jacfwd(inner)(x), torch.func.jvp(inner, (x,), (x,))

    return fn, [(rand(3),) for _ in range(3)]


@program(graphs=1)
def printing_inside_vmap():
    def fn(x):
        def inner(row):
            print("row of", tuple(row.shape))
            return row * 2

        return torch.vmap(inner)(x)

    return fn, [(rand(3, 4),) for _ in range(3)]


@program(graphs=1)
def gradients_by_the_transform_and_by_the_caller():
    def fn(x, w):
        return torch.func.grad(lambda y: (y**2).sum())(x.detach()) + w

    return fn, [(rand(3), rand(3)) for _ in range(3)]


@program(graphs=1)
def a_transform_of_a_parameter():
    layer = nn.Linear(3, 2)

    def fn(x):
        return torch.func.jacrev(layer)(x).sum() + layer(x).sum()

    return fn, [(rand(3),) for _ in range(3)], layer
