"""Operators of programs that are valid for all sizes: complex numbers, which views may show with another sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.sized_operators import FLOATS, Operator, axis_of, listed, with_dims
from tests.harness.sized_values import Value, broadcast, dim

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

OPERATORS: list[Operator] = []
operator = listed(OPERATORS)


@operator(4)
def made_complex(w: Writer) -> bool | None:
    """Of two variables of one shape, and mostly what is computed of it."""
    if (a := w.value(*FLOATS)) is None:
        return None
    b = w.one_of([b for b in reversed(w.values) if b.kind in FLOATS and b.dims == a.dims])
    form = w.one_of(
        ["torch.complex({}, {})", "torch.view_as_complex(torch.stack([{}, {}], -1))", "{} + 1j * {}"]
    )
    w.assign(Value(form.format(a.name, b.name), a.dims, "complex"))
    for _ in range(w.pick(4)):
        made = w.one_of([of_one, of_two, as_real, written_complex])(w)
        if isinstance(made, Value):
            w.assign(made)
    return True


@operator(3)
def of_one(w: Writer) -> Value | None:
    if (v := w.value("complex")) is None:
        return None
    forms = [
        "{}.conj()",
        "-{}",
        "{} * 0.5j",
        "{}.clone()",
        "{}.resolve_conj()",
        "{}.conj_physical()",
        "{} / (2 + {}.abs())",
    ]
    return Value(w.one_of(forms).format(v.name, v.name), v.dims, "complex")


@operator(3)
def of_two(w: Writer) -> Value | None:
    if (a := w.value("complex")) is None:
        return None
    found = [
        (b, dims)
        for b in reversed(w.values)
        if b.kind in ("complex", "rough") and (dims := broadcast(a.dims, b.dims)) is not None
    ]
    b, dims = w.one_of(found)
    forms = ["{} + {}", "{} - {}", "{} * {} * 0.25"]
    if b.kind == "complex":
        forms += ["{} * {}.conj() * 0.25", "torch.maximum({}.real, {}.real)"]
    made = w.one_of(forms)
    return Value(made.format(a.name, b.name), dims, "rough" if "real" in made else "complex")


@operator(2)
def as_real(w: Writer) -> Value | None:
    if (v := w.value("complex")) is None:
        return None
    if w.chance(4):
        return Value(f"torch.view_as_real({v.name}.resolve_conj())", (*v.dims, dim("2")), "rough")
    if w.chance(4) and v.dims:
        d = axis_of(w, v)
        return Value(f"{v.name}.sum({d}).abs().tanh()", with_dims(v.dims, d), "rough")
    return Value(
        w.one_of(["{}.real", "{}.imag", "{}.abs()", "{}.conj().imag"]).format(v.name), v.dims, "rough"
    )


@operator(2)
def written_complex(w: Writer) -> Value | bool | None:
    """Through a view, or itself."""
    if (v := w.value("complex")) is None:
        return None
    v = w.assign(Value(f"{v.name}.clone()", v.dims, v.kind))
    forms = [
        "{}.mul_(0.5j)",
        "{}.conj().add_(1j)",
        "{}.imag.mul_(0.5)",
        "{}.conj().imag.add_(1)",
        "{}.copy_({}.conj() * 0.5)",
    ]
    w.lines.append(w.one_of(forms).format(v.name, v.name))
    return True
