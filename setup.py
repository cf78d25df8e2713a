"""Builds `smelt._native` from all of `smelt/native/` against the torch that is installed (build without isolation)."""

import importlib.util
import os
import sysconfig
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = Path(__file__).parent


def files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(HERE)) for path in (HERE / "smelt/native").rglob(pattern))


def note_what_it_is_built_for() -> None:
    """smelt looks there before it loads the extension. One line per Python: a checkout may be built for several."""
    path = HERE / "smelt/_built.py"
    built: dict[str, str] = {}
    if path.exists():
        spec = importlib.util.spec_from_file_location("_built", path)
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
        built = {k: v for k, v in module.TORCH.items() if (HERE / f"smelt/_native{k}").exists()}
    built[sysconfig.get_config_var("EXT_SUFFIX")] = torch.__version__
    path.write_text(
        f'"""Written by setup.py: the torch that `_native` was built for, by its suffix."""\n\nTORCH = {built}\n'
    )


note_what_it_is_built_for()

# BuildExtension compiles files in parallel, and those only that changed, where it finds ninja on the PATH. pip puts it
# beside this Python, which is not on the PATH unless the virtual environment was activated. Without ninja the files are
# compiled one after the other.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])

setup(
    ext_modules=[
        CppExtension(
            "smelt._native",
            files("*.cpp"),
            depends=files("*.h"),
            include_dirs=[str(HERE / "smelt/native")],
            # -fopenmp makes at::parallel_for parallel; libgomp is deliberately not linked, so that the symbols
            # resolve to torch's own copy and there is one thread pool.
            extra_compile_args=["-O2", "-std=c++20", "-fopenmp", "-fvisibility=hidden", "-g0"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
