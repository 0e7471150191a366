"""One rank of a GCN in PyTorch with torch.distributed (gloo): `ranks.py` starts as many as it compares with.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=lo \
        python bench/ranks_peer.py --data DIR --exchange halo --parts 0,82956,169343 --weights W.safetensors &
    RANK=1 ...

The model is that of `lapidary train --dropout 0` with two layers: symmetric normalisation with self-loops, softmax
cross-entropy over the training vertices, Adam(0.01), float32. `DIR` is an undirected dataset of Lapidary without self-loops.
A rank has one thread and owns consecutive vertices. It has what an expert would write:
  - products are `torch.sparse.mm` and `addmm` of int32 CSR matrices, which call MKL;
  - A X is computed once, before the first epoch;
  - the second layer multiplies by the weight first if that makes rows narrower;
  - the backward pass uses A, which is its own transpose;
  - one all_reduce carries all gradients and the loss.

Exchanges:
  halo       each rank sends each other rank exactly the rows that it reads (isend, irecv), and multiplies by its own rows
             while they are on their way
  halo_wait  the same, but a rank waits for all rows and multiplies once
  broadcast  every rank broadcasts all of its rows in turn, and each multiplies one block of columns at a time: the 1D
             algorithm of CAGNET (Tripathy, Yelick and Buluc 2020)

Rank 0 prints one JSON line: the seconds of each epoch, which are those of the slowest rank, the losses, and the bytes of rows
that all ranks send in an epoch, without gradients.
"""

import argparse
import datetime
import json
import os
import signal
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file


def csr(rows, columns, values, shape):
    """Returns a CSR matrix with int32 indices, which MKL multiplies without a conversion. Entries may be in any order."""
    order = np.lexsort((columns, rows))
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))]).astype(np.int32)
    columns, values = columns[order].astype(np.int32), values[order]
    return torch.sparse_csr_tensor(torch.from_numpy(starts), torch.from_numpy(columns), torch.from_numpy(values), size=shape)


def own_entries(folder, first, last):
    """Returns the entries of the normalised adjacency matrix in rows `first..last`: rows from 0, columns and values."""
    starts = np.load(os.path.join(folder, "indptr.npy"))
    indices = np.load(os.path.join(folder, "indices.npy"), mmap_mode="r")
    scale = (1 / np.sqrt(np.diff(starts) + 1.0)).astype(np.float32)
    rows = np.repeat(np.arange(first, last), np.diff(starts[first : last + 1]))
    columns = np.asarray(indices[starts[first] : starts[last]], dtype=np.int64)
    assert not (rows == columns).any(), "the graph must have no self-loops"
    rows, columns = np.append(rows, np.arange(first, last)), np.append(columns, np.arange(first, last))
    return rows - first, columns, scale[rows] * scale[columns]


class Halo:
    """Products with the rows of other ranks, of which each rank receives exactly those that it reads."""

    def __init__(self, rank, bounds, entries, overlap):
        rows, columns, values = entries
        first, last = bounds[rank], bounds[rank + 1]
        self.n, self.overlap, self.buffers, self.sent_bytes = last - first, overlap, {}, 0
        mine = (columns >= first) & (columns < last)
        halo = np.unique(columns[~mine])  # sorted, so the rows of each owner are consecutive
        places = np.where(mine, columns - first, self.n + np.searchsorted(halo, columns))
        if overlap:
            self.own = csr(rows[mine], places[mine], values[mine], (self.n, self.n))
            self.other = csr(rows[~mine], places[~mine] - self.n, values[~mine], (self.n, len(halo)))
        else:
            self.whole = csr(rows, places, values, (self.n, self.n + len(halo)))
        cuts = np.searchsorted(halo, bounds)
        self.reads = {r: (int(cuts[r]), int(cuts[r + 1])) for r in range(len(bounds) - 1) if cuts[r] < cuts[r + 1]}
        wanted = [None] * (len(bounds) - 1)
        dist.all_gather_object(wanted, {r: halo[a:b] for r, (a, b) in self.reads.items()})
        self.sends = {r: torch.from_numpy(w[rank] - first) for r, w in enumerate(wanted) if rank in w}
        self.halo_rows = len(halo)

    def buffers_of(self, width):
        if width not in self.buffers:
            packed = {r: torch.empty(len(rows), width) for r, rows in self.sends.items()}
            self.buffers[width] = packed, torch.empty((0 if self.overlap else self.n) + self.halo_rows, width)
        return self.buffers[width]

    def product(self, x):
        packed, read = self.buffers_of(x.shape[1])
        halo = read if self.overlap else read[self.n :]
        waits = [dist.irecv(halo[a:b], r) for r, (a, b) in self.reads.items()]
        for r, rows in self.sends.items():
            torch.index_select(x, 0, rows, out=packed[r])
            waits.append(dist.isend(packed[r], r))
            self.sent_bytes += packed[r].nbytes
        if self.overlap:
            y = torch.sparse.mm(self.own, x)
        else:
            read[: self.n] = x
        for wait in waits:
            wait.wait()
        return y.addmm_(self.other, halo) if self.overlap else torch.sparse.mm(self.whole, read)


