"""Operators of programs that are valid for all sizes: views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.sized_operators import Operator, axis_of, listed, never_empty, signed, with_dims
from tests.harness.sized_values import Value, dim, of, product

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

OPERATORS: list[Operator] = []
operator = listed(OPERATORS)


@operator(2)
def permuted(w: Writer) -> Value | None:
    if (v := w.value(rank=2)) is None:
        return None
    a, b = axis_of(w, v), axis_of(w, v)
    dims = list(v.dims)
    if w.chance(3):
        order = [(k + 1 + a) % len(dims) for k in range(len(dims))]
        return Value(f"{v.name}.permute({', '.join(map(str, order))})", tuple(dims[k] for k in order), v.kind)
    if w.chance(3):
        dims.insert(b, dims.pop(a))
        return Value(f"{v.name}.movedim({a}, {b})", tuple(dims), v.kind)
    dims[a], dims[b] = dims[b], dims[a]
    rank = len(dims)
    return Value(f"{v.name}.transpose({signed(w, a, rank)}, {signed(w, b, rank)})", tuple(dims), v.kind)


@operator(3)
def merged(w: Writer) -> Value | None:
    """Neighbouring dimensions as one."""
    if (v := w.value(rank=2)) is None:
        return None
    first = w.pick(len(v.dims) - 1)
    last = first + 1 + w.pick(len(v.dims) - 1 - first)
    whole = product(*v.dims[first : last + 1])
    dims = (*v.dims[:first], whole, *v.dims[last + 1 :])
    if w.chance(2):
        return Value(f"{v.name}.flatten({first}, {last})", dims, v.kind)
    left = [d for k, d in enumerate(dims) if k != first]
    texts = [w.size(d) for d in dims]
    if all(d.least > 0 for d in left) and w.chance(2):
        texts[first] = "-1"
    elif w.chance(2):
        texts[first] = " * ".join(f"{v.name}.shape[{d}]" for d in range(first, last + 1))
    method = "contiguous().view" if w.chance(3) else "reshape"
    return Value(f"{v.name}.{method}({', '.join(texts)})", dims, v.kind)


@operator(3)
def split_dimension(w: Writer) -> Value | None:
    """A product as its factors."""
    found = [
        (v, d)
        for v in reversed(w.values)
        for d, size in enumerate(v.dims)
        if len(size.factors) > 1 or size.text in ("4", "8")
    ]
    if not found:
        return None
    v, d = w.one_of(found)
    size = v.dims[d]
    if size.is_number:
        parts = (dim("2"), dim(str(size.values[0] // 2)))
    else:
        at = 1 + w.pick(len(size.factors) - 1)
        parts = (product(*size.factors[:at]), product(*size.factors[at:]))
        if w.chance(3):
            parts = parts[::-1]
    texts = [w.size(p) for p in parts]
    if parts[1].least > 0 and w.chance(2):
        texts[0] = "-1"
    elif parts[0].least > 0 and w.chance(3):
        texts[1] = "-1"
    dims = with_dims(v.dims, d, *parts)
    if w.chance(2):
        return Value(f"{v.name}.unflatten({d}, ({', '.join(texts)}))", dims, v.kind)
    if any(t == "-1" for t in texts) and any(x.least == 0 for x in dims):
        return None
    every = [*map(w.size, v.dims[:d]), *texts, *map(w.size, v.dims[d + 1 :])]
    return Value(f"{v.name}.reshape({', '.join(every)})", dims, v.kind)


@operator()
def unsqueezed(w: Writer) -> Value | None:
    if (v := w.value()) is None:
        return None
    d = w.pick(len(v.dims) + 1)
    return Value(f"{v.name}.unsqueeze({d})", (*v.dims[:d], dim("1"), *v.dims[d:]), v.kind)


@operator()
def squeezed(w: Writer) -> Value | None:
    found = [(v, d) for v in w.values for d, size in enumerate(v.dims) if size == dim("1")]
    if not found:
        return None
    v, d = w.one_of(found)
    return Value(f"{v.name}.squeeze({d})", with_dims(v.dims, d), v.kind)


@operator(2)
def expanded(w: Writer) -> Value | None:
    if (v := w.value()) is None:
        return None
    found = [d for d, size in enumerate(v.dims) if size == dim("1")]
    sizes = [d for other in w.values for d in other.dims] + [dim("3")]
    new = w.one_of(sizes)
    if found and w.chance(2):
        d = w.one_of(found)
        texts = [w.size(new) if k == d else w.one_of(["-1", size.text]) for k, size in enumerate(v.dims)]
        return Value(f"{v.name}.expand({', '.join(texts)})", with_dims(v.dims, d, new), v.kind)
    text = f"{w.size(new)}, {', '.join(['-1'] * len(v.dims))}" if v.dims else w.size(new)
    return Value(f"{v.name}.expand({text})", (new, *v.dims), v.kind)


@operator(3)
def sliced(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = axis_of(w, v)
    size = v.dims[d]
    text = w.size(size)
    form, new = w.one_of(
        [
            ("1:", of("max({} - 1, 0)", size)),
            (":-1", of("max({} - 1, 0)", size)),
            (":2", of("min({}, 2)", size)),
            ("::2", of("({} + 1) // 2", size)),
            ("1::3", of("(max({} - 1, 0) + 2) // 3", size)),
            (f"{text} // 2:", of("{0} - {0} // 2", size)),
            (f":{text} // 2", of("{} // 2", size)),
            ("-2:", of("min({}, 2)", size)),
            (f":{text}", size),
            ("1:-1", of("max({} - 2, 0)", size)),
        ]
    )
    if w.chance(4) and form == "1:":
        return Value(f"{v.name}.narrow({d}, 0, {text})", v.dims, v.kind)
    return Value(f"{v.name}[{', '.join([':'] * d + [form])}]", with_dims(v.dims, d, new), v.kind)


@operator(2)
def selected(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None or (d := never_empty(w, v)) is None:
        return None
    size = w.size(v.dims[d])
    place = w.one_of(["0", "-1", f"{size} // 2", f"{size} - 1"])
    if w.chance(3):
        return Value(f"{v.name}.select({signed(w, d, len(v.dims))}, {place})", with_dims(v.dims, d), v.kind)
    return Value(f"{v.name}[{', '.join([':'] * d + [place])}]", with_dims(v.dims, d), v.kind)


@operator()
def diagonal(w: Writer) -> Value | None:
    if (v := w.value(rank=2)) is None:
        return None
    a, b = len(v.dims) - 2, len(v.dims) - 1
    new = of("min({}, {})", v.dims[a], v.dims[b])
    return Value(f"{v.name}.diagonal(0, {a}, {b})", (*v.dims[:a], new), v.kind)


@operator(2)
def windows(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = axis_of(w, v)
    size = v.dims[d]
    if size.least < 2 and not w.chance(4):
        return None
    step = 1 + w.pick(2)
    new = of(f"({{}} - 2) // {step} + 1", size)
    return Value(f"{v.name}.unfold({d}, 2, {step})", (*with_dims(v.dims, d, new), dim("2")), v.kind)


@operator(2)
def piece(w: Writer) -> Value | None:
    """One of several parts."""
    if (v := w.value(rank=1)) is None:
        return None
    d = axis_of(w, v)
    size = v.dims[d]
    if size.is_number and size.values[0] % 2 == 0:
        half = dim(str(size.values[0] // 2))
        return Value(f"{v.name}.chunk(2, {d})[{w.pick(2)}]", with_dims(v.dims, d, half), v.kind)
    form, new = w.one_of(
        [
            (f"chunk(2, {d})[0]", of("({} + 1) // 2", size)),
            (f"split(2, {d})[0]", of("min({}, 2)", size)),
            (f"tensor_split(2, {d})[1]", of("{} // 2", size)),
            (f"split({w.size(size)} // 2 + 1, {d})[0]", of("min({0}, {0} // 2 + 1)", size)),
            (f"split([1, {w.size(size)} - 1], {d})[1]", of("{} - 1", size)),
        ]
    )
    if "- 1" in form and size.least < 1:
        return None
    return Value(f"{v.name}.{form}", with_dims(v.dims, d, new), v.kind)


@operator()
def unbound(w: Writer) -> Value | None:
    found = [
        (v, d) for v in w.values for d, size in enumerate(v.dims) if size.is_number and 1 < size.values[0] < 9
    ]
    if not found:
        return None
    v, d = w.one_of(found)
    return Value(f"{v.name}.unbind({d})[{w.pick(2)}]", with_dims(v.dims, d), v.kind)
