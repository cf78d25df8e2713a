"""Reconstruction: how a compiled frame creates again the objects that capture created.

`reconstruction_kind.py` defines a row, `reconstruction_table.py` finds the row of an object; the other files have the rows,
one file for each kind of object. `reconstruction_order.py` finds the objects to reconstruct, `constants.py` those that the
frame embeds as they are, `frame_globals.py` has the names that a frame may use. `runtime/generated_source.py` compiles its
source.
"""
