"""Times epochs of several ranks by turns: Lapidary over MPI, one process of Lapidary, and PyTorch with torch.distributed.

    cargo build --release --features mpi
    python bench/ranks.py --lapidary target/release/lapidary --python PYTHON_WITH_TORCH --data FOLDER_OF_DATASETS \
        --work DIR --cases arxiv:2,4 products10:2,4 --note "what else ran"

`FOLDER_OF_DATASETS` has a folder of Lapidary's format for each name of `--cases`, an undirected graph without self-loops;
behind the name are the numbers of ranks. The model is a two-layer GCN without dropout, with Adam(0.01). Nothing is evaluated.
For P ranks, these run by turns:
  process     Lapidary, one process with P devices: `--devices cpu:P --threads P --partition edges`
  ranks       Lapidary, P ranks of one device and one thread over MPI, with the same parts
  ranks_tcp   the same, but MPI sends through TCP as gloo does, not through shared memory
  halo, broadcast, halo_wait   PyTorch, P processes of one thread with the same parts: `ranks_peer.py` says what each sends.
              PyTorch uses huge pages (THP_MEM_ALLOC_ENABLE=1), which made it faster. gloo sends through TCP

A run is the median of its epochs after the first two. A round has one run of each, in an order that the next round reverses.
A result is the median over rounds. A ratio is the median over rounds of the ratio of two runs of the same round. All start from
the same weights. A row counts only if every loss agrees with that of `process` to 1e-4. If one of the processes fails, or
takes longer than `--timeout`, all processes of the run are ended and the run counts as failed.

All runs are kept in `DIR/runs.jsonl`, so rounds can be added later; `--rounds 0` only writes the results. As root, Open MPI
wants OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; for more ranks than cores,
OMPI_MCA_rmaps_base_oversubscribe=1.
"""

import argparse
import json
import os
import socket
import statistics

import numpy as np

import record
from machine import OtherCores, machine, wait_until_quiet
from processes import outputs
from speed import write_safetensors

OURS = ["process", "ranks", "ranks_tcp"]
PEERS = ["halo", "halo_wait", "broadcast"]
NAMES = {"process": "Lapidary, one process", "ranks": "Lapidary, ranks", "ranks_tcp": "Lapidary, ranks, TCP",
         "halo": "PyTorch, halo rows", "halo_wait": "PyTorch, halo rows, no overlap", "broadcast": "PyTorch, broadcasts"}
WARM = 2
TOLERANCE = 1e-4
HERE = os.path.dirname(os.path.abspath(__file__))


def initial_weights(widths):
    """Returns Glorot's uniform weights by PyG's names, the same in every run."""
    rng, tensors = np.random.default_rng(7), {}
    for i, (k, m) in enumerate(zip(widths, widths[1:])):
        bound = (6 / (k + m)) ** 0.5
        tensors[f"convs.{i}.lin.weight"] = rng.uniform(-bound, bound, (m, k)).astype(np.float32)
        tensors[f"convs.{i}.bias"] = np.zeros(m, np.float32)
    return tensors


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ours(a, kind, data, ranks, weights):
    train = [a.lapidary, "train", "--data", data, "--hidden", str(a.hidden), "--dropout", "0", "--weights", weights]
    train += ["--partition", "edges", "--epochs", str(a.epochs), "--eval-every", "0", "--json"]
    if kind == "process":
        command = train + ["--devices", f"cpu:{ranks}", "--threads", str(ranks)]
    else:
        tcp = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"] if kind == "ranks_tcp" else []
        command = [*a.mpirun.split(), *tcp, "-n", str(ranks), *train, "--devices", "cpu", "--threads", "1"]
    lines = [json.loads(line) for line in outputs([(command, {})], a.timeout).splitlines() if line.startswith("{")]
    epochs = [line for line in lines if line["event"] == "epoch"]
    parts = next(line["parts"] for line in lines if line["event"] == "summary")
    return dict(seconds=[e["seconds"] for e in epochs], losses=[e["loss"] for e in epochs], parts=parts)


