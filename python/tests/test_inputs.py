"""Every kind of graph makes the same dataset."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Example, same_graph, short_run

import lapidary


def from_csr(example: Example, **more: Any) -> lapidary.Dataset:
    return lapidary.dataset((example.indptr, example.indices), **{**example.given, **more})


class Tensor:
    """What the package uses of a tensor of PyTorch."""

    is_sparse = False

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.dtype, self.shape = self.array.dtype, self.array.shape

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array if dtype is None else self.array.astype(dtype)

    def __len__(self) -> int:
        return len(self.array)


def mask(ids: Any, vertices: int) -> Any:
    found = np.zeros(vertices, dtype=bool)
    found[ids] = True
    return found


def test_csr_has_its_sizes(example: Example) -> None:
    data = from_csr(example, name="two groups")
    assert (data.vertices, data.edges, data.feature_width, data.classes) == (60, len(example.indices), 6, 2)
    assert (data.name, data.directed, data.names, data.class_names) == ("two groups", False, None, None)
    assert (data.labels == example.labels).all()
    assert (data.split("val") == np.sort(example.val)).all()
    assert "20 train / 15 val / 25 test" in repr(data)


def test_edges_in_any_order(example: Example) -> None:
    shuffled = example.edges[:, np.random.default_rng(0).permutation(example.edges.shape[1])]
    for edges in (shuffled, shuffled.tolist(), shuffled.astype(np.int32), Tensor(shuffled)):
        assert same_graph(from_csr(example), lapidary.dataset(edges, **example.given))


def test_undirected_adds_the_reverse_but_of_loops(example: Example) -> None:
    once = example.edges[:, example.edges[0] < example.edges[1]]
    data = lapidary.dataset(once, undirected=True, **example.given)
    assert same_graph(from_csr(example), data)
    assert lapidary.dataset([[0, 1], [1, 1]], undirected=True).edges == 3


def test_edges_go_from_source_to_target() -> None:
    # 0 -> 1 -> 2: only the row of 0 has no in-edge, so its hidden row depends on itself alone.
    from_edges = lapidary.dataset([[0, 1], [1, 2]], features=np.eye(3))
    from_rows = lapidary.dataset((np.array([0, 0, 1, 2]), np.array([0, 1])), features=np.eye(3))
    assert from_edges.directed and from_rows.directed
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.coo_matrix((np.ones(2), ([0, 1], [1, 2])), shape=(3, 3))
    from_matrix = lapidary.dataset(matrix, features=np.eye(3))
    table = pytest.importorskip("pandas").DataFrame({"source": [0, 1], "target": [1, 2]})
    from_table = lapidary.dataset(table, features=np.eye(3))
    wanted = {"labels": [0, 1, 0], "train": [0, 1, 2]}
    for other in (from_rows, from_matrix, from_table):
        assert other.edges == 2
    made = [
        lapidary.dataset(graph, features=np.eye(3), **wanted)
        for graph in (np.array([[0, 1], [1, 2]]), (np.array([0, 0, 1, 2]), np.array([0, 1])), matrix, table)
    ]
    losses = {tuple(record["loss"] for record in short_run(data).history) for data in made}
    backwards = lapidary.dataset([[1, 2], [0, 1]], features=np.eye(3), **wanted)
    assert len(losses) == 1
    assert tuple(record["loss"] for record in short_run(backwards).history) not in losses


def test_masks_and_ids_are_the_same(example: Example) -> None:
    for kind in (bool, np.uint8):
        masks = {split: mask(getattr(example, split), 60).astype(kind) for split in ("train", "val", "test")}
        assert same_graph(from_csr(example), from_csr(example, **masks))
    tensors = {split: Tensor(getattr(example, split)) for split in ("train", "val", "test")}
    assert same_graph(from_csr(example), from_csr(example, **tensors))


def test_features_of_other_types_are_converted(example: Example) -> None:
    for dtype in (np.float64, np.float16):
        rounded = example.features.astype(dtype)
        wanted = from_csr(example, features=rounded.astype(np.float32))
        assert same_graph(wanted, from_csr(example, features=rounded))
    columns = np.asfortranarray(example.features)
    assert same_graph(from_csr(example), from_csr(example, features=columns))
    assert same_graph(from_csr(example), from_csr(example, features=example.features.tolist()))


def test_sparse_features(example: Example) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    cut = np.where(example.features > 0.5, example.features, 0).astype(np.float32)
    data = [from_csr(example, features=kind(cut)) for kind in (sparse.csr_matrix, sparse.coo_matrix, sparse.csc_array)]
    assert all(same_graph(data[0], other) for other in data[1:])
    assert data[0].feature_width == 6


def test_labels_of_all_types(example: Example) -> None:
    unlabelled = np.where(example.labels == 1, 1.0, 0.0)
    unlabelled[example.test] = np.nan
    assert (from_csr(example, labels=unlabelled).labels == np.where(np.isnan(unlabelled), -1, unlabelled)).all()
    column = example.labels.reshape(-1, 1)
    assert same_graph(from_csr(example), from_csr(example, labels=column))
    texts = ["cat" if label == 0 else "dog" for label in example.labels]
    texts[example.test[0]] = None
    named = from_csr(example, labels=np.array(texts, dtype=object))
    assert (named.class_names, named.labels[example.test[0]]) == (["cat", "dog"], -1)
    assert same_graph(from_csr(example), named)


def test_several_labels_per_vertex(example: Example) -> None:
    several = np.stack([example.labels, 1 - example.labels, np.ones(60, dtype=int)], axis=1)
    data = from_csr(example, labels=several)
    assert (data.classes, data.labels) == (3, None)
    run = short_run(data, epochs=60, hidden=8, dropout=0.0)
    predicted = run.predict()
    assert (predicted.shape, predicted.dtype) == ((60, 3), bool)
    assert run.predict_proba().min() >= 0 and run.test_accuracy > 0.9
    table = pytest.importorskip("pandas") and run.predictions()
    assert table["prediction"][0] == np.flatnonzero(predicted[0]).tolist()
    assert len(table["probability"][0]) == len(table["prediction"][0])


def test_edge_weights_follow_their_edges(example: Example) -> None:
    weights = np.random.default_rng(1).random(example.edges.shape[1]).astype(np.float32)
    sorted_ones = from_csr(example, edge_weights=weights)
    order = np.random.default_rng(2).permutation(len(weights))
    shuffled = lapidary.dataset(example.edges[:, order], edge_weights=weights[order], **example.given)
    assert same_graph(sorted_ones, shuffled)
    assert not same_graph(sorted_ones, from_csr(example))
    assert same_graph(from_csr(example), from_csr(example), edge_weights="ignore")
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.coo_matrix((weights, (example.edges[0], example.edges[1])), shape=(60, 60))
    for kind in (matrix, matrix.tocsr(), matrix.tocsc()):
        assert same_graph(sorted_ones, lapidary.dataset(kind, **example.given))


def test_weights_beside_a_sparse_matrix_are_refused(example: Example) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix((np.ones(example.edges.shape[1]), tuple(example.edges)), shape=(60, 60))
    with pytest.raises(ValueError, match="the values of a sparse matrix are its weights"):
        lapidary.dataset(matrix, edge_weights=np.ones(matrix.nnz))


def test_scipy_without_weights(example: Example) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    edges = (example.edges[0], example.edges[1])
    for values in (np.ones(len(edges[0])), np.ones(len(edges[0]), dtype=bool)):
        matrix = sparse.coo_matrix((values, edges), shape=(60, 60))
        assert same_graph(from_csr(example), lapidary.dataset(matrix, **example.given))
    # A stored 0 is no edge, and the matrix stays as it was.
    stored = sparse.csc_matrix(([1.0, 0.0], ([0, 1], [1, 0])), shape=(2, 2))
    assert (lapidary.dataset(stored).edges, stored.nnz) == (1, 2)


def test_bags_of_words_are_kept_sparse(example: Example) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    words = (np.random.default_rng(0).random((60, 50)) < 0.08).astype(np.float32)
    words[:, 0] = example.labels
    dense, found = (from_csr(example, features=words, sparse=kind) for kind in (False, None))
    assert (dense.has_sparse_features, found.has_sparse_features) == (False, True)
    assert dense._addresses()["features"] == words.ctypes.data and "50 sparse features" in repr(found)
    assert same_graph(found, from_csr(example, features=sparse.csr_matrix(words)))
    assert same_graph(dense, from_csr(example, features=sparse.csc_matrix(words), sparse=False))
    # A model that was trained on one kind reads the other.
    predictor = short_run(found).predictor
    np.testing.assert_allclose(predictor.logits(dense), predictor.logits(found), rtol=1e-4, atol=1e-6)
    # At most a tenth of the numbers, of any type; and all of them may be 0.
    share = np.zeros((60, 10))
    share[:, 3] = 1
    for kind in (np.float64, np.int32, bool):
        assert from_csr(example, features=share.astype(kind)).has_sparse_features
    share[0, 0] = 1
    assert not from_csr(example, features=share).has_sparse_features
    assert from_csr(example, features=share, sparse=True).has_sparse_features
    assert short_run(from_csr(example, features=np.zeros((60, 4)))).history[-1]["loss"] > 0
    with pytest.raises(ValueError, match="`sparse` cannot be 'yes'"):
        from_csr(example, features=share, sparse="yes")
    share[:, 0] = np.nan
    with pytest.raises(ValueError, match="features"):
        from_csr(example, features=share, sparse=True)


class FakeData(SimpleNamespace):
    """What the package uses of PyG's Data."""


