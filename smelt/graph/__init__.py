"""The graph IR (`ir.py`): programs over tensors, at the torch level or of ATen operators, with sizes that may be
expressions (`shapes/expr.py`), Python numbers that change from call to call (`shapes/expr.py`), and memory
effects of operators (`operator_effects.py`). Passes, verifier, printer; `graph_interpreter.py` runs a graph node by
node, `graph_callable.py` as Python code."""
