"""Settings that a program changes for a stretch: every manager, entered in every way, left in every way.

Each combination is a program. It is called three times, eager and compiled, and compared with what the settings of the
process were inside, after the stretch and after the call.
"""

from __future__ import annotations

import contextlib
import decimal
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import _len_torch_function_stack

import smelt
from smelt.report import inspect
from tests.harness.agreement import failure_of
from tests.harness.snapshot import difference, snapshot

Manager = Any


def settings() -> dict[str, object]:
    """What is set now, in the process and in the thread."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), depth),
        "cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads of autograd": torch._C._is_multithreading_enabled(),
        "attention": (torch._C._get_flash_sdp_enabled(), torch._C._get_math_sdp_enabled()),
        "kernels": (torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_deterministic()),
        "modes": _len_torch_function_stack(),
        "filters": [f[:1] + f[2:3] for f in warnings.filters],
        "precision": decimal.getcontext().prec,
        "random": torch.get_rng_state(),
        "subclasses": torch._C._is_torch_function_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
    }


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def two_at_once() -> Iterator[int]:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        yield 1


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Casts(torch.autocast):
    """The user's own, which counts."""

    entered = 0

    def __init__(self) -> None:
        super().__init__("cpu", dtype=torch.bfloat16)

    def __enter__(self):
        Casts.entered += 1
        return super().__enter__()

    def __exit__(self, *error):
        Casts.entered += 10
        return super().__exit__(*error)


MANAGERS: dict[str, Callable[[], Manager]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast uncached": lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
    "cpu autocast": lambda: torch.amp.autocast_mode.autocast("cpu"),
    "autocast of the user's": Casts,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "inference_mode": torch.inference_mode,
    "multithreading": lambda: torch.autograd.set_multithreading_enabled(False),
    "default dtype": lambda: default_dtype(torch.float64),
    "deterministic": deterministic,
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "flags of oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "flags of cuDNN": lambda: torch.backends.cudnn.flags(deterministic=True),
    "record_function": lambda: torch.profiler.record_function("part"),
    "device": lambda: torch.device("cpu"),
    "fork_rng": torch.random.fork_rng,
    "catch_warnings": warnings.catch_warnings,
    "ignored warnings": quiet,
    "localcontext": lambda: decimal.localcontext(decimal.Context(prec=7)),
    "two at once": two_at_once,
    "no torch function": torch._C.DisableTorchFunctionSubclass,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "nullcontext": contextlib.nullcontext,
    "suppress": lambda: contextlib.suppress(KeyError),
}


# ------------------------------------------------------------------------------------ how a manager is entered and left


def by_with(make, body):
    with make():
        return body()


def by_enter_context(make, body):
    with contextlib.ExitStack() as stack:
        stack.enter_context(make())
        return body()


def by_push(make, body):
    with contextlib.ExitStack() as stack:
        manager = make()
        manager.__enter__()
        stack.push(manager)
        return body()


def by_callback(make, body):
    with contextlib.ExitStack() as stack:
        manager = make()
        manager.__enter__()
        stack.callback(manager.__exit__, None, None, None)
        return body()


def by_pop_all(make, body):
    with contextlib.ExitStack() as stack:
        stack.enter_context(make())
        kept = stack.pop_all()
    try:
        return body()
    finally:
        kept.close()


def by_calls(make, body):
    manager = make()
    manager.__enter__()
    try:
        return body()
    finally:
        manager.__exit__(None, None, None)


def by_calls_of_the_class(make, body):
    manager = make()
    kind = type(manager)
    kind.__enter__(manager)
    try:
        return body()
    finally:
        kind.__exit__(manager, None, None, None)


def by_decoration(make, body):
    manager = make()
    return manager(body)() if callable(manager) else by_with(make, body)


def by_own_manager(make, body):
    @contextlib.contextmanager
    def own():
        with make() as entered:
            yield entered

    with own():
        return body()


def by_own_class(make, body):
    class Own:
        def __enter__(self):
            self.inner = make()
            return self.inner.__enter__()

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    with Own():
        return body()


def by_generator(make, body):
    def parts():
        with make():
            yield body()

    return list(parts())


def by_nesting(make, body):
    with make(), contextlib.ExitStack() as stack:
        stack.enter_context(make())
        return body()


WAYS = [
    by_with, by_enter_context, by_push, by_callback, by_pop_all, by_calls, by_calls_of_the_class, by_decoration,
    by_own_manager, by_own_class, by_generator, by_nesting,
]  # fmt: skip


# ------------------------------------------------------------------------------------------- what happens in between


def nothing(x):
    return x @ x


def breaks(x):
    y = x @ x
    smelt.graph_break()
    return y * 2


