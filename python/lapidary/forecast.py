"""Forecasts: the memory and time of a run, predicted without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _lapidary, _settings
from .data import dataset
from .errors import DataError, OutOfMemoryError

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


@_settings.takes(_settings.ALL)
def plan(
    data: Any, model: str = "gcn", *, profile: Optional[str] = None, **settings: Unpack[_settings.Settings]
) -> dict[str, Any]:
    """Predicts the memory, copies and time of an epoch: on the whole graph, or with ``batch`` on mini-batches.

    Args:
        data: what :func:`lapidary.dataset` takes, or a :class:`Shape`; for mini-batches, a dataset.
        model: the model.
        profile: the device to predict for, such as ``h200``; by default this machine, which is measured once.
        settings: those of :func:`lapidary.train`.

    Returns:
        On the whole graph: ``device_memory`` (bytes of each device), ``tiles``, ``strips``, ``host_bytes``,
        ``peak_device_bytes`` (one per device), ``bytes_to_device`` and ``bytes_to_host`` (of an epoch, of all devices),
        ``epoch_seconds`` and ``eval_seconds`` (of the slowest device).

        On mini-batches, of which some are ``drawn``: ``device_memory``; ``batches`` (of an epoch); ``vertices`` and ``edges``
        (the mean and the most of each level, from the features to the seeds); ``feature_bytes`` (gathered in an epoch);
        ``peak_bytes`` (of a device: ``median``, ``p90``, ``most``, and ``planned`` for); ``batch_bytes_to_device`` and
        ``batch_bytes_to_host``; ``stage_seconds`` of an epoch (``sampling``, ``gathering``, ``computing``; they overlap);
        ``caches`` (dicts of ``share``, ``bytes``, ``hits``); and ``feature_rows_read``, ``feature_bytes_read`` and
        ``found_on_device``, ``None`` without such a cache.

    Raises:
        OutOfMemoryError: if the run does not fit; the message says what would be enough.

    Example::

        lapidary.plan(lapidary.Shape(232_965, 114_615_892, 602, 41), hidden=256, profile="h200", device_memory="4GiB")
        lapidary.plan("planted", "sage", batch=20, fanout=[10, 5])
    """
    batches = _settings.batch_settings(settings)
    rest = (
        _settings.model_settings(model, settings),
        _settings.training_settings(settings),
        _settings.device_settings(settings),
        batches,
        profile,
    )
    if batches["batch"] is not None:
        if isinstance(data, Shape):
            raise DataError("option `batch`: the sizes of mini-batches depend on the edges, so give a dataset, not a shape")
        figures, have_bytes, need_bytes = _lapidary.forecast_batches(dataset(data)._native, *rest)
        if figures is None:
            raise _too_little(have_bytes, need_bytes)
        return figures
    asked = tuple(data) if isinstance(data, Shape) else dataset(data)._native
    found, have_bytes, need_bytes = _lapidary.forecast(asked, *rest)
    if found is None:
        raise _too_little(have_bytes, need_bytes)
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


def _too_little(have_bytes: int, need_bytes: int) -> OutOfMemoryError:
    return OutOfMemoryError(f"each device has {have_bytes:,} bytes of memory, but this needs {need_bytes:,}")
