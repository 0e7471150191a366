"""Trains GraphSAGE on mini-batches in one framework: `batches.py` and `batch_accuracy.py` run this beside Lapidary.

    PEERS_DIR=... python bench/batches_peer.py --data DIR --program dgl_i32 --fanout 15,10,5 --batch 1024 --hidden 256 \
        --weights W.safetensors --epochs 3

`DIR` is a dataset of Lapidary with one label per vertex. Mean of the neighbours, ReLU, softmax cross-entropy over the seeds,
Adam, float32, as many threads as there are cores. `--fanout` goes from the seeds outwards. The programs:
  dgl, dgl_i32      DGL's `DataLoader` with `NeighborSampler`, on an int64 or int32 graph; its sampling is fused by default.
                    DGL 2.1.0 crashes in its SpMM on the blocks that fused sampling makes of an int32 graph
  dgl_unfused, ..   the same with `fused=False`
  .._worker         the same with one worker process, which samples while this process computes
  graphbolt, ..     GraphBolt's `ItemSampler`, `sample_neighbor` and `DataLoader`; ids and edges are int64, or int32 with `_i32`
  pyg               PyG's `NeighborLoader`, which needs torch_sparse or pyg-lib; layers compute only the rows that are needed.
                    It draws the neighbours of a vertex once and uses them in all layers; the others draw them for each layer
DGL, GraphBolt and PyG compute with their own layer for GraphSAGE. Features and labels of a batch are taken with
`index_select`, whatever samples. Sparse features are made dense.

With `--evaluate`, the accuracy on the validation and test vertices is computed on the whole graph after each epoch, outside
of its time. Prints one JSON line. `--check` only says whether the program can run.
"""

import argparse
import json
import math
import os
import sys
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F

sys.dont_write_bytecode = True
from peer import read_weights  # noqa: E402
from peerlib import peak_mb, protect  # noqa: E402


class Data:
    """A dataset directory. With `row_norm`, features are divided by their row sums (rows with sum 0 stay 0)."""

    def __init__(self, folder, row_norm):
        read = lambda name: np.load(os.path.join(folder, name + ".npy"))  # noqa: E731
        has = lambda name: os.path.exists(os.path.join(folder, name + ".npy"))  # noqa: E731
        self.indptr = torch.from_numpy(read("indptr").astype(np.int64))
        self.indices = torch.from_numpy(read("indices").astype(np.int64))
        self.n = len(self.indptr) - 1
        self.labels = torch.from_numpy(read("labels").astype(np.int64))
        self.split = {name: torch.from_numpy(read(name).astype(np.int64)) for name in ("train", "val", "test") if has(name)}
        with open(os.path.join(folder, "dataset.json")) as file:
            about = json.load(file)
        self.classes = about.get("classes") or int(self.labels.max()) + 1
        if has("features"):
            self.x = torch.from_numpy(read("features").astype(np.float32))
        else:
            indptr, columns = read("features_indptr"), read("features_indices").astype(np.int64)
            self.x = torch.zeros(self.n, about["feature_width"])
            rows = np.repeat(np.arange(self.n), np.diff(indptr))
            self.x[torch.from_numpy(rows), torch.from_numpy(columns)] = torch.from_numpy(read("features_values"))
        if row_norm:
            sums = self.x.sum(1, keepdim=True)
            self.x /= torch.where(sums == 0, 1.0, sums)


