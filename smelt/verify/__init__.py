"""The option `verify`: compiled graphs run beside the same graphs run operator by operator (docs/verify.md).

`beside.py` runs both and compares, `compare.py` says what a difference is, with `wide.py` for float64. On a difference
`bisect.py` looks for the operator (in parts of the graph, `parts.py`) and `reproducer.py` writes a script. `state.py` gives
both runs the same inputs and random numbers.
"""
