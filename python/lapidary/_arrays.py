"""Conversions of arrays, tensors and tables to the arrays that the native half takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Optional

import numpy as np

from ._loan import Loan
from .errors import DataError

Array = np.ndarray[Any, Any]
Lent = tuple[Array, Loan]

_MOST_IDS = 2**32 - 1
# At most this share of numbers that are not 0 makes dense features sparse: training is then at least twice as fast.
_SPARSE_SHARE = 0.1


def as_numpy(given: Any) -> Array:
    """Returns an array; tensors of PyTorch and Series of pandas keep their memory where that is possible."""
    if hasattr(given, "detach"):
        given = _on_host(given)
    if hasattr(given, "to_numpy"):
        return np.asarray(given.to_numpy())
    return np.asarray(given)


def _on_host(tensor: Any) -> Any:
    """Returns a tensor that numpy can read."""
    if getattr(tensor, "is_sparse", False):
        raise DataError("sparse tensors are not taken; give a sparse matrix of scipy, or a dense tensor")
    tensor = tensor.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor


def is_sparse(given: Any) -> bool:
    """Whether this is a sparse matrix of scipy."""
    return hasattr(given, "tocsc") and hasattr(given, "tocsr")


def is_frame(given: Any) -> bool:
    """Whether this is a DataFrame of pandas, or something alike."""
    return hasattr(given, "columns") and hasattr(given, "iloc")


def is_series(given: Any) -> bool:
    """Whether this is a Series of pandas, or something alike."""
    return hasattr(given, "reindex") and hasattr(given, "index") and not is_frame(given)


def lent(array: Array, dtype: Any) -> Lent:
    """Lends an array in one dimension, without a copy if it has this type and no gaps."""
    with np.errstate(over="ignore"):
        kept = np.require(array, dtype=dtype, requirements=("C", "ALIGNED"))
    return kept.reshape(-1), Loan(kept)


def lent_ids(array: Any, what: str) -> Lent:
    """Lends ids as u32; those that are stored as i32 or u32 are not copied."""
    array = as_numpy(array)
    if array.dtype != np.uint32 or array.ndim != 1:
        checked_ids(array, what)
    if array.dtype != np.int32 or not (array.flags.c_contiguous and array.flags.aligned):
        return lent(array, np.uint32)
    return array.view(np.uint32), Loan(array)


def checked_ids(given: Any, what: str) -> Array:
    """Returns ids in one dimension.

    Raises:
        DataError: if they are no whole numbers from 0 to 2**32 - 1.
    """
    array: Array = as_numpy(given)
    if array.ndim != 1:
        raise DataError(f"`{what}` has shape {list(array.shape)}, expected one dimension")
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise DataError(f"`{what}` holds {array.dtype}, expected whole numbers; convert it with numpy's astype")
    if array.dtype.kind == "i" and array.min() < 0:
        raise DataError(f"`{what}`: element {int(array.argmin())} is {array.min()}, expected an id of at least 0")
    if array.dtype.itemsize > 4 and array.max() > _MOST_IDS:
        raise DataError(f"`{what}`: element {int(array.argmax())} is {array.max()}, expected at most {_MOST_IDS}")
    return array


def offsets(array: Any, what: str) -> Lent:
    """Lends offsets as i64; those that are stored as i64 are not copied."""
    array = as_numpy(array)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"`{what}` is {array.dtype} {list(array.shape)}, expected whole numbers in one dimension")
    return lent(array, np.int64)


def numbers(given: Any, what: str, dimensions: int) -> Array:
    """Returns an array of real numbers.

    Raises:
        DataError: if it holds something else, or has another number of dimensions.
    """
    array: Array = as_numpy(given)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"`{what}` holds objects that are no numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"`{what}` holds {array.dtype}, expected real numbers")
    if array.ndim != dimensions:
        shape = "[vertices, width]" if dimensions == 2 else "one dimension"
        raise DataError(f"`{what}` has shape {list(array.shape)}, expected {shape}")
    return array


def features(given: Any, vertices: int, sparse: Optional[bool]) -> dict[str, Any]:
    """Converts features, ``[vertices, width]``: dense, or sparse as a matrix of scipy. They are kept sparse, or dense, as
    ``sparse`` says; with ``None``, as they are given, unless nearly all numbers are 0."""
    if sparse not in (None, True, False):
        raise DataError(f"option `sparse` cannot be {sparse!r}: it is True, False or None")
    if is_sparse(given):
        return _scipy_features(given, vertices) if sparse is not False else features(given.toarray(), vertices, False)
    array = numbers(given, "features", 2)
    _check_rows("features", array.shape, vertices)
    if sparse is None:
        sparse = bool(0 < array.size and np.count_nonzero(array) <= _SPARSE_SHARE * array.size)
    if not sparse:
        return {"features": (lent(array, np.float32), array.shape[1])}
    rows, columns = np.nonzero(array)
    indptr = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=len(array)), out=indptr[1:])
    indices = columns.astype(np.uint32)
    return _cells(indptr, indices, array[rows, columns], array.shape[1])


def _scipy_features(given: Any, vertices: int) -> dict[str, Any]:
    matrix = given.tocsr()
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    _check_rows("features", matrix.shape, vertices)
    return _cells(matrix.indptr, matrix.indices, numbers(matrix.data, "features", 1), matrix.shape[1])


def _cells(indptr: Array, indices: Array, values: Array, width: int) -> dict[str, Any]:
    parts = offsets(indptr, "features"), lent_ids(indices, "features"), lent(values, np.float32)
    return {"sparse_features": (*parts, width)}


def _check_rows(what: str, shape: Iterable[int], vertices: int) -> None:
    shape = list(shape)
    if shape[0] != vertices:
        raise DataError(f"`{what}` has shape {shape}, expected {vertices} rows: one per vertex")


def labels(given: Any, vertices: int) -> dict[str, Any]:
    """Converts labels: one class per vertex ``[vertices]``, or 0 and 1 for each class ``[vertices, classes]``.

    Classes are whole numbers, -1 or NaN for none; or anything else with a name, ``None`` or NaN for none.
    """
    array = as_numpy(given)
    _check_rows("labels", array.shape or (0,), vertices)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    if array.ndim == 2:
        return {"multi_labels": _zeros_and_ones(array)}
    if array.ndim != 1:
        raise DataError(f"`labels` has shape {list(array.shape)}, expected [vertices] or [vertices, classes]")
    if array.dtype.kind in "iub":
        return {"labels": np.ascontiguousarray(array, dtype=np.int64)}
    if array.dtype.kind == "f":
        return {"labels": _whole(array)}
    codes, names = named(array)
    return {"labels": codes, "class_names": [str(name) for name in names], "classes": len(names)}


def _zeros_and_ones(array: Array) -> Array:
    if array.dtype.kind not in "fiub" or not np.isin(array, (0, 1)).all():
        raise DataError("`labels` has several columns, so each number has to be 0 or 1")
    return np.ascontiguousarray(array, dtype=np.uint8)


def _whole(array: Array) -> Array:
    filled = np.where(np.isnan(array), -1, array)
    found = np.flatnonzero(filled != np.floor(filled))
    if found.size:
        raise DataError(f"`labels`: the label of vertex {found[0]} is {array[found[0]]}, expected a whole number")
    return filled.astype(np.int64)


def label_list(values: list[Any]) -> Array:
    """Returns a label per vertex as an array: i64 with -1 for ``None`` if all are whole numbers, else objects."""
    if all(value is None or isinstance(value, (int, np.integer)) for value in values):
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def named(array: Array) -> tuple[Array, list[Any]]:
    """Numbers the different values of an array, in their order; ``None`` and NaN get -1. Returns numbers and values."""
    present = np.array([value is not None and value == value for value in array], dtype=bool)
    values = sorted(set(array[present].tolist()), key=lambda value: (type(value).__name__, value))
    place = {value: number for number, value in enumerate(values)}
    codes = np.full(len(array), -1, dtype=np.int64)
    codes[present] = [place[value] for value in array[present].tolist()]
    return codes, values


def members(which: str, given: Any, vertices: int, index: Optional[Mapping[Any, int]]) -> Optional[Array]:
    """Converts a split to ids: from a mask (bool or uint8), from ids, or from names if vertices have names."""
    if given is None:
        return None
    array = as_numpy(list(given) if isinstance(given, Set) else given)
    if array.dtype == np.bool_ or array.dtype == np.uint8:
        if array.dtype == np.uint8 and array.size and array.max() > 1:
            raise DataError(
                f"`{which}` holds uint8, which is read as a mask of 0 and 1, but has a {array.max()}; convert ids to int64"
            )
        if array.shape != (vertices,):
            hint = "; choose one column of it" if array.ndim == 2 else ""
            raise DataError(f"the mask `{which}` has shape {list(array.shape)}, expected [{vertices}]{hint}")
        return np.flatnonzero(array)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if index is not None:
        return np.array([position(index, name, which) for name in array.tolist()], dtype=np.int64)
    ids = checked_ids(array, which).astype(np.int64)
    if len(ids) == vertices > 2 and ids.max() <= 1:
        raise DataError(f"`{which}` has a 0 or 1 for each vertex and is read as ids; convert a mask to bool")
    return ids


def position(index: Mapping[Any, int], name: Any, what: str) -> int:
    """Returns the id of the vertex with this name.

    Raises:
        DataError: if there is none.
    """
    try:
        return index[name]
    except KeyError:
        raise DataError(f"`{what}` names the vertex {name!r}, which does not exist") from None
