"""Compares the accuracy of mini-batches in Lapidary with that of its whole-graph training and with another framework.

    export PEERS_DIR=... PEERS_PY_MAIN=.../python PEERS_PY_DGL=.../python
    $PEERS_PY_MAIN bench/batch_accuracy.py --lapidary target/release/lapidary --data-dir DIR --work WORK

`DIR` holds dataset directories with splits. GraphSAGE with the mean of the neighbours, two layers, 64 hidden, dropout 0.5 on
the hidden layer, Adam(0.01) with weight decay 5e-4 on all parameters, and fan-outs 10,10. The same in all programs:
  lapidary          mini-batches
  lapidary_whole    the whole graph at once, so one update per epoch
  PROGRAM           mini-batches of `--peer`, a program of `batches_peer.py`: PyG's if it can sample, else DGL's
All programs start from the same weights, which differ between seeds and are drawn like PyG's. After each epoch, the accuracy
is computed on the whole graph, with all neighbours and without dropout. The result is the test accuracy at the epoch with the
best validation accuracy, the earliest on a tie. Samples and dropout masks differ between programs.

Each run is a line of `WORK/runs.jsonl`. A run that is there with the same settings is not repeated, so the command can be
stopped and restarted; `--seeds 0` only writes the results.
"""

import argparse
import json
import math
import os
import statistics

import numpy as np

import record
from batches import HERE, last_lines, python_of
from machine import machine
from speed import write_safetensors

SAME = dict(hidden=64, dropout=0.5, lr=0.01, weight_decay=5e-4)
FANOUT = "10,10"
# Epochs of mini-batches, and of the whole graph. The normalisation of features is that of `accuracy.py`.
SETTINGS = {
    "cora": dict(batch=256, epochs=100, whole_epochs=200, feature_norm="row"),
    "amazon-computers": dict(batch=1024, epochs=30, whole_epochs=100, feature_norm="none"),
    "tolokers": dict(batch=1024, epochs=30, whole_epochs=100, feature_norm="none"),
    "coauthor-physics": dict(batch=1024, epochs=20, whole_epochs=100, feature_norm="row"),
}


def options(settings):
    return [word for name, value in settings.items() for word in ("--" + name.replace("_", "-"), value)]


def initial_weights(widths, seed):
    """Returns tensors by PyG's names, drawn from the distribution of its `SAGEConv`."""
    rng, tensors = np.random.default_rng(seed), {}
    for i, (k, m) in enumerate(zip(widths, widths[1:])):
        for name, shape in (("lin_l.weight", (m, k)), ("lin_l.bias", m), ("lin_r.weight", (m, k))):
            tensors[f"convs.{i}.{name}"] = rng.uniform(-(k**-0.5), k**-0.5, shape).astype(np.float32)
    return tensors


def settings_of(data, program):
    """Returns what a program is run with, apart from the seed."""
    of_data = SETTINGS[data]
    settings = dict(SAME, feature_norm=of_data["feature_norm"])
    if program == "lapidary_whole":
        return dict(settings, epochs=of_data["whole_epochs"])
    return dict(settings, epochs=of_data["epochs"], batch=of_data["batch"], fanout=FANOUT)


def train(a, data, program, seed):
    """Trains once. Returns the test accuracy at the best epoch, the median seconds of an epoch without its evaluation, and the
    seconds and the validation accuracy of each epoch."""
    folder = os.path.join(a.data_dir, data)
    with open(os.path.join(folder, "dataset.json")) as file:
        about = json.load(file)
    weights = os.path.join(a.work, f"{data}-{seed}.safetensors")
    widths = [about["feature_width"], SAME["hidden"], about["classes"]]
    write_safetensors(weights, initial_weights(widths, seed))
    same = ["--data", folder, "--seed", seed, "--weights", weights, *options(settings_of(data, program))]
    if program.startswith("lapidary"):
        own = ["--model", "sage", "--layers", 2, "--input-dropout", 0, "--json", "--threads", a.threads]
        lines = last_lines([a.lapidary, "train", *same, *own], a.timeout)
        if "status" in lines[-1]:
            raise SystemExit(f"{program} on {data}: {lines[-1]['error']}")
        epochs = [line for line in lines if line["event"] == "epoch"]
        result = dict(test_accuracy=lines[-1]["test_accuracy"], best_epoch=lines[-1]["best_epoch"])
    else:
        peer = [a.python, os.path.join(HERE, "batches_peer.py"), "--program", program, "--evaluate", *same]
        line = last_lines(peer, a.timeout, OMP_NUM_THREADS=str(a.threads))[-1]
        if line["status"] != "ok":
            raise SystemExit(f"{program} on {data}: {line.get('error', line['status'])}")
        epochs = line["epochs"]
        best = max(range(len(epochs)), key=lambda i: epochs[i]["val_accuracy"])
        result = dict(test_accuracy=epochs[best]["test_accuracy"], best_epoch=best + 1, version=line["version"])
    seconds = [epoch["seconds"] for epoch in epochs[1:]]
    curve = [(epoch["seconds"], epoch["val_accuracy"]) for epoch in epochs]
    return dict(result, epoch_s=statistics.median(seconds), batches=epochs[0].get("batches", 1), loss=epochs[-1]["loss"], curve=curve)


