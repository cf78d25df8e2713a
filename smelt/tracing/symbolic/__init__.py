"""Symbolic numbers of a trace: ints and floats that change from call to call, and sizes of tensors.

The program and torch hold an `Int` or `Float` (`sym_numbers.py`), a `torch.SymInt` or `torch.SymFloat` around a
`Symbol` (`sym_nodes.py`). `Symbols` (`symbolic_numbers.py`) creates them: arithmetic builds expressions, comparisons
become guards, and code that needs the number itself specializes it. Grammar of a number: an `Expression`
(`smelt.shapes.expr`) over leaves; of a size, also a `Size` (`smelt.shapes.expr`), an int or a sum of products
of symbols `s0`, `s1`, ... and quotients.

Unbacked sizes `u0`, `u1`, ... are known only when the graph runs (`unbacked_numbers.py`, `unbacked_operators.py`).
`symbolic_fake_results.py` has the results of operators on fakes with symbolic sizes, `symbolic_layouts.py` the layouts
of inputs, `symbolic_ranges.py` and `numpy_numbers.py` proxies for ranges, lists and NumPy ints that contain symbolic
numbers.
"""
