"""Modes with a `__torch_function__` that the compiled function enters: their handlers are captured."""

import contextlib
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C import _len_torch_function_stack
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

import smelt
from smelt.report import inspect
from tests.harness.agreement import same

LINEAR = nn.Linear(4, 4)
NORM = nn.LayerNorm(4)


class Logging(TorchFunctionMode):
    """Records each call of the handler, with its arguments."""

    def __init__(self):
        super().__init__()
        self.log, self.count = [], 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        self.log.append((getattr(func, "__name__", func), types, len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Scaling(TorchFunctionMode):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * self.factor if func in (torch.add, torch.Tensor.add, torch.Tensor.sin) else out


class Replacing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.relu:
            return torch.tanh(args[0])
        if func is torch.ones:
            return torch.full(args, 7.0)
        return func(*args, **(kwargs or {}))


class Strict(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.cos:
            raise ValueError("no cosines")
        return func(*args, **(kwargs or {}))


class Quiet(BaseTorchFunctionMode):
    """Leaves the calls to the handler of the class that it inherits from."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return super().__torch_function__(func, types, args, kwargs)


class Entering(Logging):
    def __enter__(self):
        self.log.append("entered")
        return super().__enter__()

    def __exit__(self, kind, error, traceback):
        self.log.append(kind)
        return super().__exit__(kind, error, traceback)


class Tagged(torch.Tensor):
    pass


OUTSIDE = Logging()
TAGGED = torch.ones(4).as_subclass(Tagged)


def operators(x):
    return x + 1, 2 - x, x @ x, -x, x**2, x > 0, x[0], x[..., 1:], abs(x)


def functions(x):
    return F.relu(x), F.softmax(x, -1), torch.cat([x, x]), torch.where(x > 0, x, -x), F.layer_norm(x, (4,))


def makers(x):
    return torch.ones(3), torch.tensor([1.0, 2]), torch.arange(3), torch.full((2,), 1.0), x.new_zeros(2)


def metadata(x):
    return x.shape, x.dtype, x.ndim, x.size(0), len(x), x.dim(), x.requires_grad, x.device, x.T


def rows(x):
    a, *_ = x
    return a, [r * 2 for r in x], [10, 20, 30][torch.tensor(1)]


def writes(x):
    y = x.clone()
    y += 1
    y[0] = 2
    return y.mul_(x)


def modules(x):
    return nn.Sequential(LINEAR, nn.ReLU(), NORM)(x).detach()


def settings(x):
    with torch.no_grad():
        y = x * 2
    with torch.device("cpu"):
        return y + torch.ones(4)


def subclasses(x):
    return TAGGED + x, torch.cat([x, TAGGED[None]]), TAGGED.shape


def attributes(x):
    y = x * 1
    y.requires_grad = False
    y.grad = None
    return hasattr(y, "shape"), y.is_leaf, y.grad


def derivatives(x):
    w = torch.ones(4, requires_grad=True)
    (w * x).sum().backward()
    return w.grad


BODIES = [
    operators, functions, makers, metadata, rows, writes, modules, settings, subclasses, attributes, derivatives,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_mode_observes_eagers_calls(body):
    def program(x):
        with Logging() as mode:
            result = body(x)
        return result, mode.log, mode.count

    check(program)


def scaled(x):
    with Scaling(3):
        y = torch.add(x, 1)
    return y + torch.add(x, 1)


def nested(x):
    with Scaling(2) as outer, Logging() as log, Scaling(5):
        y = x.sin()
        with Replacing():
            z = F.relu(y) + torch.ones(4)
    return y, z, outer.factor, log.log


def inherited(x):
    with Quiet() as mode:
        y = x.sin() + 1
    return y, mode.seen


def beneath_one_of_torch(x):
    with Logging() as mode, BaseTorchFunctionMode():
        y = x.sin() + 1
    return y, mode.log


def entered_by_its_own_method(x):
    with Entering() as mode:
        y = x.sin()
    return y, mode.log


def left_by_an_exception(x):
    mode = Logging()
    try:
        with Strict(), mode:
            y = x.sin()
            y.cos()
    except ValueError as error:
        return y * 2, str(error), mode.log


def from_outside(x):
    with OUTSIDE:
        y = x.sin()
    return y, OUTSIDE.count


def twice_the_same(x):
    mode = Scaling(3)
    with mode, mode:
        return x.sin()


def in_a_generator(x):
    @contextlib.contextmanager
    def scaled_by(factor):
        with Scaling(factor) as mode:
            yield mode

    with scaled_by(3):
        y = x.sin()
    return y + x.sin()


def with_another_inside_of_the_handler(x):
    class Other(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            with Scaling(2):
                return func(*args, **(kwargs or {}))

    with Other():
        return x.sin()


def that_calls_itself(x):
    class Twice(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.sin:
                return self.__torch_function__(torch.Tensor.exp, types, args) * 2
            return func(*args, **(kwargs or {}))

    with Twice():
        return x.sin()


def while_functions_are_disabled(x):
    with Scaling(3), torch._C.DisableTorchFunctionSubclass():
        return x.sin()


@pytest.mark.parametrize(
    "program",
    [
        scaled, nested, inherited, beneath_one_of_torch, entered_by_its_own_method, left_by_an_exception, from_outside,
        twice_the_same, in_a_generator, with_another_inside_of_the_handler, that_calls_itself, while_functions_are_disabled,
    ],
)  # fmt: skip
def test_modes(program):
    check(program)


def test_gradients():
    def program(x, w):
        with Scaling(3):
            return torch.add(x, w).sin().sum()

    def trained(fn):
        w = torch.ones(4, requires_grad=True)
        fn(torch.arange(4.0), w).backward()
        return w.grad

    compiled = smelt.compile(program, fullgraph=True)
    for _ in range(2):
        same(trained(compiled), trained(program))


def test_changed_factor_is_guarded():
    mode = Scaling(2)

    def program(x):
        with mode:
            return x.sin()

    compiled = smelt.compile(program, fullgraph=True)
    for factor in (2, 2, 3, 4.5):
        mode.factor = factor
        same(compiled(torch.ones(4)), program(torch.ones(4)))


def break_in_the_block(x):
    with Logging() as mode:
        y = x.sin()
        z = y * y.sum().item()
    return z + 1, mode.log


def break_in_the_handler(x):
    class Reading(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out + float(out.sum()) if func is torch.Tensor.sin else out

    with Logging() as log, Reading():
        y = x.sin()
    return y, log.log


def transforms(x):
    with Logging() as mode:
        y = torch.vmap(lambda row: row * 2)(x)
    return y, mode.log


def texts(x):
    with Logging() as mode:
        text = f"{x.sum():.2f}"
    return text, mode.log


def custom_functions(x):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    with Logging() as mode:
        y = Double.apply(x)
    return y, mode.log


def copies(x):
    import copy

    with Logging() as mode:
        y = copy.deepcopy(x)
    return y, mode.log


def parameters(x):
    with Logging() as mode:
        layer = nn.Linear(4, 2)
    return layer(x).shape, mode.log


@pytest.mark.parametrize(
    "program",
    [break_in_the_block, break_in_the_handler, transforms, texts, custom_functions, copies, parameters],
)
def test_uncaptured_calls_run_under_the_mode(program):
    gc.collect()  # what other tests leave does not die, and is not shown, under the mode
    gc.disable()
    try:
        check(program, breaks=True)
    finally:
        gc.enable()


def test_mode_around_the_compiled_function_observes_its_calls():
    def program(x):
        with Scaling(2):
            return x.sin() + 1

    compiled = smelt.compile(program)
    x = torch.ones(4)
    compiled(x)
    logs = []
    for fn in (program, compiled, compiled):
        with Logging() as mode:
            fn(x)
        logs.append(mode.log)
    assert logs[1:] == logs[:1] * 2


@pytest.mark.parametrize("body", BODIES)
def test_modes_around_one_graph_observe_eagers_calls(body):
    compiled = smelt.compile(body, fullgraph=True)
    x = torch.arange(16.0).reshape(4, 4) / 7 - 1
    for _ in range(2):
        seen = []
        for fn in (body, compiled):
            torch.manual_seed(0)
            with Scaling(2), Logging() as mode:
                seen.append((fn(x.clone()), mode.log, mode.count, _len_torch_function_stack()))
        same(seen[1], seen[0])
    same(compiled(x.clone()), body(x.clone()))
    assert len(inspect.entries(compiled)) == 2


@pytest.mark.parametrize("options", [{}, {"backend": "eager"}, {"options": {"verify_stages": True}}])
def test_modes_around_one_graph(options):
    def program(x, w, i):
        return (torch.add(x, w).sin() * w)[i], torch.ones(4), F.relu(w)

    compiled = smelt.compile(program, fullgraph=True, **options)
    at, beyond = torch.tensor([0, 1]), torch.tensor([0, 9])
    for modes in ([], [Scaling(3)], [Replacing(), Scaling(2)], [Scaling(2), Replacing()], [Scaling(0.5)]):
        seen = []
        for fn in (program, compiled):
            w = torch.linspace(1, 2, 4, requires_grad=True)
            with contextlib.ExitStack() as stack, torch.device("cpu"):
                for mode in modes:
                    stack.enter_context(mode)
                out = fn(torch.arange(4.0), w, at)
                with pytest.raises(IndexError) as raised:
                    fn(torch.arange(4.0), w, beyond)
            out[0].sum().backward()
            seen.append((out, w.grad, str(raised.value)))
        same(seen[1], seen[0])


def test_what_a_mode_around_one_graph_holds_is_guarded():
    compiled = smelt.compile(lambda x: x.sin(), fullgraph=True)
    for mode, factor in ((Scaling(2), 2), (Scaling(2), 2), (Scaling(5), 5), (Strict(), 1)):
        with mode:
            torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 0.8414709848 * factor))
    with Strict(), pytest.raises(ValueError, match="no cosines"):
        smelt.compile(lambda x: x.cos(), fullgraph=True)(torch.ones(4))
    assert _len_torch_function_stack() == 0


def check(program, breaks=False):
    """Three calls have eager's results, with one graph unless the program `breaks` it."""
    compiled = smelt.compile(program, fullgraph=not breaks)
    x = torch.arange(16.0).reshape(4, 4) / 7 - 1
    results = []
    for fn in (program, compiled):
        OUTSIDE.__init__()
        torch.manual_seed(0)
        results.append([fn(x.clone()) for _ in range(3)])
        results.append(list(OUTSIDE.log))
    same(results[2:], results[:2])
    reasons = [reason.kind.id for reason in inspect.reasons(compiled)]
    assert bool(reasons) == breaks and "internal-error" not in reasons


class Keyworded(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.log = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append((func.__name__, kwargs))
        return func(*args, **(kwargs or {}))


def test_empty_keywords_are_passed_on():
    """By C functions that take keywords, where they are called with one."""

    def f(x):
        none = {}
        with Keyworded() as mode:
            y = torch.cos(x) + torch.cos(x, **{}) + x.add(x, **none) + x.cos(**none)
            z = torch.Tensor.add(x, x, **none) + F.relu(x, **none) + torch.sum(x, dim=0, **none)
            return y, z, (lambda g, *a, **k: g(*a, **k))(torch.exp, x), mode.log

    x = torch.randn(4)
    assert smelt.compile(f)(x)[3] == f(x)[3]
