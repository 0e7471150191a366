"""Trains one framework with dropout, or GIN, GraphSAGE or attention: `speed.py` runs this where `bench_gnn.py` has no
setting.

    PEERS_DIR=... python bench/peer.py --graph G.npz --backend dgl_i32 --model sage --hidden 128 --weights W.safetensors
    PEERS_DIR=... python bench/peer.py --graph G.npz --backend dgl_i32 --model gat --heads 8 --hidden 64 --weights W.safetensors

Two layers, softmax cross-entropy, Adam(0.01), float32, on a symmetric graph. The backends, each tuned for speed:
  pyg_csr         PyG's layers on a torch.sparse_csr adjacency (`GCNConv(cached=True)`, `GINConv`, `SAGEConv`)
  dgl_i32         DGL's layers (`GraphConv`, `GINConv`, `SAGEConv`) on an int32 graph
  torch_csr_best  plain torch: int32 CSR for MKL, a backward without a transpose, the cheaper order of product and gather
  torch_pre       the same, with A X computed once before training, which dropout of the input forbids
Those of `gat` and `gatv2`, whose `--hidden` is the width of all heads together; the last layer averages its heads:
  dgl_i32         DGL's `GATConv`, `GATv2Conv` on an int32 graph that has the self-loops; one bias after the heads, as PyG has
  pyg_edge_index  PyG's `GATConv`, `GATv2Conv` on an edge index, as in its examples: self-loops are added in each call
  pyg_sorted      the same on an `EdgeIndex` sorted by destination that has the self-loops already
  pyg_csr         the same on a torch.sparse_csr adjacency that has the self-loops already
The first two epochs are without dropout. `losses` are those of these two epochs and can be compared; dropout masks differ
between frameworks. Prints one JSON line, also if memory runs out, which `--mem-gb` limits. `speed.py` chooses the Python;
`PEERS_DIR` holds the helpers shared with `bench_gnn.py`.
"""

import argparse
import json
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["PEERS_DIR"])
from bench_gnn import self_looped  # noqa: E402
from gen_graph import load  # noqa: E402
from peerlib import Samples, peak_mb, protect, reset_peak, slice_timer, stats_ms  # noqa: E402


ATTENTION = ("gat", "gatv2")


def read_weights(path):
    """Returns the tensors of a safetensors file of f32."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header, data = json.loads(file.read(size)), file.read()
    tensors = {}
    for name, about in header.items():
        first, last = about["data_offsets"]
        tensors[name] = torch.from_numpy(np.frombuffer(data[first:last], np.float32).copy()).reshape(about["shape"])
    return tensors


class Gather(torch.autograd.Function):
    """`matrix @ x`, with the transposed matrix for the backward pass."""

    @staticmethod
    def forward(ctx, matrix, transposed, x):
        ctx.transposed = transposed
        return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx, grad):
        return None, None, torch.sparse.mm(ctx.transposed, grad.contiguous())


class Plain(torch.nn.Module):
    """The three models in plain torch. With `torch_pre`, the first layer's sum over neighbours is precomputed."""

    def __init__(self, a, g, x, weights):
        super().__init__()
        self.model, self.weights = a.model, torch.nn.ParameterDict()
        for name, value in weights.items():
            self.weights[name.replace(".", "_")] = torch.nn.Parameter(value)
        indptr, indices, values = g["indptr"], g["indices"], np.ones(g["nnz"], np.float32)
        if a.model != "sage":
            indptr, indices, values = self_looped(indptr, indices)
        values = np.ones_like(values) if a.model == "gin" else values
        matrix = lambda values: torch.sparse_csr_tensor(  # noqa: E731
            torch.from_numpy(indptr).int(), torch.from_numpy(indices).int(), torch.from_numpy(values), size=(g["n"], g["n"]))
        self.matrix = self.transposed = matrix(values)
        if a.model == "sage":
            inverse = (1 / np.maximum(np.diff(indptr), 1)).astype(np.float32)
            self.matrix = matrix(np.repeat(inverse, np.diff(indptr)))
            self.transposed = matrix(inverse[indices])
        self.first = torch.sparse.mm(self.matrix, x) if a.backend == "torch_pre" else None

    def gather(self, x):
        return Gather.apply(self.matrix, self.transposed, x)

    def layer(self, i, x):
        w = lambda name: self.weights[f"convs_{i}_{name}"]  # noqa: E731
        weight = w({"gcn": "lin_weight", "gin": "nn_lins_0_weight", "sage": "lin_l_weight"}[self.model])
        bias = w({"gcn": "bias", "gin": "nn_lins_0_bias", "sage": "lin_l_bias"}[self.model])
        if i == 0 and self.first is not None:
            h = F.linear(self.first, weight, bias)
        elif weight.shape[1] < weight.shape[0]:
            h = F.linear(self.gather(x), weight, bias)
        else:
            h = self.gather(x @ weight.t()) + bias
        if self.model == "gin":
            return F.linear(F.relu(h), w("nn_lins_1_weight"), w("nn_lins_1_bias"))
        return h + x @ w("lin_r_weight").t() if self.model == "sage" else h

    def parts(self):
        return [lambda x, i=i: self.layer(i, x) for i in range(2)]


