"""Times epochs of mini-batches in Lapidary and other frameworks in turns, on the same graph, model, weights and machine.

    export PEERS_DIR=... PEERS_PY_MAIN=.../python PEERS_PY_DGL=.../python
    cargo bench -p lapidary-kernels --bench cpu -- machine --json > machine.json
    $PEERS_PY_MAIN bench/batches.py --lapidary target/release/lapidary --data DATASET.. --work DIR --machine machine.json \
        --note "what else ran"

GraphSAGE with the mean of the neighbours, float32, Adam(0.01), no dropout and no evaluation. All programs start from the same
weights. `batches_peer.py` runs one framework in its own process and describes the programs. Those of Lapidary:
  lapidary            samples, gathers and computes at the same time, as it does by default
  lapidary_in_turn    `--look-ahead 0`: one stage after the other, so the seconds of a stage are those of its work alone

A round runs every program once, in an order that the next round reverses. A run waits for a quiet machine. If other programs
used more than `--quiet` cores during a run, it is repeated up to `--tries` times, and the quietest run is kept. All kept runs
are in `DIR/runs.jsonl`, so rounds can be added later; `--rounds 0` only writes the results. The results are medians over the
epochs after the first of a program's quiet runs, or of its quietest run if none was quiet; so are the seconds of the stages.
Stages of Lapidary overlap, so their sum is longer than the epoch.

Two checks are made. The edges and the input rows of a batch must agree to 2 % between programs that draw from the same
distribution, which are all but PyG. Lapidary's are compared if it prints `sampled_edges` and `input_rows` of an epoch. The
losses must be finite, and that of the first epoch may differ by 25 % from the median of all programs: the initial weights are
the same, but the batches are not. The first updates change the loss by a factor of ten.

The floor is the time to read and write the features of a batch at the rate of the machine, and to multiply its matrices at the
rate of fused multiply-adds. Edges, activations and sampling cost nothing in it.
"""

import json
import math
import os
import statistics
import subprocess

import record
from floor import Rates
from machine import OtherCores, machine, wait_until_quiet
from speed import initial_weights, write_safetensors

OURS = {"lapidary": "2", "lapidary_in_turn": "0"}
PEERS = ["dgl", "dgl_unfused", "dgl_i32", "dgl_unfused_i32", "dgl_worker", "graphbolt", "graphbolt_i32", "pyg"]
STAGES = ["sampling", "gathering", "computing"]
SIZES_AGREE = 0.02
LOSSES_AGREE = 0.25
HERE = os.path.dirname(os.path.abspath(__file__))


def last_lines(command, timeout, **env):
    """Returns the JSON lines that a command prints, or one that says why there are none."""
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **env)
    try:
        done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return [dict(status="timeout", error=f"not done after {timeout:g} s")]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return lines
    if done.returncode < 0:
        return [dict(status="crashed", error=f"signal {-done.returncode}")]
    return [dict(status="failed", error=(done.stderr.strip().splitlines() or ["no output"])[-1][:200])]


def python_of(program):
    """Returns the Python that can run a program: PyG runs where it can sample."""
    if program.startswith("pyg"):
        main, other = os.environ["PEERS_PY_MAIN"], os.environ["PEERS_PY_DGL"]
        check = [os.path.join(HERE, "batches_peer.py"), "--program", program, "--check"]
        return main if last_lines([main, *check], 120)[-1]["status"] == "ok" else other
    return os.environ["PEERS_PY_DGL"]


def command(a, program, folder, weights):
    same = ["--data", folder, "--hidden", a.hidden, "--batch", a.batch, "--fanout", a.fanout, "--weights", weights,
            "--epochs", 1 + a.epochs]
    if program in OURS:
        return [a.lapidary, "train", *same, "--model", "sage", "--layers", len(a.fanout.split(",")), "--dropout", 0,
                "--eval-every", 0, "--feature-norm", "none", "--look-ahead", OURS[program], "--json"]
    return [python_of(program), os.path.join(HERE, "batches_peer.py"), "--program", program, *same]


def run(a, program, folder, weights):
    """Runs a program once. Returns its epochs and how it ended."""
    lines = last_lines(command(a, program, folder, weights), a.timeout)
    if program not in OURS or "status" in lines[-1]:
        return lines[-1]
    epochs = [line for line in lines if line["event"] == "epoch"]
    finite = all(math.isfinite(epoch["loss"] or math.nan) for epoch in epochs)
    return dict(status="ok" if finite else "the loss is not finite", epochs=epochs)


