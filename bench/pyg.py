"""PyTorch Geometric's side of `accuracy.py`: the six models, and one training run on the CPU.

The parameters are those of PyG's own layers, with PyG's own initialisation: `GCNConv`, `GINConv(MLP([in, out, out],
norm=None))`, `SAGEConv(aggr="mean")`; CommNet is two `torch.nn.Linear` and `SimpleConv(aggr="mean")`; the residual GCN is
`GCNConv` and, if the widths differ, a `torch.nn.Linear` without bias; GAT is `GATConv`, whose heads are concatenated in
hidden layers and averaged in the last, as in PyG's `GAT`.

Each layer has two forward functions over the same parameters. `real` calls PyG's layer with an edge index and dense
features. `fast` is used for training, because `real` is slow on wide sparse features. It is the same formula in plain
torch: the adjacency and the features are CSR matrices, the linear layer comes before the sum over neighbours, and dropout
of a sparse matrix applies to its stored values (the others are 0 in any case). For GAT, only the linear layer is ours:
scores, softmax, dropout and sum are PyG's methods. `check` compares the logits and all
gradients of the two to 1e-5; `accuracy.py` calls it once per model before the first run.
"""

import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import MLP, GATConv, GCNConv, GINConv, SAGEConv, SimpleConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, remove_self_loops

TOLERANCE = 1e-5
# Sparse features with a larger share of non-zeros are faster as a dense matrix.
DENSE_FROM = 0.2


class Csr:
    """A constant sparse matrix with its transpose, so that its products have a backward pass."""

    def __init__(self, indptr, indices, values, cols):
        rows = len(indptr) - 1
        row_of = torch.repeat_interleave(torch.arange(rows), indptr.diff())
        self.order = torch.argsort(indices, stable=True)
        counts = torch.bincount(indices, minlength=cols)
        indptr_t = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        self.pattern = (indptr.int(), indices.int())
        self.pattern_t = (indptr_t.int(), row_of[self.order].int())
        self.shape = (rows, cols)
        self.set_values(values)

    def set_values(self, values):
        self.values = values
        rows, cols = self.shape
        self.matrix = torch.sparse_csr_tensor(*self.pattern, values, (rows, cols), check_invariants=False)
        values_t = values[self.order]
        self.matrix_t = torch.sparse_csr_tensor(*self.pattern_t, values_t, (cols, rows), check_invariants=False)

    def dropped(self, rate, training):
        """Returns the matrix with dropout on its values."""
        if not training or rate == 0:
            return self
        other = object.__new__(Csr)
        other.__dict__.update(self.__dict__)
        other.set_values(F.dropout(self.values, rate))
        return other


class Product(torch.autograd.Function):
    """`csr @ dense`, with a gradient only for `dense`."""

    @staticmethod
    def forward(ctx, csr, dense):
        ctx.csr = csr
        return torch.mm(csr.matrix, dense)

    @staticmethod
    def backward(ctx, grad):
        return None, torch.mm(ctx.csr.matrix_t, grad.contiguous())


def linear(x, weight, bias=None):
    """Returns `x W^T + b` for dense or sparse features."""
    if not isinstance(x, Csr):
        return F.linear(x, weight, bias)
    h = Product.apply(x, weight.t().contiguous())
    return h if bias is None else h + bias


class Graph:
    """The adjacency as an edge index, and as CSR matrices (row v: the in-neighbours of v)."""

    def __init__(self, indptr, indices):
        n = len(indptr) - 1
        target = torch.repeat_interleave(torch.arange(n), indptr.diff())
        self.edge_index = torch.stack([indices, target])
        self.looped = add_self_loops(remove_self_loops(self.edge_index)[0], num_nodes=n)[0]
        degree = indptr.diff().clamp(min=1).float()
        self.sum = Csr(indptr, indices, torch.ones(len(indices)), n)
        self.mean = Csr(indptr, indices, 1 / degree[target], n)
        edges, weights = gcn_norm(self.edge_index, None, n, dtype=torch.float)
        order = torch.argsort(edges[1], stable=True)
        counts = torch.bincount(edges[1], minlength=n)
        indptr = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        self.sym = Csr(indptr, edges[0][order], weights[order], n)


