"""What the machine code must fulfil."""

import re
from dataclasses import dataclass

from gather_loop import cells_of, is_gather

# Files whose machine code may have fused multiply-adds. Products ask for them. In the others they are part of divisions,
# square roots and logarithms; the table has their number, so that a diff shows a new one.
MAY_FUSE = {"product.cu", "attention.cu", "layer_norm.cu", "losses.cu", "optimizers.cu", "sums.cu"}


# Of a warp for two tiles: 8 sums, three products each, of 16 terms in steps of 8.
LEAST_BY_TENSOR_CORES = 48


@dataclass(frozen=True)
class GatherLimit:
    """Limits on the loop of gathers whose names match."""

    kernels: str
    storage: str
    issued: int | None  # instructions of a warp for four edges, on the shortest way
    between: int  # branches and stores between the first and the last load of an index


GATHER_LIMITS = [
    # No gather waits for a branch between the loads of its indices.
    GatherLimit(r"gather_.*", "f32", None, 0),
    GatherLimit(r"gather_.*", "bf16", None, 0),
    # Sources of one matrix: no halo, no tiles and no window.
    GatherLimit(r"gather_4x1", "f32", 60, 0),
    # Sources of a window, or of several matrices.
    GatherLimit(r"gather_split_4x1", "f32", 80, 0),
]


def broken(key, figures):
    """Yields what is wrong with the machine code of a kernel."""
    file, kernel, storage, _ = key
    if figures.used.local_bytes:
        yield f"it spills or uses local memory: {figures.used.local_bytes} bytes"
    if figures.fused and file not in MAY_FUSE:
        yield f"it has {figures.fused} fused multiply-adds (FFMA)"
    if kernel.startswith("product_3xtf32"):
        if figures.by_tensor_cores < LEAST_BY_TENSOR_CORES:
            yield f"it has {figures.by_tensor_cores} products by tensor cores, of at least {LEAST_BY_TENSOR_CORES}"
        if not figures.asynchronous:
            yield "its copies to shared memory pass through registers"
    if is_gather(kernel):
        vector, _ = cells_of(kernel)
        bits = vector * (32 if storage == "f32" else 16)
        if f"x{bits}" not in figures.loop.row_loads:
            yield f"it does not load {bits} bits of a row at once, but {figures.loop.row_loads}"
        yield from _beyond(kernel, storage, figures.loop)


def _beyond(kernel, storage, loop):
    """Yields which of GATHER_LIMITS a gather exceeds."""
    for limit in GATHER_LIMITS:
        if limit.storage != storage or not re.fullmatch(limit.kernels, kernel):
            continue
        for_four = loop.issued * 4 / loop.edges
        if limit.issued is not None and for_four > limit.issued:
            yield f"{for_four:g} instructions for four edges, of at most {limit.issued}"
        if loop.branches + loop.stores > limit.between:
            said = f"{loop.branches} branches and {loop.stores} stores between the loads of indices"
            yield f"{said}, of at most {limit.between}"