def measure(a):
    """Runs all programs on all datasets, seed by seed, and adds the runs to `runs.jsonl`."""
    runs = record.all_runs(a.work)
    for data in a.data:
        for seed in range(a.seeds):
            for program in ("lapidary", "lapidary_whole", a.peer):
                key = dict(data=data, program=program, seed=seed, settings=settings_of(data, program))
                if any(key.items() <= run.items() for run in runs):
                    continue
                run = dict(key, **train(a, data, program, seed))
                print(data, program, seed, f"{100 * run['test_accuracy']:.2f} %", f"{run['epoch_s']:.3f} s", flush=True)
                record.add_run(a.work, run)


def summaries(runs):
    """Returns one row for each dataset and program, over the seeds that all programs of the dataset have. The difference is
    the mean over seeds of Lapidary's mini-batches minus the row, and its standard error that of this mean."""
    rows = []
    for data in SETTINGS:
        of_programs = {}
        for run in runs:
            if run["data"] == data and run["settings"] == settings_of(data, run["program"]):
                of_programs.setdefault(run["program"], {})[run["seed"]] = run
        seeds = sorted(set.intersection(*map(set, of_programs.values()))) if of_programs else []
        if not seeds or "lapidary" not in of_programs:
            continue
        accuracy = lambda program: [100 * of_programs[program][seed]["test_accuracy"] for seed in seeds]  # noqa: E731
        for program, of in sorted(of_programs.items(), key=lambda item: (not item[0].startswith("lapidary"), item[0])):
            values = accuracy(program)
            row = dict(data=data, program=program, seeds=seeds, accuracies=values, mean=statistics.mean(values),
                       deviation=deviation(values), epoch_s=statistics.median(of[seed]["epoch_s"] for seed in seeds),
                       batches=of[seeds[0]]["batches"], version=of[seeds[0]].get("version"), settings=settings_of(data, program))
            if program != "lapidary":
                differences = [ours - theirs for ours, theirs in zip(accuracy("lapidary"), values)]
                row["difference"] = statistics.mean(differences)
                row["error"] = deviation(differences) / math.sqrt(len(seeds)) if len(seeds) > 1 else None
            rows.append(row)
    return rows


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else None


def table(rows, about):
    same = " ".join(f"{name}={value}" for name, value in SAME.items())
    lines = ["# Accuracy of mini-batches", "", about, "",
             "Test accuracy in percent, mean ± standard deviation over seeds, at the epoch with the best validation accuracy (the "
             "earliest on a tie). It is computed on the whole graph for all programs. Tolokers has two classes, of which one has "
             "78 % of the vertices; this is its accuracy too, not the area under the ROC curve that others report. `difference` is "
             "the mean over seeds of the accuracy of Lapidary's mini-batches minus that of the row. `epoch` is the median seconds "
             "of an epoch without its evaluation, with the threads of the first line. Written by `bench/batch_accuracy.py`, which "
             "describes the programs.", "",
             "| data | program | seeds | test accuracy | difference | standard error | batch | batches | epochs | epoch |",
             "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        spread = (lambda value: f"{value:.2f}") if len(row["seeds"]) > 1 else (lambda _: "")
        compared = [f"{row['difference']:+.2f}", spread(row["error"])] if "difference" in row else ["", ""]
        settings = row["settings"]
        cells = [row["data"], row["program"], str(len(row["seeds"])), f"{row['mean']:.2f} ± {spread(row['deviation'])}".rstrip(" ±"), *compared,
                 str(settings.get("batch", "all")), str(row["batches"]), str(settings["epochs"]), f"{row['epoch_s']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    norms = ", ".join(f"{data}: {of_data['feature_norm']}" for data, of_data in SETTINGS.items())
    versions = sorted({row["version"] for row in rows if row["version"]})
    return "\n".join([*lines, "", f"GraphSAGE, two layers, fan-outs {FANOUT}, `{same}`, no dropout of the input. Feature "
                      f"normalisation: {norms}.", "", f"Compared: {'; '.join(versions)}."]) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lapidary", default="target/release/lapidary")
    p.add_argument("--data-dir", required=True)
    p.add_argument("--data", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    p.add_argument("--work", required=True)
    p.add_argument("--peer", default="pyg", help="a program of batches_peer.py [%(default)s]")
    p.add_argument("--seeds", type=int, default=10, help="number of seeds, from 0")
    p.add_argument("--threads", type=int, default=1, help="of every program [%(default)s]")
    p.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run of one program")
    p.add_argument("--note", default="", help="the machine, and what else ran on it")
    p.add_argument("--out", default="bench/results/batch_accuracy")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    if a.seeds:
        a.python = python_of(a.peer)
        measure(a)
    rows = summaries(record.all_runs(a.work))
    is_on = machine()
    about = record.about(a.note, f"{is_on['cpu']}, {a.threads} of {is_on['cores']} cores")
    record.write_results(a.out, table(rows, about), about, machine=is_on, rows=rows)


if __name__ == "__main__":
    main()
