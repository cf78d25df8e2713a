"""The public functions: argument checks, transparency of compiled modules, marks, backends."""

import asyncio
import copy
import dataclasses
import functools
import gc
import importlib.metadata
import inspect
import os
import pickle
import subprocess
import sys
import types
import typing
import warnings
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import smelt
from smelt import events
from smelt.errors import OptionError, Unsupported
from smelt.report.inspect import entries, reasons, records
from tests.harness.processes import run
from tests.harness.threads import in_threads


def add_one(x):
    return x + 1


@smelt.compile
def decorated(x, *, scale=2.0):
    "Doubles."
    return x * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("offset", torch.ones(3))
        self.flag = True

    def forward(self, x):
        y = self.layer(x) + self.offset
        return y if self.flag else -y

    def twice(self, x):
        return self(x) * 2


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend": "smlt"}, OptionError, "'smelt'"),
        ({"mode": "max-autotun"}, OptionError, "'max-autotune'"),
        ({"options": {"fuze": True}}, OptionError, "'fuse'"),
        ({"options": {"fuse": 1}}, OptionError, "bool"),
        ({"options": [1]}, OptionError, "dict"),
        ({"mode": "default", "options": {"fuse": True}}, OptionError, "not both"),
        ({"fullgraph": "yes"}, OptionError, "fullgraph"),
        ({"dynamic": "auto"}, OptionError, "dynamic"),
        ({"backend": "inductor"}, OptionError, "smelt takes its place"),
        ({"options": {"recompile_limit": -1}}, OptionError, "recompile_limit must be at least 1"),
        ({"options": {"threads": -2}}, OptionError, "threads must be at least 0"),
        ({"options": {"activation_memory_budget": float("nan")}}, OptionError, "between 0 and 1"),
    ],
)
def test_a_wrong_argument_raises_at_once(arguments, error, words):
    with pytest.raises(error, match=words):
        smelt.compile(add_one, **arguments)
    with pytest.raises(error, match=words):
        smelt.compile(**arguments)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="3"):
        smelt.compile(3)
    with pytest.raises(TypeError, match="model is None"):
        smelt.compile(None)
    with pytest.raises(TypeError, match="None"):
        smelt.compile()(None)


def test_methods_without_an_instance_are_compiled_and_disabled():
    class Counted:
        @smelt.compile
        @staticmethod
        def static(x):
            return x + 1

        @smelt.compile(fullgraph=True)
        @classmethod
        def of_class(cls, x):
            return x, cls

        @smelt.disable
        @staticmethod
        def eager(x):
            return x * 2

    x = torch.ones(2)
    for owner in (Counted, Counted()):
        assert owner.static(x).tolist() == [2, 2]
        assert owner.of_class(x)[1] is Counted
        assert owner.eager(x).tolist() == [2, 2]
    assert len(entries(Counted.static)) == 1


def test_compiled_coroutines_and_generators_are_recognised():
    async def coroutine(x):
        return x + 1

    def generator(x):
        yield x + 1

    compiled = smelt.compile(coroutine)
    assert inspect.iscoroutinefunction(compiled) and asyncio.iscoroutinefunction(compiled)
    assert asyncio.run(compiled(torch.ones(1))).item() == 2
    assert inspect.isgeneratorfunction(smelt.compile(generator))
    assert not inspect.iscoroutinefunction(smelt.compile(add_one))


def test_defaults_of_options():
    def compiled():
        return smelt.compile(lambda x: x + 1)._smelt_settings.config

    before = compiled()
    with smelt.config.set(recompile_limit=3, fuse=False) as now:
        assert compiled() == now and (now.recompile_limit, now.fuse) == (3, False)
        with pytest.raises(OptionError, match="'threads'"):
            smelt.config.set(fuse=True, thread=1)
        with pytest.raises(OptionError, match="at least 0"):
            smelt.config.set(verify=-1)
        assert compiled() == now
        assert smelt.config.set(verify=1) and compiled().verify == 1
    assert compiled() == dataclasses.replace(before, verify=1)  # the context restores its own options alone
    smelt.config.set(verify=before.verify)
    with smelt.config.set(activation_memory_budget=0), smelt.config.set(activation_memory_budget=0.5):
        assert compiled().activation_memory_budget == 0.5
    assert compiled() == before


