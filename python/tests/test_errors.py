"""Every kind of wrong input, and its exception."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Example, short_run

import lapidary

PATH = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])

WRONG = {
    "no graph": ((42,), {}, "cannot be made of int"),
    "edges as rows": ((PATH.T,), {}, r"\[4, 2\], expected \[2, E\]"),
    "pairs": ((np.zeros((5, 2), dtype=int),), {}, "transpose it"),
    "fractions": ((PATH + 0.5,), {}, "holds float64, expected whole numbers"),
    "negative id": ((PATH - 1,), {}, "element 0 is -1"),
    "large id": ((PATH + 2**32,), {}, "expected at most"),
    "id beyond": ((PATH,), {"vertices": 2}, "vertex 2, but there are 2 vertices"),
    "no vertices": ((np.zeros((2, 0), dtype=int),), {}, "without vertices"),
    "offsets": (((np.array([0, 5]), np.array([0])),), {}, "`indptr` ends at 5 and there are 1 indices; give sources and targets as one array"),
    "offsets fall": (((np.array([0, 2, 1]), np.array([0])),), {}, "offsets never fall"),
    "offsets of another type": (((np.array([0.0, 1.0]), np.array([0])),), {}, "`indptr` is float64"),
    "ids of two dimensions": (((np.array([0, 1]), np.zeros((1, 1), dtype=int)),), {}, "expected one dimension"),
    "negative i32": (((np.array([0, 1]), np.array([-1], dtype=np.int32)),), {}, "element 0 is -1"),
    "unsorted": (((np.array([0, 0, 2]), np.array([1, 0])),), {}, "sources ascend within a row"),
    "source beyond": (((np.array([0, 1]), np.array([7])),), {}, "is 7, but there are 1 vertices"),
    "undirected csr": (
        ((np.array([0, 0]), np.array([], dtype=int)),),
        {"undirected": True},
        "`undirected` is for lists",
    ),
    "feature rows": ((PATH,), {"features": np.ones((4, 2)), "vertices": 3}, r"\[4, 2\], expected 3 rows"),
    "feature dimensions": ((PATH,), {"features": np.ones(3)}, r"expected \[vertices, width\]"),
    "feature type": ((PATH,), {"features": np.ones((3, 2), dtype=complex)}, "expected real numbers"),
    "feature objects": (
        (PATH,),
        {"features": np.array([["a"], ["b"], ["c"]], dtype=object)},
        "objects that are no numbers",
    ),
    "no columns": ((PATH,), {"features": np.ones((3, 0))}, "`features` has shape"),
    "infinite": ((PATH,), {"features": np.full((3, 1), 1e300)}, "must be finite"),
    "label rows": ((PATH,), {"labels": [0, 1], "vertices": 3}, r"\[2\], expected 3 rows"),
    "label -2": ((PATH,), {"labels": [0, 1, -2]}, "label of vertex 2 is -2"),
    "half a label": ((PATH,), {"labels": [0, 1, 0.5]}, "label of vertex 2 is 0.5"),
    "label beyond": ((PATH,), {"labels": [0, 1, 5], "classes": 2}, "label of vertex 2 is 5"),
    "several labels": ((PATH,), {"labels": np.full((3, 2), 3)}, "has to be 0 or 1"),
    "label dimensions": ((PATH,), {"labels": np.zeros((3, 2, 2))}, r"expected \[vertices\]"),
    "mask length": ((PATH,), {"train": np.ones(5, dtype=bool), "vertices": 3}, r"mask `train` has shape \[5\]"),
    "mask columns": ((PATH,), {"train": np.ones((3, 10), dtype=bool), "vertices": 3}, "choose one column"),
    "member beyond": ((PATH,), {"train": [9], "vertices": 3}, "9"),
    "two splits": ((PATH,), {"train": [0], "val": [0], "vertices": 3}, "split"),
    "weights": ((PATH,), {"edge_weights": [1.0]}, "1 edge weights, but 4 edges"),
    "weight type": ((PATH,), {"edge_weights": ["a", "b", "c", "d"]}, "expected real numbers"),
    "weight nan": ((PATH,), {"edge_weights": [1.0, np.nan, 1.0, 1.0]}, "every weight must be finite"),
    "norm": ((PATH,), {"feature_norm": "column"}, "feature_norm"),
    "whole already": (("karate",), {"labels": [1]}, "takes no `labels`"),
    "graph ids": ((PATH,), {"graph_ids": [1, 0, 0]}, "graph_ids"),
    "half a vertex": ((PATH,), {"vertices": 5.5}, "`vertices` cannot be 5.5: it is a whole number"),
    "half a class": ((PATH,), {"labels": [0, 1, 0], "classes": 2.5}, "`classes` cannot be 2.5: it is a whole number"),
    "vertices of a csr": (
        ((np.array([0, 1, 2]), np.array([1, 0])),),
        {"vertices": 3},
        "`vertices` is 3, but the graph has 2",
    ),
    "sources and targets": (((np.array([0, 1, 2]), np.array([1, 2, 0])),), {}, r"np.stack\(\[u, v\]\)"),
    "ids of one byte": ((PATH,), {"train": np.array([0, 2], dtype=np.uint8)}, "convert ids to int64"),
    "mask of numbers": ((PATH,), {"train": np.array([1, 0, 1])}, "convert a mask to bool"),
    "dict without names": ((PATH,), {"labels": {0: 1, 1: 0, 2: 1}}, "`labels` is a dict, but the vertices have no names"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data(case: str) -> None:
    args, options, message = WRONG[case]
    with pytest.raises(ValueError, match=message) as raised:
        lapidary.dataset(*args, **options)
    assert isinstance(raised.value, lapidary.DataError) and isinstance(raised.value, lapidary.LapidaryError)


SETTINGS = [
    ({"model": "gnc"}, "gnc"),
    ({"layers": 0}, "from 1 to 10000"),
    ({"layers": 1.5}, "whole number"),
    ({"hidden": 0}, "`hidden` cannot be 0"),
    ({"dropout": 1.5}, "dropout"),
    ({"weighted_mean": "count"}, "`weighted_mean` is for models that average over neighbours, not for gcn"),
    ({"heads": 2}, "`heads` is for gat and gatv2, not for gcn"),
    ({"model": "gat", "heads": 3, "hidden": 8}, "heads"),
    ({"lr": -1.0}, "lr"),
    ({"optimizer": "lion"}, "there are adam, adamw, sgd"),
    ({"momentum": 0.9}, "only option `optimizer` sgd"),
    ({"activation": "gelu"}, "there are relu, elu"),
    ({"dtype": "f16"}, "there are f32, bf16"),
    ({"norm": "max"}, "max"),
    ({"decay_layers": "last"}, "there are all, first"),
    ({"edge_weights": "maybe"}, "there are use, ignore"),
    ({"weighted_mean": "x"}, "there are sum, count"),
    ({"memory": "fifo"}, "there are optimal, roc, lru, none"),
    ({"matmul": "fp8"}, "there are auto, f32, bf16, tf32, 3xtf32"),
    ({"recompute": "often"}, "there are auto, never, always"),
    ({"strips": 0}, "from 1 to 64"),
    ({"threads": 0}, "from 1 to 1024"),
    ({"seed": -1}, "`seed` cannot be -1"),
    ({"feature_norm": "column"}, "column"),
    ({"devices": "tpu"}, "tpu"),
    ({"device_memory": "much"}, "`device_memory` cannot be `much`"),
    ({"partition": "nowhere.json"}, "nowhere.json"),
    ({"passes": "magic"}, "magic"),
    ({"patience": 0}, "`patience` cannot be 0: it is a number from 1"),
    ({"patience": 2.5}, "`patience` cannot be 2.5: it is a whole number"),
    ({"patience": 3, "eval_every": 0}, "`eval_every` 0 makes none"),
    ({"weights": {}}, "needs the weight"),
    ({"fanout": [3, 2]}, "`fanout` is for mini-batches, and needs option `batch`"),
    ({"batch": 2}, "`batch` needs option `fanout`"),
    ({"batch": 0, "fanout": [3, 2]}, "`batch` cannot be 0"),
    ({"batch": 2, "fanout": [3]}, "layer"),
    ({"batch": 2, "fanout": "few"}, "`fanout` cannot be `few`"),
    ({"batch": 2, "fanout": [3, 2], "sampler": "best"}, "there are neighbor, subgraph, fastgcn, ladies"),
    ({"batch": 2, "fanout": [3, 2], "sampler": "ladies", "replace": True}, "only neighbor has option `replace`"),
    ({"batch": 2, "fanout": [3, 2], "by_weight": True}, "edge weights"),
    ({"batch": 2, "fanout": [3, 2], "eval_fanout": [3]}, "`eval_fanout`"),
    ({"batch": 2, "fanout": [3, 2], "seeds": "mine"}, "`seeds` cannot be `mine`"),
    ({"batch": 2, "fanout": [3, 2], "look_ahead": 257}, "from 0 to 256"),
    ({"batch": 2, "fanout": [3, 2], "feature_cache": "half"}, "`feature_cache` cannot be `half`"),
    ({"batch": 2, "fanout": [3, 2], "device_cache": "half"}, "`device_cache` cannot be `half`"),
    ({"fanout": np.array([3, 2])}, "`fanout` is for mini-batches"),
    ({"batch": 2, "fanout": [3, 2], "replace": True, "by_weight": True}, "without replacement"),
    ({"batch": 2, "fanout": [3, 2], "strips": 2}, "`strips` does nothing on mini-batches"),
    ({"batch": 2, "fanout": [3, 2], "recompute": "always"}, "`recompute` does nothing on mini-batches"),
    ({"resume": True}, "`resume` is for checkpoints, and needs option `out`"),
    ({"keep": 2}, "`keep` is for checkpoints, and needs option `out`"),
    ({"checkpoint_every": 5}, "`checkpoint_every` is for checkpoints, and needs option `out`"),
    ({"reorder": "rmc"}, "`reorder` cannot be `rmc`: write none, degree, rcm, metis or auto"),
    ({"reorder": "rcm", "batch": 2, "fanout": [3, 2], "embedding": 4}, "option `embedding` learns a row for each vertex"),
]


@pytest.mark.parametrize("settings, message", SETTINGS)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        if "weights" in settings:
            lapidary.Trainer("karate", **settings)
        short_run("karate", **settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"keep": -1}, "`keep` cannot be -1"),
        ({"checkpoint_every": "10 parsecs"}, "`checkpoint_every` cannot be `10 parsecs`: write a number of epochs"),
        ({"checkpoint_every": -5}, "`checkpoint_every` cannot be `-5`"),
        ({"checkpoint_every_batches": 3}, "`checkpoint_every_batches` is for mini-batches"),
        ({"checkpoint_every_batches": 0, "batch": 2, "fanout": [3, 2]}, "`checkpoint_every_batches` cannot be 0"),
    ],
)
def test_wrong_settings_of_checkpoints(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        short_run("karate", out=tmp_path / "run", **settings)


def test_only_a_dataset_is_ordered_and_drawn_from() -> None:
    shape = lapidary.Shape(vertices=100, edges=1_000, features=10, classes=2)
    with pytest.raises(ValueError, match="`reorder` cannot be `rcm`: only a dataset is ordered"):
        lapidary.plan(shape, reorder="rcm")
    with pytest.raises(ValueError, match="so give a dataset, not a shape"):
        lapidary.plan(shape, batch=10, fanout=[3, 2])


def test_unknown_settings() -> None:
    with pytest.raises(TypeError, match=r"no argument `hiden`; there are .*hidden"):
        lapidary.train("karate", hiden=3)


def test_training_needs_labels_a_split_and_features(example: Example) -> None:
    csr = (example.indptr, example.indices)
    lacking = {"labels": "labels", "train": "train", "features": "features"}
    for left_out, message in lacking.items():
        given = {name: value for name, value in example.given.items() if name != left_out}
        with pytest.raises(ValueError, match=message):
            short_run(lapidary.dataset(csr, **given))
    given = {name: value for name, value in example.given.items() if name != "val"}
    with pytest.raises(ValueError, match="split `val`"):
        short_run(lapidary.dataset(csr, **given), patience=2)


def test_too_little_memory(example: Example) -> None:
    data = lapidary.dataset((example.indptr, example.indices), **example.given)
    with pytest.raises(lapidary.OutOfMemoryError, match="of memory, but this needs") as raised:
        short_run(data, devices="sim:1", device_memory=100)
    assert isinstance(raised.value, MemoryError)
    with pytest.raises(MemoryError, match="but this needs"):
        lapidary.plan(data, device_memory=100)
    with pytest.raises(MemoryError, match="has 100 bytes of memory, but this needs"):
        lapidary.plan(data, device_memory=100, batch=7, fanout=[3, 2])


def test_devices_that_do_not_exist() -> None:
    with pytest.raises(lapidary.LapidaryError) as raised:
        short_run("karate", devices="cuda:63")
    assert isinstance(raised.value, RuntimeError)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere") as raised:
        lapidary.dataset(tmp_path / "nowhere")
    assert isinstance(raised.value, lapidary.LapidaryError) and isinstance(raised.value, OSError)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        lapidary.Predictor.load(tmp_path)


def test_divergence() -> None:
    with pytest.raises(lapidary.DivergedError) as raised:
        short_run("karate", lr=1e30, epochs=20)
    assert isinstance(raised.value, ArithmeticError)


def test_other_features_at_prediction(example: Example) -> None:
    run = short_run("karate")
    with pytest.raises(ValueError):
        run.predict(lapidary.dataset((example.indptr, example.indices), features=example.features))


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    short_run("karate", out=tmp_path / "run")
    with pytest.raises(OSError, match="holds the checkpoints of a run"):
        short_run("karate", out=tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write"):
        short_run("karate", out=tmp_path / "file")


def test_unknown_splits() -> None:
    with pytest.raises(ValueError, match="no split `dev`"):
        lapidary.dataset("karate").split("dev")


def test_pyg_without_edges() -> None:
    with pytest.raises(ValueError, match="ToSparseTensor"):
        lapidary.dataset(SimpleNamespace(edge_index=None, num_nodes=3))


def test_sparse_tensors() -> None:
    tensor = SimpleNamespace(is_sparse=True, detach=None, shape=(3, 2))
    with pytest.raises(ValueError, match="sparse tensors"):
        lapidary.dataset(PATH, features=tensor)


def test_matrices_that_are_no_graph() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match="is square"):
        lapidary.dataset(sparse.csr_matrix((2, 3)))
    with pytest.raises(ValueError, match=r"\[2, 3\], expected 3 rows"):
        lapidary.dataset(PATH, vertices=3, features=sparse.csr_matrix((2, 3)))
