"""Loans: arrays that the native half reads in place, and that nobody may write meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_lock = threading.RLock()
# How many loans of an array there are, by its id. Loans keep their arrays, so ids are not reused.
_counts: dict[int, int] = {}


def _can_be_set_again(array: np.ndarray[Any, Any]) -> bool:
    """Whether numpy lets the flag become ``True`` again: if the memory is that of an array or of a writable buffer."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.owndata:
        owner = owner.base
    if isinstance(owner, np.ndarray):
        return bool(owner.flags.writeable)
    try:
        return not memoryview(owner).readonly
    except TypeError:
        return False


class Loan:
    """Keeps an array and its flag ``writeable`` at ``False``, until the last loan of the array ends.

    The flag stays as it is where numpy could not set it again, as for the memory of a tensor.
    """

    __slots__ = ("_array", "_tracked")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        with _lock:
            count = _counts.get(id(array), 0)
            self._tracked = count > 0 or (bool(array.flags.writeable) and _can_be_set_again(array))
            if self._tracked:
                array.flags.writeable = False
                _counts[id(array)] = count + 1

    def __del__(self) -> None:
        if not self._tracked:
            return
        with _lock:
            count = _counts.pop(id(self._array)) - 1
            if count:
                _counts[id(self._array)] = count
            else:
                self._array.flags.writeable = True
