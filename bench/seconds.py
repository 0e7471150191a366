"""Compares the seconds of an epoch that `plan` predicts with those that `train` measures.

    cargo build --release
    python3 bench/seconds.py --data DATASET [DATASET ...] --work DIR --note "what else ran"

Needs no Python packages. For each dataset, model, width and device, `plan` runs first and `train` right after it. Before each
pair, what earlier trainings have taught is taken away, so each prediction knows only the suite of `lapidary profile`. A round
measures the suite anew and runs all pairs. A result is the median over rounds of predicted over measured seconds, both
without evaluation. `sim:1 50` is a simulated device with half of the memory that the training would use.

`gat/8` among the models is a GAT of 8 heads.

With `--load`, as many endless loops as there are cores run while the suite is measured, and not while the pairs run.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys

from machine import machine, wait_until_quiet

DEVICES = ["cpu", "cpu:2", "sim:1", "sim:1 50", "sim:1 20"]
LOOP = [sys.executable, "-c", "while True: pass"]


def run(program, cache, *words):
    """Runs a command of the program and returns its JSON lines; none if it fails."""
    env = dict(os.environ, XDG_CACHE_HOME=cache)
    done = subprocess.run([program, *words, "--json"], env=env, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []


def measure_suite(args, cache):
    """Measures the suite; returns its files."""
    loops = [subprocess.Popen(LOOP) for _ in range(os.cpu_count() if args.load else 0)]
    try:
        shown = run(args.program, cache, "profile", "--again")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(f"suite: {100 * shown[-1]['busy']:.0f} % of the cores were used by others", file=sys.stderr)
    folder = os.path.join(cache, "lapidary")
    return {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}


def pair(args, cache, files, job, memory):
    """Predicts and measures one training. Returns predicted and measured seconds and whether the range was right."""
    folder = os.path.join(cache, "lapidary")
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    data, model, hidden, device = job
    model, *heads = model.split("/")
    words = ["--data", data, "--model", model, "--hidden", str(hidden), "--devices", device.split()[0]]
    if heads:
        words += ["--heads", *heads]
    if memory:
        words += ["--device-memory", str(memory)]
    wait_until_quiet(0.3, 20)
    plan = run(args.program, cache, "plan", *words)
    train = run(args.program, cache, "train", *words, "--epochs", str(args.epochs))
    if not plan or not train:
        return None
    plan, measured = plan[0], train[-1]["epoch_seconds_median"]
    low, high = plan["epoch_seconds_range"]
    return dict(predicted=plan["epoch_seconds"], measured=measured, within=low <= measured <= high, peak=plan["peak_bytes"])


def one_round(args, cache, number, file):
    files = measure_suite(args, cache)
    for data in args.data:
        for model in args.models:
            for hidden in args.hidden:
                peak = None
                for device in DEVICES:
                    share = int(device.split()[1]) if " " in device else None
                    if share and not peak:
                        continue
                    found = pair(args, cache, files, (data, model, hidden, device), share and peak * share // 100)
                    if found and device == "sim:1":
                        peak = found["peak"]
                    if found:
                        line = dict(found, round=number, data=os.path.basename(data), model=model, hidden=hidden, device=device)
                        print(json.dumps(line), file=file, flush=True)


def summary(name, ratios, within):
    logs = sorted(abs(math.log(ratio)) for ratio in ratios)
    off = lambda share: f"{100 * (math.exp(logs[int(share * (len(logs) - 1))]) - 1):.0f} %"
    near = lambda most: f"{100 * sum(log <= math.log(1 + most) for log in logs) / len(logs):.0f} %"
    cells = [name, len(logs), off(0.5), off(0.9), off(1), near(0.15), near(0.35)]
    return cells + [f"{statistics.median(ratios):.2f}", f"{100 * sum(within) / len(within):.0f} %"]


def report(args, lines):
    """Returns the results as Markdown."""
    groups = {}
    for line in lines:
        key = (line["device"], line["data"], line["model"], line["hidden"])
        groups.setdefault(key, []).append(line)
    found = {}
    for key, runs in groups.items():
        ratio = statistics.median(run["predicted"] / run["measured"] for run in runs)
        found[key] = (ratio, statistics.median(run["measured"] for run in runs), sum(run["within"] for run in runs) / len(runs))
    host = machine()
    text = ["# Predicted over measured seconds of an epoch", ""]
    text += [f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB. {args.note}", ""]
    text += ["`bench/seconds.py` says how it was measured. Off: by which factor above 1, either way.", ""]
    text += ["| device | trainings | off, median | 9 of 10 | worst | within 15 % | within 35 % | median ratio | in range |"]
    text += ["| --- |" + " ---: |" * 8]
    for device in [*DEVICES, "all"]:
        of = [value for key, value in found.items() if device in (key[0], "all")]
        if of:
            cells = summary(device, [ratio for ratio, _, _ in of], [within for _, _, within in of])
            text.append("| " + " | ".join(map(str, cells)) + " |")
    text += ["", "| dataset | model | width | device | measured, ms | predicted over measured |", "| --- | --- | ---: | --- | ---: | ---: |"]
    for (device, data, model, hidden), (ratio, measured, _) in sorted(found.items(), key=lambda item: item[0][1:] + item[0][:1]):
        text.append(f"| {data} | {model} | {hidden} | {device} | {1e3 * measured:.2f} | {ratio:.2f} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--models", nargs="+", default=["gcn", "gin", "sage", "commnet", "resgcn"])
    parser.add_argument("--hidden", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--program", default="target/release/lapidary")
    parser.add_argument("--work", required=True)
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    cache = os.path.join(os.path.abspath(args.work), "cache")
    shutil.rmtree(cache, ignore_errors=True)
    os.makedirs(cache)
    path = os.path.join(args.work, "runs.jsonl")
    for number in range(args.rounds):
        with open(path, "a", encoding="utf-8") as file:
            one_round(args, cache, number, file)
    with open(path, encoding="utf-8") as file:
        print(report(args, [json.loads(line) for line in file]), end="")


if __name__ == "__main__":
    main()
