"""Operators of programs that are valid for all sizes: tensors made of sizes, writes, and what depends on sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.sized_operators import FLOATS, Operator, axis_of, listed
from tests.harness.sized_values import Value, of

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

OPERATORS: list[Operator] = []
operator = listed(OPERATORS)


# --------------------------------------------------------------------------------------- made of sizes


@operator(2)
def made(w: Writer) -> Value | None:
    v = w.value(rank=1)
    if v is None:
        return None
    size = w.one_of(v.dims)
    text = w.size(size)
    other = w.one_of(w.one_of([x for x in w.values if x.dims]).dims)
    both = f"{text}, {w.size(other)}"
    return Value(
        *w.one_of(
            [
                (f"torch.arange({text})", (size,), "index"),
                (f"torch.ones({both})", (size, other), "whole"),
                (f"torch.zeros({both}) + 1", (size, other), "whole"),
                (f"{v.name}.new_zeros({both})", (size, other), v.kind),
                (f"torch.full(({both}), 3.0)", (size, other), "whole"),
                (f"torch.eye({text})", (size, size), "whole"),
                (f"torch.arange(0, {text}, 2)", (of("({} + 1) // 2", size),), "index"),
                (f"torch.ones_like({v.name})", v.dims, v.kind),
                (f"torch.linspace(0, 1, {text})", (size,), "rough"),
                (f"torch.full(({text},), float({text}))", (size,), "whole"),
                (f"torch.tensor({text})", (), "index"),
            ]
        )
    )


@operator()
def dropped(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS)) is None:
        return None
    return Value(f"F.dropout({v.name}, 0.5)", v.dims, v.kind)


# ---------------------------------------------------------------------------------------------- writes


@operator(3)
def written(w: Writer) -> bool | None:
    """A clone, or an input that is written in parts."""
    v = w.value(*FLOATS, rank=1)
    if v is None:
        return None
    is_input = not v.name.startswith("t")
    if is_input and w.chance(3):
        w.written.add(v.name)
    else:
        v = w.assign(Value(f"{v.name}.clone()", v.dims, v.kind))
    d = axis_of(w, v)
    size = w.size(v.dims[d])
    at = ", ".join([":"] * d)
    at = f"{at}, " if at else ""
    forms = [
        f"{v.name}.add_(1)",
        f"{v.name}[{at}1:] += 2",
        f"{v.name}[{at}:{size} // 2] = 3",
        f"{v.name}.transpose(0, {d}).mul_(2)",
        f"{v.name}[{at}::2].zero_()",
        f"{v.name}.masked_fill_({v.name}.detach() > 2, 1)" if v.kind == "whole" else f"{v.name}.neg_()",
        f"{v.name}[{at}-1:].sub_(1)",
        f"{v.name}[{at}torch.arange({size} // 2)] = 1.0",
        f"{v.name}.copy_({v.name}.flip({d}))",
        f"{v.name}[...] = {v.name} * 2",
    ]
    if not is_input or v.name not in w.written:
        forms.append(f"{v.name}.flatten()[1:].mul_(2)")
    if v.dims[d].least > 0:
        forms += [f"{v.name}[{at}0] = 4", f"{v.name}.select({d}, {size} // 2).add_(1)"]
    w.lines.append(w.one_of(forms))
    if v.kind == "whole":
        w.lines.append(f"{v.name}.clamp_(-9, 9)")
    return True


# ------------------------------------------------------------------------------------------ conditions


@operator()
def by_size(w: Writer) -> Value | None:
    """What is computed depends on sizes."""
    v, other = w.value(*FLOATS, rank=1), w.value(rank=1)
    if v is None or other is None:
        return None
    a, b = w.size(w.one_of(v.dims)), w.size(w.one_of(other.dims))
    condition = w.one_of(
        [
            f"{a} > 4",
            f"{a} == {b}",
            f"{a} % 2 == 0",
            f"{a} < {b}",
            f"{v.name}.numel() > 100",
            f"{v.name}.is_contiguous()",
        ]
    )
    then, otherwise = ("{}", "-{}") if v.kind == "whole" else ("{}.sin()", "{} * 0.5")
    return Value(f"{then.format(v.name)} if {condition} else {otherwise.format(v.name)}", v.dims, v.kind)


@operator()
def looped(w: Writer) -> Value | None:
    if (v := w.value("whole", rank=1)) is None:
        return None
    d = axis_of(w, v)
    w.lines.append(
        f"parts = [part * k for k, part in enumerate(torch.split({v.name}, {w.size(v.dims[d])} // 2 + 1, {d}))]"
    )
    return Value(f"torch.cat(parts, {d})", v.dims, v.kind)
