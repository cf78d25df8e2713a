"""Where a private name of torch is missing, `import smelt` works all the same, and a compiled call gives eager's result.

`python -m tests.test_eager_only` takes the names away one after the other, each in a process of its own, and prints for each
what comes of it; the test looks at its lines.
"""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def private_names() -> list[str]:
    """What `smelt/torch_private.py` looks for: "torch._C._set_grad_enabled", attributes of objects left out."""
    tree = ast.parse((ROOT / "smelt/torch_private.py").read_text())
    looks = (node.body for node in ast.walk(tree) if isinstance(node, ast.Lambda))
    return sorted({ast.unparse(look) for look in looks if isinstance(look, ast.Attribute)})


def test_without_any_one_of_the_names_a_call_gives_eagers_result():
    ran = subprocess.run(
        [sys.executable, "-m", "tests.test_eager_only"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    lines = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    assert lines.keys() == set(private_names())
    wrong = {
        name: came for name, came in lines.items() if came not in ("eager", "compiled", "cannot be removed")
    }
    assert wrong == {}
    of = {came: sum(c == came for c in lines.values()) for came in lines.values()}
    assert of["eager"] > 50 and of.get("cannot be removed", 0) < 10, of


def _main() -> None:
    import torch._numpy
    import torch.nn.attention  # what smelt/torch_private.py imports; smelt itself must not be there yet
    import torch.overrides
    import torch.utils.checkpoint  # noqa: F401

    gc.collect()
    gc.freeze()  # collections in the children, as they import smelt, would look through torch's objects
    with ThreadPoolExecutor(2) as pool:
        for name, came in zip(private_names(), pool.map(_in_a_child, private_names()), strict=True):
            print(f"{name}: {came}", flush=True)


def _in_a_child(name: str) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            came = _without(name)
        except BaseException as error:
            came = f"{type(error).__name__}: {error}".replace("\n", " ")
        os.write(writing, came.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        came = pipe.read().decode()
    os.waitpid(child, 0)
    return came or "ended without a word"


def _without(name: str) -> str:
    """What comes of a call when torch has no such name as smelt is imported. Torch needs it itself later on."""
    import torch

    path, _, last = name.rpartition(".")
    owner = eval(path, {"torch": torch})
    kept = getattr(owner, last)
    try:
        delattr(owner, last)
    except (TypeError, AttributeError):
        return "cannot be removed"
    if hasattr(owner, last):
        return "cannot be removed"
    import smelt

    setattr(owner, last, kept)

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).relu()
        if y.shape[0] > 2:
            y = y.sin() + torch.nn.functional.conv1d(y[None], w[:, :4, None])[0].mean()
        return y.sum()

    def run(function: object) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
        out = function(x, w)  # type: ignore[operator]
        out.backward()
        return [out.detach(), w.grad]  # type: ignore[list-item]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compiled = smelt.compile(program)
        got = [run(compiled) for _ in range(2)][1]
    # As `torch.testing.assert_close`, which would import for longer, in each process, than all the rest takes.
    for mine, eagers in zip(got, run(program), strict=True):
        assert mine.shape == eagers.shape and mine.dtype == eagers.dtype
        assert torch.allclose(mine, eagers, rtol=1.3e-6, atol=1e-5)
    if smelt.unavailable is None:
        return "compiled"
    told = [str(w.message) for w in said if "run eagerly" in str(w.message)]
    assert len(told) == 1 and name in told[0], told
    with pytest.raises(smelt.errors.Unavailable, match=last):
        smelt.compile(program, fullgraph=True)
    return "eager"


if __name__ == "__main__":
    _main()
