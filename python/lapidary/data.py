"""Datasets: a graph with features, labels and splits, made from files or from the graphs of other libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

from . import _arrays, _fork, _settings
from ._arrays import Array
from ._graphs import Columns, Found, found_in
from ._lapidary import NativeDataset
from .errors import DataError

BUILTIN = ("karate", "planted")
SPLITS = ("train", "val", "test")


class Dataset:
    """A graph with features, labels and splits; made by :func:`dataset`. It cannot be changed."""

    def __init__(self, native: NativeDataset, names: Optional[list[Any]] = None) -> None:
        self._native = native
        self._names = names

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self._native.name

    @property
    def vertices(self) -> int:
        """The number of vertices."""
        return self._native.vertices

    @property
    def edges(self) -> int:
        """The number of edges; an undirected edge counts twice."""
        return self._native.edges

    @property
    def feature_width(self) -> int:
        """The number of features per vertex; 0 without features."""
        return self._native.feature_width

    @property
    def has_sparse_features(self) -> bool:
        """Whether features are kept as sparse: only the numbers that are not 0."""
        return self._native.has_sparse_features

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self._native.classes

    @property
    def class_names(self) -> Optional[list[str]]:
        """The names of the classes, if they have names."""
        return self._native.class_names

    @property
    def directed(self) -> bool:
        """Whether some edge has no reverse."""
        return self._native.directed

    @property
    def names(self) -> Optional[list[Any]]:
        """The names of the vertices, if they have names."""
        return self._names

    @property
    def labels(self) -> Optional[Array]:
        """The labels as i64 ``[vertices]``, -1 for none; ``None`` without labels, and with several per vertex."""
        return self._native.labels

    def split(self, which: str) -> Array:
        """Returns the ids of the vertices in the split ``train``, ``val`` or ``test``, as i64."""
        if which not in SPLITS:
            raise DataError(f"there is no split `{which}`, only {', '.join(SPLITS)}")
        return np.flatnonzero(self._native.split == SPLITS.index(which) + 1)

    def _addresses(self) -> dict[str, Optional[int]]:
        """Returns where the arrays begin in memory, for tests."""
        return dict(zip(("indptr", "indices", "features", "edge_weights"), self._native.addresses()))

    def __repr__(self) -> str:
        kind = "sparse " if self.has_sparse_features else ""
        sizes = f"{self.vertices:,} vertices, {self.edges:,} edges, {self.feature_width:,} {kind}features"
        train, val, test = self._native.split_sizes
        return f"<Dataset {self.name!r}: {sizes}, {self.classes} classes, {train} train / {val} val / {test} test>"


def dataset(
    graph: Any,
    *,
    features: Any = None,
    sparse: Optional[bool] = None,
    labels: Any = None,
    train: Any = None,
    val: Any = None,
    test: Any = None,
    edge_weights: Any = None,
    vertices: Optional[int] = None,
    undirected: bool = False,
    classes: Optional[int] = None,
    graph_ids: Any = None,
    feature_norm: Optional[str] = None,
    name: Optional[str] = None,
    source: str = "source",
    target: str = "target",
    weight: Optional[str] = None,
) -> Dataset:
    """Makes a dataset.

    An edge goes from a source u to a target v: v receives the message of u. An undirected graph has both directions of
    each edge. ``graph`` is one of:

    - the path of a dataset directory, or the name of a built-in dataset: ``karate``, ``planted``;
    - ``torch_geometric.data.Data``: ``edge_index``, ``x``, ``y``, ``edge_weight``, ``train_mask`` and so on;
    - a graph of DGL: ``ndata`` ``feat``, ``label``, ``train_mask`` and so on, ``edata`` ``weight`` or ``w``;
    - a graph of networkx: ``features`` and ``labels`` may name attributes; undirected edges get both directions; the
      attribute ``weight`` is the weight, unless all are 1;
    - a sparse matrix of scipy: ``A[i, j]`` is the edge i -> j, and its value the weight, unless all values are 1;
    - a pandas DataFrame with an edge per row: the columns ``source``, ``target``, and ``weight`` if there is one.
      Vertices are those of the index of ``features`` or ``labels``, if these are of pandas, else all names in order;
    - a tuple ``(indptr, indices)``: a CSR in which row v lists the sources u of u -> v, ascending;
    - an array ``[2, E]``: sources and targets.

    Args:
        graph: the edges, and what comes with them.
        features: ``[vertices, width]``, dense or a sparse matrix of scipy.
        sparse: whether to keep features as sparse; by default as they are given, and dense ones if at most a tenth of them is
            not 0, as in bags of words: that trains at least twice as fast, and is a copy.
        labels: ``[vertices]``, -1, NaN or None for none; or ``[vertices, classes]`` of 0 and 1. Classes may be texts.
        train, val, test: a mask ``[vertices]`` of bool, or ids; names, where vertices have names.
        edge_weights: ``[E]``, in the order of the edges.
        vertices: number of vertices, if it is not known from features or labels.
        undirected: add the reverse of each edge of an array ``[2, E]`` or of a DataFrame, which list each edge once.
        classes: number of classes, if it is more than the labels show.
        graph_ids: ``[vertices]``: for several graphs in one, which graph a vertex is of; ascending.
        feature_norm: ``row`` or ``none``: how features are normalised by default.
        name: the name of the dataset.
        source, target, weight: the names of the columns of a DataFrame; ``weight`` also of the attribute in networkx.

    Dense f32 features, i64 ``indptr`` and u32 or i32 ``indices`` without gaps are not copied. Their flag ``writeable`` is
    ``False`` as long as something reads them. Do not write to their memory through other views either.

    Raises:
        DataError: if something is wrong with the data; a ``ValueError``.
        MissingFileError, FileError: if a file cannot be read; an ``OSError``.

    Example::

        data = lapidary.dataset(adjacency, features=x, labels=y, train=train_mask, test=test_mask)
    """
    _fork.check()
    given = {"features": features, "labels": labels, "train": train, "val": val, "test": test}
    rest = {"edge_weights": edge_weights, "vertices": vertices, "classes": classes, "graph_ids": graph_ids}
    rest |= {"feature_norm": feature_norm, "name": name, "sparse": sparse}
    if isinstance(graph, (Dataset, str, os.PathLike)):
        unused = [key for key, value in {**given, **rest}.items() if value is not None] + ["undirected"] * undirected
        if unused:
            raise DataError(f"a dataset that is whole already takes no `{unused[0]}`")
        return graph if isinstance(graph, Dataset) else _opened(graph)
    _settings.check_ranges({"vertices": vertices, "classes": classes})
    if edge_weights is not None and _arrays.is_sparse(graph):
        raise DataError(
            "`edge_weights`: the values of a sparse matrix are its weights; put them there, as in A.data[:] = weights"
        )
    found = found_in(graph, given, Columns(source, target, weight))
    return _built(found, {**given, **rest}, undirected)


def _opened(path: Any) -> Dataset:
    text = os.fspath(path)
    if text in BUILTIN and not Path(text).is_dir():
        text = f"builtin:{text}"
    native = NativeDataset.load(text)
    names = None if text.startswith("builtin:") else native.names_in(text)
    return Dataset(native, names)


def _built(found: Found, given: Mapping[str, Any], undirected: bool) -> Dataset:
    for what in ("features", "labels", *SPLITS, "edge_weights", "vertices"):
        if given.get(what) is not None and not (isinstance(given[what], str) and getattr(found, what) is not None):
            setattr(found, what, given[what])
    names = found.names
    for what in ("features", "labels", *SPLITS):
        setattr(found, what, by_name(getattr(found, what), names, what))
    vertices = _vertex_count(found)
    rest = _rest(found, vertices, given)
    if found.csr is not None:
        if undirected:
            raise DataError(
                "`undirected` is for lists of edges; a CSR has both directions of each edge already, or none"
            )
        return Dataset(_from_csr(found, rest), names)
    return Dataset(_from_edges(found, vertices, undirected, rest), names)


def by_name(given: Any, names: Optional[list[Any]], what: str) -> Any:
    """Brings a table, a Series or a dict in the order of the vertices. Labels may be missing, and members of masks.

    Raises:
        DataError: if features of a vertex are missing, or a dict is given for vertices without names.
    """
    by_key = isinstance(given, Mapping)
    if not by_key and not _arrays.is_frame(given) and not _arrays.is_series(given):
        return given
    if names is None:
        if by_key:
            raise DataError(f"`{what}` is a dict, but the vertices have no names; give an array with a row per vertex")
        return given
    if what == "features":
        there = given if by_key else set(given.index)
        lacking = [name for name in names if name not in there]
        if lacking:
            raise DataError(f"`features` has no row for the vertex {lacking[0]!r}")
        return np.array([_arrays.as_numpy(given[name]) for name in names]) if by_key else given.reindex(names)
    if what == "labels":
        return _arrays.label_list([given.get(name) for name in names]) if by_key else given.reindex(names)
    if by_key:
        return np.array([given.get(name, False) for name in names], dtype=bool)
    # A mask by name, or a list of names.
    return given.reindex(names, fill_value=False) if given.dtype == bool else given.to_numpy()


def _vertex_count(found: Found) -> int:
    if found.csr is not None:
        rows = max(len(found.csr[0]) - 1, 0)
        if found.vertices not in (None, rows):
            raise DataError(f"`vertices` is {found.vertices}, but the graph has {rows}; leave `vertices` out")
        return rows
    if found.vertices is not None:
        return int(found.vertices)
    for rows in (found.features, found.labels):
        if rows is not None:
            return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)
    ends = [_arrays.checked_ids(end, "edges") for end in found.coo or ()]
    return max((int(end.max()) + 1 for end in ends if end.size), default=0)


def _rest(found: Found, vertices: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts everything beside the edges."""
    rest: dict[str, Any] = dict.fromkeys(
        ("features", "sparse_features", "labels", "multi_labels", "classes", "class_names", "graph_ids")
    )
    rest["name"], rest["feature_norm"] = given["name"], given["feature_norm"]
    if found.features is not None:
        rest |= _arrays.features(found.features, vertices, given["sparse"])
    if found.labels is not None:
        rest |= _arrays.labels(found.labels, vertices)
    if given["classes"] is not None:
        rest["classes"] = int(given["classes"])
    if given["graph_ids"] is not None:
        rest["graph_ids"] = _arrays.checked_ids(given["graph_ids"], "graph_ids").astype(np.int64)
    index = None if found.names is None else {name: number for number, name in enumerate(found.names)}
    for split in SPLITS:
        rest[split] = _arrays.members(split, getattr(found, split), vertices, index)
    return rest


