"""CPU code generation: kernels to machine code through LLVM, in this process."""

from smelt.codegen.llvm.compile import compile_kernels

__all__ = ["compile_kernels"]
