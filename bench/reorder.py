"""Measures training with each order of the vertices, on graphs in their own order and shuffled.

    cargo build --release
    python3 bench/reorder.py --data DATASET [DATASET ...] --work DIR --note "what else ran"

Needs numpy. A dataset without features or labels gets random ones, in a copy below `--work`, as shuffled copies are; keep that
folder out of the repository. `plan` predicts before anything is trained. An epoch is the median over epochs of a run without
evaluation, and the median over rounds; orders take turns within a round. `gathers` are the gathers of an epoch. The runs stay
in the work folder's `runs.jsonl`, and the table has all of them, so graphs can be measured one at a time.
"""

import argparse
import json
import os
import statistics
import subprocess

import numpy

import record
from machine import machine

ORDERS = ["none", "degree", "rcm", "metis"]
FEATURES, CLASSES = 64, 8
MOST_PARTS = 65536


def lines(args, *words):
    """Runs a command of the program and returns its JSON lines."""
    env = dict(os.environ, XDG_CACHE_HOME=os.path.join(args.work, "cache"))
    done = subprocess.run([args.lapidary, *words], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def trainable(args, data):
    """Returns the dataset, or a copy of its graph with random features and labels if it has none."""
    with open(os.path.join(data, "dataset.json")) as file:
        about = json.load(file)
    if "feature_width" in about and "classes" in about:
        return data
    copy = os.path.join(args.work, os.path.basename(data) + "-trainable")
    if not os.path.exists(copy):
        os.makedirs(copy)
        for name in ("indptr.npy", "indices.npy"):
            os.symlink(os.path.abspath(os.path.join(data, name)), os.path.join(copy, name))
        random, n = numpy.random.default_rng(1), about["vertices"]
        numpy.save(os.path.join(copy, "features.npy"), random.random((n, FEATURES), numpy.float32))
        numpy.save(os.path.join(copy, "labels.npy"), random.integers(0, CLASSES, n))
        numpy.save(os.path.join(copy, "train.npy"), numpy.arange(n))
        about |= dict(feature_width=FEATURES, classes=CLASSES)
        with open(os.path.join(copy, "dataset.json"), "w") as file:
            json.dump(about, file)
    return copy


def shuffled(args, data):
    """Returns a copy of the dataset with its vertices in a random order: parts of a vertex, or of a few that are anywhere."""
    copy = os.path.join(args.work, os.path.basename(data) + "-shuffled")
    if not os.path.exists(copy):
        with open(os.path.join(data, "dataset.json")) as file:
            n = json.load(file)["vertices"]
        parts = os.path.join(args.work, "parts.npy")
        count = min(n, MOST_PARTS)
        numpy.save(parts, numpy.random.default_rng(2).permutation(n) % count)
        lines(args, "data", "partition", data, copy, "--parts", str(count), "--by", parts)
    return copy


def measure(args, name, kind, data):
    """Adds the runs of one dataset to the work folder."""
    words = ["--data", data, "--hidden", str(args.hidden), "--eval-every", "0", "--json"]
    auto = lines(args, "plan", *words, "--reorder", "auto")[0]
    for order in ORDERS:
        found = lines(args, "plan", *words, "--reorder", order)
        plan = next(line for line in found if line["event"] == "plan")
        reorder_s = next((line["seconds"] for line in found if line["event"] == "reorder"), 0.0)
        run = dict(graph=name, kind=kind, order=order, reorder_s=reorder_s, predicted_s=plan["epoch_seconds"])
        record.add_run(args.work, dict(run, auto=auto["reorder"], why=auto["why"]))
    for _ in range(args.rounds):
        for order in ORDERS:
            found = lines(args, "train", *words, "--epochs", str(args.epochs), "--explain", "--reorder", order)
            kernels = next(line for line in found if line["event"] == "kernels")["kernels"]
            gather_s = sum(kernel["measured_seconds"] for kernel in kernels if "gather" in kernel["kernel"])
            epoch_s = found[-1]["epoch_seconds_median"]
            record.add_run(args.work, dict(graph=name, kind=kind, order=order, epoch_s=epoch_s, gather_s=gather_s))


def table(runs, about):
    """Returns the table of all runs."""
    rows = [
        "# Orders of the vertices", "", about, "",
        "Milliseconds of an epoch without evaluation: predicted by `plan`, measured, and its gathers alone. Ratios are those of",
        "the order `none` of the same graph to the row: above 1, the order is faster. `reorder`: seconds to find the order and",
        "to move the data. `auto`: what `--reorder auto` takes for 200 epochs, and why.", "",
        "| graph | order | reorder s | predicted ms | ratio | measured ms | ratio | gathers ms | ratio | auto |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for graph, kind in dict.fromkeys((run["graph"], run["kind"]) for run in runs):
        base = None
        for order in ORDERS:
            of = [run for run in runs if (run["graph"], run["kind"], run["order"]) == (graph, kind, order)]
            middle = lambda key: statistics.median(run[key] for run in of if key in run)
            now = [1e3 * middle(key) for key in ("predicted_s", "epoch_s", "gather_s")]
            base = base or now
            cells = [f"{ms:.2f} | {was / ms:.2f}" for ms, was in zip(now, base)]
            plan = next(run for run in of if "auto" in run)
            auto = f"{plan['auto']}: {plan['why']}" if order == "none" else ""
            rows.append(f"| {graph}, {kind} | {order} | {middle('reorder_s'):.2f} | {' | '.join(cells)} | {auto} |")
    return "\n".join(rows) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lapidary", default="target/release/lapidary")
    p.add_argument("--data", nargs="+", required=True)
    p.add_argument("--work", required=True, help="a folder for copies and runs")
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--epochs", type=int, default=16)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--note", default="", help="what else ran on the machine")
    p.add_argument("--out", default="bench/results/reorder.md")
    args = p.parse_args()
    os.makedirs(args.work, exist_ok=True)
    done = {(run["graph"], run["kind"]) for run in record.all_runs(args.work)}
    for data in args.data:
        name = os.path.basename(os.path.normpath(data))
        own = trainable(args, os.path.normpath(data))
        for kind, at in [("own order", own), ("shuffled", shuffled(args, own))]:
            if (name, kind) not in done:
                measure(args, name, kind, at)
    host = machine()
    host = f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB"
    about = record.about(host, f"GCN with {args.hidden} hidden columns", f"{args.rounds} rounds", args.note)
    with open(args.out, "w") as file:
        file.write(table(record.all_runs(args.work), about))


main()
