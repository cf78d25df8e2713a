"""Functionalization: an aten graph with in-place writes becomes a functional one.

`functionalize.py` rewrites the recorded operators; `view_scatter.py` has the new value of a base after a write through
a view; `recorded_writes.py` records which memory is written; `view_copies.py` tracks copies that stand for views.
"""
