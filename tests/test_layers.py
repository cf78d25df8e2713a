"""What the source may do: imports point down the lists below, no modules import each other, no other compiler does smelt's
work, nobody reaches for what another module keeps to itself, and `Any` does not spread."""

import re
from pathlib import Path

import pytest

from tests.harness import sources
from tests.harness.sources import REST, Layers, module

# One list for each package that has subfolders: top first, each may import those below it. A tuple is one level, whose
# members may import each other; `*` stands for the modules that are not named.
ORDER = Layers(
    {
        "smelt": [
            "__main__",
            "cli",
            "doctor",
            "torch_backend",
            "api",
            "fx",
            "compatibility",
            "callables",
            "compiler_parts",
            "shared_compilations",
            "eager_only",
            "warm",
            "exported",
            "report",
            "backends",
            "verify",
            "capture",
            "guards",
            "autograd",
            "pipeline",
            "tracing",
            "targets",
            "codegen",
            "plan",
            "schedule",
            "rewrites",
            "ops",
            "loops",
            "graph",
            "shapes",
            "runtime",
            "native",
            "recompile_limits",
            "events",
            "terminal_hints",
            "ranks",
            "config",
            "errors",
            "reasons",
            "user_lines",
            "cost_model",
            "size_marks",
            "torch_private",
            "_native",
        ],
        "smelt.capture": [
            "driver",
            "emit",
            "interpreter",
            ("stdlib", "torch_calls"),
            "graph_breaks",
            "semantics",
            "vm",
            "environment",
            "reconstruction",
            "proxies",
            "base",
        ],
        "smelt.capture.interpreter": [REST, "opcodes"],
        "smelt.capture.stdlib": [REST, "output"],
        "smelt.capture.torch_calls": [REST, "autograd"],
        "smelt.capture.semantics": [
            ("calls", "values"),
            "attributes",
            "scopes",
            "cells",
            "number_semantics",
            "held_numbers",
            "result_polyfills",
        ],
        "smelt.tracing": [
            "operator_sets",
            ("record", "composites", "functionalize", "backward", "fake", "symbolic"),
        ],
        "smelt.codegen": [
            "gpu_launches",
            "cpu_symbolic_launches",
            "cpu_launches",
            "autotune",
            "call_selection",
            REST,
            "triton",
            "llvm",
        ],
        "smelt.codegen.llvm": ["windows", "gemm", REST],
        "smelt.rewrites": ["attention", REST],
        "smelt.ops": [
            REST,
            "layouts",
            "registry",
            ("recompute_rules", "trace_rules", "node_builders", "index_bounds", "convolution_settings"),
        ],
    }
)

COMPILERS = (
    "torch._dynamo",
    "torch._export",
    "torch._functorch",
    "torch._inductor",
    "torch._subclasses",
    "torch.compile",
    "torch.export",
    "torch.fx.experimental",
    "torch.fx.symbolic_trace",
    "torch.jit",
)
# What is named all the same, none of it to have work done.
NAMED = {
    (
        "smelt.cli.torch_compile_redirect",
        "torch.compile",
    ): "is what smelt stands in for while it runs a script",
    ("smelt.torch_private", "torch._dynamo.config"): "a script sets it, and `smelt run` obeys",
    ("smelt.torch_private", "torch._dynamo.eval_frame"): "holds what torch.compiler.set_stance sets",
    ("smelt.torch_private", "torch._dynamo.source.ConstantSource"): "backends for torch.compile read it",
    (
        "smelt.torch_private",
        "torch._subclasses.fake_tensor.FakeTensorMode",
    ): "backends for torch.compile read it",
    (
        "smelt.torch_private",
        "torch.fx.experimental.symbolic_shapes.DimDynamic",
    ): "backends for torch.compile read it",
    (
        "smelt.torch_private",
        "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
    ): "backends for torch.compile raise it",
    (
        "smelt.torch_private",
        "torch.fx.experimental.symbolic_shapes.ShapeEnv",
    ): "backends for torch.compile read it",
    ("smelt.callables", "torch.jit.ScriptModule"): "is told from other modules, and refused",
    ("smelt.capture.torch_calls.compiler_queries", "torch.jit"): "for those below, not in torch's stubs",
    (
        "smelt.capture.torch_calls.compiler_queries",
        "torch.jit.is_scripting",
    ): "user code that asks is answered",
    ("smelt.capture.torch_calls.compiler_queries", "torch.jit.is_tracing"): "user code that asks is answered",
    ("smelt.capture.torch_calls.nested_compiles", "torch.compile"): "the program calls it inside",
    ("smelt.capture.base.native_functions", "torch.jit"): "the marks of methods are interpreted",
    ("smelt.capture.semantics.calls.calls", "torch.jit.ScriptModule"): "is told from other modules",
}

# How many functions of capture mention `Any`, where a user's object is meant. May only become fewer.
ANY_IN_CAPTURE = 22

SMELT = sources.modules(Path(__file__).parent.parent / "smelt")
SMELT.pop("smelt._built", None)  # setup.py writes it