def test_public_names_and_short_texts():
    def broken(x):
        smelt.graph_break()
        return x + 1

    compiled = smelt.compile(broken)
    compiled(torch.ones(2))
    assert {name for name in dir(smelt) if not name.startswith("_")} == {
        name for name in smelt.__all__ if not name.startswith("_")
    }
    for _, record in records(compiled):
        for shown in (record, *record.entries, *record.breaks):
            assert repr(shown).startswith("<") and "\n" not in repr(shown)


def test_a_dump_without_with_warns(tmp_path):
    with pytest.warns(UserWarning, match="wrote nothing: it is a context"):
        smelt.dump(tmp_path / "never")
    assert not (tmp_path / "never").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context = smelt.dump(tmp_path)
        with context as outer, context as inner:
            smelt.compile(lambda x: x + 1)(torch.ones(2))
        assert outer.files and inner.files
        smelt.compile(lambda x: x + 2)(torch.ones(2))
        assert len(outer.files) == len(inner.files)


def test_a_variable_turns_smelt_off():
    found = run(
        """
import json, torch, warnings
warnings.simplefilter("error")
import smelt
@smelt.compile(fullgraph=True)
def f(x): print(end=""); return x + 1
@smelt.compile
class Called:
    def __call__(self, x): return x * 2
model = torch.nn.Linear(2, 2)
smelt.compile_(model)
torch.compile(lambda x: x + 1, backend="smelt")(torch.ones(2))
x = torch.ones(2)
try:
    smelt.explain(f)
except smelt.errors.Unavailable as error:
    said = str(error)
with smelt.dump("never") as dump:
    f(x)
print(json.dumps([f(x).tolist(), Called()(x).tolist(), smelt.compile(model) is model, said, model(x).shape, dump.files]))
""",
        env={**os.environ, "SMELT_DISABLE": "1"},
    )
    assert found[:3] == [[2, 2], [2, 2], True] and found[5] == []
    assert "SMELT_DISABLE turns smelt off" in found[3]


def test_types_of_results():
    """Type checkers know the class of what the public functions return."""
    hints = {name: inspect.signature(getattr(smelt, name)).return_annotation for name in smelt.__all__[1:]
             if callable(getattr(smelt, name))}  # fmt: skip
    assert hints["explain"] == "Callable[..., Explanation]"
    assert hints["trace"] == "Callable[..., Trace]"
    assert hints["dump"] == "AbstractContextManager[Dump]"
    from smelt.callables import _MODES

    assert typing.get_args(smelt.api.Mode) == _MODES
    for function in (smelt.compile, smelt.disable):
        returned = [inspect.signature(one).return_annotation for one in typing.get_overloads(function)]
        assert returned == ["Callable[[F], F]", "F"]


def test_function_keeps_its_face():
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "Doubles."
    assert list(inspect.signature(decorated).parameters) == ["x", "scale"]
    x = torch.randn(5)
    torch.testing.assert_close(decorated(x), x * 2)
    torch.testing.assert_close(decorated(x, scale=3.0), x * 3)
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert smelt.compile(add_one, disable=True) is add_one


