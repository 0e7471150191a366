"""Compares ways to partition: rows sent, messages, balance and seconds, on real graphs and an R-MAT graph.

    cargo build --release --features hypergraph
    python bench/partitions.py --lapidary target/release/lapidary --data FOLDER_OF_DATASETS --work DIR \
        --note "what else ran" --out bench/results/partitions

`FOLDER_OF_DATASETS` has a folder of Lapidary's format for each name of `--cases`; `rmat` is generated. Every cell is one call of
`lapidary data partition DATA DST --parts P --by WAY --json` with the default weights (in-edges) and seed 1. Its line is kept in
`DIR/runs.jsonl`, and cells that are there are not run again. Writes `OUT.json` and `OUT.md`, whose section "Findings" is kept as it is;
`--report` only writes these.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import textwrap

CASES = ["soc-slashdot0902", "rmat", "ego-twitter", "coauthor-physics", "amazon-computers"]
PARTS = [4, 16, 64, 512]
WAYS = ["random", "edges", "learned", "metis", "metis-vol", "hypergraph", "hypergraph-both"]
# Parts that are heavier than so many means are no partition to train with.
MOST_HEAVY = 10
RMAT = ["--vertices", "131072", "--edge-factor", "8", "--directed", "--seed", "1"]


def call(args, *command):
    return subprocess.run([args.lapidary, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def facts(args, case):
    """Returns the directory of a case, and what `data info` says of it."""
    path = os.path.join(args.work if case == "rmat" else args.data, case)
    if case == "rmat" and not os.path.exists(path):
        call(args, "data", "generate", "rmat", path, *RMAT)
    return path, json.loads(call(args, "data", "info", path, "--json"))


def ways(directed):
    """Returns the ways for a graph. Without directions, the nets of both are those of one."""
    return [way for way in WAYS if directed or way != "hypergraph-both"]


def measure(args, runs):
    for case in args.cases:
        path, info = facts(args, case)
        for parts in args.parts:
            for way in ways(info["directed"]):
                if (case, parts, way) in runs or way not in args.ways:
                    continue
                dst = os.path.join(args.work, f"dst-{os.getpid()}")
                shutil.rmtree(dst, ignore_errors=True)
                try:
                    line = call(args, "data", "partition", path, dst, "--parts", str(parts), "--by", way, "--json")
                except subprocess.CalledProcessError as error:
                    print(f"{case}, {parts} parts by {way}: {error}")
                    continue
                shutil.rmtree(dst)
                run = {key: value for key, value in json.loads(line).items() if not key.startswith("part_")}
                run.update(case=case, directed=info["directed"], vertices=info["vertices"], edges=info["edges"])
                del run["written"]
                with open(os.path.join(args.work, "runs.jsonl"), "a", encoding="utf-8") as file:
                    file.write(json.dumps(run) + "\n")
                runs[case, parts, way] = run
                print(f"{case} {parts} {way}: {run['halo_rows']} | {run['backward_rows']}, {run['seconds']:.1f} s", flush=True)


def read(args):
    path, runs = os.path.join(args.work, "runs.jsonl"), {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for run in map(json.loads, file):
                runs[run["case"], run["parts"], run["by"]] = run
    return runs


def pulled(run):
    return run["halo_rows"] + run["backward_rows"]


def folded(run):
    return run["halo_rows"] + run["fold_rows"]


def table_of(case, runs, parts_list):
    """Returns the table of one graph: a row per number of parts and way."""
    directed = runs[case, parts_list[0], "edges"]["directed"]
    measured = lambda parts: [way for way in ways(directed) if (case, parts, way) in runs]
    titles = ["parts", "by", "forward", "backward, pull", "both, pull", "both, fold"] if directed else ["parts", "by", "forward"]
    titles += ["largest", "messages", "imbalance", "seconds"]
    lines = ["| " + " | ".join(titles) + " |", "| ---: | --- |" + " ---: |" * (len(titles) - 2)]
    for parts in parts_list:
        rows = [runs[case, parts, way] for way in measured(parts)]
        both = [min(pulled(run), folded(run)) if run["imbalance"] < MOST_HEAVY else float("inf") for run in rows]
        least = min(both) if len(rows) == len(ways(directed)) else None
        for i, (run, way) in enumerate(zip(rows, measured(parts))):
            mark = lambda number: f"**{number:,}**" if number == least else f"{number:,}"
            counts = [f"{run['halo_rows']:,}"]
            if directed:
                counts += [f"{run['backward_rows']:,}", mark(pulled(run)), mark(folded(run))]
            elif both[i] == least:
                counts = [f"**{run['halo_rows']:,}**"]
            cells = [f"{parts}" if i == 0 else "", f"`{way}`", *counts, f"{run['largest']:,}", f"{run['messages']:,}",
                     f"{run['imbalance']:.3f}", f"{run['seconds']:.3g}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(runs, cases, parts_list):
    """Returns the table of the least rows of an epoch's forward and backward gather, and who moves them."""
    lines = ["| data, parts | least rows | by | `hypergraph` with fold | `metis-vol` |", "| --- | ---: | --- | ---: | ---: |"]
    won = total = 0
    for case in cases:
        for parts in parts_list:
            directed = runs[case, parts, "edges"]["directed"]
            if any((case, parts, way) not in runs for way in ways(directed)):
                continue
            moved = {}
            for way in ways(directed):
                run = runs[case, parts, way]
                if run["imbalance"] >= MOST_HEAVY:
                    continue
                moved[way + (", fold" if directed else "")] = folded(run)
                if directed:
                    moved[way + ", pull"] = pulled(run)
            best = min(moved, key=moved.get)
            ours = moved.get("hypergraph" + (", fold" if directed else ""))
            won, total = won + (ours == moved[best]), total + 1
            vol = runs[case, parts, "metis-vol"]
            way, _, backward = best.partition(",")
            lines.append(f"| {case}, {parts} | {moved[best]:,} | `{way}`{',' if backward else ''}{backward} | "
                         f"{'too heavy' if ours is None else f'{ours:,}'} | {min(pulled(vol), folded(vol)):,} |")
    return won, total, "\n".join(lines)


