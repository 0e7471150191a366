"""Training in one call."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _lapidary, _settings
from ._arrays import Array
from .data import dataset
from .epoch import Scores
from .errors import DataError, FileError
from .predictor import Predictor
from .trainer import Callback, Trainer

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack


class Run:
    """What came of a training: accuracies, and predictions with the weights of the best epoch.

    Without ``data``, predictions are for the graph that was trained on.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        """The trainer, which can go on."""
        self.predictor: Predictor = trainer.predictor()
        """The predictor with the weights of the best epoch."""
        self.best_epoch: Optional[int] = trainer.best_epoch
        """The epoch with the best validation accuracy; without a split `val`, the last one."""
        self.scores: Scores = trainer.best_scores or Scores(None, None, None)
        """The accuracies of the best epoch."""
        self.history: list[dict[str, Any]] = [record._asdict() for record in trainer.history]
        """A dict per epoch: ``epoch``, ``loss``, ``val_accuracy``, ``seconds`` and so on, as in :class:`Epoch`."""

    @property
    def train_accuracy(self) -> Optional[float]:
        """The accuracy on the training split in the best epoch, from 0 to 1."""
        return self.scores.train

    @property
    def val_accuracy(self) -> Optional[float]:
        """The accuracy on the validation split in the best epoch; ``None`` without that split."""
        return self.scores.val

    @property
    def test_accuracy(self) -> Optional[float]:
        """The accuracy on the test split in the best epoch; ``None`` without that split."""
        return self.scores.test

    def predict(self, data: Any = None) -> Array:
        """Returns the class of each vertex: see :meth:`Predictor.predict`."""
        return self.predictor.predict(self._data(data))

    def predict_proba(self, data: Any = None) -> Array:
        """Returns the probability of each class, f32 ``[vertices, classes]``."""
        return self.predictor.predict_proba(self._data(data))

    def embed(self, data: Any = None) -> Array:
        """Returns the input of the last layer, f32 ``[vertices, hidden]``."""
        return self.predictor.embed(self._data(data))

    def predictions(self, data: Any = None) -> pandas.DataFrame:
        """Returns a table of ``vertex``, ``prediction`` and ``probability``: see :meth:`Predictor.predictions`."""
        return self.predictor.predictions(self._data(data))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint: see :meth:`Trainer.save`."""
        self.trainer.save(path)

    def _data(self, data: Any) -> Any:
        return self.trainer.data if data is None else data

    def __repr__(self) -> str:
        scores = [f"{name} {100 * score:.2f} %" for name, score in self.scores._asdict().items() if score is not None]
        return f"<Run: best epoch {self.best_epoch} of {self.trainer.epoch}, {', '.join(scores) or 'no scores'}>"


@_settings.takes(_settings.MODEL)
def suggest(data: Any, model: str = "gcn", **settings: Unpack[_settings.Settings]) -> dict[str, Any]:
    """Returns settings for :func:`train` that suit the data. They are those that the command ``lapidary train`` chooses.

    Returns:
        ``hidden``, ``layer_norm``, ``lr``, ``feature_norm``, ``epochs`` and ``patience``.

    Raises:
        DataError: for data or settings that do not work.

    Example::

        run = lapidary.train(data, "gin", **lapidary.suggest(data, "gin"))
    """
    return _lapidary.suggest(dataset(data)._native, _settings.model_settings(model, settings))


@_settings.takes(_settings.ALL)
def train(
    data: Any,
    model: str = "gcn",
    *,
    patience: Optional[int] = None,
    out: Optional[str | os.PathLike[str]] = None,
    resume: bool = False,
    checkpoint_every: Union[int, str] = 50,
    checkpoint_every_batches: Optional[int] = None,
    keep: int = 5,
    progress: Optional[bool] = None,
    callbacks: Iterable[Callback] = (),
    **settings: Unpack[_settings.Settings],
) -> Run:
    """Trains a model on the whole graph, or with ``batch`` on mini-batches. Names of settings are those of
    ``lapidary train``, and defaults those of its option ``--defaults plain``; :func:`suggest` returns settings that suit
    the data.

    Args:
        data: what :func:`lapidary.dataset` takes; with labels and a training split.
        model: ``gcn``, ``gin``, ``commnet``, ``resgcn``, ``sage``, ``graphconv``, ``gat`` or ``gatv2``.
        patience: stop after this number of epochs without a better validation accuracy.
        out: a folder for checkpoints: during training, at its end, and after Ctrl-C.
        resume: continue from the newest checkpoint in ``out``, if there is one, up to ``epochs`` in all. ``epochs`` and
            ``lr`` may be new; other settings have to be those of the checkpoint.
        checkpoint_every: write a checkpoint after every so many epochs, or in this interval of time, such as ``"10m"``; 0:
            only at the end. It is written beside training. If that fails, a ``UserWarning`` says so, and training goes on.
        checkpoint_every_batches: also write one after every so many mini-batches, within epochs.
        keep: how many of the newest checkpoints to keep, beside the best weights; 0 keeps all.
        progress: whether to show a bar; by default in notebooks and terminals. It needs tqdm.
        callbacks: each is called with the record of each epoch; training stops if one returns ``True``.
        settings: ``hidden``, ``layers``, ``dropout``, ``epochs``, ``lr``, ``weight_decay``, ``optimizer`` (``adam``,
            ``adamw``, ``sgd``), ``seed``, ``devices`` (``auto``, ``cpu``, ``cpu:N``, ``cuda:0,1``), ``device_memory``
            (bytes, or a text such as ``8GiB``), ``class_weights`` (``balanced``, or one number for each class),
            ``feature_norm`` (``row``, ``none``), ``dtype`` (``f32``, ``bf16``), ``reorder`` (``auto``, ``rcm``, ``metis``,
            ``degree``: the order of the vertices in memory, so that gathers use caches; results keep the dataset's order),
            ``batch`` and ``fanout`` (1024 and ``[15, 10]``: mini-batches around so many vertices, and edges to draw of each,
            layer by layer), and others, which ``lapidary help train`` describes.

    Raises:
        DataError: for data or settings that do not work; a ``ValueError``.
        OutOfMemoryError: if a device has too little memory; a ``MemoryError``.
        DivergedError: if numbers become infinite; an ``ArithmeticError``.
        KeyboardInterrupt: after Ctrl-C, between epochs or mini-batches.

    Example::

        run = lapidary.train("karate", hidden=8, epochs=50)
        print(run.test_accuracy, run.predict())
    """
    kept = {
        "resume": resume,
        "checkpoint_every": checkpoint_every,
        "checkpoint_every_batches": checkpoint_every_batches,
        "keep": keep,
    }
    _check_checkpoints(out, settings["batch"], kept)
    if out is None:
        trainer = Trainer(data, model, **settings)
        trainer.fit(callbacks=callbacks, patience=patience, progress=progress)
        return Run(trainer)
    folder = os.fspath(out)
    with _in_folder(folder, resume):
        checkpoints = _lapidary.NativeCheckpoints(
            folder, str(checkpoint_every), checkpoint_every_batches, keep, settings["epochs"]
        )
        if resume and settings["reorder"] == "auto":
            # The order was chosen already.
            settings["reorder"] = _lapidary.recorded_order(folder) or "auto"
        trainer = Trainer(data, model, **settings)
        if resume and trainer.resume(folder) is not None:
            trainer._native.ask_learning_rate(settings["lr"])
        with _writing(checkpoints, trainer):
            trainer.fit(callbacks=callbacks, patience=patience, progress=progress)
    return Run(trainer)


def _check_checkpoints(out: Optional[str | os.PathLike[str]], batch: Optional[int], kept: dict[str, Any]) -> None:
    """Checks the settings of checkpoints. Without a folder, all of them have to be the defaults."""
    defaults = inspect.signature(train).parameters
    useless = next((name for name, value in kept.items() if value != defaults[name].default), None)
    if out is None and useless is not None:
        raise DataError(f"option `{useless}` is for checkpoints, and needs option `out`: the folder to keep them in")
    _settings.check_ranges(kept)
    if batch is None and kept["checkpoint_every_batches"] is not None:
        raise DataError("option `checkpoint_every_batches` is for mini-batches, and needs option `batch`")


@contextlib.contextmanager
def _writing(checkpoints: _lapidary.NativeCheckpoints, trainer: Trainer) -> Iterator[None]:
    """Writes checkpoints while the trainer runs, and one at the end or after Ctrl-C, if something has changed."""
    started_at = trainer._native.position(), trainer.best_epoch
    trainer._checkpoints = checkpoints
    saves = False
    try:
        yield
        saves = (trainer._native.position(), trainer.best_epoch) != started_at
    except KeyboardInterrupt:
        saves = trainer._native.position() > started_at[0]
        raise
    finally:
        trainer._checkpoints = None
        checkpoints.finish(trainer._native if saves else None)


@contextlib.contextmanager
def _in_folder(folder: str, resume: bool) -> Iterator[None]:
    """Checks the folder of checkpoints, and keeps other runs out of it."""
    _check_folder(Path(folder), resume)
    lock = _lapidary.NativeRunLock(folder)
    try:
        yield
    finally:
        lock.release()


def _check_folder(folder: Path, resume: bool) -> None:
    """Refuses a folder with checkpoints, unless the run resumes, and one that cannot be written, before anything is
    trained."""
    if not resume and ((folder / "best").exists() or any(folder.glob("epoch-*")) or any(folder.glob("batch-*"))):
        raise FileError(f"{folder} holds the checkpoints of a run; continue it with `resume=True`, or name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe-python"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"cannot write into the checkpoint folder {folder}: {error}") from error
