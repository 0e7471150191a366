#!/usr/bin/env python3
"""Trains with vertex matrices in f32 and in bf16, with the same settings and seeds, and prints a table of accuracies.

    python3 bench/bf16_accuracy.py --lapidary target/release/lapidary --data-dir DIR --models gcn,sage

DIR has the dataset directories that `accuracy.py` names; settings are those of that script. Both runs of a seed start
from the same weights and drop the same numbers. There are two standard errors: that of the difference of the means, as if
the runs were independent, and that of the mean difference of pairs. The result is the test accuracy at the epoch with
the best validation accuracy.
"""

import argparse
import math
import pathlib
import statistics

from accuracy import SETTINGS, train_lapidary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", required=True)
    parser.add_argument("--data-dir", type=pathlib.Path, required=True)
    parser.add_argument("--models", default="gcn")
    parser.add_argument("--data", default=",".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    print("| data | model | f32 | bf16 | difference | standard error | of pairs |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for data in args.data.split(","):
        for model in args.models.split(","):
            wide, stored = [], []
            for seed in range(args.seeds):
                for dtype, into in [("f32", wide), ("bf16", stored)]:
                    settings = {**SETTINGS[data], "dtype": dtype}
                    run = train_lapidary(args.lapidary, args.data_dir / data, model, seed, settings, 1)
                    into.append(100 * run["test_accuracy"])
            differences = [b - a for a, b in zip(wide, stored)]
            of_pairs = statistics.stdev(differences) / math.sqrt(len(differences))
            error = math.hypot(statistics.stdev(wide), statistics.stdev(stored)) / math.sqrt(len(wide))
            cells = [f"{statistics.mean(x):.2f} ± {statistics.stdev(x):.2f}" for x in (wide, stored)]
            errors = f"{error:.2f} | {of_pairs:.2f}"
            row = [data, model, *cells, f"{statistics.mean(differences):+.2f}", errors]
            print(f"| {' | '.join(row)} |", flush=True)


main()
