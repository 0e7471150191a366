"""Times PyTorch, PyTorch Geometric and cuSPARSE on the graphs that `lapidary gpu-check` wrote into DIR.

    python3 gpu_peers.py DIR SECONDS [--device cuda]

Reads DIR/graphs.json and writes DIR/peers.json. Starts nothing after SECONDS, and reports what it left out. If PyTorch
Geometric is missing, plain torch replaces its edge index.

Gathers sum over in-neighbours. `torch_csr` is torch.sparse. `cusparse` calls SpMM directly, with its descriptors, buffer
and preprocessing made once, and the fastest of its algorithms for row-major operands. Both read a value of 1 for each
edge, which ours does not need.

Training is a GCN on all labels without dropout, with Adam, all in f32 (no TF32), as ours. `torch_csr` multiplies by the
weight first if that is narrower, and uses the symmetry of the graph; `torch_csr_hoisted` computes A X once, as we do;
`pyg_edge_index` is GCNConv with its normalisation cached. Times are medians after warm-up runs.
"""

import argparse
import ctypes
import json
import os
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F

try:
    import torch_geometric
    from torch_geometric.nn import GCNConv, SimpleConv
except Exception as error:  # a broken installation counts as missing
    torch_geometric, WITHOUT_PYG = None, f"{type(error).__name__}: {error}"

MOST_RUNS, WARM_UP = 9, 2


class Clock:
    """Times work on a device, and tracks the remaining time."""

    def __init__(self, device, seconds):
        self.cuda = device == "cuda"
        self.end = time.monotonic() + seconds

    def spent(self):
        return time.monotonic() >= self.end

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def once(self, work, by_device):
        """Returns the seconds of `work`, by the device's clock or by the host's, which waits for it."""
        if by_device and self.cuda:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            work()
            ended.record()
            ended.synchronize()
            return begun.elapsed_time(ended) / 1e3
        begun = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - begun

    def median(self, work, by_device=False):
        """Returns the median seconds of `work`. Slow work is run fewer times."""
        for _ in range(WARM_UP):
            work()
        self.wait()
        taken, start = [], time.monotonic()
        while len(taken) < 3 or (len(taken) < MOST_RUNS and time.monotonic() - start < 2):
            taken.append(self.once(work, by_device))
        return statistics.median(taken)


class Graph:
    """A symmetric graph as CSR, and with self-loops and GCN's weights."""

    def __init__(self, folder, name, device):
        load = lambda what: np.load(os.path.join(folder, f"{name}-{what}.npy"))
        self.indptr = torch.from_numpy(load("indptr")).to(device)
        self.indices = torch.from_numpy(load("indices").view(np.int32)).to(device)
        self.n, self.e = len(self.indptr) - 1, len(self.indices)
        self.device = device
        self._edge_index = None

    def ones(self):
        values = torch.ones(self.e, device=self.device)
        return torch.sparse_csr_tensor(self.indptr.int(), self.indices, values, (self.n, self.n), check_invariants=False)

    def edge_index(self):
        if self._edge_index is None:
            rows = torch.repeat_interleave(torch.arange(self.n, device=self.device), self.indptr.diff())
            self._edge_index = torch.stack([self.indices.long(), rows])
        return self._edge_index

    def normalised(self):
        """Returns D^-1/2 (A + I) D^-1/2; a vertex's loop comes last in its row."""
        counts = self.indptr.diff()
        indptr = self.indptr + torch.arange(self.n + 1, device=self.device)
        rows = torch.repeat_interleave(torch.arange(self.n, device=self.device), counts)
        columns = torch.empty(self.e + self.n, dtype=torch.int32, device=self.device)
        columns[torch.arange(self.e, device=self.device) + rows] = self.indices
        columns[indptr[1:] - 1] = torch.arange(self.n, dtype=torch.int32, device=self.device)
        scale = (counts + 1).float().rsqrt()
        values = scale[torch.repeat_interleave(torch.arange(self.n, device=self.device), counts + 1)]
        values *= scale[columns.long()]
        return torch.sparse_csr_tensor(indptr.int(), columns, values, (self.n, self.n), check_invariants=False)


class Product(torch.autograd.Function):
    """A symmetric CSR times a matrix."""

    @staticmethod
    def forward(ctx, csr, dense):
        ctx.csr = csr
        return torch.mm(csr, dense)

    @staticmethod
    def backward(ctx, grad):
        return None, torch.mm(ctx.csr, grad.contiguous())


