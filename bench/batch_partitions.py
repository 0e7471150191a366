"""Compares ways to partition for mini-batches: the rows that parts fetch for a batch, on real graphs.

    cargo build --release --features hypergraph
    python bench/batch_partitions.py --lapidary target/release/lapidary --data FOLDER_OF_DATASETS --work DIR \
        --note "what else ran" --out bench/results/batch_partitions

`FOLDER_OF_DATASETS` has a folder of Lapidary's format for each name of `--cases`. A graph without labels gets one class, and a training
split of 60 % of its vertices, drawn with seed 1. Every cell is one call of `lapidary data partition DATA DST --parts P --by WAY --batch
N --fanout LIST --json` with seed 1, which counts the rows of 100 batches that no way has seen. They are the same batches for all ways, so
differences are also given with intervals of their own. Lines are kept in `DIR/runs.jsonl`, and cells that are there are not run again.
Writes `OUT.json` and `OUT.md`, whose section "Findings" is kept as it is; `--report` only writes these. Needs no packages.
"""

import argparse
import json
import os
import random
import shutil
import struct
import subprocess

import record
from machine import machine
from partitions import kept

CASES = ["soc-slashdot0902", "coauthor-physics", "amazon-computers"]
PARTS = [4, 16]
# The names in the tables, `--by` and `--weights`.
WAYS = {
    "random": ("random", "edges,rows,train"),
    "metis": ("metis", "edges"),
    "metis, three weights": ("metis", "edges,rows,train"),
    "hypergraph": ("hypergraph", "edges"),
    "stochastic": ("stochastic", "edges"),
}
TRAINING_SHARE = 0.6


def write_npy(path, dtype, code, numbers):
    """Writes a vector as a file of NumPy."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({len(numbers)},), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(struct.pack(f"<{len(numbers)}{code}", *numbers))


def labelled(args, case):
    """Returns the directory of a case, with labels and a training split."""
    path = os.path.join(args.data, case)
    if os.path.exists(os.path.join(path, "train.npy")):
        return path
    copy = os.path.join(args.work, case)
    if os.path.exists(copy):
        return copy
    os.makedirs(copy + ".new")
    for name in os.listdir(path):
        shutil.copyfile(os.path.join(path, name), os.path.join(copy + ".new", name))
    with open(os.path.join(path, "dataset.json"), encoding="utf-8") as file:
        facts = json.load(file)
    n = facts["vertices"]
    train = sorted(random.Random(1).sample(range(n), int(n * TRAINING_SHARE)))
    write_npy(os.path.join(copy + ".new", "labels.npy"), "<i8", "q", [0] * n)
    write_npy(os.path.join(copy + ".new", "train.npy"), "<i8", "q", train)
    with open(os.path.join(copy + ".new", "dataset.json"), "w", encoding="utf-8") as file:
        json.dump({**facts, "classes": 1}, file)
    os.rename(copy + ".new", copy)
    return copy


def measure(args, runs):
    for case in args.cases:
        path = labelled(args, case)
        info = subprocess.run([args.lapidary, "data", "info", path, "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
        info = json.loads(info)
        for parts in args.parts:
            for name in args.ways:
                if (case, parts, name) in runs:
                    continue
                way, weights = WAYS[name]
                dst = os.path.join(args.work, f"dst-{os.getpid()}")
                shutil.rmtree(dst, ignore_errors=True)
                command = [args.lapidary, "data", "partition", path, dst, "--parts", str(parts), "--by", way, "--weights", weights]
                command += ["--batch", str(args.batch), "--fanout", args.fanout, "--most-pins", str(args.most_pins), "--json"]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    print(f"{case}, {parts} parts by {name}: exit code {done.returncode}")
                    continue
                shutil.rmtree(dst)
                run = {key: value for key, value in json.loads(done.stdout).items() if not key.startswith("part_")}
                seeds = json.loads(done.stdout)["part_seeds"]
                run["seeds_imbalance"] = max(seeds) * len(seeds) / sum(seeds)
                run.update(case=case, name=name, vertices=info["vertices"], edges=info["edges"], directed=info["directed"],
                           most_pins=args.most_pins)
                del run["written"]
                record.add_run(args.work, run)
                runs[case, parts, name] = run
                fetched = run["fetched_rows"]
                print(f"{case} {parts} {name}: {fetched['mean']:.1f} ± {fetched['error']:.1f}, {run['seconds']:.1f} s", flush=True)


def compared(rows, others):
    """Returns the change of the mean against the same batches of another way in percent, and half of its 95 % interval."""
    changes = [row - other for row, other in zip(rows, others)]
    mean, base = sum(changes) / len(changes), sum(others) / len(others)
    error = 1.96 * (sum((change - mean) ** 2 for change in changes) / (len(changes) - 1) / len(changes)) ** 0.5
    return f"{100 * mean / base:+.1f} ± {100 * error / base:.1f} %"


def table(runs, case, parts_list):
    lines = ["| parts | by | rows per batch | against `hypergraph` | imbalance | seeds | halo rows | seconds |",
             "| ---: | --- | ---: | ---: | --- | ---: | ---: | ---: |"]
    for parts in parts_list:
        base = runs.get((case, parts, "hypergraph"))
        for name in WAYS:
            run = runs.get((case, parts, name))
            if run is None:
                continue
            fetched = run["fetched_rows"]
            change = compared(fetched["batches"], base["fetched_rows"]["batches"]) if base not in (None, run) else ""
            imbalance = ", ".join(f"{weight} {run['imbalances'][weight]:.3f}" for weight in run["weights"].split(","))
            lines.append(f"| {parts} | {name} | {fetched['mean']:,.0f} ± {fetched['error']:,.0f} | {change} | {imbalance} "
                         f"| {run['seeds_imbalance']:.3f} | {run['halo_rows']:,} | {run['seconds']:.3g} |")
    return "\n".join(lines)


def search(runs, case, parts_list):
    lines = ["| parts | batches in it | pins | rows, own batches | rows, batches held out |", "| ---: | ---: | ---: | ---: | ---: |"]
    for parts in parts_list:
        run = runs.get((case, parts, "stochastic"))
        for i, trial in enumerate(run["trials"] if run else []):
            rows = lambda estimate: f"{estimate['mean']:,.0f} ± {estimate['error']:,.0f}" if estimate else ""
            held_out = rows(trial["held_out"])
            held_out = f"**{held_out}**" if i == run["best_trial"] else held_out
            source = trial["batches"] or {"hypergraph": 0, "metis": "METIS"}[trial.get("by", "hypergraph")]
            lines.append(f"| {parts} | {source} | {trial['pins']:,} | {rows(trial['own'])} | {held_out} |")
        if run and run["ended_at_most_pins"]:
            lines.append(f"| {parts} | more | above {run['most_pins']:,} | | |")
    return "\n".join(lines)


def report(args, runs):
    host = machine()
    about = record.about(f"{host['cores']} cores of {host['cpu']}", args.note)
    text = f"""# Partitions for mini-batches

