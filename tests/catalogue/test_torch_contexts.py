"""Programs that use torch's context managers, settings and random numbers."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import SDPBackend, sdpa_kernel

import smelt
from tests.harness.catalogue import BREAKS, Changing, for_each_control_flow, leaf, program, tensor


def three(*shape: int, **kwargs) -> list:
    return [(tensor(*shape, **kwargs),) for _ in range(3)]


# -------------------------------------------------------------------------------------------------- grad modes


@program(graphs=1)
def no_grad_as_a_context():
    def fn(x):
        with torch.no_grad():
            y = x * 2
        return y, y.requires_grad

    return fn, three(3)


@program(graphs=1)
def no_grad_as_a_decorator():
    @torch.no_grad()
    def inner(x):
        return x * 2, torch.is_grad_enabled()

    def fn(x):
        return inner(x), torch.is_grad_enabled()

    return fn, three(3)


@program(graphs=1)
def no_grad_around_the_compiled_function():
    @torch.no_grad()
    def fn(x):
        return x.sin(), torch.is_grad_enabled()

    return fn, three(3)


@program(graphs=2, breaks=["graph-break-requested"])
def grad_mode_put_back_after_a_break_inside_of_its_opposite():
    """What leaving the context puts back is not what was there when the rest of the function began."""

    def fn(x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        with torch.enable_grad():
            y = x * 2
            smelt.graph_break()
            y = y * 3
        inside = torch.is_grad_enabled()
        torch.set_grad_enabled(before)
        return y, inside, torch.is_grad_enabled()

    return fn, three(3)


@program(graphs=2, breaks=["graph-break-requested"])
def autocast_put_back_after_a_break_inside_of_its_opposite():
    def fn(x):
        torch.set_autocast_enabled("cpu", False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            smelt.graph_break()
            y = y @ y
        torch.set_autocast_enabled("cpu", True)
        inside = torch.is_autocast_enabled("cpu")
        torch.set_autocast_enabled("cpu", False)
        return y, inside, torch.is_autocast_enabled("cpu"), x @ x

    return fn, three(3, 3)


@program(graphs=1)
def inference_mode_as_a_decorator():
    @torch.inference_mode()
    def fn(x):
        return x * 2 + 1

    return fn, three(3)


@program(graphs=1)
def inference_mode_as_a_context():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
        return y, y.is_inference(), torch.is_inference_mode_enabled()

    return fn, three(3)


@program(graphs=1)
def enable_grad_inside_no_grad():
    def fn(x):
        with torch.no_grad():
            with torch.enable_grad():
                on = torch.is_grad_enabled()
            off = torch.is_grad_enabled()
            return x + 1, on, off

    return fn, three(3)


@program(graphs=1, later=1)
def set_grad_enabled_as_a_context():
    def fn(x, on):
        with torch.set_grad_enabled(on):
            return x * 2, torch.is_grad_enabled()

    return fn, [(tensor(3), True), (tensor(3), False), (tensor(3), True)]


@program(graphs=1)
def set_grad_enabled_as_a_function():
    def fn(x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        y = x * 2
        torch.set_grad_enabled(before)
        return y

    return fn, three(3)


@program(graphs=1)
def grad_mode_is_left_changed():
    def fn(x):
        torch.set_grad_enabled(False)
        return x * 2

    return fn, three(3)


@program(graphs=1)
def an_exception_leaves_no_grad():
    def fn(x):
        try:
            with torch.no_grad():
                raise KeyError("a")
        except KeyError:
            return x + torch.is_grad_enabled()

    return fn, three(3)


@program(graphs=1)
def a_generator_holds_no_grad():
    def fn(x):
        @contextlib.contextmanager
        def quiet():
            with torch.no_grad():
                yield 2

        with quiet() as n:
            y = x * n
        return y, torch.is_grad_enabled()

    return fn, three(3)


@program(graphs=1)
def an_exit_stack_of_torch_contexts():
    def fn(x):
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
            return x @ x

    return fn, three(3, 3)


@program(graphs=1, breaks=["unsupported-call", "unsupported-call"])
def saved_tensors_hooks_without_gradients():
    def fn(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return x * 2

    return fn, three(3)


@program(graphs=3, breaks=["unsupported-call", "unsupported-call"])
def saved_tensors_hooks_between_other_operations():
    """What comes before the block, what is in it and what comes after it are graphs; the block's is called under its hooks."""

    def fn(x, w):
        a = (x * w).tanh().exp()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda packed: packed):
            b = (a * a).sin()
        return (b * b).cos()

    return fn, [(leaf(3), leaf(3)) for _ in range(3)]


