"""Finds the loop of a gather that adds several edges a round, and counts its instructions."""

import re
from collections import Counter, deque
from dataclasses import dataclass

NAME = re.compile(r"^gather_(?:\w+_)?(\d)x(\d)$")


@dataclass(frozen=True)
class GatherLoop:
    edges: int  # that a round adds
    instructions: int  # of the loop, with all of its branches
    issued: int  # by a warp in a round on the shortest way: all sources in one matrix, no fault
    per_edge: float
    per_16_bytes: float  # per edge and 16 bytes of columns of a thread
    branches: int  # between the first and the last load of an index
    stores: int  # between them
    index_loads: str
    row_loads: str


def is_gather(name):
    return bool(NAME.match(name))


def cells_of(name):
    """Returns the cells per load and the loads per row of each thread."""
    vector, tiles = NAME.match(name).groups()
    return int(vector), int(tiles)


def gather_loop(kernel, storage):
    """Returns the figures of the loop that loads rows of at least four edges and adds them. Steps that follow a gather also
    load and add in a loop, but have fewer loads whose values become addresses."""
    vector, tiles = cells_of(kernel.name)
    loops = list(_adding_loops(kernel, vector * tiles))
    if not loops:
        raise SystemExit(f"error: {kernel.name} in {storage}: no loop adds four edges a round")
    loop, edges, indices, rows = max(loops, key=lambda found: len(found[2]))
    issued = kernel.shortest_path(loop)
    row_bytes = vector * tiles * (4 if storage == "f32" else 2)
    between = [kernel.code[position] for position in loop if indices[0] < position < indices[-1]]
    return GatherLoop(
        edges=edges,
        instructions=len(loop),
        issued=issued,
        per_edge=issued / edges,
        per_16_bytes=issued / edges / (row_bytes / 16),
        branches=sum(i.operation == "BRA" for i in between),
        stores=sum(i.operation == "STG" for i in between),
        index_loads=_widths(kernel, indices),
        row_loads=_widths(kernel, rows),
    )


def _adding_loops(kernel, cells):
    """Yields the innermost loops that load rows of at least four edges and add their cells: the loop, the number of edges,
    and the loads of indices and of rows. Loops inside of them find the matrices of sources. Loops with barriers sum hubs."""
    found = set()
    for loop in kernel.loops():
        if not found.isdisjoint(loop) or any(kernel.code[position].operation == "BAR" for position in loop):
            continue
        adds = sum(kernel.code[position].operation == "FADD" for position in loop)
        indices, rows = _loads(kernel, loop)
        if adds >= 4 * cells and adds % cells == 0 and indices and rows:
            found |= set(loop)
            yield loop, adds // cells, indices, rows


def _loads(kernel, loop):
    """Returns the loads of indices, whose values become addresses, and of rows and weights, whose values are added."""
    after, body = kernel.successors(), set(loop)
    loads = [position for position in loop if kernel.code[position].operation == "LDG"]
    uses = {load: _use(kernel, body, after, load) for load in loads}
    is_index = {load: uses[load] == "LDG" and kernel.code[load].width_bits == 32 for load in loads}
    rows = [load for load in loads if uses[load] and not is_index[load]]
    return [load for load in loads if is_index[load]], rows


def _use(kernel, loop, after, load):
    """Returns the operation that a loaded value reaches first, LDG or FADD, be it in the next round."""
    reached = {}
    waiting = deque((position, frozenset(kernel.code[load].writes)) for position in after[load])
    while waiting:
        position, values = waiting.popleft()
        if position not in loop or values <= reached.get(position, frozenset()):
            continue
        reached[position] = values = values | reached.get(position, frozenset())
        instruction = kernel.code[position]
        if instruction.reads & values:
            if instruction.operation in ("LDG", "FADD"):
                return instruction.operation
            values |= instruction.writes
        elif not instruction.guard:
            values -= instruction.writes
        waiting += [(next_one, values) for next_one in after[position]]
    return None


def _widths(kernel, positions):
    """Returns how many loads there are of each width, such as `4x128`."""
    counts = Counter(kernel.code[position].width_bits for position in positions)
    return "+".join(f"{count}x{bits}" for bits, count in sorted(counts.items(), reverse=True))