def pyg_of(example: Example, kind: Any, tensor: Any) -> Any:
    masks = {f"{split}_mask": tensor(mask(getattr(example, split), 60)) for split in ("train", "val", "test")}
    x, y = tensor(example.features), tensor(example.labels)
    return kind(x=x, y=y, edge_index=tensor(example.edges), num_nodes=60, **masks)


def test_pyg_by_its_attributes(example: Example) -> None:
    assert same_graph(from_csr(example), lapidary.dataset(pyg_of(example, FakeData, Tensor)))
    weighted = pyg_of(example, FakeData, Tensor)
    weighted.edge_weight = Tensor(np.linspace(0.5, 1.5, example.edges.shape[1]))
    assert not same_graph(from_csr(example), lapidary.dataset(weighted))
    other_split = lapidary.dataset(pyg_of(example, FakeData, Tensor), train=[0, 1], val=[2, 3], test=[4])
    assert other_split.split("train").tolist() == [0, 1]


def test_real_pyg(example: Example) -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data").Data
    graph = pyg_of(example, data, torch.as_tensor)
    made = lapidary.dataset(graph)
    assert same_graph(from_csr(example), made)
    assert made._addresses()["features"] == graph.x.data_ptr()


def dgl_of(example: Example) -> Any:
    ndata = {f"{split}_mask": Tensor(mask(getattr(example, split), 60)) for split in ("train", "val", "test")}
    ndata |= {"feat": Tensor(example.features), "label": Tensor(example.labels)}
    ends = (Tensor(example.edges[0]), Tensor(example.edges[1]))
    return SimpleNamespace(ndata=ndata, edata={}, edges=lambda: ends, num_nodes=lambda: 60, is_homogeneous=True)