class CsrGcn(torch.nn.Module):
    def __init__(self, widths, csr, features, hoisted):
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.csr, self.hoisted = csr, hoisted
        self.x = torch.mm(csr, features) if hoisted else features

    def forward(self):
        x = self.x
        for i, linear in enumerate(self.linears):
            if i == 0 and self.hoisted:
                x = linear(x)
            elif linear.out_features <= linear.in_features:
                x = Product.apply(self.csr, F.linear(x, linear.weight)) + linear.bias
            else:
                x = linear(Product.apply(self.csr, x))
            if i + 1 < len(self.linears):
                x = F.relu(x)
        return x


class EdgeIndexGcn(torch.nn.Module):
    """PyG's layers, or the same computation in plain torch."""

    def __init__(self, widths, graph, features):
        super().__init__()
        self.x, self.graph = features, graph
        if torch_geometric:
            self.convs = torch.nn.ModuleList(GCNConv(a, b, cached=True) for a, b in zip(widths, widths[1:]))
            return
        self.convs = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        loops = torch.arange(graph.n, device=graph.device)
        self.index = torch.cat([graph.edge_index(), torch.stack([loops, loops])], dim=1)
        scale = (graph.indptr.diff() + 1).float().rsqrt()
        self.weight = (scale[self.index[0]] * scale[self.index[1]])[:, None]

    def convolve(self, conv, x):
        if torch_geometric:
            return conv(x, self.graph.edge_index())
        h = F.linear(x, conv.weight)
        return torch.zeros_like(h).index_add(0, self.index[1], h[self.index[0]] * self.weight) + conv.bias

    def forward(self):
        x = self.x
        for i, conv in enumerate(self.convs):
            x = self.convolve(conv, x)
            if i + 1 < len(self.convs):
                x = F.relu(x)
        return x