def _decorated(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        return fn(*args, **kwargs)

    return call


def _annotated(x: torch.Tensor, y: int = 3, *, k: str = "a") -> torch.Tensor:
    return x * y


class _Methods:
    @_decorated
    def decorated(self, x, y=1):
        return x * y

    @classmethod
    def of_class(cls, x, y=2):
        return x * y

    def __call__(self, x, *, z=4):
        return x * z


class _OwnCall(nn.Linear):
    def __call__(self, x, *, scale=2):
        return super().__call__(x) * scale


class _OwnSignature:
    __signature__ = inspect.Signature([inspect.Parameter("given", inspect.Parameter.POSITIONAL_ONLY)])

    def __call__(self, *args):
        return args[0]


@functools.singledispatch
def _dispatched(x, y=1):
    return x * y


@functools.lru_cache
def _cached(x, y=1):
    return x * y


CALLABLES = {
    "a function": _annotated,
    "a decorated function": _decorated(_annotated),
    "decorated twice": _decorated(_decorated(_annotated)),
    "a decorated partial": _decorated(functools.partial(_annotated, y=2)),
    "under no_grad": torch.no_grad()(_annotated),
    "a partial": functools.partial(_annotated, y=2),
    "a partial of a decorated function": functools.partial(_decorated(_annotated), k="b"),
    "a method": _Methods().decorated,
    "a function of a class": _Methods.decorated,
    "a class method": _Methods.of_class,
    "a callable object": _Methods(),
    "an object with a signature": _OwnSignature(),
    "a method of a decorated function": types.MethodType(_decorated(_annotated), torch.ones(2)),
    "singledispatch": _dispatched,
    "lru_cache": _cached,
    "a module": nn.Linear(2, 2),
    "a module with a call of its own": _OwnCall(2, 2),
    "forward of a module": nn.Linear(2, 2).forward,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_signature_is_that_of_the_original(name):
    original = CALLABLES[name]
    compiled = smelt.compile(original)
    assert str(inspect.signature(compiled)) == str(inspect.signature(original))
    if isinstance(original, nn.Module):
        assert str(inspect.signature(type(compiled))) == str(inspect.signature(type(original)))
        assert str(inspect.signature(compiled.forward)) == str(inspect.signature(original.forward))


def test_method_partial_and_callable_object():
    class Scaler:
        def __init__(self, k):
            self.k = k

        def __call__(self, x):
            return x * self.k

        @smelt.compile
        def scale(self, x):
            return x * self.k + 1

    x = torch.randn(4)
    torch.testing.assert_close(Scaler(3)(x), smelt.compile(Scaler(3))(x))
    torch.testing.assert_close(Scaler(3).scale(x), x * 3 + 1)
    torch.testing.assert_close(smelt.compile(Scaler(2).__call__)(x), x * 2)
    torch.testing.assert_close(smelt.compile(torch.sin)(x), x.sin())


def test_compiled_module_is_transparent():
    net = Net()
    compiled = smelt.compile(net)
    x = torch.randn(2, 4)
    assert isinstance(compiled, Net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(compiled.twice(x), net.twice(x))
    compiled.flag = False
    assert net.flag is False
    torch.testing.assert_close(compiled(x), net(x))
    net.layer.weight.mul_(2)
    torch.testing.assert_close(compiled(x), net(x))
    assert compiled.eval() is compiled and not net.training
    compiled.to(torch.float64)
    assert net.layer.weight.dtype is torch.float64
    torch.testing.assert_close(compiled(x.double()), net(x.double()))
    assert not reasons(compiled)


def test_compiled_module_copies_and_pickles():
    compiled = smelt.compile(Net())
    x = torch.randn(2, 4)
    want = compiled(x)
    copied, loaded = copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))
    assert isinstance(copied._orig_mod, Net) and type(loaded) is Net
    for clone in (copied, loaded):
        assert clone.layer.weight is not compiled.layer.weight
        torch.testing.assert_close(clone(x), want)
        clone.layer.weight.zero_()
        torch.testing.assert_close(compiled(x), want)


def test_the_class_of_a_compiled_module_has_the_names_of_the_original_s():
    class Local(nn.Linear): ...

    for cls in (Net, Local):
        of = type(smelt.compile(cls(2, 2) if cls is Local else cls()))
        assert (of.__name__, of.__qualname__, of.__module__) == (
            cls.__name__,
            cls.__qualname__,
            cls.__module__,
        )
        assert repr(of) == repr(cls) and of is not cls


def test_a_saved_compiled_module_loads_without_smelt(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU())
    compiled, x = smelt.compile(net), torch.randn(2, 3)
    compiled(x)
    torch.save({"model": compiled, "same": net}, tmp_path / "model.pt")
    program = (
        "import sys, torch; sys.modules['smelt'] = None; "
        f"saved = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False); "
        "assert type(saved['model']) is torch.nn.Sequential and saved['model'] is saved['same']; "
        f"torch.save(saved['model'](torch.load({str(tmp_path / 'x.pt')!r})), {str(tmp_path / 'y.pt')!r})"
    )
    torch.save(x, tmp_path / "x.pt")
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), net(x))


