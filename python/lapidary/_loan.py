"""Loans: arrays that the native half reads in place, and that nobody may write meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_lock = threading.RLock()
# How many loans of an array there are, by its id. Loans keep their arrays, so ids are not reused.
_counts: dict[int, int] = {}


class Loan:
    """Keeps an array and its flag ``writeable`` at ``False``, until the last loan of the array ends."""

    __slots__ = ("_array", "_tracked")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        with _lock:
            count = _counts.get(id(array), 0)
            self._tracked = count > 0 or bool(array.flags.writeable)
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
