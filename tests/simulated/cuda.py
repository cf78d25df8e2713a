"""A simulated CUDA device, for a torch without CUDA: `activate()` makes `cuda:0` and `cuda:1` of host memory.

Tensors are of dispatch key CUDA, and the kernels for the CPU run their operators; the driver API loads and launches host
functions (`driver.cpp` says how). What depends on the device is like CUDA: dispatch, autocast, guards, autograd's
threads, streams, which device an operand must be on, how much memory is allocated. What CUDA computes otherwise, is not.

torch asks once for its hooks and starts autograd's threads once: activate before the first tensor on "cuda" and before
the first backward of the process, which stays as it then is.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from tests.simulated import kernels

HERE = Path(__file__).parent
BUILT = HERE.parent.parent / "build" / "simulated"
TORCH = Path(torch.__file__).parent
SOURCES = [HERE / "device.cpp", HERE / "driver.cpp", HERE / "hip.cpp"]
FLAGS = ["-O1", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized"]

# As the driver numbers them.
INVALID_VALUE, INVALID_IMAGE, INVALID_CONTEXT, INVALID_HANDLE = 1, 200, 201, 400


# --------------------------------------------------------------------------------------------------------- activation


def why_not() -> str | None:
    """Why this torch cannot be given a simulated device, if so."""
    return "torch has CUDA of its own" if torch.version.cuda or torch.version.hip else None


def build() -> Path:
    """The library with device and driver, compiled where that has not been done from these sources for this torch."""
    key = hashlib.sha256(repr((torch.__version__, FLAGS)).encode())
    for source in SOURCES:
        key.update(source.read_bytes())
    library = BUILT / f"cuda-{key.hexdigest()[:16]}.so"
    if not library.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        _compile(library)
    return library


def _compile(library: Path) -> None:
    """Beside it first: other processes may be about to load or to build the same."""
    compiler = os.environ.get("CXX", "g++")
    lib = TORCH / "lib"
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        made = Path(folder) / library.name
        subprocess.run(
            [compiler, *FLAGS, f"-I{TORCH / 'include'}", *map(str, SOURCES), "-o", str(made)]
            + [f"-L{lib}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{lib}"],
            check=True,
        )
        os.replace(made, library)


@functools.cache
def activate() -> None:
    """Makes the devices, for the life of the process; a second call does nothing."""
    if reason := why_not():
        raise RuntimeError(f"no simulated CUDA: {reason}")
    library = simulated()
    library.simulated_set_device(0)  # as torch does when it initializes CUDA
    atexit.register(
        time.sleep, 0.05
    )  # autograd's threads free what needs the GIL, which kills them once Python ends
    for name, function in _primitives(library).items():
        setattr(torch._C, name, function)
    _patch()
    kernels.register()


@functools.cache
def simulated() -> ctypes.PyDLL:
    """The library, which is also the driver: its functions are those of libcuda and of `simulated_...`."""
    library = ctypes.PyDLL(str(build()))
    for name in ("allocated", "peak", "current_stream", "new_stream", "launch_count"):
        getattr(library, f"simulated_{name}").restype = ctypes.c_int64
    library.simulated_stream_handle.restype = ctypes.c_void_p
    library.simulated_stream_handle.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.simulated_set_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.simulated_launch.restype = ctypes.c_bool
    library.simulated_launch.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    library.simulated_wait.restype = ctypes.c_bool
    library.simulated_wait.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    return library


def _primitives(library: ctypes.PyDLL) -> dict[str, Callable]:
    """What `torch.cuda` is written in, and builds without CUDA lack. (Functions of ctypes have no hash.)"""
    cuda = int(torch._C._autograd.DeviceType.CUDA)

    def exchange(device: int) -> int:
        before = library.simulated_current_device()
        if device >= 0 and device != before:
            set_device(device)
        return before if device >= 0 else -1

    def set_device(device: int) -> None:
        if device >= library.simulated_device_count():
            raise torch.AcceleratorError("CUDA error: invalid device ordinal", INVALID_VALUE)
        library.simulated_set_device(device)

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        set_device(device_index)
        library.simulated_set_stream(device_index, stream_id)

    return {
        "_cuda_init": lambda: None,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_getDeviceCount": lambda: library.simulated_device_count(),
        "_cuda_getDevice": lambda: library.simulated_current_device(),
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_synchronize": lambda: None,
        "_cuda_getCurrentStream": lambda d: (library.simulated_current_stream(d), d, cuda),
        "_cuda_getCurrentRawStream": lambda d: library.simulated_stream_handle(
            d, library.simulated_current_stream(d)
        ),
        "_cuda_getDefaultStream": lambda d: (0, d, cuda),
        "_cuda_setStream": set_stream,
        "_cuda_getArchFlags": lambda: "sm_90",
        "_cuda_emptyCache": lambda: None,
        "_cuda_memoryStats": lambda d: {"allocated_bytes": {"all": _memory(library, d)}},
        "_cuda_resetPeakMemoryStats": lambda d: library.simulated_reset_peak(d),
    }


def _memory(library: ctypes.PyDLL, device: int) -> dict[str, int]:
    return {"current": library.simulated_allocated(device), "peak": library.simulated_peak(device)}


def _patch() -> None:
    """What `torch.cuda` decided when it was imported. The default generator is the CPU's."""
    cuda = torch.cuda
    cuda._initialized = True
    cuda._exchange_device = torch._C._cuda_exchangeDevice
    cuda._maybe_exchange_device = torch._C._cuda_maybeExchangeDevice
    cuda._get_device_properties = _properties
    cuda.Stream = cuda.streams.Stream = Stream
    cuda.Event = cuda.streams.Event = Event
    cuda.graphs._cuda_isCurrentStreamCapturing = lambda: simulated().simulated_is_capturing()
    cuda.CUDAGraph = cuda.graphs.CUDAGraph = Graph
    torch._C._host_emptyCache = lambda: None
    torch.storage._StorageBase.clone = _clone_storage  # torch's asks for an allocator by the device's name
    for module in (cuda, cuda.random):
        module.manual_seed = module.manual_seed_all = lambda seed: None
        module.get_rng_state = lambda device="cuda": torch.get_rng_state()
        module.set_rng_state = lambda state, device="cuda": torch.set_rng_state(state)