def breaks_at_a_value(x):
    y = x @ x
    y = y * float(y.sum().item() > 0)
    print(end="")
    return y + 1


def raises(x):
    y = x @ x
    raise KeyError(y.dtype)


def breaks_and_raises(x):
    y = x @ x
    smelt.graph_break()
    raise KeyError(y.dtype)


def breaks_in_a_loop(x):
    for i in range(2):
        x = x @ x
        if i == 0:
            smelt.graph_break()
    return x


MIDDLES = [nothing, breaks, breaks_at_a_value, raises, breaks_and_raises, breaks_in_a_loop]


def program(make, way, middle):
    def fn(x):
        seen = []

        def body():
            seen.append(torch.is_grad_enabled())
            y = middle(x)
            seen.append(torch.is_autocast_enabled("cpu"))
            return y, y.requires_grad, y.is_inference()

        try:
            y = way(make, body)
        except KeyError as error:
            y = str(error)
        return y, x @ x, seen, torch.is_grad_enabled()

    return fn


def observed(fn, call) -> Iterator[object]:
    Casts.entered = 0
    torch.manual_seed(0)
    for _ in range(3):
        x = torch.randn(3, 3, requires_grad=True)
        try:
            result = call(x)
        except Exception as error:
            result = error
        yield snapshot({"result": result, "settings": settings(), "entered": Casts.entered})


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """A failing program leaves no setting to the next one."""
    filters = warnings.filters[:]
    with contextlib.ExitStack() as stack:
        stack.callback(warnings.filters.__setitem__, slice(None), filters)
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(torch.use_deterministic_algorithms, False)
        stack.callback(torch.clear_autocast_cache)
        stack.callback(torch.set_autocast_enabled, "cpu", False)
        stack.callback(torch._C._set_grad_enabled, True)
        yield
    while torch.autocast_decrement_nesting() >= 0:
        pass
    torch.autocast_increment_nesting()
    torch._C._set_multithreading_enabled(True)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.set_anomaly_enabled(False)


def check(name: str, way, middle) -> None:
    fn = program(MANAGERS[name], way, middle)
    with put_back():
        want = list(observed(fn, fn))
        compiled = smelt.compile(program(MANAGERS[name], way, middle))
        for number, facts in enumerate(observed(fn, compiled)):
            problem = difference(facts, want[number], 1e-5, 1e-5)
            assert problem is None, f"{name} {way.__name__} {middle.__name__} call {number}: {problem}"
        assert failure_of(compiled) is None, (
            f"{name} {way.__name__} {middle.__name__}: {failure_of(compiled)}"
        )


COMBINATIONS = list(itertools.product(MANAGERS, WAYS))


