"""The option `verify`: compiled graphs run beside the same graphs run operator by operator (docs/verify.md).

`shadow_execution.py` runs both and compares, `result_comparison.py` says what a difference is, with
`float64_reference.py` for float64. On a difference `bisect.py` looks for the operator (in parts of the graph,
`subgraph_extraction.py`) and `reproducer.py` writes a script. `isolated_state.py` gives both runs the same inputs and
random numbers.
"""
