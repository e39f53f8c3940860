"""Graph networks of torch_geometric: one loss for each node, or for each graph."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.models import RATE, Entry, Made, package

__all__ = ["graphs_entries"]

NODES, WIDTH = 12, 8
BASIC = {
    "GCN": {}, "GraphSAGE": {}, "GIN": {}, "GAT": {"heads": 2}, "EdgeCNN": {},
    "PNA": {"aggregators": ["mean", "max"], "scalers": ["identity"]},
}  # fmt: skip


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, WIDTH, generator=generator)
    edges = torch.randint(NODES, (2, 40), generator=generator)
    around = torch.arange(NODES)
    return x, torch.cat([edges, torch.stack([around, around.roll(1)])], 1)


class Layers(nn.Module):
    """Two layers of attention over edges, whose weights are dropped."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.elu(self.first(F.dropout(x, RATE, self.training), edge_index)), edge_index)


class Pooled(nn.Module):
    """A graph of four is one example."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body, self.head, self.drop = body, nn.Linear(WIDTH, 3), nn.Dropout(RATE)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x, edge_index).view(3, -1, WIDTH).mean(1)))


def graphs_entries() -> Iterator[Entry]:
    for name, settings in BASIC.items():
        yield Entry("graphs", name, lambda name=name, settings=settings: basic(name, settings))
    for name in ("GATConv", "GATv2Conv", "TransformerConv", "SuperGATConv", "APPNP", "GPSConv", "LINKX", "DeepGCN", "GraphUNet",
                 "AttentiveFP", "DNA", "DropEdge"):  # fmt: skip
        yield Entry("graphs", name, lambda name=name: layers(name))
    yield Entry("graphs", "graphs of nodes", pooled)


def made(model: nn.Module, *inputs: Any, examples: int = NODES) -> Made:
    return Made(model.eval(), inputs or data(), examples)


def basic(name: str, settings: dict[str, Any]) -> Made:
    pyg = package("torch_geometric.nn")

    torch.manual_seed(0)
    if name == "PNA":
        settings = settings | {"deg": torch.ones(10)}
    return made(getattr(pyg, name)(WIDTH, WIDTH, 2, 4, dropout=RATE, **settings))


def pooled() -> Made:
    pyg = package("torch_geometric.nn")

    torch.manual_seed(0)
    x, _ = data()
    inside = torch.tensor([[0, 1, 2, 3, 1, 2], [1, 2, 3, 0, 0, 3]])
    edges = torch.cat([inside + 4 * graph for graph in range(3)], 1)
    return made(Pooled(pyg.GAT(WIDTH, WIDTH, 2, WIDTH, dropout=RATE)), x, edges, examples=3)


def layers(name: str) -> Made:
    pyg = package("torch_geometric.nn")
    dropout_edge = package("torch_geometric.utils").dropout_edge

    torch.manual_seed(0)
    x, edges = data()
    if name in ("GATConv", "GATv2Conv", "TransformerConv", "SuperGATConv"):
        conv = getattr(pyg, name)
        return made(Layers(conv(WIDTH, 4, 2, dropout=RATE), conv(8, 4, 1, dropout=RATE)))
    if name == "APPNP":
        return made(Layers(pyg.GCNConv(WIDTH, WIDTH), pyg.APPNP(3, 0.1, dropout=RATE)))
    if name == "GPSConv":
        settings = {"heads": 2, "dropout": RATE, "attn_kwargs": {"dropout": RATE}}
        return made(Layers(*(pyg.GPSConv(WIDTH, pyg.GCNConv(WIDTH, WIDTH), **settings) for _ in range(2))))
    if name == "LINKX":
        return made(pyg.LINKX(NODES, WIDTH, WIDTH, 4, 2, dropout=RATE))
    if name == "DeepGCN":
        norms = [nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)]
        return made(
            Layers(*(pyg.DeepGCNLayer(pyg.GCNConv(WIDTH, WIDTH), norm, nn.ReLU(), dropout=RATE) for norm in norms))
        )
    if name == "GraphUNet":

        class Dropped(Layers):
            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                edge_index, _ = dropout_edge(edge_index, RATE, training=self.training)
                return self.first(F.dropout(x, RATE, self.training), edge_index)

        return made(Dropped(pyg.GraphUNet(WIDTH, WIDTH, 4, 2), nn.Identity()))
    if name == "AttentiveFP":
        model = pyg.AttentiveFP(WIDTH, WIDTH, 3, 4, 2, 2, dropout=RATE)
        attributes = torch.randn(edges.shape[1], 4, generator=torch.Generator().manual_seed(1))
        return made(model, x, edges, attributes, torch.arange(3).repeat_interleave(4), examples=3)
    if name == "DNA":

        class Deep(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = pyg.DNAConv(WIDTH, heads=2, dropout=RATE)

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                return self.conv(torch.stack([x, x.tanh()], 1), edge_index)

        return made(Deep())

    class Edges(nn.Module):
        """DropEdge: which edges there are is random, not what a unit is."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.drop = pyg.GCNConv(WIDTH, 4), nn.Dropout(RATE)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            edge_index, _ = dropout_edge(edge_index, RATE, training=self.training)
            return self.conv(self.drop(x), edge_index)

    return made(Edges())