def _clone_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    tensor = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return tensor.clone().untyped_storage()


def _properties(device: int) -> SimpleNamespace:
    """Some of those of an H100."""
    return SimpleNamespace(
        name="simulated",
        major=9,
        minor=0,
        total_memory=80 << 30,
        multi_processor_count=132,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


class Stream(torch.Stream):
    """Stands in for `torch.cuda.Stream`: work is done when it is asked for, so streams only differ by their handle."""

    def __new__(cls, device: object = None, priority: int = 0, **known: int) -> Stream:
        """`known` are the numbers of a stream that exists."""
        if not known:
            index = torch.cuda._utils._get_device_index(device, optional=True)
            cuda = int(torch._C._autograd.DeviceType.CUDA)
            known = {
                "stream_id": simulated().simulated_new_stream(),
                "device_index": index,
                "device_type": cuda,
            }
        return super().__new__(cls, **known)

    @property
    def cuda_stream(self) -> int:
        """What the driver is given. Never 0, not even for the default stream."""
        return simulated().simulated_stream_handle(self.device_index, self.stream_id)

    @property
    def priority(self) -> int:
        """All have the same."""
        return 0


class Graph:
    """Stands in for `torch.cuda.CUDAGraph`: of launches by the driver alone. Operators of torch raise while they are
    captured."""

    replays = 0  # of all graphs

    def capture_begin(self, *pool: object, **options: object) -> None:
        """Launches are kept from here on."""
        simulated().simulated_begin_capture()

    def capture_end(self) -> None:
        """Until here."""
        self.number = simulated().simulated_end_capture()

    def replay(self) -> None:
        """Makes the launches."""
        Graph.replays += 1
        simulated().simulated_replay(self.number)


class Event(torch.Event):
    """Stands in for `torch.cuda.Event`."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        """As torch's, of the simulated device."""
        return super().__new__(cls, device="cuda", enable_timing=enable_timing, blocking=blocking)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Work is done when it is asked for: now."""
        super().record(torch.cuda.current_stream() if stream is None else stream)
        self._at = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds, at least one nanosecond."""
        return max((end_event._at - self._at) * 1e3, 1e-6)


# ------------------------------------------------------------------------------------------------------------- driver


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("items", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Launch:
    """What a kernel was launched with."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    device: int
    stream: int
    items: int


def driver() -> Path:
    """The library that exports the functions of libcuda, for whoever loads it by its path."""
    return build()


def image(code: int | str, parameters: str, parts: int = 0) -> bytes:
    """What `cuModuleLoadData` takes, of a host function `void (void** buffers, int64_t begin, int64_t end)`. `code`: its
    address, for this process, or `file:symbol`. `parameters`: a letter for each, `p` for a pointer, `v` for a number that is
    passed by value. `parts`: the launches that one may do, if it takes a table."""
    process = os.getpid() if isinstance(code, int) else 0
    return f"simulated {code} {parameters} {parts} {process}".encode() + b"\0"


def launches() -> list[Launch]:
    """All since the process began or `forget_launches` was called."""
    read, found = _Launch(), []
    while simulated().simulated_launch(len(found), ctypes.byref(read)):
        sizes = (tuple(read.grid), tuple(read.block))
        found.append(
            Launch(read.name.decode(), *sizes, read.shared, read.device, read.stream or 0, read.items)
        )
    return found


def forget_launches() -> None:
    """Empties the log."""
    simulated().simulated_forget_launches()


def waits() -> list[tuple[int, int]]:
    """Since `forget_waits`: handles of streams, the one that waits and the one that it waits for."""
    read, found = (ctypes.c_void_p * 2)(), []
    while simulated().simulated_wait(len(found), read):
        found.append((read[0] or 0, read[1] or 0))
    return found


def forget_waits() -> None:
    """Empties their log."""
    simulated().simulated_forget_waits()


def fail_next(error: int) -> None:
    """The next call of the driver, whichever, returns that error and does nothing."""
    simulated().simulated_fail_next(error)
