"""What `import smelt` imports, and what the first `smelt.compile(...)` does: nothing that the program could notice."""

from tests.harness.processes import run


def test_to_import_smelt_does_not_import_the_compiler():
    added = run(
        """
import json, sys
import torch
before = {*sys.modules}
import smelt
assert smelt.unavailable is None
def f(x): smelt.graph_break(); return smelt.is_compiling()
f(1)
print(json.dumps(sorted({*sys.modules} - before)))
"""
    )
    smelts = [name for name in added if name.startswith("smelt")]
    packages = {name.split(".")[1] for name in smelts if name != "smelt"}
    assert packages <= {
        "_built", "_native", "api", "compatibility", "config", "eager_only", "errors", "graph", "reasons",
        "size_marks", "user_lines",
        "torch_private",
    }  # fmt: skip
    assert len(smelts) < 20, smelts
    assert not any(name.startswith(("llvmlite", "rich", "triton", "sympy")) for name in added)


def test_the_compiler_is_imported_by_the_first_function_that_needs_it():
    calls = [
        "smelt.compile(f)",
        "smelt.compile(fullgraph=True)(f)",
        "smelt.disable(f)",
        "smelt.explain(f)",
        "smelt.reset()",
        "smelt.list_backends()",
        "smelt.register_backend(f)",
    ]
    came = run(f"""
import json, os, sys
import torch  # once for all; then a process for each call
def f(x): return x
def after(call):
    reading, writing = os.pipe()
    if not os.fork():
        import smelt
        eval(call)
        os.write(writing, json.dumps(["smelt.callables" in sys.modules, smelt.unavailable]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return json.loads(pipe.read())
print(json.dumps([after(call) for call in {calls}]))
""")
    assert dict(zip(calls, came)) == dict.fromkeys(calls, [True, None])


def test_modes_of_the_program_see_nothing_of_the_import():
    assert (
        run(
            """
import json, torch, smelt
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
seen = []
class Functions(TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kwargs=None):
        seen.append(str(fn))
        return fn(*args, **kwargs or {})
class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
        seen.append(str(fn))
        return fn(*args, **kwargs or {})
def f(x): return x.sin() + 1
with Functions(), Operators(), torch.device("meta"), torch.inference_mode():
    seen.clear()
    compiled = smelt.compile(f, fullgraph=True)
    told = list(seen)
x = torch.randn(3)
torch.testing.assert_close(compiled(x), f(x))
print(json.dumps(told))
"""
        )
        == []
    )


def test_where_the_compiler_cannot_be_imported_everything_runs_eagerly():
    """One of its modules raises; so it says when it was asked for, once, and the program goes on."""
    assert run(
        """
import json, sys, warnings
import torch, smelt
from smelt import disable
before = smelt.unavailable
sys.modules["smelt.schedule.schedule_program"] = None
def f(x): return x.sin() + 1
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model = torch.nn.Linear(3, 3)
    same = [smelt.compile(f) is f, smelt.compile()(f) is f, smelt.compile(model) is model, disable(f) is f,
            smelt.disable()(f) is f, smelt.register_backend(f) is f, smelt.list_backends() == [], smelt.reset() is None]
try:
    smelt.compile(f, fullgraph=True)
except smelt.errors.Unavailable as error:
    raised = str(error)
[told] = said
print(json.dumps([before, all(same), "schedule.schedule_program" in smelt.unavailable, "schedule.schedule_program" in raised,
                  "schedule.schedule_program" in str(told.message), told.filename]))
"""
    ) == [None, True, True, True, True, "<string>"]


def test_an_extension_that_does_not_load_is_found_when_smelt_is_imported():
    for planted, said in (
        ("sys.modules['smelt._native'] = None", "smelt._native"),
        ("sys.modules['smelt._built'] = None", "not built for this Python"),
        ("import torch; torch.__version__ = '9.8.7'", "torch 9.8"),
    ):
        found = run(f"import json, sys\n{planted}\nimport smelt\nprint(json.dumps(smelt.unavailable))")
        assert said in found
