"""Models whose programs are in tests/exported/stored, as `<version of the format>-<name>.smelt`, for later versions to load.

`write`, with SMELT_CPU=x86-64-v2, writes the files of a new format; those of earlier formats stay.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smelt
from smelt.exported import program_file

FOLDER = Path(__file__).parent.parent / "exported/stored"


class Scorer(nn.Module):
    """Nested arguments and results, a keyword, a dynamic size, a buffer that calls write."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.LayerNorm(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, batch: Any, *, scale: float = 1.0) -> Any:
        self.calls += 1
        y = self.norm(self.layer(batch["x"]).tanh()) * scale
        return {"scores": y.softmax(-1), "sizes": (y.shape[0], "rows"), "calls": self.calls * 1}


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).sigmoid() + x).square().mean()


class Coder(nn.Module):
    """Two methods; a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 2), nn.Linear(2, 4)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu() + torch.tensor([0.5, 0.25])

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.outer(z).cumsum(-1)


class Chosen(nn.Module):
    """Graphs inside of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: self.layer(a).exp(), lambda a: a @ a.t() @ a, (x,))


@dataclasses.dataclass
class Options:
    x: torch.Tensor
    scale: float


def of_options(options: Options) -> Any:
    return dataclasses.replace(options, x=options.x * options.scale)


X = torch.arange(12.0).view(3, 4).cos()
MODELS: dict[str, Any] = {
    "scorer": Scorer,
    "trained": Trained,
    "coder": Coder,
    "chosen": Chosen,
    "options": lambda: of_options,
}
SINCE = {"scorer": 3, "trained": 3, "coder": 3, "chosen": 4, "options": 4}  # the oldest format with a file


def exported(name: str, model: Any) -> Any:
    """The program of a model."""
    rows = {0: smelt.Dim("rows", min=2, max=8)}
    if name == "scorer":
        return smelt.export(
            model, ({"x": X},), {"scale": 2.0}, dynamic_shapes={"batch": {"x": rows}, "scale": None}
        )
    if name == "trained":
        return smelt.export(model, (X,), gradients=True)
    if name == "coder":
        return smelt.export(model, methods={"encode": (X,), "decode": (X[:, :2].clone(),)})
    return smelt.export(model, (Options(X, 2.0),) if name == "options" else (X,))


def results(name: str, model: Any, encode: Any = None, decode: Any = None) -> list[Any]:
    """Results of calls of a model, or of its program."""
    if name == "scorer":
        return [model({"x": X[:n]}, scale=2.0) for n in (2, 3)]
    if name == "trained":
        loss = model(X)
        loss.backward()
        return [loss.detach(), [p.grad for p in model.parameters()]]
    if name == "coder":
        z = (encode or model.encode)(X)
        return [z, (decode or model.decode)(z)]
    if name == "options":
        return [model(Options(X, 2.0)).x]
    return [model(X.abs()), model(-X.abs())]


def write(folder: Path) -> None:
    """Write the programs in the present format, with code for the oldest processors."""
    version = program_file.VERSION
    for name, make in MODELS.items():
        torch.manual_seed(0)
        with torch.set_grad_enabled(name == "trained"):
            program = exported(name, make())
        program.save(folder / f"{version}-{name}.smelt")
        if name == "scorer":
            program.save(folder / f"{version}-weights.smelt", folder / f"{version}-weights.safetensors")
