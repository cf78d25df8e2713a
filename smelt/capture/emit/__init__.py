"""The compiled frame as Python source: it calls the graph, reconstructs the result and replays the effects.

`compiled_frame.py` assembles it; `frame_writer.py` writes expressions for objects, `effect_replay.py` statements for
effects; `eager_fallback.py` handles graphs that raise.
"""
