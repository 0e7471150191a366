"""Trainers: one epoch at a time, weights in and out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _fork, _settings
from ._arrays import Array, as_numpy
from ._lapidary import NativeCheckpoints, NativeTrainer
from ._progress import Progress
from .data import Dataset, dataset
from .epoch import Epoch, Scores
from .errors import DataError
from .forecast import plan
from .predictor import Predictor

if TYPE_CHECKING:
    from typing_extensions import Unpack

Callback = Callable[[Epoch], Any]


class Trainer:
    """Trains a model on a dataset, one epoch at a time, on the whole graph, or on mini-batches.

    The keyword arguments are those of :func:`lapidary.train`; ``weights`` is where training begins, as in
    :meth:`set_weights`.

    Raises:
        DataError: for data or settings that do not work; a ``ValueError``.
        OutOfMemoryError: if a device has too little memory; a ``MemoryError``.
        DeviceError: if a device cannot be used; a ``RuntimeError``.

    Example::

        trainer = lapidary.Trainer("karate", epochs=50)
        while trainer.epoch < 50:
            print(trainer.step().loss)
    """

    @_settings.takes(_settings.ALL)
    def __init__(
        self,
        data: Any,
        model: str = "gcn",
        *,
        weights: Optional[Mapping[str, Any]] = None,
        **settings: Unpack[_settings.Settings],
    ) -> None:
        self.data: Dataset = dataset(data)
        """The dataset."""
        self.history: list[Epoch] = []
        """The epochs that :meth:`step` and :meth:`fit` ran."""
        self._model = model
        self._settings: Mapping[str, Any] = settings
        self._evaluated: set[int] = set()
        self._resumed_at: Optional[int] = None
        self._checkpoints: Optional[NativeCheckpoints] = None
        self._trainer = NativeTrainer(
            self.data._native,
            _settings.model_settings(model, settings),
            _settings.training_settings(settings),
            _settings.device_settings(settings),
            _settings.batch_settings(settings),
            None if weights is None else _named(weights),
        )

    @property
    def _native(self) -> NativeTrainer:
        _fork.check()
        return self._trainer

    @property
    def epoch(self) -> int:
        """The number of epochs run so far."""
        return self._native.epoch()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next epochs; it can be set."""
        return self._native.learning_rate()

    @learning_rate.setter
    def learning_rate(self, lr: float) -> None:
        self._native.set_learning_rate(lr)

    @property
    def vertex_order(self) -> str:
        """The order of the vertices in memory, which ``reorder="auto"`` chooses: ``none``, ``degree``, ``rcm`` or ``metis``.

        Predictions and tables keep the order of the dataset.
        """
        return self._native.order()

    @property
    def best_epoch(self) -> Optional[int]:
        """The epoch with the best validation accuracy so far, the first of equals; ``None`` before an evaluation."""
        best = self._native.best()
        return None if best is None else best[0]

    @property
    def best_scores(self) -> Optional[Scores]:
        """The accuracies of the best epoch; ``None`` before an evaluation."""
        best = self._native.best()
        return None if best is None else Scores(*best[1])

    @property
    def peak_device_bytes(self) -> list[int]:
        """The peak of each device's memory so far, in bytes."""
        return self._native.sizes()[3]

    def step(self) -> Epoch:
        """Runs the next epoch: forward, backward, update, and an evaluation if one is due. The GIL is free meanwhile.

        Ctrl-C in an epoch of mini-batches raises ``KeyboardInterrupt`` after a batch. The next call runs the rest of it.

        Raises:
            DivergedError: if a number is not finite; an ``ArithmeticError``.
            DeviceError: if a device fails.
        """
        number, loss, scores, seconds, eval_seconds = self._native.step(self._checkpoints)
        if scores is not None:
            self._evaluated.add(number)
        record = Epoch(number, loss, *(scores or (None, None, None)), seconds, eval_seconds)
        self.history.append(record)
        return record

    def fit(
        self,
        epochs: Optional[int] = None,
        *,
        callbacks: Iterable[Callback] = (),
        patience: Optional[int] = None,
        progress: Optional[bool] = None,
    ) -> list[Epoch]:
        """Runs epochs.

        Args:
            epochs: how many; by default those that are left of the setting ``epochs``.
            callbacks: each is called with the record of each epoch; training stops if one returns ``True``.
            patience: stop after this number of epochs without a better validation accuracy.
            progress: whether to show a bar; by default in notebooks and terminals. It needs tqdm.

        Returns:
            The records of these epochs. Ctrl-C ends training between epochs or mini-batches, with ``KeyboardInterrupt``.
        """
        self._check_patience(patience)
        _settings.check_ranges({"epochs": epochs})
        if epochs is None:
            epochs = max(self._settings["epochs"] - self.epoch, 0)
        callbacks, first = list(callbacks), len(self.history)
        with Progress(epochs, progress) as bar:
            self._native.show_batches(bar.show_batch if bar.is_shown else None)
            try:
                self._fit(epochs, callbacks, patience, bar)
            finally:
                self._native.show_batches(None)
        if self.best_epoch is None or self._settings["eval_every"] == 0:
            self.evaluate()
        return self.history[first:]

    def _fit(self, epochs: int, callbacks: list[Callback], patience: Optional[int], bar: Progress) -> None:
        for _ in range(epochs):
            if self._is_stale(patience):
                break
            record = self.step()
            bar.show(record)
            if any([_is_true(callback(record)) for callback in callbacks]):
                break

    def _check_patience(self, patience: Optional[int]) -> None:
        if patience is None:
            return
        _settings.check_ranges({"patience": patience})
        if self._settings["eval_every"] == 0:
            raise DataError(
                "option `patience` compares validation accuracies, of which option `eval_every` 0 makes none"
            )
        if self.data._native.split_sizes[1] == 0:
            raise DataError(
                f"`{self.data.name}` has no labelled vertex in its split `val`, which option `patience` needs"
            )

    def _is_stale(self, patience: Optional[int]) -> bool:
        best = self.best_epoch
        if patience is None or best is None or self.epoch - best < patience:
            return False
        was_evaluated = self.epoch == self._resumed_at and self.epoch % self._settings["eval_every"] == 0
        return was_evaluated or self.epoch in self._evaluated

    def evaluate(self) -> Scores:
        """Returns the accuracies of the current weights, which are kept if they are the best so far."""
        scores = Scores(*self._native.evaluate())
        self._evaluated.add(self.epoch)
        return scores

    def weights(self) -> dict[str, Array]:
        """Returns the current weights as new f32 arrays, by their names in PyTorch Geometric: ``convs.0.lin.weight``.

        ``{name: torch.from_numpy(w) for name, w in trainer.weights().items()}`` is the ``state_dict`` of the same model
        there.
        """
        return self._native.weights()

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Replaces the weights by arrays or tensors, such as a ``state_dict`` of PyTorch Geometric.

        Raises:
            DataError: if names or shapes are not those of :meth:`weights`, and then nothing changes.
        """
        self._native.set_weights(_named(weights))

    def predictor(self) -> Predictor:
        """Returns a predictor with the weights of the best epoch so far; without an evaluation, the current ones."""
        return Predictor(self._native.predictor())

    def plan(self) -> dict[str, Any]:
        """Returns how the run uses memory and time: :func:`lapidary.plan`, with the trainer's own tiles and peaks."""
        forecast = plan(self.data, self._model, **{**self._settings, "reorder": self.vertex_order})
        tiles, strips, planned, _ = self._native.sizes()
        if self._settings["batch"] is not None:
            return {**forecast, "peak_device_bytes": planned}
        return {**forecast, "tiles": tiles, "strips": strips, "peak_device_bytes": planned}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint into the folder ``path``: for ``lapidary infer --checkpoint`` and :meth:`Predictor.load`.

        Raises:
            FileError: if it cannot be written.
        """
        self._native.save(os.fspath(path))

    def resume(self, path: str | os.PathLike[str]) -> Optional[int]:
        """Continues from the newest checkpoint in the folder ``path``, of :meth:`save` or ``lapidary train --checkpoint``.

        The next epochs are those of the run without the interruption, bit for bit. The learning rate is that of the
        checkpoint, and can be set anew.

        Returns:
            Its epoch; ``None`` if there is no checkpoint, and then nothing changes.

        Raises:
            DataError: if it is of a run with other data or settings, or damaged.
            FileError: if it cannot be read.
        """
        resumed_at = self._native.resume(os.fspath(path))
        if resumed_at is not None:
            self._resumed_at = resumed_at
            self._evaluated.clear()
        return resumed_at

    def __repr__(self) -> str:
        return f"<Trainer of {self._model} on {self.data.name!r}: epoch {self.epoch}>"


def _is_true(answer: Any) -> bool:
    """Whether a callback returned ``True``, of Python or of numpy."""
    return isinstance(answer, (bool, np.bool_)) and bool(answer)


def _named(weights: Mapping[str, Any]) -> dict[str, Array]:
    """Converts weights to f32 arrays without gaps."""
    return {name: np.ascontiguousarray(as_numpy(weight), dtype=np.float32) for name, weight in weights.items()}
