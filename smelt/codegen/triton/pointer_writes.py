"""The pointers through which a user kernel writes, read off Triton's IR.

If this reports a parameter as not written, no store, atomic operation or call of the kernel receives a pointer computed
from it. Values are in one class if one may be computed from the other, whichever way a loop or condition goes.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from smelt.codegen.triton.triton_import import library

# Operations whose results point into the memory that their operands point into. Loops and conditions are among them
# through the values they yield.
_DERIVED = frozenset([
    "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast", "tt.advance",
    "tt.make_tensor_ptr", "tt.cat", "tt.make_tensor_descriptor", "tt.join", "tt.split", "tt.unsplat",
    "tt.reinterpret_tensor_descriptor", "arith.select",
])  # fmt: skip
_READING = frozenset(
    ["tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.experimental_descriptor_load"]
)
_HANDING_ON = frozenset(["scf.yield", "scf.condition", "cf.br", "cf.cond_br"])

Values = Sequence[Any]  # of Triton's form

_CACHED: weakref.WeakKeyDictionary[Any, dict[Any, frozenset[str] | None]] = weakref.WeakKeyDictionary()


class WritesElsewhere(Exception):
    """The kernel may write memory that none of its arguments points into."""


def mutated_parameters(
    kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any]
) -> frozenset[str] | None:
    """The names of the pointers that `kernel` (a `triton.jit` function) may write through; None if that is unknown.

    Args:
        signature: the type of each parameter, as Triton writes it ("*fp32", "i32", "constexpr").
        constants: the values of the parameters of type "constexpr".

    Raises WritesElsewhere.
    """
    cached = _CACHED.setdefault(kernel.fn, {})
    key = *signature.items(), *((k, type(v), v) for k, v in constants.items())
    try:
        if key not in cached:
            cached[key] = _analyzed(kernel, signature, constants)
        return cached[key]
    except TypeError:  # a constant without a hash
        return _analyzed(kernel, signature, constants)


def _analyzed(
    kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any]
) -> frozenset[str] | None:
    try:
        pointers = _Pointers(kernel.fn.__name__)
        _visit_form(kernel, signature, constants, pointers.add)
    except Exception:
        return None
    names = [name for name, kind in signature.items() if kind != "constexpr"]
    if pointers.parameters is None or len(pointers.parameters) != len(names):
        return None
    if pointers.writes(pointers.unknown):
        raise WritesElsewhere
    return frozenset(n for n, value in zip(names, pointers.parameters) if pointers.writes([value]))


def _visit_form(
    kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any], visit: Callable[[Any], None]
) -> None:
    """Visit the operations of the kernel's IR, including the functions that it calls."""
    triton = library()
    target = triton.target()
    backend = triton.compiler.make_backend(target)
    names = kernel.arg_names
    with triton.context(backend) as context:
        module, _ = triton.form(
            kernel,
            dict(signature),
            {(names.index(name),): value for name, value in constants.items()},
            {},
            target,
            backend,
            backend.parse_options({}),
            context,
        )
        manager = triton.ir.pass_manager(module.context)
        triton.passes.common.add_inliner(manager)
        manager.run(module, "writes")
        module.walk(visit)


class _Pointers:
    """Classes of pointers found by a walk; nested operations precede their parents."""

    def __init__(self, name: str) -> None:
        self.parameters: list[int] | None = None
        self.unknown: list[int] = []  # pointers of unknown origin
        self._name = name
        self._class: dict[int, int] = {}
        self._written: set[int] = set()
        self._blocks: dict[int, list[list[Any]]] = {}  # by region: the arguments of its blocks, in order
        self._seen: set[int] = set()
        self._ends: dict[int, list[list[Any]]] = {}  # by region: the operands of its blocks' terminators

    def writes(self, values: Iterable[int]) -> bool:
        """Whether a write goes through one of these, or through a pointer computed from it."""
        written = {self._of(value) for value in self._written}
        return any(self._of(value) in written for value in values)

    def add(self, op: Any) -> None:
        """Process an operation."""
        name = op.get_name()
        if name == "builtin.module":
            return
        block = op.get_block()
        region = block.get_parent().id()
        if block.id() not in self._seen:
            self._seen.add(block.id())
            block_arguments = [block.get_argument(k) for k in range(block.get_num_arguments())]
            self._blocks.setdefault(region, []).append(block_arguments)
        operands = [op.get_operand(i) for i in range(op.get_num_operands())]
        results = [op.get_result(i) for i in range(op.get_num_results())]
        if name in _HANDING_ON:
            self._ends.setdefault(region, []).append(operands)
        elif name in _STRUCTURE:
            inside = [op.get_region(i).id() for i in range(op.get_num_regions())]
            _STRUCTURE[name](self, op, operands, results, inside)
        else:
            self._join(_pointers([*operands, *results]))
            if name not in _DERIVED:
                self.unknown += _pointers(results)
                self._written.update(() if name in _READING else _pointers(operands))

    def _function(self, op: Any, operands: Values, results: Values, inside: list[int]) -> None:
        """Branches between blocks: targets are not distinguished."""
        entry, *others = self._blocks.get(inside[0], [[]])
        passed = [v for values in (*others, *self._ends.get(inside[0], ())) for v in values]
        self._join(_pointers(passed))
        if op.get_str_attr("sym_name") == self._name:
            self.parameters = [value.id() for value in entry]

    def _for(self, op: Any, operands: Values, results: Values, inside: list[int]) -> None:
        """Operands are the bounds and the step, then the initial values; its block takes the induction variable."""
        self._columns(
            operands[3:], results, *(b[1:] for b in self._blocks[inside[0]]), *self._ends[inside[0]]
        )

    def _if(self, op: Any, operands: Values, results: Values, inside: list[int]) -> None:
        self._columns(results, *(values for region in inside for values in self._ends.get(region, ())))

    def _while(self, op: Any, operands: Values, results: Values, inside: list[int]) -> None:
        """The first region passes values to the second and to the results; the second passes them to the first."""
        test, body = inside
        self._columns(operands, *self._blocks[test], *self._ends.get(body, ()))
        self._columns(results, *self._blocks.get(body, ()), *(end[1:] for end in self._ends[test]))

    def _columns(self, *rows: Values) -> None:
        """Values at one position of these lists are of one class."""
        for values in itertools.zip_longest(*rows):
            self._join(_pointers(v for v in values if v is not None))

    def _of(self, value: int) -> int:
        while (up := self._class.get(value, value)) != value:
            value = up
        return value

    def _join(self, values: list[int]) -> None:
        for value in values[1:]:
            first, other = self._of(values[0]), self._of(value)
            if first != other:
                self._class[other] = first


# Operations with regions.
_STRUCTURE: dict[str, Callable[[_Pointers, Any, Values, Values, list[int]], None]] = {
    "tt.func": _Pointers._function,
    "scf.for": _Pointers._for,
    "scf.if": _Pointers._if,
    "scf.while": _Pointers._while,
}


def _pointers(values: Iterable[Any]) -> list[int]:
    return [v.id() for v in values if "!tt.ptr" in (kind := str(v.get_type())) or "!tt.tensordesc" in kind]
