"""How a compiled frame makes anew the objects that capture made.

`kind.py` says what a row is, `kinds.py` finds the row of an object; the rows are in a file for each kind of object.
`reach.py` finds what has to be made, `constants.py` what stands for itself, `source.py` compiles what was written.
"""
