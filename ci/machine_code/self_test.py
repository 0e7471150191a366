"""Checks that the reader of machine code finds what it must, on a few lines of it and on planted faults."""

from dataclasses import replace
from types import SimpleNamespace

import limits
from compile import Used
from gather_loop import gather_loop
from sass import parse
from widths import Choice, choose

# Four edges: a load of an index that may be reported, its row, and its sum.
EDGE = """
        /*0000*/                   LDG.E R{index}, desc[UR4][R38.64+{offset}] ;
        /*0000*/                   ISETP.GE.U32.AND P1, PT, R{index}, R36, PT ;
        {report}
        /*0000*/                   IMAD.WIDE.U32 R{address}, R{index}, 0x4, R6 ;
"""
REPORT = """/*0000*/              @!P1 BRA `(.L_ok_{index}) ;
        /*0000*/                   STG.E.64 desc[UR4][R32.64], R{index} ;
.L_ok_{index}:"""
ADD = """
        /*0000*/                   LDG.E R{address}, desc[UR4][R{address}.64] ;
        /*0000*/                   FADD R4, R4, R{address} ;
"""


def kernel(report):
    places = [dict(index=60 + k, offset=hex(4 * k), address=40 + 2 * k) for k in range(4)]
    edges = "".join(EDGE.format(**place, report=report.format(**place)) for place in places)
    adds = "".join(ADD.format(**place) for place in places)
    end = "        /*0000*/              @!P0 BRA `(.L_loop) ;\n        /*0000*/   EXIT ;\n        /*0000*/   NOP ;\n"
    return parse(f".text.gather_1x1:\n.L_loop:{edges}{adds}{end}")["gather_1x1"]


def run():
    straight, reporting = gather_loop(kernel(""), "f32"), gather_loop(kernel(REPORT), "f32")
    assert (straight.edges, straight.instructions, straight.issued) == (4, 21, 21), straight
    assert (straight.branches, straight.stores, straight.per_edge) == (0, 0, 5.25), straight
    assert (straight.index_loads, straight.row_loads, straight.per_16_bytes) == ("4x32", "4x32", 21.0), straight
    # A warp that has nothing to report passes the four branches, and not the stores.
    assert (reporting.instructions, reporting.issued) == (29, 25), reporting
    assert (reporting.branches, reporting.stores) == (3, 3), reporting

    good = SimpleNamespace(used=Used(32, 0, 0), fused=0, loop=straight)
    key = "gather.cu", "gather_1x1", "f32", "sm_90"
    assert not list(limits.broken(key, good))
    narrow = replace(straight, row_loads="4x16")
    faults = dict(used=Used(32, 0, 8)), dict(fused=1), dict(loop=narrow), dict(loop=reporting)
    for fault in faults:
        assert len(list(limits.broken(key, SimpleNamespace(**{**vars(good), **fault})))) == 1, fault

    assert choose(16, "f32") == Choice(4, 1, 4, 1)
    assert choose(41, "f32") == Choice(1, 2, 32, 1)
    assert choose(602, "bf16") == Choice(2, 4, 32, 3)
    assert choose(256, "bf16").kernel == "gather_8x1"
    assert choose(16, "f32").per_edge(straight) == 5.25 / 8