@program(graphs=3, breaks=["unsupported-call", "unsupported-call"])
def values_saved_elsewhere():
    def fn(x, w):
        a = (x * w).tanh()
        with torch.autograd.graph.save_on_cpu():
            b = a.exp() * a
        return b.cos()

    return fn, [(leaf(3), leaf(3)) for _ in range(3)]


# ---------------------------------------------------------------------------------------------------- autocast


@program(graphs=1, rtol=1e-2, atol=1e-2)
def autocast_of_a_product():
    def fn(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ y
            s = z.softmax(-1)
        return z, s, z + x @ y

    return fn, [(tensor(3, 3), tensor(3, 3)) for _ in range(3)]


@program(graphs=1, rtol=1e-2, atol=1e-2)
def autocast_switched_off_inside():
    def fn(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ y
            with torch.autocast("cpu", enabled=False):
                b = x @ y
            c = F.linear(x, y)
        return a.dtype, b, c

    return fn, [(tensor(3, 3), tensor(3, 3)) for _ in range(3)]


@program(graphs=1, rtol=1e-2, atol=1e-2)
def autocast_as_a_decorator():
    layer = nn.Linear(4, 4).requires_grad_(False)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def fn(x):
        return layer(x), torch.is_autocast_enabled("cpu")

    return fn, three(3, 4)


@program(graphs=1, rtol=1e-2, atol=1e-2)
def autocast_casts_a_parameter_once():
    layer = nn.Linear(4, 4).requires_grad_(False)

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            return layer(layer(x)), torch.is_autocast_cache_enabled()

    return fn, three(3, 4)


@program(graphs=1, rtol=1e-2, atol=1e-2)
def autocast_to_half():
    def fn(x):
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            return x @ x, torch.get_autocast_dtype("cpu")

    return fn, three(3, 3)


@program(graphs=1, rtol=1e-2, atol=1e-2)
def autocast_entered_by_hand():
    def fn(x):
        context = torch.autocast("cpu", dtype=torch.bfloat16)
        context.__enter__()
        y = x @ x
        context.__exit__(None, None, None)
        return y, x @ x

    return fn, three(3, 3)


@program(graphs=1, later=1, rtol=1e-2, atol=1e-2)
def autocast_given_as_an_argument():
    def fn(x, context):
        with context:
            return x @ x

    contexts = [torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False)]
    return fn, [(tensor(3, 3), contexts[i % 2]) for i in range(4)]


# ---------------------------------------------------------------------------------------------------- defaults


@program(graphs=1, fullgraph=True)
def set_default_dtype():
    def fn(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.ones(3), torch.tensor(1.5)
        finally:
            torch.set_default_dtype(before)

    return fn, three(3)


@program(graphs=1, fullgraph=True)
def factories_under_another_default_dtype():
    def fn(x):
        torch.set_default_dtype(torch.float64)
        try:
            return (
                torch.arange(3),
                torch.arange(3.0),
                torch.full((2,), 1),
                torch.full((2,), 0.5),
                torch.eye(2),
                torch.linspace(0, 1, 4),
                torch.zeros_like(x),
                x.new_ones(2),
                torch.zeros(2, dtype=torch.float32),
                torch.rand(2),
                torch.get_default_dtype(),
                torch.tensor([1.5, 2]) * x[0],
                x.double() + torch.ones(3),
                (x > 0).view(-1),
                x.mean() * 0.1,
            )
        finally:
            torch.set_default_dtype(torch.float32)

    return fn, three(3)  # fmt: skip


@program(graphs=1, fullgraph=True)
def gradients_under_another_default_dtype():
    def fn(x):
        torch.set_default_dtype(torch.float64)
        y = x * torch.ones(3)
        torch.set_default_dtype(torch.float32)
        return (y * torch.ones(3)).sum()

    return fn, [(tensor(3).requires_grad_(),) for _ in range(3)]


@program(graphs=2, breaks=["unsupported-effect"])
def integers_under_another_default_dtype():
    def fn(x):
        y = x + 1
        torch.set_default_dtype(torch.float64)
        n = torch.arange(3) * 2
        z = n / 3 + y
        torch.set_default_dtype(torch.float32)
        return z, n > 1

    return fn, three(3)


@program(graphs=2, breaks=["graph-break-requested"])
def a_break_under_another_default_dtype():
    def fn(x):
        torch.set_default_dtype(torch.float64)
        y = x + torch.ones(3)
        smelt.graph_break()
        z = y * torch.ones(3)
        torch.set_default_dtype(torch.float32)
        return z

    return fn, three(3)


@program(graphs=1, later=1)
def the_default_dtype_is_another():
    def fn(x):
        return torch.ones(3) * x, torch.tensor([1.0]), torch.arange(3.0)

    def inputs():
        yield (tensor(3),)
        torch.set_default_dtype(torch.float64)
        try:
            yield (tensor(3),)
        finally:
            torch.set_default_dtype(torch.float32)
        yield (tensor(3),)

    class Calls:
        def __len__(self):
            return 3

        __iter__ = staticmethod(inputs)

    return fn, Calls()


@program(graphs=1)
def a_device_as_a_context():
    def fn(x):
        with torch.device("cpu"):
            return x + torch.ones(3), torch.get_default_device()

    return fn, three(3)


@program(graphs=1)
def the_meta_device_as_a_context():
    def fn(x):
        with torch.device("meta"):
            shape = torch.empty(3, 4).matmul(torch.empty(4, 5)).shape
        return x * shape[1]

    return fn, three(3)


@program(graphs=1, fullgraph=True)
def set_default_device():
    def fn(x):
        torch.set_default_device("cpu")
        try:
            return x + torch.ones(3)
        finally:
            torch.set_default_device(None)

    return fn, three(3)


@program(graphs=1)
def the_default_device_stays_set():
    def fn(x):
        torch.set_default_device(torch.device("cpu"))
        return x + torch.ones(3)

    def undone():
        found = torch.get_default_device()
        torch.set_default_device(None)
        return found

    return fn, [(tensor(3),) for _ in range(3)], undone


@program(graphs=1, breaks=["unsupported-effect"])
def another_default_device():
    def fn(x):
        x = x + 1
        torch.set_default_device("meta")
        try:
            return x, torch.ones(3).device
        finally:
            torch.set_default_device("cpu")

    return fn, three(3), lambda: torch.set_default_device(None)


@program(graphs=1, fullgraph=True)
def deterministic_algorithms():
    def fn(x):
        torch.use_deterministic_algorithms(True)
        y = x.sum()
        torch.use_deterministic_algorithms(False)
        return y, torch.are_deterministic_algorithms_enabled()

    return fn, three(3)


@program(graphs=1, fullgraph=True)
def deterministic_algorithms_stay_requested():
    def fn(x):
        torch.use_deterministic_algorithms(True, warn_only=True)
        return x.sum(), torch.is_deterministic_algorithms_warn_only_enabled()

    def undone():
        found = torch.get_deterministic_debug_mode()
        torch.use_deterministic_algorithms(False)
        return found

    return fn, [(tensor(3),) for _ in range(3)], undone


@program(graphs=1, breaks=["unsupported-effect"])
def an_operator_that_deterministic_algorithms_change():
    def fn(x):
        torch.use_deterministic_algorithms(True)
        y = x.sin()
        z = torch.zeros(3).index_add(0, torch.tensor([0, 0, 1]), y)
        torch.use_deterministic_algorithms(False)
        return y, z, torch.get_deterministic_debug_mode()

    return fn, three(3)


@program(graphs=1)
def a_record_function():
    def fn(x):
        with torch.profiler.record_function("step"):
            y = x * 2
        with torch.autograd.profiler.record_function("again"):
            return y + 1

    return fn, three(3)


@program(graphs=1)
def a_record_function_as_a_decorator():
    def fn(x):
        @torch.profiler.record_function("inner")
        def inner(x):
            return x * 2

        return inner(x) + 1

    return fn, three(3)


@for_each_control_flow(
    dict(graphs=2, breaks=["graph-break-requested"]),
    dict(graphs=3, breaks=["data-dependent-condition", "graph-break-requested"]),
)
def breaks_inside_of_record_functions():
    def inner(x):
        with torch.profiler.record_function("inner"), torch.no_grad():
            y = x * 2
            if y.abs().sum() >= 0:
                y = y + 1
            return y * 3

    def fn(x):
        with torch.profiler.record_function("step"):
            y = inner(x + 1)
            smelt.graph_break()
            return y * x, torch.is_grad_enabled()

    return fn, three(3)


@program(graphs=1)
def sdpa_kernel_as_a_context():
    def fn(q):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, q, q)

    return fn, three(1, 2, 3, 4)


@program(graphs=1)
def sdpa_kernel_of_several():
    def fn(q):
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    return fn, three(1, 2, 3, 4)


@program(graphs=1)
def flags_of_a_backend():
    def fn(x):
        with torch.backends.mkldnn.flags(enabled=False):
            return x @ x

    return fn, three(3, 3)


@program(graphs=1)
def flags_of_a_backend_are_read():
    def fn(x):
        return x * (2 if torch.backends.mkldnn.is_available() else 1) + torch.backends.cudnn.enabled

    return fn, three(3, 3)


@program(graphs=1, breaks=["unsupported-effect", "unsupported-effect"])
def anomaly_mode():
    def fn(x):
        with torch.autograd.set_detect_anomaly(True):
            return x * 2

    return fn, three(3)


@program(graphs=1, later=1)
def nullcontext_or_no_grad():
    def fn(x, quiet):
        with torch.no_grad() if quiet else contextlib.nullcontext():
            return x * 2, torch.is_grad_enabled()

    return fn, [(tensor(3), True), (tensor(3), False), (tensor(3), True)]


@program(graphs=1)
def a_torch_function_mode():
    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.add else out

    def fn(x):
        with Doubling():
            return torch.add(x, 1)

    return fn, three(3)


# ---------------------------------------------------------------------------------------------- random numbers


@program(graphs=1)
def random_numbers_of_every_kind():
    def fn(x):
        return (
            torch.rand(3) + x,
            torch.randn(2, 2),
            torch.randint(0, 10, (3,)),
            torch.randperm(5),
            torch.rand_like(x),
            torch.randn_like(x),
            torch.randint_like(x, 5),
        )

    return fn, three(3)


@program(graphs=1)
def random_numbers_in_place():
    def fn(x):
        y = torch.empty_like(x)
        y.normal_(1.0, 2.0)
        z = torch.empty_like(x).uniform_(-1, 1)
        return y * x, z, torch.zeros(3).exponential_(), torch.zeros(3).bernoulli_(0.5)

    return fn, three(3)


@program(graphs=1)
def dropout_of_every_kind():
    def fn(x):
        y = F.dropout(x, 0.3) + F.alpha_dropout(x, 0.3, training=True)
        return (
            y + F.dropout(x, 0.3, training=False),
            F.dropout1d(x.view(1, 2, 2), 0.5),
            torch.feature_dropout(x, 0.5, True),
        )

    return fn, three(2, 2)


@program(graphs=1, later=1)
def dropout_modules_follow_their_mode():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).requires_grad_(False)

    def fn(x, training):
        return net.train(training)(x)

    return fn, [(tensor(3, 4), True), (tensor(3, 4), False), (tensor(3, 4), True)], net


