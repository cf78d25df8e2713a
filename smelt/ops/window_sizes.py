"""How many steps a window, or a range of numbers, makes: quotients of sizes, which no shape function for numbers gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import Expr, Size
from smelt.torch_private import OpOverload


def quotients(
    func: OpOverload, given: Mapping[str, Any], spec_of: Callable[[Any], TensorSpec | None]
) -> list[Expr]:
    """Sizes that the results of `func`, with these arguments by name, may have."""
    name = func._schema.name.removeprefix("aten::")
    made: list[Size] = []
    if name == "arange":
        made += _of_range(given)
    elif name in ("convolution", "_convolution", "mkldnn_convolution"):
        made += _of_convolution(given, spec_of)
    elif "pool" in name and "kernel_size" in given and "backward" not in name:
        spec = spec_of(given["self"])
        if spec is not None:
            made += _of_pool(given, spec)
    elif name == "_scaled_dot_product_efficient_attention":
        spec = spec_of(given["query"])
        if spec is not None:  # the logarithms of each row's sum, whole vectors of them
            made += [(spec.shape[2] + 31) // 32 * 32]
    elif name in ("split", "unsafe_split"):
        spec = spec_of(given["self"])
        if spec is not None:
            n, size = spec.shape[given.get("dim", 0)], given["split_size"]
            made += [n - n // size * size, n - size]
    return [size for size in made if isinstance(size, Expr)]


def _of_range(given: Mapping[str, Any]) -> Iterator[Size]:
    start, end, step = given.get("start", 0), given["end"], given.get("step", 1)
    if isinstance(step, int) and step > 0 and all(isinstance(n, (int, Expr)) for n in (start, end)):
        yield (end - start + (step - 1)) // step


def _steps(size: Size, window: Size, stride: int) -> Size:
    return (size - window) // stride + 1


def _of_convolution(given: Mapping[str, Any], spec_of: Callable[[Any], TensorSpec | None]) -> Iterator[Size]:
    image, weight = spec_of(given["input"]), spec_of(given["weight"])
    if image is None or weight is None:
        return
    for i, (size, kernel) in enumerate(zip(image.shape[2:], weight.shape[2:])):
        stride, padding, dilation = (_at(given[k], i) for k in ("stride", "padding", "dilation"))
        window = (kernel - 1) * dilation + 1
        if given["transposed"]:
            yield (size - 1) * stride - 2 * padding + window + _at(given["output_padding"], i)
        else:
            yield _steps(size + 2 * padding, window, stride)


def _of_pool(given: Mapping[str, Any], spec: TensorSpec) -> Iterator[Size]:
    kernels = given["kernel_size"]
    if isinstance(kernels, int):
        return
    for i, size in enumerate(spec.shape[len(spec.shape) - len(kernels) :]):
        stride = _at(given.get("stride") or kernels, i)
        window = (_at(kernels, i) - 1) * _at(given.get("dilation", 1), i) + 1
        yield _steps(size + 2 * _at(given.get("padding", 0), i), window, stride)


def _at(value: int | Sequence[int], i: int) -> int:
    """Of dimension i, where one number may stand for all."""
    if isinstance(value, int):
        return value
    return value[i] if i < len(value) else value[0]
