"""Lapidary trains graph neural networks on the whole graph, exactly, within any memory.

Example::

    import lapidary

    run = lapidary.train("karate", hidden=8, epochs=50)
    print(run.test_accuracy)
    print(run.predictions())
"""

from ._lapidary import VERSION as __version__
from .data import Dataset, dataset
from .epoch import Epoch, Scores
from .errors import (
    DataError,
    DeviceError,
    DivergedError,
    FileError,
    LapidaryError,
    MissingFileError,
    OutOfMemoryError,
)
from .forecast import Shape, plan
from .predictor import Predictor
from .trainer import Trainer
from .training import Run, suggest, train

__all__ = [
    "DataError",
    "Dataset",
    "DeviceError",
    "DivergedError",
    "Epoch",
    "FileError",
    "LapidaryError",
    "MissingFileError",
    "OutOfMemoryError",
    "Predictor",
    "Run",
    "Scores",
    "Shape",
    "Trainer",
    "__version__",
    "dataset",
    "plan",
    "suggest",
    "train",
]
