"""What a compiled call answers without a word is right: facts that are easily baked into a capture by mistake."""

from __future__ import annotations

import gc
import inspect
import json
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt import config
from smelt.errors import OptionError, VerificationError
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import same


def agree(fn: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> Any:
    """One compiled callable answers each of `calls` as eager does; returns it."""
    compiled = smelt.compile(fn, **options)
    with torch.no_grad():
        for arguments in calls:
            same(compiled(*arguments), fn(*arguments))
    assert not any(r.kind.id == "internal-error" for r in reasons(compiled)), reasons(compiled)
    return compiled


def refused(fn: Callable[..., Any], *arguments: Any) -> str:
    """Calls the compiled function, which must have run eagerly; the id of the reason."""
    compiled = smelt.compile(fn)
    with torch.no_grad():
        compiled(*arguments)
    assert reasons(compiled)
    assert reasons(compiled)[0].kind.id != "internal-error", reasons(compiled)
    return reasons(compiled)[0].kind.id


# ------------------------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("operator", ["as_strided", "as_strided_copy"])
def test_as_strided_counts_from_the_start_of_the_storage(operator):
    def f(x):
        return getattr(torch, operator)(x, (2,), (1,), 1) * 1

    def fresh(start):
        return torch.arange(6)[start : start + 3]

    agree(f, (fresh(0),), (fresh(1),), (fresh(0),))
    agree(f, (fresh(1),), (fresh(0),))
    c = agree(lambda x: x.as_strided((2,), (1,)) * 1, (fresh(0),), (fresh(3),))
    assert len(entries(c)) == 1  # no offset was named: nothing to guard


def test_as_strided_scatter_counts_from_the_start_of_the_storage():
    def f(x):
        return torch.as_strided_scatter(x, torch.zeros(2, dtype=torch.int64), (2,), (1,), 1)

    agree(f, (torch.arange(6)[:3],), (torch.arange(6)[1:4],))


def test_requires_grad_of_an_outside_tensor():
    w = torch.ones(3)

    def f(x):
        w.requires_grad_()
        return x * 2

    compiled = smelt.compile(f, fullgraph=True)
    for _ in range(2):
        assert not compiled(torch.ones(3)).requires_grad
        assert w.requires_grad
    w = torch.ones(3)
    agree(lambda x: w.requires_grad_(False) * x, (torch.ones(3),))


CHANGES: list[Callable[[torch.Tensor], Any]] = [
    lambda w: w.requires_grad_(True),
    lambda w: torch.Tensor.requires_grad_(w, True),
    lambda w: setattr(w, "requires_grad", True),
    lambda w: torch.Tensor.requires_grad.__set__(w, True),
    lambda w: setattr(w, "data", torch.zeros(3)),
    lambda w: torch.Tensor.data.__set__(w, torch.zeros(3)),
    lambda w: setattr(w, "grad", torch.zeros(3)),
    lambda w: object.__setattr__(w, "mark", 3),
    lambda w: vars(w).update(mark=3),
    lambda w: w.__dict__.__setitem__("mark", 3),
    lambda w: w.share_memory_(),
    lambda w: w.resize_(2),
    lambda w: w.set_(torch.zeros(3)),
    lambda w: w.unsqueeze_(0),
    lambda w: w.squeeze_(),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_metadata_of_an_outside_tensor(number):
    """Whatever changes about a tensor besides its values is changed by each call."""

    def facts(w):
        grad = None if w.grad is None else w.grad.tolist()
        return w.requires_grad, w.is_shared(), tuple(w.shape), w.tolist(), grad, vars(w)

    def run(compile):
        def f(w, x):
            CHANGES[number](w)
            return x + 1

        called = compile(f)
        tensors = [torch.ones(3), torch.ones(3), torch.ones(3)]
        for w in tensors:
            called(w, torch.ones(2))
        return [facts(w) for w in tensors]

    assert run(smelt.compile) == run(lambda f: f)


def test_retain_grad_of_an_outside_tensor():
    def run(compile):
        leaf = torch.ones(3, requires_grad=True)
        tensors = [leaf * 1 for _ in range(3)]
        called = compile(lambda w, x: (w.retain_grad(), x + 1)[1])
        for w in tensors:
            called(w, torch.ones(2))
        return [w.retains_grad for w in tensors]

    assert run(smelt.compile) == run(lambda f: f)


# -------------------------------------------------------------------------------------------------- sets


@pytest.mark.parametrize("kind", [set, frozenset])
def test_order_of_equal_sets(kind):
    def f(x, s):
        return x * next(iter(s)), list(s), [2 * v for v in s]

    x = torch.ones(2)
    agree(f, (x, kind([8, 0])), (x, kind([0, 8])), (x, kind([8, 0])))
    agree(f, (x, (1, kind([8, 0]))[1]), (x, kind([0, 8])))


def test_order_of_sets_in_tuples_and_attributes():
    holder = type("Holder", (), {})()

    def f(x, t):
        return x * next(iter(t[1])), list(holder.values)

    for first, second in (([8, 0], [0, 8]), ([0, 8], [8, 0])):
        holder.values = set(first)
        c = smelt.compile(f)
        same(c(torch.ones(2), (1, frozenset(first))), f(torch.ones(2), (1, frozenset(first))))
        holder.values = set(second)
        same(c(torch.ones(2), (1, frozenset(second))), f(torch.ones(2), (1, frozenset(second))))


def test_types_of_elements_of_equal_frozensets():
    agree(lambda x, s: x * 2 if any(v is True for v in s) else x, (torch.ones(2), frozenset([1])),
          (torch.ones(2), frozenset([True])))  # fmt: skip


class Weight:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("kind", [set, frozenset])
def test_objects_in_sets_are_guarded(kind):
    a, b = Weight(2.0), Weight(3.0)

    def f(x, s):
        for w in s:
            x = x * w.value
        return x, len(s), a in s

    c = agree(f, (torch.ones(2), kind([a])), (torch.ones(2), kind([b])), (torch.ones(2), kind([a])))
    a.value = 5.0
    same(c(torch.ones(2), kind([a])), f(torch.ones(2), kind([a])))
    assert not reasons(c)


class Loud:
    """A key whose comparison is Python code."""

    compared = 0

    def __init__(self, key):
        self.key = key

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        Loud.compared += 1
        return isinstance(other, Loud) and self.key == other.key


def test_keys_that_compare_in_python_are_looked_up_by_no_guard():
    table = {Loud(1): 2.0}
    key = Loud(1)

    def f(x):
        return x * table[key] if key in table else x

    def g(x):
        return x * table.get(key, 1.0)

    for fn in (f, g):
        c = smelt.compile(fn)
        same(c(torch.ones(2)), fn(torch.ones(2)))
        table[Loud(1)] = 7.0
        same(c(torch.ones(2)), fn(torch.ones(2)))
        del table[Loud(1)]
        same(c(torch.ones(2)), fn(torch.ones(2)))
        table[Loud(1)] = 2.0


# ------------------------------------------------------------------------------------------- weak references


def test_a_weak_reference_that_dies():
    class Thing:
        k = 2.0

    def f(x, r):
        thing = r()
        return x * 3 if thing is None else x * thing.k

    keep, reference = [Thing()], None
    reference = weakref.ref(keep[0])
    c = smelt.compile(f)
    x = torch.ones(2)
    same(c(x, reference), f(x, reference))
    same(c(x, reference), f(x, reference))
    smelt_entries = len(entries(c))
    assert smelt_entries == 1, reasons(c)
    keep.clear()
    gc.collect()
    same(c(x, reference), x * 3)


def test_a_global_weak_reference_that_dies():
    class Thing:
        pass

    keep = [Thing()]
    reference = weakref.ref(keep[0])
    c = smelt.compile(lambda x: x * 3 if reference() is None else x)
    same(c(torch.ones(2)), torch.ones(2))
    keep.clear()
    gc.collect()
    same(c(torch.ones(2)), torch.ones(2) * 3)


def _lives(proxy):
    try:
        return proxy.k > 0
    except ReferenceError:
        return False


def test_weak_containers_and_methods_that_die():
    class Thing:
        k = 2.0

        def method(self):
            return 2.0

    for make, read in (
        (weakref.WeakMethod, lambda r: 3.0 if r() is None else 2.0),
        (lambda m: weakref.proxy(m.__self__), lambda p: 2.0 if _lives(p) else 3.0),
        (lambda m: weakref.finalize(m.__self__, int), lambda f: 2.0 if f.alive else 3.0),
        (lambda m: weakref.WeakSet([m.__self__]), lambda s: float(len(s))),
        (lambda m: weakref.WeakValueDictionary({"a": m.__self__}), lambda d: 1.0 if "a" in d else 2.0),
        (lambda m: weakref.WeakKeyDictionary({m.__self__: 1}), lambda d: float(len(d))),
    ):
        keep = [Thing()]
        weak = make(keep[0].method)
        c = smelt.compile(lambda x: x * read(weak))  # noqa: B023
        same(c(torch.ones(2)), torch.ones(2) * read(weak))
        keep.clear()
        gc.collect()
        same(c(torch.ones(2)), torch.ones(2) * read(weak))


# ----------------------------------------------------------------------------------- settings of the process

SETTINGS: dict[str, Callable[[], Any]] = {
    "printoptions": lambda: torch.set_printoptions(precision=4),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(False),
    "anomaly switch": lambda: torch.set_anomaly_enabled(False),
    "flush_denormal": lambda: torch.set_flush_denormal(False),
    "generator": lambda: torch.default_generator.manual_seed(3),
    "default generator, state": lambda: torch.default_generator.set_state(
        torch.default_generator.get_state()
    ),
    "warn_always": lambda: torch.set_warn_always(False),
    "interop": lambda: torch._C._set_backcompat_broadcast_warn(False),
    "jit": lambda: torch._C._jit_set_profiling_mode(True),
    "default tensor type": lambda: torch.set_default_tensor_type(torch.FloatTensor),
    "matmul": lambda: torch.set_float32_matmul_precision("highest"),
    "debug mode": lambda: torch.set_deterministic_debug_mode(0),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", False),
    "tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", False),
    "sdp": lambda: torch.backends.cuda.enable_flash_sdp(True),
    "a property of a module": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", True),
    "library": lambda: torch.library.Library("smelt_test", "FRAGMENT"),
    "reading printoptions": lambda: torch._tensor_str.get_printoptions(),
    "numpy print": lambda: np.set_printoptions(precision=8),
    "numpy errors": lambda: np.seterr(all="warn"),
    "module": lambda: setattr(torch, "smelt_was_here", 1),
    "dump": lambda: json.dump({}, sys.stderr),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_process_are_refused(name):
    change = SETTINGS[name]

    def f(x):
        change()
        return x + 1

    with torch.random.fork_rng():
        refused(f, torch.ones(2))
    vars(torch).pop("smelt_was_here", None)


@pytest.mark.filterwarnings("ignore")
def test_grad_mode_and_autocast_are_not():
    def f(x, y):
        with torch.no_grad():
            z = x * 2
        with torch.enable_grad(), torch.set_grad_enabled(False):
            z = z + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ y + z

    c = agree(f, (torch.ones(3, 3), torch.ones(3, 3)))
    assert len(entries(c)) == 1 and not reasons(c)


# ------------------------------------------------------------------------------------------- introspection

LOOKS: dict[str, Callable[[Any], Any]] = {
    "getrefcount": lambda x: sys.getrefcount(x),
    "getsizeof": lambda x: sys.getsizeof([x]),
    "frame": lambda x: sys._getframe().f_lineno,
    "currentframe": lambda x: inspect.currentframe(),
    "stack": lambda x: inspect.stack(),
    "format_stack": lambda x: traceback.format_stack(),
    "extract_stack": lambda x: traceback.extract_stack(),
    "referrers": lambda x: gc.get_referrers(x),
    "state of random numbers": lambda x: np.random.get_state(),
    "generator": lambda x: np.random.default_rng(),
    "recursion": lambda x: sys.getrecursionlimit(),
    "thread": lambda x: __import__("threading").current_thread(),
}


@pytest.mark.parametrize("name", LOOKS)
def test_looking_at_the_interpreter_is_refused(name):
    look = LOOKS[name]

    def f(x):
        look(x)
        return x + 1

    refused(f, torch.ones(2))


# ------------------------------------------------------------------------------------------------- ourselves


def test_a_verification_error_reaches_the_caller(monkeypatch):
    c = smelt.compile(lambda x: x + 1, options={"verify_stages": True})
    monkeypatch.setattr("smelt.capture.driver.frame_compiler.verify_accepts", _disagree)
    with pytest.raises(VerificationError):
        c(torch.ones(2))
    quiet = smelt.compile(lambda x: x + 1)
    same(quiet(torch.ones(2)), torch.ones(2) + 1)
    assert reasons(quiet)[0].kind.id == "internal-error"


def _disagree(*_: Any) -> None:
    raise VerificationError("disagree")


@pytest.mark.parametrize("text", ["no", "off", "False", "0", "", "NO"])
def test_false_in_the_environment(text):
    assert config.from_environment({"SMELT_FUSE": text}).fuse is False


@pytest.mark.parametrize("text", ["yes", "on", "1", "True"])
def test_true_in_the_environment(text):
    assert config.from_environment({"SMELT_VERIFY_STAGES": text}).verify_stages is True


@pytest.mark.parametrize("name, text", [("SMELT_THREADS", "many"), ("SMELT_FUSE", "perhaps")])
def test_what_no_option_can_be_is_an_error_that_names_the_variable(name, text):
    with pytest.raises(OptionError, match=name):
        config.from_environment({name: text})
