"""The compiled frame as Python source: it calls the graph, rebuilds the result and replays the effects.

`compiled_frame.py` puts it together; `writer.py` writes the objects, `replay.py` the effects; `rerun.py`: graphs that raise.
"""
