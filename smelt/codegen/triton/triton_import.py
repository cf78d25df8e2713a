"""Triton, imported when the first kernel needs it, and the differences between its versions."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import linecache
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.codegen.triton import ast_frontend, traced_frontend
from smelt.codegen.triton.kernel_source import Source
from smelt.codegen.triton.traced_operands import Types

# Of Triton's options, by name; versions that do not know one leave it out.
#
# No contraction of a product and a sum into one instruction: eager runs them one after the other, each rounded. (What is one
# operation in eager is one here, an `fma` or a block of assembly.)
# Checks for overflow of indices triple the operations of Triton's form; nothing reads them without `debug`.
OPTIONS: dict[str, Any] = dict(enable_fp_fusion=False, sanitize_overflow=False)


# The passes from Triton's form to that with threads, for kernels of NVIDIA's processors. Triton's own list has three times
# as many, for products, asynchronous copies and warps of different tasks: each looks at all of a kernel to find none. (8.5
# of a kernel's 39 ms become 4.4; of 110 kernels of models none has other instructions.)
TO_THREADS: tuple[tuple[str, str], ...] = (
    ("ttgpuir", "add_coalesce"), ("ttgpuir", "add_remove_layout_conversions"),
    ("ttgpuir", "add_optimize_thread_locality"), ("ttir", "add_triton_licm"), ("common", "add_canonicalizer"),
    ("ttir", "add_loop_aware_cse"), ("ttgpuir", "add_remove_layout_conversions"),
    ("ttgpuir", "add_reduce_data_duplication"), ("ttgpuir", "add_reorder_instructions"), ("common", "add_cse"),
    ("common", "add_symbol_dce"), ("common", "add_canonicalizer"),
)  # fmt: skip

KERNELS_OF_CONTEXT = 64

# Python 3.11 counts how deep a syntax tree is in one place for all threads, and raises SystemError where two make one.
_PARSES = threading.Lock()


@dataclass(eq=False)
class Context:
    """Triton's context, the types created in it, and the number of its kernels. It retains every type and constant."""

    mlir_context: Any
    types: Types = field(default_factory=dict)
    kernels: int = 0


