"""Shows how much of the communication between two ranks is hidden behind their compute, over a network of a known rate.

    cargo build --release --features mpi
    sudo python3 bench/overlap.py --data DATASET --work DIR --rates 1,10 --note "what else ran"

Needs root, `ip` and `tc` (Debian: iproute2), `unshare` (util-linux), Open MPI 4, and a kernel with network namespaces, veth
and the queue `tbf`. Needs no Python packages.

Two ranks of one thread train a two-layer GCN without dropout and without an evaluation, with the parts of
`--partition edges`. Each rank is in a network namespace of its own. The two are joined by a pair of virtual Ethernet devices,
so all traffic stays on this machine. `tbf` limits each direction to the rate. No latency is added. The namespaces are deleted
at the end, also after a failure. These run by turns:
  memory    the ranks outside of the namespaces; MPI sends through shared memory: this is the compute
  tcp       through the pair of devices, without a limit: what TCP itself costs
  1, 10..   through the pair of devices, at so many Gb/s, with each number of `--links`: TCP connections between the ranks

The communication is what the rank that sends most sends in an epoch, divided by the rate. The epoch would be the larger of
compute and communication if the smaller were hidden completely, and their sum if nothing were.

A run is the median of its epochs after the first two. A round has one run of each, in an order that the next round reverses.
A result is the median over rounds, and a ratio the median of the ratios within a round. All losses must be equal, bit for
bit. All runs are kept in `DIR/runs.jsonl`, so rounds can be added later; `--rounds 0` only writes the results.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys

import record
from machine import OtherCores, machine, wait_until_quiet
from processes import outputs

WARM = 2
TARGETS = {1: 1.15, 10: 1.3}
DEVICE = "lap0"
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
AS_ROOT = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")

# Both ends send as many bytes to each other, and print the seconds until all have arrived; before that, one byte goes to and
# fro, and the median of its seconds is printed.
PROBE = """
import socket, statistics, sys, threading, time
first, size = sys.argv[1] == "0", int(sys.argv[2])
if first:
    with socket.create_server(("10.77.0.1", 7077)) as server:
        s, _ = server.accept()
else:
    for attempt in range(200):
        try:
            s = socket.create_connection(("10.77.0.1", 7077))
            break
        except OSError:
            time.sleep(0.05)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(200):
    start = time.perf_counter()
    if first:
        s.sendall(b"x")
        s.recv(1)
    else:
        s.sendall(s.recv(1))
    trips.append(time.perf_counter() - start)
start = time.perf_counter()
sender = threading.Thread(target=lambda: s.sendall(bytes(size)))
sender.start()
left, into = size, bytearray(1 << 20)
while left:
    left -= s.recv_into(into, min(left, len(into)))