def planted(**texts: str) -> dict[str, sources.Module]:
    """A package `p` from sources: `a__b="import x"` is the module p.a.b; its folders come by themselves."""
    found = {"p": module("p", "", is_package=True)}
    for name, text in texts.items():
        *folders, _ = parts = name.split("__")
        for depth in range(len(folders)):
            package = ".".join(["p", *folders[: depth + 1]])
            found.setdefault(package, module(package, "", is_package=True))
        found[".".join(["p", *parts])] = module(".".join(["p", *parts]), text)
    return found


# ---------------------------------------------------------------------------------------------------- layers


def test_imports_point_down():
    assert ORDER.problems(SMELT) == []


def test_architecture_lists_the_folders_in_this_order():
    text = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
    table = text.split("## Folders\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = [re.sub(r"\.py$|/$", "", name) for cell in first_cells for name in re.findall(r"`(.*?)`", cell)]
    assert named == [name for name in ORDER.orders["smelt"] if name != "_native"]
    [capture] = re.findall(r"its packages, top first: (.*?) \|", table)
    order = ORDER.orders["smelt.capture"]
    assert re.findall(r"`(.*?)`", capture) == [
        name for level in order for name in ([level] if isinstance(level, str) else level)
    ]


PLANTED = Layers({"p": ["top", "low"], "p.low": ["upper", ("left", "right"), REST]})


@pytest.mark.parametrize(
    "importer, text",
    [
        ("low__lone", "from p.top import thing"),
        ("low__lone", "import p.top"),
        ("low__lone", "from ..top import thing"),
        ("low__lone", "def f():\n    from p import top"),
        ("low__lone", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.top import Thing"),
        ("low__lone", "import importlib\nimportlib.import_module('p.top')"),
        ("low__lone", "from p.low.upper.one import thing"),
        ("low__left__one", "from p.low.upper import one"),
        ("low__left__one", "from p.low import thing"),
    ],
)
def test_an_upward_import_is_found(importer, text):
    files = dict(top="", low__upper__one="", low__left__one="", low__right__one="", low__lone="")
    assert PLANTED.problems(planted(**files)) == []
    [problem] = PLANTED.problems(planted(**files | {importer: text}))
    assert problem.startswith(f"p.{importer.replace('__', '.')}:") and "may not import" in problem


@pytest.mark.parametrize(
    "text", ["from p.low.right import one", "from p.low import lone", "from p.low.left import two"]
)
def test_what_is_beside_or_below_may_be_imported(text):
    files = dict(
        top="", low__upper__one="", low__left__one=text, low__left__two="", low__right__one="", low__lone=""
    )
    assert PLANTED.problems(planted(**files)) == []


def test_every_folder_has_a_place():
    files = dict(top="", low__upper__one="", low__left__one="", low__right__one="")
    assert "p.low.new.one: new is not in the list of p.low" in PLANTED.problems(
        planted(**files, low__new__one="")
    )
    assert "p.side: side is not in the list of p" in PLANTED.problems(planted(**files, side=""))
    assert PLANTED.problems(planted(**files, low__left__inner__one=""))[0].endswith(
        "so p.low.left needs a list"
    )
    assert PLANTED.problems(planted(top="", low__upper__one="", low__left__one="")) == [
        "the list of p.low names right, which does not exist"
    ]


# ---------------------------------------------------------------------------------------------------- cycles


def test_no_modules_import_each_other():
    assert [sorted(group) for group in sources.cycles(SMELT)] == []


def test_a_cycle_is_found():
    only_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b.one import Thing"
    assert sources.cycles(planted(a=only_types, b__one="import p.c", c="def f():\n    from p import a")) == [
        frozenset({"p.a", "p.b.one", "p.c"})
    ]
    assert sources.cycles(planted(a="import p.b", b="import p.c", c="")) == []


# -------------------------------------------------------------------------------------------- other compilers


def test_no_other_compiler_does_the_work():
    used = {(m.name, name) for m in SMELT.values() for _, name in sources.uses(m, COMPILERS)}
    assert sorted(used - NAMED.keys()) == []
    assert sorted(NAMED.keys() - used) == [], "not used any more"


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo",
        "import torch._dynamo as d",
        "from torch import _dynamo",
        "from torch._dynamo import config",
        "import torch\ntorch._dynamo.reset()",
        "import torch\nf = [torch._dynamo]",
        "import torch as t\nt._dynamo.config.verbose",
        "import torch\nt = torch\nt._dynamo.config",
        "import torch\ngetattr(torch, '_dynamo')",
        "import importlib\nimportlib.import_module('torch._dynamo')",
        "from importlib import import_module\nimport_module('torch._dynamo.config')",
        "__import__('torch._dynamo')",
        "import sys\nsys.modules['torch._dynamo']",
        "import sys\nsys.modules.get('torch._dynamo')",
    ],
)
def test_a_use_of_another_compiler_is_found(text):
    assert sources.uses(module("p.a", text), COMPILERS)


