"""A lower bound for the time of an epoch of two layers, kernel by kernel.

The time of a kernel is the larger of two: its bytes at the rate at which this machine reads or copies memory, and its
operations at the rate of fused multiply-adds. The times of the kernels are added. The bytes are every operand once and
the result once; no source row of a gather is read twice. The bound assumes the cheaper order of product and gather, and
that A X is computed before the first epoch unless dropout of the input forbids it. Activations, dropout and biases cost
nothing. So it is a bound for arrays that do not fit a cache and kernels that run one after the other: small graphs may
be faster.

For attention, the passes over the edges count at the rate of random rows instead, and each edge reads its row: that of
the source forward and in the backward pass over the destinations, that of the destination in the backward pass over the
sources. That is what our kernels read. The other operands of these passes, the scores and their softmax cost nothing.
"""

import math

ATTENTION = ("gat", "gatv2")


class Rates:
    """The rates of a machine, as printed by `cargo bench -p lapidary-kernels --bench cpu -- machine --json`. `rows`, for
    attention: the lines of `bench_machine.c` about gathers."""

    def __init__(self, machine):
        self.random = machine.get("rows")
        self.bytes = 1e9 * max(machine["read_gb_s"], machine["copy_gb_s"])
        self.flops = 1e9 * machine["fma_gflop_s"]

    def kernel(self, values, flops):
        return max(4 * values / self.bytes, flops / self.flops)

    def product(self, n, k, m):
        return self.kernel(n * (k + m), 2 * n * k * m)

    def gather(self, n, e, d):
        return self.kernel(2 * n * d + 2 * n + e, 2 * e * d)

    def rows(self, n, e, d):
        """Returns the seconds to read `e` random rows, and their ids, of a table of `n` rows of `d` values: at the best
        rate measured for the nearest table; without such rates, at that of memory."""
        if not self.random:
            return self.kernel(e * (d + 1), 0)
        far = lambda row: (abs(math.log(row["rows"] / n)), abs(math.log(row["d"] / d)))
        nearest = min(map(far, self.random))
        rate = max(row["median_gbs"] for row in self.random if far(row) == nearest)
        return 4 * e * (d + 1) / (1e9 * rate)


def layer(rates, model, n, e, k, m, constant, first):
    """Returns the seconds forward and backward of one layer from width `k` to `m`. `constant`: its input is the same in
    every epoch."""
    product, gather = rates.product(n, k, m), rates.gather
    # The gradient of the weight, and a gradient of the input unless this is the first layer.
    back = product if first else 2 * product
    if constant:
        forward, backward = product, back
    else:
        gather_first = (product + gather(n, e, k), back + (0 if first else gather(n, e, k)))
        product_first = (product + gather(n, e, m), back + gather(n, e, m))
        forward, backward = min(gather_first, product_first, key=sum)
    if model == "sage":
        forward, backward = forward + product, backward + back
    if model == "gin":
        forward, backward = forward + rates.product(n, m, m), backward + 2 * rates.product(n, m, m)
    return forward, backward


def epoch_s(rates, model, n, e, widths, input_dropout=False):
    """Returns the seconds of an epoch, and of its forward half."""
    e += n if model == "gcn" else 0
    pairs = list(zip(widths, widths[1:]))
    layers = [layer(rates, model, n, e, k, m, i == 0 and not input_dropout, i == 0) for i, (k, m) in enumerate(pairs)]
    forward = sum(f for f, _ in layers)
    loss = rates.kernel(2 * n * widths[-1], 0)
    return forward + sum(b for _, b in layers) + loss, forward


def attention_epoch_s(rates, model, n, e, widths, heads):
    """Returns the seconds of an epoch of attention over `A + I`, and of its forward half."""
    e += n
    forward = backward = 0.0
    for i, (k, m) in enumerate(zip(widths, widths[1:])):
        last = i + 2 == len(widths)
        d = heads * m if last else m  # of the values of all heads
        gradients = 1 if i == 0 else 2  # of the weight, and of the input
        if model == "gat":
            products = rates.product(n, k, d + 2 * heads)
            source, target = d + heads, d + 3 * heads
        else:
            products = 2 * rates.product(n, k, d)
            source, target = d, 2 * d + 2 * heads
        mean = rates.kernel(n * (d + m), 0) if last and heads > 1 else 0.0
        forward += products + rates.rows(n, e, source) + mean
        backward += gradients * products + rates.rows(n, e, source) + rates.rows(n, e, target) + mean
    loss = rates.kernel(2 * n * widths[-1], 0)
    return forward + backward + loss, forward
