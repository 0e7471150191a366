"""Parquet and Arrow files of the command, against those of pyarrow and pandas.

The command is the one that ``cargo test --workspace`` builds, which has the feature ``parquet``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Example

feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")


def run(command: str, *args: object) -> str:
    done = subprocess.run([command, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    """The arrays and names of a dataset directory."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "dataset.json"}


@pytest.fixture
def tables(example: Example) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Edges between names, and a row for each vertex: its features as a list, its class, and its split."""
    names = np.array([f"vertex, {v}" for v in range(len(example.labels))])
    edges = pd.DataFrame({"source": names[example.edges[0]], "target": names[example.edges[1]]})
    split = np.full(len(names), "test", dtype=object)
    split[example.train] = "train"
    split[example.val] = "val"
    kinds = pd.Categorical(np.where(example.labels == 1, "dog", "cat"))
    vertices = pd.DataFrame({"name": names, "x": list(example.features), "label": kinds, "split": split})
    return edges, vertices


def write(table: pd.DataFrame, path: Path, compression: str) -> None:
    if path.suffix == ".parquet":
        # Small groups and pages, so that there are several.
        table.to_parquet(path, compression=compression, row_group_size=17, data_page_size=64, index=False)
    else:
        feather.write_feather(table, path, compression=compression, chunksize=17)


@pytest.mark.parametrize(
    "ending, compression",
    [("parquet", kind) for kind in ("none", "snappy", "gzip", "lz4", "zstd")]
    + [("feather", kind) for kind in ("uncompressed", "lz4", "zstd")],
)
def test_tables_of_other_programs_are_read(
    command: str, tmp_path: Path, tables: tuple[pd.DataFrame, pd.DataFrame], ending: str, compression: str
) -> None:
    edges, vertices = tables
    features = pd.DataFrame(np.stack(vertices["x"].tolist())).add_prefix("x:")
    edges.to_csv(tmp_path / "e.csv", index=False)
    pd.concat([vertices.drop(columns="x"), features], axis=1).to_csv(tmp_path / "v.csv", index=False)
    run(command, "data", "import", "edges", tmp_path / "e.csv", tmp_path / "csv", "--vertices", tmp_path / "v.csv")

    write(edges, tmp_path / f"e.{ending}", compression)
    write(vertices, tmp_path / f"v.{ending}", compression)
    given = ("--vertices", tmp_path / f"v.{ending}")
    run(command, "data", "import", "edges", tmp_path / f"e.{ending}", tmp_path / "set", *given)
    want, found = files(tmp_path / "csv"), files(tmp_path / "set")
    assert len(want) > 3
    assert found == want


def test_predictions_are_tables_for_other_programs(
    command: str, tmp_path: Path, tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    edges, vertices = tables
    write(edges, tmp_path / "e.parquet", "snappy")
    write(vertices, tmp_path / "v.parquet", "snappy")
    data, model = tmp_path / "set", tmp_path / "run"
    run(command, "data", "import", "edges", tmp_path / "e.parquet", data, "--vertices", tmp_path / "v.parquet")
    run(command, "train", "--data", data, "--epochs", 30, "--checkpoint", model)
    infer = ("infer", "--checkpoint", model, "--data", data, "--scores", "probabilities", "--out")
    for name in ("p.csv", "p.parquet", "p.feather"):
        run(command, *infer, tmp_path / name)
    want = pd.read_csv(tmp_path / "p.csv", dtype={"probability:cat": "f4", "probability:dog": "f4", "probability": "f4"})
    assert list(want["vertex"]) == list(vertices["name"])
    for found in (pd.read_parquet(tmp_path / "p.parquet"), pd.read_feather(tmp_path / "p.feather")):
        pd.testing.assert_frame_equal(found, want)
    assert parquet.ParquetFile(tmp_path / "p.parquet").metadata.row_group(0).column(0).compression == "SNAPPY"