def test_the_class_of_a_compiled_module_makes_modules_that_are_not_compiled():
    parts = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled, x = smelt.compile(parts), torch.randn(2, 4)
    assert type(compiled[:2]) is nn.Sequential and type(type(compiled)(nn.ReLU())) is nn.Sequential
    torch.testing.assert_close(compiled[:2](x), parts[:2](x))
    assert type(type(compiled).__new__(type(compiled))) is nn.Sequential
    assert type(smelt.compile(nn.ModuleList([nn.ReLU()]))[:1]) is nn.ModuleList


def test_hooks_added_after_compiling_are_noticed():
    net = Net()
    compiled = smelt.compile(net)
    x = torch.randn(2, 4)
    before = compiled(x)
    handle = net.layer.register_forward_hook(lambda m, i, o: o + 100)
    torch.testing.assert_close(compiled(x), before + 100)
    handle.remove()
    torch.testing.assert_close(compiled(x), before)


def test_is_compiling_is_true_while_captured():
    def f(x):
        return x + (1 if smelt.is_compiling() else 0) + (10 if torch.compiler.is_compiling() else 0)

    assert smelt.compile(f)(torch.zeros(())).item() == 11
    assert f(torch.zeros(())).item() == 0


def test_the_query_of_dynamo_asks_for_its_caller():
    dynamo = {"__name__": "torch._dynamo.external_utils", "torch": torch}
    exec("def is_compiling():\n    return torch.compiler.is_compiling()", dynamo)
    query = dynamo["is_compiling"]
    f = lambda x: x + (1 if query() else 0)  # noqa: E731
    assert smelt.compile(f, fullgraph=True)(torch.zeros(())).item() == 1
    assert f(torch.zeros(())).item() == 0


@pytest.mark.filterwarnings("ignore:`torch._utils.is_compiling` is deprecated")
def test_the_old_query_asks_for_its_caller():
    f = lambda x: x + (1 if torch._utils.is_compiling() else 0)  # noqa: E731
    assert smelt.compile(f, fullgraph=True)(torch.zeros(())).item() == 1
    assert f(torch.zeros(())).item() == 0


def test_disabled_functions_run_eagerly_and_say_so():
    calls = []

    @smelt.disable
    def side(x):
        calls.append(1)
        return x + 1

    def f(x):
        return side(x) * 2

    compiled = smelt.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert len(calls) == 3
    assert reasons(compiled)[0].kind.id == "disabled-function"


def test_graph_break_runs_the_frame_eagerly_and_fullgraph_raises():
    def f(x):
        y = x + 1
        smelt.graph_break()
        return y * 2

    compiled = smelt.compile(f)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 4.0))
    reason = reasons(compiled)[0]
    assert reason.kind.id == "graph-break-requested"
    assert reason.line.filename == __file__ and reason.line.line == f.__code__.co_firstlineno + 2
    with pytest.raises(Unsupported, match="test_api.py"):
        smelt.compile(f, fullgraph=True)(torch.ones(2))


def test_data_dependent_branch_runs_eagerly_with_the_users_line():
    def f(x):
        if x.sum() > 0:
            print(end="")
            return x
        return -x

    compiled = smelt.compile(f)
    for sign in (1, -1):
        torch.testing.assert_close(compiled(sign * torch.ones(2)), torch.ones(2))
    assert reasons(compiled)[0].line.line == f.__code__.co_firstlineno + 1


def test_gradients_are_eager_s():
    x = torch.ones(3, requires_grad=True)
    compiled = smelt.compile(add_one)
    with torch.enable_grad():
        y = compiled(x)
        assert y.requires_grad
        y.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3))
    assert not compiled(torch.ones(3)).requires_grad
    assert not reasons(compiled)
    assert entries(compiled)


def test_foreign_backend_gets_a_graph_module():
    seen = []

    def backend(gm, example_inputs):
        seen.append((gm, example_inputs))
        return gm.forward

    compiled = smelt.compile(lambda x, y: torch.relu(x) @ y, backend=backend)
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    torch.testing.assert_close(compiled(x, y), torch.relu(x) @ y)
    (gm, inputs) = seen[0]
    assert isinstance(gm, torch.fx.GraphModule) and len(inputs) == 2
    assert [n.op for n in gm.graph.nodes].count("placeholder") == 2


