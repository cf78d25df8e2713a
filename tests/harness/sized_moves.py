"""Operators of programs that are valid for all sizes: what moves elements, and indices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.sized_operators import FLOATS, Operator, axis_of, bounded, listed, with_dims
from tests.harness.sized_values import Value, dim, of, product

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

OPERATORS: list[Operator] = []
operator = listed(OPERATORS)


# ----------------------------------------------------------------------------------- moves of elements


@operator(2)
def joined(w: Writer) -> Value | None:
    if (a := w.value(rank=1)) is None:
        return None
    d = axis_of(w, a)
    found = [
        b
        for b in reversed(w.values)
        if b.kind == a.kind and len(b.dims) == len(a.dims) and with_dims(b.dims, d) == with_dims(a.dims, d)
    ]
    b = w.one_of(found)
    return Value(
        f"torch.cat([{a.name}, {b.name}], {d})",
        with_dims(a.dims, d, of("{} + {}", a.dims[d], b.dims[d])),
        a.kind,
    )


@operator()
def stacked(w: Writer) -> Value | None:
    if (a := w.value()) is None:
        return None
    b = w.one_of([b for b in reversed(w.values) if b.kind == a.kind and b.dims == a.dims])
    d = w.pick(len(a.dims) + 1)
    return Value(f"torch.stack([{a.name}, {b.name}], {d})", (*a.dims[:d], dim("2"), *a.dims[d:]), a.kind)


@operator(2)
def padded(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=1)) is None:
        return None
    size = v.dims[-1]
    if w.chance(4):
        return Value(
            f"F.pad({v.name}, ({w.size(size)}, 1))", (*v.dims[:-1], of("{0} + {0} + 1", size)), v.kind
        )
    if len(v.dims) > 1 and w.chance(3):
        rows = v.dims[-2]
        return Value(f"F.pad({v.name}, (0, 0, 2, 1))", (*v.dims[:-2], of("{} + 3", rows), size), v.kind)
    return Value(f"F.pad({v.name}, (1, 2), value=1.0)", (*v.dims[:-1], of("{} + 3", size)), v.kind)


@operator()
def repeated(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = axis_of(w, v)
    if w.chance(2):
        times = [dim("2") if k == d else dim("1") for k in range(len(v.dims))]
        new = product(dim("2"), v.dims[d])
        return Value(
            f"{v.name}.repeat({', '.join(t.text for t in times)})", with_dims(v.dims, d, new), v.kind
        )
    return Value(
        f"{v.name}.repeat_interleave(2, {d})", with_dims(v.dims, d, product(v.dims[d], dim("2"))), v.kind
    )


@operator()
def moved(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = axis_of(w, v)
    form = w.one_of(
        [
            f"flip({d})",
            f"roll(1, {d})",
            f"roll(-2, {d})",
            "contiguous()",
            "clone()",
            f"roll({w.size(v.dims[d])} // 2, {d})",
        ]
    )
    return Value(f"{v.name}.{form}", v.dims, v.kind)


@operator()
def triangle(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=2)) is None:
        return None
    return Value(f"{v.name}.{w.one_of(['tril()', 'triu(1)', 'tril(-1)'])}", v.dims, v.kind)


@operator()
def cut_by_mask(w: Writer) -> Value | None:
    """A causal mask, made of a size."""
    if (v := w.value(*FLOATS, rank=2)) is None:
        return None
    a, b = w.size(v.dims[-2]), w.size(v.dims[-1])
    return Value(f"{v.name} * (torch.arange({a})[:, None] >= torch.arange({b})[None])", v.dims, v.kind)


# --------------------------------------------------------------------------------------------- indices


@operator(2)
def gathered(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = axis_of(w, v)
    size = v.dims[d]
    text = w.size(size)
    rank = len(v.dims)
    places = w.one_of(
        [f"torch.arange({text})", f"torch.arange({text} - 1, -1, -1)", f"torch.arange({text}) // 2"]
    )
    form = w.pick(4)
    if form == 0:
        return Value(f"{v.name}.index_select({d}, {places})", v.dims, v.kind)
    if form == 1:
        return Value(f"{v.name}[{', '.join([':'] * d + [places])}]", v.dims, v.kind)
    if form == 2 and size.least > 0:
        i = w.value("index")
        if i is None or (d and len(i.dims) + rank > 5):
            return None
        index = f"{i.name}.remainder({text})"
        if d == 0:
            return Value(f"{v.name}[{index}]", (*i.dims, *v.dims[1:]), v.kind)
        if len(i.dims) == 1:
            return Value(f"{v.name}.index_select({d}, {index})", with_dims(v.dims, d, i.dims[0]), v.kind)
        return None
    view = ", ".join("-1" if k == d else "1" for k in range(rank))
    shape = ", ".join(w.size(x) for x in v.dims)
    if size.least == 0 and rank > 1 and any(x.least == 0 for x in v.dims):
        view = ", ".join(text if k == d else "1" for k in range(rank))
    return Value(f"{v.name}.gather({d}, ({places}).view({view}).expand({shape}))", v.dims, v.kind)


@operator(2)
def scattered(w: Writer) -> Value | None:
    if (v := w.value("whole", rank=1)) is None:
        return None
    d = axis_of(w, v)
    text = w.size(v.dims[d])
    places = w.one_of([f"torch.arange({text}) // 2", f"torch.arange({text})"])
    form = w.pick(3)
    if form == 0:
        return Value(bounded(f"{v.name}.index_add({d}, {places}, {v.name})", "whole"), v.dims, "whole")
    if form == 1:
        return Value(
            f"torch.zeros_like({v.name}).index_add_({d}, {places}, {v.name}).clamp(-9, 9)", v.dims, "whole"
        )
    if d:
        return None
    return Value(
        f"{v.name}.index_put(({places},), {v.name} + 1, accumulate=True).clamp(-9, 9)", v.dims, "whole"
    )


@operator(2)
def embedded(w: Writer) -> Value | None:
    i, table = w.value("index"), w.value(*FLOATS, rank=2)
    if i is None or table is None or len(table.dims) != 2 or len(i.dims) > 3:
        return None
    if table.dims[0].least == 0 and not w.chance(3):
        return None
    size = w.size(table.dims[0])
    return Value(
        f"F.embedding({i.name}.remainder({size}), {table.name})", (*i.dims, table.dims[1]), table.kind
    )


@operator()
def one_hot(w: Writer) -> Value | None:
    i = w.value("index")
    return None if i is None else Value(f"F.one_hot({i.name}.remainder(5), 5)", (*i.dims, dim("5")), "index")
