"""Runs programs that work together. Needs no packages."""

import os
import subprocess
import time


def outputs(commands, timeout):
    """Runs commands at once, given as (arguments, additions to the environment), and returns what the first one prints.

    If one fails or is late, ends all of them and raises `RuntimeError`."""
    logs = subprocess.PIPE
    children = [subprocess.Popen(c, env={**os.environ, **env}, stdout=logs, stderr=logs, text=True) for c, env in commands]
    deadline = time.monotonic() + timeout
    try:
        first, error = children[0].communicate(timeout=timeout)
        for child in children:
            if child is not children[0]:
                error += child.communicate(timeout=max(0.1, deadline - time.monotonic()))[1]
            if child.returncode != 0:
                lines = error.strip().splitlines()
                # mpirun says more after an error of a rank.
                said = [line for line in lines if line.startswith("error:")] or lines or [f"exit code {child.returncode}"]
                raise RuntimeError(said[-1][:200])
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {timeout:g} s") from None
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()  # mpirun ends its ranks; a peer without it would end itself later
                try:
                    child.communicate(timeout=10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.communicate()
    return first
