"""Composites for functions that specialize sizes in C++ or Python in every version of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F

from smelt.shapes.expr import evaluate
from smelt.torch_private import VF
from smelt.tracing.composites.symbolic_matmul import shape_of, symbols_in
from smelt.tracing.composites.symbolic_rnn import gru_step, lstm_step
from smelt.tracing.record.call_arguments import composite_of
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC

aten = torch.ops.aten


def _einsum(equation: str, *operands: Any) -> Any:
    """An einsum of three or more operands: opt_einsum chooses the contraction order for the sizes of this call, and it
    is used for other sizes as well."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    symbols = symbols_in(*operands)
    planner = torch.backends.opt_einsum.get_opt_einsum()
    usable = planner is not None and torch.backends.opt_einsum.enabled  # type: ignore[attr-defined]
    if not isinstance(equation, str) or len(operands) < 3 or symbols is None or not usable:
        return NotImplemented
    shapes = [[evaluate(n, symbols.hints) for n in shape_of(x)] for x in operands]
    strategy = torch.backends.opt_einsum.strategy  # type: ignore[attr-defined]
    path, _ = planner.contract_path(equation, *shapes, shapes=True, optimize=strategy)
    return VF.einsum(equation, operands, path=list(chain.from_iterable(path)))


def _fill_diagonal(x: Any, fill_value: Any, wrap: bool = False) -> Any:
    if symbols_in(x) is None or x.dim() != 2 or not isinstance(fill_value, (int, float)) or wrap:
        return NotImplemented
    x.diagonal().fill_(fill_value)
    return x


