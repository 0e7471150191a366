#!/usr/bin/env python3
"""Trains Lapidary and PyTorch Geometric with the same settings and seeds, and writes a table of their accuracies.

    python3 bench/accuracy.py --lapidary target/release/lapidary --data-dir DIR

For each dataset directory in DIR, model and seed, both frameworks train with the settings below, and evaluate after
each epoch without dropout. The result is the test accuracy at the epoch with the best validation accuracy, the earliest
on a tie. The frameworks draw different random numbers from the same seed, so their runs are independent samples. There
are two workers with one thread each: one runs Lapidary's processes, the other PyG's training in this process. `pyg.py`
describes the PyG models that are used. They are first checked against PyG's layers on Cora.

Each run is a line of `accuracy.jsonl`. A run that is in the file with the same settings is not repeated, so the command
can be stopped and restarted. `accuracy.md` is rewritten after each pair of dataset and model.

`--published` trains Lapidary alone with published hyper-parameters, and compares with the published accuracies.

`--attention` trains GAT in both frameworks, with the hyper-parameters of its paper, and writes `attention.md` instead:

    python3 bench/accuracy.py --lapidary target/release/lapidary --data-dir DIR --attention --data cora
"""

import argparse
import datetime
import json
import math
import pathlib
import statistics
import subprocess
import sys
import threading
import time

SMALL = dict(layers=2, hidden=16, dropout=0.5, input_dropout=0.5, lr=0.01, weight_decay=5e-4, epochs=200)
LARGE = dict(layers=2, hidden=64, dropout=0.5, input_dropout=0.0, lr=0.01, weight_decay=5e-4, epochs=100)
SETTINGS = {
    "cora": {**SMALL, "feature_norm": "row"},
    "citeseer": {**SMALL, "feature_norm": "row"},
    "tolokers": {**LARGE, "feature_norm": "none"},
    # Its rows have 267 ones on average: with row normalisation, nothing is learnt in 100 epochs with this weight decay.
    "amazon-computers": {**LARGE, "feature_norm": "none"},
    "coauthor-physics": {**LARGE, "feature_norm": "row"},
}
SEEDS = range(10)
MODELS = ["gcn", "gin", "sage", "commnet", "resgcn"]

# Luo, Shi & Wu, Classic GNNs are strong baselines for node classification, NeurIPS 2024: test accuracy in percent, and
# hyper-parameters from the authors' scripts. Their networks have one more linear layer after the convolutions. Their
# "gcn" on Coauthor Physics has (linear) shortcuts before the layer norm, so our residual GCN is the closest model.
COMPUTERS = {**LARGE, "layer_norm": True, "lr": 0.001, "weight_decay": 5e-5, "epochs": 1000, "feature_norm": "row"}
PHYSICS = {**LARGE, "layer_norm": True, "dropout": 0.3, "lr": 0.001, "epochs": 1500, "feature_norm": "row"}
PUBLISHED = [
    ("amazon-computers", "gcn", 93.99, {**COMPUTERS, "layers": 3, "hidden": 512}),
    ("amazon-computers", "sage", 93.25, {**COMPUTERS, "layers": 4, "dropout": 0.3}),
    ("coauthor-physics", "gcn", 97.46, PHYSICS),
    ("coauthor-physics", "resgcn", 97.46, PHYSICS),
]
PUBLISHED_MARGIN = 0.5

# Veličković et al., Graph attention networks, ICLR 2018, section 3.3: 8 heads of width 8. The last layer of the paper
# has one head; here it averages 8. The paper stops early, after 100 epochs without progress on the validation set.
GAT = dict(layers=2, hidden=64, heads=8, activation="elu", dropout=0.6, input_dropout=0.6, lr=0.005, weight_decay=5e-4)
GAT = {**GAT, "epochs": 300, "feature_norm": "row"}
GAT_PUBLISHED = {"cora": "83.0 ± 0.7", "citeseer": "72.5 ± 0.7"}


class Log:
    """The runs so far, in memory and on disk."""

    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        self.runs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def has(self, key):
        return any(all(run[k] == v for k, v in key.items()) for run in self.runs)

    def add(self, run):
        with self.lock:
            self.runs.append(run)
            with self.path.open("a") as file:
                file.write(json.dumps(run) + "\n")
        print(
            f"{run['data']:18} {run['model']:8} seed {run['seed']} {run['framework']:9} "
            f"test {100 * run['test_accuracy']:.2f} %  {run['seconds']:.1f} s",
            flush=True,
        )


def keys(framework, names, models, seeds, settings_of):
    """Yields the runs to do, in order."""
    for data in names:
        for model in models:
            for seed in seeds:
                yield dict(framework=framework, data=data, model=model, seed=seed, settings=settings_of(data))


