"""A forked process gets an error instead of waiting for threads that it lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
import lapidary

trainer = lapidary.Trainer("karate", epochs=2)
predictor = trainer.predictor()
child = os.fork()
if child:
    code = os.waitpid(child, 0)[1]
    print(trainer.step().epoch, flush=True)
    sys.exit(code)
for work in (trainer.step, lambda: lapidary.train("karate"), lambda: predictor.predict("karate")):
    try:
        work()
    except lapidary.DeviceError as error:
        print(error, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_a_forked_process_gets_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("start processes with multiprocessing.get_context('spawn')") == 3
    assert done.stdout.splitlines()[-1] == "1"


UNUSED = """
import os, sys
import lapidary

child = os.fork()
if child:
    sys.exit(os.waitpid(child, 0)[1])
print(lapidary.train("karate", epochs=2).trainer.epoch, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_a_process_that_was_forked_before_any_work_trains() -> None:
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
