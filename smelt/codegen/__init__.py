"""Code generation: a schedule's kernels in LLVM or Triton, ATen calls replaced by generated products and windows
(`call_selection/`), and `out=` variants of the calls that remain."""