def test_dgl_by_its_attributes(example: Example) -> None:
    assert same_graph(from_csr(example), lapidary.dataset(dgl_of(example)))
    weighted = dgl_of(example)
    weighted.edata["w"] = Tensor(np.linspace(0.5, 1.5, example.edges.shape[1]))
    assert not same_graph(from_csr(example), lapidary.dataset(weighted))
    weighted.is_homogeneous = False
    with pytest.raises(ValueError, match="to_homogeneous"):
        lapidary.dataset(weighted)


def test_real_dgl(example: Example) -> None:
    dgl, torch = pytest.importorskip("dgl"), pytest.importorskip("torch")
    ends = tuple(torch.as_tensor(row) for row in example.edges)
    graph = dgl.graph(ends, num_nodes=60)
    assert same_graph(from_csr(example), lapidary.dataset(graph, **example.given))
    graph.ndata["feat"], graph.ndata["label"] = torch.as_tensor(example.features), torch.as_tensor(example.labels)
    for split in ("train", "val", "test"):
        graph.ndata[f"{split}_mask"] = torch.as_tensor(mask(getattr(example, split), 60))
    made = lapidary.dataset(graph)
    assert same_graph(from_csr(example), made)
    assert made._addresses()["features"] == graph.ndata["feat"].data_ptr()
    weights = np.linspace(0.5, 1.5, example.edges.shape[1], dtype=np.float32)
    graph.edata["w"] = torch.as_tensor(weights)
    assert same_graph(lapidary.dataset(example.edges, edge_weights=weights, **example.given), lapidary.dataset(graph))
    kinds = dgl.heterograph({("user", "likes", "film"): ends, ("user", "knows", "user"): ends})
    with pytest.raises(ValueError, match="to_homogeneous"):
        lapidary.dataset(kinds)


