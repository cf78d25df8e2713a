"""Builds `smelt._native` from all of `smelt/native/` against the torch that is installed (build without isolation)."""

import os
import sysconfig
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = Path(__file__).parent


def files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(HERE)) for path in (HERE / "smelt/native").rglob(pattern))


# What the extension is built for: smelt looks there before it loads the extension.
BUILT = f'''"""Written by setup.py: what `_native` was built for."""

TORCH = "{torch.__version__}"
'''
(HERE / "smelt/_built.py").write_text(BUILT)

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