def measure(a, folder):
    """Runs `--rounds` rounds on a dataset, and adds the runs to `runs.jsonl`."""
    with open(os.path.join(folder, "dataset.json")) as file:
        about = json.load(file)
    layers = len(a.fanout.split(","))
    widths = [about["feature_width"]] + [a.hidden] * (layers - 1) + [about["classes"]]
    graph = os.path.basename(os.path.normpath(folder))
    weights = os.path.join(a.work, f"{graph}.safetensors")
    write_safetensors(weights, initial_weights("sage", widths))
    case = dict(graph=graph, vertices=about["vertices"], edges=about["edges"], widths=widths, fanout=a.fanout, batch=a.batch)
    first = 1 + max((run["round"] for run in record.all_runs(a.work) if run["graph"] == graph), default=-1)
    programs = a.programs.split(",")
    for round_ in range(first, first + a.rounds):
        for program in programs if round_ % 2 == 0 else programs[::-1]:
            best = None
            for _ in range(a.tries):
                wait_until_quiet(a.quiet, a.quiet_wait)
                others = OtherCores()
                tried = dict(run(a, program, folder, weights), other_cores=others.count())
                if best is None or tried["other_cores"] < best["other_cores"]:
                    best = tried
                if best["status"] != "ok" or best["other_cores"] <= a.quiet:
                    break
            seconds = [round(epoch["seconds"], 2) for epoch in best.get("epochs", [])]
            print(graph, round_, program, best["status"], seconds, f"others {best['other_cores']}", flush=True)
            record.add_run(a.work, {**best, **case, "program": program, "round": round_})


def summaries(runs, rates, quiet):
    """Returns one row for each dataset and program, ours first. Runs beside programs that used more than `quiet` cores count
    only if all of a program are like that; then the quietest counts."""
    graphs, programs = (list(dict.fromkeys(run[key] for run in runs)) for key in ("graph", "program"))
    order = [*OURS, *PEERS]
    programs.sort(key=lambda program: order.index(program) if program in order else len(order))
    rows = []
    for graph in graphs:
        of_graph = [summary(graph, program, runs, rates, quiet) for program in programs]
        of_graph = [row for row in of_graph if row]
        good = [row for row in of_graph if row["status"] == "ok"]
        check(good)
        if good and good[0]["program"] == "lapidary":
            for row in good:
                row["ratio"] = row["epoch_s"] / good[0]["epoch_s"]
        rows += of_graph
    return rows


def summary(graph, program, runs, rates, quiet):
    runs = [run for run in runs if (run["graph"], run["program"]) == (graph, program)]
    good = sorted((run for run in runs if run["status"] == "ok"), key=lambda run: run["other_cores"])
    good = [run for run in good if run["other_cores"] <= quiet] or good[:1]
    if not runs:
        return None
    row = dict(graph=graph, program=program, rounds=len(good), status="ok" if good else runs[-1]["status"],
               other_cores=[run["other_cores"] for run in good or runs], all_runs=len(runs))
    if not good:
        return dict(row, error=runs[-1].get("error"))
    epochs = [epoch for run in good for epoch in run["epochs"][1:]]
    seconds = [epoch["seconds"] for epoch in epochs]
    median = lambda values: statistics.median(list(values))  # noqa: E731
    row.update(epoch_s=median(seconds), epoch_s_least=min(seconds), epoch_s_most=max(seconds), version=good[-1].get("version"),
               batches=epochs[0]["batches"], batches_per_s=median(e["batches"] / e["seconds"] for e in epochs),
               stages_s={name: median(e["stage_seconds"][name] for e in epochs) for name in STAGES},
               losses=[median(losses) for losses in zip(*([e["loss"] for e in run["epochs"]] for run in good))])
    row.update(sizes_of(epochs))
    if "sizes" in epochs[0]:
        row["floor_s"] = median(floor_s(rates, good[0]["widths"], e) for e in epochs) if rates else None
        row["rows"] = [median(rows) for rows in zip(*(e["sizes"]["rows"] for e in epochs))]
    return row


def sizes_of(epochs):
    """Returns the edges and the input rows of a batch, if the program says them."""
    if "sizes" in epochs[0]:
        pairs = [(sum(e["sizes"]["edges"]), e["sizes"]["inputs"]) for e in epochs]
    elif "sampled_edges" in epochs[0]:
        pairs = [(e["sampled_edges"] / e["batches"], e["input_rows"] / e["batches"]) for e in epochs]
    else:
        return {}
    return {name: statistics.median(values) for name, values in zip(("batch_edges", "batch_inputs"), zip(*pairs))}


