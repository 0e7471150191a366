"""Times the gather alone, `Y = A X`, and DGL, torch's CSR and MKL's inspector-executor, in turns.

    export PEERS_DIR=... PEERS_PY_MAIN=.../python PEERS_PY_DGL=.../python
    $PEERS_PY_MAIN bench/gather.py --lapidary target/release/lapidary --graphs FOLDER_OF_NPZ --work DIR --cases pubmed arxiv \
        --note "what else ran"

Ours is `bench/benches/gather.rs`, the others are `bench_spmm.py` of `PEERS_DIR`. Both check rows of each result against
sums in `f64`. DGL adds rows without weights; torch and MKL multiply each row by its edge's weight. So each is compared
with our gather of the same kind. `floor` is the time to read the graph and every row once and write the result, at this
machine's read rate. A gather whose sources do not fit a cache reads them more than once.
"""

import argparse
import json
import os
import subprocess

import record

PEERS = {"dgl_copy_u_i32": False, "torch_mkl_i32": True, "mkl_ie": True}
DIMS = "3,16,32,41,64,128,256,602"


def json_lines(command):
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, PEERS_QUIET_WAIT="0", PEERS_TRIES="1"))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{command[0]} printed nothing: {done.stderr[-500:]}")
    return lines


def measure(a, graph):
    npz, folder = os.path.join(a.graphs, graph + ".npz"), os.path.join(a.work, graph)
    if not os.path.exists(folder):
        subprocess.run([a.lapidary, "data", "import", "npz", npz, folder], check=True, capture_output=True)
    rows = {}
    for line in json_lines(a.ours.split() + ["--data", folder, "--dims", a.dims, "--json"]):
        name = "lapidary, weighted" if line["weighted"] else "lapidary"
        rows[name, line["d"]] = dict(ms=line["median_ms"], floor_ms=line["floor_ms"])
    for backend, weighted in PEERS.items():
        command = [os.environ["PEERS_PY_MAIN"], os.path.join(os.environ["PEERS_DIR"], "bench_spmm.py"), "--graph", npz]
        command += ["--backends", backend, "--dims", a.dims, "--reps", str(a.reps), "--budget", str(a.budget)]
        for line in json_lines(command):
            if line.get("status") != "ok":
                print(graph, backend, line, flush=True)
                continue
            ours = rows["lapidary, weighted" if weighted else "lapidary", line["d"]]
            rows[backend, line["d"]] = dict(ms=line["median_ms"], ratio=round(line["median_ms"] / ours["ms"], 2))
    return [dict(graph=graph, d=d, backend=backend, **row) for (backend, d), row in rows.items()]


def table(rows, about):
    lines = ["# The gather alone, on the CPU", "", about, "",
             "Milliseconds, and the ratio of theirs to ours of the same kind: DGL's gather has no weights, torch's and MKL's do. "
             "`floor`: reading graph and rows once and writing the result, for ours without weights.", "",
             "| graph | d | ours | floor | DGL | ratio | ours, weighted | torch CSR | ratio | MKL inspector-executor | ratio |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    of = {(row["graph"], row["d"], row["backend"]): row for row in rows}
    for graph, d in dict.fromkeys((row["graph"], row["d"]) for row in rows):
        ours, weighted = of[graph, d, "lapidary"], of[graph, d, "lapidary, weighted"]
        peer = lambda name: "{ms:.2f} | {ratio:.2f}".format(**of[graph, d, name]) if (graph, d, name) in of else " | "  # noqa: E731
        lines.append(f"| {graph} | {d} | {ours['ms']:.2f} | {ours['floor_ms']:.2f} | {peer('dgl_copy_u_i32')} | {weighted['ms']:.2f} | "
                     f"{peer('torch_mkl_i32')} | {peer('mkl_ie')} |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lapidary", default="target/release/lapidary")
    p.add_argument("--ours", default="cargo bench -p lapidary-bench --bench gather --", help="command that runs the gather benchmark")
    p.add_argument("--graphs", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--cases", nargs="+", default=["pubmed", "arxiv"])
    p.add_argument("--dims", default=DIMS)
    p.add_argument("--reps", type=int, default=7)
    p.add_argument("--budget", type=float, default=3.0, help="seconds per width of a peer; it runs at least 3 times")
    p.add_argument("--note", default="", help="the machine, and what else ran on it")
    p.add_argument("--out", default="bench/results/cpu_gather")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    rows = []
    if os.path.exists(a.out + ".json"):
        with open(a.out + ".json") as file:
            rows = json.load(file)["rows"]
    for graph in a.cases:
        new = measure(a, graph)
        measured = {(row["graph"], row["d"]) for row in new}
        rows = [row for row in rows if (row["graph"], row["d"]) not in measured] + new
        about = record.about(a.note, "by turns.")
        record.write_results(a.out, table(rows, about), about, rows=rows)


if __name__ == "__main__":
    main()