def test_registered_backend_is_listed_and_used():
    used = []

    @smelt.register_backend(name="counting")
    def counting(gm, example_inputs):
        used.append(1)
        return gm

    assert {"smelt", "eager", "aot_eager", "counting"} <= set(smelt.list_backends())
    smelt.compile(add_one, backend="counting")(torch.ones(2))
    assert used == [1]
    with pytest.raises(OptionError, match="counting"):
        smelt.register_backend(lambda gm, e: gm, name="counting")


def test_entries_grow_with_new_classes_and_stop_at_the_limit():
    compiled = smelt.compile(lambda x, name: x + len(name), dynamic=False, options={"recompile_limit": 3})
    x = torch.ones(2)
    for k in range(6):
        torch.testing.assert_close(compiled(x, "n" * k), x + k)
    assert len(entries(compiled)) == 3
    assert any(r.kind.id == "recompile-limit" for r in reasons(compiled))


def test_reset_forgets_and_compiles_again():
    compiled = smelt.compile(add_one)
    x = torch.ones(2)
    compiled(x)
    assert len(entries(compiled)) == 1
    smelt.reset()
    assert len(entries(compiled)) == 0
    torch.testing.assert_close(compiled(x), x + 1)
    assert len(entries(compiled)) == 1


def test_two_threads_compile_and_run_the_same_function():
    net = smelt.compile(Net())
    xs = [torch.randn(2, 4) for _ in range(4)]
    wants = [net._orig_mod(x) for x in xs]

    def work(i):
        with torch.no_grad():
            for _ in range(50):
                torch.testing.assert_close(net(xs[i]), wants[i])

    in_threads(functools.partial(work, i) for i in range(4))


def _is_installed():
    try:
        entry_points = importlib.metadata.distribution("smelt").entry_points
    except importlib.metadata.PackageNotFoundError:
        return False
    return bool(entry_points.select(group="torch_dynamo_backends"))


@pytest.mark.skipif(not _is_installed(), reason="the entry point exists only where smelt is installed")
def test_torch_compile_finds_the_backend():
    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(add_one, backend="smelt")(x), x + 1)


def test_compiled_inside_compiled_is_captured_through():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = smelt.compile(Net())

        def forward(self, x):
            return decorated(self.inner(x)) + 1

    outer = Outer()
    compiled = smelt.compile(outer)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), outer.inner._orig_mod(x) * 2 + 1)
    assert not reasons(compiled)


def test_compiled_functions_in_a_disabled_one_compile_if_it_is_not_recursive():
    for recursive in (True, False):
        inner = smelt.compile(lambda x: x + (1 if torch.compiler.is_compiling() else 0))
        outer = smelt.disable(lambda x, inner=inner: inner(x) * 2, recursive=recursive)
        assert torch.equal(outer(torch.ones(2)), torch.full((2,), 2.0 if recursive else 4.0))
        compiled = smelt.compile(lambda x, outer=outer: outer(x + 1))
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0 if recursive else 6.0))
        assert reasons(compiled)[0].kind.id == "disabled-function"


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def forward(self, x, by=1):
        return self.inner(x) * by + (1 if torch.compiler.is_compiling() else 0)


@smelt.disable
class Disabled(nn.Module):
    def __init__(self):
        super().__init__()
        self.created_in_graph = torch.compiler.is_compiling()

    def forward(self, x):
        return torch.sigmoid(x) + torch.compiler.is_compiling()


@smelt.compile
class OfCompiledClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.layer = Disabled(), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.inner(torch.sin(x))) + torch.compiler.is_compiling()


@smelt.compile(fullgraph=True)
class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x * self.by + torch.compiler.is_compiling()