class CuSparse:
    """SpMM of cuSPARSE, with everything prepared once."""

    # csr_alg3 read memory that is not its own on an H200 (CUDA 13.0), which ends the process.
    ALGORITHMS = {"default": 0, "csr_alg1": 4, "csr_alg2": 6}

    def __init__(self):
        self.cusparse = ctypes.CDLL("libcusparse.so.12")
        self.handle = ctypes.c_void_p()
        self.call("cusparseCreate", ctypes.byref(self.handle))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("cusparseSetStream", self.handle, stream)

    def call(self, name, *arguments):
        status = getattr(self.cusparse, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    def product(self, csr, x, out, algorithm):
        """Returns a function that runs `out = csr x`."""
        (n, m), d = csr.shape, x.shape[1]
        i64, pointer = ctypes.c_int64, lambda t: ctypes.c_void_p(t.data_ptr())
        a, b, c = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        index_32, f32, row_major = 2, 0, 2
        self.call("cusparseCreateCsr", ctypes.byref(a), i64(n), i64(m), i64(csr.values().numel()), pointer(csr.crow_indices()),
                  pointer(csr.col_indices()), pointer(csr.values()), index_32, index_32, 0, f32)
        for matrix, tensor in [(b, x), (c, out)]:
            self.call("cusparseCreateDnMat", ctypes.byref(matrix), i64(tensor.shape[0]), i64(d), i64(d), pointer(tensor), f32,
                      row_major)
        one, zero, size = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_size_t()
        head = (self.handle, 0, 0, ctypes.byref(one), a, b, ctypes.byref(zero), c, f32, algorithm)
        self.call("cusparseSpMM_bufferSize", *head, ctypes.byref(size))
        buffer = torch.empty(max(size.value, 16), dtype=torch.uint8, device="cuda")
        if algorithm != 0:
            self.call("cusparseSpMM_preprocess", *head, pointer(buffer))
        kept = (csr, x, out, buffer, one, zero)
        return lambda: self.call("cusparseSpMM", *head, pointer(kept[3]))


def measure(clock, wanted, found, save):
    """Adds to `found` a row for each name and function of `wanted`, with its error if it fails, or the name if there is no
    time for it. Saves after each, because a library that crashes ends the program."""
    for row, work in wanted:
        if clock.spent():
            found["left_out"].append(" ".join(str(value) for value in row.values()))
            continue
        try:
            row.update(work())
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        found["rows"].append(row)
        save()
        if clock.cuda:
            torch.cuda.empty_cache()


def gathers(clock, name, graph, widths):
    """Returns the gathers to measure."""
    csr, sparse = None, None

    def ones():
        nonlocal csr
        csr = graph.ones() if csr is None else csr
        return csr

    def by_torch(d):
        matrix, x = ones(), torch.rand(graph.n, d, device=graph.device)
        return {"seconds": clock.median(lambda: torch.mm(matrix, x), True)}

    def by_cusparse(d):
        nonlocal sparse
        sparse = sparse or CuSparse()
        matrix, x = ones(), torch.rand(graph.n, d, device="cuda")
        want, taken, wrong = torch.mm(matrix, x), {}, {}
        for algorithm, number in CuSparse.ALGORITHMS.items():
            out = torch.zeros_like(want)
            try:
                run = sparse.product(matrix, x, out, number)
                seconds = clock.median(run, True)
                if torch.allclose(out, want, rtol=1e-3, atol=1e-3):
                    taken[algorithm] = seconds
                else:
                    wrong[algorithm] = "another result than torch's"
            except RuntimeError as error:
                wrong[algorithm] = str(error)
        best = min(taken, key=taken.get)
        return {"seconds": taken[best], "algorithm": best, "by_algorithm": taken, "not_used": wrong}

    def by_edge_index(d):
        index, x = graph.edge_index(), torch.rand(graph.n, d, device=graph.device)
        if torch_geometric:
            conv = SimpleConv(aggr="sum")
            return {"seconds": clock.median(lambda: conv(x, index), True)}
        return {"seconds": clock.median(lambda: torch.zeros_like(x).index_add(0, index[1], x[index[0]]), True)}

    peers = [("torch_csr", by_torch), (EDGE_INDEX, by_edge_index)]
    if clock.cuda:
        peers.insert(1, ("cusparse", by_cusparse))
    return [
        ({"shape": name, "width": d, "peer": peer}, lambda work=work, d=d: work(d)) for d in widths for peer, work in peers
    ]


def epochs(clock, name, graph, networks):
    """Returns the epochs to measure."""
    wanted = []
    csr = None

    def train(network, make):
        nonlocal csr
        csr = graph.normalised() if csr is None else csr
        torch.manual_seed(0)
        features = torch.rand(graph.n, network[0], device=graph.device) - 0.5
        labels = torch.arange(graph.n, device=graph.device) * 7 % network[-1]
        model = make(network, csr, features).to(graph.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=clock.cuda)

        def epoch():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        seconds = clock.median(epoch)
        loss = float(epoch())
        if not np.isfinite(loss):
            raise RuntimeError(f"the loss is {loss}")
        return {"epoch_seconds": seconds}

    makers = [
        ("torch_csr", lambda network, csr, x: CsrGcn(network, csr, x, False)),
        ("torch_csr_hoisted", lambda network, csr, x: CsrGcn(network, csr, x, True)),
        (EDGE_INDEX, lambda network, _, x: EdgeIndexGcn(network, graph, x)),
    ]
    for network in networks:
        for peer, make in makers:
            row = {"shape": name, "network": network, "peer": peer}
            wanted.append((row, lambda network=network, make=make: train(network, make)))
    return wanted


EDGE_INDEX = "pyg_edge_index" if torch_geometric else "torch_edge_index"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    with open(os.path.join(arguments.folder, "graphs.json"), encoding="utf-8") as file:
        shapes = json.load(file)
    peers = {"torch": torch.__version__}
    if torch_geometric:
        peers["torch_geometric"] = torch_geometric.__version__
    else:
        peers["torch_geometric"] = f"missing ({WITHOUT_PYG}): plain torch with an edge index stands in"
    clock = Clock(arguments.device, arguments.seconds)
    torch.backends.cuda.matmul.allow_tf32 = False
    for kind in ["epochs", "gathers"]:
        peers[kind] = {"rows": [], "left_out": []}

    def save():
        with open(os.path.join(arguments.folder, "peers.json"), "w", encoding="utf-8") as file:
            json.dump(peers, file, indent=2)

    save()
    # Epochs of every shape first: they matter most.
    for kind in ["epochs", "gathers"]:
        for shape in shapes:
            name = shape["shape"]
            if clock.spent():
                peers[kind]["left_out"].append(f"{name}: all of it")
                continue
            graph = Graph(arguments.folder, name, arguments.device)
            if kind == "epochs":
                wanted = epochs(clock, name, graph, shape["networks"])
            else:
                wanted = gathers(clock, name, graph, shape["widths"])
            measure(clock, wanted, peers[kind], save)
            del graph, wanted
    save()


if __name__ == "__main__":
    main()
