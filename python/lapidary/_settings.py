"""The settings of models, training and devices: names, defaults and checks, those of ``lapidary train``."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Union

from .errors import DataError

Defaults = Mapping[str, Any]

MODEL: Defaults = {
    "hidden": 16,
    "layers": 2,
    "dropout": 0.5,
    "input_dropout": None,
    "norm": None,
    "layer_norm": False,
    "activation": "relu",
    "heads": 1,
    "attention_dropout": None,
    "negative_slope": 0.2,
    "residual": False,
    "edge_attention": False,
    "edge_weights": "use",
    "weighted_mean": "sum",
    "dtype": "f32",
}

TRAINING: Defaults = {
    "epochs": 200,
    "optimizer": "adam",
    "lr": 0.01,
    "momentum": 0.0,
    "weight_decay": None,
    "decay_layers": "all",
    "class_weights": None,
    "feature_norm": None,
    "reorder": "none",
    "seed": 0,
    "eval_every": 1,
    "recompute": "auto",
    "strips": None,
}

DEVICES: Defaults = {
    "devices": "auto",
    "device_memory": None,
    "threads": None,
    "memory": "optimal",
    "matmul": "auto",
    "partition": "learned",
    "passes": "all",
}

BATCHES: Defaults = {
    "batch": None,
    "fanout": None,
    "sampler": "neighbor",
    "replace": False,
    "by_weight": False,
    "seeds": "balanced",
    "look_ahead": 2,
    "embedding": None,
    "feature_cache": None,
    "device_cache": None,
    "eval_fanout": None,
}

ALL: Defaults = {**MODEL, **TRAINING, **DEVICES, **BATCHES}

_RANGES = {
    "hidden": (1, 2**32 - 1),
    "layers": (1, 10_000),
    "heads": (1, 2**32 - 1),
    "threads": (1, 1024),
    "strips": (1, 64),
    "batch": (1, 2**63 - 1),
    "look_ahead": (0, 256),
    "embedding": (1, 2**32 - 1),
    "checkpoint_every_batches": (1, 2**63 - 1),
    "keep": (0, 2**63 - 1),
    "patience": (1, 2**63 - 1),
    "vertices": (0, 2**32 - 1),
    "classes": (1, 2**32 - 1),
}
_NOT_NEGATIVE = ("epochs", "seed", "eval_every")


class DeviceSettings(TypedDict, total=False):
    """Where and how a program runs."""

    devices: str
    device_memory: Union[int, str, None]
    threads: Union[int, None]
    memory: str
    matmul: str
    partition: Union[str, Path]
    passes: str


class Settings(DeviceSettings, total=False):
    """The settings of a run."""

    hidden: int
    layers: int
    dropout: float
    input_dropout: Union[float, None]
    norm: Union[str, None]
    layer_norm: bool
    activation: str
    heads: int
    attention_dropout: Union[float, None]
    negative_slope: float
    residual: bool
    edge_attention: bool
    edge_weights: str
    weighted_mean: str
    dtype: str
    epochs: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: Union[float, None]
    decay_layers: str
    class_weights: Union[str, Sequence[float], None]
    feature_norm: Union[str, None]
    reorder: str
    seed: int
    eval_every: int
    recompute: str
    strips: Union[int, None]
    batch: Union[int, None]
    fanout: Union[str, int, Iterable[int], None]
    sampler: str
    replace: bool
    by_weight: bool
    seeds: str
    look_ahead: int
    embedding: Union[int, None]
    feature_cache: Union[int, str, None]
    device_cache: Union[int, str, None]
    eval_fanout: Union[str, int, Iterable[int], None]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes(defaults: Defaults) -> Callable[[_Function], _Function]:
    """Declares that the keyword arguments of a function are these settings, and shows them in its signature.

    The function is called with all of them. Others raise a ``TypeError``.
    """

    def decorated(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        known = {parameter.name for parameter in own} | defaults.keys()

        @functools.wraps(function)
        def called(*args: Any, **given: Any) -> Any:
            unknown = next((name for name in given if name not in known), None)
            if unknown is not None:
                options = ", ".join(sorted(known - {"self"}))
                raise TypeError(f"{function.__qualname__}() has no argument `{unknown}`; there are {options}")
            return function(*args, **{**defaults, **given})

        shown = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v) for n, v in defaults.items()]
        called.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorated


def model_settings(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked settings of a model.

    Raises:
        DataError: if one is out of range.
    """
    chosen = {name: settings[name] for name in MODEL}
    check_ranges(chosen)
    return {"model": model, **chosen}


def training_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked settings of training.

    Raises:
        DataError: if one is out of range, or not for this optimizer.
    """
    chosen = {name: settings[name] for name in TRAINING}
    check_ranges(chosen)
    if chosen["momentum"] != 0 and chosen["optimizer"] != "sgd":
        raise DataError("only option `optimizer` sgd has a `momentum`")
    weights = chosen["class_weights"]
    if not isinstance(weights, str):
        chosen["class_weights"] = "none" if weights is None else ",".join(str(float(weight)) for weight in weights)
    return chosen


def device_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked settings of devices.

    Raises:
        DataError: if one is out of range.
    """
    chosen = {name: settings[name] for name in DEVICES}
    check_ranges(chosen)
    chosen["partition"] = os.fspath(chosen["partition"])
    if chosen["device_memory"] is not None:
        chosen["device_memory"] = str(chosen["device_memory"])
    return chosen


def batch_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked settings of mini-batches.

    Raises:
        DataError: if one is out of range, or does nothing without another.
    """
    chosen = {name: settings[name] for name in BATCHES}
    check_ranges(chosen)
    for name in ("fanout", "eval_fanout"):
        if chosen[name] is not None:
            chosen[name] = _listed(chosen[name])
    for name in ("feature_cache", "device_cache"):
        if chosen[name] is not None:
            chosen[name] = str(chosen[name])
    if chosen["batch"] is None:
        useless = next((name for name, value in chosen.items() if value != BATCHES[name]), None)
        if useless is not None:
            raise DataError(f"option `{useless}` is for mini-batches, and needs option `batch`")
        return chosen
    if chosen["fanout"] is None:
        raise DataError("option `batch` needs option `fanout`, such as [15, 10]: edges to draw, layer by layer")
    for name in ("recompute", "strips"):
        if settings[name] != TRAINING[name]:
            raise DataError(f"option `{name}` does nothing on mini-batches; leave out one of it and option `batch`")
    return chosen


def _listed(fanout: Union[str, int, Iterable[int]]) -> str:
    """Returns numbers of neighbours as a text, as in ``15,10``."""
    if isinstance(fanout, str):
        return fanout
    return ",".join(str(count) for count in (fanout if isinstance(fanout, Iterable) else [fanout]))


def check_ranges(settings: Mapping[str, Any]) -> None:
    """Checks numbers.

    Raises:
        DataError: if one is no whole number, or out of range.
    """
    for name, value in settings.items():
        low, high = _RANGES.get(name, (0, 2**63 - 1) if name in _NOT_NEGATIVE else (None, None))
        if low is None or value is None:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise DataError(f"option `{name}` cannot be {value!r}: it is a whole number")
        if not low <= value <= high:
            raise DataError(f"option `{name}` cannot be {value}: it is a number from {low} to {high}")
