"""Programs of libraries for metrics, graphs, sequences, tables and symmetries."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.frameworks.programs import Net, Run, batched, fitting, losses, program, rows, sgd


@program("torchmetrics: metrics beside and in a compiled model")
def _(run: Run) -> Any:
    import torchmetrics

    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy("multiclass", num_classes=4),
            "f1": torchmetrics.F1Score("multiclass", num_classes=4),
        }
    )
    model = run.compile(Net().eval())
    update = run.compile(metrics.update)
    turns = itertools.cycle(batched(*rows()))

    def step() -> None:
        x, y = next(turns)
        update(model(x).softmax(-1), y)

    for _ in range(4):
        step()
    facts = {
        "metrics": metrics.compute(),
        "states": dict(metrics.state_dict()),
        "count": metrics["accuracy"].update_count,
    }
    metrics.reset()
    return {**facts, "after": len(metrics)}, step


@program("pyg: GCN, GAT and SAGE trained")
def _(run: Run) -> Any:
    from torch_geometric import nn as gnn

    edges = torch.randint(0, 40, (2, 160))
    x, y = rows(40)
    facts: dict[str, Any] = {}
    for kind in (gnn.GCN, gnn.GAT, gnn.GraphSAGE):
        torch.manual_seed(0)
        raw = kind(16, 32, 2, 4, dropout=0.1)
        model = run.compile(raw)
        step = fitting(lambda x, model=model: model(x, edges), [(x, y)], sgd(raw))
        facts[kind.__name__] = losses(step)
    return facts, step


@program("pyg: batches of graphs of several sizes")
def _(run: Run) -> Any:
    from torch_geometric import nn as gnn
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    class Graphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = gnn.GINConv(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32)))
            self.last = nn.Linear(32, 2)

        def forward(self, data: Any) -> torch.Tensor:
            pooled = gnn.global_mean_pool(self.conv(data.x, data.edge_index), data.batch, data.num_graphs)
            out: torch.Tensor = self.last(pooled)
            return out

    sizes = [3, 5, 8, 4, 9, 6, 7, 10, 11, 4, 6, 5]
    data = [Data(torch.randn(n, 16), torch.randint(0, n, (2, 2 * n)), y=torch.tensor([n % 2])) for n in sizes]
    raw = Graphs()
    model = run.compile(raw)
    step = fitting(model, [(b, b.y) for b in DataLoader(data, batch_size=3)], sgd(raw))
    return {"losses": losses(step, 8)}, step


@program("x-transformers: training and generation")
def _(run: Run) -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=40, max_seq_len=32, attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
    )
    wrapped = AutoregressiveWrapper(net)
    model = run.compile(wrapped)
    optimizer = sgd(wrapped)
    tokens = torch.randint(0, 40, (2, 16))

    def step() -> float:
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        return float(loss)

    facts = {"losses": losses(step)}
    return {**facts, "generated": model.generate(tokens[:, :4], 8, temperature=0.0)}, step


@program("tensordict: modules and functional calls")
def _(run: Run) -> Any:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    raw = TensorDictSequential(
        TensorDictModule(Net(), in_keys=["x"], out_keys=["logits"]),
        TensorDictModule(lambda z: z.softmax(-1), in_keys=["logits"], out_keys=["p"]),
    )
    model = run.compile(raw)
    optimizer = sgd(raw)
    x, y = rows(16)

    def step() -> float:
        optimizer.zero_grad()
        out = model(TensorDict({"x": x}, [16]))
        loss = F.nll_loss(out["p"].log(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    facts = {"losses": losses(step), "keys": sorted(model(TensorDict({"x": x}, [16])).keys())}
    TensorDict.from_module(raw).data.memmap("saved")
    return facts, step


@program("e3nn: an equivariant network trained")
def _(run: Run) -> Any:
    from e3nn import o3

    class Equivariant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tensor = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
            self.linear = o3.Linear("4x0e + 2x1o", "4x0e")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            around = o3.spherical_harmonics("1x0e + 1x1o", x[:, :3], normalize=True)
            out: torch.Tensor = self.linear(self.tensor(x, around))
            return out

    raw = Equivariant()
    x, y = rows(32, inputs=10)
    step = fitting(run.compile(raw), [(x, y)], sgd(raw))
    return {"losses": losses(step)}, step


@program("pytorch-metric-learning: miners and losses")
def _(run: Run) -> Any:
    from pytorch_metric_learning import losses as metric_losses
    from pytorch_metric_learning import miners

    raw = Net(classes=8)
    model = run.compile(raw)
    loss_of, mine = metric_losses.TripletMarginLoss(), miners.MultiSimilarityMiner()
    apply = run.compile(lambda embedded, y: loss_of(embedded, y, mine(embedded, y)))
    x, y = rows(24)
    step = fitting(model, [(x, y)], sgd(raw, 0.01), apply)
    return {"losses": losses(step)}, step


@program("pytorch-tabnet: its network trained")
def _(run: Run) -> Any:
    from pytorch_tabnet.tab_network import TabNet

    raw = TabNet(16, 4, n_d=8, n_a=8, n_steps=2, group_attention_matrix=torch.eye(16))
    model = run.compile(raw)

    def loss_of(out: Any, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out[0], y) - 1e-3 * out[1]

    step = fitting(model, batched(*rows(512), 256), sgd(raw, 0.01), loss_of)
    return {"losses": losses(step)}, step
