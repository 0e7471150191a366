"""Chooses the gather kernel for a width as the host does, and counts what a warp issues per edge.

The same choice is `Division` in `kernels/src/cuda/gather_kernel.rs`. A test there compares the table with it.
"""

from dataclasses import dataclass

WIDTHS = [16, 41, 64, 128, 256, 602]
WARP = 32


@dataclass(frozen=True)
class Choice:
    vector: int  # cells per load
    tiles: int  # loads per row and thread
    lanes: int  # threads per row
    slices: int  # of columns, each of which reads all edges

    @property
    def kernel(self):
        return f"gather_{self.vector}x{self.tiles}"

    def per_edge(self, loop):
        """Returns the instructions that warps issue per edge, with all slices. A warp sums WARP / lanes rows at once."""
        return loop.issued / loop.edges * self.lanes / WARP * self.slices


def choose(d, storage):
    """Returns how a gather of `d` columns is launched by whole rows."""
    vector = 8 if d % 8 == 0 and storage == "bf16" else 4 if d % 4 == 0 else 2 - d % 2
    lanes = min(_power_of_two(-(-d // vector)), WARP)
    tiles = min(_power_of_two(-(-d // (vector * lanes))), {1: 4, 2: 4, 4: 2, 8: 1}[vector])
    return Choice(vector, tiles, lanes, -(-d // (vector * lanes * tiles)))


def _power_of_two(n):
    """Returns the least power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()
