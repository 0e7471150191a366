"""Reads options, keeps runs and writes results. Needs no packages."""

import argparse
import datetime
import json
import os


def parser(description, out):
    """Returns a parser of the options of all comparisons; each sets its own defaults."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lapidary", default="target/release/lapidary", help="the program; for ranks, built with --features mpi")
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--timeout", type=float, default=300.0, help="seconds for one run")
    p.add_argument("--quiet", type=float, default=0.3, help="wait before a run until other programs use fewer cores")
    p.add_argument("--quiet-wait", type=float, default=10.0, help="seconds to wait at most")
    p.add_argument("--note", default="", help="what else ran on the machine")
    p.add_argument("--out", default=out)
    return p


def add_run(folder, run):
    """Adds a run to the folder's `runs.jsonl`."""
    with open(os.path.join(folder, "runs.jsonl"), "a") as file:
        file.write(json.dumps(run) + "\n")


def all_runs(folder):
    """Returns the runs in the folder's `runs.jsonl`, from the first to the last."""
    path = os.path.join(folder, "runs.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def about(*facts):
    """Returns one line for the head of a table: the date, and the facts that are not empty."""
    return "; ".join([str(datetime.date.today()), *filter(None, facts)])


def write_results(out, table, about, **more):
    """Writes `out.json`, with `about` and everything in `more`, and `out.md`, with the table."""
    with open(out + ".json", "w") as file:
        json.dump(dict(about=about, **more), file, indent=1)
    with open(out + ".md", "w") as file:
        file.write(table)