def test_a_class_is_compiled_in_place():
    module, x = OfCompiledClass(), torch.randn(2, 4)
    want = module.layer(torch.sin(x).sigmoid()) + 1
    torch.testing.assert_close(module(x), want)
    assert type(module) is OfCompiledClass and isinstance(Scale(1), Scale)
    assert [r.kind.id for r in reasons(OfCompiledClass.__call__)] == ["disabled-function"]
    torch.testing.assert_close(copy.deepcopy(module)(x), want)
    module.register_forward_hook(lambda module, args, out: out * 2)
    torch.testing.assert_close(module(x), want * 2)
    assert torch.equal(Scale(3)(x), x * 3 + 1)


def test_instances_of_a_compiled_class_in_other_compiled_code():
    module, scale, x = OfCompiledClass(), Scale(2), torch.randn(2, 4)
    module.inner = nn.Identity()
    compiled = smelt.compile(lambda x: module(scale(x)), fullgraph=True)
    torch.testing.assert_close(compiled(x), module.layer(torch.sin(x * 2 + 1)) + 1)

    class Derived(OfCompiledClass):
        def forward(self, x):
            return super().forward(x) * 2

    derived = Derived()
    torch.testing.assert_close(derived(x), (derived.layer(torch.sin(x).sigmoid()) + 1) * 2)
    torch.testing.assert_close(smelt.compile(derived)(x), derived(x))


def test_a_class_whose_creation_is_disabled():
    assert isinstance(Disabled, type) and type(Disabled()) is Disabled
    compiled = smelt.compile(lambda x: (x + 1, Disabled().created_in_graph))
    assert compiled(torch.ones(2))[1] is False
    assert [r.kind.id for r in reasons(compiled)] == ["disabled-function"]


def test_a_disabled_constructor_runs_at_each_call():
    calls = []

    class Counted:
        @smelt.disable
        def __new__(cls, x):
            calls.append("new")
            return object.__new__(cls)

        @smelt.disable
        def __init__(self, x):
            calls.append("init")

    compiled = smelt.compile(lambda x: type(Counted(x + 1)))
    assert [compiled(torch.ones(2)) for _ in range(3)] == [Counted] * 3 and calls == ["new", "init"] * 3


def test_a_class_without_calls_is_no_model():
    for cls in (int, Empty):
        with pytest.raises(TypeError, match="whose instances are not callable"):
            smelt.compile(cls)


class Empty:
    pass


def test_a_module_is_compiled_in_place():
    module, x = Marked().eval(), torch.ones(2, 4)
    expected, keys = module(x) + 1, list(module.state_dict())
    seen = []
    module.register_forward_hook(lambda module, args, result: seen.append(type(module)))
    assert smelt.compile_(module, fullgraph=False) is None
    assert type(module) is Marked and list(module.state_dict()) == keys
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(module(x, by=2), 2 * expected - 1)
    assert seen == [Marked, Marked]
    torch.testing.assert_close(copy.deepcopy(module)(x), expected - 1)
    with torch.enable_grad():
        module.train()(x).sum().backward()
    assert module.inner[0].weight.grad is not None
    outer = smelt.compile(lambda x: module.eval()(x) * 3)
    torch.testing.assert_close(outer(x), expected * 3)
    with pytest.raises(OptionError, match="fullgraph"):
        smelt.compile_(module, fullgraph=1)
    with pytest.raises(TypeError, match="nn.Module"):
        smelt.compile_(lambda x: x)


def compiled_by_torch(module):
    module.compile(backend="smelt")


@pytest.mark.parametrize("compile_in_place", [smelt.compile_, compiled_by_torch], ids=["smelt", "torch"])
def test_what_takes_compiled_callables_takes_modules_compiled_in_place(compile_in_place, tmp_path):
    module, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.ones(2, 4)
    expected = module(x)
    compile_in_place(module)
    explanation = smelt.explain(module)(x)
    torch.testing.assert_close(explanation.result, expected)
    assert str(explanation).startswith("Sequential: 1 graph, 0 breaks")
    torch.testing.assert_close(smelt.trace(module)(x).result, expected)
    torch.testing.assert_close(smelt.export(module, (x,))(x), expected)
    torch.testing.assert_close(smelt.symbolic_trace(module, example_inputs=(x,))(x), expected)
    torch.testing.assert_close(smelt.disable(module)(x), expected)
    if compile_in_place is smelt.compile_:
        [entry] = entries(module)
        assert records(module)[0][0] == "Sequential" and entry.computes
        with smelt.dump(tmp_path) as dump:
            smelt.reset()
            torch.testing.assert_close(module(x), expected)
        assert "Sequential.0.aten.py" in {path.name for path in dump.files}
        assert len(entries(module)) == 1
    else:
        with pytest.raises(TypeError, match="torch.compile captured it"):
            entries(module)


