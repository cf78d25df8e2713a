"""The global state that every trace depends on (grad mode, autocast, default dtype, ...), and classes' version tags.

The native reader is what guard trees compare against; here its tuple gets names for explanations.
"""

from __future__ import annotations

from typing import Any

from smelt import _native

Snapshot = tuple[Any, ...]
