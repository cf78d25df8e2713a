"""Triton, imported when the first kernel needs it, and what differs between its versions."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import linecache
from typing import Any

from smelt.codegen.triton.source import Source

# Of Triton's options, by name; versions that do not know one leave it out.
#
# No contraction of a product and a sum into one instruction: eager runs them one after the other, each rounded. (What is one
# operation in eager is one here, an `fma` or a block of assembly.)
# Checks for overflow of indices only triple the operations that are to be compiled: nothing reads them without `debug`.
OPTIONS: dict[str, Any] = dict(enable_fp_fusion=False, sanitize_overflow=False)


class Library:
    """The parts of Triton that are used here."""

    def __init__(self) -> None:
        try:
            self.triton = importlib.import_module("triton")
            self.compiler = importlib.import_module("triton.compiler")
            self.backends = importlib.import_module("triton.backends.compiler")
            self.ir = importlib.import_module("triton._C.libtriton").ir
        except ImportError as error:
            raise ImportError(
                "kernels for GPUs are compiled by Triton, which cannot be imported: pip install triton "
                "(version 3.6 or later)"
            ) from error

    @property
    def interprets(self) -> bool:
        """Whether `triton.jit` makes functions for Triton's interpreter."""
        return bool(self.triton.knobs.runtime.interpret)

    def options(self, warps: int) -> dict[str, Any]:
        """How all kernels are compiled."""
        return {"num_warps": warps, **OPTIONS}

    def module(
        self, function: Any, source: Source, target: Any, backend: Any, options: Any
    ) -> tuple[Any, Any]:
        """Triton's form of the kernel, and the language that it is in."""
        names = function.arg_names
        ast = self.compiler.ASTSource(
            fn=function,
            signature=dict(source.signature),
            constexprs={(names.index(name),): value for name, value in source.constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in source.aligned},
        )
        context = self.ir.context()
        self.ir.load_dialects(context)
        backend.load_dialects(context)
        given = dict(
            target=target,
            options=options,
            codegen_fns=backend.get_codegen_implementation(options),
            module_map=backend.get_module_map(),
            context=context,
        )
        taken = inspect.signature(ast.make_ir).parameters  # `target` came with Triton 3.6
        return ast.make_ir(**{name: given[name] for name in taken}), ast.language


@functools.cache
def library() -> Library:
    """Raises ImportError, with what to install, where Triton is not."""
    return Library()


def function_of(source: Source) -> Any:
    """The `triton.jit` function. Triton reads functions back from their text, so it is registered under a file name."""
    library()
    filename = f"smelt_triton_{hashlib.sha256(source.text.encode()).hexdigest()[:16]}.py"
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": filename[:-3]}
    exec(compile(source.text, filename, "exec"), namespace)
    return namespace["kernel"]