def test_networkx(example: Example) -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_nodes_from(f"v{v}" for v in range(60))
    graph.add_edges_from((f"v{u}", f"v{v}") for u, v in example.edges.T)
    names = {split: [f"v{v}" for v in getattr(example, split)] for split in ("train", "val", "test")}
    data = lapidary.dataset(graph, features=example.features, labels=example.labels, **names)
    assert data.names == [f"v{v}" for v in range(60)]
    assert same_graph(from_csr(example), data)
    for v in range(60):
        graph.nodes[f"v{v}"].update(x=example.features[v], group=int(example.labels[v]))
    assert same_graph(data, lapidary.dataset(graph, features="x", labels="group", **names))
    networkx.set_edge_attributes(graph, 1.0, "weight")
    assert same_graph(data, lapidary.dataset(graph, features="x", labels="group", **names))
    rows = {f"v{v}": row for v, row in reversed(list(enumerate(example.features)))}
    numbers = {f"v{v}": int(label) for v, label in enumerate(example.labels)}
    assert same_graph(data, lapidary.dataset(graph, features=rows, labels=numbers, **names))
    del rows["v7"]
    with pytest.raises(ValueError, match="no row for the vertex 'v7'"):
        lapidary.dataset(graph, features=rows)
    networkx.set_edge_attributes(graph, 2.0, "weight")
    assert not same_graph(data, lapidary.dataset(graph, features="x", labels="group", **names), norm="sum")
    by_name = {f"v{v}": "cat" for v in range(30)}
    assert lapidary.dataset(graph, labels=by_name).labels.tolist() == [0] * 30 + [-1] * 30
    directed = networkx.DiGraph([("a", "b"), ("b", "b")])
    assert (lapidary.dataset(directed).edges, lapidary.dataset(directed.to_undirected()).edges) == (2, 3)
    directed["a"]["b"]["weight"] = 2.0
    with pytest.raises(ValueError, match="only some edges"):
        lapidary.dataset(directed)