def test_other_modules_of_torch_are_not_meant():
    text = "import torch\nfrom torch import compiler\ntorch.compiler.is_compiling\nTABLE = ('torch._dynamo',)"
    assert sources.uses(module("p.a", text), COMPILERS) == []


# ---------------------------------------------------------------------------------------------- private names


def test_nobody_reaches_for_what_a_module_keeps_to_itself():
    members = sources.private_members(SMELT)
    found = [
        f"{m.name}:{line} {name}" for m in SMELT.values() for line, name in sources.reaches(m, SMELT, members)
    ]
    assert found == []


A_CLASS = "class Thing:\n    def __init__(self):\n        self._kept = 1\n\ndef _helper(): ..."


@pytest.mark.parametrize(
    "text, name",
    [
        ("def f(thing): return thing._kept", "thing._kept"),
        ("def f(log): log.thing._kept = 2", "log.thing._kept"),
        ("class C:\n    def f(self): return self.thing._kept", "self.thing._kept"),
        ("from p.a import _helper", "p.a._helper"),
        ("from p import a\na._helper()", "p.a._helper"),
        ("from p.a import THING\nTHING._kept", "THING._kept"),
    ],
)
def test_reaching_for_a_private_name_is_found(text, name):
    every = planted(a=A_CLASS, b=text)
    assert [n for _, n in sources.reaches(every["p.b"], every, sources.private_members(every))] == [name]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nt = torch._kept",
        "class Sub:\n    def f(self): return self._kept",
        "def f(module): return module._parameters",
        "class Own:\n    _kept: int\n    def __eq__(self, other): return self._kept == other._kept",
    ],
)
def test_what_is_ones_own_or_foreign_is_not_meant(text):
    every = planted(a=A_CLASS, b=text)
    assert sources.reaches(every["p.b"], every, sources.private_members(every)) == []


def test_private_names_of_torch_stand_in_one_module():
    found = [
        f"{m.name}:{line} {name}"
        for m in SMELT.values()
        if m.name not in ("smelt.torch_private", "smelt._native")
        for line, name in sources.foreign_private(m, "torch", public=["torch.ops"])
    ]
    assert found == [], "smelt/torch_private.py names them, with what they are for"


@pytest.mark.parametrize(
    "text",
    [
        "from torch._ops import OpOverload",
        "import torch.utils._python_dispatch",
        "import torch\ntorch._C._set_grad_enabled(True)",
        "from torch.overrides import _pop_mode",
        "from torch.autograd import forward_ad as f\nf._current_level",
        "import torch\ngetattr(torch._utils, 'x', None)",
    ],
)
def test_a_private_name_of_torch_is_found(text):
    assert sources.foreign_private(module("p.a", text), "torch", public=["torch.ops"])


def test_public_names_and_operators_are_not_meant():
    text = "import torch\ntorch.ops.aten._unsafe_view.default\ntorch.nn.Linear.__init__\nx = 'torch._C'"
    assert sources.foreign_private(module("p.a", text), "torch", public=["torch.ops"]) == []


# ------------------------------------------------------------------------------------------------------- objects


def test_capture_asks_the_users_objects_nothing():
    """Their `__class__` may be code: `_native.isinstance` looks at the type. Polyfills are programs and ask as those do."""
    folder = Path(__file__).parent.parent / "smelt" / "capture"
    texts = {path: path.read_text() for path in folder.rglob("*.py") if "polyfills" not in path.name}
    asking = [path for path, text in texts.items() if re.search(r"(?<![\w.])isinstance\(", text)]
    assert [p.name for p in asking if "from smelt._native import isinstance\n" not in texts[p]] == []


# -------------------------------------------------------------------------------------------------------- Any


def test_the_virtual_machine_has_a_type():
    assert [f"{m.name}:{line}" for m in SMELT.values() for line in sources.annotated_any(m, "vm")] == []


def test_functions_of_capture_say_their_types():
    found = [
        f"{m.name}:{f}"
        for m in SMELT.values()
        if m.parts[0] == "capture"
        for f in sources.functions_with_any(m)
    ]
    assert len(found) <= ANY_IN_CAPTURE, found


def test_any_is_found():
    text = """
import typing
from typing import Any as Whatever
Object = Whatever
def parameter(a: typing.Any): ...
def quoted(a: "dict[str, Whatever]"): ...
def result() -> "list[Whatever]": ...
def alias(a: Object): ...
def inside():
    found: Whatever = 1
def outer():
    def inner(a: Whatever): ...
def typed(vm: object) -> int: ...
"""
    found = [name for _, name in sources.functions_with_any(module("p.a", text))]
    assert found == ["parameter", "quoted", "result", "alias", "inside", "inner"]
    text = (
        "from typing import Any\ndef f(vm: Any, a: Any): ...\ndef g(vm: 'Any'): ...\nclass C:\n    vm: Any\n"
    )
    assert sources.annotated_any(module("p.a", text), "vm") == [2, 3, 5]
