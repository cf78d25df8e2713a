"""A script that reproduces a difference: the operators, their input tensors, eager and compiled."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from smelt.config import Config
from smelt.graph.graph_printer import python_source
from smelt.runtime.whole_files import write_whole, written_whole
from smelt.verify.bisect import Located
from smelt.verify.result_comparison import ROUNDING

_MOST_WRITTEN_OUT = 64  # elements of a tensor that the script spells out

_HEAD = '''"""{title}

Run by itself it raises AssertionError as long as compiled code differs from eager.
"""

import operator
from math import inf, nan
from pathlib import Path

import torch

import smelt

'''

_TAIL = '''

ROUNDING = {rounding}


def copied(tensor):
    """In memory of its own, laid out as it is."""
    if not tensor.numel():
        return tensor.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride()))
    flat = tensor.as_strided((extent,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.size(), tensor.stride())


def steps(tensor):
    """The strides of the dimensions that have more than one element."""
    return [step for step, size in zip(tensor.stride(), tensor.shape) if size > 1 and tensor.numel()]


def check(got, want, what):
    assert steps(got) == steps(want), f"{{what}}: strides {{got.stride()}}, eager {{want.stride()}}"
    finite = want[torch.isfinite(want)]
    largest = finite.abs().max().item() if finite.numel() else 0
    rounding = ROUNDING.get(want.dtype, 0)
    message = lambda text: f"{{what}}: {{text}}"
    torch.testing.assert_close(got, want, rtol=rounding, atol=rounding * largest, equal_nan=True, msg=message)


compiled = smelt.compile(forward, dynamic=False, options={options})
for_eager, for_compiled = [copied(t) for t in inputs], [copied(t) for t in inputs]
with torch.no_grad():
    torch.manual_seed(0)
    got = compiled(*for_compiled)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    want = forward(*for_eager)
for i, (a, b) in enumerate(zip(got, want, strict=True)):
    check(a, b, f"result {{i}}")
for i, (a, b) in enumerate(zip(for_compiled, for_eager, strict=True)):
    check(a, b, f"input {{i}} afterwards")
check(state, torch.get_rng_state(), "the state of the random generator afterwards")
print("no difference")
'''


def write(located: Located, config: Config, title: str) -> Path | None:
    """Write the script and, in a second file, tensors that are too large for its text; return its path. None if
    operators have no name in a script (subgraphs, user kernels), or take numbers that change."""
    source = python_source(located.graph)
    tensors = located.before.inputs
    if source.names.keys() - {"constants"} or not all(isinstance(t, torch.Tensor) for t in tensors):
        return None
    folder = Path(tempfile.mkdtemp(prefix="smelt-verify-"))
    large = {i: _alone(t) for i, t in enumerate(tensors) if not _is_short(t)}
    constants = located.graph.constants if source.names else {}
    path = folder / "reproducer.py"
    loaded = ""
    if large or constants:
        with written_whole(folder / "tensors.pt") as file:
            torch.save({"inputs": large, "constants": dict(constants)}, file)
        loaded = (
            'saved = torch.load(Path(__file__).with_name("tensors.pt"))\nconstants = saved["constants"]\n\n'
        )
    inputs = [_written_out(t) if _is_short(t) else f'saved["inputs"][{i}]' for i, t in enumerate(tensors)]
    _, body = source.source.split("import torch\n", 1)
    head = _HEAD.format(title=title.replace("\\", "/").replace('"', "'"))
    tail = _TAIL.format(rounding=repr(ROUNDING), options=repr(_changed(config)))
    listed = "".join(f"    {text},\n" for text in inputs)
    text = f"{head}{loaded}inputs = [\n{listed}]\n\n{body.strip()}\n{tail}"
    write_whole(path, text)
    return path


def _changed(config: Config) -> dict[str, Any]:
    """The options that differ from the defaults."""
    return {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if f.name != "verify" and getattr(config, f.name) != f.default
    }


def _is_short(tensor: torch.Tensor) -> bool:
    return (
        tensor.numel() <= _MOST_WRITTEN_OUT
        and tensor.is_contiguous()
        and tensor.device.type == "cpu"
        and not tensor.is_complex()
    )


def _written_out(tensor: torch.Tensor) -> str:
    shape, stride = tuple(tensor.size()), tensor.stride()
    if not tensor.numel():
        return f"torch.empty({shape}, dtype={tensor.dtype})"
    return f"torch.tensor({tensor.flatten().tolist()!r}, dtype={tensor.dtype}).as_strided({shape}, {stride})"


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the same layout in memory of its own."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or not tensor.numel():
        return tensor.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride()))
    flat = tensor.as_strided((extent,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.size(), tensor.stride())