def test_pandas_edge_list_with_names(example: Example) -> None:
    pandas = pytest.importorskip("pandas")
    # In this order, names sort as their numbers do.
    name = np.array([f"v{v:02}" for v in range(60)])
    once = example.edges[:, example.edges[0] < example.edges[1]]
    table = pandas.DataFrame({"from": name[once[0]], "to": name[once[1]]})
    features = pandas.DataFrame(example.features, index=name)
    labels = pandas.Series(example.labels, index=name).sample(frac=1, random_state=0)
    splits = {split: name[getattr(example, split)] for split in ("train", "val", "test")}
    options = {"source": "from", "target": "to", "undirected": True, **splits}
    data = lapidary.dataset(table, features=features, labels=labels, **options)
    assert data.names == name.tolist()
    assert same_graph(from_csr(example), data)
    assert lapidary.dataset(table, undirected=True, source="from", target="to").names == name.tolist()
    split_by_mask = pandas.Series(True, index=name[example.train])
    assert (
        lapidary.dataset(table, features=features, train=split_by_mask, source="from", target="to").split("train")
        == np.sort(example.train)
    ).all()
    predictions = short_run(data).predictions()
    assert predictions["vertex"].tolist() == name.tolist()
    weighted = table.assign(weight=np.linspace(0.5, 1.5, len(table)))
    assert not same_graph(data, lapidary.dataset(weighted, features=features, labels=labels, **options))
    with pytest.raises(ValueError, match="no column `source`, only from, to"):
        lapidary.dataset(table)
    with pytest.raises(ValueError, match="`edges` names the vertex 'v07', which does not exist"):
        lapidary.dataset(table, features=features.drop(index="v07"), **options)
    with pytest.raises(ValueError, match="`train` names the vertex 'x'"):
        lapidary.dataset(table, features=features, **{**options, "train": ["x"]})
    with pytest.raises(ValueError, match="not different from each other"):
        lapidary.dataset(table, features=pandas.concat([features, features]), **options)
    with pytest.raises(ValueError, match="no name of a vertex at one end"):
        lapidary.dataset(pandas.DataFrame({"source": ["a", None], "target": ["b", "b"]}))


def test_tables_of_features_follow_the_names_of_a_graph(example: Example) -> None:
    networkx, pandas = pytest.importorskip("networkx"), pytest.importorskip("pandas")
    graph = networkx.Graph()
    graph.add_nodes_from(range(60))
    graph.add_edges_from(example.edges.T.tolist())
    table = pandas.DataFrame(example.features).sample(frac=1, random_state=0)
    given = {**example.given, "features": table}
    assert same_graph(from_csr(example), lapidary.dataset(graph, **given))
    with pytest.raises(ValueError, match="no row for the vertex 7"):
        lapidary.dataset(graph, features=table.drop(index=7))


def test_builtin_and_directories(tmp_path: Any, example: Example) -> None:
    assert lapidary.dataset("karate").vertices == 34
    assert lapidary.dataset("builtin:planted").classes == lapidary.dataset("planted").classes
    folder = tmp_path / "graph"
    folder.mkdir()
    np.save(folder / "indptr.npy", example.indptr)
    np.save(folder / "indices.npy", example.indices)
    np.save(folder / "features.npy", example.features)
    np.save(folder / "labels.npy", example.labels)
    np.save(folder / "vertex_ids.npy", np.arange(100, 160))
    for split in ("train", "val", "test"):
        np.save(folder / f"{split}.npy", getattr(example, split))
    described = {
        "format": 1,
        "name": "graph",
        "vertices": 60,
        "edges": len(example.indices),
        "classes": 2,
        "features": 6,
    }
    (folder / "dataset.json").write_text(json.dumps({**described, "directed": False}))
    for path in (folder, str(folder)):
        data = lapidary.dataset(path)
        assert data.names[:2] == ["100", "101"]
        assert same_graph(from_csr(example), data)


def test_a_dataset_stays_itself(example: Example) -> None:
    data = from_csr(example)
    assert lapidary.dataset(data) is data


def test_several_graphs_in_one(example: Example) -> None:
    assert from_csr(example, graph_ids=np.zeros(60, dtype=int)).vertices == 60


def test_real_graphs(shared_data: Any) -> None:
    data = lapidary.dataset(shared_data / "cora")
    assert (data.vertices, data.classes, data.feature_width) == (2708, 7, 1433)
    run = lapidary.train(data, epochs=60, weight_decay=5e-4, feature_norm="row", progress=False)
    assert run.test_accuracy > 0.75
