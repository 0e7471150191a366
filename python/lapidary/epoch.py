"""Records of epochs."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Scores(NamedTuple):
    """The accuracy on each split, from 0 to 1, ``None`` for an empty one; micro-F1 with several labels per vertex."""

    train: Optional[float]
    val: Optional[float]
    test: Optional[float]


class Epoch(NamedTuple):
    """The results of an epoch."""

    epoch: int
    """Its number, from 1."""
    loss: float
    """The loss before the update of the weights."""
    train_accuracy: Optional[float]
    """As in :class:`Scores`, of the updated weights; ``None`` in epochs without evaluation."""
    val_accuracy: Optional[float]
    test_accuracy: Optional[float]
    seconds: float
    """Seconds of training."""
    eval_seconds: float
    """Seconds of the evaluation."""
