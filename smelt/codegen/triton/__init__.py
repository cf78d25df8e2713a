"""GPU code: kernels printed as Triton, and compiled to PTX."""

from smelt.codegen.triton.compile import Request, compile_kernels
from smelt.codegen.triton.kernel_source import Source, triton_source

__all__ = ["Request", "Source", "compile_kernels", "triton_source"]
