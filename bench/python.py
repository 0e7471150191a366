"""The Python package beside the command: the seconds of an epoch, and the memory of a large graph from numpy.

    cargo build --release
    python -m pip install ./python
    python bench/python.py epochs --work DIR        # `lapidary train` and `lapidary.train`, by turns
    python bench/python.py memory --edges 114000000

`epochs` trains a GCN of two layers on a generated graph, and on `--data`, and compares the seconds from the end of an epoch to
that of the next one, as a reader of the command's lines and as a callback see them. `memory` makes a CSR and features in numpy, trains, and compares the peak of
the process with the arrays that numpy holds and with what the plan says that host and device hold. Only numpy is needed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

SETTINGS = {"hidden": 64, "seed": 1}


def command_seconds(args, data):
    """Returns the seconds between the lines that the command prints after each epoch, and the losses."""
    flags = ["--hidden", SETTINGS["hidden"], "--seed", SETTINGS["seed"], "--epochs", args.epochs, "--defaults", "plain"]
    words = [args.lapidary, "train", "--data", data, "--devices", "cpu", "--json", *map(str, flags)]
    ends, losses = [], []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            now, line = time.perf_counter(), json.loads(line)
            if line["event"] == "epoch":
                ends.append(now)
                losses.append(line["loss"])
    assert job.returncode == 0, words
    return list(np.diff(ends)), losses


def python_seconds(args, data):
    """Returns the seconds between the calls of a callback after each epoch, and the losses."""
    import lapidary

    ends = []
    run = lapidary.train(
        data, devices="cpu", epochs=args.epochs, progress=False, callbacks=[lambda _: ends.append(time.perf_counter())], **SETTINGS
    )
    return list(np.diff(ends)), [record["loss"] for record in run.history]


def epochs(args):
    generated = os.path.join(args.work, "planted")
    if not os.path.exists(generated):
        words = ["data", "generate", "planted", generated, "--vertices", str(args.vertices)]
        subprocess.run([args.lapidary, *words], check=True, stdout=subprocess.DEVNULL)
    print("| graph | command ms | Python ms | Python / command |\n| --- | ---: | ---: | ---: |")
    for data in [generated, *args.data]:
        seconds = {"command": [], "python": []}
        for _ in range(args.rounds):
            theirs, losses = command_seconds(args, data)
            ours, same = python_seconds(args, data)
            assert losses == same, "losses differ"
            seconds["command"].append(statistics.median(theirs))
            seconds["python"].append(statistics.median(ours))
        ratio = statistics.median(p / c for p, c in zip(seconds["python"], seconds["command"]))
        command, python = (1e3 * statistics.median(seconds[name]) for name in ("command", "python"))
        print(f"| {os.path.basename(data)} | {command:.2f} | {python:.2f} | {ratio:.3f} |", flush=True)


def memory_bytes(name):
    """Returns a number of /proc/self/status in bytes: VmRSS, or VmHWM for the peak."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))


def memory(args):
    import lapidary

    random, vertices, degree = np.random.default_rng(0), args.vertices, args.edges // args.vertices
    # Row v lists `degree` different sources, ascending: steps of 1 to `most` from a random one.
    most = max(2 * vertices // (3 * degree), 1)
    indices = random.integers(1, most + 1, size=(vertices, degree), dtype=np.uint32)
    np.cumsum(indices, axis=1, out=indices)
    assert indices.max() < vertices
    indptr = np.arange(vertices + 1, dtype=np.int64) * degree
    features = random.standard_normal((vertices, args.features), dtype=np.float32)
    labels = random.integers(0, 41, vertices)
    arrays = indices.nbytes + indptr.nbytes + features.nbytes + labels.nbytes
    before = memory_bytes("VmRSS")
    data = lapidary.dataset((indptr, indices.reshape(-1)), features=features, labels=labels, train=range(0, vertices, 2))
    run = lapidary.train(data, epochs=args.epochs, progress=False, hidden=args.hidden, devices="cpu")
    # A plan reads the graph again, so it comes later.
    peak = memory_bytes("VmHWM")
    plan = run.trainer.plan()
    planned = plan["host_bytes"] + sum(plan["peak_device_bytes"])
    rows = {
        "edges": data.edges,
        "arrays of numpy": arrays,
        "process before training": before,
        "peak of the process": peak,
        "plan: host": plan["host_bytes"],
        "plan: device": sum(plan["peak_device_bytes"]),
        "peak / plan": round(peak / planned, 3),
        "seconds of an epoch": round(min(record["seconds"] for record in run.history), 3),
    }
    for name, value in rows.items():
        print(f"{name:26} {value:>16,}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = p.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("epochs")
    one.add_argument("--lapidary", default="target/release/lapidary")
    one.add_argument("--work", required=True, help="folder for the generated graph")
    one.add_argument("--data", nargs="*", default=[], help="more dataset directories")
    one.add_argument("--vertices", type=int, default=100_000)
    one.add_argument("--epochs", type=int, default=60)
    one.add_argument("--rounds", type=int, default=5)
    other = verbs.add_parser("memory")
    other.add_argument("--edges", type=int, default=114_000_000)
    other.add_argument("--vertices", type=int, default=232_965)
    other.add_argument("--features", type=int, default=602)
    other.add_argument("--hidden", type=int, default=16)
    other.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()
    sys.exit({"epochs": epochs, "memory": memory}[args.verb](args))


if __name__ == "__main__":
    main()