@pytest.fixture(scope="module", autouse=True)
def first_compilation() -> None:
    """The first compilation imports modules that add warning filters."""
    first = smelt.compile(lambda x: x @ x)
    for requires_grad in (True, False, True):
        first(torch.ones(2, 2, requires_grad=requires_grad))


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", MANAGERS)
def test_settings_are_as_in_eager(name: str, way) -> None:
    """Each manager and way with one way out; the three that break the graph come in turn, the others more rarely."""
    at = COMBINATIONS.index((name, way))
    check(name, way, MIDDLES[(at + at // len(WAYS)) % len(MIDDLES)])


@pytest.mark.parametrize("middle", MIDDLES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["autocast", "autocast of the user's", "sdpa_kernel", "device"])
def test_every_way_out(name: str, middle) -> None:
    check(name, by_enter_context, middle)


# ---------------------------------------------------------------------------------------- managers beside each other


def left_in_the_order_of_entering(x):
    first, second = torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16)
    first.__enter__(), second.__enter__()
    y = x @ x
    first.__exit__(None, None, None)
    smelt.graph_break()
    z = x @ x
    second.__exit__(None, None, None)
    return y, z, x @ x


def left_crosswise_behind_a_break(x):
    first, second = torch.enable_grad(), torch.no_grad()
    first.__enter__()
    smelt.graph_break()
    second.__enter__()
    y = x @ x
    first.__exit__(None, None, None)
    smelt.graph_break()
    z = x @ x
    second.__exit__(None, None, None)
    return y, z, torch.is_grad_enabled(), torch._C._set_grad_enabled(True)


def off_inside_of_what_was_set_by_hand(x):
    torch.set_autocast_enabled("cpu", True)
    with torch.autocast("cpu", enabled=False):
        y = x @ x
        smelt.graph_break()
        y = y @ x
    z = x @ x
    torch.set_autocast_enabled("cpu", False)
    return y, z


def entered_twice(x):
    manager = torch.no_grad()
    with manager, contextlib.ExitStack() as stack:
        stack.enter_context(manager)
        smelt.graph_break()
        y = x @ x
    return y, torch.is_grad_enabled(), torch._C._set_grad_enabled(True)


def never_left(x):
    torch.no_grad().__enter__()
    y = x @ x
    return y, torch.is_grad_enabled()


def left_and_never_entered(x):
    manager = torch.no_grad()
    manager.__exit__(None, None, None)
    y = x @ x
    return y, torch.is_grad_enabled(), torch._C._set_grad_enabled(True)


def nesting_counted_by_hand(x):
    torch.autocast_increment_nesting()
    return x @ x


def a_break_in_a_nested_sdpa_kernel(x):
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        with sdpa_kernel(SDPBackend.MATH):
            y = x @ x
            smelt.graph_break()
            inside = torch._C._get_flash_sdp_enabled()
        between = torch._C._get_flash_sdp_enabled()
    return y * 2, inside, between


@pytest.mark.parametrize(
    "fn",
    [
        left_in_the_order_of_entering, left_crosswise_behind_a_break, off_inside_of_what_was_set_by_hand, entered_twice,
        never_left, left_and_never_entered, nesting_counted_by_hand, a_break_in_a_nested_sdpa_kernel,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_managers_beside_each_other(fn) -> None:
    with put_back():
        want = list(observed(fn, fn))
    with put_back():
        compiled = smelt.compile(fn)
        for number, facts in enumerate(observed(fn, compiled)):
            problem = difference(facts, want[number], 1e-5, 1e-5)
            assert problem is None, f"call {number}: {problem}"
        assert failure_of(compiled) is None


def _toggle(setter: Callable[[bool], object], before: bool) -> Callable[[], Iterator[None]]:
    """Set a switch, restore it, set it again."""

    def run() -> Iterator[None]:
        try:
            for value in (before, not before, before, not before):
                setter(value)
                yield
        finally:
            setter(before)

    return run


def _precisions() -> Iterator[None]:
    """Another precision of convolutions, and back: torch refuses to tell that of all of cuDNN while they differ."""
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = conv.fp32_precision
    try:
        for precision in ("none", "ieee", "none", "ieee"):
            conv.fp32_precision = precision
            yield
    finally:
        conv.fp32_precision = before


def _attribute(owner: Any, name: str) -> Callable[[bool], object]:
    return lambda value: setattr(owner, name, value)


SWITCHES: dict[str, tuple[Callable[[], object], Callable[[], Iterator[None]]]] = {
    "threads of autograd": (
        torch._C._is_multithreading_enabled,
        _toggle(torch._C._set_multithreading_enabled, True),
    ),
    "hooks of saved tensors": (
        torch._C._autograd._saved_tensors_hooks_is_enabled,  # type: ignore[attr-defined]
        _toggle(
            lambda on: (
                torch._C._autograd._saved_tensors_hooks_enable()
                if on
                else torch._C._autograd._saved_tensors_hooks_disable("off")
            ),
            True,
        ),
    ),
    "writes that require gradients": (
        torch._C._functorch.get_inplace_requires_grad_allowed,
        _toggle(torch._C._functorch.set_inplace_requires_grad_allowed, False),
    ),
    "attribute of a backend": (
        lambda: torch.backends.cudnn.allow_tf32,
        _toggle(_attribute(torch.backends.cudnn, "allow_tf32"), True),
    ),
    "attribute through __getattr__": (
        lambda: str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        _toggle(_attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"), True),
    ),
    "query with arguments": (
        lambda: torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        _precisions,
    ),
    "query of a Python function": (
        lambda: torch.utils.backcompat.keepdim_warning.enabled,
        _toggle(_attribute(torch.utils.backcompat.keepdim_warning, "enabled"), False),
    ),
    "invariants of sparse tensors": (
        torch.sparse.check_sparse_tensor_invariants.is_enabled,
        _toggle(torch._C._set_check_sparse_tensor_invariants, False),
    ),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_settings_that_are_read_are_guarded(name: str) -> None:
    read, states = SWITCHES[name]
    compiled = smelt.compile(lambda x: (x + 1, read()), fullgraph=True)
    found = [(compiled(torch.ones(2))[1], read()) for _ in states()]
    assert all(a == b for a, b in found), found
    assert len({str(b) for _, b in found}) == 2
    assert len(inspect.entries(compiled)) == 2


def test_a_setting_that_no_operator_depends_on_is_left_changed() -> None:
    def f(x: Any) -> Any:
        torch.autograd.set_multithreading_enabled(False)
        return x + 1

    compiled = smelt.compile(f)
    try:
        for _ in range(3):
            torch._C._set_multithreading_enabled(True)
            compiled(torch.ones(2))
            assert not torch._C._is_multithreading_enabled()
    finally:
        torch._C._set_multithreading_enabled(True)
