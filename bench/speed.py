"""Times training in Lapidary and other frameworks in turns, on the same graph, model, weights and machine.

    export PEERS_DIR=... PEERS_PY_MAIN=.../python PEERS_PY_DGL=.../python
    cargo bench -p lapidary-kernels --bench cpu -- machine --json > machine.json
    $PEERS_PY_MAIN bench/speed.py --lapidary target/release/lapidary --example target/release/speed \
        --graphs FOLDER_OF_NPZ --work DIR --machine machine.json --models gcn --dropout none,hidden,input \
        --cases pubmed:16,128 arxiv:16,128,256 --note "what else ran"

`PEERS_DIR` holds `bench_gnn.py`, which runs one framework in its own process and prints a JSON line. `peer.py` runs what it
has no setting for: dropout, GIN, GraphSAGE and attention. `FOLDER_OF_NPZ` holds the graphs that `gen_graph.py` of `PEERS_DIR` wrote.
Each graph is imported once with `lapidary data import npz`. Dropout is 0.5, on the hidden layer (`hidden`) or also on the
input (`input`).

Attention, without dropout:

    gcc -O3 -march=native -fopenmp $PEERS_DIR/bench_machine.c -o DIR/bench_machine -lm && DIR/bench_machine > rows.jsonl
    $PEERS_PY_MAIN bench/speed.py ... --models gat,gatv2 --cases pubmed:8x8,4x64 arxiv:8x8,4x64 --machine machine.json \
        --row-rates rows.jsonl --out bench/results/attention_speed

`8x8` stands for 8 heads of width 8 in the hidden layer, side by side; the last layer averages as many heads, each as wide
as the classes. Compared are DGL's `GATConv` and `GATv2Conv` on an int32 graph, and PyG's on an edge index, on a sorted
`EdgeIndex` and on a CSR adjacency. The floor has the rows that the passes over the edges read, at the rate of random rows
(`floor.py`).

A round runs every framework once, ours first. All runs are kept in `DIR/runs.jsonl`. The results are medians over all of
them of each run's median epoch, so rounds can be added later. A row counts only if the losses of the first epoch and of a
later one agree with ours to a relative 1e-3, since the initial weights are the same. Dropout masks differ; there, the losses
of two epochs without dropout are compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

import numpy as np

import record
from floor import ATTENTION, Rates, attention_epoch_s, epoch_s

MODELS = ["gcn", "gin", "sage", *ATTENTION]
FIRST = ["torch_csr_best", "torch_pre", "dgl_i32", "pyg_csr"]
FIRST_OF_ATTENTION = ["dgl_i32", "pyg_edge_index", "pyg_sorted", "pyg_csr"]
ORDER = ["lapidary", *dict.fromkeys(FIRST[:3] + FIRST_OF_ATTENTION)]
RATES = {"none": (0.0, 0.0), "hidden": (0.5, 0.0), "input": (0.5, 0.5)}
TOLERANCE = 1e-3
HERE = os.path.dirname(os.path.abspath(__file__))


def initial_weights(model, widths, heads=1):
    """Returns the tensors by PyG's names. The GCN's are those that the peers start from."""
    sys.path.insert(0, os.environ["PEERS_DIR"])
    sys.dont_write_bytecode = True
    from bench_gnn import glorot, init_weights

    tensors, rng = {}, np.random.default_rng(7)
    if model in ATTENTION:
        return attention_weights(model, widths, heads, lambda i, o: glorot(rng, i, o))
    for i, (k, m) in enumerate(zip(widths, widths[1:])):
        if model == "gcn":
            linears = [("lin", init_weights(widths)[i], None), ("", None, m)]
        elif model == "gin":
            linears = [("nn.lins.0", glorot(rng, k, m), m), ("nn.lins.1", glorot(rng, m, m), m)]
            tensors[f"convs.{i}.eps"] = np.zeros(1, np.float32)
        else:
            linears = [("lin_l", glorot(rng, k, m), m), ("lin_r", glorot(rng, k, m), None)]
        for name, weight, bias in linears:
            prefix = f"convs.{i}.{name}".rstrip(".")
            if weight is not None:
                tensors[f"{prefix}.weight"] = np.ascontiguousarray(weight.T)
            if bias is not None:
                tensors[f"{prefix}.bias"] = np.zeros(bias, np.float32)
    return tensors


def attention_weights(model, widths, heads, glorot):
    """Returns the tensors of attention layers: the hidden ones concatenate their heads, the last averages them."""
    tensors = {}
    for i, (k, m) in enumerate(zip(widths, widths[1:])):
        width = m if i + 2 == len(widths) else m // heads
        ends, vectors = (["lin"], ["att_src", "att_dst"]) if model == "gat" else (["lin_l", "lin_r"], ["att"])
        for end in ends:
            tensors[f"convs.{i}.{end}.weight"] = np.ascontiguousarray(glorot(k, heads * width).T)
            if model == "gatv2":
                tensors[f"convs.{i}.{end}.bias"] = np.zeros(heads * width, np.float32)
        for vector in vectors:
            tensors[f"convs.{i}.{vector}"] = glorot(heads, width)[None]
        tensors[f"convs.{i}.bias"] = np.zeros(m, np.float32)
    return tensors


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def last_json(command, env=None, timeout=900):
    """Returns the last JSON line that a command prints, or an error."""
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "error": f"not done after {timeout} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"status": "failed", "error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    return json.loads(lines[-1])


def imported(a, graph):
    """Returns the folder of a graph's dataset, after importing it if necessary, and its `dataset.json`."""
    folder = os.path.join(a.work, graph)
    if not os.path.exists(folder):
        npz = os.path.join(a.graphs, graph + ".npz")
        subprocess.run([a.lapidary, "data", "import", "npz", npz, folder], check=True, capture_output=True)
    with open(os.path.join(folder, "dataset.json")) as file:
        return folder, json.load(file)


