"""Describes the machine, and waits until other programs leave it alone. Needs no packages."""

import os
import platform
import resource
import time


def machine():
    """Returns what the numbers were measured on."""
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo") as file:
        memory_gib = round(int(file.readline().split()[1]) / 2**20)
    return dict(cpu=names[0] if names else platform.processor(), cores=os.cpu_count(), memory_gib=memory_gib)


def busy_seconds():
    """Returns the processor time of all programs of normal priority, and that of this process's children that have ended."""
    with open("/proc/stat") as file:
        ticks = [int(v) for v in file.readline().split()[1:]]
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, _nice, system, _, _, irq, softirq = ticks[:7]
    return (user + system + irq + softirq) / os.sysconf("SC_CLK_TCK"), usage.ru_utime + usage.ru_stime


def wait_until_quiet(cores, timeout):
    """Waits until other programs of normal priority use fewer cores for a second, but not longer than `timeout` seconds."""
    deadline, busy = time.monotonic() + timeout, cores
    while busy >= cores and time.monotonic() < deadline:
        before = busy_seconds()[0]
        time.sleep(1)
        busy = busy_seconds()[0] - before


class OtherCores:
    """Counts how many cores other programs of normal priority use, from its creation on."""

    def __init__(self):
        self.start, self.before = time.monotonic(), busy_seconds()

    def count(self):
        all_s, ours_s = (after - then for after, then in zip(busy_seconds(), self.before))
        return round((all_s - ours_s) / (time.monotonic() - self.start), 2)
