"""The table of elementary functions: vector code where there is some, else the C library."""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm import inverse_functions as inverse
from smelt.codegen.llvm import trigonometry
from smelt.codegen.llvm import vector_math as vector
from smelt.codegen.llvm.ir_builder import Ref

# Of both types.
_BOTH: dict[str, Callable[..., Ref]] = dict(
    exp=vector.exp, exp2=vector.exp2, expm1=vector.expm1, log=vector.log, log2=vector.log2, log10=vector.log10,
    log1p=vector.log1p, tanh=vector.tanh, sinh=vector.sinh, cosh=vector.cosh, fmod=vector.fmod, sin=trigonometry.sin,
    cos=trigonometry.cos, tan=trigonometry.tan, asin=inverse.asin, acos=inverse.acos, atan=inverse.atan,
    atan2=inverse.atan2, asinh=inverse.asinh, acosh=inverse.acosh, atanh=inverse.atanh,
)  # fmt: skip
CODE: dict[str, dict[str, Callable[..., Ref]]] = {
    "float": dict(_BOTH, sigmoid=vector.sigmoid, erf=vector.erf, pow=vector.pow),
    "double": dict(_BOTH, sigmoid=vector.sigmoid_double),
}
LIBM = (*_BOTH, "erf", "erfc", "pow")  # functions of the C library: what has no code calls it
MATH_OPS = frozenset((*LIBM, "sigmoid"))


def function(name: str, elem: str) -> Callable[..., Ref]:
    """The code of `name` on `elem` (float or double)."""
    return CODE[elem].get(name) or vector.libm(name)