def run_case(a, graph, heads, hidden, model, dropout, backends):
    """Runs every framework `--rounds` times, and adds the runs to `runs.jsonl`."""
    folder, about = imported(a, graph)
    widths = [about["feature_width"], hidden, about["classes"]]
    weights = os.path.join(a.work, f"{graph}-{model}-{shape_of(heads, hidden)}.safetensors")
    write_safetensors(weights, initial_weights(model, widths, heads))
    env = dict(os.environ, PEERS_QUIET_WAIT="0", PEERS_TRIES="1", PYTHONDONTWRITEBYTECODE="1")

    def command(backend, dropout):
        npz = os.path.join(a.graphs, graph + ".npz")
        hidden_rate, input_rate = map(str, RATES[dropout])
        if backend == "lapidary":
            run = [a.example, "--data", folder, "--model", model, "--weights", weights]
        elif model == "gcn" and dropout == "none":
            run = [os.environ["PEERS_PY_MAIN"], os.path.join(os.environ["PEERS_DIR"], "bench_gnn.py"), "--graph", npz]
            return run + ["--backends", backend, "--hidden", str(hidden), "--epochs", str(a.epochs), "--budget", str(a.budget)]
        else:
            run = [os.environ["PEERS_PY_DGL" if backend.startswith("dgl") else "PEERS_PY_MAIN"], os.path.join(HERE, "peer.py")]
            run += ["--graph", npz, "--backend", backend, "--model", model, "--weights", weights, "--budget", str(a.budget)]
        run += ["--heads", str(heads)] if model in ATTENTION else []
        return run + ["--hidden", str(hidden), "--epochs", str(a.epochs), "--dropout", hidden_rate, "--input-dropout", input_rate]

    def run(backend, dropout):
        row = last_json(command(backend, dropout), env, a.timeout)
        case = dict(graph=graph, heads=heads, hidden=hidden, model=model, dropout=dropout, backend=backend)
        row = dict(case, vertices=about["vertices"], edges=about["edges"], widths=widths, load=os.getloadavg()[0], row=row)
        print(*case.values(), row["row"].get("status"), row["row"].get("epoch", {}).get("median_ms"), flush=True)
        record.add_run(a.work, row)

    same = dict(graph=graph, heads=heads, hidden=hidden, model=model, dropout="none", backend="lapidary")
    if dropout != "none" and not any(same.items() <= row.items() for row in all_runs(a)):
        run("lapidary", "none")
    for _ in range(a.rounds):
        for backend in ["lapidary"] + [b for b in backends if dropout != "input" or b != "torch_pre"]:
            run(backend, dropout)


