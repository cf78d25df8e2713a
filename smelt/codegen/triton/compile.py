"""Compilation of kernels: equal kernels share code, cached code is read from disk, new kernels compile in parallel."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from smelt.codegen.triton import kernel_cache
from smelt.codegen.triton.device_images import Image, to_image
from smelt.codegen.triton.gpu_architectures import Arch, dialect, processor
from smelt.codegen.triton.kernel_source import Source, batched_source, triton_source
from smelt.codegen.triton.symbolic_kernels import Variant, sized_source, variant
from smelt.codegen.triton.triton_import import library
from smelt.codegen.triton.value_expressions import Dialect
from smelt.loops.kernel_ir import Kernel
from smelt.loops.kernel_sizes import at_sizes
from smelt.plan.machine_code import Block, CompiledKernel, Function, Library
from smelt.runtime.disk_cache import Store
from smelt.runtime.fork_locks import GPU_KERNELS, hold_at_fork
from smelt.shapes.expr import Sym, evaluate

# The key of a source's code: everything except the number of points.
_Key = tuple[
    Arch, str, int, int, int, frozenset[str], tuple[tuple[str, str], ...], tuple[tuple[str, int], ...]
]


OnCompiled = Callable[[Function], None]


def unheard(function: Function) -> None:
    """Ignore new code."""


@dataclass(frozen=True)
class General:
    """A kernel with symbolic sizes (`symbolic_kernels.numbered`), and their values at a launch."""

    kernel: Kernel
    sizes: tuple[int, ...]

    @property
    def values(self) -> dict[Sym, int]:
        """The values of its symbols."""
        return dict(zip(self.kernel.sizes, self.sizes, strict=True))

    @property
    def specialized(self) -> Kernel:
        """The launch's kernel with concrete sizes."""
        return at_sizes(self.kernel, self.values)

    def printed(self, host: frozenset[int], dialect: Dialect) -> Source | None:
        """The source for all launches of one variant with this number of points; None if there is none."""
        source = _sized(self.kernel, variant(self.kernel, self.sizes, host), host, dialect)
        if source is None:
            return None
        return replace(source, points=evaluate(source.points, self.values))


@functools.lru_cache(1024)
def _sized(kernel: Kernel, chosen: Variant, host: frozenset[int], dialect: Dialect) -> Source | None:
    try:
        return sized_source(kernel, chosen, host, dialect)
    except NotImplementedError:
        return None  # local values of the largest sizes of the variant do not fit into registers


@dataclass(frozen=True)
class Request:
    """A kernel, and those of its buffers that are passed by value (`triton_source`) and that may be unaligned.
    `joined`: compile the batched form (`batched_source`). `general`: the kernel's symbolic form, if it has one."""

    kernel: Kernel
    by_value: frozenset[int] = frozenset()
    unaligned: frozenset[int] = frozenset()
    batched: bool = False
    general: General | None = None

    def printed(self, dialect: Dialect = "ptx") -> Source:
        """Its source."""
        if self.batched:
            return batched_source(self.kernel, self.by_value, self.unaligned, dialect)
        source = None if self.general is None else self.general.printed(self.by_value, dialect)
        if source is None:
            kernel = self.kernel if self.general is None else self.general.specialized
            source = triton_source(kernel, self.by_value, dialect)
        return replace(source, aligned=source.aligned - {f"p{i}" for i in self.unaligned})


@dataclass(frozen=True, eq=False)
class _KernelCode(Function):
    """The code of one kernel, written as `text`."""

    text: str = field(kw_only=True, repr=False)

    @property
    def source(self) -> str:
        """Python, for Triton."""
        return self.text


_CACHE: WeakValueDictionary[_Key, _KernelCode] = WeakValueDictionary()
_LOCK = hold_at_fork(threading.RLock(), GPU_KERNELS)


