"""Imported before anything else that imports torch.compile's modules: gives it empty caches, or those that an earlier
process filled (`measure.CACHES`), and imports its modules, so that its first call counts compilation only."""

from __future__ import annotations

import os
import tempfile

from benchmarks.measure import CACHES

os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ.get(CACHES) or tempfile.mkdtemp(prefix="smelt-bench-")

import torch._dynamo
import torch._inductor.compile_fx  # noqa: F401
