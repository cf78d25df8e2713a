"""GPU code: kernels printed as Triton."""

from smelt.codegen.triton.load import load_kernel
from smelt.codegen.triton.printer import print_kernel

__all__ = ["load_kernel", "print_kernel"]