@program(graphs=1)
def sampling():
    def fn(x):
        p = x.softmax(-1)
        return torch.bernoulli(p), torch.multinomial(p, 2), torch.normal(p, 1.0), torch.poisson(p)

    return fn, three(3, 4)


@program(graphs=1)
def draws_are_in_program_order():
    def fn(x):
        a = torch.rand(3)
        unused = torch.rand(2)  # noqa: F841
        b = F.dropout(x, 0.5)
        c = torch.rand(1)
        return c, b, a

    return fn, three(3)


@program(graphs=1)
def seeding_inside():
    def fn(x):
        torch.manual_seed(7)
        return x + torch.rand(3)

    return fn, three(3)


@program(graphs=1, breaks=["unsupported-object"])
def a_generator_as_an_argument():
    generator = torch.Generator().manual_seed(3)

    def fn(x):
        return x + torch.rand(3, generator=generator)

    return fn, three(3), lambda: generator.get_state()


@program(graphs=0, eager=["unsupported-object"])
def a_generator_made_inside():
    def fn(x):
        generator = torch.Generator()
        generator.manual_seed(5)
        return x + torch.randn(3, generator=generator)

    return fn, three(3)


@program(graphs=1, breaks=["random-state"])
def fork_rng():
    def fn(x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            y = torch.rand(3)
        return x + y, torch.rand(1)

    return fn, three(3)


@program(graphs=1, fullgraph=True)
def a_forked_generator():
    def fn(x):
        with torch.random.fork_rng():
            y = torch.nn.functional.dropout(x)
        with torch.random.fork_rng(enabled=False):
            return x + y

    return fn, three(3)


@program(graphs=1, fullgraph=True)
def a_generator_forked_where_nothing_draws():
    def fn(x):
        with torch.random.fork_rng([], True):
            return x.sin()

    return fn, three(3)


@program(graphs=1)
def gradients_of_draws_of_a_forked_generator():
    def fn(x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            y = torch.nn.functional.dropout(x.sin())
        return (y * x).sum()

    return fn, [(tensor(3).requires_grad_(),) for _ in range(3)]


@program(graphs=3, breaks=["graph-break-requested", "unsupported-object"])
def a_break_below_a_forked_generator():
    def fn(x):
        with torch.random.fork_rng(devices=[]):
            y = torch.rand(3) + x
            smelt.graph_break()
            z = torch.rand(3)
        return y * z

    return fn, three(3)


@program(graphs=1, fullgraph=True)
def a_state_that_is_kept():
    states = []

    def fn(x):
        states.append(torch.get_rng_state())
        y = x + torch.rand(3)
        torch.set_rng_state(states[0])
        return y

    return fn, three(3), lambda: states


@program(graphs=2, breaks=["random-state"])
def the_state_of_the_generator():
    def fn(x):
        state = torch.get_rng_state()
        a = torch.rand(3)
        torch.set_rng_state(state)
        return a - torch.rand(3) + x

    return fn, three(3)


@program(graphs=1)
def initialization_draws():
    def fn(x):
        w = torch.empty(4, 3)
        nn.init.kaiming_uniform_(w)
        nn.init.normal_(b := torch.empty(4))
        return F.linear(x, w, b)

    return fn, three(2, 3)


@program(graphs=1)
def distributions():
    def fn(mean, scale):
        normal = torch.distributions.Normal(mean, scale.exp(), validate_args=False)
        sample = normal.rsample()
        return sample, normal.log_prob(sample), normal.entropy()

    return fn, [(tensor(3), tensor(3)) for _ in range(3)]


@program(graphs=1)
def distributions_that_validate():
    def fn(logits):
        categorical = torch.distributions.Categorical(logits=logits, validate_args=True)
        sample = categorical.sample()
        return sample, categorical.log_prob(sample)

    return fn, three(3, 4)


@program(graphs=1)
def gumbel_softmax():
    def fn(logits):
        return F.gumbel_softmax(logits, hard=True)

    return fn, three(3, 4)


# -------------------------------------------------------------------------------------------------- modes of torch


def under_vmap(rows, columns):
    """A mask made position by position, as attention masks are."""

    def at(row, column):
        return rows[row] * columns[column]

    inner = torch.vmap(at, in_dims=(None, 0))
    with TransformGetItemToIndex():
        return torch.vmap(inner, in_dims=(0, None))(torch.arange(len(rows)), torch.arange(len(columns)))


@program(graphs=1, later=1)
def a_mode_of_torch_that_makes_indices_of_tensors():
    def fn(rows, columns):
        return under_vmap(rows, columns) + 1

    return fn, [(tensor(2), tensor(3)), (tensor(2), tensor(3)), (tensor(4), tensor(1))]


@program(graphs=1)
def gradients_through_a_mode_of_torch_that_makes_indices_of_tensors():
    def fn(rows, columns):
        return under_vmap(rows, columns) * 2

    return fn, [(tensor(2, requires_grad=True), tensor(3)) for _ in range(3)]


def test_a_call_under_a_mode_of_torch():
    def second(x):
        return x[1] * 2

    compiled = smelt.compile(second)
    for requires_grad in (False, True):
        x = tensor(3, requires_grad=requires_grad)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), second(x))
            with TransformGetItemToIndex():
                got, want = compiled(x), second(x)
            torch.testing.assert_close(got, want)
            assert (got.grad_fn is None) == (want.grad_fn is None)


