"""Cached kernel code (PTX; for AMD an image), keyed by everything that it is made from. A hit imports nothing of Triton."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
from contextlib import suppress
from pathlib import Path

from smelt.codegen.triton.device_images import Image
from smelt.codegen.triton.gpu_architectures import Arch
from smelt.codegen.triton.kernel_source import Source
from smelt.runtime.disk_cache import Store, key_of

# Triton has several names among packages: torch's own builds of it come under others.
PACKAGES = ("triton", "pytorch-triton")

# Variables that change what Triton and LLVM make begin like this; of these, folders to write to do not.
VARIABLES = ("DISABLE_", "LLVM_", "MLIR_", "TRITON_")
FOLDERS = ("_DIR", "_HOME")

# How this package compiles, as it was when it was imported: its text, which no version stands for while it is worked on.
_OURS = key_of(*(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


def read(store: Store, source: Source, arch: Arch) -> Image | None:
    """The cached code of `source` for processors `arch`, or None."""
    key = _key(source, arch)
    content = store.get(key) if key else None
    if content is None:
        return None
    head, _, code = content.partition(b"\n")
    return Image(code, **json.loads(head))


def write(store: Store, source: Source, arch: Arch, image: Image) -> None:
    """Cache the code."""
    if key := _key(source, arch):
        head = json.dumps(dict(name=image.name, threads=image.threads, shared=image.shared))
        store.put(key, head.encode() + b"\n" + image.code)


def made_by() -> tuple[str, ...] | None:
    """This package, Triton, and the variables that change its output; None if Triton's version is unknown."""
    return None if (version := _version()) is None else (_OURS, version, _environment())


def _key(source: Source, arch: Arch) -> str | None:
    if (compiler := made_by()) is None:
        return None
    arguments = sorted(source.aligned), dict(source.signature), dict(source.constants)
    settings = (arch, source.warps, source.stages, source.registers, *arguments)
    return key_of("ptx", *compiler, json.dumps(settings), source.text)


@functools.cache
def _version() -> str | None:
    found = []
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found) or None


def _environment() -> str:
    named = (name for name in os.environ if name.startswith(VARIABLES) and not name.endswith(FOLDERS))
    return json.dumps({name: os.environ[name] for name in sorted(named)})
