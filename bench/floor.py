"""The least time that an epoch of two layers could take, kernel by kernel.

Each kernel by itself takes what its bytes take at the rate at which this machine reads or copies memory, or what its operations take
at the rate of fused multiply-adds, whichever is longer; the kernels' times add up. Bytes are every operand once and the result
once, with no source row of a gather read twice. The cheaper order of product and gather is taken, A X is made before the
first epoch where dropout of the input does not forbid it, and activations, dropout and biases cost nothing. So it is a floor for
arrays that no cache holds, kernel after kernel: small graphs may run below it.
"""


class Rates:
    """What a machine does in a second, of what `cargo bench -p lapidary-kernels --bench cpu -- machine --json` printed."""

    def __init__(self, machine):
        self.bytes = 1e9 * max(machine["read_gb_s"], machine["copy_gb_s"])
        self.flops = 1e9 * machine["fma_gflop_s"]

    def kernel(self, values, flops):
        return max(4 * values / self.bytes, flops / self.flops)

    def product(self, n, k, m):
        return self.kernel(n * (k + m), 2 * n * k * m)

    def gather(self, n, e, d):
        return self.kernel(2 * n * d + 2 * n + e, 2 * e * d)


def layer(rates, model, n, e, k, m, constant, first):
    """Seconds forward and backward of one layer from width `k` to `m`; `constant`: its input is the same in every epoch."""
    product, gather = rates.product(n, k, m), rates.gather
    # A weight's gradient, and a gradient for the input unless this is the first layer.
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
    """Seconds of an epoch, and of its forward half."""
    e += n if model == "gcn" else 0
    pairs = list(zip(widths, widths[1:]))
    layers = [layer(rates, model, n, e, k, m, i == 0 and not input_dropout, i == 0) for i, (k, m) in enumerate(pairs)]
    forward = sum(f for f, _ in layers)
    loss = rates.kernel(2 * n * widths[-1], 0)
    return forward + sum(b for _, b in layers) + loss, forward
