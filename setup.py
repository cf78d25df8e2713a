"""Builds `smelt._native` from all of `smelt/native/` against the installed torch (build without isolation).

The extension reads memory layouts of CPython and torch: it runs with one Python and one minor version of torch, and the
package requires that torch.

Most of a compilation is the parsing of torch's headers, so the sources are compiled as six units (`UNITS`), each a
generated file in `build/units/` that includes the sources of some folders. `SMELT_UNITY=0` compiles file by file: slower
from scratch, faster after a change to one file.
"""

import os
import re
import runpy
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent.resolve()

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(
        "error: smelt needs the GIL, this Python is a free-threaded build: take an ordinary build of CPython"
    )
try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    sys.exit(
        f"error: smelt is built against the torch that it is to run with ({error}): pip install torch setuptools wheel "
        "ninja, then pip install --no-build-isolation smelt"
    )

MAJOR, MINOR = torch.__version__.split(".")[:2]
[VERSION] = re.findall(r'^__version__ = "(.*)"$', (HERE / "smelt/__init__.py").read_text(), re.M)
DEPENDENCIES = ["llvmlite>=0.48", "numpy", "rich", "typer"]


# The unit of each folder of smelt/native, "" for the files beside the folders. Calls stay apart from guards: compiled as one
# unit, a call takes up to 0.1 us more. Compilation of a unit takes up to 35 seconds
# of processor time and up to 1.5 GB.
UNITS = {
    "": "guards",
    "autograd": "autograd",
    "bindings": "plan",
    "calls": "calls",
    "devices": "plan",
    "differentiable": "autograd",
    "exported": "exported",
    "guards": "guards",
    "operators": "operators",
    "plan": "plan",
    "shapes": "plan",
    "values": "plan",
}


def files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(HERE)) for path in (HERE / "smelt/native").rglob(pattern))


def write_units(sources: list[str]) -> list[str]:
    """The generated files that include `sources`. A file that exists with the same text keeps its time stamp."""
    included: dict[str, list[str]] = {}
    for source in sources:
        path = Path(source).relative_to("smelt/native").as_posix()
        folder = path.split("/")[0] if "/" in path else ""
        included.setdefault(UNITS[folder], []).append(path)
    folder = Path("build/units")
    (HERE / folder).mkdir(parents=True, exist_ok=True)
    for unit, paths in included.items():
        # cpython.h comes before any other header that includes Python.h.
        text = "".join(f'#include "{path}"\n' for path in ["cpython.h", *paths])
        generated = HERE / folder / f"{unit}.cpp"
        if not generated.exists() or generated.read_text() != text:
            generated.write_text(text)
    return [str(folder / f"{unit}.cpp") for unit in included]


def write_build_info(folder: Path) -> None:
    """Record the torch version of the build in `_built.py`, which smelt reads before it loads the extension.

    One entry per Python: a checkout may be built for several.
    """
    path = folder / "_built.py"
    built: dict[str, str] = {}
    if path.exists():
        torches = runpy.run_path(str(path))["TORCH"]  # an import would leave a bytecode file beside it
        built = {k: v for k, v in torches.items() if (folder / f"_native{k}").exists()}
    built[sysconfig.get_config_var("EXT_SUFFIX")] = torch.__version__
    path.write_text(
        f'"""Written by setup.py: the torch that `_native` was built for, by its suffix."""\n\nTORCH = {built}\n'
    )


class Build(BuildExtension):
    """Builds in one folder per Python and torch, which later editable installations and wheels reuse: ninja compiles only
    the units whose files changed."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(HERE / f"build/{sys.implementation.cache_tag}-torch-{torch.__version__}")
        self.force = True  # Link always: the extension that is there may be for another torch.

    def build_extension(self, ext: Extension) -> None:
        # Source distributions list `ext.sources`: the generated units stand there during the compilation only.
        sources = ext.sources
        if os.environ.get("SMELT_UNITY") != "0":
            ext.sources = write_units(sources)
        try:
            super().build_extension(ext)
        finally:
            ext.sources = sources

    def run(self) -> None:
        super().run()
        write_build_info(Path(self.get_ext_fullpath("smelt._native")).parent)


# Where BuildExtension finds ninja on the PATH, it compiles units in parallel, and only those whose files changed. pip
# installs ninja beside this Python, which is not on the PATH unless the virtual environment was activated. Without ninja
# all units are compiled one after the other.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])

setup(
    # A source distribution supports any torch; a build from it supports one.
    install_requires=[
        f"torch>={MAJOR}.{MINOR},<{MAJOR}.{int(MINOR) + 1}" if "sdist" not in sys.argv else "torch>=2.11",
        *DEPENDENCIES,
    ],
    # `make wheel` adds the torch to the version, so that an index may hold wheels for several. A build by pip from a source
    # distribution must have the version in the name of that distribution.
    version=VERSION
    + (f"+torch{MAJOR}.{MINOR}" if os.environ.get("SMELT_NAME_TORCH") and "sdist" not in sys.argv else ""),
    ext_modules=[
        CppExtension(
            "smelt._native",
            files("*.cpp"),
            depends=files("*.h"),
            include_dirs=[str(HERE / "smelt/native")],
            # torch's headers include the operators that they use instead of all: half of the parsing.
            define_macros=[("AT_PER_OPERATOR_HEADERS", None)],
            extra_compile_args=[
                "-O2",
                "-std=c++20",
                "-Wall",
                # GCC takes the address of the inline storage of a SmallVector for a read of uninitialized memory.
                "-Wno-maybe-uninitialized",
                # Makes at::parallel_for parallel. libgomp is not linked on purpose: the symbols resolve to torch's own
                # copy, so that there is one thread pool.
                "-fopenmp",
                "-fvisibility=hidden",
                "-g0",
                # Error messages name files relative to torch and smelt, not folders of the machine that compiled.
                f"-ffile-prefix-map={HERE}/=",
                f"-ffile-prefix-map={Path(torch.__file__).parent}/=torch/",
            ],
        )
    ],
    cmdclass={"build_ext": Build},
)
