"""Backends: a captured graph becomes a callable.

`backend_registry.py` finds a backend by name: `smelt.py` (machine code), `eager.py` (no compilation), or one written for
torch.compile (`fx_bridge.py`). `smelt/torch_backend.py` is the other direction: smelt as a backend of torch.compile.
"""