def kept(path):
    """Returns the section of the document that a person writes."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        found = re.search(r"^## Findings\n.*?(?=^## )", file.read(), re.DOTALL | re.MULTILINE)
    return found.group() if found else ""


def report(args, runs):
    won, total, least = summary(runs, args.cases, args.parts)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
    with open(args.out + ".json", "w", encoding="utf-8") as file:
        json.dump({"machine": machine, "note": args.note, "date": str(datetime.date.today()), "weights": "edges", "seed": 1,
                   "rmat": " ".join(RMAT), "runs": [runs[key] for key in sorted(runs) if key[0] in args.cases]}, file, indent=1)
        file.write("\n")
    findings = kept(args.out + ".md")
    note = textwrap.fill(args.note, 124, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False) + "\n" if args.note else ""
    text = f"""# Partitions compared

Rows that parts send each other for one gather, and for its backward pass, by `lapidary data partition DATA DST --parts P
--by WAY --json` with the default weights (in-edges) and seed 1. Made by `bench/partitions.py`; all numbers are in
[partitions.json](partitions.json).

- forward: rows that all parts receive. Backward by *pull*: the rows that the transposed graph needs. Backward by *fold*: parts
  send partial sums to the owners, which are as many rows as forward. On undirected graphs all three are the same.
- largest: the most rows that one part sends or receives forward. Messages: pairs of parts that send rows forward.
- imbalance: in-edges of the heaviest part, divided by the mean.
- seconds: time to choose the parts, one run.
{note}
## Least rows

Rows forward and backward together, where all ways were measured. Partitions whose heaviest part weighs {MOST_HEAVY} times the
mean or more are left out. `hypergraph` with fold moves least in {won} of {total}
cases.

{least}

{findings}## All numbers

Bold: the fewest rows forward and backward, where all ways were measured.
"""
    for case in args.cases:
        run = runs[case, args.parts[0], "edges"]
        kind = "directed" if run["directed"] else "undirected"
        text += f"\n### {case} ({kind}, {run['vertices']:,} vertices, {run['edges']:,} edges)\n\n"
        text += table_of(case, runs, args.parts) + "\n"
    text += f"\nR-MAT: `lapidary data generate rmat DST {' '.join(RMAT)}`. Machine: {machine}; {datetime.date.today()}.\n"
    with open(args.out + ".md", "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", required=True)
    parser.add_argument("--data", required=True, help="folder of datasets")
    parser.add_argument("--work", required=True, help="folder for runs, the R-MAT graph and what is partitioned")
    parser.add_argument("--out", default="bench/results/partitions")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--parts", nargs="+", type=int, default=PARTS)
    parser.add_argument("--ways", nargs="+", default=WAYS, help="run only these")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--report", action="store_true", help="run nothing")
    action.add_argument("--measure", action="store_true", help="write no report")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    runs = read(args)
    if not args.report:
        measure(args, runs)
    if not args.measure:
        report(args, runs)


if __name__ == "__main__":
    main()
