"""A schedule as launches (`generate`): kernels in LLVM or Triton, ATen calls that become generated products and windows
(`calls`, where `cost` prefers them), and the `out=` variants of those that stay (`extern`)."""
