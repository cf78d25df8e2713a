"""`smelt/_native.pyi` says what the extension offers."""

import ast
from pathlib import Path

import pytest

from smelt import _native

STUB = ast.parse((Path(_native.__file__).parent / "_native.pyi").read_text())


def names(body: list[ast.stmt]) -> set[str]:
    declared = {s.target.id for s in body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
    shared = {a.asname for s in body if isinstance(s, ast.ImportFrom) for a in s.names if a.asname}
    return declared | shared | {s.name for s in body if isinstance(s, ast.FunctionDef | ast.ClassDef)}


def public(found: set[str]) -> set[str]:
    return {name for name in found if not name.startswith("_")}


def test_the_stub_names_what_the_extension_has():
    assert public(names(STUB.body)) == public(set(dir(_native)))


@pytest.mark.parametrize(
    "cls", [s for s in STUB.body if isinstance(s, ast.ClassDef) and not s.name.startswith("_")]
)
def test_the_stub_names_what_a_class_has(cls):
    assert public(names(cls.body)) == public(set(vars(getattr(_native, cls.name))))
