"""How a compiled frame makes anew the objects that capture made.

`reconstruction_kind.py` says what a row is, `reconstruction_table.py` finds the row of an object; the rows are in a
file for each kind of object. `reconstruction_order.py` finds what has to be made, `constants.py` what stands for
itself, `generated_source.py` compiles what was written.
"""