def all_runs(a):
    """Returns the runs kept so far. Those without `heads` were made before attention was compared."""
    return [{"heads": 1, **run} for run in record.all_runs(a.work)]


def shape_of(heads, hidden):
    return f"{heads}x{hidden // heads}" if heads > 1 else str(hidden)


def summaries(runs, rates):
    """Returns one row for each case and framework, ours first, then in the order of `ORDER`."""
    keys = ("model", "dropout", "graph", "heads", "hidden", "backend")
    groups = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)

    def place(key):
        model, dropout, _, heads, hidden, backend = key
        edges = groups[key][0]["edges"]
        return MODELS.index(model), list(RATES).index(dropout), edges, hidden, heads, ORDER.index(backend)

    rows = []
    for key in sorted(groups, key=place):
        ours, plain = groups.get(key[:5] + ("lapidary",)), groups.get((key[0], "none") + key[2:5] + ("lapidary",))
        rows.append(summary(dict(zip(keys, key)), groups[key], ours, plain, rates))
    return rows


def summary(case, runs, ours, plain, rates):
    good = [run["row"] for run in runs if run["row"].get("status") == "ok"]
    result = dict(case, edges=runs[0]["edges"], rounds=len(good))
    if not good:
        return dict(result, status=runs[0]["row"].get("status", "failed"), error=runs[0]["row"].get("error"))
    ours = [run["row"] for run in ours]
    agree = all(agrees(row, plain[0]["row"]["losses"]) for row in good) or case["backend"] == "lapidary"
    times = {"epoch_ms": ("epoch", "median_ms"), "cpu_ms": ("epoch", "cpu_ms"), "infer_ms": ("infer", "median_ms"),
             "peak_rss_mb": ("peak_rss_mb",)}
    for name, keys in times.items():
        result[name] = round(median(good, keys), 2)
        result[name + "_ratio"] = round(result[name] / median(ours, keys), 2)
    if rates and case["backend"] == "lapidary":
        about = runs[0]
        shape = case["model"], about["vertices"], about["edges"], about["widths"]
        if case["model"] in ATTENTION:
            floors = attention_epoch_s(rates, *shape, case["heads"])
        else:
            floors = epoch_s(rates, *shape, case["dropout"] == "input")
        result["floor_ms"], result["infer_floor_ms"] = (round(1e3 * s, 2) for s in floors)
    epochs = [round(get(row, times["epoch_ms"]), 2) for row in good]
    return dict(result, status="ok" if agree else "other losses", epoch_ms_runs=epochs, losses=known_losses(good[0]),
                load=[round(run["load"], 1) for run in runs])


def known_losses(row):
    """Returns the losses, keyed by the number of updates before them."""
    if "losses" in row:
        return dict(enumerate(row["losses"][:5]))
    return {0: row["loss0"], row["loss_end_epoch"] - 1: row["loss_end"]}


def agrees(row, ours):
    return all(abs(loss - ours[i]) <= TOLERANCE * max(1, abs(ours[i])) for i, loss in known_losses(row).items() if i < len(ours))


def median(rows, keys):
    return statistics.median(get(row, keys) for row in rows)