class Pyg(torch.nn.Module):
    def __init__(self, a, g, widths, weights):
        super().__init__()
        from torch_geometric.nn import MLP, GCNConv, GINConv, SAGEConv

        make = {
            "gcn": lambda i, o: GCNConv(i, o, cached=True),
            "gin": lambda i, o: GINConv(MLP([i, o, o], norm=None)),
            "sage": lambda i, o: SAGEConv(i, o, aggr="mean"),
        }[a.model]
        self.convs = torch.nn.ModuleList(make(i, o) for i, o in zip(widths, widths[1:]))
        self.load_state_dict(weights)
        self.adjacency = torch.sparse_csr_tensor(
            torch.from_numpy(g["indptr"]), torch.from_numpy(g["indices"]).long(), torch.ones(g["nnz"]), size=(g["n"], g["n"]))

    def parts(self):
        return [lambda x, conv=conv: conv(x, self.adjacency) for conv in self.convs]


class PygAttention(torch.nn.Module):
    def __init__(self, a, g, widths, weights):
        super().__init__()
        from torch_geometric import EdgeIndex
        from torch_geometric.nn import GATConv, GATv2Conv

        conv, loops = {"gat": GATConv, "gatv2": GATv2Conv}[a.model], a.backend == "pyg_edge_index"
        (inputs, hidden, classes), settings = widths, dict(heads=a.heads, add_self_loops=loops)
        layers = [conv(inputs, hidden // a.heads, **settings), conv(hidden, classes, concat=False, **settings)]
        self.convs = torch.nn.ModuleList(layers)
        self.load_state_dict(weights)
        n, indptr, indices = g["n"], g["indptr"], g["indices"]
        if not loops:
            indptr, indices = self_looped(indptr, indices)[:2]
        indptr, indices = torch.from_numpy(indptr), torch.from_numpy(indices).long()
        if a.backend == "pyg_csr":
            self.edges = torch.sparse_csr_tensor(indptr, indices, torch.ones(len(indices)), size=(n, n))
            return
        self.edges = torch.stack([indices, torch.repeat_interleave(torch.arange(n), indptr.diff())])
        if a.backend == "pyg_sorted":
            self.edges = EdgeIndex(self.edges, sparse_size=(n, n), sort_order="col", is_undirected=True)
            self.edges.fill_cache_()

    def parts(self):
        return [lambda x, conv=conv: conv(x, self.edges) for conv in self.convs]


def dgl_graph(n, indptr, indices):
    import dgl

    # Without edge ids, DGL 2.1.0 may crash in its blocked SpMM.
    ids = torch.arange(len(indices), dtype=torch.int32)
    ends = (torch.from_numpy(indptr).int(), torch.from_numpy(indices).int(), ids)
    graph = dgl.graph(("csc", ends), num_nodes=n, idtype=torch.int32)
    graph.create_formats_()
    return graph


class DglHeads(torch.nn.Module):
    """A layer of DGL without its bias, with PyG's: after the heads are side by side, or averaged."""

    def __init__(self, model, inputs, outputs, heads, mean):
        super().__init__()
        from dgl.nn import GATConv, GATv2Conv

        # The `bias` of GATv2Conv is that of its linear layers.
        self.conv = GATConv(inputs, outputs, heads, bias=False) if model == "gat" else GATv2Conv(inputs, outputs, heads)
        self.bias, self.mean = torch.nn.Parameter(torch.zeros(outputs if mean else heads * outputs)), mean

    def forward(self, graph, x):
        h = self.conv(graph, x)
        return (h.mean(1) if self.mean else h.flatten(1)) + self.bias


class DglAttention(torch.nn.Module):
    def __init__(self, a, g, widths, weights):
        super().__init__()
        self.graph = dgl_graph(g["n"], *self_looped(g["indptr"], g["indices"])[:2])
        inputs, hidden, classes = widths
        hidden_layer = DglHeads(a.model, inputs, hidden // a.heads, a.heads, mean=False)
        self.convs = torch.nn.ModuleList([hidden_layer, DglHeads(a.model, hidden, classes, a.heads, mean=True)])
        names = {
            "gat": {"lin.weight": "fc.weight", "att_src": "attn_l", "att_dst": "attn_r"},
            "gatv2": {"lin_l.weight": "fc_src.weight", "lin_l.bias": "fc_src.bias", "lin_r.weight": "fc_dst.weight",
                      "lin_r.bias": "fc_dst.bias", "att": "attn"},
        }[a.model]
        state = {}
        for name, value in weights.items():
            layer, rest = name.split(".", 2)[1:]
            state[f"convs.{layer}." + (f"conv.{names[rest]}" if rest in names else rest)] = value
        self.load_state_dict(state)

    def parts(self):
        return [lambda x, conv=conv: conv(self.graph, x) for conv in self.convs]


class Dgl(torch.nn.Module):
    def __init__(self, a, g, widths, weights):
        super().__init__()
        from dgl.nn import GINConv, GraphConv, SAGEConv

        ends = g["indptr"], g["indices"]
        self.graph = dgl_graph(g["n"], *(self_looped(*ends)[:2] if a.model == "gcn" else ends))
        linear = torch.nn.Linear
        make = {
            "gcn": lambda i, o: GraphConv(i, o, norm="both", allow_zero_in_degree=True),
            "gin": lambda i, o: GINConv(torch.nn.Sequential(linear(i, o), torch.nn.ReLU(), linear(o, o)), "sum"),
            "sage": lambda i, o: SAGEConv(i, o, "mean"),
        }[a.model]
        self.convs = torch.nn.ModuleList(make(i, o) for i, o in zip(widths, widths[1:]))
        names = {
            "gcn": {"lin.weight": "weight", "bias": "bias"},
            "gin": {f"nn.lins.{k}.{p}": f"apply_func.{2 * k}.{p}" for k in (0, 1) for p in ("weight", "bias")} | {"eps": "eps"},
            "sage": {"lin_l.weight": "fc_neigh.weight", "lin_l.bias": "fc_self.bias", "lin_r.weight": "fc_self.weight"},
        }[a.model]
        state = {}
        for name, value in weights.items():
            layer, rest = name.split(".", 2)[1:]
            state[f"convs.{layer}.{names[rest]}"] = value.t().contiguous() if names[rest] == "weight" else value
        self.load_state_dict(state)

    def parts(self):
        return [lambda x, conv=conv: conv(self.graph, x) for conv in self.convs]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--graph", required=True)
    p.add_argument("--backend", required=True)
    p.add_argument("--model", choices=["gcn", "gin", "sage", *ATTENTION], default="gcn")
    p.add_argument("--heads", type=int, default=1, help="of attention; --hidden is the width of all together")
    p.add_argument("--hidden", type=int, required=True)
    p.add_argument("--weights", required=True)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--input-dropout", type=float, default=0.0)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--budget", type=float, default=10.0)
    p.add_argument("--mem-gb", type=float, default=18.0, help="the most memory that this process may allocate")
    a = p.parse_args()
    try:
        line = measure(a)
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        is_memory = isinstance(error, MemoryError) or "alloc" in text or "memory" in text
        line = dict(status="oom" if is_memory else "failed", error=text.strip()[:200], peak_rss_mb=peak_mb())
    print(json.dumps(dict(backend=a.backend, threads=torch.get_num_threads(), torch=torch.__version__, **line)))


def network(a, g, x, widths, weights):
    if a.backend.startswith("torch"):
        return Plain(a, g, x, {name: value for name, value in weights.items() if not name.endswith("eps")})
    attention = a.model in ATTENTION
    if a.backend.startswith("pyg"):
        return (PygAttention if attention else Pyg)(a, g, widths, weights)
    return (DglAttention if attention else Dgl)(a, g, widths, weights)


def measure(a):
    """Returns what the run is reported by."""
    g = load(a.graph)
    x, y = torch.from_numpy(g["x"]), torch.from_numpy(g["y"])
    train = torch.from_numpy(np.flatnonzero(g["train"]))
    weights = read_weights(a.weights)
    widths = [x.shape[1], a.hidden, g["meta"]["classes"]]
    reset_peak()
    net = network(a, g, x, widths, weights)
    protect(a.mem_gb)  # not before: the limit counts what an import maps
    g.clear()
    parts = net.parts()
    adam = torch.optim.Adam(net.parameters(), lr=0.01)

    def forward(rates=(0.0, 0.0)):
        h = x
        for i, (part, rate) in enumerate(zip(parts, rates)):
            h = part(F.dropout(F.relu(h) if i else h, rate, net.training and rate > 0))
        return h

    def epoch(rates):
        start = slice_timer()
        adam.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(rates)[train], y[train])
        loss.backward()
        adam.step()
        times.add(*start)
        return float(loss.detach())

    times, rates = Samples(), (a.input_dropout, a.dropout)
    losses = [epoch((0.0, 0.0)), epoch((0.0, 0.0))]
    dropped = epoch(rates)
    times.clear()
    start = time.perf_counter()
    while len(times) < 3 or (len(times) < a.epochs and time.perf_counter() - start < a.budget):
        epoch(rates)
    peak, infer = peak_mb(), Samples()
    net.eval()
    with torch.no_grad():
        forward()
        start = time.perf_counter()
        while len(infer) < 3 or (len(infer) < a.epochs and time.perf_counter() - start < a.budget / 2):
            at = slice_timer()
            forward()
            infer.add(*at)
    return dict(status="ok", epoch=stats_ms(times), infer=stats_ms(infer), peak_rss_mb=peak, losses=losses,
                dropped_loss=dropped)


if __name__ == "__main__":
    main()