class Broadcast:
    """Products with all rows of all ranks, one owner after the other."""

    def __init__(self, rank, bounds, entries):
        rows, columns, values = entries
        self.rank, self.bounds, self.buffers, self.sent_bytes = rank, bounds, {}, 0
        n, self.blocks = bounds[rank + 1] - bounds[rank], []
        for first, last in zip(bounds, bounds[1:]):
            here = (columns >= first) & (columns < last)
            self.blocks.append(csr(rows[here], columns[here] - first, values[here], (n, last - first)))

    def product(self, x):
        sizes = np.diff(self.bounds)
        if x.shape[1] not in self.buffers:
            self.buffers[x.shape[1]] = torch.empty(int(sizes.max()), x.shape[1])
        y = torch.zeros_like(x)
        for owner, block in enumerate(self.blocks):
            rows = x if owner == self.rank else self.buffers[x.shape[1]][: sizes[owner]]
            dist.broadcast(rows, owner)
            y.addmm_(block, rows)
        self.sent_bytes += x.nbytes * (len(self.blocks) - 1)
        return y


class Gather(torch.autograd.Function):
    """`A x` over all ranks. A is symmetric, so the backward pass is the same product."""

    @staticmethod
    def forward(ctx, exchange, x):
        ctx.exchange = exchange
        return exchange.product(x.contiguous())

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.exchange.product(grad.contiguous())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="dataset directory of Lapidary")
    p.add_argument("--exchange", choices=["halo", "halo_wait", "broadcast"], required=True)
    p.add_argument("--parts", required=True, help="the first vertex of each rank, and the number of vertices: 0,100,200")
    p.add_argument("--weights", required=True, help="initial weights by PyG's names, safetensors")
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--timeout", type=int, default=300, help="seconds until this process ends itself")
    a = p.parse_args()
    signal.alarm(a.timeout)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=a.timeout))
    line = train(a, [int(v) for v in a.parts.split(",")])
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def train(a, bounds):
    """Trains, and returns what the run is reported by."""
    rank = dist.get_rank()
    first, last = bounds[rank], bounds[rank + 1]
    x = torch.from_numpy(np.array(np.load(os.path.join(a.data, "features.npy"), mmap_mode="r")[first:last], np.float32))
    labels = torch.from_numpy(np.load(os.path.join(a.data, "labels.npy"))[first:last]).long()
    train_ids = np.load(os.path.join(a.data, "train.npy"))
    mine = torch.from_numpy(train_ids[(train_ids >= first) & (train_ids < last)] - first).long()
    y, train_count = labels[mine], len(train_ids)
    entries = own_entries(a.data, first, last)
    if a.exchange == "broadcast":
        exchange = Broadcast(rank, bounds, entries)
    else:
        exchange = Halo(rank, bounds, entries, a.exchange == "halo")
    gathered = exchange.product(x)  # constant: once, before the first epoch
    del x, entries
    names = ["convs.0.lin.weight", "convs.0.bias", "convs.1.lin.weight", "convs.1.bias"]
    weights = load_file(a.weights)
    w0, b0, w1, b1 = parameters = [weights[name].requires_grad_() for name in names]
    adam = torch.optim.Adam(parameters, lr=0.01)

    def epoch():
        adam.zero_grad(set_to_none=True)
        h = F.relu(F.linear(gathered, w0, b0))
        if w1.shape[0] < w1.shape[1]:
            logits = Gather.apply(exchange, h @ w1.t()) + b1
        else:
            logits = F.linear(Gather.apply(exchange, h), w1, b1)
        loss = F.cross_entropy(logits[mine], y, reduction="sum") / train_count
        loss.backward()
        sums = torch.cat([p.grad.flatten() for p in parameters] + [loss.detach().view(1)])
        dist.all_reduce(sums)
        for p, grad in zip(parameters, sums.split([p.numel() for p in parameters] + [1])):
            p.grad = grad.view_as(p)
        adam.step()
        return float(sums[-1])

    seconds, losses = [], []
    exchange.sent_bytes = 0
    for _ in range(a.epochs):
        start = time.perf_counter()
        losses.append(epoch())
        seconds.append(time.perf_counter() - start)
    slowest, sent = torch.tensor(seconds), torch.tensor([exchange.sent_bytes])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(sent)
    return dict(seconds=slowest.tolist(), losses=losses, sent_bytes=int(sent) // a.epochs, torch=torch.__version__)


if __name__ == "__main__":
    main()
