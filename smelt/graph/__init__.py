"""The graph IR (`ir.py`): programs over tensors, at the torch level or of ATen operators, with sizes that may be expressions
(`shapes/expr.py`), Python numbers that change from call to call (`shapes/expr.py`) and what an operator's
schema says of memory (`operator_effects.py`). Passes, verifier, printer; a graph runs by `graph_interpreter.py`, or as
Python code by `graph_callable.py`.
"""
