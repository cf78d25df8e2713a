"""The option `verify`: shadow execution of eager graphs along with compiled ones (docs/verify.md).

`shadow_execution.py` runs both and compares, `result_comparison.py` defines a difference, with `float64_reference.py`
for float64. After a difference `bisect.py` finds the operator (in subgraphs, `subgraph_extraction.py`) and
`reproducer.py` writes a script. `isolated_state.py` gives both runs the same inputs and random numbers.
"""