def _diagonal(input: Any, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal beside the main one: the main one of the rows, or columns, from its first element on."""
    rank = input.dim()
    if type(offset) not in SYMBOLIC or not all(type(d) is int and -rank <= d < rank for d in (dim1, dim2)):
        return NotImplemented
    dim, start = (dim1, -offset) if offset < 0 else (dim2, offset)
    if dim1 % rank == dim2 % rank or not start < input.shape[dim]:
        return NotImplemented
    rest = input.narrow(dim, start, input.shape[dim] - start)
    return rest.diagonal(0, dim1, dim2)


def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """A circular pad, whose C++ code writes parts of its result into others."""
    x, symbols = input, symbols_in(input)
    if mode != "circular" or value is not None or symbols is None or not isinstance(pad, (list, tuple)):
        return NotImplemented
    is_static = all(type(n) is int and n >= 0 for n in pad) and len(pad) == 2 * (x.dim() - 2)
    sizes = list(reversed(shape_of(x)))
    if (
        not is_static
        or not any(pad)
        or any(symbols.compare("lt", sizes[i // 2], n) for i, n in enumerate(pad))
    ):
        return NotImplemented
    for i in range(0, len(pad), 2):
        before, after = pad[i : i + 2]
        dim = -1 - i // 2
        ends = x.narrow(dim, x.shape[dim] - before, before), x, x.narrow(dim, 0, after)
        x = torch.cat([part for part, n in zip(ends, (before, 1, after)) if n], dim)
    return x.contiguous()


def _embedding_bag(
    input: Any, weight: Any, offsets: Any = None, *, per_sample_weights: Any = None, **options: Any
) -> Any:
    """Embedding bags of equal length: the offsets are computed from it."""
    if symbols_in(input) is None or input.dim() != 2 or offsets is not None:
        return NotImplemented
    if per_sample_weights is not None:
        if not isinstance(per_sample_weights, torch.Tensor) or per_sample_weights.shape != input.shape:
            return NotImplemented
        per_sample_weights = per_sample_weights.reshape(-1)
    starts = torch.arange(input.shape[0], device=input.device) * input.shape[1]
    return F.embedding_bag(
        input.reshape(-1), weight, starts, per_sample_weights=per_sample_weights, **options
    )


def _is_symbolic_cell(*operands: Any) -> bool:
    """Whether these are tensors with symbolic sizes that autocast does not cast: on a CPU it casts the operands of the
    functions that cells call."""
    is_symbolic, device = symbols_in(*operands) is not None, operands[0].device.type
    return is_symbolic and (device == "cpu" or not torch.is_autocast_enabled(device))


def _lstm_cell(x: Any, state: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    if not isinstance(state, (list, tuple)) or len(state) != 2 or not _is_symbolic_cell(x, *state):
        return NotImplemented
    return lstm_step(F.linear(x, w_ih, b_ih), tuple(state), w_hh, b_hh)


def _gru_cell(x: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    if not _is_symbolic_cell(x, hidden):
        return NotImplemented
    return gru_step(F.linear(x, w_ih, b_ih), (hidden,), w_hh, b_hh)[0]


def _stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """The transform of each window of `n_fft` samples, as `stft` in aten/src/ATen/native/SpectralOps.cpp."""
    x, symbols = input, symbols_in(input)
    step, width = (
        n_fft // 4 if hop_length is None else hop_length,
        n_fft if win_length is None else win_length,
    )
    is_static = all(type(n) is int for n in (n_fft, step, width)) and 0 < width <= n_fft and step > 0
    if symbols is None or not is_static or align_to_window is not None or return_complex is not True:
        return NotImplemented
    if x.dim() not in (1, 2) or x.dtype not in (torch.float32, torch.float64):  # autocast may cast others
        return NotImplemented
    if window is not None and (tuple(window.shape) != (width,) or window.is_complex()):
        return NotImplemented
    if center:
        leading = [1] * (3 - x.dim())
        x = F.pad(x.view(*leading, *x.shape), [n_fft // 2] * 2, pad_mode).view(*x.shape[:-1], -1)
    if symbols.compare("lt", shape_of(x)[-1], n_fft):
        return NotImplemented
    windows = x.unfold(-1, n_fft, step)
    if window is None and width < n_fft:
        window = torch.ones(width, dtype=x.dtype, device=x.device)
    if window is not None:
        before = (n_fft - width) // 2
        windows = windows * (F.pad(window, [before, n_fft - width - before]) if width < n_fft else window)
    half = onesided is None or onesided
    norm = _BY_ROOT if normalized else _UNSCALED
    return aten._fft_r2c.default(windows, [windows.dim() - 1], norm, half).transpose(-1, -2)


_UNSCALED, _BY_ROOT = 0, 1  # torch's enum values for the scale of a transform


def _frequencies(n: Any, d: float = 1.0, *, real: bool, dtype: Any = None, device: Any = None) -> Any:
    """`fftfreq`, or `rfftfreq` (`real`), as in aten/src/ATen/native/SpectralOps.cpp."""
    dtype = dtype or torch.get_default_dtype()
    if type(n) not in SYMBOLIC or type(d) not in (int, float) or not dtype.is_floating_point:
        return NotImplemented
    bins = torch.arange(n // 2 + 1 if real else n, dtype=dtype, device=device)
    if not real:
        bins = torch.where(bins < (n + 1) // 2, bins, bins - n)
    return bins * (1.0 / (n * d))


def _cov(input: Any, *, correction: int = 1) -> Any:
    """The covariance of rows of observations, as `cov` in aten/src/ATen/native/Correlation.cpp."""
    x, symbols = input, symbols_in(input)
    if symbols is None or x.dim() not in (1, 2) or not (x.is_floating_point() or x.is_complex()):
        return NotImplemented
    rows = x if x.dim() == 2 else x[None]
    if type(correction) is not int or not symbols.compare("lt", correction, shape_of(rows)[1]):
        return NotImplemented
    count = rows.shape[1]
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return (rows.mm(rows.t().conj()) / (count - correction)).squeeze()


def _corrcoef(input: Any) -> Any:
    """As `corrcoef` in the same file."""
    cov = _cov(input)
    if cov is NotImplemented:
        return cov
    if cov.dim() == 0:
        return cov / cov
    deviations = cov.diag().real.sqrt() if cov.is_complex() else cov.diag().sqrt()
    corr = cov / deviations.unsqueeze(1) / deviations.unsqueeze(0)
    if not corr.is_complex():
        return corr.clip(-1, 1)
    return torch.complex(corr.real.clip(-1, 1), corr.imag.clip(-1, 1))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.functional.einsum: _einsum,
    **dict.fromkeys((torch.functional.stft, torch.Tensor.stft), _stft),
    F.pad: _pad,
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    F.embedding_bag: _embedding_bag,
    torch.fft.fftfreq: partial(_frequencies, real=False),
    torch.fft.rfftfreq: partial(_frequencies, real=True),
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _cov),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _corrcoef),
    torch.Tensor.fill_diagonal_: _fill_diagonal,
    **dict.fromkeys((torch.diagonal, torch.Tensor.diagonal), _diagonal),
}
COMPOSITES = {function: composite_of(composite) for function, composite in _FUNCTIONS.items()}
