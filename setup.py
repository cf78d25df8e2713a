"""Builds `smelt._native` from all of `smelt/native/` against the torch that is installed (build without isolation).

What is built runs with one Python and one minor version of torch, whose layouts it knows, and requires that torch.
"""

import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

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


def files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(HERE)) for path in (HERE / "smelt/native").rglob(pattern))


def note_what_it_is_built_for(folder: Path) -> None:
    """smelt looks there before it loads the extension. One line per Python: a checkout may be built for several."""
    path = folder / "_built.py"
    built: dict[str, str] = {}
    if path.exists():
        spec = importlib.util.spec_from_file_location("_built", path)
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
        built = {k: v for k, v in module.TORCH.items() if (folder / f"_native{k}").exists()}
    built[sysconfig.get_config_var("EXT_SUFFIX")] = torch.__version__
    path.write_text(
        f'"""Written by setup.py: the torch that `_native` was built for, by its suffix."""\n\nTORCH = {built}\n'
    )


class Build(BuildExtension):
    """Keeps the object files, apart for each Python and torch: what did not change is not compiled again, nor in the
    next editable installation or wheel. Beside the extension, wherever that goes, it is noted what it was built for."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(HERE / f"build/{sys.implementation.cache_tag}-torch-{torch.__version__}")

    def run(self) -> None:
        super().run()
        note_what_it_is_built_for(Path(self.get_ext_fullpath("smelt._native")).parent)


# BuildExtension compiles files in parallel, and those only that changed, where it finds ninja on the PATH. pip puts it
# beside this Python, which is not on the PATH unless the virtual environment was activated. Without ninja the files are
# compiled one after the other.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])

setup(
    # A source distribution builds for any torch; what is built from it, for one.
    install_requires=[
        f"torch>={MAJOR}.{MINOR},<{MAJOR}.{int(MINOR) + 1}" if "sdist" not in sys.argv else "torch>=2.11",
        *DEPENDENCIES,
    ],
    # `make wheel` names the torch in the version, so that wheels for several lie side by side and one can be asked for.
    # What pip builds from a source distribution must have the version that the file's name says.
    version=VERSION
    + (f"+torch{MAJOR}.{MINOR}" if os.environ.get("SMELT_NAME_TORCH") and "sdist" not in sys.argv else ""),
    ext_modules=[
        CppExtension(
            "smelt._native",
            files("*.cpp"),
            depends=files("*.h"),
            include_dirs=[str(HERE / "smelt/native")],
            extra_compile_args=[
                "-O2",
                "-std=c++20",
                "-Wall",
                # GCC takes the address of the room in a SmallVector of torch's for a read of what is in it.
                "-Wno-maybe-uninitialized",
                # Makes at::parallel_for parallel; libgomp is deliberately not linked, so that the symbols resolve to
                # torch's own copy and there is one thread pool.
                "-fopenmp",
                "-fvisibility=hidden",
                "-g0",
                # Errors name files of torch and of smelt, not where those lay on the machine that compiled.
                f"-ffile-prefix-map={HERE}/=",
                f"-ffile-prefix-map={Path(torch.__file__).parent}/=torch/",
            ],
        )
    ],
    cmdclass={"build_ext": Build},
)
