"""`python -m smelt.doctor`: versions, the machine, and what works on it, as text to paste into an issue.

Exits with status 1 if something does not work. Each line under "works" is a program that was just compiled and compared with
eager.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import smelt
from smelt import compatibility, torch_private

# Prefixes of variables that may change what smelt does, or its speed.
VARIABLES = (
    *("SMELT_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "ATEN_", "CUDA_", "TRITON_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "LD_PRELOAD"),
)
LIBRARIES = ("llvmlite", "numpy", "triton", "torchvision", "transformers", "timm", "accelerate")

Rows = Iterator[tuple[str, str]]


def main() -> int:
    """Print the report and return the exit status."""
    for title, rows in (("versions", versions()), ("machine", machine()), ("settings", settings())):
        _section(title, rows)
    found = list(checks())
    _section("works" if all(what == "yes" for _, what in found) else "what works and what does not", found)
    _section("not built yet", not_built())
    return 0 if all(what == "yes" for _, what in found) else 1


def _section(title: str, rows: Rows | list[tuple[str, str]]) -> None:
    print(f"{title}:")
    for name, what in rows:
        print(f"  {name}: {what}")


# ----------------------------------------------------------------------------------------------- versions, machine, settings


def versions() -> Rows:
    """Versions of smelt, Python, torch and common libraries."""
    yield "smelt", f"{smelt.__version__}, {Path(smelt.__file__).parent}"
    yield "extension", compatibility.built_for() or "none for this Python"
    yield "Python", f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    yield "torch", f"{torch.__version__}, {_torch_build()}"
    for library in LIBRARIES:
        if found := _version(library):
            yield library, found
    if torch_private.ABSENT:
        yield (
            "names that this torch lacks",
            ", ".join(f"{name} ({use})" for name, use in torch_private.ABSENT.items()),
        )


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_build() -> str:
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "without CUDA"


def machine() -> Rows:
    """The operating system, the CPU as LLVM names it, the disk cache, threads, devices."""
    yield "system", f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
    if compatibility.unavailable is None:
        host = importlib.import_module("smelt.codegen.llvm.host_cpu").host()
        costs = importlib.import_module("smelt.targets.cpu").PRODUCT_COSTS
        yield "CPU", f"{host.cpu}, vectors of {host.bits} bits"
        yield (
            "matrix products and convolutions",
            "generated where that is faster, as measured on this CPU"
            if host.cpu in costs
            else f"ATen's: generated ones were measured on {', '.join(costs)} only",
        )
        yield "disk cache", disk_cache()
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} CPUs"
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        yield f"cuda:{number}", f"{name}: {_on_gpu(torch.device('cuda', number))}"


def _on_gpu(device: torch.device) -> str:
    if compatibility.unavailable is not None:
        return "smelt cannot be imported"
    why_not = importlib.import_module("smelt.targets").unusable(device)
    return "graphs are compiled for it" if why_not is None else f"calls on it run eagerly ({why_not})"


def disk_cache() -> str:
    """The folder of the disk cache, its size and limit; or why there is none."""
    store = importlib.import_module("smelt.runtime.disk_cache").store()
    why = "kernel_cache is off, or there is no home" if store is None else store.why_not()
    if why:
        return f"nothing is kept: {why}"
    return f"{store.folder}: {store.size() / 1e6:.1f} of {store.limit / 1e6:.0f} MB (kernels of GPUs)"


def settings() -> Rows:
    """Environment variables that matter to smelt."""
    found = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    yield from sorted(found.items()) if found else [("variables", "none")]


def not_built() -> Rows:
    """Features that `smelt.compile` lacks."""
    yield "GPUs", "calls with tensors on other devices than CPUs and NVIDIA's GPUs run eagerly"
    yield "sizes on GPUs", "those that data decide break graphs"


# ------------------------------------------------------------------------------------------------------- what works


def checks() -> Rows:
    """Whether smelt can be imported here and, if so, each program of `PROGRAMS`: "yes", or the error."""
    compatibility.compiler()
    yield "smelt", compatibility.unavailable or "yes"
    if compatibility.unavailable is None:
        for name, program in PROGRAMS.items():
            yield name, _outcome(program)


def _outcome(program: Callable[[Callable[..., object]], object]) -> str:
    """The outcome of a program, which takes a compile function."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(program(_whole), program(lambda function: function))
    except Exception as error:
        return f"{type(error).__name__}: {error}".strip().replace("\n", " ")
    return "yes"


def _whole(function: Callable[..., object]) -> Callable[..., object]:
    return smelt.compile(function, fullgraph=True)


def _inference(compiled: Callable[..., object]) -> object:
    x = torch.linspace(-2, 2, 96).view(8, 12)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.sin() @ x.t(), dim=1)

    return compiled(function)(x)  # type: ignore[operator]


def _training(compiled: Callable[..., object]) -> object:
    x, w = torch.linspace(-2, 2, 96).view(8, 12), torch.linspace(-1, 1, 48).view(12, 4).requires_grad_()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w).square().mean()

    compiled(function)(x, w).backward()  # type: ignore[operator]
    return w.grad


def _half(compiled: Callable[..., object]) -> object:
    x = torch.linspace(-2, 2, 96).view(8, 12).bfloat16()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (12,))

    return compiled(function)(x)  # type: ignore[operator]


def _random(compiled: Callable[..., object]) -> object:
    torch.manual_seed(0)
    x = torch.ones(256)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)

    return compiled(function)(x)  # type: ignore[operator]


PROGRAMS: dict[str, Callable[[Callable[..., object]], object]] = {
    "inference": _inference,
    "training": _training,
    "bfloat16": _half,
    "random numbers as eager's": _random,
}

if __name__ == "__main__":
    sys.exit(main())
