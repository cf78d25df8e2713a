"""Backends: what turns a captured graph into something to call.

`backend_registry.py` finds one by name: `smelt.py` (machine code), `eager.py` (nothing is compiled), or one written for
torch.compile (`fx_bridge.py`). dynamo.py is the other direction: smelt as a backend of torch.compile.
"""
