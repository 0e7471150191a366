"""Compiles every kernel with NVRTC, checks its machine code, and compares the figures with the table of the repository.

    python ci/machine_code [--write SOURCES | --limits ARCHITECTURE] RELEASE=VERSION...     # such as 12.8=12.8.93

With `--limits`, one architecture is compiled, and nothing is compared with the table.
"""

import argparse
import difflib
import glob
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import limits
import self_test
import table
from compile import Used, compile_file, files, find_nvrtc, storage_types
from gather_loop import GatherLoop, gather_loop, is_gather
from sass import disassemble

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
TABLE = "kernels/src/cuda/machine_code.txt"


@dataclass(frozen=True)
class Figures:
    used: Used
    instructions: int
    fused: int
    widest_store: int
    by_tensor_cores: int  # products of small matrices (HMMA)
    asynchronous: int  # copies to shared memory that pass by the registers (LDGSTS)
    loop: GatherLoop | None  # of a gather


def find_nvdisasm():
    for folder in sys.path:
        for path in glob.glob(os.path.join(folder, "nvidia/*/bin/nvdisasm")):
            os.chmod(path, 0o755)
            return path
    sys.exit("error: this Python has no nvidia-cuda-nvdisasm")


def measure(job):
    """Returns the figures of the kernels of one file, for one release, architecture and storage type."""
    release, architecture, file, storage = job
    code, used = compile_file(find_nvrtc(release), architecture, file, storage)
    kernels = disassemble(find_nvdisasm(), code)
    if not used or used.keys() != kernels.keys():
        sys.exit(f"error: {file}: compiled {sorted(used)}, but disassembled {sorted(kernels)}")
    found = {}
    for name, kernel in sorted(kernels.items()):
        stores = [i.width_bits for i in kernel.code if i.operation == "STG"]
        loop = gather_loop(kernel, storage) if is_gather(name) else None
        counts = len(kernel.code), kernel.count("FFMA"), max(stores, default=0), kernel.count("HMMA"), kernel.count("LDGSTS")
        found[file, name, storage, architecture] = Figures(used[name], *counts, loop)
    return found


def measure_all(releases, architectures):
    """Returns the figures of all kernels, by release."""
    jobs = [(r, a, f, s) for r in releases for f in files() for s in storage_types(f) for a in architectures]
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(measure, jobs))
    measured = {release: {} for release in releases}
    for (release, *_), figures in zip(jobs, results):
        measured[release].update(figures)
    return measured


def check(measured):
    """Exits if a limit is broken."""
    bad = []
    for release, kernels in measured.items():
        for key, figures in kernels.items():
            where = f"NVRTC {release} {key[3]} {key[2]} {key[1]}"
            bad += [f"{where}: {said}" for said in limits.broken(key, figures)]
    if bad:
        sys.exit("error: the machine code of kernels is not as it should be:\n" + "\n".join(bad))


def sections(text):
    """Returns the lines of each release in a table."""
    found, lines = {}, []
    for line in text.splitlines():
        if line.startswith("==== "):
            lines = found[line] = []
        lines.append(line)
    return found


def compare(made):
    """Exits with a diff if the table has other figures. Releases that were not compiled are not compared."""
    with open(TABLE, encoding="utf-8") as file:
        kept = sections(file.read())
    difference = []
    for title, lines in made.items():
        old = "\n".join(kept.get(title, [])).strip().splitlines()
        difference += difflib.unified_diff(old, lines, TABLE, "these kernels", n=0, lineterm="")
    if difference:
        print("\n".join(difference))
        sys.exit(f"error: the kernels changed, but not {TABLE}: run `ci/cubin --write` and read its diff")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("releases", nargs="+")
    parser.add_argument("--write", metavar="SOURCES")
    parser.add_argument("--limits", metavar="ARCHITECTURE")
    args = parser.parse_args()
    versions = dict(release.split("=") for release in args.releases)
    architectures = [args.limits] if args.limits else ARCHITECTURES
    self_test.run()
    measured = measure_all(versions, architectures)
    check(measured)
    count = sum(len(kernels) for kernels in measured.values())
    said = f"{count} kernels compiled for {', '.join(architectures)}; none spills"
    if args.limits:
        print(f"{said}; {TABLE} was made from these sources")
        return
    made = {table.title(r): table.section(r, versions[r], kernels, ARCHITECTURES) for r, kernels in measured.items()}
    if args.write:
        text = [table.HEADER, f"Sources: {args.write}", "", *("\n".join([*lines, ""]) for lines in made.values())]
        with open(TABLE, "w", encoding="utf-8") as file:
            file.write("\n".join(text))
    else:
        compare(made)
    print(f"{said}; {TABLE} has their figures")


if __name__ == "__main__":
    main()
