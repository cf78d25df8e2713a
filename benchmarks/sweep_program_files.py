"""Damaged files of programs, loaded in C++ under AddressSanitizer, and a project of `smelt package`, built with CMake.

python -m benchmarks.sweep_program_files [--files N] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

import smelt
from smelt.exported.cpp_project import write_project, write_runtime

TORCH = Path(torch.__file__).parent
SOURCES = Path(__file__).parent.parent / "tests/exported/cpp"
PROGRAMS = ("run_program", "train_program", "fuzz_program")


def build(folder: Path, *options: str) -> None:
    """Build the programs of tests/exported/cpp with the runtime, in as few units as it has. Raises CalledProcessError."""
    runtime = write_runtime(folder / "smelt")
    units = [*runtime, SOURCES / "programs.cpp"]
    include = [folder / "smelt", folder / "smelt/include"]
    flags = [
        "-std=c++20",
        "-O0",
        "-fopenmp",
        "-DAT_PER_OPERATOR_HEADERS",
        *options,
        *(f"-I{p}" for p in include),
    ]
    flags += [f"-isystem{TORCH}/include", f"-isystem{TORCH}/include/torch/csrc/api/include"]

    def compile_unit(unit: Path) -> None:
        subprocess.run(["g++", *flags, "-c", str(unit), "-o", f"{folder}/{unit.stem}.o"], check=True)

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(compile_unit, units))
    openmp = [str(p) for p in sorted(TORCH.glob("lib/libgomp*.so*"))[:1]] or ["-lgomp"]
    libraries = [
        f"-L{TORCH}/lib",
        f"-Wl,-rpath,{TORCH}/lib",
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
        *openmp,
        "-ldl",
    ]
    objects = [f"{folder}/{unit.stem}.o" for unit in units]
    subprocess.run(["g++", *options, *objects, *libraries, "-o", f"{folder}/{PROGRAMS[0]}"], check=True)
    for name in PROGRAMS[1:]:  # the same program by another name
        (folder / name).hardlink_to(folder / PROGRAMS[0])


def program(path: Path, gradients: bool) -> None:
    """Write a small program with a dynamic size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    dims = [{0: smelt.Dim("n", max=9)}]
    smelt.export(model, (torch.randn(3, 4),), dynamic_shapes=dims, gradients=gradients).save(path)


def build_project(path: Path, folder: Path) -> str:
    """Build a project of `smelt package` with CMake and return what its example prints. Raises CalledProcessError."""
    write_project(path, folder)
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    subprocess.run(
        ["cmake", "-S", folder, "-B", folder / "build", prefix], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(["cmake", "--build", folder / "build"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([folder / "build/example", path], check=True, capture_output=True, text=True)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program(folder / "m.smelt", gradients=True)
        print(build_project(folder / "m.smelt", folder / "project"), end="")
        build(folder, "-fsanitize=address", "-g1")
        files = folder / "m.smelt", folder / "damaged.smelt"
        command = [folder / "fuzz_program", *files, options.files, options.seed]
        # Detect uses of freed memory, not leaks: torch keeps memory until exit.
        environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
        failed = 0
        for gradients in (False, True):
            program(files[0], gradients)
            failed |= subprocess.run(list(map(str, command)), env=environment).returncode
        return failed


if __name__ == "__main__":
    sys.exit(main())
