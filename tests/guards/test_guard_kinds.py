"""Guard kinds: each is one class in Python and one check in C++ of the same name; no other code compares the names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from smelt import _native
from smelt.guards import guard_kinds
from smelt.guards.guard_kinds import KINDS

SMELT = Path(guard_kinds.__file__).parent.parent
OTHER_KINDS = {"deletion.kind"}  # kinds of other things, some of whose names are also those of guards


def test_each_kind_has_a_check_of_its_name() -> None:
    texts = (path.read_text() for path in (SMELT / "native" / "guards").rglob("*.cpp"))
    names = [name for text in texts for name in re.findall(r'const CheckKind \w+\("(\w+)"', text)]
    assert sorted(names) == sorted(KINDS), (
        "a kind is a class in guard_kinds.py and a CheckKind in native/guards"
    )


@pytest.mark.parametrize("name", KINDS)
def test_the_extension_knows_each_kind(name: str) -> None:
    """A check gets a value that most kinds refuse, which is another error than an unknown kind."""
    try:
        _native.GuardTree((((-1, "arg", 0, ((0, name, [object()]),), -1),), 0))
    except (TypeError, AttributeError) as error:
        assert "unknown" not in str(error)


def comparisons(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each comparison of some `kind`, or its name, with the name of a guard kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            constants = {n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)}
            kinds = {t for side in sides if re.search(r"\.kind(\.name)?$", t := ast.unparse(side))}
            if kinds - OTHER_KINDS and constants & KINDS.keys():
                yield node.lineno, ast.unparse(node)


def test_no_other_module_compares_kinds_with_names() -> None:
    found = [
        f"{path.relative_to(SMELT)}:{line}: {text}"
        for path in sorted(SMELT.rglob("*.py"))
        if "smelt.guards" in path.read_text() and path.name != "guard_kinds.py"
        for line, text in comparisons(ast.parse(path.read_text()))
    ]
    assert found == [], (
        "ask a property of the kind (GuardKind in guard_kinds.py) instead of comparing its name"
    )


def test_comparisons_are_found() -> None:
    tree = ast.parse('a = g.kind == "eq"\nb = g.kind.name in ("id", "type")\nc = deletion.kind == "slot"')
    assert [line for line, _ in comparisons(tree)] == [1, 2]


def test_capture_names_only_known_kinds() -> None:
    """The calls `facts.guard("eq", ...)` and `Guard("eq", ...)`."""
    unknown = [
        f"{path.relative_to(SMELT)}:{node.lineno}: {node.args[0].value}"
        for path in sorted(SMELT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and re.search(r"(\.guard|^Guard)$", ast.unparse(node.func))
        if node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value not in KINDS
    ]
    assert unknown == []
