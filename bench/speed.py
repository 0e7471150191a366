"""Times training in Lapidary and other frameworks in turns, on the same graph, model, weights and machine.

    export PEERS_DIR=... PEERS_PY_MAIN=.../python PEERS_PY_DGL=.../python
    cargo bench -p lapidary-kernels --bench cpu -- machine --json > machine.json
    $PEERS_PY_MAIN bench/speed.py --lapidary target/release/lapidary --example target/release/speed \
        --graphs FOLDER_OF_NPZ --work DIR --machine machine.json --models gcn --dropout none,hidden,input \
        --cases pubmed:16,128 arxiv:16,128,256 --note "what else ran"

`PEERS_DIR` holds `bench_gnn.py`, which runs one framework in its own process and prints a JSON line. `peer.py` runs what it
has no setting for: dropout, GIN and GraphSAGE. `FOLDER_OF_NPZ` holds the graphs that `gen_graph.py` of `PEERS_DIR` wrote.
Each graph is imported once with `lapidary data import npz`. Dropout is 0.5, on the hidden layer (`hidden`) or also on the
input (`input`).

A round runs every framework once, ours first. All runs are kept in `DIR/runs.jsonl`. The results are medians over all of
them of each run's median epoch, so rounds can be added later. A row counts only if the losses of the first epoch and of a
later one agree with ours to a relative 1e-3, since the initial weights are the same. Dropout masks differ; there, the losses
of two epochs without dropout are compared.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

import numpy as np

from floor import Rates, epoch_s

FIRST = ["torch_csr_best", "torch_pre", "dgl_i32", "pyg_csr"]
RATES = {"none": (0.0, 0.0), "hidden": (0.5, 0.0), "input": (0.5, 0.5)}
TOLERANCE = 1e-3
HERE = os.path.dirname(os.path.abspath(__file__))


def initial_weights(model, widths):
    """Returns the tensors by PyG's names. The GCN's are those that the peers start from."""
    sys.path.insert(0, os.environ["PEERS_DIR"])
    sys.dont_write_bytecode = True
    from bench_gnn import glorot, init_weights

    tensors, rng = {}, np.random.default_rng(7)
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
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
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


def run_case(a, graph, hidden, model, dropout, backends):
    """Runs every framework `--rounds` times, and adds the runs to `runs.jsonl`."""
    folder, about = imported(a, graph)
    widths = [about["feature_width"], hidden, about["classes"]]
    weights = os.path.join(a.work, f"{graph}-{model}-{hidden}.safetensors")
    write_safetensors(weights, initial_weights(model, widths))
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
        return run + ["--hidden", str(hidden), "--epochs", str(a.epochs), "--dropout", hidden_rate, "--input-dropout", input_rate]

    def run(backend, dropout):
        row = last_json(command(backend, dropout), env)
        case = dict(graph=graph, hidden=hidden, model=model, dropout=dropout, backend=backend)
        row = dict(case, vertices=about["vertices"], edges=about["edges"], widths=widths, load=os.getloadavg()[0], row=row)
        print(*case.values(), row["row"].get("status"), row["row"].get("epoch", {}).get("median_ms"), flush=True)
        with open(os.path.join(a.work, "runs.jsonl"), "a") as file:
            file.write(json.dumps(row) + "\n")

    same = dict(graph=graph, hidden=hidden, model=model, dropout="none", backend="lapidary")
    if dropout != "none" and not any(same.items() <= row.items() for row in all_runs(a)):
        run("lapidary", "none")
    for _ in range(a.rounds):
        for backend in ["lapidary"] + [b for b in backends if dropout != "input" or b != "torch_pre"]:
            run(backend, dropout)


def all_runs(a):
    path = os.path.join(a.work, "runs.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def summaries(runs, rates):
    """Returns one row for each case and framework, ours first, then in the order of `FIRST`."""
    keys = ("model", "dropout", "graph", "hidden", "backend")
    groups = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)

    def place(key):
        model, dropout, _, hidden, backend = key
        edges = groups[key][0]["edges"]
        return ["gcn", "gin", "sage"].index(model), list(RATES).index(dropout), edges, hidden, (["lapidary"] + FIRST).index(backend)

    rows = []
    for key in sorted(groups, key=place):
        ours, plain = groups.get(key[:4] + ("lapidary",)), groups.get((key[0], "none") + key[2:4] + ("lapidary",))
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
        floors = epoch_s(rates, case["model"], about["vertices"], about["edges"], about["widths"], case["dropout"] == "input")
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
             "machine: every kernel's operands read once, or its operations at the peak rate. Data that fits a cache may be faster.", "",
             "| model | dropout | graph | hidden | framework | rounds | epoch | ratio | cpu | ratio | inference | ratio | memory | ratio | floor |",
             "| --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in results:
        head = f"| {r['model']} | {r['dropout']} | {r['graph']} | {r['hidden']} | {r['backend']} | {r['rounds']} |"
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
    p.add_argument("--cases", nargs="*", default=["pubmed:16,128", "arxiv:16,128,256"])
    p.add_argument("--models", default="gcn", help="some of gcn, gin, sage, separated by commas")
    p.add_argument("--dropout", default="none", help="some of none, hidden, input, separated by commas")
    p.add_argument("--backends", default=",".join(FIRST))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--budget", type=float, default=10.0, help="seconds for a peer's timed epochs; it runs at least 3")
    p.add_argument("--machine", help="rates of the machine, for the floors")
    p.add_argument("--note", default="", help="the machine, and what else ran on it")
    p.add_argument("--out", default="bench/results/cpu_speed")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    for model in a.models.split(","):
        for dropout in a.dropout.split(","):
            for case in a.cases:
                graph, widths = case.split(":")
                for hidden in map(int, widths.split(",")):
                    run_case(a, graph, hidden, model, dropout, [b for b in a.backends.split(",") if b])
    machine = None
    if a.machine:
        with open(a.machine) as file:
            machine = json.load(file)
    results = summaries(all_runs(a), machine and Rates(machine))
    about = f"{datetime.date.today()}; {a.note}; two layers, Adam; by turns."
    with open(a.out + ".json", "w") as file:
        json.dump(dict(about=about, machine=machine, rows=results), file, indent=1)
    with open(a.out + ".md", "w") as file:
        file.write(table(results, about))


if __name__ == "__main__":
    main()
