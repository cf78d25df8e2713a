"""The result of an operator on fakes, computed on meta tensors once and then cached.

`infer` returns the fakes of one call and their specs. They depend only on the operator, the specs of its tensor
arguments and its other arguments (and the default dtype), so a `RecordedResult` is cached: how to create each result.
Not cached: changes of metadata in place, views of another dtype, and results that are not tensors.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from smelt.errors import CreatesSizes, Unsupported
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
    conj_neg_fake,
    fresh_fake,
    leaf_spec,
    number_of_size,
    require_bounds,
    view_fake,
)
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.symbolic.symbolic_fake_results import SymbolicCall, spec_of_fake

_META = torch.device("meta")
_CPU = torch.device("cpu")
_MAX_CACHED = 50_000


_CACHE: dict[Any, RecordedResult] = {}


def trim() -> None:
    """Drop the cached results (and the interned specs that their keys name) when there are too many. Between traces
    only."""
    if tensor_specs.trim() or len(_CACHE) > _MAX_CACHED:
        _CACHE.clear()
        results.forget()


@cache
def stem(func: OpOverload) -> str:
    """Node name of an operator: `add` for `aten::add.Tensor`."""
    return func._schema.name.split("::")[1].strip("_") or "op"


def infer(
    inputs: Inputs, func: OpOverload, info: Effects, key: Any, args: Args, kwargs: Kwargs
) -> tuple[Any, Any]:
    """(result of the call, spec of its node). `key` is the operator with everything that a shape function may read of
    its arguments; `inputs` has the fakes of real tensors among them. Raises what the operator raises for such
    metadata."""
    key = (key, torch.get_default_dtype())
    recorded = _CACHE.get(key)
    if recorded is not None and recorded.size_bounds:
        require_bounds(inputs, recorded.size_bounds)
    if recorded is None:
        out, recorded = _FirstCall(inputs, func, info, args, kwargs).infer()
        if recorded is None:
            return out, _spec_of_result(out)
        _CACHE[key] = recorded
        return out, recorded.spec
    return _replay(inputs, recorded, info, args, kwargs), recorded.spec


def _replay(inputs: Inputs, recorded: RecordedResult, info: Effects, args: Args, kwargs: Kwargs) -> Any:
    """The result of another call with the same key."""
    if recorded.container is None:
        return _replay_leaf(inputs, recorded.leaves[0], info, args, kwargs)
    return recorded.container(
        [_replay_leaf(inputs, item, info, args, kwargs) for item in leaf]
        if type(leaf) is list
        else _replay_leaf(inputs, leaf, info, args, kwargs)
        for leaf in recorded.leaves
    )


def _replay_leaf(inputs: Inputs, leaf: ResultLeaf, info: Effects, args: Args, kwargs: Kwargs) -> Any:
    kind, spec = leaf.kind, leaf.spec
    if kind == "fresh":
        assert spec is not None
        return fresh_fake(inputs, spec)
    if kind == "none":
        return None
    if kind == "number":
        return number_of_size(inputs, leaf.size)
    source = info.argument(leaf.arg, args, kwargs)
    if leaf.index >= 0:
        source = source[leaf.index]
    if type(source) is not FakeTensor:  # native code holds the real one
        source = inputs.fake_for_native(source)
    if kind == "same":
        return source
    if kind in CONJ_NEG_VIEWS:
        return conj_neg_fake(kind, source)
    assert spec is not None
    return view_fake(inputs, source, spec)


# ---- the first call


_NEEDS_CONTEXT = "make sure the FakeTensor and/or meta kernel does not call torch.library.get_ctx()"
_NO_FAKE = "There was no fake impl registered"  # torch's error for a custom operator without a shape function


class _FirstCall:
    """A call without a cached result: the operator runs on meta tensors."""

    def __init__(self, inputs: Inputs, func: OpOverload, info: Effects, args: Args, kwargs: Kwargs) -> None:
        self.inputs = inputs
        self.func = func
        self.info = info
        self.args = args
        self.kwargs = kwargs
        self.device = self._device()

    def infer(self) -> tuple[Any, RecordedResult | None]:
        """(result of the call, its recorded form; None if it cannot be cached)."""
        if self.info.changes_metadata:
            raise self._resizes()
        symbols = symbols_in((self.args, self.kwargs), spec_of_fake)
        if symbols:
            call = SymbolicCall(
                self.inputs, self.func, self.info, self.args, self.kwargs, self.device, symbols
            )
            recorded = call.infer()
            require_bounds(self.inputs, recorded.size_bounds)
            return _replay(self.inputs, recorded, self.info, self.args, self.kwargs), recorded
        metas = [self._meta(a) for a in self.args]
        meta_kwargs = {k: self._meta(v) for k, v in self.kwargs.items()}
        if "device" in self.info.names:
            if meta_kwargs.get("device") is not None or not leaves(self.args, torch.Tensor):
                meta_kwargs["device"] = _META
            meta_kwargs.pop("pin_memory", None)
        if meta_kwargs.get("layout") not in (None, torch.strided):
            raise self._unsupported(UNSUPPORTED_OBJECT, f"a {meta_kwargs['layout']} tensor")
        return self._wrap_results(self._run(metas, meta_kwargs))

    def _resizes(self) -> Unsupported:
        return self._unsupported(UNSUPPORTED_EFFECT, f"{self.func} changes a tensor's shape in place")

    def _unsupported(self, kind: ReasonKind, detail: str) -> Unsupported:
        return self.inputs.call.unsupported(kind, detail)

    def _device(self) -> torch.device:
        """The device of the results: the `device` argument, else that of the first tensor with dimensions, else of the
        first tensor."""
        device = self.kwargs.get("device")
        if device is not None:
            return canonical_device(device)
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
            return (
                value
                if value.dim() == 0 and value.device == _CPU
                else self.inputs.fake_for_native(value).elem
            )
        return value

    def _run(self, args: list[Any], kwargs: Kwargs) -> Any:
        """Run the operator on meta tensors; errors become Unsupported."""
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
            if _NEEDS_CONTEXT in str(error):
                raise CreatesSizes(self._unsupported(DATA_DEPENDENT_SHAPE, str(self.func)).reason) from error
            if not isinstance(error, NotImplementedError) and _NO_FAKE not in str(error):
                raise
            if info.only_writes:
                return self._written()
            raise self._unsupported(UNSUPPORTED_CALL, f"{self.func} has no shape function") from error

    def _written(self) -> Any:
        """The written arguments that an operator returns; None if it returns nothing."""
        found = [self.info.argument(r.arg, self.args, self.kwargs) for r in self.info.results]
        return None if not found else found[0] if len(found) == 1 else tuple(found)

    def _is_on_several_devices(self) -> bool:
        """Whether the operator mixes devices. Scalar CPU tensors are accepted everywhere."""
        tensors = leaves((*self.args, *self.kwargs.values()), torch.Tensor)
        return len({t.device for t in tensors if t.dim() or t.device != _CPU}) > 1

    def _wrap_results(self, out: Any) -> tuple[Any, RecordedResult | None]:
        results = self.info.results
        if not results:
            return None, None
        single = len(results) == 1 and not isinstance(out, tuple)
        items = [out] if single and not results[0].is_list else [list(out)] if single else list(out)
        wrapped: list[Any] = []
        recorded: list[Any] = []
        for result, item in zip(results, items):
            if isinstance(item, (list, tuple)):
                pairs = [self._wrap(result, v, i) for i, v in enumerate(item)]
                wrapped.append([w for w, _ in pairs])
                recorded.append([leaf for _, leaf in pairs])
            else:
                fake, leaf = self._wrap(result, item, -1)
                wrapped.append(fake)
                recorded.append(leaf)
        value = wrapped[0] if single else tuple(wrapped)
        flat = [leaf for item in recorded for leaf in (item if isinstance(item, list) else [item])]
        if any(leaf is None for leaf in flat):
            return value, None
        if single and isinstance(recorded[0], list):
            return value, RecordedResult(list, recorded[0], leaf_spec(recorded[0]))
        spec = recorded[0].spec if single else tuple(map(leaf_spec, recorded))
        return value, RecordedResult(None if single else tuple, recorded, spec)

    def _wrap(self, result: DeclaredResult, item: Any, index: int) -> tuple[Any, ResultLeaf | None]:
        """(fake of a result, or of element `index` of a list result; its recorded form, None if it cannot be
        cached)."""
        if item is None:
            return None, ResultLeaf("none")
        if not isinstance(item, torch.Tensor):
            return item, None
        if result.kind == "same":
            return self._returned_argument(result, item, index)
        if item.device.type != "meta" and not leaves((*self.args, *self.kwargs.values()), torch.Tensor):
            item = item.to(_META)  # computed from plain numbers: torch.div(5, 2)
        if item.device.type != "meta":  # a shape function that returns real tensors
            raise self._unsupported(UNSUPPORTED_CALL, f"an operator gave a real tensor of {item.device}")
        if result.kind == "view":
            return self._view(result, item)
        for source in leaves((*self.args, *self.kwargs.values()), torch.Tensor):  # a returned argument
            if type(source) is FakeTensor and source.elem is item:
                return source, None
        spec = spec_of(item, self.device)
        return wrap(item, self.device, spec), ResultLeaf("fresh", spec)

    def _returned_argument(
        self, result: DeclaredResult, item: torch.Tensor, index: int
    ) -> tuple[FakeTensor, ResultLeaf]:
        source = self.info.argument(result.arg, self.args, self.kwargs)
        position = -1
        if isinstance(source, (list, tuple)):
            source, position = source[index], index
        if item.shape != source.spec.shape:  # `out=` of another size
            raise self._resizes()
        return source, ResultLeaf("same", source.spec, result.arg, position)

    def _view(self, result: DeclaredResult, item: torch.Tensor) -> tuple[FakeTensor, ResultLeaf | None]:
        source = self.info.argument(result.arg, self.args, self.kwargs)
        device = source.device if isinstance(source, torch.Tensor) else self.device
        spec = spec_of(item, device)
        is_cacheable = (
            isinstance(source, FakeTensor)
            and source.dtype == item.dtype
            and not (item.is_conj() or item.is_neg())
            and not (
                source.elem.is_conj() or source.elem.is_neg()
            )  # the key does not distinguish such an argument
        )
        return wrap(item, device, spec), ResultLeaf("view", spec, result.arg) if is_cacheable else None


def canonical_device(device: torch.device | str | int) -> torch.device:
    """`device` with an index where its type has one."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return device


def _spec_of_result(value: Any) -> Any:
    if type(value) is FakeTensor:
        return value.spec
    if isinstance(value, (list, tuple)):
        return tuple(_spec_of_result(v) for v in value)
    return None
