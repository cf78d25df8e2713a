"""What an operator returns, computed on meta tensors once and then looked up.

`infer` answers for one call: the fakes it gives and their specs. The answer depends only on the operator, the specs of its
tensor arguments and its other arguments (and the default dtype), so it is kept as an `Answer`: how to make each result
again. What is not kept: changes of metadata in place, views of another dtype, and results that are not tensors.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.graph import tensor_specs
from smelt.graph.operator_effects import DeclaredResult, Effects
from smelt.graph.pytree import leaves
from smelt.graph.tensor_specs import spec_of
from smelt.ops import result_specs as results
from smelt.ops.layouts import check_devices, on_metas
from smelt.ops.symbolic_results import symbols_in
from smelt.reasons import (
    DATA_DEPENDENT,
    DATA_DEPENDENT_SHAPE,
    UNSUPPORTED_CALL,
    UNSUPPORTED_EFFECT,
    UNSUPPORTED_OBJECT,
    ReasonKind,
)
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor, wrap
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.recorded_results import (
    CONJ_NEG_VIEWS,
    RecordedResult,
    ResultLeaf,
    fresh,
    number,
    leaf_spec,
    require_sizes,
    signed,
    view,
)
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.symbolic.symbolic_fake_results import SymbolicCall, spec_of_fake

_META = torch.device("meta")
_CPU = torch.device("cpu")
_MAX_ANSWERS = 50_000


_ANSWERS: dict[Any, RecordedResult] = {}


def trim() -> None:
    """Forgets old answers (and the interned specs that their keys name) when there are too many. Between traces only."""
    if tensor_specs.trim() or len(_ANSWERS) > _MAX_ANSWERS:
        _ANSWERS.clear()
        results.forget()


@cache
def stem(func: OpOverload) -> str:
    """Node name of an operator: `aten::add.Tensor` gives `add`."""
    return func._schema.name.split("::")[1].strip("_") or "op"


def infer(
    inputs: Inputs, func: OpOverload, info: Effects, key: Any, args: Args, kwargs: Kwargs
) -> tuple[Any, Any]:
    """(what the call returns, spec of its node). `key` is the operator with what a shape function may see of its arguments;
    `inputs` gives fakes for real tensors among them. Raises what the operator raises for such metadata."""
    key = (key, torch.get_default_dtype())
    answer = _ANSWERS.get(key)
    if answer is not None and answer.required:
        require_sizes(inputs, answer.required)
    if answer is None:
        out, answer = _FirstCall(inputs, func, info, args, kwargs).infer()
        if answer is None:
            return out, _loose_spec(out)
        _ANSWERS[key] = answer
        return out, answer.spec
    return _repeat(inputs, answer, info, args, kwargs), answer.spec


def _repeat(inputs: Inputs, answer: RecordedResult, info: Effects, args: Args, kwargs: Kwargs) -> Any:
    if answer.container is None:
        return _make(inputs, answer.leaves[0], info, args, kwargs)
    return answer.container(
        [_make(inputs, q, info, args, kwargs) for q in p]
        if type(p) is list
        else _make(inputs, p, info, args, kwargs)
        for p in answer.leaves
    )


def _make(inputs: Inputs, part: ResultLeaf, info: Effects, args: Args, kwargs: Kwargs) -> Any:
    kind, spec = part.kind, part.spec
    if kind == "fresh":
        assert spec is not None
        return fresh(inputs, spec)
    if kind == "none":
        return None
    if kind == "number":
        return number(inputs, part.size)
    source = info.argument(part.arg, args, kwargs)
    if part.index >= 0:
        source = source[part.index]
    if type(source) is not FakeTensor:  # native code holds the real one
        source = inputs.fake_for_native(source)
    if kind == "same":
        return source
    if kind in CONJ_NEG_VIEWS:
        return signed(kind, source)
    assert spec is not None
    return view(inputs, source, spec)


# ---- the first time


_NO_FAKE = "There was no fake impl registered"  # how torch reports a user's operator without a shape function


class _FirstCall:
    """A call whose answer is not known yet: the operator runs on meta tensors."""

    def __init__(self, inputs: Inputs, func: OpOverload, info: Effects, args: Args, kwargs: Kwargs) -> None:
        self.inputs = inputs
        self.func = func
        self.info = info
        self.args = args
        self.kwargs = kwargs
        self.device = self._device()

    def infer(self) -> tuple[Any, RecordedResult | None]:
        """(what the call returns, how to make it again; None when that cannot be kept)."""
        if self.info.changes_metadata:
            raise self._unsupported(UNSUPPORTED_EFFECT, f"{self.func} changes a tensor's shape in place")
        symbols = symbols_in((self.args, self.kwargs), spec_of_fake)
        if symbols:
            found = SymbolicCall(
                self.inputs, self.func, self.info, self.args, self.kwargs, self.device, symbols
            )
            answer = found.answer()
            require_sizes(self.inputs, answer.required)
            return _repeat(self.inputs, answer, self.info, self.args, self.kwargs), answer
        metas = [self._meta(a) for a in self.args]
        meta_kwargs = {k: self._meta(v) for k, v in self.kwargs.items()}
        if "device" in self.info.names:
            if meta_kwargs.get("device") is not None or not leaves(self.args, torch.Tensor):
                meta_kwargs["device"] = _META
            meta_kwargs.pop("pin_memory", None)
        if meta_kwargs.get("layout") not in (None, torch.strided):
            raise self._unsupported(UNSUPPORTED_OBJECT, f"a {meta_kwargs['layout']} tensor")
        return self._wrap_results(self._run(metas, meta_kwargs))

    def _unsupported(self, kind: ReasonKind, detail: str) -> Unsupported:
        return self.inputs.call.unsupported(kind, detail)

    def _device(self) -> torch.device:
        """Where results live: the `device` argument, else the first tensor's with dimensions, else the first tensor's."""
        asked = self.kwargs.get("device")
        if asked is not None:
            return canonical_device(asked)
        first = None
        for tensor in leaves((*self.args, *self.kwargs.values()), torch.Tensor):
            if tensor.dim():
                return tensor.device
            first = first or tensor.device
        return first or _CPU

    def _meta(self, value: Any) -> Any:
        if type(value) is FakeTensor:
            return value.elem
        if isinstance(value, (list, tuple)):
            return [self._meta(v) for v in value]
        if isinstance(value, torch.Tensor):
            return value if value.dim() == 0 and value.device == _CPU else self.inputs.fake_for_native(value).elem
        return value

    def _run(self, args: list[Any], kwargs: Kwargs) -> Any:
        """The operator on meta tensors, its refusals translated."""
        info = self.info
        if info.data_dependent:
            raise self._unsupported(DATA_DEPENDENT, str(self.func))
        try:
            if self._is_on_several_devices():
                check_devices(self.func, self.args, self.kwargs)
            return on_metas(self.func, args, kwargs, self.device)
        except (NotImplementedError, RuntimeError) as error:
            if info.dynamic_shape and (isinstance(error, NotImplementedError) or "meta tensor" in str(error)):
                raise self._unsupported(DATA_DEPENDENT_SHAPE, str(self.func)) from error
            if not isinstance(error, NotImplementedError) and _NO_FAKE not in str(error):
                raise
            raise self._unsupported(UNSUPPORTED_CALL, f"{self.func} has no shape function") from error

    def _is_on_several_devices(self) -> bool:
        """Whether a device must be asked whether it takes tensors of another; numbers on the CPU are taken by all."""
        tensors = leaves((*self.args, *self.kwargs.values()), torch.Tensor)
        return len({t.device for t in tensors if t.dim() or t.device != _CPU}) > 1

    def _wrap_results(self, out: Any) -> tuple[Any, RecordedResult | None]:
        results = self.info.results
        if not results:
            return None, None
        single = len(results) == 1 and not isinstance(out, tuple)
        items = [out] if single and not results[0].is_list else [list(out)] if single else list(out)
        wrapped: list[Any] = []
        parts: list[Any] = []
        for result, item in zip(results, items):
            if isinstance(item, (list, tuple)):
                pairs = [self._wrap(result, v, i) for i, v in enumerate(item)]
                wrapped.append([w for w, _ in pairs])
                parts.append([p for _, p in pairs])
            else:
                w, p = self._wrap(result, item, -1)
                wrapped.append(w)
                parts.append(p)
        value = wrapped[0] if single else tuple(wrapped)
        flat = [p for part in parts for p in (part if isinstance(part, list) else [part])]
        if any(p is None for p in flat):
            return value, None
        if single and isinstance(parts[0], list):
            return value, RecordedResult(list, parts[0], tuple(p.spec for p in parts[0]))
        spec = parts[0].spec if single else tuple(leaf_spec(p) for p in parts)
        return value, RecordedResult(None if single else tuple, parts, spec)

    def _wrap(self, result: DeclaredResult, item: Any, index: int) -> tuple[Any, ResultLeaf | None]:
        """(the fake of a result, or of element `index` of one; how to make it again, None when that cannot be kept)."""
        if item is None:
            return None, ResultLeaf("none")
        if not isinstance(item, torch.Tensor):
            return item, None
        if result.kind == "same":
            return self._given_back(result, index)
        if item.device.type != "meta" and not leaves((*self.args, *self.kwargs.values()), torch.Tensor):
            item = item.to(_META)  # of plain numbers: torch.div(5, 2)
        if item.device.type != "meta":  # a shape function that computes for real
            raise self._unsupported(UNSUPPORTED_CALL, f"an operator gave a real tensor of {item.device}")
        if result.kind == "view":
            return self._view(result, item)
        given = leaves((*self.args, *self.kwargs.values()), torch.Tensor)
        for source in given:  # an operator that gives its argument back
            if type(source) is FakeTensor and source.elem is item:
                return source, None
        spec = spec_of(item, self.device)
        return wrap(item, self.device, spec), ResultLeaf("fresh", spec)

    def _given_back(self, result: DeclaredResult, index: int) -> tuple[FakeTensor, ResultLeaf]:
        source = self.info.argument(result.arg, self.args, self.kwargs)
        position = -1
        if isinstance(source, (list, tuple)):
            source, position = source[index], index
        return source, ResultLeaf("same", source.spec, result.arg, position)

    def _view(self, result: DeclaredResult, item: torch.Tensor) -> tuple[FakeTensor, ResultLeaf | None]:
        source = self.info.argument(result.arg, self.args, self.kwargs)
        device = source.device if isinstance(source, torch.Tensor) else self.device
        spec = spec_of(item, device)
        keep = (
            isinstance(source, FakeTensor)
            and source.dtype == item.dtype
            and not (item.is_conj() or item.is_neg())
            and not (source.elem.is_conj() or source.elem.is_neg())  # the key does not tell such an argument
        )
        return wrap(item, device, spec), ResultLeaf("view", spec, result.arg) if keep else None


def canonical_device(device: torch.device | str | int) -> torch.device:
    """`device` with an index where that kind of device has one."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return device


def _loose_spec(value: Any) -> Any:
    if type(value) is FakeTensor:
        return value.spec
    if isinstance(value, (list, tuple)):
        return tuple(_loose_spec(v) for v in value)
    return None
