"""What the source of a package says of itself: imports, cycles, uses of foreign modules, of private names and of `Any`.

All functions read a `Module` (its dotted name and its syntax tree) and run nothing, so a test can plant a source as text:
`module("smelt.loops.kernel_ir", "from smelt.schedule import fuse")`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Module:
    """A module of a package: `name` is dotted ("smelt.loops.kernel_ir"), a package's own is that of its folder."""

    name: str
    tree: ast.Module = field(repr=False)
    is_package: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Where it is in the package: ("loops", "ir"), ("loops", "__init__"), ("api",)."""
        return (*self.name.split(".")[1:], *(("__init__",) if self.is_package else ()))

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What its names stand for: {"d": "torch._dynamo"} after `from torch import _dynamo as d` or `d = torch._dynamo`."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {
                    a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0]
                    for a in node.names
                }
            elif isinstance(node, ast.ImportFrom):
                found |= {a.asname or a.name: f"{self.origin(node)}.{a.name}" for a in node.names}
        for node in self.nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(
                node.value, (ast.Attribute, ast.Name)
            ):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                name = dotted(node.value, found)
                if isinstance(target, ast.Name) and name is not None:
                    found.setdefault(target.id, name)
        return found

    def origin(self, node: ast.ImportFrom) -> str:
        """The module that `from ... import` names, also where it is given relative to this one."""
        if not node.level:
            return node.module or ""
        base = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


def module(name: str, source: str, is_package: bool = False) -> Module:
    return Module(name, ast.parse(source), is_package)


def modules(root: Path) -> dict[str, Module]:
    """All modules of the package in the folder `root`, by their dotted names; a native one as its `.pyi` describes it."""
    found = {}
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.pyi")]):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = module(name, path.read_text(), is_package)
    return found


def dotted(node: ast.AST, aliases: Mapping[str, str]) -> str | None:
    """The full name of `a.b.c` where `a` is an imported name: "torch._dynamo.config"; None for anything else."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, aliases)
        return None if base is None else f"{base}.{node.attr}"
    return None


# --------------------------------------------------------------------------------------------------- imports


