"""Matrix products as machine code: C = epilogue(A @ B), blocked for the caches, on packed panels.

A product is cut like this (one work item is one *panel* of columns in one block of rows of one batch entry):

    for each block of K (`kc` deep)            packed block of A: L2
        pack the rows of A                     rows stay rows, cut into runs of one vector: a copy, no shuffling
        for each panel of `columns` columns    packed panel of B: L1/L2
            pack the panel                     [k][columns]; a transpose if B is given as W[N, K] (every nn.Linear)
            for each tile of `rows` rows       accumulators: registers
                micro-kernel
                after the last block of K: epilogue on the tile, still in L1

What always holds:

* Whatever does not depend on the epilogue is compiled once per process and used by every product
  (`gemm_library.py`). A product itself is a table of numbers (`compile_gemm.py`), its epilogue, and a short entry point.
* Nothing is kept between calls: packed weights could go stale unseen.
* Rows are shared among tiles evenly, so that at most two tile heights occur in one product.
* A panel narrower than a full one is computed whole in a private strip and cut by the epilogue; no byte outside the
  operands is read or written.
* Sums run in the operands' dtype, in order of k inside a block of K, then block by block.

Files, in the order of reading: the description (`gemm_spec.py`, `epilogue.py`), how it is cut (`gemm_tiling.py`), the shared
functions (`operand_packing.py`, `micro_kernel.py`, `gemm_driver.py`, written with `function_builder.py` and kept in
`gemm_library.py`), and what is a product's own (`epilogue_codegen.py`, `compile_gemm.py`).
"""
