"""Writes the figures of one NVRTC release as lines of text that line up, so that a diff shows what changed."""

from gather_loop import is_gather
from widths import WIDTHS, choose

HEADER = """\
Machine code of the CUDA kernels, counted without a GPU. `ci/cubin --write` makes this file, and `ci/cubin` compares it.
Groups of three columns are sm_80, sm_90 and sm_100.

Kernels: registers per thread; instructions of the whole kernel; shared memory in bytes; fused multiply-adds (FFMA), of
which outside of products only divisions, square roots and logarithms may have some.

Gathers: the loop that adds several edges a round. `all` counts its instructions with all branches; `issued` those that a
warp issues in a round on the shortest way, without halo, window and fault; `per edge` is `issued` over the edges of a round;
`per 16 B` is that over 16 bytes of columns of each thread. `between` counts branches and stores between the first and the
last load of an index, which keep these loads from being in flight together. Loads are written as count x bits; `rows` also
has the loads of weights. `store` is the widest store of the kernel, in bits; a report of a fault has 64 or 128.

Widths: the kernel that the host chooses for rows of this many columns, by whole rows, and the instructions that warps
issue per edge with all slices.
"""


def section(release, version, measured, architectures):
    """Returns the lines for one release. `measured` has the figures by file, kernel, storage type and architecture."""
    names = {}
    for (file, kernel, storage, architecture), figures in measured.items():
        names.setdefault((file, kernel, storage), {})[architecture] = figures
    rows = [(key, [figures[a] for a in architectures]) for key, figures in names.items()]
    gathers = [(key, figures) for key, figures in rows if is_gather(key[1])]
    lines = [title(release), f"NVRTC {version}", ""]
    lines += _kernels(rows) + [""] + _gathers(gathers) + [""] + _widths({key[1:]: f for key, f in gathers})
    return [line.rstrip() for line in lines]


def title(release):
    return f"==== NVRTC {release} ===="


def _kernels(rows):
    lines = [f"{'file':18}{'kernel':32}{'type':6}{'registers':>15}{'instructions':>21}{'shared':>9}{'FFMA':>6}"]
    for (file, kernel, storage), figures in rows:
        registers = _three([f.used.registers for f in figures], 5)
        instructions = _three([f.instructions for f in figures], 7)
        shared = "/".join(str(n) for n in _distinct(f.used.shared_bytes for f in figures))
        fused = max(f.fused for f in figures)
        lines.append(f"{file:18}{kernel:32}{storage:6}{registers}{instructions}{shared:>9}{fused:6}")
    return lines


def _gathers(rows):
    lines = [
        f"{'':37}{'':6}{'all':>15}{'issued':>15}{'per edge':>21}{'per 16 B':>21}{'between':>10}",
        f"{'gather':32}{'type':6}{'edges':>5}{'':>15}{'':15}{'':21}{'':21}{'br':>6}{'st':>4}"
        f"  {'indices':10}{'rows':14}{'store':5}",
    ]
    for (_, kernel, storage), figures in rows:
        loops = [f.loop for f in figures]
        edges, branches, stores, indices, loads, widest = (
            "/".join(str(n) for n in _distinct(values))
            for values in (
                (loop.edges for loop in loops),
                [max(loop.branches for loop in loops)],
                [max(loop.stores for loop in loops)],
                (loop.index_loads for loop in loops),
                (loop.row_loads for loop in loops),
                (f.widest_store for f in figures),
            )
        )
        whole = _three([loop.instructions for loop in loops], 5) + _three([loop.issued for loop in loops], 5)
        shares = _three([loop.per_edge for loop in loops], 7) + _three([loop.per_16_bytes for loop in loops], 7)
        lines.append(
            f"{kernel:32}{storage:6}{edges:>5}{whole}{shares}{branches:>6}{stores:>4}  {indices:10}{loads:14}{widest:5}"
        )
    return lines


def _widths(gathers):
    lines = [f"{'width':>5}  {'type':6}{'kernel':20}{'lanes':>5}{'slices':>8}{'instructions per edge':>25}"]
    for storage in ("f32", "bf16"):
        for d in WIDTHS:
            choice = choose(d, storage)
            per_edge = _three([choice.per_edge(f.loop) for f in gathers[choice.kernel, storage]], 8)
            lines.append(f"{d:5}  {storage:6}{choice.kernel:20}{choice.lanes:5}{choice.slices:8} {per_edge}")
    return lines


def _three(values, width):
    return "".join(f"{value:{width}.2f}" if isinstance(value, float) else f"{value:{width}}" for value in values)


def _distinct(values):
    return list(dict.fromkeys(values))
