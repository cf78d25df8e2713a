"""Functions of torch that take sizes for numbers, in C++ or in Python, in every version: what torch does is done here with
symbolic ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F

from smelt.graph.sizes import evaluate
from smelt.torch_private import VF
from smelt.tracing.arguments import Args, Kwargs
from smelt.tracing.products import shape_of, symbols_in
from smelt.tracing.sym_numbers import SYMBOLIC

aten = torch.ops.aten


def _einsum(args: Args, kwargs: Kwargs) -> Any:
    """Of three operands and more opt_einsum says in which order they are multiplied: the order for the sizes of the call at
    hand serves others as well."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    symbols = symbols_in(*operands)
    planner = torch.backends.opt_einsum.get_opt_einsum()
    usable = planner is not None and torch.backends.opt_einsum.enabled  # type: ignore[attr-defined]
    if kwargs or not isinstance(equation, str) or len(operands) < 3 or symbols is None or not usable:
        return NotImplemented
    shapes = [[evaluate(n, symbols.hints) for n in shape_of(x)] for x in operands]
    strategy = torch.backends.opt_einsum.strategy  # type: ignore[attr-defined]
    path, _ = planner.contract_path(equation, *shapes, shapes=True, optimize=strategy)
    return VF.einsum(equation, operands, path=list(chain.from_iterable(path)))


def _fill_diagonal(args: Args, kwargs: Kwargs) -> Any:
    given = dict(zip(("self", "fill_value", "wrap"), args), **kwargs)
    x, value, wrap = given.pop("self", None), given.pop("fill_value", None), given.pop("wrap", False)
    if given or symbols_in(x) is None or x.dim() != 2 or not isinstance(value, (int, float)) or wrap:
        return NotImplemented
    x.diagonal().fill_(value)
    return x


