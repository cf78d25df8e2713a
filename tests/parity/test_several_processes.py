"""Several processes share gradients or parameters, in the forms that docs/gpus.md shows: two processes, on CPUs."""

from __future__ import annotations

import pytest

from tests.harness.processes import run

PROGRAM = """
import json, os, sys, tempfile
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import smelt
from smelt import events

store = tempfile.mktemp()
child = os.fork()
rank = 1 if child else 0
torch.set_num_threads(1)
distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
mesh = distributed.init_device_mesh("cpu", (2,))


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)))


def sharded(model, compile_block=None):
    for block in model:
        if compile_block is not None:
            compile_block(block)
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def compiled_blocks(model):
    for block in model:
        smelt.compile_(block)
    return model


def compiled_in_place(model):
    smelt.compile_(model)
    return model


FORMS = {
    "ddp": (DistributedDataParallel, lambda: DistributedDataParallel(smelt.compile(model()))),
    "ddp of blocks": (DistributedDataParallel, lambda: DistributedDataParallel(compiled_blocks(model()))),
    "all of ddp": (DistributedDataParallel, lambda: smelt.compile(DistributedDataParallel(model()))),
    "all of ddp, in place": (
        DistributedDataParallel,
        lambda: compiled_in_place(DistributedDataParallel(model())),
    ),
    "blocks, then fsdp": (sharded, lambda: sharded(model(), smelt.compile_)),
    "fsdp, then blocks": (sharded, lambda: compiled_blocks(sharded(model()))),
    "fsdp, then all": (sharded, lambda: smelt.compile(sharded(model()))),
}


def losses(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 64).reshape(8, 8) * (rank + 1)
    found = []
    for _ in range(4):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


results = {}
for name, (wrap, form) in FORMS.items():
    smelt.reset()
    graphs, kinds = [], []

    def note(event):
        kinds.append(event.kind)
        if event.kind == "entry-installed":
            graphs.append(sum(node.op.startswith("call") for node in event.data["entry"].traced.torch_graph))

    expected = losses(wrap(model()))
    with events.subscribed(note):
        found = losses(form())
    results[name] = [found, expected, sorted(n for n in graphs if n), kinds.count("backward-compiled")]
distributed.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(json.dumps(results))
"""


WHOLE = ("ddp", "all of ddp", "all of ddp, in place")


def test_losses_are_those_of_eager_and_the_blocks_are_graphs():
    results = run(PROGRAM)
    assert len(results) == 7
    for form, (found, expected, graphs, backwards) in results.items():
        assert found == pytest.approx(expected, rel=1e-6), form
        assert graphs == ([6] if form in WHOLE else [3, 3]), form  # operators of each graph
        assert backwards == len(graphs), form