def get(row, keys):
    for key in keys:
        row = row[key]
    return row


def table(results, about):
    lines = ["# Training compared with other frameworks, on the CPU", "", about, "",
             "Times are milliseconds. A ratio is theirs over ours: above 1, we are faster. `epoch` is the median over rounds of each "
             "run's median, and `cpu` the processor time of all threads per epoch, including idle spinning. Memory is the peak "
             "resident MB of the whole process. `floor` is the bound of `bench/floor.py` for our epoch and inference on this "
             "machine: every kernel's operands read once, or its operations at the peak rate; for attention, the rows read for each edge "
             "at the rate of random rows. Data that fits a cache may be faster. `8x8` is 8 heads of width 8.", "",
             "| model | dropout | graph | hidden | framework | rounds | epoch | ratio | cpu | ratio | inference | ratio | memory | ratio | floor |",
             "| --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in results:
        shape = shape_of(r["heads"], r["hidden"])
        head = f"| {r['model']} | {r['dropout']} | {r['graph']} | {shape} | {r['backend']} | {r['rounds']} |"
        if r["status"] != "ok":
            lines.append(f"{head} {r['status']} | | | | | | | | |")
            continue
        cells = " | ".join(f"{r[k]:g} | {r[k + '_ratio']:.2f}" for k in ("epoch_ms", "cpu_ms", "infer_ms", "peak_rss_mb"))
        floor = f"{r['floor_ms']:g}, {r['infer_floor_ms']:g}" if "floor_ms" in r else ""
        lines.append(f"{head} {cells} | {floor} |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lapidary", default="target/release/lapidary")
    p.add_argument("--example", default="target/release/speed")
    p.add_argument("--graphs", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--cases", nargs="*", default=["pubmed:16,128", "arxiv:16,128,256"],
                   help="GRAPH:HIDDEN,..; of attention GRAPH:HEADSxWIDTH,..")
    p.add_argument("--models", default="gcn", help=f"some of {', '.join(MODELS)}, separated by commas")
    p.add_argument("--dropout", default="none", help="some of none, hidden, input, separated by commas")
    p.add_argument("--backends", help=f"[{','.join(FIRST)}; of attention {','.join(FIRST_OF_ATTENTION)}]")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--budget", type=float, default=10.0, help="seconds for a peer's timed epochs; it runs at least 3")
    p.add_argument("--timeout", type=float, default=900.0, help="seconds for one run of one framework")
    p.add_argument("--machine", help="rates of the machine, for the floors")
    p.add_argument("--row-rates", help="rates of random rows, from bench_machine.c of PEERS_DIR, for the floors of attention")
    p.add_argument("--note", default="", help="the machine, and what else ran on it")
    p.add_argument("--out", default="bench/results/cpu_speed")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    for model in a.models.split(","):
        backends = FIRST_OF_ATTENTION if model in ATTENTION else FIRST
        if a.backends is not None:
            backends = [b for b in a.backends.split(",") if b]
        if model in ATTENTION and a.dropout != "none":
            p.error("attention is compared without dropout")
        for dropout in a.dropout.split(","):
            for case in a.cases:
                graph, shapes = case.split(":")
                for shape in shapes.split(","):
                    heads, _, width = shape.rpartition("x")
                    heads = int(heads or 1)
                    run_case(a, graph, heads, heads * int(width), model, dropout, backends)
    machine = None
    if a.machine:
        with open(a.machine) as file:
            machine = json.load(file)
    if machine and a.row_rates:
        with open(a.row_rates) as file:
            machine["rows"] = [row for row in map(json.loads, file) if row["bench"] == "gather"]
    results = summaries(all_runs(a), machine and Rates(machine))
    about = record.about(a.note, "two layers, Adam", "by turns.")
    record.write_results(a.out, table(results, about), about, machine=machine, rows=results)


if __name__ == "__main__":
    main()
