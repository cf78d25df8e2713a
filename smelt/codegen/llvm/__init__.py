"""CPU code: kernels to machine code through LLVM, in this process."""

from smelt.codegen.llvm.compile import CompiledKernel, Owner, compile_kernels

__all__ = ["CompiledKernel", "Owner", "compile_kernels"]