def _from_csr(found: Found, rest: dict[str, Any]) -> NativeDataset:
    indptr, indices = found.csr or ((), ())
    weights = None
    if found.edge_weights is not None:
        weights = _arrays.lent(_arrays.numbers(found.edge_weights, "edge_weights", 1), np.float32)
    return NativeDataset.from_csr(
        _arrays.offsets(indptr, "indptr"), _arrays.lent_ids(indices, "indices"), weights, rest
    )


def _from_edges(found: Found, vertices: int, undirected: bool, rest: dict[str, Any]) -> NativeDataset:
    ends = [_arrays.checked_ids(end, "edges") for end in found.coo or ()]
    if len(ends[0]) != len(ends[1]):
        raise DataError(f"there are {len(ends[0])} sources, but {len(ends[1])} targets")
    for end in ends:
        if end.size and end.max() >= vertices:
            raise DataError(
                f"`edges` names the vertex {end.max()}, but there are {vertices} vertices (0 to {vertices - 1})"
            )
    weights = None
    if found.edge_weights is not None:
        weights = _arrays.numbers(found.edge_weights, "edge_weights", 1).astype(np.float32)
        if len(weights) != len(ends[0]):
            raise DataError(f"there are {len(weights)} edge weights, but {len(ends[0])} edges")
    sources, targets = (np.ascontiguousarray(end, dtype=np.uint32) for end in ends)
    if undirected:
        others = sources != targets
        weights = None if weights is None else np.concatenate([weights, weights[others]])
        sources, targets = np.concatenate([sources, targets[others]]), np.concatenate([targets, sources[others]])
    return NativeDataset.from_edges(vertices, (sources, targets), weights, rest)
