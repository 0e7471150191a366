"""Graphs of other libraries: recognised by what they have, and taken apart without importing any library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from ._arrays import Array, as_numpy, is_frame, is_series, is_sparse, label_list, position
from .errors import DataError

WEIGHT = "weight"


@dataclass
class Found:
    """What a graph holds: its edges in one of two forms, and maybe features, labels, splits and names."""

    csr: Optional[tuple[Any, Any]] = None
    """Offsets and sources: row v lists the u of u -> v."""
    coo: Optional[tuple[Any, Any]] = None
    """Sources and targets."""
    vertices: Optional[int] = None
    edge_weights: Any = None
    names: Optional[list[Any]] = None
    features: Any = None
    labels: Any = None
    train: Any = None
    val: Any = None
    test: Any = None


@dataclass(frozen=True)
class Columns:
    """The columns of an edge list."""

    source: str
    target: str
    weight: Optional[str]


def found_in(graph: Any, given: Mapping[str, Any], columns: Columns) -> Found:
    """Takes a graph apart. ``given`` has the keyword arguments that the user gave with it.

    Raises:
        DataError: if it is of no known kind.
    """
    for recognises, read in _KINDS:
        if recognises(graph):
            return read(graph, given, columns)
    raise DataError(
        f"a graph cannot be made of {type(graph).__name__}; give a dataset directory, a graph of PyTorch Geometric, DGL "
        "or networkx, a sparse matrix of scipy, a DataFrame with an edge per row, the CSR (indptr, indices), or edges "
        "[2, E]"
    )


def _of_pyg(graph: Any, _given: Mapping[str, Any], _columns: Columns) -> Found:
    if graph.edge_index is None:
        raise DataError("the graph has no `edge_index`; T.ToSparseTensor removes it, so leave that transform out")
    splits = {split: getattr(graph, f"{split}_mask", None) for split in ("train", "val", "test")}
    return Found(
        coo=_two_rows(as_numpy(graph.edge_index)),
        vertices=int(graph.num_nodes),
        edge_weights=getattr(graph, "edge_weight", None),
        features=getattr(graph, "x", None),
        labels=getattr(graph, "y", None),
        **splits,
    )


def _of_dgl(graph: Any, _given: Mapping[str, Any], _columns: Columns) -> Found:
    if not getattr(graph, "is_homogeneous", True):
        raise DataError("the graph has several types of vertices or edges; convert it with dgl.to_homogeneous")
    sources, targets = graph.edges()
    vertices, edges = graph.ndata, graph.edata
    splits = {split: _first(vertices, f"{split}_mask") for split in ("train", "val", "test")}
    return Found(
        coo=(as_numpy(sources), as_numpy(targets)),
        vertices=int(graph.num_nodes()),
        edge_weights=_first(edges, WEIGHT, "w"),
        features=_first(vertices, "feat", "x"),
        labels=_first(vertices, "label", "y"),
        **splits,
    )


def _first(data: Mapping[str, Any], *names: str) -> Any:
    return next((data[name] for name in names if name in data), None)


def _of_networkx(graph: Any, given: Mapping[str, Any], columns: Columns) -> Found:
    names = list(graph.nodes)
    index = {name: number for number, name in enumerate(names)}
    edges = [(index[u], index[v], weight) for u, v, weight in graph.edges(data=columns.weight or WEIGHT)]
    if not graph.is_directed():
        edges += [(v, u, weight) for u, v, weight in edges if u != v]
    weighted = [weight is not None for *_, weight in edges]
    if any(weighted) and not all(weighted):
        raise DataError(f"only some edges have the attribute `{columns.weight or WEIGHT}`; give it to all, or to none")
    ends = np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2)
    of_vertices = {
        what: _attribute(graph, what, given[what]) for what in ("features", "labels") if isinstance(given[what], str)
    }
    return Found(
        coo=(ends[:, 0], ends[:, 1]),
        vertices=len(names),
        edge_weights=[weight for *_, weight in edges] if any(weight not in (None, 1) for *_, weight in edges) else None,
        names=names,
        **of_vertices,
    )


def _attribute(graph: Any, what: str, name: str) -> Any:
    """Returns an attribute of all vertices. Labels may be missing."""
    if what == "labels":
        return label_list([data.get(name) for _, data in graph.nodes(data=True)])
    lacking = next((vertex for vertex, data in graph.nodes(data=True) if name not in data), None)
    if lacking is not None:
        raise DataError(f"the vertex {lacking!r} has no attribute `{name}`, which `{what}` asks for")
    return np.array([data[name] for _, data in graph.nodes(data=True)])


def _of_scipy(graph: Any, _given: Mapping[str, Any], _columns: Columns) -> Found:
    if graph.shape[0] != graph.shape[1]:
        raise DataError(f"an adjacency matrix is square, but this one has shape {list(graph.shape)}")
    # Column j of the matrix lists the i of i -> j, so its CSC is the CSR over in-edges.
    matrix = graph.tocsc()
    if not matrix.has_sorted_indices or not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
        matrix.sort_indices()
    weighted = matrix.dtype != np.bool_ and not (matrix.data == 1).all()
    return Found(csr=(matrix.indptr, matrix.indices), edge_weights=matrix.data if weighted else None)


def _of_pandas(graph: Any, given: Mapping[str, Any], columns: Columns) -> Found:
    for name in filter(None, (columns.source, columns.target, columns.weight)):
        if name not in graph.columns:
            listed = ", ".join(map(str, graph.columns))
            raise DataError(f"the table has no column `{name}`, only {listed}; name its columns by source= and target=")
    ends = graph[columns.source].to_numpy(), graph[columns.target].to_numpy()
    names = _names(ends, given)
    index = {name: number for number, name in enumerate(names)}
    if len(index) != len(names):
        raise DataError("the names of the vertices are not different from each other")
    sources, targets = (
        np.array([position(index, name, "edges") for name in end.tolist()], dtype=np.int64) for end in ends
    )
    weights = graph[columns.weight or WEIGHT].to_numpy() if columns.weight or WEIGHT in graph.columns else None
    return Found(coo=(sources, targets), vertices=len(names), edge_weights=weights, names=names)


def _names(ends: tuple[Array, Array], given: Mapping[str, Any]) -> list[Any]:
    """Returns the names of the vertices: those of the features' or labels' index, else those of the edges, in order."""
    for what in ("features", "labels"):
        if is_frame(given[what]) or is_series(given[what]):
            return list(given[what].index.tolist())
    names = set(ends[0].tolist()) | set(ends[1].tolist())
    if any(name is None or name != name for name in names):
        raise DataError("an edge has no name of a vertex at one end")
    return sorted(names, key=lambda name: (type(name).__name__, name))


def _of_csr(graph: Any, _given: Mapping[str, Any], _columns: Columns) -> Found:
    indptr, indices = (as_numpy(part) for part in graph)
    if indptr.ndim == indices.ndim == 1 and indptr.size and indptr[-1] != indices.size:
        raise DataError(
            f"a tuple is a CSR (indptr, indices), but `indptr` ends at {indptr[-1]} and there are {indices.size} indices; "
            "give sources and targets as one array [2, E], as in np.stack([u, v])"
        )
    return Found(csr=(indptr, indices))


def _of_edges(graph: Any, _given: Mapping[str, Any], _columns: Columns) -> Found:
    return Found(coo=_two_rows(as_numpy(graph)))


def _two_rows(edges: Array) -> tuple[Any, Any]:
    if edges.ndim != 2 or edges.shape[0] != 2:
        hint = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise DataError(f"edges have shape {list(edges.shape)}, expected [2, E]: sources and targets{hint}")
    return edges[0], edges[1]


def _is_pyg(graph: Any) -> bool:
    return hasattr(graph, "edge_index") and hasattr(graph, "num_nodes")


def _is_dgl(graph: Any) -> bool:
    return hasattr(graph, "ndata") and hasattr(graph, "edata")


def _is_networkx(graph: Any) -> bool:
    return hasattr(graph, "is_directed") and hasattr(graph, "nodes") and hasattr(graph, "adj")


def _is_csr(graph: Any) -> bool:
    return isinstance(graph, tuple) and len(graph) == 2


def _is_array(graph: Any) -> bool:
    return isinstance(graph, (np.ndarray, list)) or hasattr(graph, "detach")


_Read = Callable[[Any, Mapping[str, Any], Columns], Found]
_KINDS: list[tuple[Callable[[Any], bool], _Read]] = [
    (_is_pyg, _of_pyg),
    (_is_dgl, _of_dgl),
    (_is_networkx, _of_networkx),
    (is_sparse, _of_scipy),
    (is_frame, _of_pandas),
    (_is_csr, _of_csr),
    (_is_array, _of_edges),
]