class Library:
    """The parts of Triton that smelt uses."""

    def __init__(self) -> None:
        try:
            self.triton = importlib.import_module("triton")
            self.compiler = importlib.import_module("triton.compiler")
            self.backends = importlib.import_module("triton.backends.compiler")
            native = importlib.import_module("triton._C.libtriton")
        except ImportError as error:
            raise ImportError(
                "kernels for GPUs are compiled by Triton, which cannot be imported: pip install triton "
                "(version 3.6 or later)"
            ) from error
        self.ir, self.passes = native.ir, native.passes
        self._free: dict[str, list[Context]] = {}  # by the name of the backend

    @property
    def interprets(self) -> bool:
        """Whether `triton.jit` makes functions for Triton's interpreter."""
        return bool(self.triton.knobs.runtime.interpret)

    def options(self, source: Source, lanes: int) -> dict[str, Any]:
        """Compile options for warps of so many threads; sources count warps of 32."""
        stages = {"num_stages": source.stages} if source.stages else {}
        asserts = {"debug": True} if "tl.device_assert(" in source.text else {}  # else left out
        return {"num_warps": max(32 * source.warps // lanes, 1), **stages, **asserts, **OPTIONS}

    def target(self) -> Any:
        """This process's GPU, as Triton names it; a default GPU if there is none."""
        make = self.backends.GPUTarget
        if not torch.cuda.is_available():
            return make("cuda", 90, 32)
        if torch.version.hip:
            name = torch.cuda.get_device_properties().gcnArchName
            return make("hip", name.partition(":")[0], torch.cuda.get_device_properties().warp_size)
        major, minor = torch.cuda.get_device_capability()
        return make("cuda", 10 * major + minor, 32)

    def module(
        self, source: Source, target: Any, backend: Any, options: Any, context: Context
    ) -> tuple[Any, Any]:
        """The kernel in Triton's IR, with its dialect. `traced_frontend.py`, the fastest front end, serves everything
        except products. Triton's own front end serves kernels for which the faster ones (`ast_frontend.py`) fail: its
        errors are authoritative."""
        if not source.stages and not options.sanitize_overflow:
            with suppress(Exception):
                made = traced_frontend.form_of(
                    source, self.ir, context.mlir_context, context.types, options.debug
                )
                return made, self.backends.Language.TRITON
        if (generator := self.generator) is not None:
            with suppress(Exception):
                function = ast_frontend.declared(source)
                return self._module(function, source, target, backend, options, context, generator)
        return self._module(function_of(source), source, target, backend, options, context)

    def _module(
        self,
        function: Any,
        source: Source,
        target: Any,
        backend: Any,
        options: Any,
        context: Context,
        generator: Any = None,
    ) -> tuple[Any, Any]:
        names = function.arg_names
        constants = {(names.index(name),): value for name, value in source.constants.items()}
        attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in source.aligned}
        signature = dict(source.signature)
        arguments = dict(target=target, backend=backend, options=options, context=context)
        return self.form(function, signature, constants, attributes, **arguments, generator=generator)

    @functools.cached_property
    def generator(self) -> Any:
        """The faster copy of Triton's code generator; None for an unknown version."""
        own = importlib.import_module("triton.compiler.code_generator")
        with suppress(AttributeError):
            return ast_frontend.code_generator(own)
        return None

    def form(
        self,
        function: Any,
        signature: dict[str, str],
        constants: dict[tuple[int], Any],
        attributes: dict[tuple[int], Any],
        target: Any,
        backend: Any,
        options: Any,
        context: Context,
        generator: Any = None,
    ) -> tuple[Any, Any]:
        """Like `module`, for any `triton.jit` function; constants and attributes are by position."""
        ast = self.compiler.ASTSource(
            fn=function, signature=signature, constexprs=constants, attrs=attributes
        )
        arguments = dict(
            target=target,
            options=options,
            codegen_fns=backend.get_codegen_implementation(options),
            module_map=backend.get_module_map(),
            context=context.mlir_context,
        )
        make = functools.partial(generator.ast_to_ttir, function, ast) if generator else ast.make_ir
        # `target` came with Triton 3.6
        accepted = inspect.signature(make).parameters.keys() & arguments.keys()
        with _PARSES:
            return make(**{name: arguments[name] for name in accepted}), ast.language

    @contextmanager
    def context(self, backend: Any) -> Iterator[Context]:
        """A context for the IR of one kernel, exclusively held. Creating one takes longer than the IR of a small
        kernel and blocks other threads, so contexts are reused."""
        name = backend.target.backend
        free = self._free.setdefault(name, [])
        try:
            found = free.pop()
        except IndexError:
            found = Context(self.ir.context())
            self.ir.load_dialects(found.mlir_context)
            backend.load_dialects(found.mlir_context)
        yield found  # after a failure the context is not reused
        found.kernels += 1
        if found.kernels < KERNELS_OF_CONTEXT:
            free.append(found)

    def to_threads(self, module: Any, found: dict[str, Any], arch: int | str, own: Any) -> Any:
        """The stage `ttgir` for NVIDIA processors; `own`: Triton's, for a version without one of the passes."""
        try:
            passes = [getattr(getattr(self.passes, group), name) for group, name in TO_THREADS]
            convert = self.passes.ttir.add_convert_to_ttgpuir
        except AttributeError:
            return own(module, found)
        manager = self.ir.pass_manager(module.context)
        convert(manager, f"cuda:{arch}", found["num_warps"], 32, 1)
        for add in passes:
            add(manager)
        manager.run(module, "to_threads")
        return module


@functools.cache
def library() -> Library:
    """The library. Raises ImportError, with what to install, if Triton is missing."""
    return Library()


def function_of(source: Source) -> Any:
    """The `triton.jit` function. Triton reads functions back from their text, so it is registered under a file name."""
    library()
    filename = f"smelt_triton_{hashlib.sha256(source.text.encode()).hexdigest()[:16]}.py"
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": filename[:-3]}
    exec(compile(source.text, filename, "exec"), namespace)
    return namespace["kernel"]
