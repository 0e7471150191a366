"""Times mini-batches whose features are larger than memory.

    lapidary data generate rmat --vertices 4194304 --edge-factor 6 --features 256 --classes 16 DIR
    python3 bench/feature_cache.py --data DIR --seeds 32768 --memory 1073741824 --caches 5%,10% --note "what else ran"

GraphSAGE with the mean of the neighbours, 3 layers; sampled evaluations, and none before the end. The runs:
  in memory    as much memory as the machine has; the features are a mapped file, which is read before
  mapped       the limit of `--memory`; the features are a mapped file
  10%, ..      the limit, and `--feature-cache 10%`

The limit is a memory group of the system, which needs root. Memory that the system takes to cache files counts as well. Before
each run but the first kind, the files are dropped from that cache. The graph is copied to `--work` with its `--seeds` first
training vertices that have in-edges, so that an epoch takes seconds; the features are a link.

The bytes that `lapidary plan` predicts are compared with those that an epoch reads. The rate of the disk is that of random reads
of 4096 bytes past the system's cache, 32 at once, measured before the runs by threads of Python, which is a lower bound. The floor is the larger of the epoch in memory and of
the bytes read at this rate. Times are medians over the epochs after the first.
"""

import json
import os
import random
import statistics
import struct
import subprocess
import threading
import time
from mmap import mmap

import record
from machine import OtherCores, machine, wait_until_quiet

PAGE = 4096


