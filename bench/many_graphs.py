"""Predictions for many small graphs, batched, by PyTorch Geometric or DGL: the same work as `many_graphs.rs`.

    cargo run --release -p lapidary-bench --bin many_graphs -- --data DIR     # writes the graphs and the weights
    python bench/many_graphs.py --data DIR --backend pyg_edge_index --graphs 1000 --model sage

Two layers, f32. For each size of a batch, graphs are collated as in the examples of each library and pass through the model;
the graphs are in memory before. Backends:

  pyg_edge_index  `Batch.from_data_list`, `GCNConv` or `SAGEConv` on its edge index
  pyg_sorted      the same on an `EdgeIndex` that is sorted by destination
  dgl             `dgl.batch`, `GraphConv` or `SAGEConv`, int32 ids

Prints one JSON line per size, with the milliseconds per graph of the fastest round, and the logits' difference to
those of `lapidary infer --checkpoint DIR/run --data DIR/0 --out DIR/0/logits.npy` if that file is there.
"""

import argparse
import glob
import json
import os
import time

import numpy as np
import torch
from safetensors.torch import load_file


def graphs(folder):
    names = sorted((name for name in os.listdir(folder) if name.isdigit()), key=int)
    for name in names:
        path = os.path.join(folder, name)
        array = {part: np.load(os.path.join(path, f"{part}.npy")) for part in ("indptr", "indices", "features")}
        rows = np.repeat(np.arange(len(array["indptr"]) - 1), np.diff(array["indptr"]))
        yield np.stack([array["indices"].astype(np.int64), rows]), array["features"]


class PygModel(torch.nn.Module):
    def __init__(self, model, widths):
        super().__init__()
        from torch_geometric.nn import GCNConv, SAGEConv

        layer = {"gcn": GCNConv, "sage": SAGEConv}[model]
        self.convs = torch.nn.ModuleList(layer(*pair) for pair in zip(widths, widths[1:]))

    def forward(self, x, edges):
        return self.convs[1](self.convs[0](x, edges).relu(), edges)


class DglModel(torch.nn.Module):
    def __init__(self, model, widths):
        super().__init__()
        from dgl.nn import GraphConv, SAGEConv

        layer = {"gcn": GraphConv, "sage": lambda a, b: SAGEConv(a, b, "mean")}[model]
        self.convs = torch.nn.ModuleList(layer(*pair) for pair in zip(widths, widths[1:]))

    def forward(self, graph, x):
        return self.convs[1](graph, self.convs[0](graph, x).relu())


def dgl_weights(model, weights):
    """Returns PyG's weights under DGL's names; `GraphConv` has its weight transposed."""
    if model == "gcn":
        turned = {name: weight.T if weight.dim() == 2 else weight for name, weight in weights.items()}
        return {name.replace("lin.weight", "weight"): weight for name, weight in turned.items()}
    names = {"lin_l.bias": "fc_self.bias", "lin_l.weight": "fc_neigh.weight", "lin_r.weight": "fc_self.weight"}
    return {name[:8] + names[name[8:]]: weight for name, weight in weights.items()}  # "convs.0." has 8 letters


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--backend", required=True, choices=["pyg_edge_index", "pyg_sorted", "dgl"])
    parser.add_argument("--model", default="sage", choices=["gcn", "sage"])
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    all_graphs = list(graphs(args.data))
    [weights] = glob.glob(os.path.join(args.data, "run", "**", "model.safetensors"), recursive=True)[:1]
    weights = load_file(weights)
    bias = sorted(name for name in weights if name.endswith("bias"))
    widths = [all_graphs[0][1].shape[1]] + [len(weights[name]) for name in bias]
    if args.backend == "dgl":
        import dgl

        data = []
        for edges, x in all_graphs:
            graph = dgl.graph((edges[0], edges[1]), num_nodes=len(x), idtype=torch.int32)
            graph = dgl.add_self_loop(graph) if args.model == "gcn" else graph
            graph.ndata["x"] = torch.from_numpy(x)
            data.append(graph)
        model = DglModel(args.model, widths)
        state = dgl_weights(args.model, weights)

        def run(some):
            graph = dgl.batch(some)
            return model(graph, graph.ndata["x"])
    else:
        from torch_geometric import EdgeIndex
        from torch_geometric.data import Batch, Data

        data = [Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(edges)) for edges, x in all_graphs]
        model = PygModel(args.model, widths)
        state = weights

        def run(some):
            batch = Batch.from_data_list(some)
            edges = batch.edge_index
            if args.backend == "pyg_sorted":
                edges = EdgeIndex(edges, sparse_size=(batch.num_nodes, batch.num_nodes), sort_order="col", is_undirected=True)
            return model(batch.x, edges)

    model.load_state_dict(state)
    model.eval()
    with torch.inference_mode():
        first, known = run(data[:1]), os.path.join(args.data, "0", "logits.npy")
        difference = float(np.abs(np.load(known) - first.numpy()).max()) if os.path.exists(known) else None
        for size in map(int, args.batches.split(",")):
            best = float("inf")
            for _ in range(args.rounds):
                total, done, start = 0.0, 0, time.perf_counter()
                while done < args.graphs:
                    some = [data[i % len(data)] for i in range(done, min(done + size, args.graphs))]
                    total += float(run(some)[0, 0])
                    done += len(some)
                best = min(best, time.perf_counter() - start)
            line = {"backend": args.backend, "model": args.model, "batch": size, "graphs": args.graphs}
            print(json.dumps({**line, "ms": best * 1e3 / args.graphs, "difference": difference}), flush=True)


if __name__ == "__main__":
    main()
