"""Rows for what stands in for a value that exists only when the compiled frame runs: symbolic numbers, arrays, texts."""

from __future__ import annotations

import numpy as np

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import Array, BoundMethod
from smelt.capture.proxies.text_proxy import Display, Shown, Text, Verbatim
from smelt.capture.reconstruction.reconstruction_kind import Expressions, Kind
from smelt.shapes.expr import Expression, leaves
from smelt.tracing.symbolic.numpy_ints import NumpyInt
from smelt.tracing.symbolic.sym_nodes import Undecided
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import SymbolicList, SymbolicRange
from smelt.tracing.symbolic.unbacked_numbers import DataNumber


def _array_text(x: Array, text: Expressions) -> str:
    return f"{text(x.tensor)}.numpy(){'[()]' if x.scalar else ''}"


def _text_text(x: Text, text: Expressions) -> str:
    # which objects the parts of a text are, nobody can tell: so they can be read in the compiled frame
    parts = (repr(a) if type(a) is str else text(a) for a in x.args)
    return f"{text.constant(x.how, x.how.__name__)}({', '.join(parts)})"


def _shown_text(x: Shown, text: Expressions) -> str:
    if x.is_plain:
        return text(x.tensor)
    facts = (x.grad_fn, x.fake.requires_grad, x.is_parameter)
    return f"{text.constant(Display, 'Display')}({', '.join(map(text, (x.tensor, *facts)))})"


def _carriers(expression: Expression) -> list[object]:
    """The tensors whose sizes a number is computed from."""
    return [key.carrier for key in leaves(expression) if isinstance(key, DataNumber)]


def _list_text(x: SymbolicList, text: Expressions) -> str:
    behind = f"range({text(x.start)}, {text(x.stop)}, {x.step})"
    return f"[{''.join(f'{text(n)}, ' for n in x.head)}*{behind}]"


STANDINS: dict[type, Kind] = {
    **dict.fromkeys(NUMBERS, Kind(lambda x: _carriers(x.node.expression), lambda x, text: text.number(x))),
    Undecided: Kind(lambda x: _carriers(x.expression), lambda x, text: text.expression(x.expression)),
    NumpyInt: Kind(
        lambda x: (x.number,), lambda x, text: f"{text.constant(np.int64, 'int64')}({text(x.number)})"
    ),
    SymbolicRange: Kind(lambda x: x.parts, lambda x, text: f"range({', '.join(map(text, x.parts))})"),
    SymbolicList: Kind(lambda x: (*x.head, x.start, x.stop), _list_text),
    Array: Kind(lambda x: (x.tensor,), _array_text),
    BoundMethod: Kind(lambda x: (x.array,), lambda x, text: f"{text(x.array)}.{x.name}"),
    Text: Kind(lambda x: x.args, _text_text),
    Shown: Kind(lambda x: (x.tensor,), _shown_text),
    Verbatim: Kind(
        lambda x: (x.text,), lambda x, text: f"{text.constant(Verbatim, 'Verbatim')}({text(x.text)})"
    ),
}