def disk_rate(path, reads=40000, threads=32):
    """Returns bytes per second of random reads of one page, past the system's cache."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    pages = os.fstat(file).st_size // PAGE

    def work(seed):
        buffer, draw = mmap(-1, PAGE), random.Random(seed)
        for _ in range(reads // threads):
            os.preadv(file, [buffer], draw.randrange(pages) * PAGE)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    start = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return reads // threads * threads * PAGE / (time.monotonic() - start)


class MemoryGroup:
    """A group of processes whose memory is limited."""

    def __init__(self, limit):
        first = os.path.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")
        root, file = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if first else ("/sys/fs/cgroup", "memory.max")
        self.path = os.path.join(root, f"feature-cache-{os.getpid()}")
        os.makedirs(self.path)
        with open(os.path.join(self.path, file), "w") as limits:
            limits.write(str(limit))

    def join(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as processes:
            processes.write(str(os.getpid()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.rmdir(self.path)


def read_npy(path, code):
    """Returns the numbers of a file of 8-byte integers (`q`, `Q`)."""
    with open(path, "rb") as file:
        head = file.read(10)
        file.seek(10 + struct.unpack("<H", head[8:])[0])
        data = file.read()
    return memoryview(data).cast(code)


def write_npy(path, numbers):
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(numbers)},), }}"
    total = (10 + len(text) + 1 + 63) // 64 * 64
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", total - 10) + text.ljust(total - 11).encode() + b"\n")
        file.write(struct.pack(f"<{len(numbers)}q", *numbers))


def fewer_seeds(data, seeds, work):
    """Makes a dataset of the same files with fewer training vertices, and returns its path."""
    copy = os.path.join(work, "data")
    os.makedirs(copy, exist_ok=True)
    for name in os.listdir(data):
        link = os.path.join(copy, name)
        if not os.path.lexists(link):
            os.symlink(os.path.join(os.path.abspath(data), name), link)
    indptr = read_npy(os.path.join(data, "indptr.npy"), "Q")
    train = [v for v in read_npy(os.path.join(data, "train.npy"), "q") if indptr[v + 1] > indptr[v]][:seeds]
    for name, kept in [("train", train)] + [(n, list(read_npy(os.path.join(data, n + ".npy"), "q")[:1000])) for n in ("val", "test")]:
        os.unlink(os.path.join(copy, name + ".npy"))
        write_npy(os.path.join(copy, name + ".npy"), kept)
    return copy


def drop_from_cache(data):
    for name in os.listdir(data):
        file = os.open(os.path.join(data, name), os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def lines(command, timeout, join=None):
    """Returns the JSON lines of a command, or a line that says why there are none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, preexec_fn=join)
    except subprocess.TimeoutExpired as ended:
        text = (ended.stdout or b"").decode()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")] + [dict(event="timeout")]
    if done.returncode != 0:
        return [dict(event="failed", error=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])]
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    p = record.parser(__doc__, "bench/results/feature_cache")
    p.add_argument("--data", required=True)
    p.add_argument("--seeds", type=int, default=32768)
    p.add_argument("--memory", type=int, default=1 << 30, help="bytes")
    p.add_argument("--caches", default="5%,10%")
    p.add_argument("--batch", default="512")
    p.add_argument("--fanout", default="15,10,5")
    p.add_argument("--work", required=True)
    p.set_defaults(hidden=64, epochs=3, rounds=2)
    args = p.parse_args()
    data = fewer_seeds(args.data, args.seeds, args.work)
    features = os.path.join(data, "features.npy")
    rate = disk_rate(features)
    shape = ["--data", data, "--model", "sage", "--layers", "3", "--hidden", str(args.hidden)]
    shape += ["--batch", args.batch, "--fanout", args.fanout, "--json"]
    runs = {"in memory": (None, []), "mapped": (args.memory, [])}
    runs.update({cache: (args.memory, ["--feature-cache", cache]) for cache in args.caches.split(",")})
    results = []
    for number in range(args.rounds):
        for name, (memory, flags) in runs.items():
            if memory:
                drop_from_cache(data)
            else:
                lines([args.lapidary, "data", "info", data, "--json"], args.timeout)
            wait_until_quiet(args.quiet, args.quiet_wait)
            others = OtherCores()
            train = [args.lapidary, "train", *shape, *flags, "--epochs", str(args.epochs), "--look-ahead", "1"]
            train += ["--eval-every", "0", "--eval-fanout", "2,2,2"]
            if memory:
                with MemoryGroup(memory) as group:
                    said = lines(train, args.timeout, group.join)
                    time.sleep(1)
            else:
                said = lines(train, args.timeout)
            epochs = [line for line in said if line["event"] == "epoch"]
            results.append(dict(run=name, round=number, epochs=epochs, end=said[-1].get("error", said[-1]["event"]), others=others.count()))
            print(name, [round(epoch["seconds"], 2) for epoch in epochs], results[-1]["end"], flush=True)
    table = [
        "| run | epoch | of the speed in memory | floor | rows read | read | predicted | difference | others |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    best = None
    for name, (_, flags) in runs.items():
        mine = [run for run in results if run["run"] == name]
        epochs = [epoch for run in mine for epoch in run["epochs"][1:]]
        others = f"{statistics.median(run['others'] for run in mine):.2f}"
        if not epochs:
            table.append(f"| {name} | {mine[0]['end']} after {args.timeout:g} s |  |  |  |  |  |  | {others} |")
            continue
        seconds = statistics.median(epoch["seconds"] for epoch in epochs)
        best = best or seconds
        read = statistics.median(epoch["feature_bytes_read"] for epoch in epochs)
        rows = statistics.median(epoch["feature_rows_read"] for epoch in epochs)
        cells = ["", "", "", ""]
        if flags:
            plan = [line for line in lines([args.lapidary, "plan", *shape, *flags], args.timeout) if line["event"] == "plan_batches"]
            predicted = plan[0]["feature_bytes_read"]
            cells = [f"{rows:,.0f}", f"{read / 1e9:.2f} GB", f"{predicted / 1e9:.2f} GB", f"{100 * (read / predicted - 1):+.1f} %"]
        floor = max(best, read / rate)
        table.append(f"| {name} | {seconds:.2f} s | {best / seconds:.2f} | {floor:.2f} s | {' | '.join(cells)} | {others} |")
    size = os.path.getsize(features)
    about = record.about(f"{machine()['cpu']}, {machine()['cores']} cores, {machine()['memory_gib']} GiB", args.note)
    text = f"""# Features larger than memory

{about}

GraphSAGE of 3 layers, {args.hidden} hidden, batches of {args.batch} seeds, fan-outs {args.fanout}. The features are a file of {size / 1e9:.2f} GB; the limit of memory is {args.memory / 1e9:.2f} GB, except for `in memory`. Random reads of a page from this disk: {rate / 1e6:.0f} MB/s ({rate / PAGE:,.0f} reads a second). `bench/feature_cache.py` has the command, and says what the columns are.

"""
    record.write_results(args.out, text + "\n".join(table) + "\n", about, runs=results, disk_bytes_per_s=rate)


if __name__ == "__main__":
    main()
