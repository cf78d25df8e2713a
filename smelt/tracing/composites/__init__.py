"""Composites: replacements for torch functions, in operators that keep sizes symbolic or that can be recorded.

C++ code of torch often reads a symbolic size as an int, which specializes it. `FunctionMode` calls a composite instead
(`COMPOSITES` of each module); a composite that returns NotImplemented leaves the call to torch. `symbolic_*.py` have
the functions that compute on sizes; `symbolic_selects.py` and `symbolic_diagonals.py` transform single ATen operators;
`foreach.py` and `fused_optimizers.py` decompose operators on tensor lists; `masked_stores.py`, `row_indexing.py`,
`strided_windows.py` and `packed_sequences.py` rewrite calls whose C++ code cannot run on fakes.
"""
