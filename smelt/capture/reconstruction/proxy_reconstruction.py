"""Rows for the proxies of values that exist only when the compiled frame runs: symbolic numbers, arrays, texts."""

from __future__ import annotations

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import ArrayProxy, BoundMethod
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.text_proxy import DisplayedTensor, FormattedTensor, TextProxy, Verbatim
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind
from smelt.shapes.expr import Expression, leaves
from smelt.tracing.symbolic.numpy_numbers import NUMPY_NUMBERS
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import SymbolicList, SymbolicRange
from smelt.tracing.symbolic.unbacked_numbers import UnbackedNumber


def _array_text(x: ArrayProxy, text: Expressions) -> str:
    return f"{text(x.tensor)}.numpy(){'[()]' if x.scalar else ''}"


def _text_text(x: TextProxy, text: Expressions) -> str:
    # The identity of the segments of a text is not observable, so the source holds them.
    segments = (repr(a) if type(a) is str else text(a) for a in x.args)
    return f"{text.constant(x.fn, x.fn.__name__)}({', '.join(segments)})"


def _formatted_tensor_text(x: FormattedTensor, text: Expressions) -> str:
    if x.is_plain:
        return text(x.tensor)
    facts = (x.grad_fn, x.fake.requires_grad, x.is_parameter)
    return f"{text.constant(DisplayedTensor, 'DisplayedTensor')}({', '.join(map(text, (x.tensor, *facts)))})"


def _carriers(expression: Expression) -> list[object]:
    """The tensors from whose sizes a number is computed."""
    return [key.carrier for key in leaves(expression) if isinstance(key, UnbackedNumber)]


def _list_text(x: SymbolicList, text: Expressions) -> str:
    tail = f"range({text(x.start)}, {text(x.stop)}, {x.step})"
    return f"[{''.join(f'{text(n)}, ' for n in x.head)}*{tail}]"


PROXIES: dict[type, ReconstructionKind] = {
    **dict.fromkeys(
        NUMBERS, ReconstructionKind(lambda x: _carriers(x.node.expression), lambda x, text: text.number(x))
    ),
    UnbackedComparison: ReconstructionKind(
        lambda x: _carriers(x.expression), lambda x, text: text.expression(x.expression)
    ),
    **dict.fromkeys(
        NUMPY_NUMBERS,
        ReconstructionKind(
            lambda x: (x.number,),
            lambda x, text: f"{text.constant(x.scalar, x.scalar.__name__)}({text(x.number)})",
        ),
    ),
    SymbolicRange: ReconstructionKind(
        lambda x: x.bounds, lambda x, text: f"range({', '.join(map(text, x.bounds))})"
    ),
    SymbolicList: ReconstructionKind(lambda x: (*x.head, x.start, x.stop), _list_text),
    ArrayProxy: ReconstructionKind(lambda x: (x.tensor,), _array_text),
    NumberProxy: ReconstructionKind(lambda x: (x.tensor,), lambda x, text: f"{text(x.tensor)}.item()"),
    BoundMethod: ReconstructionKind(lambda x: (x.owner,), lambda x, text: f"{text(x.owner)}.{x.name}"),
    TextProxy: ReconstructionKind(lambda x: x.args, _text_text),
    FormattedTensor: ReconstructionKind(lambda x: (x.tensor,), _formatted_tensor_text),
    Verbatim: ReconstructionKind(
        lambda x: (x.text,), lambda x, text: f"{text.constant(Verbatim, 'Verbatim')}({text(x.text)})"
    ),
}
