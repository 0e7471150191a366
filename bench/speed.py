"""Times training beside other frameworks, on the same graph, model, weights and machine, by turns.

    export PEERS_DIR=... PEERS_PY_MAIN=.../python PEERS_PY_DGL=.../python
    $PEERS_PY_MAIN bench/speed.py --lapidary target/release/lapidary --example target/release/examples/speed \
        --graphs FOLDER_OF_NPZ --work DIR --cases pubmed:16,128 arxiv:16,128,256 --note "what else ran"

`PEERS_DIR` holds `bench_gnn.py`, which runs one framework in a process of its own and prints a JSON line; `FOLDER_OF_NPZ`
the graphs that its `gen_graph.py` wrote. Each graph is imported once with `lapidary data import npz`. A round runs every
framework once, ours first; what is written are medians over rounds of each run's median epoch. A row counts only if
the losses of the first epoch and of a later one (the fifth, if it ran so many) agree with ours to 1e-3: the initial weights are
the same.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

import numpy as np

FIRST = ["torch_csr_best", "torch_pre", "dgl_i32", "pyg_csr"]
TOLERANCE = 1e-3


def write_weights(path, widths):
    """A safetensors file of the weights that the peers start from."""
    sys.path.insert(0, os.environ["PEERS_DIR"])
    sys.dont_write_bytecode = True
    from bench_gnn import init_weights

    tensors = {}
    for i, weight in enumerate(init_weights(widths)):
        tensors[f"convs.{i}.lin.weight"] = np.ascontiguousarray(weight.T)
        tensors[f"convs.{i}.bias"] = np.zeros(weight.shape[1], np.float32)
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def last_json(command, env=None, timeout=900):
    """The last JSON line that a command prints, or why there is none."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"status": "failed", "error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    return json.loads(lines[-1])


def run_case(a, graph, hidden, backends):
    npz = os.path.join(a.graphs, graph + ".npz")
    folder = os.path.join(a.work, graph)
    if not os.path.exists(folder):
        subprocess.run([a.lapidary, "data", "import", "npz", npz, folder], check=True, capture_output=True)
    with open(os.path.join(folder, "dataset.json")) as file:
        about = json.load(file)
    weights = os.path.join(a.work, f"{graph}-{hidden}.safetensors")
    write_weights(weights, [about["feature_width"], hidden, about["classes"]])
    ours = [a.example, "--data", folder, "--hidden", str(hidden), "--epochs", str(a.epochs), "--weights", weights]
    env = dict(os.environ, PEERS_QUIET_WAIT="0", PEERS_TRIES="1", PYTHONDONTWRITEBYTECODE="1")
    runs = {}
    for _ in range(a.rounds):
        for backend in ["lapidary"] + backends:
            peer = [os.environ["PEERS_PY_MAIN"], os.path.join(os.environ["PEERS_DIR"], "bench_gnn.py"), "--graph", npz]
            peer += ["--backends", backend, "--hidden", str(hidden), "--epochs", str(a.epochs), "--budget", str(a.budget)]
            row = last_json(ours if backend == "lapidary" else peer, env)
            row["load"] = os.getloadavg()[0]
            print(graph, hidden, backend, row.get("status"), row.get("epoch", {}).get("median_ms"), flush=True)
            runs.setdefault(backend, []).append(row)
    return [summary(graph, hidden, backend, rows, runs["lapidary"]) for backend, rows in runs.items()]


def summary(graph, hidden, backend, rows, ours):
    good = [row for row in rows if row.get("status") == "ok"]
    result = dict(graph=graph, hidden=hidden, backend=backend, rounds=len(good))
    if not good:
        return dict(result, status=rows[0].get("status", "failed"), error=rows[0].get("error"))
    median = lambda rows, *keys: statistics.median(get(row, keys) for row in rows)  # noqa: E731
    agree = all(abs(a - b) < TOLERANCE for row in good for a, b in zip(losses(row), losses(ours[0], row)))
    times = {"epoch_ms": ("epoch", "median_ms"), "cpu_ms": ("epoch", "cpu_ms"), "infer_ms": ("infer", "median_ms"),
             "peak_rss_mb": ("peak_rss_mb",)}
    for name, keys in times.items():
        result[name] = round(median(good, *keys), 2)
        result[name + "_ratio"] = round(result[name] / median(ours, *keys), 2)
    runs = lambda rows: [round(get(row, ("epoch", "median_ms")), 2) for row in rows]  # noqa: E731
    result["quiet_ms"] = min(runs(good))
    result["quiet_ms_ratio"] = round(min(runs(good)) / min(runs(ours)), 2)
    return dict(result, status="ok" if agree else "other losses", epoch_ms_runs=runs(good),
                losses=losses(good[0]), load=[round(row["load"], 1) for row in good])


def losses(row, other=None):
    """The losses of the first epoch, and of the one that a peer, `other`, tells as its later one."""
    if "losses" not in row:
        return [row["loss0"], row["loss_end"]]
    return [row["losses"][0], row["losses"][(other or {}).get("loss_end_epoch", 5) - 1]]


def get(row, keys):
    for key in keys:
        row = row[key]
    return row


def table(results, about):
    lines = ["# Training beside other frameworks, on the CPU", "", about, "",
             "Times are milliseconds; a ratio is theirs over ours, so above 1 we are ahead. `epoch` is the median over rounds of each "
             "run's median, `quiet` the least of them, which other processes disturbed least, and `cpu` the processor time of all "
             "threads an epoch, idle spinning included. Memory is peak resident MB, of the whole process.", "",
             "| graph | hidden | framework | epoch | ratio | quiet | ratio | cpu | ratio | inference | ratio | memory | ratio |",
             "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in results:
        head = f"| {r['graph']} | {r['hidden']} | {r['backend']} |"
        if r["status"] != "ok":
            lines.append(f"{head} {r['status']} | | | | | | | | | |")
            continue
        names = ("epoch_ms", "quiet_ms", "cpu_ms", "infer_ms", "peak_rss_mb")
        cells = " | ".join(f"{r[k]:g} | {r[k + '_ratio']:.2f}" for k in names)
        lines.append(f"{head} {cells} |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lapidary", default="target/release/lapidary")
    p.add_argument("--example", default="target/release/examples/speed")
    p.add_argument("--graphs", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--cases", nargs="+", default=["pubmed:16,128", "arxiv:16,128,256"])
    p.add_argument("--backends", default=",".join(FIRST))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--budget", type=float, default=10.0, help="seconds of a peer's timed epochs, of which it runs at least 3")
    p.add_argument("--note", default="", help="the machine, and what else ran on it")
    p.add_argument("--out", default="bench/results/cpu_speed")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    results = []
    if os.path.exists(a.out + ".json"):
        with open(a.out + ".json") as file:
            results = json.load(file)["rows"]
    for case in a.cases:
        graph, widths = case.split(":")
        for hidden in map(int, widths.split(",")):
            rows = run_case(a, graph, hidden, a.backends.split(","))
            results = [r for r in results if (r["graph"], r["hidden"]) != (graph, hidden)] + rows
            about = f"{datetime.date.today()}; {a.note}; a GCN of two layers, no dropout; by turns."
            with open(a.out + ".json", "w") as file:
                json.dump(dict(about=about, rows=results), file, indent=1)
            with open(a.out + ".md", "w") as file:
                file.write(table(results, about))


if __name__ == "__main__":
    main()
