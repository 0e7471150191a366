"""Arrays that are read in place."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import Example, short_run

import lapidary


def address(array: Any) -> int:
    return array.__array_interface__["data"][0]


def test_arrays_are_not_copied(example: Example) -> None:
    weights = np.ones(len(example.indices), dtype=np.float32)
    data = lapidary.dataset((example.indptr, example.indices), edge_weights=weights, **example.given)
    wanted = {
        "indptr": example.indptr,
        "indices": example.indices,
        "features": example.features,
        "edge_weights": weights,
    }
    assert data._addresses() == {name: address(array) for name, array in wanted.items()}


def test_mapped_files_are_not_copied(example: Example, tmp_path: Any) -> None:
    np.save(tmp_path / "features.npy", example.features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    data = lapidary.dataset((example.indptr, example.indices), **{**example.given, "features": mapped})
    assert data._addresses()["features"] == address(mapped)
    assert np.isfinite(short_run(data).history[-1]["loss"])


def test_misaligned_arrays_are_copied(example: Example) -> None:
    size = example.features.shape
    odd = np.frombuffer(b"x" + example.features.tobytes(), dtype=np.float32, offset=1).reshape(size)
    assert not odd.flags.aligned
    data = lapidary.dataset((example.indptr, example.indices), **{**example.given, "features": odd})
    assert data._addresses()["features"] != address(odd)


def test_scipy_matrices_share_their_ids(example: Example) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csc_matrix((np.ones(len(example.indices)), example.indices, example.indptr), shape=(60, 60))
    assert matrix.indices.dtype == np.int32
    assert lapidary.dataset(matrix)._addresses()["indices"] == address(matrix.indices)


def test_other_types_are_copied(example: Example) -> None:
    given = {**example.given, "features": example.features.astype(np.float64)}
    data = lapidary.dataset((example.indptr.astype(np.int32), example.indices.astype(np.int64)), **given)
    arrays = (example.indptr, example.indices, example.features)
    assert not set(map(address, arrays)) & set(data._addresses().values())


def test_shared_arrays_cannot_be_written_until_nothing_reads_them(example: Example) -> None:
    data = lapidary.dataset((example.indptr, example.indices), **example.given)
    shared = (example.indptr, example.indices, example.features)
    for array in shared:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    trainer = lapidary.Trainer(data, hidden=4)
    del data
    gc.collect()
    assert not example.features.flags.writeable
    trainer.step()
    del trainer
    gc.collect()
    assert all(array.flags.writeable for array in shared)


def test_an_array_in_two_datasets_is_free_after_both(example: Example) -> None:
    one, other = (lapidary.dataset((example.indptr, example.indices)) for _ in range(2))
    del one
    assert not example.indices.flags.writeable
    del other
    assert example.indices.flags.writeable


def test_an_array_that_was_read_only_stays_so(example: Example) -> None:
    example.features.flags.writeable = False
    data = lapidary.dataset((example.indptr, example.indices), features=example.features)
    assert data._addresses()["features"] == address(example.features)
    del data
    assert not example.features.flags.writeable


def test_arrays_over_other_memory_can_be_written_afterwards(example: Example) -> None:
    class Owner:
        """Memory that is no buffer, like that of a tensor."""

        __array_interface__ = example.features.__array_interface__

    over_buffer = np.frombuffer(bytearray(example.features.tobytes()), dtype=np.float32).reshape(60, 6)
    for array, is_locked in ((np.asarray(Owner()), False), (over_buffer, True), (example.features[:], True)):
        data = lapidary.dataset((example.indptr, example.indices), features=array)
        assert data._addresses()["features"] == address(array)
        assert array.flags.writeable is not is_locked
        del data
        assert array.flags.writeable


def test_refused_data_is_free_at_once(example: Example) -> None:
    example.features[3, 2] = np.nan
    with pytest.raises(ValueError, match="row 3, column 2"):
        lapidary.dataset((example.indptr, example.indices), features=example.features)
    gc.collect()
    assert example.features.flags.writeable and example.indices.flags.writeable


def test_memory_outlives_the_callers_names(example: Example) -> None:
    features = np.full((60, 3), 2.0, dtype=np.float32)
    gone = weakref.ref(features)
    data = lapidary.dataset((example.indptr, example.indices), **{**example.given, "features": features})
    del features
    gc.collect()
    assert gone() is not None
    assert np.isfinite(short_run(data).history[-1]["loss"])
    del data
    gc.collect()
    assert gone() is None
