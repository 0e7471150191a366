"""Functions shared by ci/kill and ci/soak: settings of trainings, runs of the command, and checks of what it leaves."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The name of each setting, and its flags. Splits are by edges, because learned ones depend on measured times.
SMALL = ["--memory", "lru", "--device-memory"]
SETTINGS = {
    "cpu": ["--devices", "cpu", "--layers", "3", "--hidden", "32"],
    "cpu:2": ["--devices", "cpu:2", "--layers", "3", "--hidden", "32"],
    "sim:2": ["--devices", "sim:2", "--layers", "3", "--hidden", "32", *SMALL, "800KiB"],
    "cuda": ["--devices", "cuda:0", "--data", "builtin:karate", "--hidden", "8"],
}

# Files of an epoch, of which none may differ from those of a run without a fault. Measured times are in no file.
COMPARED = ["model.safetensors", "optimizer.safetensors", "best.safetensors", "run.json"]

# The signals that end a training with a last checkpoint, and the exit code that follows.
GRACEFUL = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Wrong(Exception):
    """Something that must not happen has happened."""


def environment(name, emulator, **more):
    """Returns the environment of a setting. `emulator` is the folder of the emulated GPU's libraries."""
    env = {**os.environ, "NO_COLOR": "1", **more}
    if name == "cuda":
        env |= {"LD_LIBRARY_PATH": str(emulator), "LAPIDARY_CACHE": str(emulator / "kernels"), "EMULATED_SEED": "1"}
    return env


def emulated_gpu(folder):
    """Builds the emulator's libraries into a folder. Returns it, or None if they cannot be built."""
    build = ROOT / "kernels" / "emulator" / "build"
    done = subprocess.run(["sh", str(build), str(folder)], capture_output=True)
    return Path(folder) if done.returncode == 0 else None


def seconds_left_out(value):
    """Returns a JSON value without measured seconds."""
    if isinstance(value, dict):
        return {name: seconds_left_out(inner) for name, inner in value.items() if "second" not in name}
    return [seconds_left_out(inner) for inner in value] if isinstance(value, list) else value


def results(folder, epochs):
    """Returns the contents of the last epoch's files and of the best ones, by name."""
    found = {}
    for checkpoint in [f"epoch-{epochs:08}", "best"]:
        for name in COMPARED:
            path = Path(folder) / checkpoint / name
            if path.exists():
                contents = path.read_bytes()
                found[f"{checkpoint}/{name}"] = seconds_left_out(json.loads(contents)) if name == "run.json" else contents
    if len(found) != 6:
        raise Wrong(f"only {sorted(found)} are there after the last epoch, and {listed(folder)}")
    return found


def differences(wanted, found):
    """Returns the names of the files that differ."""
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def listed(folder):
    """Returns the sorted names in a folder, which may be missing."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def has_checkpoint(folder):
    """Returns whether a folder has a checkpoint to predict with, in its place or while it is replaced."""
    names = [name for name in listed(folder) if name.removeprefix(".old-").startswith(("epoch-", "best"))]
    return any((Path(folder) / name / "run.json").exists() for name in names)


def newest(folder):
    """Returns the newest epoch with a checkpoint, or 0."""
    return max((int(name[6:]) for name in listed(folder) if name.startswith("epoch-")), default=0)


def leftovers(folder):
    """Returns the names of temporary files and folders, which no run may leave behind when it ends by itself."""
    inside = [str(path.relative_to(folder)) for path in Path(folder).rglob("*")]
    return sorted(name for name in inside if any(part.startswith(".") for part in Path(name).parts) or name.endswith(".part"))


def check_stderr(text, errors):
    """Checks that standard error has this number of `error:` lines, and no panic."""
    found = [line for line in text.splitlines() if line.startswith("error:")]
    if len(found) != errors or "panicked" in text or "RUST_BACKTRACE" in text:
        raise Wrong(f"{len(found)} error lines instead of {errors}: {text.strip()[-2000:]}")
    return found


def check_saved(text, folder):
    """Checks that the epoch after which a run says it was interrupted has a checkpoint."""
    for epoch in re.findall(r"(?:interrupted|terminated) after epoch (\d+)", text):
        if int(epoch) > 0 and newest(folder) != int(epoch):
            raise Wrong(f"it was interrupted after epoch {epoch}, but the newest checkpoint is of epoch {newest(folder)}")


def infer(program, name, folder, env):
    """Predicts with the weights of a folder."""
    data = SETTINGS[name][SETTINGS[name].index("--data") + 1] if "--data" in SETTINGS[name] else "builtin:planted"
    flags = ["infer", "--json", "--devices", "cpu", "--data", data, "--checkpoint", str(folder)]
    ended = subprocess.run([program, *flags], capture_output=True, text=True, env=env)
    if ended.returncode != 0:
        raise Wrong(f"infer ended with {ended.returncode}: {ended.stderr.strip()}; there are {listed(folder)}")


def table(header, rows):
    """Returns a Markdown table. All columns but the first are aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
