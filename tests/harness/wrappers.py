"""Traceable wrapper subclasses, and a comparison of tensors of such classes."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten


class Pair(torch.Tensor):
    """Two tensors; each operator runs on both. `label` is part of its context."""

    @staticmethod
    def __new__(cls, first, second, label=""):
        return torch.Tensor._make_wrapper_subclass(
            cls, first.size(), strides=first.stride(), dtype=first.dtype, device=first.device
        )

    def __init__(self, first, second, label=""):
        self.first, self.second, self.label = first, second, label

    def __tensor_flatten__(self):
        return ["first", "second"], self.label

    @staticmethod
    def __tensor_unflatten__(inner, label, size, stride):
        return Pair(inner["first"], inner["second"], label)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if not all(issubclass(kind, cls) for kind in types):
            return NotImplemented
        outs = [
            func(*tree_map_only(cls, part, args), **tree_map_only(cls, part, kwargs or {}))
            for part in (lambda pair: pair.first, lambda pair: pair.second)
        ]
        if not isinstance(outs[0], torch.Tensor):
            return tuple(cls(*both) for both in zip(*outs)) if isinstance(outs[0], (tuple, list)) else outs[0]
        return return_and_correct_aliasing(func, args, kwargs or {}, cls(*outs))

    def __repr__(self):
        return f"Pair({self.first}, {self.second}, {self.label!r})"

    def swapped(self):
        return Pair(self.second, self.first, self.label)


class Quantized(torch.Tensor):
    """A weight as int8 and a scale for each row, which `linear` takes."""

    @staticmethod
    def __new__(cls, data, scale, bits=8):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            dtype=scale.dtype,
            device=data.device,
            requires_grad=False,
        )

    def __init__(self, data, scale, bits=8):
        self.data_8, self.scale, self.bits = data, scale, bits

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantize(self):
        return self.data_8.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["data_8", "scale"], (self.bits,)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size=None, stride=None):
        return cls(inner["data_8"], inner["scale"], *context)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, *bias = args
            return F.linear(x, weight.dequantize(), *bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func in (aten.detach.default, aten.clone.default):
            (w,) = args
            copied = cls(func(w.data_8), func(w.scale), w.bits)
            return return_and_correct_aliasing(func, args, kwargs or {}, copied)
        if func is aten.t.default:
            return args[0].dequantize().t()
        if func is aten.mm.default:
            return func(*[a.dequantize() if isinstance(a, cls) else a for a in args])
        raise NotImplementedError(f"{func}")

    def __repr__(self):
        return f"Quantized({self.data_8}, {self.scale}, {self.bits})"


class Plainly(Quantized):
    """Its operators go to `__torch_dispatch__` alone."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def shown(value):
    """What the value holds, with classes and metadata, for comparison: numbers to four decimals."""
    if isinstance(value, torch.Tensor):
        metadata = type(value), value.dtype, tuple(value.shape), tuple(value.stride()), value.requires_grad
        if hasattr(value, "__tensor_flatten__"):
            return metadata, {name: shown(part) for name, part in vars(value).items()}
        return metadata, value.detach().double().mul(1e4).round().tolist()
    if isinstance(value, (list, tuple)):
        return type(value), [shown(part) for part in value]
    return {k: shown(v) for k, v in value.items()} if isinstance(value, dict) else value


def agree(mine, theirs):
    """Whether what `shown` returned is equal, but for rounding."""
    if isinstance(mine, float):
        return abs(mine - theirs) <= 1
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(theirs) and all(map(agree, mine, theirs))
    if isinstance(mine, dict):
        return mine.keys() == theirs.keys() and all(agree(v, theirs[k]) for k, v in mine.items())
    return mine == theirs
