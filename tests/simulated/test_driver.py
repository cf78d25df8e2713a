"""The simulated driver launches host functions, writes down what it was asked for, and refuses what a driver refuses."""

import ctypes
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda

Kernel = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64)


@Kernel
def double(buffers, begin, end):
    """`out[i] = 2 * x[i]` of int64."""
    x, out = (ctypes.cast(buffers[i], ctypes.POINTER(ctypes.c_int64)) for i in range(2))
    for i in range(begin, end):
        out[i] = 2 * x[i]


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    """Loaded by its path, as a launcher does."""
    cuda.forget_launches()
    yield ctypes.CDLL(str(cuda.driver()))
    torch.cuda.set_device(0)


def load(library: ctypes.CDLL, parameters: str = "pp") -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """A module and its function `double`."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    image = cuda.image(ctypes.cast(double, ctypes.c_void_p).value, parameters)
    assert library.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert library.cuModuleGetFunction(ctypes.byref(function), module, b"double") == 0
    return module, function


def launch(
    library: ctypes.CDLL, function: ctypes.c_void_p, *, grid=(1, 1, 1), block=(128, 1, 1), shared=0
) -> int:
    """On five numbers, on the current stream; the error."""
    x, out = torch.arange(5, device="cuda"), torch.zeros(5, dtype=torch.int64, device="cuda")
    values = [ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_int64(5)]
    parameters = (ctypes.c_void_p * 3)(*(ctypes.addressof(v) for v in values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    error = library.cuLaunchKernel(function, *grid, *block, shared, stream, parameters, None)
    assert out.tolist() == ([0, 2, 4, 6, 8] if not error else [0] * 5)
    return error


def in_a_thread(function: Callable[[], int]) -> int:
    """What it returns where no context is current."""
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_a_launch_is_done_and_written_down(library):
    _, function = load(library)
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        assert launch(library, function, grid=(3, 2, 1), block=(32, 4, 1), shared=1024) == 0
    assert cuda.launches() == [cuda.Launch("double", (3, 2, 1), (32, 4, 1), 1024, 0, s.cuda_stream, 5)]


def test_a_launch_needs_a_context_of_its_own_device(library):
    _, function = load(library)
    assert in_a_thread(lambda: launch(library, function)) == cuda.INVALID_CONTEXT

    def with_device(device: int) -> Callable[[], int]:
        return lambda: (torch.cuda.set_device(device), launch(library, function))[1]

    assert in_a_thread(with_device(0)) == 0
    assert in_a_thread(with_device(1)) == cuda.INVALID_HANDLE


def test_contexts_are_those_of_devices(library):
    context, primary = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 1) == 0
    torch.cuda.set_device(1)
    assert library.cuCtxGetCurrent(ctypes.byref(context)) == 0 and context.value == primary.value
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0) == 0
    assert library.cuCtxSetCurrent(primary) == 0 and torch.cuda.current_device() == 0


@pytest.mark.parametrize(
    "asked", [{"grid": (0, 1, 1)}, {"block": (2048, 1, 1)}, {"block": (64, 32, 1)}, {"shared": 64 << 10}]
)
def test_a_launch_that_no_device_can_do_is_refused(library, asked):
    assert launch(library, load(library)[1], **asked) == cuda.INVALID_VALUE
    assert cuda.launches() == []


def test_more_shared_memory_is_asked_for(library):
    _, function = load(library)
    assert library.cuFuncSetAttribute(function, 8, 1 << 20) == cuda.INVALID_VALUE
    assert library.cuFuncSetAttribute(function, 8, 64 << 10) == 0
    assert launch(library, function, shared=64 << 10) == 0


def test_what_was_unloaded_is_not_launched(library):
    module, function = load(library)
    assert library.cuModuleUnload(module) == 0
    assert launch(library, function) == library.cuModuleUnload(module) == cuda.INVALID_HANDLE


def test_an_image_must_be_one(library):
    module = ctypes.c_void_p()
    assert library.cuModuleLoadData(ctypes.byref(module), b"\x7fELF") == cuda.INVALID_IMAGE


def test_errors_are_injected_and_have_names(library):
    _, function = load(library)
    cuda.fail_next(700)
    assert launch(library, function) == 700 and launch(library, function) == 0
    name = ctypes.c_char_p()
    assert library.cuGetErrorName(700, ctypes.byref(name)) == 0
    assert name.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    assert library.cuGetErrorString(12345, ctypes.byref(name)) == cuda.INVALID_VALUE