def test_what_torch_compiled_is_explained_as_the_original():
    for model in (nn.Linear(4, 4), lambda x: x.sin() + 1):
        compiled, x = torch.compile(model, backend="eager"), torch.ones(2, 4)
        explanation = smelt.explain(compiled)(x)
        assert explanation.report().counts.graphs == 1 and not explanation.report().breaks
        torch.testing.assert_close(explanation.result, model(x))
        assert len(smelt.trace(compiled)(x).graphs) == 1
        torch.testing.assert_close(smelt.symbolic_trace(compiled)(x), model(x))
        torch.testing.assert_close(smelt.export(compiled, (x,))(x), model(x))


def test_classes_compiled_in_place_have_limits_of_their_own_and_equal_modules_share_entries():
    def layer(size: int) -> nn.Module:
        return type(f"Layer{size}", (nn.Linear,), {})(size, 2)

    modules = [layer(size) for size in range(3, 15)]  # more than the recompile limit
    pair = [Pair(4, 2), Pair(4, 2)]
    for module in modules + pair:
        smelt.compile_(module)
        x = torch.ones(5, module.in_features)
        torch.testing.assert_close(module(x), module.forward(x))
    assert [len(entries(m)) for m in modules + pair] == [1] * 14
    assert entries(pair[0])[0] is entries(pair[1])[0]


class Pair(nn.Linear):
    pass


class Named(nn.Module):
    def forward(self, x, scale=2, *rest, **options):
        return x * scale + sum(rest) + sum(options.values())


def test_guards_and_inputs_have_the_names_of_parameters():
    """Those of a module are for the `*args` of the code that calls it."""
    compiled, x = smelt.compile(Named()), torch.ones(3)
    compiled(x, 3, x + 1, other=x + 2)
    [entry] = entries(compiled)
    assert [p.name for p in entry.traced.torch_graph.placeholders] == ["x", "args_2", "kwargs_other"]
    for text in ("is_tensor(L['x'], ", "L['scale'] == 3", "is_tensor(L['args'][2], ", "len(L['args']) == 3"):
        assert text in entry.guards
    assert "callables.py" not in entry.guards
    compiled(x, 4, x + 1, other=x + 2)
    assert str(entries(compiled)[-1].reason).startswith("L['scale']: expected 3, found 4")
    in_order = smelt.compile(lambda x, args: x * args)  # of the user's own functions as they are
    in_order(x, 2)
    assert "L['args'] == 2" in entries(in_order)[0].guards


def test_the_compiled_frame_of_a_module_is_named_after_its_forward():
    module, in_place = Marked().eval(), Marked().eval()
    compiled = smelt.compile(module)
    smelt.compile_(in_place)
    for called in (compiled, in_place):
        called(torch.ones(2, 4))
        [entry] = entries(called)
        at = f"{__file__}:{Marked.forward.__code__.co_firstlineno}"
        assert entry.source.startswith(f"def compiled_forward(self, args, kwargs, inputs):  # {at}\n")


def test_a_disabled_module_that_was_compiled_runs_eagerly():
    module, in_place, x = Marked().eval(), Marked().eval(), torch.ones(2, 4)
    expected, expected_in_place = module(x), in_place(x)
    compiled = smelt.compile(module)
    smelt.compile_(in_place)
    torch.testing.assert_close(compiled(x), expected + 1)  # it has an entry
    torch.testing.assert_close(in_place(x), expected_in_place + 1)
    torch.testing.assert_close(smelt.disable(compiled)(x), expected)
    torch.testing.assert_close(smelt.disable(in_place)(x), expected_in_place)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