def compile_kernels(
    requests: Sequence[Request],
    arch: Arch,
    threads: int,
    store: Store | None = None,
    made: OnCompiled = unheard,
) -> list[CompiledKernel]:
    """Code for the requests, in order, for processors `arch`, compiled by `threads` threads, which end before this
    returns. Code is shared by equal kernels as long as one is alive, and cached in `store`. Raises ImportError, with
    what to install, if Triton is needed and missing. `made` is called for each new code, on the thread that compiled
    it, while others compile. Thread-safe.

    A kernel's `extent` is its number of outer points, `grain` the number that a program computes.
    """
    printed = {request: request.printed(dialect(arch)) for request in dict.fromkeys(requests)}
    sources = [printed[request] for request in requests]
    names = [request.kernel.name for request in requests]
    with _LOCK:
        codes = _codes(sources, names, arch, threads, store, made)
    return [
        CompiledKernel(
            r.kernel.name, _code_of(c), s.points, s.block, r.general.sizes if s.sizes and r.general else ()
        )
        for r, c, s in zip(requests, codes, sources, strict=True)
    ]


def _code_of(made: _KernelCode | Exception) -> _KernelCode:
    if isinstance(made, Exception):
        raise made
    return made


def compile_products(
    sources: Mapping[str, Source], arch: Arch, threads: int, store: Store | None = None
) -> dict[str, CompiledKernel | Exception]:
    """Like `compile_kernels`, for named sources of products; the exception for one that Triton cannot compile."""
    with _LOCK:
        codes = _codes(list(sources.values()), list(sources), arch, threads, store)
    return {
        name: code if isinstance(code, Exception) else CompiledKernel(name, code, source.points, source.block)
        for (name, source), code in zip(sources.items(), codes, strict=True)
    }


def keep(source: Source, code: CompiledKernel, arch: Arch, store: Store) -> None:
    """Cache code that was compiled without a store."""
    function = code.function
    assert function.block is not None
    [image] = function.library.objects
    compiled_image = Image(image, function.name, function.block.threads, function.block.shared)
    kernel_cache.write(store, source, arch, compiled_image)


def _codes(
    sources: Sequence[Source],
    names: Sequence[str],
    arch: Arch,
    threads: int,
    store: Store | None,
    on_compiled: OnCompiled = unheard,
) -> list[_KernelCode | Exception]:
    """Code or exceptions for the sources."""
    keys = [_key(source, arch) for source in sources]
    refused: dict[_Key, Exception] = {}
    found = {key: code for key in keys if (code := _CACHE.get(key)) is not None}
    missing: dict[_Key, tuple[Source, str]] = {}
    for key, source, name in zip(keys, sources, names, strict=True):
        if key in found or key in missing:
            continue
        if store and (image := kernel_cache.read(store, source, arch)):
            found[key] = _CACHE[key] = _code(source, image, arch)
        else:
            missing[key] = (source, name)
    if missing:
        library()
        with ThreadPoolExecutor(min(threads, len(missing))) as pool:
            compiled = pool.map(
                lambda item: _compile(item[0], item[1], arch, store, on_compiled), missing.values()
            )
            for key, made in zip(missing, compiled, strict=True):
                if isinstance(made, Exception):
                    refused[key] = made
                else:
                    found[key] = _CACHE[key] = made
    return [refused.get(key) or found[key] for key in keys]


def _key(source: Source, arch: Arch) -> _Key:
    attributes = tuple(source.signature.items()), tuple(source.constants.items())
    return arch, source.text, source.warps, source.stages, source.registers, source.aligned, *attributes


def _compile(
    source: Source, name: str, arch: Arch, store: Store | None, on_compiled: OnCompiled
) -> _KernelCode | Exception:
    try:
        image = to_image(source, arch, f"smelt_{_identifier(name)}")
    except Exception as error:
        return error
    if store:
        kernel_cache.write(store, source, arch, image)
    code = _code(source, image, arch)
    on_compiled(code)
    return code


def _code(source: Source, image: Image, arch: Arch) -> _KernelCode:
    parts = source.table.parts if source.table is not None else 0
    library = Library(processor(arch), (image.code,), (image.name,))
    return _KernelCode(library, image.name, Block(image.threads, image.shared, parts), text=source.text)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)[:60]