def import_names(m: Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported: at the top, in functions, for type checkers only, by name at run
    time (`import_module("a.b")`)."""
    for node in m.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{m.origin(node)}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def imported_modules(m: Module, known: Collection[str]) -> dict[str, int]:
    """The modules among `known` that `m` imports, each with a line where it does."""
    found: dict[str, int] = {}
    for line, name in import_names(m):
        target = name if name in known else name.rpartition(".")[0]
        if target in known and target != m.name:
            found.setdefault(target, line)
    return found


def cycles(every: Mapping[str, Module]) -> list[frozenset[str]]:
    """The sets of modules that import each other, in whatever way and however far around."""
    edges = {name: list(imported_modules(m, every)) for name, m in every.items()}
    return [frozenset(group) for group in _components(edges) if len(group) > 1]


def _components(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Strongly connected components (Tarjan, "Depth-first search and linear graph algorithms", 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in edges[name]:
            if target not in index:
                yield from visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            yield stack[at:]
            del stack[at:]

    for name in edges:
        if name not in index:
            yield from visit(name)


# ---------------------------------------------------------------------------------------------------- layers

Level = str | tuple[str, ...]
REST = "*"


@dataclass(frozen=True)
class Layers:
    """In what order the members of packages (folders and modules) may import each other: each only those after it.

    `orders` has one list for each package that has subfolders, by its dotted name. An entry is a member, or a tuple of
    members that are on one level and may import each other; `REST` stands for the modules that no entry names. Every
    subfolder must be named.
    """

    orders: Mapping[str, Sequence[Level]]

    def level(self, package: str, member: str, is_folder: bool) -> int | None:
        """The place of `member` in the list of `package`; None where it is not in it."""
        rest = None
        for place, entry in enumerate(self.orders[package]):
            names = (entry,) if isinstance(entry, str) else entry
            if member in names:
                return place
            if REST in names and not is_folder:
                rest = place
        return rest

    def problems(self, every: Mapping[str, Module]) -> list[str]:
        """Members without a place, and imports that do not point down, each as a sentence."""
        folders = {name for name, m in every.items() if m.is_package}
        found = [*self._without_place(every, folders), *self._gone(every)]
        return found or [
            f"{m.name}:{line} may not import {target}: {why}"
            for m in every.values()
            for target, line in imported_modules(m, every).items()
            if (why := self._upward(m.parts, every[target].parts, m.name.split(".")[0], folders))
        ]

    def _without_place(self, every: Mapping[str, Module], folders: set[str]) -> Iterator[str]:
        for name in sorted(folders):
            parent, _, own = name.rpartition(".")
            if parent and parent not in self.orders:
                yield f"{name} is a subfolder, so {parent} needs a list"
        for m in every.values():
            for depth, own in enumerate(m.parts):
                parent = ".".join(m.name.split(".")[: depth + 1])
                if parent in self.orders and own != "__init__":
                    if self.level(parent, own, f"{parent}.{own}" in folders) is None:
                        yield f"{m.name}: {own} is not in the list of {parent}"

    def _gone(self, every: Mapping[str, Module]) -> Iterator[str]:
        for package, order in self.orders.items():
            for entry in order:
                for name in (entry,) if isinstance(entry, str) else entry:
                    if name != REST and f"{package}.{name}" not in every:
                        yield f"the list of {package} names {name}, which does not exist"

    def _upward(self, own: tuple[str, ...], target: tuple[str, ...], root: str, folders: set[str]) -> str:
        """Why a module at `own` may not import one at `target`; empty where it may. What decides is the first package that
        they part in."""
        common = 0
        while common < min(len(own), len(target)) and own[common] == target[common]:
            common += 1
        package = ".".join([root, *own[:common]])
        if package not in self.orders or common >= min(len(own), len(target)):
            return ""
        above, below = own[common], target[common]
        if above == "__init__":  # what a package offers, it collects from its members
            return ""
        if below == "__init__":
            return f"a member of {package} imports the package" if package != root else ""
        places = [self.level(package, name, f"{package}.{name}" in folders) for name in (above, below)]
        assert places[0] is not None and places[1] is not None
        return f"{above} is below {below} in {package}" if places[0] > places[1] else ""


# ------------------------------------------------------------------------------------------- foreign modules


def uses(m: Module, of: Sequence[str]) -> list[tuple[int, str]]:
    """Line and full name of every use of the modules `of` and of what is in them: imports, attributes, names bound to them,
    `getattr(torch, "_dynamo")`, `import_module("torch._dynamo")`, `sys.modules["torch._dynamo"]`."""
    found = {(line, name) for line, name in import_names(m) if _inside(name, of)}
    for node in m.nodes:
        name = _name_of(node, m.aliases)
        if name is not None and _inside(name, of):
            found.add((node.lineno, name))
    longest = {
        (line, name)
        for line, name in found
        if not any(l == line and n.startswith(f"{name}.") for l, n in found)
    }
    return sorted(longest)


def _inside(name: str, of: Sequence[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in of)


def _name_of(node: ast.AST, aliases: Mapping[str, str]) -> str | None:
    if isinstance(node, (ast.Name, ast.Attribute)):
        return dotted(node, aliases) if isinstance(node.ctx, ast.Load) else None
    if isinstance(node, ast.Call) and _called(node) in ("getattr", "hasattr") and len(node.args) > 1:
        base, name = dotted(node.args[0], aliases), node.args[1]
        return f"{base}.{name.value}" if base and isinstance(name, ast.Constant) else None
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript) and dotted(node.value, aliases) == "sys.modules":
        key = node.slice
    if isinstance(node, ast.Call) and node.args and dotted(node.func, aliases) == "sys.modules.get":
        key = node.args[0]
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


# --------------------------------------------------------------------------------------------- private names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def foreign_private(m: Module, package: str, public: Sequence[str] = ()) -> list[tuple[int, str]]:
    """Line and full name of every private name of another `package` that `m` uses; what is in `public` is none."""
    return [
        (line, name)
        for line, name in uses(m, [package])
        if any(map(is_private, name.split("."))) and not _inside(name, public)
    ]


def private_members(every: Mapping[str, Module]) -> dict[str, set[str]]:
    """The private names that classes of the package define (methods, fields, what they store on themselves), each with the
    modules that do."""
    found: dict[str, set[str]] = {}
    for m in every.values():
        for cls in (node for node in m.nodes if isinstance(node, ast.ClassDef)):
            for name in filter(is_private, _members(cls)):
                found.setdefault(name, set()).add(m.name)
    return found


def _members(cls: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(cls):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            if any(isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets):
                yield from (c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant))


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def reaches(m: Module, every: Mapping[str, Module], members: Mapping[str, set[str]]) -> list[tuple[int, str]]:
    """Where `m` uses what another module of the package keeps to itself: `thing._field` of a class that is defined there,
    `other_module._function`, `from smelt.other import _function`."""
    found = []
    for node in m.nodes:
        if isinstance(node, ast.ImportFrom) and m.origin(node) in every:
            names = [f"{m.origin(node)}.{a.name}" for a in node.names if is_private(a.name)]
            found += [(node.lineno, name) for name in names if name not in every]
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and not _is_self(node.value):
            base = dotted(node.value, m.aliases)
            if base in every:
                if base != m.name and f"{base}.{node.attr}" not in every:
                    found.append((node.lineno, f"{base}.{node.attr}"))
            elif base is None or _is_member(base, every):
                if node.attr in members and m.name not in members[node.attr]:
                    found.append((node.lineno, f"{ast.unparse(node.value)}.{node.attr}"))
    return found


def _is_member(name: str, every: Mapping[str, Module]) -> bool:
    return name.rpartition(".")[0] in every


# ------------------------------------------------------------------------------------------------------- Any


def annotated_any(m: Module, name: str) -> list[int]:
    """The lines on which a parameter or variable `name` is annotated with `Any`."""
    found = []
    for node in m.nodes:
        if isinstance(node, ast.arg) and node.arg == name and _is_any(node.annotation, m):
            found.append(node.lineno)
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target).split(".")[-1] == name:
            if _is_any(node.annotation, m):
                found.append(node.lineno)
    return sorted(found)


def _is_any(node: ast.AST | None, m: Module) -> bool:
    return node is not None and dotted(_unquoted(node), m.aliases) == "typing.Any"


def _unquoted(node: ast.AST) -> ast.AST:
    """An annotation that is written in quotes, without them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ast.parse(node.value, mode="eval").body
    return node


def functions_with_any(m: Module) -> list[tuple[int, str]]:
    """Line and name of each function that mentions `Any` in its signature or body, by whatever name the module has for it.
    What a function inside it mentions is that one's."""
    return [
        (node.lineno, node.name)
        for node in m.nodes
        if isinstance(node, _FUNCTIONS)
        and any(dotted(part, m.aliases) == "typing.Any" for part in _own(node))
    ]


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _own(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What is in a function, but not in a function inside it; annotations without quotes."""
    todo = [function.args, *function.body, *([_unquoted(function.returns)] if function.returns else [])]
    while todo:
        node = todo.pop()
        if isinstance(node, _FUNCTIONS):
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            todo.append(_unquoted(node.annotation))