sender.join()
print(statistics.median(trips), time.perf_counter() - start)
"""


class Network:
    """Two network namespaces, joined by a pair of virtual Ethernet devices. Deletes them when it is closed."""

    def __init__(self, folder):
        self.names = [f"lapidary{os.getpid()}{end}" for end in "ab"]
        self.agent = os.path.join(folder, "agent.sh")
        with open(self.agent, "w") as file:
            # mpirun runs in the first namespace, and calls this instead of ssh to start its daemon on the second "machine",
            # which needs a host name of its own.
            file.write(f"#!/bin/sh\nshift\nexec ip netns exec {self.names[1]} "
                       f"unshare --uts sh -c \"hostname {self.names[1]}; $*\"\n")
        os.chmod(self.agent, 0o755)

    def __enter__(self):
        try:
            for name in self.names:
                command("ip", "netns", "add", name)
            command("ip", "link", "add", DEVICE, "netns", self.names[0], "type", "veth", "peer", "name", DEVICE, "netns",
                    self.names[1])
            for name, address in zip(self.names, ADDRESSES):
                command("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
                for device in (DEVICE, "lo"):
                    command("ip", "-n", name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)

    def limit(self, gbit):
        """Limits each direction to a rate. `None` removes the limit."""
        for name in self.names:
            inside = ["ip", "netns", "exec", name, "tc", "qdisc"]
            if gbit is None:
                subprocess.run([*inside, "delete", "dev", DEVICE, "root"], stderr=subprocess.DEVNULL)
            else:
                # A pause lets at most this many bytes through above the rate: 0.5 ms of it, but not less than two packets.
                burst = max(131_072, int(gbit * 1e9 / 8 * 5e-4))
                # The queue holds all that a sender may queue, so nothing is dropped, as on a device that holds back its sender.
                command(*inside, "replace", "dev", DEVICE, "root", "tbf", "rate", f"{gbit * 1000:g}mbit", "burst", str(burst),
                        "limit", str(1 << 26))

    def dropped(self):
        """Returns how many packets the limits have dropped."""
        texts = [command("ip", "netns", "exec", name, "tc", "-s", "qdisc", "show", "dev", DEVICE) for name in self.names]
        return sum(int(count) for text in texts for count in re.findall(r"dropped (\d+)", text))

    def probe(self, size):
        """Returns the seconds of a round trip, and the Gb/s of two TCP streams of `size` bytes, one in each direction."""
        ends = [(["ip", "netns", "exec", name, sys.executable, "-c", PROBE, str(i), str(size)], {})
                for i, name in enumerate(self.names)]
        trip_s, seconds = map(float, outputs(ends, 120).split())
        return trip_s, 8 * size / seconds / 1e9

    def mpirun(self, mpirun, links):
        """Returns the start of a command line that starts one rank in each namespace."""
        hosts = ",".join(f"{address}:1" for address in ADDRESSES)
        return ["ip", "netns", "exec", self.names[0], *mpirun, "--host", hosts, "--mca", "plm_rsh_agent", self.agent,
                "--leave-session-attached", "--mca", "oob_tcp_if_include", DEVICE, "--mca", "pml", "ob1",
                "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", DEVICE, "--mca", "btl_tcp_links", str(links)]


def command(*args):
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def limited(a):
    """Returns the kinds of runs with a limited rate: name, Gb/s and connections."""
    rates = [(float(rate), int(links)) for rate in a.rates.split(",") for links in a.links.split(",")]
    return [(f"{gbit:g} Gb/s" + (f", {links} connections" if links > 1 else ""), gbit, links) for gbit, links in rates]


def train(a, network, kind, epochs, links=1):
    """Runs two ranks. Returns the seconds and losses of the epochs, and for each rank the bytes that it sent."""
    mpirun = [*a.mpirun.split(), "--bind-to", "none", "-n", "2"]
    start = mpirun if kind == "memory" else network.mpirun(mpirun, links)
    run = [*start, a.lapidary, "train", "--data", a.data, "--hidden", str(a.hidden), "--dropout", "0", "--partition", "edges",
           "--epochs", str(epochs), "--eval-every", "0", "--json", "--devices", "cpu", "--threads", "1"]
    if a.trace:
        run += ["--trace", os.path.join(a.work, f"trace-{re.sub('[^a-z0-9]+', '-', kind.lower())}.json")]
    lines = [json.loads(line) for line in outputs([(run, AS_ROOT)], a.timeout).splitlines() if line.startswith("{")]
    of_epochs = [line for line in lines if line["event"] == "epoch"]
    summary = next(line for line in lines if line["event"] == "summary")
    # Each pair is [from, to, messages with rows, bytes of rows, messages, bytes].
    sent = [sum(pair[5] for pair in summary["sent"] if pair[0] == rank) for rank in range(2)]
    return dict(seconds=[e["seconds"] for e in of_epochs], losses=[e["loss"] for e in of_epochs], sent=sent)


def measure(a, network):
    """Runs `--rounds` rounds, and adds the runs to `runs.jsonl`."""
    kinds = [("memory", None, 1), ("tcp", None, 1), *limited(a)]
    # What is sent only once, before the first epoch, is what one epoch does not explain.
    once = train(argparse.Namespace(**{**vars(a), "trace": False}), network, "memory", 1)["sent"]
    first = 1 + max((run["round"] for run in record.all_runs(a.work)), default=-1)
    for round_ in range(first, first + a.rounds):
        for kind, gbit, links in kinds if round_ % 2 == 0 else kinds[::-1]:
            probed = {}
            if kind != "memory":
                network.limit(gbit)
                probed = dict(zip(("round_trip_s", "tcp_gbit"), network.probe(1 << 27)))
            wait_until_quiet(a.quiet, a.quiet_wait)
            others = OtherCores()
            run = train(a, network, kind, a.epochs, links)
            if kind != "memory":
                probed["dropped"] = network.dropped()
            sent = max(all_ - before for all_, before in zip(run.pop("sent"), once)) / (a.epochs - 1)
            run = dict(kind=kind, round=round_, data=os.path.basename(a.data.rstrip("/")), hidden=a.hidden, epoch_bytes=sent,
                       other_cores=others.count(), **probed, **run)
            print(kind, f"{epoch_ms(run):.1f} ms", f"{run['dropped']} packets dropped" if run.get("dropped") else "", flush=True)
            record.add_run(a.work, run)


def epoch_ms(run):
    return 1e3 * statistics.median(run["seconds"][WARM:])


def summaries(runs, kinds):
    """Returns a row for each kind of run."""
    rounds = {}
    for run in runs:
        rounds.setdefault(run["round"], {})[run["kind"]] = run
    whole = [of_kind for of_kind in rounds.values() if {"memory", "tcp", *(kind for kind, _, _ in kinds)} <= of_kind.keys()]
    if not whole:
        raise SystemExit("there is no whole round")
    losses = whole[0]["memory"]["losses"]
    shortest = min(len(run["losses"]) for of_kind in whole for run in of_kind.values())
    if any(run["losses"][:shortest] != losses[:shortest] for of_kind in whole for run in of_kind.values()):
        raise SystemExit("the losses are not equal")
    rows = []
    for kind, gbit, _ in [("memory", None, 1), ("tcp", None, 1), *kinds]:
        of_kind = [of_round[kind] for of_round in whole]
        row = dict(kind=kind, rounds=len(whole), epoch_ms=statistics.median(map(epoch_ms, of_kind)),
                   other_cores=max(run["other_cores"] for run in of_kind))
        for key in ("round_trip_s", "tcp_gbit"):
            if key in of_kind[0]:
                row[key] = statistics.median(run[key] for run in of_kind)
        if gbit:
            compared = [compare(epoch_ms(run), epoch_ms(of_round["memory"]), 8e-6 * run["epoch_bytes"] / gbit)
                        for run, of_round in zip(of_kind, whole)]
            row.update({key: spread(one[key] for one in compared) for key in compared[0]}, target=TARGETS.get(gbit))
        rows.append(row)
    return rows


def compare(epoch, compute, communication):
    """Compares an epoch with the larger of compute and communication, and with their sum; all in ms."""
    return dict(compute_ms=compute, communication_ms=communication, of_larger=epoch / max(compute, communication),
                of_sum=epoch / (compute + communication))


def spread(values):
    values = list(values)
    return [statistics.median(values), min(values), max(values)]


def table(rows, about, runs):
    last = runs[-1]
    in_brackets = lambda values: "{:.2f} ({:.2f} to {:.2f})".format(*values)  # noqa: E731
    lines = ["# Communication and compute of two ranks at once", "", about, "",
             f"Two ranks of one thread each train a two-layer GCN of width {last['hidden']} on {last['data']}, without dropout and "
             "without an evaluation. They are in two network namespaces of one machine, joined by a pair of virtual Ethernet "
             f"devices with a limited rate. `bench/overlap.py` has the command. Each rank sends up to "
             f"{last['epoch_bytes'] / 1e6:.1f} MB in an epoch. No latency was added.", "",
             "`epoch` is the median over rounds, in milliseconds. `compute` is the epoch of the same ranks over shared memory, and "
             "`communication` the bytes that a rank sends divided by the rate. `of larger` is the epoch divided by the larger of "
             "the two, and `of sum` by their sum: the median over rounds, and the smallest and largest in brackets. `TCP` is the "
             "rate that plain TCP reaches in both directions at once, and `round trip` the time of one byte to the other end and "
             "back. `connections` are those between the two ranks; without the word, it is one. `others` is how many cores other "
             "programs used, in the worst round.", "",
             "| network | rounds | epoch | compute | communication | of larger | goal | of sum | TCP, Gb/s | round trip, us | "
             "others |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    names = {"memory": "shared memory", "tcp": "no limit"}
    for row in rows:
        compared = [""] * 5
        if "of_larger" in row:
            compared = [f"{row['compute_ms'][0]:.1f}", f"{row['communication_ms'][0]:.1f}", in_brackets(row["of_larger"]),
                        f"{row['target']:.2f}" if row["target"] else "", in_brackets(row["of_sum"])]
        probed = [f"{row['tcp_gbit']:.2f}", f"{1e6 * row['round_trip_s']:.0f}"] if "tcp_gbit" in row else ["", ""]
        name = names.get(row["kind"], row["kind"])
        lines.append(f"| {name} | {row['rounds']} | {row['epoch_ms']:.1f} | " + " | ".join(compared + probed) +
                     f" | {row['other_cores']:.2f} |")
    return "\n".join(lines) + "\n"


def check_machine(a):
    """Exits with a message if something that this needs is missing."""
    if os.geteuid() != 0:
        raise SystemExit("this needs root, to make network namespaces")
    for program in ["ip", "tc", "unshare", a.mpirun.split()[0], a.lapidary]:
        if not shutil.which(program):
            raise SystemExit(f"{program} is missing: see --help")


def main():
    p = record.parser(__doc__, "bench/results/overlap")
    p.add_argument("--mpirun", default="mpirun")
    p.add_argument("--data", required=True, help="a dataset directory")
    p.add_argument("--work", required=True, help="folder for runs.jsonl")
    p.add_argument("--rates", default="1,10", help="Gb/s")
    p.add_argument("--links", default="1,2", help="TCP connections between the ranks (Open MPI's btl_tcp_links)")
    p.add_argument("--trace", action="store_true", help="also write DIR/trace-KIND.json")
    a = p.parse_args()
    a.lapidary, a.work = os.path.abspath(a.lapidary), os.path.abspath(a.work)
    os.makedirs(a.work, exist_ok=True)
    if a.rounds:
        check_machine(a)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with Network(a.work) as network:
            try:
                measure(a, network)
            except RuntimeError as error:
                raise SystemExit(f"a run failed: {error}") from None
    runs, here = record.all_runs(a.work), machine()
    rows = summaries(runs, limited(a))
    about = record.about(f"{here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB", a.note)
    record.write_results(a.out, table(rows, about, runs), about, machine=here, rows=rows)


if __name__ == "__main__":
    main()