def train_lapidary(binary, folder, model, seed, settings, threads):
    """Trains in one process; its seconds include loading the data."""
    command = [binary, "train", "--json", "--threads", threads, "--data", folder, "--model", model, "--seed", seed,
               "--defaults", "plain"]
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        command += [option] if value is True else [option, value]
    start = time.perf_counter()
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr}")
    summary = json.loads(done.stdout.splitlines()[-1])
    return {
        "test_accuracy": summary["test_accuracy"],
        "val_accuracy": summary["best_val_accuracy"],
        "best_epoch": summary["best_epoch"],
        "seconds": round(time.perf_counter() - start, 3),
    }


def run_lapidary(args, log, todo, threads=1):
    for key in todo:
        if not log.has(key):
            run = train_lapidary(
                args.lapidary, args.data_dir / key["data"], key["model"], key["seed"], key["settings"], threads
            )
            log.add({**key, **run})


def run_pyg(args, log, todo, after_model):
    """Runs PyG. Imports torch only here, so that the table can be written without it."""
    todo = [key for key in todo if not log.has(key)]
    if not todo:
        return
    import pyg
    import torch

    torch.set_num_threads(1)
    cora = pyg.Data(args.data_dir / "cora", row_norm=True)
    for model in sorted({key["model"] for key in todo}):
        print(f"{model}: what trains equals PyG's layers to {pyg.check(cora, model):.1e}", flush=True)
    name, data, previous = None, None, None
    for key in todo:
        if key["data"] != name:
            name = key["data"]
            data = pyg.Data(args.data_dir / name, key["settings"]["feature_norm"] == "row")
        if previous not in (None, (name, key["model"])):
            after_model()
        previous = (name, key["model"])
        log.add({**key, **pyg.train(data, key["model"], key["seed"], key["settings"])})


def percents(log, framework, data, model, settings, seeds):
    key = dict(framework=framework, data=data, model=model, settings=settings)
    runs = [run for run in log.runs if run["seed"] in seeds and all(run[k] == v for k, v in key.items())]
    return [100 * run["test_accuracy"] for run in runs]


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else math.nan


def mean_and_deviation(values):
    text = f"{statistics.mean(values):.2f}"
    return f"{text} ± {deviation(values):.2f}" if len(values) > 1 else text


def spread(values):
    """Formats mean and standard deviation over seeds, and the number of seeds if it is not the usual one."""
    if not values:
        return "-"
    text = mean_and_deviation(values)
    return text if len(values) == len(SEEDS) else f"{text} ({len(values)} seeds)"


