"""GPU code: kernels printed as Triton."""

from smelt.codegen.triton.load import load_kernel
from smelt.codegen.triton.source import triton_source

__all__ = ["load_kernel", "triton_source"]