The rows that all parts together fetch for a mini-batch, if each part draws the blocks around the seeds that it owns: `lapidary data
partition DATA DST --parts P --by WAY --batch {args.batch} --fanout {args.fanout} --json`, seed 1. Made by `bench/batch_partitions.py`; all numbers are
in [batch_partitions.json](batch_partitions.json).

- Rows per batch: mean over 100 batches that no way has seen, with a 95 % interval. All ways get the same batches. So the interval of a
  difference, in the next column, is narrower.
- Seeds are the labelled vertices of the training split. A graph without labels gets a training split of 60 % of its vertices.
- Imbalance: of each weight that was asked for, the heaviest part over the mean. Seeds: the same of the seeds that parts own.
- Batches held out: those on which the number of batches was chosen; bold: what was kept. 0 batches: the hypergraph of the graph.
- Seconds: one run. {about}.

{kept(args.out + ".md")}## All numbers
"""
    cases = [case for case in args.cases if any(key[0] == case for key in runs)]
    for case in cases:
        run = next(run for key, run in runs.items() if key[0] == case)
        kind = "directed" if run["directed"] else "undirected"
        text += f"\n### {case} ({kind}, {run['vertices']:,} vertices, {run['edges']:,} edges)\n\n"
        text += table(runs, case, args.parts) + "\n"
        if any((case, parts, "stochastic") in runs for parts in args.parts):
            text += "\nThe choice of the number of batches:\n\n" + search(runs, case, args.parts) + "\n"
    record.write_results(args.out, text, about, runs=[runs[key] for key in sorted(runs) if key[0] in args.cases])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", required=True)
    parser.add_argument("--data", required=True, help="folder of datasets")
    parser.add_argument("--work", required=True, help="folder for runs, graphs with splits, and what is partitioned")
    parser.add_argument("--out", default="bench/results/batch_partitions")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--parts", nargs="+", type=int, default=PARTS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="run only these")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--fanout", default="10,10")
    parser.add_argument("--most-pins", type=int, default=4_000_000)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    runs = {(run["case"], run["parts"], run["name"]): run for run in record.all_runs(args.work)}
    if not args.report:
        measure(args, runs)
    report(args, runs)


if __name__ == "__main__":
    main()