@program(graphs=3, breaks=["data-dependent-condition"] * 2, grad=False, options=BREAKS)
def autocast_as_a_decorator_with_breaks():
    layer = nn.Linear(4, 4)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def fn(x):
        if x.sum() > -1e9:
            x = layer(x)
        if x.sum() > -1e9:
            x = layer(x)
        return x, torch.is_autocast_enabled("cpu")

    return fn, [(tensor(2, 4),)] * 3, lambda: torch.is_autocast_enabled("cpu")


@program(graphs=1, later=1)
def a_profiler_starts_between_calls():
    profile = torch.autograd.profiler.profile()

    def fn(x):
        return x + 1 if torch.autograd._profiler_enabled() else x * 2

    return fn, Changing(three(3), {1: profile.__enter__, 2: lambda: profile.__exit__(None, None, None)})


@program(graphs=1)
def function_modes_are_counted_without_the_trace_s_own():
    def fn(x):
        return x + torch._C._len_torch_function_stack()

    return fn, three(3)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_record_function_under_a_profiler(fullgraph):
    """The graph breaks, so that the profiler sees the range; a whole graph leaves the range out."""

    def fn(x):
        with torch.profiler.record_function("a range"):
            y = x * 2
        return y.sin()

    compiled = smelt.compile(fn, fullgraph=fullgraph)
    with torch.autograd.profiler.profile() as profile:
        results = [compiled(torch.ones(3)) for _ in range(2)]
    for result in (*results, compiled(torch.ones(3))):
        torch.testing.assert_close(result, fn(torch.ones(3)))
    assert any(event.name == "a range" for event in profile.function_events) is not fullgraph
