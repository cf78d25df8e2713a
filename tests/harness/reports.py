"""Data of HTML reports: one of a small program in which everything happens once, and graphs of any size."""

from __future__ import annotations

from typing import Any

FILE = "/home/ada/models/block.py"
SOURCE = '''\
"""A block with a gate that data decide."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, scale: int):
        h = self.norm(x)
        h = torch.relu(self.up(h)) * scale
        if h.sum() > 0:  # a number that only the run knows
            h = self.down(h)
        print("done", len(history))
        return x + h


history = []
'''
GATE = "the condition depends on the data of a tensor"


def at(line: int) -> dict[str, Any]:
    """A line of the program, as reports name it."""
    return {"file": FILE, "line": line, "text": SOURCE.splitlines()[line - 1]}


def node(
    name: str, target: str, inputs: str, line: int | None, module: str | None, shape: str
) -> dict[str, Any]:
    """A node of a graph; `inputs` are names with spaces between. One without a target is an input of the graph."""
    return {
        "name": name,
        "op": "call_function" if target else "placeholder",
        "target": target or name,
        "inputs": inputs.split(),
        "shape": shape,
        "dtype": "float32",
        "line": at(line) if line else None,
        "module": module,
    }


def kernel(
    name: str, kind: str, moved: tuple[int, int], flops: int, us: float | None, nodes: str, line: int
) -> dict[str, Any]:
    """A kernel; `moved`: bytes read and written."""
    loops = f"# {name}\nfor i in range(s0):\n    for j in range(256):\n        out[i, j] = f(x[i, j])"
    return {
        "name": name,
        "graph": 0,
        "code": loops if kind == "generated" else "",
        "kind": kind,
        "reads_bytes": moved[0],
        "writes_bytes": moved[1],
        "flops": flops,
        "us": us,
        "bytes_per_second": None if us is None else sum(moved) / (us * 1e-6),
        "nodes": nodes.split(),
        "lines": [at(line)],
    }


def entry(number: int, guards: list[dict[str, Any]], source: str, **more: Any) -> dict[str, Any]:
    """A compiled entry."""
    return {
        "number": number,
        "guards": guards,
        "source": source,
        "sizes": [],
        "graphs": [],
    } | more


PHASES = (
    "capture 0 9.5|backend 9.5 62.2|trace 9.5 6.1|lower 15.6 7.4|schedule 23 3.2|codegen 26.2 5|"
    "compile 31.2 38|plan 69.2 2.5"
)
REST = "forward, from line 17"
COMPILED = """\
def compiled(self, x, scale):
    h, total = graph_0(x, self.up.weight)  # line 16
    return resume_1(self, x, h, total)
"""


def frames() -> list[dict[str, Any]]:
    """A function with two entries, and what resumes it."""
    guards = [
        {"text": "type(L['x']) is Tensor", "source": "L['x']", "line": at(15)},
        {"text": "L['x'].dtype is torch.float32", "source": "L['x']", "line": at(15)},
        {"text": "L['scale'] == 3", "source": "L['scale']", "line": at(16)},
    ]
    resumed = [{"text": "len(G['history']) == 0", "source": "G['history']", "line": at(19)}]
    first = entry(0, guards, COMPILED, sizes=["s0 = L['x'].shape[0]"], graphs=[0])
    second = entry(1, guards[:2], COMPILED, graphs=[1])
    return [
        {"name": "forward", "resumes": None, "entries": [first, second]},
        {
            "name": REST,
            "resumes": "forward",
            "entries": [entry(0, resumed, "def resume_1(self, x, h, total): ...")],
        },
    ]


def nodes() -> list[dict[str, Any]]:
    """The graph of the function, up to its break."""
    output = node("output", "output", "mul sum_1", None, None, "") | {
        "op": "output",
        "shape": None,
        "dtype": None,
    }
    return [
        node("x", "", "", None, None, "[s0, 256]"),
        node("weight", "", "", None, None, "") | {"shape": [1024, 256], "type": "float32[1024, 256]"},
        node("bias", "", "", None, None, "") | {"shape": [1024]},
        node("norm", "aten.native_layer_norm.default", "x", 15, "norm", "[s0, 256]"),
        node("t", "aten.t.default", "weight", 16, "up", "[256, 1024]"),
        node("addmm", "aten.addmm.default", "bias norm t", 16, "up", "[s0, 1024]"),
        node("relu", "aten.relu.default", "addmm", 16, None, "[s0, 1024]"),
        node("mul", "aten.mul.Tensor", "relu", 16, None, "[s0, 1024]"),
        node("sum_1", "aten.sum.default", "mul", 17, None, "[]"),
        output,
    ]


def reason(id: str, summary: str, detail: str, hint: str, line: int, **more: Any) -> dict[str, Any]:
    """Why a graph broke, or a call ran eagerly."""
    said = {
        "frame": "forward",
        "id": id,
        "summary": summary,
        "detail": detail,
        "hint": hint,
        "line": at(line),
    }
    return said | {"stack": [], "cost_ms": None} | more


