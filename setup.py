"""Builds `smelt._native` against the torch that is installed (build without isolation)."""

import glob

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[
        CppExtension(
            "smelt._native",
            sorted(glob.glob("smelt/native/*.cpp")),
            # -fopenmp makes at::parallel_for parallel; libgomp is deliberately not linked, so that the symbols
            # resolve to torch's own copy and there is one thread pool.
            extra_compile_args=["-O2", "-std=c++20", "-fopenmp", "-fvisibility=hidden", "-g0"],
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
)
