"""Operators of programs that are valid for all sizes: products, attention and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.sized_operators import FLOATS, Operator, bounded, least, listed
from tests.harness.sized_values import Value, broadcast, dim, of, product

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

OPERATORS: list[Operator] = []
operator = listed(OPERATORS)


@operator(4)
def product_of(w: Writer) -> Value | None:
    if (a := w.value(*FLOATS, rank=2)) is None:
        return None
    found = [b for b in reversed(w.values) if b.kind in FLOATS and b.dims]
    options = []
    for b in found:
        kind = "whole" if a.kind == b.kind == "whole" else "rough"
        if a.dims[-1] == b.dims[0] and len(b.dims) == 1:
            options.append((f"{a.name} @ {b.name}", a.dims[:-1], kind))
        if len(b.dims) < 2:
            continue
        for text, dims in (
            (b.name, b.dims),
            (f"{b.name}.transpose(-1, -2)", (*b.dims[:-2], b.dims[-1], b.dims[-2])),
        ):
            batch = broadcast(a.dims[:-2], dims[:-2])
            if batch is not None and a.dims[-1] == dims[-2]:
                options.append((f"{a.name} @ {text}", (*batch, a.dims[-2], dims[-1]), kind))
        if len(b.dims) == 2 and a.dims[-1] == b.dims[-1]:
            options.append((f"F.linear({a.name}, {b.name})", (*a.dims[:-1], b.dims[0]), kind))
    if not options:
        return None
    text, dims, kind = w.one_of(options)
    return Value(bounded(text, kind), dims, kind)


@operator()
def einsum(w: Writer) -> Value | None:
    a, b = w.value(*FLOATS, rank=2), w.value(*FLOATS, rank=2)
    if a is None or b is None or len(a.dims) != 2 or len(b.dims) != 2:
        return None
    kind = "whole" if a.kind == b.kind == "whole" else "rough"
    if a.dims[1] == b.dims[1]:
        text = f"torch.einsum('ij,kj->ki', {a.name}, {b.name})"
        return Value(bounded(text, kind), (b.dims[0], a.dims[0]), kind)
    if a.dims[0] == b.dims[0]:
        return Value(
            bounded(f"torch.einsum('ij,ik->ijk', {a.name}, {b.name})", kind), (*a.dims, b.dims[1]), kind
        )
    return None


@operator()
def added_product(w: Writer) -> Value | None:
    """bias + a @ a'."""
    if (v := w.value(*FLOATS, rank=2)) is None:
        return None
    n = w.size(v.dims[-2])
    if len(v.dims) == 2:
        text = f"torch.addmm(torch.ones({n}), {v.name}, {v.name}.t())"
    elif len(v.dims) == 3:
        text = f"torch.baddbmm(torch.ones({n}), {v.name}, {v.name}.mT)"
    else:
        return None
    return Value(bounded(text, v.kind), (*v.dims[:-1], v.dims[-2]), v.kind)


@operator()
def outer(w: Writer) -> Value | None:
    a, b = w.value(*FLOATS, rank=1), w.value(*FLOATS, rank=1)
    if a is None or b is None or len(a.dims) != 1 or len(b.dims) != 1:
        return None
    kind = "whole" if a.kind == b.kind == "whole" else "rough"
    return Value(bounded(f"torch.outer({a.name}, {b.name})", kind), a.dims + b.dims, kind)


@operator(2)
def attention(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=3)) is None or (least(v) == 0 and not w.chance(3)):
        return None
    causal = w.one_of(["", ", is_causal=True"])
    return Value(
        f"F.scaled_dot_product_attention({v.name}, {v.name} * 0.5, {v.name}{causal})", v.dims, "rough"
    )


@operator(2)
def convolved(w: Writer) -> Value | None:
    """Windows along the last dimension, of one channel."""
    if (v := w.value(*FLOATS, rank=1)) is None or (v.dims[-1].least < 2 and not w.chance(3)):
        return None
    size = v.dims[-1]
    count = " * ".join(f"{v.name}.shape[{d}]" for d in range(len(v.dims) - 1))
    rows = f"{v.name}.reshape({count or '1'}, 1, {w.size(size)})"
    total = product(*v.dims[:-1])
    form, new, kind = w.one_of(
        [
            ("F.conv1d({}, torch.ones(2, 1, 2, dtype={}.dtype))", of("{} - 1", size), v.kind),
            ("F.avg_pool1d({}, 2)", of("{} // 2", size), "rough"),
            ("F.max_pool1d({}, 2, 1)", of("{} - 1", size), v.kind),
            (
                "F.conv1d({}, torch.ones(3, 1, 3, dtype={}.dtype), stride=2, padding=1)",
                of("({} - 1) // 2 + 1", size),
                v.kind,
            ),
            ("F.interpolate({}, scale_factor=2.0)", of("{} * 2", size), v.kind),
        ]
    )
    if (total.least == 0 and w.pick(4) == 0) or ("max_pool" in form and v.kind == "rough"):
        return None
    channels = dim("2" if "2, 1, 2" in form else "3" if "3, 1, 3" in form else "1")
    text = form.format(rows, v.name)
    return Value(bounded(text, kind), (total, channels, new), kind)
