"""Matrix products as machine code: C = epilogue(A @ B), blocked for the caches, on packed panels.

Tiling (one work item is one *panel* of columns in one block of rows of one batch entry):

    for each block of K (`kc` deep)            packed block of A: L2
        pack the rows of A                     rows stay rows, cut into runs of one vector: a copy, no shuffling
        for each panel of `columns` columns    packed panel of B: L1/L2
            pack the panel                     [k][columns]; a transpose if B is W[N, K] (every nn.Linear)
            for each tile of `rows` rows       accumulators: registers
                micro-kernel
                after the last block of K: epilogue on the tile, still in L1

Invariants:

* Code that does not depend on the epilogue is compiled once per process and shared by all products
  (`gemm_library.py`). A product adds a descriptor (`compile_gemm.py`), its epilogue, and a short entry point.
* Nothing is cached between calls: packed weights could become stale unnoticed.
* Rows are distributed evenly over tiles, so that a product has at most two tile heights.
* A panel narrower than a full one is computed in full in a private strip and cut by the epilogue; no byte outside
  the operands is read or written.
* Sums run in the operands' dtype, in order of k inside a block of K, then block by block.

Files, in reading order: the description (`gemm_spec.py`, `epilogue.py`), the tiling (`gemm_tiling.py`), the shared
functions (`operand_packing.py`, `micro_kernel.py`, `gemm_driver.py`, written with `function_builder.py` and compiled
by `gemm_library.py`), and the code per product (`epilogue_codegen.py`, `compile_gemm.py`).
"""
