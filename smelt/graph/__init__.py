"""The graph IR (`ir.py`): programs over tensors, at the torch level or of ATen operators, with sizes that may be expressions
(`sizes.py`), Python numbers that change from call to call (`numbers.py`) and what an operator's schema says of memory
(`effects.py`). Passes, verifier, printer; a graph runs by `interpreter.py`, or as Python code by `graph_function.py`.
"""