@pytest.mark.parametrize("strict", [True, False])
def test_state_of_modules_that_torch_compile_wrapped_is_loaded(strict):
    def make():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    source = make()
    source(torch.randn(5, 4))
    saved = Wrapper(source).state_dict()  # what torch.compile's wrapper gives
    assert list(saved)[0] == "_orig_mod.0.weight"
    target, holder, before = smelt.compile(make()), nn.Module(), dict(saved)
    holder.layer = smelt.compile(make())
    assert not any(target.load_state_dict(saved, strict=strict))
    assert not any(holder.load_state_dict({f"layer.{k}": v for k, v in saved.items()}, strict=strict))
    assert saved == before
    for loaded in (target, holder.layer):
        for a, b in zip(loaded.state_dict().values(), source.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="Unexpected key.*_orig_mod.5.weight|Unexpected key.*5.weight"):
        target.load_state_dict({**saved, "_orig_mod.5.weight": torch.ones(1)})
    kept = smelt.compile(Wrapper(make()))  # a program's own name
    kept.load_state_dict(saved, strict=strict)
    assert torch.equal(kept._orig_mod._orig_mod[0].weight, source[0].weight)


def test_a_size_that_may_change_is_no_promise():
    def fixed(x):
        return x * torch.arange(4.0)

    x = torch.ones(4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    torch.testing.assert_close(smelt.compile(fixed)(x), fixed(x))
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(smelt.errors.MarkedSizeError, match="dimension 0 of L.'x'. is marked"):
        smelt.compile(fixed)(x)
    with counted_entries() as entries:
        sums, x = smelt.compile(lambda x: x.sum()), torch.ones(4)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        for tensor in (x, torch.ones(5), torch.ones(9)):
            sums(tensor)
    assert len(entries) == 1


@contextmanager
def counted_entries():
    installed = []
    with events.subscribed(lambda e: installed.append(e) if e.kind == "entry-installed" else None):
        yield installed


def shared_by_tests(x):
    return x.sin() + 1


class SharedByTests(torch.nn.Module):
    def forward(self, x):
        return x * 2

    def step(self, x):
        return x * 3


def test_equal_compilations_share_entries():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    module, x = SharedByTests(), torch.ones(3)
    for _ in range(4):
        assert torch.equal(smelt.compile(shared_by_tests, backend=backend)(x), x.sin() + 1)
        assert torch.equal(smelt.compile(module, backend=backend)(x), x * 2)
        assert torch.equal(smelt.compile(module.step, backend=backend)(x), x * 3)
    assert len(graphs) == 3
    smelt.reset()
    smelt.compile(shared_by_tests, backend=backend)(x)
    assert len(graphs) == 4


@pytest.mark.parametrize(
    "options",
    [{"dynamic": True}, {"fullgraph": True}, {"options": {"fuse": False}}, {"backend": "eager"}],
)
def test_compilations_with_other_options_share_nothing(options):
    module = SharedByTests()
    first, other = smelt.compile(shared_by_tests), smelt.compile(shared_by_tests, **options)
    models = smelt.compile(module), smelt.compile(module, **options)
    assert first is smelt.compile(shared_by_tests) and first is not other
    for compiled in (first, *models[:1]):
        compiled(torch.ones(3))
    assert [len(entries(c)) for c in (first, other, *models)] == [1, 0, 1, 0]


def test_functions_and_modules_that_were_compiled_die():
    def make():
        by = torch.ones(3)
        return lambda x: x * by

    for factory in (make, SharedByTests):
        made, also = factory(), factory()
        compiled, again = smelt.compile(made), smelt.compile(made)
        assert torch.equal(compiled(torch.ones(3)), again(torch.ones(3)))
        assert len(entries(again)) == 1 and not entries(smelt.compile(also))
        gone = weakref.ref(made)
        del made, compiled, again
        gc.collect()
        assert gone() is None


def test_explain_compiles_anew():
    smelt.compile(shared_by_tests)(torch.ones(3))
    assert "1 graph" in str(smelt.explain(shared_by_tests)(torch.ones(3)))


def test_a_tracer_sees_the_compiled_module_that_lives():
    first = smelt.compile(nn.Linear(2, 2))
    second = smelt.compile(first)
    del second
    gc.collect()
    assert len(list(make_fx(first)(torch.ones(2)).graph.nodes)) > 2