class Gcn(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = GCNConv(inputs, outputs)

    def real(self, x, graph):
        return self.conv(x, graph.edge_index)

    def fast(self, x, graph):
        return Product.apply(graph.sym, linear(x, self.conv.lin.weight)) + self.conv.bias


class Gin(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = GINConv(MLP([inputs, outputs, outputs], norm=None))

    def real(self, x, graph):
        return self.conv(x, graph.edge_index)

    def fast(self, x, graph):
        first, second = self.conv.nn.lins
        h = linear(x, first.weight)
        h = F.relu(h + Product.apply(graph.sum, h) + first.bias)
        return F.linear(h, second.weight, second.bias)


class Sage(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = SAGEConv(inputs, outputs, aggr="mean")

    def real(self, x, graph):
        return self.conv(x, graph.edge_index)

    def fast(self, x, graph):
        mean, own = self.conv.lin_l, self.conv.lin_r
        neighbours, h = linear(x, torch.cat([mean.weight, own.weight])).chunk(2, dim=1)
        return Product.apply(graph.mean, neighbours.contiguous()) + mean.bias + h


class CommNet(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin_h = torch.nn.Linear(inputs, outputs)
        self.lin_c = torch.nn.Linear(inputs, outputs, bias=False)
        self.mean = SimpleConv(aggr="mean")

    def real(self, x, graph):
        return self.lin_h(x) + self.lin_c(self.mean(x, graph.edge_index))

    def fast(self, x, graph):
        c, h = linear(x, torch.cat([self.lin_c.weight, self.lin_h.weight])).chunk(2, dim=1)
        return Product.apply(graph.mean, c.contiguous()) + h + self.lin_h.bias


class Gat(torch.nn.Module):
    def __init__(self, inputs, outputs, heads, last, dropout):
        super().__init__()
        width = outputs if last else outputs // heads
        self.conv = GATConv(inputs, width, heads, concat=not last, dropout=dropout)

    def real(self, x, graph):
        return self.conv(x, graph.edge_index)

    def fast(self, x, graph):
        conv = self.conv
        h = linear(x, conv.lin.weight).view(-1, conv.heads, conv.out_channels)
        ends = (h * conv.att_src).sum(-1), (h * conv.att_dst).sum(-1)
        alpha = conv.edge_updater(graph.looped, alpha=ends, edge_attr=None, size=None)
        y = conv.propagate(graph.looped, x=(h, h), alpha=alpha, size=None)
        return (y.flatten(1) if conv.concat else y.mean(1)) + conv.bias


LAYERS = {"gcn": Gcn, "gin": Gin, "sage": Sage, "commnet": CommNet, "resgcn": Gcn}


class Net(torch.nn.Module):
    """Layers with ReLU (or ELU) and dropout between them. The residual GCN's shortcuts bypass the dropout. Attention
    weights have the dropout of hidden layers."""

    def __init__(self, model, widths, dropout, input_dropout, heads=1, activation="relu"):
        super().__init__()
        pairs = list(zip(widths, widths[1:]))
        self.activation = getattr(F, activation)
        if model == "gat":
            layers = [Gat(i, o, heads, layer + 1 == len(pairs), dropout) for layer, (i, o) in enumerate(pairs)]
        else:
            layers = [LAYERS[model](i, o) for i, o in pairs]
        self.convs = torch.nn.ModuleList(layers)
        self.shortcuts = None
        if model == "resgcn":
            self.shortcuts = torch.nn.ModuleList(
                torch.nn.Identity() if i == o else torch.nn.Linear(i, o, bias=False) for i, o in pairs
            )
        self.rates = [input_dropout] + [dropout] * (len(pairs) - 1)

    def drop(self, x, rate):
        return x.dropped(rate, self.training) if isinstance(x, Csr) else F.dropout(x, rate, self.training)

    def shortcut(self, layer, x):
        lin = self.shortcuts[layer]
        return linear(x, lin.weight) if isinstance(lin, torch.nn.Linear) else x

    def forward(self, x, graph, first=0, last=None, real=False):
        """Runs the layers from `first` up to, but not including, `last`."""
        for layer in range(len(self.convs))[first:last]:
            h = self.drop(x, self.rates[layer])
            h = self.convs[layer].real(h, graph) if real else self.convs[layer].fast(h, graph)
            if layer + 1 < len(self.convs):
                h = self.activation(h)
            x = h if self.shortcuts is None else h + self.shortcut(layer, x)
        return x


class Data:
    """A dataset directory. With `row_norm`, features are divided by their row sums (rows with sum 0 stay 0)."""

    def __init__(self, folder, row_norm):
        load = lambda name: torch.from_numpy(np.load(folder / f"{name}.npy").astype(np.int64))
        self.graph = Graph(load("indptr"), load("indices"))
        self.labels = load("labels")
        self.train, self.val, self.test = load("train"), load("val"), load("test")
        self.classes = int(self.labels.max()) + 1
        if (folder / "features.npy").exists():
            self.x = torch.from_numpy(np.load(folder / "features.npy").astype(np.float32))
            if row_norm:
                self.x = self.x / torch.where(self.x.sum(1) == 0, 1.0, self.x.sum(1))[:, None]
            self.width = self.x.shape[1]
            return
        indptr, indices = load("features_indptr"), load("features_indices")
        values = torch.from_numpy(np.load(folder / "features_values.npy").astype(np.float32))
        self.width = read_width(folder) or int(indices.max()) + 1
        if row_norm:
            row_of = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
            sums = torch.zeros(len(indptr) - 1).index_add_(0, row_of, values)
            values = values / torch.where(sums == 0, 1.0, sums)[row_of]
        self.x = Csr(indptr, indices, values, self.width)
        if len(values) > DENSE_FROM * len(self.labels) * self.width:
            self.x = self.x.matrix.to_dense()


def read_width(folder):
    path = folder / "dataset.json"
    return json.loads(path.read_text()).get("feature_width") if path.exists() else None


def widths_of(data, settings):
    return [data.width] + [settings["hidden"]] * (settings["layers"] - 1) + [data.classes]


def train(data, model, seed, settings):
    """Trains once, and evaluates without dropout after each update. The test accuracy is that of the epoch with the best
    validation accuracy, the earliest on a tie."""
    start = time.perf_counter()
    torch.manual_seed(seed)
    options = {name: settings[name] for name in ("dropout", "input_dropout", "heads", "activation") if name in settings}
    net = Net(model, widths_of(data, settings), **options)
    adam = torch.optim.Adam(net.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])
    best = {"val_accuracy": -1.0}
    h = net(data.x, data.graph, last=1)
    for epoch in range(1, settings["epochs"] + 1):
        net.train()
        adam.zero_grad()
        if settings["input_dropout"] > 0 or model == "gat":
            h = net(data.x, data.graph, last=1)
        logits = net(h, data.graph, first=1)
        F.cross_entropy(logits[data.train], data.labels[data.train]).backward()
        adam.step()
        net.eval()
        h = net(data.x, data.graph, last=1)  # the next step reuses it, unless it drops input or attention
        with torch.no_grad():
            right = net(h, data.graph, first=1).argmax(1) == data.labels
        val = right[data.val].double().mean().item()
        if val > best["val_accuracy"]:
            best = {"test_accuracy": right[data.test].double().mean().item(), "val_accuracy": val, "best_epoch": epoch}
    return {**best, "seconds": round(time.perf_counter() - start, 3)}


def check(data, model):
    """Returns the largest difference of logits and gradients between `real` and `fast` for a net of three layers, as a
    share of each array's largest entry."""
    torch.manual_seed(0)
    net = Net(model, [data.width, 16, 16, data.classes], 0.0, 0.0, heads=4 if model == "gat" else 1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))  # biases of 0 would hide one in the wrong place
    dense = data.x.matrix.to_dense() if isinstance(data.x, Csr) else data.x
    answers = []
    for x, real in [(dense, True), (data.x, False)]:
        net.zero_grad()
        logits = net(x, data.graph, real=real)
        F.cross_entropy(logits[data.train], data.labels[data.train]).backward()
        answers.append([logits.detach()] + [p.grad.clone() for p in net.parameters()])
    worst = max(((a - b).abs().max() / a.abs().max().clamp(min=1e-12)).item() for a, b in zip(*answers))
    if not worst <= TOLERANCE:
        raise SystemExit(f"{model}: the layers that train differ from PyG's by {worst:.1e}")
    return worst
