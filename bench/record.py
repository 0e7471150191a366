"""Keeps runs and writes results. Needs no packages."""

import datetime
import json
import os


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
