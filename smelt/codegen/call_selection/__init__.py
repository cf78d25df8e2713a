"""Selection of ATen calls that generated code replaces: matrix products (`gemm_calls.py`) and windows over images
(`window_calls.py`), with fused epilogues (`epilogue_fusion.py`) and prologues (`prologue_fusion.py`);
`generated_calls.py` puts them into a schedule. `codegen.llvm` compiles them."""
