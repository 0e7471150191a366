"""Keeps runs and writes results: what `speed.py`, `ranks.py`, `gather.py` and `overlap.py` share. Needs no packages."""

import datetime
import json
import os
import platform


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


def machine():
    """Returns what the numbers were measured on."""
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo") as file:
        memory_gib = round(int(file.readline().split()[1]) / 2**20)
    return dict(cpu=names[0] if names else platform.processor(), cores=os.cpu_count(), memory_gib=memory_gib)


def about(*facts):
    """Returns one line for the head of a table: the date, and the facts that are not empty."""
    return "; ".join([str(datetime.date.today()), *filter(None, facts)])


def write_results(out, table, about, **more):
    """Writes `out.json`, with `about` and everything in `more`, and `out.md`, with the table."""
    with open(out + ".json", "w") as file:
        json.dump(dict(about=about, **more), file, indent=1)
    with open(out + ".md", "w") as file:
        file.write(table)
