"""The compiled frame as Python source: it calls the graph, rebuilds the result and replays the effects.

`compiled_frame.py` puts it together; `frame_writer.py` writes the objects, `effect_replay.py` the effects;
`eager_fallback.py`: graphs that raise.
"""
