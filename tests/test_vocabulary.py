"""Identifiers of smelt are the field's terms (docs/glossary.md): words that were smelt's own do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Each with the term to use.
WORDS = {
    "absorb": "epilogue fusion",
    "alike": "structurally equal",
    "beside": "sibling fusion, shadow execution",
    "brought": "captured environment",
    "given": "arguments, donated",
    "handed": "arguments",
    "piece": "tile, chunk, subgraph",
    "place": "source path, index, offset, slot, position",
    "served": "gradient liveness",
    "spent": "freed",
    "standin": "proxy",
    "told": "reported",
    "together": "horizontal fusion, parallel launch, siblings",
    "weakly": "weakref",
}
# In the ordinary English sense: to place an interval in the arena.
ORDINARY = {
    ("plan/arena_placement.py", "place"),
    ("plan/arena_allocation.py", "place"),
    ("plan/symbolic_plan.py", "place"),
}
IN_PLACE = re.compile(r"_?(scaled_)?in_place(_layout)?")


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def test_identifiers_are_the_field_s_terms():
    found = []
    for path in sorted((ROOT / "smelt").rglob("*.py")):
        name = path.relative_to(ROOT / "smelt").as_posix()
        for line, identifier in identifiers(ast.parse(path.read_text())):
            parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", identifier).lower().strip("_").split("_")
            for word, term in WORDS.items():
                if (word in parts or f"{word}s" in parts) and not IN_PLACE.fullmatch(identifier):
                    if (name, identifier) not in ORDINARY:
                        found.append(f"smelt/{name}:{line} {identifier}: say {term}")
    assert not found, "\n".join(found)
