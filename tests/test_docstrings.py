"""Every public function, method and class of smelt has a docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SMELT = Path(__file__).parent.parent / "smelt"

# Classes whose methods share one comment, and why no method has a docstring of its own.
SHARED = {
    "tracing/symbolic/sym_nodes.py: Symbol": "its methods are those of torch's SymNode, which C++ calls by name",
    "runtime/fork_locks.py: Lock": "its methods are those of `threading.RLock`",
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _public(body: list[ast.stmt], outer: str = "") -> Iterator[tuple[str, str, Definition]]:
    """(class that holds it, name, definition); what a conditional or a function holds is not public."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_") and not _is_overload(node):
            yield outer, node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body, f"{outer}.{node.name}".lstrip("."))


def _is_overload(node: Definition) -> bool:
    """Whether it is a signature of a function that follows, or the setter of a property that came before."""
    return any(
        ast.unparse(d) == "overload" or ast.unparse(d).endswith(".setter") for d in node.decorator_list
    )


def _without_docstring(tree: ast.Module, file: str = "") -> list[str]:
    return [
        f"{file}:{node.lineno}: {outer}.{name}".replace(": .", ": ")
        for outer, name, node in _public(tree.body)
        if ast.get_docstring(node) is None and f"{file}: {outer}" not in SHARED
    ]


def test_public_names_have_docstrings():
    missing = [
        found
        for path in sorted(SMELT.rglob("*.py"))
        for found in _without_docstring(ast.parse(path.read_text()), path.relative_to(SMELT).as_posix())
    ]
    assert missing == []


def test_files_have_docstrings():
    """But for `__init__.py` without any code."""
    trees = ((path, ast.parse(path.read_text())) for path in SMELT.rglob("*.py"))
    assert [str(path) for path, tree in trees if tree.body and ast.get_docstring(tree) is None] == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f(): pass", [":1: f"]),
        ("def _f(): pass", []),
        ("def f(): 'Documented.'", []),
        ("class A:\n  'Documented.'\n  def m(self): pass\n  def __len__(self): return 0", [":3: A.m"]),
        ("class _A:\n  def m(self): pass", []),
        ("@overload\ndef f(x: int): ...", []),
    ],
)
def test_what_needs_a_docstring(source, missing):
    assert _without_docstring(ast.parse(source)) == missing
