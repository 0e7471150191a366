"""Draws the validation accuracy against the seconds of training, from the runs that `batch_accuracy.py` made.

    python bench/batch_figure.py --work WORK [--data cora amazon-computers] [--out docs/batches.svg]

`WORK` is that of `batch_accuracy.py`. A point is an epoch: the mean over seeds of the seconds of training so far, without evaluations,
and of the validation accuracy after it. The points are also written to `bench/results/batch_figure.json`. Needs matplotlib.
"""

import argparse
import itertools
import json
import statistics

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

import record  # noqa: E402

LINES = {
    "lapidary": ("Lapidary, mini-batches", "#0b6e4f", "-"),
    "lapidary_whole": ("Lapidary, whole graph", "#0b6e4f", ":"),
    "dgl_unfused_i32": ("DGL, mini-batches", "#c1440e", "-"),
    "pyg": ("PyG, mini-batches", "#5b6abf", "-"),
}


def curve(runs):
    """Returns the seconds so far and the accuracy of each epoch, as means over runs."""
    seconds = zip(*(itertools.accumulate(epoch[0] for epoch in run["curve"]) for run in runs))
    accuracies = zip(*([epoch[1] for epoch in run["curve"]] for run in runs))
    return [(statistics.mean(s), 100 * statistics.mean(a)) for s, a in zip(seconds, accuracies)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True)
    p.add_argument("--data", nargs="+", default=["cora", "amazon-computers"])
    p.add_argument("--out", default="docs/batches.svg")
    p.add_argument("--results", default="bench/results/batch_figure.json")
    a = p.parse_args()
    runs = [run for run in record.all_runs(a.work) if "curve" in run]
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "batches", "font.size": 10})
    figure, panels = plt.subplots(1, len(a.data), figsize=(4.2 * len(a.data), 3.6), squeeze=False)
    rows = []
    for axes, data in zip(panels[0], a.data):
        for program, (name, colour, style) in LINES.items():
            of_program = [run for run in runs if (run["data"], run["program"]) == (data, program)]
            if not of_program:
                continue
            points = curve(of_program)
            rows.append(dict(data=data, program=program, seeds=len(of_program), points=points))
            axes.plot(*zip(*points), style, color=colour, label=name, linewidth=1.4)
        axes.set(title=data, xscale="log", xlabel="seconds of training")
        axes.grid(which="major", color="#dddddd", linewidth=0.6)
    panels[0][0].set_ylabel("validation accuracy, %")
    panels[0][0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(a.out, metadata={"Date": None})
    with open(a.results, "w") as file:
        json.dump(dict(rows=rows), file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
