"""Operators of programs that are valid for all sizes: reductions, scans, sorts, and what is computed of whole rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.sized_operators import (
    EXACT,
    FLOATS,
    Operator,
    axis_of,
    bounded,
    least,
    listed,
    never_empty,
    signed,
    with_dims,
)
from tests.harness.sized_values import Value, dim

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

OPERATORS: list[Operator] = []
operator = listed(OPERATORS)


# ------------------------------------------------------------------------------------------ reductions


@operator(4)
def reduced(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=1)) is None:
        return None
    d = axis_of(w, v)
    keep = w.chance(3)
    dims = with_dims(v.dims, d, dim("1")) if keep else with_dims(v.dims, d)
    options = f"{signed(w, d, len(v.dims))}{', keepdim=True' if keep else ''}"
    forms = ["sum", "sum", "mean", "logsumexp"]
    if v.kind == "whole" and (v.dims[d].least > 0 or w.chance(10)):
        forms += ["amax", "amin"]
    if w.chance(6):  # there is none of nothing, and of one there is none without a bias
        forms = ["var", "std"] if v.dims[d].least > 1 else ["norm"]
    form = w.one_of(forms)
    if form == "norm":
        text = f"({v.name}.square() + 1).sum({options}).sqrt()"
    elif form == "mean" and v.dims[d].least == 0:
        text = f"({v.name} + 0.5).sum({options}) / max({w.size(v.dims[d])}, 1)"
    elif form == "std":
        text = f"({v.name}.var({options}) + 1).sqrt()"
    else:
        text = f"{v.name}.{form}({options})"
    kind = "whole" if v.kind == "whole" and form in ("sum", "amax", "amin") else "rough"
    text = bounded(text, kind) if form in ("sum", "logsumexp", "norm") else text
    return Value(text, dims, kind)


@operator()
def reduced_wholly(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=1)) is None:
        return None
    some = len(v.dims) > 2 and w.chance(2)
    dims = (v.dims[1],) + v.dims[3:] if some else ()
    options = "(0, 2)" if some else ""
    form = w.one_of(["sum", "sum", "mean"])
    if form == "mean":
        text = f"({v.name}.sum({options}) / ({v.name}.numel() + 1))"
        return Value(text, dims, "rough")
    return Value(bounded(f"{v.name}.sum({options})", v.kind), dims, v.kind)


@operator()
def counted(w: Writer) -> Value | None:
    """Reductions of masks and indices."""
    if (v := w.value("mask", "index", "whole", rank=1)) is None:
        return None
    d = never_empty(w, v) if v.kind != "mask" else axis_of(w, v)
    if d is None:
        return None
    dims = with_dims(v.dims, d)
    if v.kind == "mask":
        return Value(
            *w.one_of(
                [
                    (f"{v.name}.any({d})", dims, "mask"),
                    (f"{v.name}.all({d})", dims, "mask"),
                    (f"{v.name}.sum({d})", dims, "index"),
                ]
            )
        )
    return Value(
        *w.one_of(
            [
                (f"{v.name}.argmax({d})", dims, "index"),
                (f"{v.name}.max({d})[0]", dims, v.kind),
                (f"{v.name}.min({d})[1]", dims, "index"),
            ]
        )
    )


@operator()
def scanned(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=1)) is None:
        return None
    d = axis_of(w, v)
    return Value(bounded(f"{v.name}.cumsum({d})", v.kind), v.dims, v.kind)


@operator()
def ordered(w: Writer) -> Value | None:
    if (v := w.value(*EXACT, rank=1)) is None:
        return None
    d = axis_of(w, v)
    if v.dims[d].least >= 2 and w.chance(2):
        return Value(f"{v.name}.topk(2, {d})[0]", with_dims(v.dims, d, dim("2")), v.kind)
    return Value(
        f"{v.name}.sort(dim={d}, stable=True{w.one_of(['', ', descending=True'])})[{w.pick(1)}]",
        v.dims,
        v.kind,
    )


# ------------------------------------------------------------------------------------------------ rows


@operator(2)
def softmax(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=1)) is None:
        return None
    d = axis_of(w, v)
    form = w.one_of(["softmax", "log_softmax"])
    text = f"{v.name}.{form}({signed(w, d, len(v.dims))})"
    return Value(text if form == "softmax" else bounded(text, "rough"), v.dims, "rough")


@operator(2)
def normalized(w: Writer) -> Value | None:
    if (v := w.value("whole", rank=1)) is None:
        return None
    last = v.dims[-1]
    found = [x.name for x in w.values if x.kind == "whole" and x.dims == (last,)]
    weight = w.one_of(["", "", *(f", {x}, {x}" for x in found)])
    forms = [f"F.normalize({v.name} + 0.5, dim=-1)"]
    if last.least > 0 or w.chance(8):
        forms += [f"F.layer_norm({v.name}, ({w.size(last)},){weight}, eps=0.1)"] * 2
    if len(v.dims) > 1 and (least(v) > 0 or w.chance(3)):
        forms.append(f"F.group_norm({v.name}, 1, eps=0.1)")
    if len(v.dims) == 3 and (least(v) > 1 or w.chance(2)):
        forms.append(f"F.instance_norm({v.name}, eps=0.1)")
    if len(v.dims) in (2, 3) and (least(v) > 1 or w.chance(3)):
        forms.append(f"F.batch_norm({v.name}, None, None, training=True, eps=0.1)")
    return Value(w.one_of(forms), v.dims, "rough")


@operator()
def loss(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=2)) is None or len(v.dims) != 2 or v.dims[1].least == 0:
        return None
    found = [x for x in w.values if x.kind == "index" and x.dims == v.dims[:1]]
    rows, columns = w.size(v.dims[0]), w.size(v.dims[1])
    target = f"{w.one_of(found).name}.remainder({columns})" if found else f"torch.arange({rows}) // {rows}"
    form, dims = w.one_of([("sum", ()), ("none", v.dims[:1])])
    return Value(f"F.cross_entropy({v.name}, {target}, reduction='{form}').tanh()", dims, "rough")
