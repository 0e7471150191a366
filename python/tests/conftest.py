"""What the tests share: graphs, and where real data and the command are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import lapidary


class Example(NamedTuple):
    """A graph of two groups with features that weakly show the group."""

    indptr: np.ndarray[Any, Any]
    indices: np.ndarray[Any, Any]
    edges: np.ndarray[Any, Any]
    features: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    train: np.ndarray[Any, Any]
    val: np.ndarray[Any, Any]
    test: np.ndarray[Any, Any]

    @property
    def given(self) -> dict[str, Any]:
        """Everything beside the edges, as arguments of ``lapidary.dataset``."""
        return {name: getattr(self, name) for name in ("features", "labels", "train", "val", "test")}


def make_example(vertices: int = 60, degree: int = 4, width: int = 6, seed: int = 3) -> Example:
    """Returns an undirected graph: both directions of each edge, none twice."""
    random = np.random.default_rng(seed)
    labels = np.arange(vertices) % 2
    mates = [np.flatnonzero(labels == group) for group in (0, 1)]
    pairs = {
        (min(v, u), max(v, u))
        for v in range(vertices)
        for u in random.choice(mates[labels[v]], degree).tolist()
        if u != v
    }
    ones = np.array(sorted(pairs))
    both = np.concatenate([ones, ones[:, ::-1]])
    both = both[np.lexsort((both[:, 0], both[:, 1]))]
    indptr = np.zeros(vertices + 1, dtype=np.int64)
    np.cumsum(np.bincount(both[:, 1], minlength=vertices), out=indptr[1:])
    features = random.normal(size=(vertices, width)).astype(np.float32)
    features[:, 0] += np.where(labels == 1, 1.0, -1.0)
    ids = random.permutation(vertices)
    return Example(
        indptr, both[:, 0].astype(np.uint32), both.T.copy(), features, labels, ids[:20], ids[20:35], ids[35:]
    )


@pytest.fixture
def example() -> Example:
    """A fresh graph, whose arrays nothing else has borrowed."""
    return make_example()


@pytest.fixture(scope="session")
def command() -> str:
    """The command ``lapidary``, which LAPIDARY_COMMAND names."""
    path = os.environ.get("LAPIDARY_COMMAND")
    if not path:
        pytest.skip("SKIPPED: LAPIDARY_COMMAND does not name the command")
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real datasets, in the folder that LAPIDARY_SHARED names."""
    folder = os.environ.get("LAPIDARY_SHARED")
    if not folder or not (Path(folder) / "data").is_dir():
        pytest.skip("SKIPPED: LAPIDARY_SHARED does not name a folder with real datasets")
    return Path(folder) / "data"


def same_graph(one: lapidary.Dataset, other: lapidary.Dataset, **settings: Any) -> bool:
    """Whether two datasets train with the same bits."""
    losses = [[record["loss"] for record in short_run(data, **settings).history] for data in (one, other)]
    return losses[0] == losses[1]


def short_run(data: Any, **settings: Any) -> lapidary.Run:
    """Trains for a few epochs."""
    return lapidary.train(data, **{"hidden": 4, "epochs": 3, "progress": False, **settings})
