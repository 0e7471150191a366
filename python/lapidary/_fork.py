"""A process that was forked has none of the threads of its parent, so work that needs them would wait for ever."""

from __future__ import annotations

import os

from .errors import DeviceError

_uses = {"here": False, "before the fork": False}


def check() -> None:
    """Notes that this process computes.

    Raises:
        DeviceError: if it was forked from one that had computed.
    """
    if _uses["before the fork"]:
        raise DeviceError(
            "this process was forked from one that had used lapidary, whose threads it lacks; start processes with "
            "multiprocessing.get_context('spawn')"
        )
    _uses["here"] = True


def _in_child() -> None:
    _uses["before the fork"] = _uses["here"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
