"""What programs that are valid for all sizes are made of: each operator writes one line of such a program.

An operator is given the writer, and gives the expression of a new variable, True if it wrote lines itself, or None where it
cannot be applied. Operators that raise for tensors without elements are mostly applied to dimensions that never are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.harness.sized_values import Dim, Value, broadcast, dim, of, product

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

Operator = Callable[["Writer"], "Value | bool | None"]
OPERATORS: list[Operator] = []
FLOATS = ("whole", "rough")
EXACT = ("whole", "index")
ANY = ("whole", "rough", "index", "mask")


def operator(weight: int = 1) -> Callable[[Operator], Operator]:
    """Lists a function `weight` times."""

    def add(function: Operator) -> Operator:
        OPERATORS.extend([function] * weight)
        return function

    return add


def _axis(w: Writer, v: Value) -> int:
    return w.pick(len(v.dims))


def _full(w: Writer, v: Value) -> int | None:
    """A dimension that is never 0, mostly."""
    found = [d for d, size in enumerate(v.dims) if size.least > 0]
    if found:
        return int(w.one_of(found))
    return _axis(w, v) if w.chance(8) else None


def _signed(w: Writer, d: int, rank: int) -> int:
    """The dimension, perhaps counted from the end."""
    return d - rank if w.chance(3) else d


def _least(v: Value) -> int:
    return min((d.least for d in v.dims), default=1)


def _with(dims: tuple[Dim, ...], d: int, *new: Dim) -> tuple[Dim, ...]:
    return (*dims[:d], *new, *dims[d + 1 :])


def _bounded(text: str, kind: str) -> str:
    """A value that stays small."""
    return f"({text}).clamp(-9, 9)" if kind in EXACT else f"torch.tanh({text})"


# ---------------------------------------------------------------------------------------------------- elementwise


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
        if b.kind != "mask" and (dims := broadcast(a.dims, b.dims)) is not None
    ]
    b, dims = w.one_of(found)
    if w.chance(2):
        a, b = b, a
    kind = "rough" if "rough" in (a.kind, b.kind) else "whole" if "whole" in (a.kind, b.kind) else "index"
    forms = ["{} + {}", "{} - {}", "{} * {}", "torch.add({}, {}, alpha=2)"]
    if kind != "rough":
        forms += ["torch.maximum({}, {})", "torch.minimum({}, {})"]
    return Value(_bounded(w.one_of(forms).format(a.name, b.name), kind), dims, kind)


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
        _bounded(w.one_of(["{} + {}", "{} * {}", "{} - {} // 2"]).format(v.name, size), v.kind),
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


# ---------------------------------------------------------------------------------------------------------- views


@operator(2)
def permuted(w: Writer) -> Value | None:
    if (v := w.value(rank=2)) is None:
        return None
    a, b = _axis(w, v), _axis(w, v)
    dims = list(v.dims)
    if w.chance(3):
        order = [(k + 1 + a) % len(dims) for k in range(len(dims))]
        return Value(f"{v.name}.permute({', '.join(map(str, order))})", tuple(dims[k] for k in order), v.kind)
    if w.chance(3):
        dims.insert(b, dims.pop(a))
        return Value(f"{v.name}.movedim({a}, {b})", tuple(dims), v.kind)
    dims[a], dims[b] = dims[b], dims[a]
    rank = len(dims)
    return Value(f"{v.name}.transpose({_signed(w, a, rank)}, {_signed(w, b, rank)})", tuple(dims), v.kind)


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
    dims = _with(v.dims, d, *parts)
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
    return Value(f"{v.name}.squeeze({d})", _with(v.dims, d), v.kind)


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
        return Value(f"{v.name}.expand({', '.join(texts)})", _with(v.dims, d, new), v.kind)
    text = f"{w.size(new)}, {', '.join(['-1'] * len(v.dims))}" if v.dims else w.size(new)
    return Value(f"{v.name}.expand({text})", (new, *v.dims), v.kind)


@operator(3)
def sliced(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = _axis(w, v)
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
    return Value(f"{v.name}[{', '.join([':'] * d + [form])}]", _with(v.dims, d, new), v.kind)


@operator(2)
def selected(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None or (d := _full(w, v)) is None:
        return None
    size = w.size(v.dims[d])
    place = w.one_of(["0", "-1", f"{size} // 2", f"{size} - 1"])
    if w.chance(3):
        return Value(f"{v.name}.select({_signed(w, d, len(v.dims))}, {place})", _with(v.dims, d), v.kind)
    return Value(f"{v.name}[{', '.join([':'] * d + [place])}]", _with(v.dims, d), v.kind)


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
    d = _axis(w, v)
    size = v.dims[d]
    if size.least < 2 and not w.chance(4):
        return None
    step = 1 + w.pick(2)
    new = of(f"({{}} - 2) // {step} + 1", size)
    return Value(f"{v.name}.unfold({d}, 2, {step})", (*_with(v.dims, d, new), dim("2")), v.kind)


@operator(2)
def piece(w: Writer) -> Value | None:
    """One of several parts."""
    if (v := w.value(rank=1)) is None:
        return None
    d = _axis(w, v)
    size = v.dims[d]
    if size.is_number and size.values[0] % 2 == 0:
        half = dim(str(size.values[0] // 2))
        return Value(f"{v.name}.chunk(2, {d})[{w.pick(2)}]", _with(v.dims, d, half), v.kind)
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
    return Value(f"{v.name}.{form}", _with(v.dims, d, new), v.kind)


@operator()
def unbound(w: Writer) -> Value | None:
    found = [
        (v, d) for v in w.values for d, size in enumerate(v.dims) if size.is_number and 1 < size.values[0] < 9
    ]
    if not found:
        return None
    v, d = w.one_of(found)
    return Value(f"{v.name}.unbind({d})[{w.pick(2)}]", _with(v.dims, d), v.kind)


# --------------------------------------------------------------------------------------------- moves of elements


@operator(2)
def joined(w: Writer) -> Value | None:
    if (a := w.value(rank=1)) is None:
        return None
    d = _axis(w, a)
    found = [
        b
        for b in reversed(w.values)
        if b.kind == a.kind and len(b.dims) == len(a.dims) and _with(b.dims, d) == _with(a.dims, d)
    ]
    b = w.one_of(found)
    return Value(
        f"torch.cat([{a.name}, {b.name}], {d})", _with(a.dims, d, of("{} + {}", a.dims[d], b.dims[d])), a.kind
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
    d = _axis(w, v)
    if w.chance(2):
        times = [dim("2") if k == d else dim("1") for k in range(len(v.dims))]
        new = product(dim("2"), v.dims[d])
        return Value(f"{v.name}.repeat({', '.join(t.text for t in times)})", _with(v.dims, d, new), v.kind)
    return Value(
        f"{v.name}.repeat_interleave(2, {d})", _with(v.dims, d, product(v.dims[d], dim("2"))), v.kind
    )


@operator()
def moved(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = _axis(w, v)
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


# -------------------------------------------------------------------------------------------------------- indices


@operator(2)
def gathered(w: Writer) -> Value | None:
    if (v := w.value(rank=1)) is None:
        return None
    d = _axis(w, v)
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
            return Value(f"{v.name}.index_select({d}, {index})", _with(v.dims, d, i.dims[0]), v.kind)
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
    d = _axis(w, v)
    text = w.size(v.dims[d])
    places = w.one_of([f"torch.arange({text}) // 2", f"torch.arange({text})"])
    form = w.pick(3)
    if form == 0:
        return Value(_bounded(f"{v.name}.index_add({d}, {places}, {v.name})", "whole"), v.dims, "whole")
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


# ----------------------------------------------------------------------------------------------------- reductions


@operator(4)
def reduced(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=1)) is None:
        return None
    d = _axis(w, v)
    keep = w.chance(3)
    dims = _with(v.dims, d, dim("1")) if keep else _with(v.dims, d)
    options = f"{_signed(w, d, len(v.dims))}{', keepdim=True' if keep else ''}"
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
    text = _bounded(text, kind) if form in ("sum", "logsumexp", "norm") else text
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
    return Value(_bounded(f"{v.name}.sum({options})", v.kind), dims, v.kind)


@operator()
def counted(w: Writer) -> Value | None:
    """Reductions of masks and indices."""
    if (v := w.value("mask", "index", "whole", rank=1)) is None:
        return None
    d = _full(w, v) if v.kind != "mask" else _axis(w, v)
    if d is None:
        return None
    dims = _with(v.dims, d)
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
    d = _axis(w, v)
    return Value(_bounded(f"{v.name}.cumsum({d})", v.kind), v.dims, v.kind)


@operator()
def ordered(w: Writer) -> Value | None:
    if (v := w.value(*EXACT, rank=1)) is None:
        return None
    d = _axis(w, v)
    if v.dims[d].least >= 2 and w.chance(2):
        return Value(f"{v.name}.topk(2, {d})[0]", _with(v.dims, d, dim("2")), v.kind)
    return Value(
        f"{v.name}.sort(dim={d}, stable=True{w.one_of(['', ', descending=True'])})[{w.pick(1)}]",
        v.dims,
        v.kind,
    )


# ---------------------------------------------------------------------------------------------------------- rows


@operator(2)
def softmax(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=1)) is None:
        return None
    d = _axis(w, v)
    form = w.one_of(["softmax", "log_softmax"])
    text = f"{v.name}.{form}({_signed(w, d, len(v.dims))})"
    return Value(text if form == "softmax" else _bounded(text, "rough"), v.dims, "rough")


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
    if len(v.dims) > 1 and (_least(v) > 0 or w.chance(3)):
        forms.append(f"F.group_norm({v.name}, 1, eps=0.1)")
    if len(v.dims) == 3 and (_least(v) > 1 or w.chance(2)):
        forms.append(f"F.instance_norm({v.name}, eps=0.1)")
    if len(v.dims) in (2, 3) and (_least(v) > 1 or w.chance(3)):
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


# ------------------------------------------------------------------------------------------------------- products


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
    return Value(_bounded(text, kind), dims, kind)


@operator()
def einsum(w: Writer) -> Value | None:
    a, b = w.value(*FLOATS, rank=2), w.value(*FLOATS, rank=2)
    if a is None or b is None or len(a.dims) != 2 or len(b.dims) != 2:
        return None
    kind = "whole" if a.kind == b.kind == "whole" else "rough"
    if a.dims[1] == b.dims[1]:
        text = f"torch.einsum('ij,kj->ki', {a.name}, {b.name})"
        return Value(_bounded(text, kind), (b.dims[0], a.dims[0]), kind)
    if a.dims[0] == b.dims[0]:
        return Value(
            _bounded(f"torch.einsum('ij,ik->ijk', {a.name}, {b.name})", kind), (*a.dims, b.dims[1]), kind
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
    return Value(_bounded(text, v.kind), (*v.dims[:-1], v.dims[-2]), v.kind)


@operator()
def outer(w: Writer) -> Value | None:
    a, b = w.value(*FLOATS, rank=1), w.value(*FLOATS, rank=1)
    if a is None or b is None or len(a.dims) != 1 or len(b.dims) != 1:
        return None
    kind = "whole" if a.kind == b.kind == "whole" else "rough"
    return Value(_bounded(f"torch.outer({a.name}, {b.name})", kind), a.dims + b.dims, kind)


@operator(2)
def attention(w: Writer) -> Value | None:
    if (v := w.value(*FLOATS, rank=3)) is None or (_least(v) == 0 and not w.chance(3)):
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
    return Value(_bounded(text, kind), (total, channels, new), kind)


# ------------------------------------------------------------------------------------------------ made of sizes


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


# -------------------------------------------------------------------------------------------------------- writes


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
    d = _axis(w, v)
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


# ------------------------------------------------------------------------------------------------------ conditions


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
    d = _axis(w, v)
    w.lines.append(
        f"parts = [part * k for k, part in enumerate(torch.split({v.name}, {w.size(v.dims[d])} // 2 + 1, {d}))]"
    )
    return Value(f"torch.cat(parts, {d})", v.dims, v.kind)
