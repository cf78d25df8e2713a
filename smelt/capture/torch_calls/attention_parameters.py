"""`torch.backends.cuda.SDPAParams`: the arguments of an attention, created and read by the program.

The object is a real one that holds fakes; the compiled frame creates it anew.
"""

from __future__ import annotations

from torch.backends.cuda import SDPAParams

from smelt.capture.base.call_handlers import Args, Kwargs, builtin, unsupported
from smelt.capture.reconstruction.builtin_containers import tuple_text
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested

_FIELDS = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")


@builtin(SDPAParams)
def _create(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Create the object. The sizes of its tensors are specialized: C functions that take it read them."""
    if kwargs:
        raise unsupported("SDPAParams with keyword arguments")
    for value in args:
        specialize_nested(tuple(value.shape) if type(value) is FakeTensor else ())
    return SDPAParams(*specialize_nested(tuple(args)))


def _fields_of(params: SDPAParams) -> tuple[object, ...]:
    return tuple(getattr(params, name) for name in _FIELDS)


def _register(name: str) -> None:
    """Register the reads of a field, which pybind implements by a property of a C function."""

    @builtin(getattr(SDPAParams, name).fget.__func__)
    def read(vm: VM, args: Args, kwargs: Kwargs) -> object:
        (params,) = args
        if id(params) in vm.env.sources:
            raise unsupported("SDPAParams of the environment")
        return getattr(params, name)


for _name in _FIELDS:
    _register(_name)
RECONSTRUCTION_KINDS[SDPAParams] = ReconstructionKind(
    lambda x: _fields_of(x),
    lambda x, text: f"{text.constant(SDPAParams, 'SDPAParams')}{tuple_text(_fields_of(x), text)}",
)
