"""Operators of programs that are valid for all sizes: elementwise ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.sized_operators import ANY, EXACT, FLOATS, Operator, bounded, listed
from tests.harness.sized_values import Value, broadcast

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

OPERATORS: list[Operator] = []
operator = listed(OPERATORS)


@operator(2)
def unary(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS)) is None:
        return None
    exact = [
        "-{}",
        "{}.relu()",
        "{}.abs()",
        "{}.clone()",
        "{}.square().clamp(max=9)",
        "{} * 2 % 7",
        "F.hardtanh({}, -3, 3)",
    ]
    rough = [
        "{}.sin()",
        "torch.exp(-{}.abs())",
        "F.gelu({})",
        "{}.sigmoid()",
        "F.silu({})",
        "{} * 0.5",
        "{}.tanh()",
    ]
    made = w.one_of(
        exact if v.kind == "whole" and w.pick(3) else rough if v.kind == "rough" else exact + rough
    )
    kind = v.kind if made in exact else "rough"
    return None if kind == "rough" and made in exact[1:] else Value(made.format(v.name), v.dims, kind)


@operator(4)
def binary(w: Writer) -> Value | None:
    if (a := w.value("whole", "rough", "index")) is None:
        return None
    found = [
        (b, dims)
        for b in reversed(w.values)
        if b.kind not in ("mask", "complex") and (dims := broadcast(a.dims, b.dims)) is not None
    ]
    b, dims = w.one_of(found)
    if w.chance(2):
        a, b = b, a
    kind = "rough" if "rough" in (a.kind, b.kind) else "whole" if "whole" in (a.kind, b.kind) else "index"
    forms = ["{} + {}", "{} - {}", "{} * {}", "torch.add({}, {}, alpha=2)"]
    if kind != "rough":
        forms += ["torch.maximum({}, {})", "torch.minimum({}, {})"]
    return Value(bounded(w.one_of(forms).format(a.name, b.name), kind), dims, kind)


@operator(2)
def with_size(w: Writer) -> Value | None:
    """Sizes as numbers."""
    v, d = w.value(*FLOATS, rank=1), w.value(rank=1)
    if v is None or d is None:
        return None
    size = w.size(w.one_of(d.dims))
    if w.chance(3):
        return Value(f"{v.name} / ({size} + 1)", v.dims, "rough")
    return Value(
        bounded(w.one_of(["{} + {}", "{} * {}", "{} - {} // 2"]).format(v.name, size), v.kind),
        v.dims,
        v.kind,
    )


@operator()
def compare(w: Writer) -> Value | None:
    if (v := w.value(*EXACT)) is None:
        return None
    return Value(
        w.one_of(["{} > 0", "{} == 1", "{} <= 2", "{} != {}.clone()"]).format(v.name, v.name), v.dims, "mask"
    )


@operator()
def mask_operator(w: Writer) -> Value | None:
    if (m := w.value("mask")) is None:
        return None
    return Value(w.one_of(["~{}", "{} | {}", "{}.logical_not()"]).format(m.name, m.name), m.dims, "mask")


@operator(2)
def chosen(w: Writer) -> Value | None:
    m, a = w.value("mask"), w.value(*FLOATS)
    if m is None or a is None or (dims := broadcast(m.dims, a.dims)) is None:
        return None
    if dims == a.dims and w.chance(2):
        return Value(f"{a.name}.masked_fill({m.name}, 2)", dims, a.kind)
    return Value(f"torch.where({m.name}, {a.name}, {w.one_of(['0.0', f'{a.name} - 1'])})", dims, a.kind)


@operator()
def cast(w: Writer) -> Value | None:
    if (v := w.value(*ANY)) is None:
        return None
    if v.kind in ("mask", "index"):
        return Value(f"{v.name}.float()", v.dims, "whole")
    if v.kind == "whole" and w.chance(2):
        return Value(f"{v.name}.long()", v.dims, "index")
    return Value(f"{v.name}.double().mul(2).float()", v.dims, v.kind)