class Dgl:
    """DGL's sampler, blocks and layers."""

    def __init__(self, a, data):
        import dgl

        self.id = torch.int32 if "_i32" in a.program else torch.int64
        # Without edge ids, DGL 2.1.0 may crash in its blocked SpMM.
        ends = data.indptr.to(self.id), data.indices.to(self.id), torch.arange(len(data.indices), dtype=self.id)
        self.graph = dgl.graph(("csc", ends), num_nodes=data.n, idtype=self.id)
        self.version = f"DGL {dgl.__version__}"
        self.batches = self.loader(a, data.split["train"].to(self.id))

    def loader(self, a, seeds):
        from dgl.dataloading import DataLoader, NeighborSampler

        sampler = NeighborSampler(a.fanout[::-1], fused="unfused" not in a.program)
        workers = 1 if a.program.endswith("_worker") else 0
        return DataLoader(self.graph, seeds, sampler, batch_size=a.batch, shuffle=True, num_workers=workers)

    def layer(self, inputs, outputs, weights):
        from dgl.nn import SAGEConv

        conv = SAGEConv(inputs, outputs, "mean")
        names = {"fc_neigh.weight": "lin_l.weight", "fc_self.bias": "lin_l.bias", "fc_self.weight": "lin_r.weight"}
        conv.load_state_dict({name: weights[of_pyg] for name, of_pyg in names.items()})
        return conv

    def parts(self, batch):
        """Returns the vertices of the features, the seeds, and what each layer computes on."""
        return batch

    def sizes(self, blocks):
        """Returns the number of rows of each layer, and of its edges, from the input to the seeds."""
        return [b.num_dst_nodes() for b in blocks], [b.num_edges() for b in blocks]

    def apply(self, conv, block, h):
        return conv(block, h)

    def whole(self):
        return self.graph


class GraphBolt(Dgl):
    """GraphBolt's sampler; the blocks and layers are DGL's."""

    def loader(self, a, seeds):
        import dgl.graphbolt as gb

        ends = self.graph.adj_tensors("csc")
        graph = gb.fused_csc_sampling_graph(ends[0].to(torch.int64), ends[1])
        items = gb.ItemSampler(gb.ItemSet(seeds, names="seed_nodes"), batch_size=a.batch, shuffle=True)
        drawn = items.sample_neighbor(graph, [torch.tensor([count]) for count in a.fanout[::-1]])
        return gb.DataLoader(drawn, num_workers=0)

    def parts(self, batch):
        return batch.input_nodes, batch.seed_nodes, batch.blocks


class Pyg:
    """PyG's sampler and layers."""

    def __init__(self, a, data):
        import torch_geometric
        from torch_geometric.data import Data as Graph
        from torch_geometric.loader import NeighborLoader

        self.version = f"PyG {torch_geometric.__version__}"
        self.edges = torch.stack([data.indices, torch.repeat_interleave(torch.arange(data.n), data.indptr.diff())])
        graph = Graph(edge_index=self.edges, num_nodes=data.n)
        self.batches = NeighborLoader(graph, a.fanout, data.split["train"], batch_size=a.batch, shuffle=True, is_sorted=True,
                                      num_workers=1 if a.program.endswith("_worker") else 0)

    def layer(self, inputs, outputs, weights):
        from torch_geometric.nn import SAGEConv

        conv = SAGEConv(inputs, outputs, aggr="mean")
        conv.load_state_dict(weights)
        return conv

    def parts(self, batch):
        rows, edges = np.cumsum(batch.num_sampled_nodes), np.cumsum(batch.num_sampled_edges)
        layers = [(int(r), batch.edge_index[:, :e]) for r, e in zip(rows[:-1], edges)]
        return batch.n_id, batch.n_id[:batch.batch_size], layers[::-1]

    def sizes(self, layers):
        return [rows for rows, _ in layers], [edges.shape[1] for _, edges in layers]

    def apply(self, conv, layer, h):
        if layer is self.edges:
            return conv(h, layer)
        rows, edges = layer
        return conv((h, h[:rows]), edges)

    def whole(self):
        return self.edges


def framework(program):
    return Pyg if program.startswith("pyg") else GraphBolt if program.startswith("graphbolt") else Dgl


def missing(program):
    """Returns why a program cannot run, or nothing."""
    try:
        if not program.startswith("pyg"):
            import dgl.graphbolt  # noqa: F401
            return None
        from torch_geometric import typing
    except ImportError as error:
        return str(error)
    can = typing.WITH_TORCH_SPARSE or typing.WITH_PYG_LIB
    return None if can else "NeighborLoader needs torch_sparse or pyg-lib, and neither imports"