def _pad(args: Args, kwargs: Kwargs) -> Any:
    """A circular one, whose C++ code writes parts of its result into others."""
    given = dict(zip(("input", "pad", "mode", "value"), args), **kwargs)
    x, pads, mode, value = (given.pop(name, None) for name in ("input", "pad", "mode", "value"))
    symbols = symbols_in(x)
    if (
        given
        or mode != "circular"
        or value is not None
        or symbols is None
        or not isinstance(pads, (list, tuple))
    ):
        return NotImplemented
    known = all(type(n) is int and n >= 0 for n in pads) and len(pads) == 2 * (x.dim() - 2)
    sizes = list(reversed(shape_of(x)))
    if not known or any(symbols.compare("lt", sizes[i // 2], n) for i, n in enumerate(pads)):
        return NotImplemented
    for i in range(0, len(pads), 2):
        before, after = pads[i : i + 2]
        dim = -1 - i // 2
        ends = x.narrow(dim, x.shape[dim] - before, before), x, x.narrow(dim, 0, after)
        x = torch.cat([part for part, n in zip(ends, (before, 1, after)) if n], dim)
    return x.contiguous() if any(pads) else NotImplemented


def _embedding_bag(args: Args, kwargs: Kwargs) -> Any:
    """Of rows, all of one length: the place at which each begins is computed from that."""
    given = dict(zip(("input", "weight", "offsets"), args), **kwargs)
    x: Any = given.get("input")
    weights: Any = given.get("per_sample_weights")
    if len(args) > 3 or symbols_in(x) is None or x.dim() != 2 or given.get("offsets") is not None:
        return NotImplemented
    if weights is not None and (not isinstance(weights, torch.Tensor) or weights.shape != x.shape):
        return NotImplemented
    given["offsets"] = torch.arange(x.shape[0], device=x.device) * x.shape[1]
    given["input"] = x.reshape(-1)
    given["per_sample_weights"] = None if weights is None else weights.reshape(-1)
    return F.embedding_bag(**given)


def _lstm_cell(args: Args, kwargs: Kwargs) -> Any:
    """As `LSTMCell` in aten/src/ATen/native/RNN.cpp."""
    state = args[1] if len(args) == 6 and not kwargs else None
    if not isinstance(state, (list, tuple)) or len(state) != 2 or not _is_of_sizes(args[0], *state):
        return NotImplemented
    x, (hidden, cell), w_ih, w_hh, b_ih, b_hh = args
    gates = F.linear(hidden, w_hh, b_hh) + F.linear(x, w_ih, b_ih)
    inputs, forgets, cells, outputs = gates.split(w_hh.shape[0] // 4, 1)
    cell = forgets.sigmoid() * cell + inputs.sigmoid() * cells.tanh()
    return outputs.sigmoid() * cell.tanh(), cell


def _is_of_sizes(*operands: Any) -> bool:
    """Whether these are tensors with symbolic sizes, which autocast does not cast."""
    return symbols_in(*operands) is not None and not torch.is_autocast_enabled(operands[0].device.type)


def _gru_cell(args: Args, kwargs: Kwargs) -> Any:
    """As `GRUCell` there."""
    if kwargs or len(args) != 6 or not _is_of_sizes(*args[:2]):
        return NotImplemented
    x, hidden, w_ih, w_hh, b_ih, b_hh = args
    size = w_hh.shape[0] // 3
    of_input = F.linear(x, w_ih, b_ih).split(size, 1)
    of_hidden = F.linear(hidden, w_hh, b_hh).split(size, 1)
    reset, update = ((h + i).sigmoid() for h, i in zip(of_hidden[:2], of_input[:2]))
    new = (of_input[2] + of_hidden[2] * reset).tanh()
    return (hidden - new) * update + new


def _stft(args: Args, kwargs: Kwargs) -> Any:
    try:
        return _fourier(*args, **kwargs)
    except TypeError:  # for which torch has words
        return NotImplemented


def _fourier(
    x: Any,
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
    symbols = symbols_in(x)
    step, wide = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    known = all(type(n) is int for n in (n_fft, step, wide)) and 0 < wide <= n_fft and step > 0
    if symbols is None or not known or align_to_window is not None or return_complex is not True:
        return NotImplemented
    if x.dim() not in (1, 2) or x.dtype not in (torch.float32, torch.float64):  # others autocast may cast
        return NotImplemented
    if window is not None and (tuple(window.shape) != (wide,) or window.is_complex()):
        return NotImplemented
    if center:
        ahead = [1] * (3 - x.dim())
        x = F.pad(x.view(*ahead, *x.shape), [n_fft // 2] * 2, pad_mode).view(*x.shape[:-1], -1)
    if symbols.compare("lt", shape_of(x)[-1], n_fft):
        return NotImplemented
    parts = x.unfold(-1, n_fft, step)
    if window is None and wide < n_fft:
        window = torch.ones(wide, dtype=x.dtype, device=x.device)
    if window is not None:
        before = (n_fft - wide) // 2
        parts = parts * (F.pad(window, [before, n_fft - wide - before]) if wide < n_fft else window)
    half = onesided is None or onesided
    made = aten._fft_r2c.default(parts, [parts.dim() - 1], _BY_ROOT if normalized else _AS_IT_IS, half)
    return made.transpose(-1, -2)


_AS_IT_IS, _BY_ROOT = 0, 1  # torch's numbers of how a transform is scaled


def _frequencies(real: bool) -> Callable[[Args, Kwargs], Any]:
    """`fftfreq`, or `rfftfreq`, as aten/src/ATen/native/SpectralOps.cpp."""

    def body(args: Args, kwargs: Kwargs) -> Any:
        given = dict(zip(("n", "d"), args), **kwargs)
        n, d = given.pop("n", None), given.pop("d", 1.0)
        if type(n) not in SYMBOLIC or type(d) not in (int, float) or given.keys() - {"dtype", "device"}:
            return NotImplemented
        dtype = given.get("dtype") or torch.get_default_dtype()
        if not dtype.is_floating_point:
            return NotImplemented
        places = torch.arange(n // 2 + 1 if real else n, dtype=dtype, device=given.get("device"))
        if not real:
            places = torch.where(places < (n + 1) // 2, places, places - n)
        return places * (1.0 / (n * d))

    return body


def _cov(args: Args, kwargs: Kwargs) -> Any:
    x, correction = args[0] if args else kwargs.get("input"), kwargs.get("correction", 1)
    if len(args) > 1 or kwargs.keys() - {"input", "correction"} or type(correction) is not int:
        return NotImplemented
    return _covariance(x, correction)


def _covariance(x: Any, correction: int) -> Any:
    """Of rows of observations, as `cov` in aten/src/ATen/native/Correlation.cpp."""
    symbols = symbols_in(x)
    if symbols is None or x.dim() not in (1, 2) or not (x.is_floating_point() or x.is_complex()):
        return NotImplemented
    rows = x if x.dim() == 2 else x[None]
    if not symbols.compare("lt", correction, shape_of(rows)[1]):
        return NotImplemented
    count = rows.shape[1]
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return (rows.mm(rows.t().conj()) / (count - correction)).squeeze()


def _corrcoef(args: Args, kwargs: Kwargs) -> Any:
    """As `corrcoef` in aten/src/ATen/native/Correlation.cpp."""
    made = NotImplemented if kwargs.keys() - {"input"} else _cov((*args, *kwargs.values()), {})
    if made is NotImplemented or made.dim() == 0:
        return made if made is NotImplemented else made / made
    deviations = made.diag().real.sqrt() if made.is_complex() else made.diag().sqrt()
    made = made / deviations.unsqueeze(1) / deviations.unsqueeze(0)
    if not made.is_complex():
        return made.clip(-1, 1)
    return torch.complex(made.real.clip(-1, 1), made.imag.clip(-1, 1))


# What is run in place of these functions: `body(args, kwargs)` gives NotImplemented where torch's own code is to run.
BODIES: dict[Any, Any] = {
    torch.functional.einsum: _einsum,
    **dict.fromkeys((torch.functional.stft, torch.Tensor.stft), _stft),
    F.pad: _pad,
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    F.embedding_bag: _embedding_bag,
    torch.fft.fftfreq: _frequencies(real=False),
    torch.fft.rfftfreq: _frequencies(real=True),
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _cov),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _corrcoef),
    torch.Tensor.fill_diagonal_: _fill_diagonal,
}
