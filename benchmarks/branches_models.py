"""Models with branches and loops that data decide: graphs with breaks there, graphs by default, and why not fewer.

    python -m benchmarks.branches_models [--out DIR] [--limit SECONDS] [NAME ...]

Rows: the models of GraphMend's table (arXiv 2509.16248) whose architectures transformers has, `get_rope_index` of the
Qwen-VL family (PyTorch's issue 173915: no other tracer exports it), and the models of transformers.md and libraries.md that
break on data. Small random weights, eval mode, no gradients, two calls; results are compared with eager's. Each row runs in
a process of its own.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import platform
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks import libraries, sweep_models

RESULTS = Path(__file__).parent / "results"
Program = tuple[Callable[..., Any], list[dict[str, Any]]]  # and the arguments of its calls

GRAPHMEND = ("biogpt", "blenderbot", "longformer", "pegasus", "phi3", "t5")
ROPE = ("glm4v", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
TRANSFORMERS = (
    "blt", "fsmt", "led", "longcat_flash", "openai_privacy_filter", "switch_transformers", "vits",
)  # fmt: skip
LIBRARIES = (
    "gpytorch: log marginal likelihood of an exact process", "nflows: masked autoregressive flow",
    "normflows: autoregressive spline", "performer-pytorch: Performer with random features",
    "pytorch-metric-learning: losses of pairs and of classes", "torch-geometric: GAT", "torch-geometric: GCN",
    "torchdiffeq: Runge-Kutta of fixed and adaptive steps", "torchsde: Euler of a diagonal noise",
    "vector-quantize-pytorch: VectorQuantize",
)  # fmt: skip


def rope_index(name: str) -> Program:
    """`get_rope_index` of a model without weights, for text with pictures of two sizes."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    config_class = next(v for k, v in vars(module).items() if k.endswith("Config") and not _is_part(k))
    cls = next(v for v in vars(module).values() if isinstance(v, type) and "get_rope_index" in vars(v))
    with torch.device("meta"):
        model = cls(config_class())
    return model.get_rope_index, [_text_with_pictures(*sizes) for sizes in (((4, 4),), ((4, 8), (6, 4)))]


def _is_part(name: str) -> bool:
    return any(part in name for part in ("Text", "Vision", "PreTrained"))


def _text_with_pictures(*sizes: tuple[int, int]) -> dict[str, Any]:
    kinds = [0] * 3
    for height, width in sizes:
        kinds += [1] * (height * width // 4) + [0] * 2
    grids = torch.tensor([(1, *size) for size in sizes])
    types = torch.tensor([kinds], dtype=torch.int32)
    return {
        "input_ids": types.long() + 9,
        "mm_token_type_ids": types,
        "image_grid_thw": grids,
        "attention_mask": torch.ones_like(types).long(),
    }


def long_rope(name: str) -> Program:
    """Phi-4 mini's positions: other frequencies for long texts, which the numbers of the positions decide."""
    import transformers as hf

    factors = {"short_factor": [1 + i / 10 for i in range(8)], "long_factor": [2 + i / 5 for i in range(8)]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 12, "factor": 4.0}
    config = hf.AutoConfig.for_model(
        name, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, vocab_size=200,
        intermediate_size=128, max_position_embeddings=64, original_max_position_embeddings=12, pad_token_id=0,
        rope_parameters=rope | factors,
    )  # fmt: skip
    tokens = torch.arange(8)[None]
    calls = [
        {"input_ids": tokens + 5, "position_ids": tokens + start, "use_cache": False} for start in (0, 30, 0)
    ]
    return hf.AutoModel.from_config(config).eval(), calls


def architecture(name: str) -> Program:
    """A small model of an architecture of transformers, with its sweep's inputs."""
    model, inputs = sweep_models.architecture(name, tiny=True)
    return model, [inputs, inputs]


def of_library(name: str) -> Program:
    """A program of `libraries.py`."""
    model, inputs = libraries.build(name)
    return model.eval(), [inputs, inputs]


ROWS: Mapping[str, tuple[str, Callable[[str], Program], str]] = {
    **{name: ("GraphMend's models", architecture, name) for name in GRAPHMEND},
    "phi3, long rope": ("GraphMend's models", long_rope, "phi3"),
    **{f"{name}: get_rope_index": ("the Qwen-VL family", rope_index, name) for name in ROPE},
    **{name: ("transformers", architecture, name) for name in TRANSFORMERS},
    **{name: ("libraries", of_library, name) for name in LIBRARIES},
}


def measured(name: str) -> dict[str, Any]:
    """The row of a program."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _, build, argument = ROWS[name]
    row: dict[str, Any] = {}
    for mode, options in (("break", {"control_flow": "break"}), ("default", None)):
        torch.manual_seed(0)
        fn, calls = build(argument)
        compiled = smelt.compile(fn, options=options)
        error = 0.0
        with torch.no_grad():
            for inputs in calls:
                results = []
                for call in (fn, compiled):
                    torch.manual_seed(1)
                    results.append(call(**inputs))
                error = max(error, sweep_models._error(*reversed(results)))
        found = sweep_models._describe(compiled)
        row[mode] = {"graphs": found["graphs"], "error": error, "why": [*found["breaks"], *found["eager"]]}
    return row


def _send(name: str, limit: int, pipe: Any) -> None:
    signal.alarm(limit)
    try:
        pipe.send(measured(name))
    except Exception as error:
        pipe.send({"raised": f"{type(error).__name__}: {error}".splitlines()[0][:120]})


def _in_process(name: str, limit: int) -> dict[str, Any]:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(name, limit, theirs))
    process.start()
    theirs.close()
    try:
        row: dict[str, Any] = ours.recv()
    except EOFError:
        row = {"raised": f"ended within {limit} s"}
    process.join()
    return row


def _line(name: str, row: dict[str, Any]) -> str:
    group = ROWS[name][0]
    if "raised" in row:
        return f"| {group} | `{name}` | | | | {row['raised']} |"
    error = max(row[mode]["error"] for mode in ("break", "default"))
    same = "yes" if error <= sweep_models.TOLERANCE else f"no: {error:.0e}"
    counted = Counter(reason.split(" at ")[0][:110] for reason in row["default"]["why"])
    why = "; ".join(f"{reason}{f' × {n}' if n > 1 else ''}" for reason, n in counted.items())
    return f"| {group} | `{name}` | {row['break']['graphs']} | {row['default']['graphs']} | {same} | {why} |"


def _page(rows: Mapping[str, dict[str, Any]]) -> str:
    where = f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}"
    done = [row for row in rows.values() if "raised" not in row]
    fewer = sum(row["default"]["graphs"] < row["break"]["graphs"] for row in done)
    return "\n".join(
        [
            "# Models with branches that data decide",
            "",
            f"`python -m benchmarks.branches_models`, {where}, smelt {sweep_models.code_version()}.",
            "",
            f"{len(done)} programs, {fewer} with fewer graphs than with `control_flow: break`. Of GraphMend's eight models "
            "transformers lacks two (MiniCPM-MoE and Qwen-Audio: code on the hub). No model of timm's table breaks on data.",
            "",
            "| from | program | graphs, breaks | graphs, default | equal to eager | reasons left |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_line(name, row) for name, row in rows.items()),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--limit", type=int, default=120)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name in args.names or ROWS:
        rows[name] = _in_process(name, args.limit)
        print(_line(name, rows[name]), flush=True)
    if not args.names:
        args.out.joinpath("branches-models.md").write_text(_page(rows))


if __name__ == "__main__":
    main()