class Net(torch.nn.Module):
    def __init__(self, peer, widths, weights, dropout):
        super().__init__()
        of_layer = lambda i: {k.split(".", 2)[2]: v for k, v in weights.items() if k.startswith(f"convs.{i}.")}  # noqa: E731
        pairs = enumerate(zip(widths, widths[1:]))
        self.convs = torch.nn.ModuleList(peer.layer(i, o, of_layer(place)) for place, (i, o) in pairs)
        self.apply_layer, self.dropout = peer.apply, dropout

    def forward(self, layers, h):
        for i, (conv, layer) in enumerate(zip(self.convs, layers)):
            h = self.apply_layer(conv, layer, F.dropout(F.relu(h), self.dropout, self.training) if i else h)
        return h


def train_epoch(peer, data, net, adam):
    """Returns the seconds of an epoch and of its stages, the mean loss over the seeds, and the mean sizes of its batches."""
    net.train()
    began = at = time.perf_counter()
    spent, loss_sum, seeds, sizes = np.zeros(3), 0.0, 0, []
    for batch in peer.batches:
        inputs, outputs, layers = peer.parts(batch)
        sampled = time.perf_counter()
        x, y = data.x.index_select(0, inputs), data.labels.index_select(0, outputs)
        gathered = time.perf_counter()
        loss = F.cross_entropy(net(layers, x), y)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        loss_sum += float(loss.detach()) * len(y)
        seeds += len(y)
        sizes.append((len(x), *peer.sizes(layers)))
        now = time.perf_counter()
        spent += [sampled - at, gathered - sampled, now - gathered]
        at = now
    inputs, rows, edges = (np.mean([size[k] for size in sizes], axis=0).tolist() for k in range(3))
    stages = dict(zip(("sampling", "gathering", "computing"), spent.tolist()))
    return dict(seconds=time.perf_counter() - began, stage_seconds=stages, batches=len(sizes), loss=loss_sum / seeds,
                sizes=dict(inputs=inputs, rows=rows, edges=edges))


def evaluate(peer, data, net):
    """Returns the accuracy on the validation and test vertices, with all neighbours."""
    net.eval()
    with torch.no_grad():
        right = net([peer.whole()] * len(net.convs), data.x).argmax(1) == data.labels
    return {name + "_accuracy": right[data.split[name]].double().mean().item() for name in ("val", "test")}


def measure(a):
    torch.manual_seed(a.seed)
    protect(0)
    data = Data(a.data, a.feature_norm == "row")
    peer = framework(a.program)(a, data)
    widths = [data.x.shape[1]] + [a.hidden] * (len(a.fanout) - 1) + [data.classes]
    net = Net(peer, widths, read_weights(a.weights), a.dropout)
    adam = torch.optim.Adam(net.parameters(), lr=a.lr, weight_decay=a.weight_decay)
    epochs = []
    for _ in range(a.epochs):
        epochs.append(train_epoch(peer, data, net, adam))
        if not math.isfinite(epochs[-1]["loss"]):
            return dict(status="the loss is not finite", epochs=epochs)
        if a.evaluate:
            epochs[-1].update(evaluate(peer, data, net))
    return dict(status="ok", version=f"{peer.version}, torch {torch.__version__}", epochs=epochs, peak_rss_mb=peak_mb())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True)
    p.add_argument("--check", action="store_true")
    p.add_argument("--data")
    p.add_argument("--weights", help="initial weights by PyG's names")
    p.add_argument("--fanout", type=lambda text: [int(v) for v in text.split(",")])
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--feature-norm", choices=["none", "row"], default="none")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--evaluate", action="store_true")
    a = p.parse_args()
    warnings.filterwarnings("ignore")
    why = missing(a.program)
    if a.check or why:
        line = dict(status="missing" if why else "ok", error=why)
    else:
        try:
            line = measure(a)
        except (RuntimeError, MemoryError, ImportError) as error:
            line = dict(status="failed", error=str(error).strip()[:200])
    print(json.dumps(dict(program=a.program, threads=torch.get_num_threads(), **line)))


if __name__ == "__main__":
    main()
