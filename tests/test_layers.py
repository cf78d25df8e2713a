"""Imports point down one list of folders only, and nothing torch-compiler-like is used to do smelt's work."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "smelt"
ORDER = [
    "api",
    "report",
    "backends",
    "capture",
    "guards",
    "autograd",
    "trace",
    "codegen",
    "plan",
    "schedule",
    "loops",
    "graph",
    "ops",
    "runtime",
    "native",
]
COMMON = {"config", "errors", "reasons", "events"}
FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.jit", "torch.fx.experimental")
FILES = sorted(ROOT.rglob("*.py"))


def layer(module: str) -> str:
    return module.split(".")[1] if module.startswith("smelt.") else module


def imports(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{a.name}" for a in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imports(ast.parse(path.read_text())):
        assert not name.startswith(FORBIDDEN), f"{path} imports {name}"
        if not name.startswith("smelt.") or own == "__init__":
            continue
        target = layer(name)
        if target in COMMON or target == "_native":
            continue
        if own in COMMON:
            assert name.startswith("smelt.graph.ir"), f"{own} is used by all and may not import {name}"
        else:
            assert ORDER.index(own) <= ORDER.index(target), f"{path}: {own} may not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_other_compiler_is_called(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            assert not text.startswith(("torch._dynamo.", "torch._inductor.", "torch._functorch.")), (
                f"{path}:{node.lineno} {text}"
            )
            assert text not in ("torch.fx.symbolic_trace", "torch.jit.trace", "torch.jit.script"), (
                f"{path}:{node.lineno}"
            )
