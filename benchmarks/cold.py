"""Imported before anything else that imports torch.compile's modules: gives it empty caches, and imports those modules, so
that its first call counts compilation only."""

from __future__ import annotations

import os
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="smelt-bench-")
os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

import torch._dynamo
import torch._inductor.compile_fx  # noqa: F401