def sample() -> dict[str, Any]:
    """A report in which each section has something to show."""
    code = "def forward(x, weight):\n    # block.py:15\n    norm = native_layer_norm(x)\n"
    hint = "use torch.where or torch.cond, which stay in the graph"
    gate = reason(
        "tensor-condition", GATE, "bool() of a tensor of shape []", hint, 17,
        stack=[at(17), "train.py:8"], cost_ms=0.12,
    )  # fmt: skip
    native = "a function of C that smelt does not know"
    return {
        "version": 1, "name": "Block.forward", "smelt": "0.1.0", "torch": "2.13.0+cpu", "device": "cpu", "threads": 2,
        "sources": [{"file": FILE, "first_line": 1, "text": SOURCE}],
        "phases": [
            {"name": name, "frame": frame, "start_ms": after + float(start) * times, "ms": float(ms) * times}
            for frame, after, times in (("forward", 0, 1.0), (REST, 80, 0.6))
            for name, start, ms in map(str.split, PHASES.split("|"))
        ],
        "frames": frames(),
        "breaks": [gate],
        "eager": [reason("unknown-native", native, "zlib.crc32", "call it outside the compiled function", 19)],
        "recompiles": [
            {"frame": "forward", "entry": 0, "guard": "L['scale'] == 3", "was": "3", "now": "4", "at_ms": 122.0},
        ],
        "graphs": [
            {"id": 0, "frame": "forward", "level": "aten", "code": code, "nodes": nodes()},
            {"id": 1, "frame": "forward", "level": "backward", "code": "", "nodes": []},
        ],
        "kernels": [
            kernel("layer_norm_0", "generated", (65536, 65536), 524288, 11.0, "norm", 15),
            kernel("aten.addmm", "extern", (1114112, 262144), 33554432, 610.0, "addmm", 16),
            kernel("relu_mul_sum_1", "generated", (262144, 262148), 196608, 31.0, "relu mul sum_1", 16)
            | {"lines": [f"{FILE}:16 in Block.forward", "no line"]},
        ],
        "externs": [{"target": "aten.addmm.default", "why": "a product of this size is faster in the library"}],
        "not_fused": [{"a": "layer_norm_0", "b": "aten.addmm", "why": "aten.addmm is not generated"}] * 2,
        "memory": {
            "saved_bytes": 589824, "eager_saved_bytes": 1376256,
            "timeline": [
                {"step": "layer_norm_0", "bytes": 65536, "graph": 0}, {"step": "aten.addmm", "bytes": 327680, "graph": 0},
                {"step": "relu_mul_sum_1", "bytes": 524292, "graph": 0}, {"step": "other", "bytes": 12, "graph": 1},
            ],
            "graphs": [{"frame": "forward", "saved_bytes": 589824, "eager_saved_bytes": 1376256, "values": [
                {"name": "relu", "kind": "output", "bytes": 589824, "why": "held by no one else", "line": at(16)},
            ]}],
        },
        "lines": [
            {"file": FILE, "line": 15, "events": ["captured", "guarded"]},
            {"file": FILE, "line": 16, "events": ["captured", "guarded", "recompiled"]},
            {"file": FILE, "line": 17, "events": ["captured", "break"]},
            {"file": FILE, "line": 18, "events": ["captured"]},
            {"file": FILE, "line": 20, "events": ["captured"]},
        ],
    }  # fmt: skip


def layered(nodes: int, modules: bool = True) -> dict[str, Any]:
    """A report of one graph of about so many nodes: layers of 25 nodes, each in three modules, or in none."""
    made = [node("x", "", "", None, None, "[8, 512]")]
    last = "x"
    for layer in range(nodes // 25):
        skip = last
        for part, length in (("norm", 5), ("attention", 12), ("mlp", 6)):
            where = f"layers.{layer}.{part}"
            made.append(node(f"w_{layer}_{part}", "", "", None, None, "[512, 512]"))
            for step in range(length - 1):
                name = f"{part}_{layer}_{step}"
                inputs = f"{last} w_{layer}_{part}" if step == 1 else last
                target = ("aten.mm.default", "aten.mul.Tensor", "aten.add.Tensor")[step % 3]
                made.append(node(name, target, inputs, None, where, "[8, 512]"))
                last = name
        made.append(
            node(f"add_{layer}", "aten.add.Tensor", f"{last} {skip}", None, f"layers.{layer}", "[8, 512]")
        )
        made.append(
            node(f"gelu_{layer}", "aten.gelu.default", f"add_{layer}", None, f"layers.{layer}", "[8, 512]")
        )
        last = f"gelu_{layer}"
    if not modules:
        made = [one | {"module": None} for one in made]
    graph = {"id": 0, "frame": "forward", "level": "forward", "code": "", "nodes": made}
    return {"version": 1, "name": "Large.forward", "graphs": [graph]}