def floor_s(rates, widths, epoch):
    """Returns the least seconds of an epoch: rows gathered and matrices multiplied, at the rates of the machine."""
    sizes = epoch["sizes"]
    bytes_, flops = 2 * 4 * sizes["inputs"] * widths[0], 0
    for i, (rows, k, m) in enumerate(zip(sizes["rows"], widths, widths[1:])):
        # The mean and the vertex itself; forward, the gradient of the weight, and that of the input after the first layer.
        flops += 2 * (3 if i else 2) * 2 * rows * k * m
    return epoch["batches"] * (bytes_ / rates.bytes + flops / rates.flops)


def check(rows):
    """Notes in each row whether its batches and its losses are like those of the others."""
    sized = [row for row in rows if "batch_edges" in row and not row["program"].startswith("pyg")]
    for row in rows:
        row["same_sizes"] = None
        if row in sized:
            row["same_sizes"] = all(
                abs(row[key] / statistics.median(other[key] for other in sized) - 1) <= SIZES_AGREE
                for key in ("batch_edges", "batch_inputs"))
        usual = statistics.median(other["losses"][0] for other in rows)
        row["same_losses"] = abs(row["losses"][0] / usual - 1) <= LOSSES_AGREE


def table(rows, about, a):
    verdict = {True: "yes", False: "**no**", None: ""}
    lines = ["# Mini-batches compared with other frameworks, on the CPU", "", about, "",
             f"GraphSAGE of {len(a.fanout.split(','))} layers, {a.hidden} hidden; batches of {a.batch} seeds, fan-outs {a.fanout} from "
             "the seeds. `bench/batches.py` has the command and describes the programs and the checks. Times are seconds of a whole "
             "epoch: medians over the epochs after the first of the runs that count, with the least and the most in brackets. "
             f"Runs beside programs that used more than {a.quiet:g} cores count only if a program has no other. `others` is how many "
             "cores those used. `ratio` is the epoch of the program over that of Lapidary's default: above 1, we are faster. The "
             "stages of `lapidary` overlap and share the cores. Those of `lapidary_in_turn` and of the other frameworks do not "
             "overlap, except with a worker. `edges` and `inputs` are those of a batch; sizes agree if they differ by 2 % at most.",
             "",
             "| graph | program | runs | epoch | ratio | batches/s | sampling | gathering | computing | floor | edges | inputs | "
             "sizes agree | loss, first and last epoch | losses alike | others |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | --- | ---: |"]
    for row in rows:
        head = f"| {row['graph']} | {row['program']} | {row['rounds']} |"
        if row["status"] != "ok":
            lines.append(f"{head} {row['status']}: {row['error']} |" + " |" * 12)
            continue
        cells = [f"{row['epoch_s']:.2f} ({row['epoch_s_least']:.2f} to {row['epoch_s_most']:.2f})",
                 f"{row['ratio']:.2f}" if "ratio" in row else "", f"{row['batches_per_s']:.2f}",
                 *(f"{row['stages_s'][name]:.2f}" for name in STAGES), f"{row['floor_s']:.2f}" if row.get("floor_s") else "",
                 f"{row['batch_edges']:.0f}" if "batch_edges" in row else "not printed",
                 f"{row['batch_inputs']:.0f}" if "batch_inputs" in row else "not printed", verdict[row["same_sizes"]],
                 f"{row['losses'][0]:.3g}, {row['losses'][-1]:.3g}", verdict[row["same_losses"]],
                 f"{statistics.median(row['other_cores']):.2f}"]
        lines.append(f"{head} " + " | ".join(cells) + " |")
    versions = sorted({row["version"] for row in rows if row.get("version")})
    return "\n".join([*lines, "", f"Compared: {'; '.join(versions)}."]) + "\n"


def main():
    p = record.parser(__doc__, "bench/results/batches")
    p.set_defaults(hidden=256, rounds=3, epochs=2, timeout=900.0, quiet=0.25, quiet_wait=60.0)
    p.add_argument("--data", nargs="*", default=[], help="dataset directories with dense features")
    p.add_argument("--work", required=True)
    p.add_argument("--programs", default=",".join([*OURS, *PEERS]), help="[%(default)s]")
    p.add_argument("--fanout", default="15,10,5", help="from the seeds outwards")
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--tries", type=int, default=3)
    p.add_argument("--machine", help="rates of the machine, for the floors")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    for folder in a.data:
        measure(a, folder)
    rates = None
    if a.machine:
        with open(a.machine) as file:
            rates = json.load(file)
    rows = summaries(record.all_runs(a.work), rates and Rates(rates), a.quiet)
    is_on = machine()
    about = record.about(a.note, f"{is_on['cpu']}, {is_on['cores']} cores, {is_on['memory_gib']} GiB")
    record.write_results(a.out, table(rows, about, a), about, machine=is_on, rates=rates, rows=rows)


if __name__ == "__main__":
    main()
