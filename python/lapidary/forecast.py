"""Forecasts: the memory and time of a run, predicted without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _lapidary, _settings
from .data import dataset
from .errors import OutOfMemoryError

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Shape(NamedTuple):
    """The size of a graph that does not exist yet."""

    vertices: int
    edges: int
    """An undirected edge counts twice."""
    features: int
    classes: int
    directed: bool = False


@_settings.takes(_settings.WHOLE_GRAPH)
def plan(
    data: Any, model: str = "gcn", *, profile: Optional[str] = None, **settings: Unpack[_settings.WholeGraphSettings]
) -> dict[str, Any]:
    """Predicts the memory, copies and time of an epoch on the whole graph. ``lapidary plan --batch`` does so for
    mini-batches.

    Args:
        data: what :func:`lapidary.dataset` takes, or a :class:`Shape`.
        model: the model.
        profile: the device to predict for, such as ``h200``; by default this machine, which is measured once.
        settings: those of :func:`lapidary.train`, without those for mini-batches.

    Returns:
        ``device_memory`` (bytes of each device), ``tiles``, ``strips``, ``host_bytes``, ``peak_device_bytes`` (one per
        device), ``bytes_to_device`` and ``bytes_to_host`` (of an epoch, of all devices), ``epoch_seconds`` and
        ``eval_seconds`` (of the slowest device).

    Raises:
        OutOfMemoryError: if the run does not fit; the message says what would be enough.

    Example::

        lapidary.plan(lapidary.Shape(232_965, 114_615_892, 602, 41), hidden=256, profile="h200", device_memory="4GiB")
    """
    asked = tuple(data) if isinstance(data, Shape) else dataset(data)._native
    found, have_bytes, need_bytes = _lapidary.forecast(
        asked,
        _settings.model_settings(model, settings),
        _settings.training_settings(settings),
        _settings.device_settings(settings),
        profile,
    )
    if found is None:
        raise OutOfMemoryError(f"each device has {have_bytes:,} bytes of memory, but this needs {need_bytes:,}")
    memory, tiles, strips, host_bytes, devices = found
    peaks, to_device, to_host, epoch_seconds, eval_seconds = zip(*devices)
    return {
        "device_memory": memory,
        "tiles": tiles,
        "strips": strips,
        "host_bytes": host_bytes,
        "peak_device_bytes": list(peaks),
        "bytes_to_device": sum(to_device),
        "bytes_to_host": sum(to_host),
        "epoch_seconds": max(epoch_seconds),
        "eval_seconds": max(eval_seconds),
    }
