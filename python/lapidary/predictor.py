"""Predictors: trained weights, applied to datasets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _fork, _settings
from ._arrays import Array
from ._lapidary import NativePredictor
from .data import Dataset, dataset
from .epoch import Scores

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack


class Predictor:
    """Applies trained weights to datasets: made by :meth:`load`, by a trainer, or by a run.

    ``data`` is in all methods what :func:`lapidary.dataset` takes, and needs no labels. Rows are in its order.
    """

    def __init__(self, native: NativePredictor) -> None:
        self._predictor = native

    @property
    def _native(self) -> NativePredictor:
        _fork.check()
        return self._predictor

    @classmethod
    @_settings.takes(_settings.DEVICES)
    def load(cls, path: str | os.PathLike[str], **settings: Unpack[_settings.DeviceSettings]) -> Predictor:
        """Opens a checkpoint, of which the best epoch is used.

        Args:
            path: a folder that :meth:`Run.save` or ``lapidary train --checkpoint`` wrote.
            settings: ``devices``, ``device_memory``, ``threads`` and so on, as in :func:`lapidary.train`.

        Raises:
            MissingFileError: if there is no checkpoint; a ``FileNotFoundError``.
            DataError: if it is damaged; a ``ValueError``.

        Example::

            labels = lapidary.Predictor.load("run").predict("unseen")
        """
        return cls(NativePredictor.load(os.fspath(path), _settings.device_settings(settings)))

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._native.model[0]

    @property
    def widths(self) -> list[int]:
        """The widths of the features, of each hidden layer, and of the logits."""
        return self._native.model[1]

    def weights(self) -> dict[str, Array]:
        """Returns the weights as new f32 arrays, by their names in PyTorch Geometric."""
        return self._native.weights()

    def logits(self, data: Any) -> Array:
        """Returns the logits, f32 ``[vertices, classes]``. The GIL is free meanwhile.

        Raises:
            DataError: if the data does not fit the model.
            OutOfMemoryError: if a device has too little memory.
        """
        return self._native.run(dataset(data)._native, None)[0]

    def predict_proba(self, data: Any) -> Array:
        """Returns the probability of each class, f32 ``[vertices, classes]``."""
        made = dataset(data)
        return self._native.probabilities(made._native, self.logits(made))

    def predict(self, data: Any) -> Array:
        """Returns the class of each vertex, i64 ``[vertices]``; with several labels, bool ``[vertices, classes]``."""
        made = dataset(data)
        logits = self.logits(made)
        return logits > 0 if self._native.has_several_labels(made._native) else logits.argmax(axis=1)

    def embed(self, data: Any) -> Array:
        """Returns the input of the last layer, f32 ``[vertices, hidden]``."""
        return self._native.run(dataset(data)._native, "hidden")[0]

    def evaluate(self, data: Any) -> Scores:
        """Returns the accuracies on the splits of ``data``."""
        return Scores(*self._native.run(dataset(data)._native, None)[1])

    def class_names(self, data: Any) -> Optional[list[str]]:
        """Returns the names of the classes, if the data of the training, or else ``data``, has names."""
        return self._native.class_names(dataset(data)._native)

    def predictions(self, data: Any) -> pandas.DataFrame:
        """Returns a table of ``vertex``, ``prediction`` and ``probability``, as ``lapidary infer --out FILE.csv`` does.

        Vertices and classes are names where there are any, otherwise numbers. With several labels per vertex, the last
        two columns hold lists. It needs pandas.
        """
        import pandas

        made = dataset(data)
        logits = self.logits(made)
        shares = self._native.probabilities(made._native, logits)
        names = self._native.class_names(made._native)
        classes: list[Any] = list(range(logits.shape[1])) if names is None else names
        if self._native.has_several_labels(made._native):
            chosen = [np.flatnonzero(row > 0) for row in logits]
            prediction = [[classes[number] for number in row] for row in chosen]
            probability: Any = [row[some].tolist() for some, row in zip(chosen, shares)]
        else:
            largest = logits.argmax(axis=1)
            prediction = [classes[number] for number in largest]
            probability = shares[np.arange(len(shares)), largest]
        table: pandas.DataFrame = pandas.DataFrame(
            {"vertex": _names(made), "prediction": prediction, "probability": probability}
        )
        order = made._native.permutation
        if order is None:
            return table
        restored: pandas.DataFrame = table.iloc[np.argsort(order)].reset_index(drop=True)
        return restored

    def __repr__(self) -> str:
        return f"<Predictor of {self.model} {'-'.join(map(str, self.widths))}>"


def _names(data: Dataset) -> Any:
    """Returns the names of the vertices; without names, their original numbers."""
    if data.names is not None:
        return data.names
    order = data._native.permutation
    return np.arange(data.vertices) if order is None else order.astype(np.int64)
