"""Result shapes that are products and quotients of sizes, which no shape function for numbers yields: the number of
steps of a window or range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from smelt.graph.ir import TensorSpec
from smelt.ops.convolution_settings import Convolution
from smelt.shapes.expr import Expr, Size

Arguments = Mapping[str, Any]  # arguments by name, with the defaults of those that the call leaves out
SpecOf = Callable[[Any], TensorSpec | None]
Shape = tuple[Size, ...]


def quotients(name: str, arguments: Arguments, spec_of: SpecOf) -> list[Expr]:
    """Candidate sizes of the results of the operator `name` (without its namespace)."""
    made: list[Size] = []
    if name in ("tril_indices", "triu_indices"):
        made += _of_triangle(arguments, upper=name == "triu_indices")
    elif name == "_scaled_dot_product_efficient_attention":
        spec = spec_of(arguments["query"])
        if spec is not None:  # the logarithms of each row's sum, whole vectors of them
            made += [(spec.shape[2] + 31) // 32 * 32]
    elif name in ("split", "unsafe_split"):
        spec = spec_of(arguments["self"])
        if spec is not None:
            n, size = spec.shape[arguments["dim"]], arguments["split_size"]
            made += [n - n // size * size, n - size]
    return [size for size in made if isinstance(size, Expr)]


def _of_triangle(arguments: Arguments, upper: bool) -> Iterator[Size]:
    """The elements of a square's triangle that ends at a diagonal: a smaller half square, or its complement."""
    n, offset = arguments["row"], -arguments["offset"] if upper else arguments["offset"]
    if n == arguments["col"]:
        side = n + offset if offset <= 0 else n - 1 - offset
        half = side * (side + 1) // 2
        yield half if offset <= 0 else n * n - half


def is_windowed(name: str) -> bool:
    """Whether the operator `name` raises for images smaller than its window, and otherwise returns at least one pixel."""
    return name in _WINDOWS or (name.endswith("_backward") and name.removesuffix("_backward") in _WINDOWS)


def known_shape(name: str, arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    """The result shape of the operator `name`; None for other operators, and if it depends on sizes in another way."""
    rule = _WINDOWS.get(name) or _OTHERS.get(name)
    return None if rule is None else rule(arguments, spec_of)


def least_sizes(name: str, arguments: Arguments, spec_of: SpecOf) -> list[tuple[Size, int]]:
    """Sizes with their minimum values, in addition to those of the results."""
    if name in _REFLECTING:
        spec, pads = spec_of(arguments["self"]), arguments["padding"]
        shape = () if spec is None else spec.shape
        return [(shape[-1 - i], max(pads[2 * i : 2 * i + 2]) + 1) for i in range(len(pads) // 2)]
    if name != "im2col":
        return []
    return [(steps, 1) for steps in _steps_of_columns(arguments, spec_of)]


def _steps(size: Size, window: Size, stride: int) -> Size:
    return (size - window) // stride + 1


def _of_convolution(arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    image, weight = spec_of(arguments["input"]), spec_of(arguments["weight"])
    if image is None or weight is None or len(image.shape) != len(weight.shape):
        return None
    c = Convolution(*(arguments[name] for name in Convolution._fields)).over(len(weight.shape) - 2)
    return tuple(c.shape(image.shape, weight.shape))


def _of_pool(arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    spec, kernels = spec_of(arguments["self"]), arguments["kernel_size"]
    if spec is None:
        return None
    first = len(spec.shape) - len(kernels)
    made = list(spec.shape[:first])
    for i, size in enumerate(spec.shape[first:]):
        stride, padding = _at(arguments.get("stride") or kernels, i), _at(arguments.get("padding", 0), i)
        window = (_at(kernels, i) - 1) * _at(arguments.get("dilation", 1), i) + 1
        if not arguments.get("ceil_mode"):
            made.append(_steps(size + 2 * padding, window, stride))
        elif window >= padding + stride:  # no window lies behind the image
            made.append(_steps(size + 2 * padding + (stride - 1), window, stride))
        else:
            return None
    return tuple(made)


def _of_padding(arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    spec, pads = spec_of(arguments["self"]), arguments["pad"] if "pad" in arguments else arguments["padding"]
    if spec is None:
        return None
    made = list(spec.shape)
    for i in range(len(pads) // 2):  # from the last dimension on
        made[-1 - i] = made[-1 - i] + pads[2 * i] + pads[2 * i + 1]
    return tuple(made)


def _of_output_size(arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    spec, sizes = spec_of(arguments["self"]), arguments["output_size"]
    return None if spec is None else (*spec.shape[: len(spec.shape) - len(sizes)], *sizes)


def _steps_of_columns(arguments: Arguments, spec_of: SpecOf) -> list[Size]:
    spec = spec_of(arguments["self"])
    kernel, dilation, padding, stride = (
        arguments[k] for k in ("kernel_size", "dilation", "padding", "stride")
    )
    return [
        _steps(size + 2 * _at(padding, i), (_at(kernel, i) - 1) * _at(dilation, i) + 1, _at(stride, i))
        for i, size in enumerate(() if spec is None else spec.shape[-2:])
    ]


def _of_columns(arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    spec, steps = spec_of(arguments["self"]), _steps_of_columns(arguments, spec_of)
    if spec is None or len(spec.shape) < 3:
        return None
    window = _at(arguments["kernel_size"], 0) * _at(arguments["kernel_size"], 1)
    return (*spec.shape[:-3], spec.shape[-3] * window, steps[0] * steps[1])


def _of_self(arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    spec = spec_of(arguments["self"])
    return None if spec is None else spec.shape


def _of_spectrum(arguments: Arguments, spec_of: SpecOf) -> Shape | None:
    """Result of the Fourier transform of real numbers, whose last dimension omits its mirrored half; or of the inverse
    transform, which receives the original length."""
    spec = spec_of(arguments["self"])
    if spec is None or not arguments["dim"]:
        return None
    shape, last = list(spec.shape), arguments["dim"][-1]
    if "last_dim_size" in arguments:
        shape[last] = arguments["last_dim_size"]
    elif arguments["onesided"]:
        shape[last] = shape[last] // 2 + 1
    return tuple(shape)


_REFLECTING = ("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
_Rules = dict[str, Callable[[Arguments, SpecOf], Shape | None]]
_WINDOWS: _Rules = {
    **dict.fromkeys(("convolution", "_convolution"), _of_convolution),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _of_pool),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), _of_pool),
    **dict.fromkeys(("constant_pad_nd", *_REFLECTING), _of_padding),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _of_output_size),
    **dict.fromkeys(
        (
            *(f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
            "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
            "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
        ),
        _of_output_size,
    ),
    "im2col": _of_columns,
}  # fmt: skip
_OTHERS: _Rules = {
    **dict.fromkeys((f"{name}_backward" for name in _REFLECTING), _of_self),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r"), _of_spectrum),
}  # fmt: skip


def _at(value: int | Sequence[int], i: int) -> int:
    """The setting of dimension i; one number may stand for all."""
    if isinstance(value, int):
        return value
    return value[i] if i < len(value) else value[0]