def run_peer(a, exchange, data, ranks, weights, parts):
    bounds = ",".join(str(v) for v in [parts[0][0]] + [last for _, last in parts])
    command = [a.python, os.path.join(HERE, "ranks_peer.py"), "--data", data, "--exchange", exchange, "--parts", bounds]
    command += ["--weights", weights, "--epochs", str(a.epochs), "--timeout", str(int(a.timeout))]
    env = dict(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo",
               OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", THP_MEM_ALLOC_ENABLE="1", PYTHONDONTWRITEBYTECODE="1")
    return json.loads(outputs([(command, dict(env, RANK=str(r))) for r in range(ranks)], a.timeout).splitlines()[-1])


def run(a, about, ranks, kind, round_, parts, weights):
    """Runs one framework once, and adds the run to `runs.jsonl`."""
    graph, data = about["graph"], about["data"]
    wait_until_quiet(a.quiet, a.quiet_wait)
    load, others = os.getloadavg()[0], OtherCores()
    try:
        row = run_ours(a, kind, data, ranks, weights) if kind in OURS else run_peer(a, kind, data, ranks, weights, parts)
    except RuntimeError as error:
        row = dict(error=str(error))
    case = dict(graph=graph, vertices=about["vertices"], edges=about["edges"], hidden=a.hidden, ranks=ranks, kind=kind)
    row = dict(case, round=round_, load=round(load, 1), other_cores=others.count(), **row)
    print(graph, ranks, kind, f"{epoch_ms(row):.1f} ms" if "seconds" in row else row["error"], flush=True)
    record.add_run(a.work, row)


def epoch_ms(row):
    return 1e3 * statistics.median(row["seconds"][WARM:])


def run_case(a, graph, ranks, kinds):
    """Runs `--rounds` rounds. The parts are those that Lapidary reports for `process`."""
    data = os.path.join(a.data, graph)
    with open(os.path.join(data, "dataset.json")) as file:
        about = dict(json.load(file), graph=graph, data=data)
    weights = os.path.join(a.work, f"{graph}-{a.hidden}.safetensors")
    write_safetensors(weights, initial_weights([about["feature_width"], a.hidden, about["classes"]]))
    short = argparse.Namespace(**{**vars(a), "epochs": 1})
    parts = run_ours(short, "process", data, ranks, weights)["parts"] if a.rounds else None
    done = [row["round"] for row in record.all_runs(a.work) if (row["graph"], row["ranks"]) == (graph, ranks)]
    first = max(done, default=-1) + 1
    for round_ in range(first, first + a.rounds):
        for kind in kinds if round_ % 2 == 0 else kinds[::-1]:
            run(a, about, ranks, kind, round_, parts, weights)


def summaries(runs):
    """Returns one row for each graph, number of ranks and framework."""
    cases = sorted({(run["edges"], run["graph"], run["hidden"], run["ranks"]) for run in runs})
    rows = []
    for edges, graph, hidden, ranks in cases:
        case = [run for run in runs if (run["graph"], run["hidden"], run["ranks"]) == (graph, hidden, ranks)]
        by_kind = {kind: {run["round"]: run for run in case if run["kind"] == kind} for kind in OURS + PEERS}
        same = dict(graph=graph, vertices=case[0]["vertices"], edges=edges, hidden=hidden, ranks=ranks)
        rows += [dict(same, kind=kind, **summary(all_of, by_kind)) for kind, all_of in by_kind.items() if all_of]
    return rows


def summary(all_of, by_kind):
    good = {r: run for r, run in all_of.items() if "seconds" in run}
    result = dict(rounds=len(good), failed=len(all_of) - len(good))
    if not good:
        return dict(result, status="failed", error=next(iter(all_of.values()))["error"])
    result["epoch_ms"] = round(statistics.median(map(epoch_ms, good.values())), 1)
    for name in ("process", "ranks"):
        base = {r: run for r, run in by_kind[name].items() if "seconds" in run and r in good}
        ratios = [epoch_ms(good[r]) / epoch_ms(run) for r, run in base.items()]
        if ratios:
            result[f"of_{name}"] = [round(v, 2) for v in (statistics.median(ratios), min(ratios), max(ratios))]
    reference = next((run["losses"] for run in by_kind["process"].values() if "seconds" in run), None)
    if reference is None:
        return dict(result, status="nothing to compare losses with")
    pairs = [(loss, ours) for run in good.values() for loss, ours in zip(run["losses"], reference)]
    result["loss_difference"] = max(abs(loss - ours) / max(1, abs(ours)) for loss, ours in pairs)
    first = next(iter(good.values()))
    return dict(result, status="ok" if result["loss_difference"] <= TOLERANCE else "other losses",
                losses=[first["losses"][0], first["losses"][-1]], sent_bytes=first.get("sent_bytes"),
                other_cores=statistics.median(run["other_cores"] for run in good.values()),
                load=statistics.median(run["load"] for run in good.values()),
                epoch_ms_runs=[round(epoch_ms(run), 1) for run in good.values()])


def table(results, about):
    lines = ["# Several ranks compared with PyTorch on one machine", "", about, "",
             "A two-layer GCN, trained on the whole graph without an evaluation. Each rank has one thread. All have the same parts, "
             "which are consecutive vertices with equally many edges, and start from the same weights. `bench/ranks.py` has the "
             "commands, and says what each row runs.", "",
             "`epoch` is the median over rounds, in milliseconds. `of ranks` is the time divided by that of Lapidary's ranks in the "
             "same round: the median, and the smallest and largest in brackets. Above 1, our ranks are faster. `of process` is the "
             "same for one process of Lapidary with as many devices. `sent` is what all ranks of PyTorch send in an epoch, without "
             "gradients. `loss` is the largest relative difference of a loss from that of one process, over all epochs and "
             "rounds. `others` is how many cores other programs of normal priority used meanwhile.", "",
             "| graph | ranks | | rounds | epoch | of ranks | of process | sent | loss | others |",
             "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in results:
        head = f"| {r['graph']} | {r['ranks']} | {NAMES[r['kind']]} | {r['rounds']} |"
        if r["status"] != "ok":
            lines.append(f"{head} {r['status']} | | | | | |")
            continue
        ratios = ["{:.2f} ({:.2f} to {:.2f})".format(*r[key]) if key in r else "" for key in ("of_ranks", "of_process")]
        sent = f"{r['sent_bytes'] / 1e6:.1f} MB" if r["sent_bytes"] else ""
        lines.append(f"{head} {r['epoch_ms']:.1f} | {ratios[0]} | {ratios[1]} | {sent} | {r['loss_difference']:.0e} | "
                     f"{r['other_cores']:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    p = record.parser(__doc__, "bench/results/ranks")
    p.add_argument("--python", default="python3", help="a Python with torch, numpy and safetensors")
    p.add_argument("--mpirun", default="mpirun --bind-to none")
    p.add_argument("--data", required=True, help="folder of dataset directories")
    p.add_argument("--work", required=True, help="folder for weights and runs.jsonl")
    p.add_argument("--cases", nargs="*", default=["arxiv:2,4"], help="GRAPH:RANKS,..")
    p.add_argument("--kinds", default="process,ranks,ranks_tcp,halo,broadcast", help="what runs; also halo_wait")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    for case in a.cases:
        graph, ranks = case.split(":")
        for count in ranks.split(","):
            run_case(a, graph, int(count), a.kinds.split(","))
    runs, here = record.all_runs(a.work), machine()
    results = summaries(runs)
    torch = next((run["torch"] for run in runs if "torch" in run), "none")
    facts = f"{here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB", f"PyTorch {torch}", "by turns. "
    about = (record.about(*facts) + a.note).strip()
    record.write_results(a.out, table(results, about), about, machine=here, rows=results)


if __name__ == "__main__":
    main()
