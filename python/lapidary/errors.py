"""The exceptions of Lapidary.

Each is a :class:`LapidaryError`, and also the built-in exception that Python programs expect.
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "DeviceError",
    "DivergedError",
    "FileError",
    "LapidaryError",
    "MissingFileError",
    "OutOfMemoryError",
]


class LapidaryError(Exception):
    """The base of all exceptions of this package."""


class DataError(LapidaryError, ValueError):
    """Data, settings or the contents of a file are wrong; the message says what was expected."""


class FileError(LapidaryError, OSError):
    """A file or folder cannot be read or written."""


class MissingFileError(LapidaryError, FileNotFoundError):
    """A file or a checkpoint does not exist."""


class OutOfMemoryError(LapidaryError, MemoryError):
    """A run does not fit into the memory of a device, or of the host."""


class DeviceError(LapidaryError, RuntimeError):
    """A device cannot be found, or a call of it failed."""


class DivergedError(LapidaryError, ArithmeticError):
    """The loss, a weight or a moment of the optimizer is not finite."""
