"""Draws how the time of an epoch grows with the number of edges, from the rows that `speed.py` wrote.

    python bench/growth.py [--results bench/results/cpu_speed.json] [--out docs/growth.svg]

A GCN of two layers, hidden width 128, without dropout. The lines are graphs of one kind (`products*`: 51 edges per
vertex, 100 features, 47 classes); the single points are other shapes. The floor is that of `floor.py`. Needs matplotlib.
"""

import argparse
import json
import re

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

LINES = {
    "lapidary": ("Lapidary", "#0b6e4f", "o-"),
    "dgl_i32": ("DGL", "#c1440e", "s-"),
    "torch_pre": ("plain torch, A X by hand", "#5b6abf", "^-"),
}


def points(rows, graphs, backend, value="epoch_ms"):
    found = [r for r in rows if r["backend"] == backend and r["status"] == "ok" and re.fullmatch(graphs, r["graph"]) and value in r]
    return sorted((row["edges"] / 1e6, row[value] / 1e3, row["graph"]) for row in found)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--results", default="bench/results/cpu_speed.json")
    p.add_argument("--out", default="docs/growth.svg")
    a = p.parse_args()
    with open(a.results) as file:
        rows = [r for r in json.load(file)["rows"] if (r["model"], r["dropout"], r["hidden"]) == ("gcn", "none", 128)]
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 10})
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    family, others = r"products\d+m?", r"arxiv|reddit4?"
    for backend, (name, colour, style) in LINES.items():
        line = points(rows, family, backend)
        axes.plot([e for e, _, _ in line], [s for _, s, _ in line], style, color=colour, label=name, markersize=5)
        single = points(rows, others, backend)
        axes.plot([e for e, _, _ in single], [s for _, s, _ in single], style[0], color=colour, markersize=5, markerfacecolor="white")
    floor = points(rows, family, "lapidary", "floor_ms")
    axes.plot([e for e, _, _ in floor], [s for _, s, _ in floor], ":", color="black", label="floor")
    for edges, seconds, graph in points(rows, others, "lapidary"):
        axes.annotate(graph, (edges, seconds), (-6, -3), textcoords="offset points", fontsize=8, ha="right")
    axes.set(xscale="log", yscale="log", xlabel="million edges", ylabel="seconds an epoch")
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, loc="upper left")
    figure.tight_layout()
    figure.savefig(a.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