def comparison(log, names, seeds):
    """Returns one row for each dataset and model that both frameworks have trained with these seeds."""
    lines = [
        "| data | model | Lapidary | PyG | difference | standard error | lower by more than one |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in names:
        for model in MODELS:
            if row := compared(log, data, model, SETTINGS[data], seeds):
                lines.append("| " + " | ".join(row) + " |")
    return lines


def compared(log, data, model, settings, seeds):
    """Returns the cells of a row of a comparison, or nothing if a framework has no runs."""
    ours, theirs = (percents(log, who, data, model, settings, seeds) for who in ("lapidary", "pyg"))
    if not ours or not theirs:
        return []
    difference = statistics.mean(ours) - statistics.mean(theirs)
    error = math.sqrt(deviation(ours) ** 2 / len(ours) + deviation(theirs) ** 2 / len(theirs))
    row = [data, model, spread(ours), spread(theirs), f"{difference:+.2f}", f"{error:.2f}"]
    return row + ["**yes**" if difference < -error else "no"]


def fresh_seeds(log):
    """Returns the comparison for other seeds than the usual ones, without the usual ones. Pairs are run with other seeds
    because of their result with the usual seeds, which are therefore a biased sample."""
    fresh = range(SEEDS.stop, max((run["seed"] + 1 for run in log.runs), default=0))
    names = [data for data in SETTINGS if any(run["data"] == data and run["seed"] in fresh for run in log.runs)]
    if not names:
        return []
    intro = [
        f"Other seeds ({fresh.start} and up), for rows where the usual seeds show a difference. They tell chance from a",
        "real difference:",
    ]
    return ["", *intro, "", *comparison(log, names, fresh)]


def published(log):
    lines = [
        f"| data | model | Lapidary | seeds | published | difference | within {PUBLISHED_MARGIN} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data, model, figure, settings in PUBLISHED:
        ours = percents(log, "lapidary", data, model, settings, SEEDS)
        if ours:
            difference = statistics.mean(ours) - figure
            verdict = "yes" if abs(difference) <= PUBLISHED_MARGIN else "higher" if difference > 0 else "**no**"
            row = [data, model, mean_and_deviation(ours), str(len(ours)), f"{figure:.2f}", f"{difference:+.2f}", verdict]
            lines.append("| " + " | ".join(row) + " |")
    return lines if len(lines) > 2 else []


def as_options(settings):
    return " ".join(f"{name}={value}" for name, value in settings.items())


def machine():
    model = "unknown processor"
    for line in subprocess.run(["lscpu"], stdout=subprocess.PIPE, text=True).stdout.splitlines():
        if line.startswith("Model name:"):
            model = line.split(":", 1)[1].strip()
    return model


def versions(binary):
    import importlib.metadata as metadata

    own = subprocess.run([str(binary), "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return ", ".join([own] + [f"{name} {metadata.version(name)}" for name in ("torch", "torch_geometric")])


def write_table(args, log):
    text = [
        "# Accuracy compared with PyTorch Geometric",
        "",
        "Test accuracy in percent, mean ± standard deviation over seeds, at the epoch with the best validation accuracy",
        "(the earliest on a tie). The standard error is that of the difference of the two means. The frameworks draw",
        "different random numbers: if they are equal, the first is lower by more than one standard error in about 16 of 100",
        "rows. Lapidary's sage and commnet are the same formula under different names and draw the same numbers, so their",
        "rows are one sample. Written by `bench/accuracy.py`, which describes the PyG models; the runs are in",
        "`accuracy.jsonl`. A deviation of 0.00 for gin means that every run predicts the largest class for every vertex:",
        "with these settings, sums over hundreds of neighbours train to nothing else in either framework.",
        "",
        *comparison(log, SETTINGS, SEEDS),
        *fresh_seeds(log),
        "",
        "Settings, the same for both (Adam, weight decay on all parameters):",
        "",
        *[f"- {data}: `{as_options(settings)}`" for data, settings in SETTINGS.items()],
    ]
    if table := published(log):
        text += ["", "## Published hyper-parameters, Lapidary alone", "", *table, ""]
        text += [
            "Published: Luo, Shi & Wu, NeurIPS 2024, whose networks have one more linear layer at the end; their GCN on",
            "Coauthor Physics has shortcuts. Their means are over different random splits.",
            "",
        ]
        text += [f"- {data}, {model}: `{as_options(settings)}`" for data, model, _, settings in PUBLISHED]
    text += [
        "",
        f"{datetime.date.today()}; {machine()}, 2 threads (one for each side); {versions(args.lapidary)}.",
        "",
        "    python3 bench/accuracy.py --lapidary target/release/lapidary --data-dir DIR"
        + (" [--published]" if table else ""),
        "",
    ]
    (args.out / "accuracy.md").write_text("\n".join(text))


def write_attention_table(args, log):
    rows = [(data, compared(log, data, "gat", GAT, SEEDS)) for data in GAT_PUBLISHED]
    text = [
        "# Accuracy of graph attention compared with PyTorch Geometric",
        "",
        "Test accuracy in percent, mean ± standard deviation over seeds, at the epoch with the best validation accuracy",
        "(the earliest on a tie). The standard error is that of the difference of the two means. Published: Veličković et",
        "al., ICLR 2018, table 2, whose last layer has one head instead of the mean of 8, and which stops early.",
        "",
        "| data | model | Lapidary | PyG | difference | standard error | lower by more than one | published |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *["| " + " | ".join(row + [GAT_PUBLISHED[data]]) + " |" for data, row in rows if row],
        "",
        "Settings, the same for both (Adam, weight decay on all parameters; `dropout` is also that of attention weights):",
        "",
        f"- gat: `{as_options(GAT)}`",
        "",
        f"{datetime.date.today()}; {machine()}, 2 threads (one for each side); {versions(args.lapidary)}.",
        "",
        "    python3 bench/accuracy.py --lapidary target/release/lapidary --data-dir DIR --attention --data cora",
        "",
    ]
    (args.out / "attention.md").write_text("\n".join(text))


def compare(args, log, models, settings_of, write):
    """Runs both workers to the end, and raises an error of either."""
    failed = []

    def other():
        try:
            run_lapidary(args, log, keys("lapidary", args.data, models, args.seeds, settings_of))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    todo = list(keys("pyg", args.data, models, args.seeds, settings_of))
    run_pyg(args, log, todo, lambda: write(args, log))
    thread.join()
    if failed:
        raise SystemExit(f"Lapidary failed: {failed[0]}")


def seeds(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", type=pathlib.Path, default="target/release/lapidary", help="the binary")
    parser.add_argument("--data-dir", type=pathlib.Path, required=True, help="the folder of the dataset directories")
    parser.add_argument("--data", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=seeds, default=SEEDS, help="FIRST-LAST [0-9]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    parser.add_argument("--published", action="store_true", help="published hyper-parameters, Lapidary alone")
    parser.add_argument("--attention", action="store_true", help="GAT with the hyper-parameters of its paper")
    parser.add_argument("--table", action="store_true", help="write the table of the existing runs, and run nothing")
    return parser.parse_args()


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "accuracy.jsonl")
    write = write_attention_table if args.attention else write_table
    if args.table:
        pass
    elif args.attention:
        args.data = [data for data in args.data if data in GAT_PUBLISHED]
        compare(args, log, ["gat"], lambda _: GAT, write)
    elif args.published:
        for data, model, _, settings in PUBLISHED:
            if data in args.data and model in args.models:
                todo = keys("lapidary", [data], [model], args.seeds, lambda _: settings)
                run_lapidary(args, log, todo, threads=2)
    else:
        compare(args, log, args.models, SETTINGS.get, write)
    write(args, log)


if __name__ == "__main__":
    sys.exit(main())
