"""What `callables.py` uses of the compiler. Importing this module imports the compiler."""

from __future__ import annotations

import os

from smelt.backends.backend_registry import list_backends, lookup, register_backend
from smelt.capture.driver.cache_entries import adopt, wrap
from smelt.capture.driver.cache_entries import reset as reset_entries
from smelt.capture.driver.frame_compiler import FrameCompiler
from smelt.report.dump import dumping, from_environment
from smelt.report.traces import trace_call

__all__ = [
    "FrameCompiler", "adopt", "dumping", "list_backends", "lookup", "register_backend", "reset_entries", "trace_call",
    "wrap",
]  # fmt: skip

from_environment(os.environ)
