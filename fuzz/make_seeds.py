#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets to fuzz/seeds/: make_seeds.py [PROGRAM].

Most are the fixtures of the tests behind a byte that selects options or a file (see the targets). The checkpoint, the
cost model and the weights come from short trainings with PROGRAM (by default target/debug/lapidary). Running the script
again is needed only after a change of a format.
"""

import ast
import gzip
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/fixtures"
SEEDS = ROOT / "fuzz/seeds"

# As in fuzz_targets/npz.rs.
NAMES = """indptr indices x y train val test edge_index num_nodes train_mask val_mask test_mask adj_data adj_indices
adj_indptr adj_shape attr_data attr_indices attr_indptr attr_shape attr_matrix labels label_indices edges node_features
node_labels train_masks val_masks test_masks class_names node_names attr_names data edge_weight
edge_attr""".split()
DTYPES = ["|b1", "|u1", "<u4", "<i4", "<i8", "<f2", "<f4", "<f8", "<u8", "<i2", "<U3", "|O"]


def put(target, name, data):
    """Writes a seed."""
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def files(folder):
    """Returns the files below a folder, in the order of the targets."""
    found = [path for path in Path(folder).rglob("*") if path.is_file()]
    return sorted(found, key=lambda path: str(path.relative_to(folder)))


def array(descr, shape, data):
    """Returns a .npy file."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def ints(values, letter="q", descr="<i8"):
    """Returns a vector as a .npy file."""
    return array(descr, f"({len(values)},)", struct.pack(f"<{len(values)}{letter}", *values))


def listed(archive):
    """Returns an archive in the short form of the target npz."""
    out = b""
    with zipfile.ZipFile(archive) as members:
        for member in members.namelist():
            name, whole = member.removesuffix(".npy"), members.read(member)
            length = struct.unpack("<H", whole[8:10])[0]
            header, data = ast.literal_eval(whole[10 : 10 + length].decode()), whole[10 + length :]
            if name not in NAMES or header["descr"] not in DTYPES or len(header["shape"]) > 3 or max(header["shape"], default=0) > 255:
                continue
            axes = len(header["shape"]) | (128 if header["fortran_order"] else 0)
            out += bytes([NAMES.index(name), DTYPES.index(header["descr"]), axes, *header["shape"]]) + data
    return out


def selector_of(kind):
    """Returns the first byte of the target npz for a list of arrays, with the first split."""
    return next(byte for byte in range(128, 160) if byte % 3 == kind)


def arrays():
    """Seeds of npy, dataset_json and npz."""
    # The files of the two datasets of the target, in order.
    dense = ["dataset.json", "features.npy", "indices.npy", "indptr.npy", "labels.npy", "test.npy", "train.npy", "val.npy"]
    sparse = ["dataset.json", "edge_weights.npy", "features_indices.npy", "features_indptr.npy", "features_values.npy",
              "graph_ids.npy", "indices.npy", "indptr.npy", "labels.npy", "test.npy", "train.npy"]
    contents = {
        ("features.npy", 0): array("<f4", "(6, 3)", struct.pack("<18f", *[i / 4 for i in range(18)])),
        ("indices.npy", 0): ints([1, 5, 0, 2, 1, 2, 4, 3, 0], "I", "<u4"),
        ("indptr.npy", 0): ints([0, 2, 4, 6, 7, 8, 9]),
        ("labels.npy", 0): ints([0, 1, 0, 1, -1, 2]),
        ("test.npy", 0): ints([3, 5]),
        ("train.npy", 0): array("|b1", "(6,)", b"\1\1\0\0\0\0"),
        ("val.npy", 0): ints([2]),
        ("edge_weights.npy", 1): ints([0.5, 1.0, -2.0, 0.0], "f", "<f4"),
        ("features_indices.npy", 1): ints([0, 1, 3, 2], "I", "<u4"),
        ("features_indptr.npy", 1): ints([0, 1, 3, 3, 4, 4]),
        ("features_values.npy", 1): ints([1.0, 0.5, -2.0, 3.0], "f", "<f4"),
        ("graph_ids.npy", 1): ints([0, 0, 0, 7, 7]),
        ("indices.npy", 1): ints([1, 0, 2, 4], "i", "<i4"),
        ("indptr.npy", 1): ints([0, 1, 3, 3, 4, 4]),
        ("labels.npy", 1): array("|u1", "(5, 2)", bytes([0, 1, 1, 0, 0, 1, 1, 0, 0, 1])),
        ("test.npy", 1): ints([3, 4]),
        ("train.npy", 1): ints([0, 1]),
    }
    for (name, which), data in contents.items():
        selector = [dense, sparse][which].index(name) * 2 + which
        put("npy", f"{'sparse' if which else 'dense'}-{name.removesuffix('.npy')}", bytes([selector]) + data)
    put("npy", "features-half", bytes([2]) + array("<f2", "(6, 3)", bytes(36)))
    put("npy", "indices-i64", bytes([4]) + ints([1, 5, 0, 2, 1, 2, 4, 3, 0]))
    manifest = {"name": "dense", "vertices": 6, "edges": 9, "directed": False, "source": "a test", "licence": "none",
                "feature_width": 3, "classes": 3, "class_names": ["a", "b", "c"], "feature_norm": "row"}
    put("dataset_json", "dense", b"\0" + json.dumps(manifest, indent=1).encode())
    manifest = {"name": "sparse", "vertices": 5, "edges": 4, "directed": True, "feature_width": 4, "classes": 2, "feature_norm": "none"}
    put("dataset_json", "sparse", b"\1" + json.dumps(manifest).encode())
    for kind, name in [(1, "gnn_benchmark"), (1, "gnn_benchmark_odd"), (2, "heterophilous"), (2, "heterophilous_columns")]:
        path = FIXTURES / f"import/{name}.npz"
        put("npz", f"{name}-listed", bytes([selector_of(kind)]) + listed(path))
        put("npz", f"{name}-raw", bytes([kind]) + path.read_bytes())
    short = lambda name, descr, shape, data: bytes([NAMES.index(name), DTYPES.index(descr), len(shape), *shape]) + data
    csr = (short("indptr", "<i8", [4], struct.pack("<4q", 0, 1, 2, 2)) + short("indices", "<i4", [2], struct.pack("<2i", 1, 0))
           + short("x", "<f4", [3, 2], struct.pack("<6f", *range(6))) + short("y", "<i8", [3], struct.pack("<3q", 0, 1, -1))
           + short("train", "|b1", [3], b"\1\0\0") + short("test", "<i8", [1], struct.pack("<q", 2)))
    put("npz", "csr-listed", bytes([selector_of(0)]) + csr)
    put("npz", "csr-weighted", bytes([selector_of(0)]) + csr + short("data", "<f4", [2], struct.pack("<2f", 0.5, -2.0)))
    pyg = (short("edge_index", "<i8", [2, 3], struct.pack("<6q", 0, 1, 2, 1, 2, 0)) + short("num_nodes", "<i8", [], struct.pack("<q", 4))
           + short("x", "<f8", [4, 1], struct.pack("<4d", *range(4))) + short("y", "<i4", [4, 1], struct.pack("<4i", 0, 1, 1, 0))
           + short("train_mask", "|b1", [4, 2], bytes([1, 0, 0, 1, 1, 1, 0, 0])))
    put("npz", "pyg-listed", bytes([selector_of(0)]) + pyg)
    weights = short("edge_attr", "<f8", [3, 1], struct.pack("<3d", 0.5, 1.0, 2.0))
    # This byte also asks for the first column.
    put("npz", "pyg-weighted", bytes([192]) + pyg + weights)


def texts():
    """Seeds of edges, vertex_table and mtx."""
    for path in files(FIXTURES / "import/edges"):
        if path.suffix == ".gz":
            put("edges", "gzip", b"\0" + path.read_bytes())
            put("edges", "packed", b"\x80" + gzip.decompress(path.read_bytes()))
        elif path.suffix != ".npy":
            put("edges", path.stem, b"\0" + path.read_bytes())
    put("edges", "columns", b"\x41source;target;weight\n# note\n\"a b\";\"c\";0.5\r\n'x';c;1\n")
    put("edges", "weights", b"\x20" + b"1 2 0.5\n2 1 3\n1 2 -1e3\n")
    put("edges", "adjacency", b"\x10" + b"% note\n1\t2\n3\t4\n\n// note\n18446744073709551615\t2\n")
    table = "key,label,x,y,split,train\na,0,1.5,2,train,1\nb,1,-1e3,,val,0\nc,0,nan,4,test,0\nd,one,inf,5,,0\n"
    put("vertex_table", "csv", b"\0" + table.encode())
    put("vertex_table", "tsv", b"\x20" + table.replace(",", "\t").encode())
    put("vertex_table", "features", b"\x54" + b'key,class,x,y\n"a",red,1,2\nb,"blue",3,4\nc,red,5,6\nd,red,7,8\ne,blue,9,0\n')
    put("vertex_table", "packed", b"\x41" + b"id;x\na;1\nb;2\nc;3\nd;4\n")
    put("vertex_table", "numbers", b"\xa0" + b"id,x,label\n1,0.5,0\n2,1.5,1\n3,2.5,0\n")
    put("vertex_table", "order", b"\x02" + b"a\nc\nb\nd\n")
    put("vertex_table", "order-numbers", b"\xc2" + b"3\n2\n1\n7\n")
    for path in files(FIXTURES / "import/mtx"):
        put("mtx", path.stem, b"\0" + path.read_bytes())
    put("mtx", "pattern", b"\x80%%MatrixMarket matrix coordinate pattern general\n% note\n3 3 2\n1 2\n3 3\n")
    put("mtx", "skew", b"\x40%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 1\n2 1 0.5\n")


def folders():
    """Seeds of planetoid and folders."""
    sets = ["p0", "p2", "p4", "p5", "old"]
    for which, name in enumerate(sets):
        parts = [path for path in files(FIXTURES / "planetoid") if path.name.startswith(f"ind.{name}.")]
        for at, path in enumerate(parts):
            put("planetoid", path.name, bytes([which + 5 * at]) + path.read_bytes())
    at = 0
    for name in ["ogb", "ppi", "graphsaint", "graphsaint_multi", "reddit", "lux"]:
        for path in files(FIXTURES / "import" / name):
            data = path.read_bytes()
            put("folders", f"{name}-{path.name}", bytes([at]) + (gzip.decompress(data) if path.suffix == ".gz" else data))
            at += 1


def trained(program):
    """Seeds of weights, checkpoint, cost_model and partition, from trainings on the dataset of the targets."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "dense"
        data.mkdir()
        (data / "dataset.json").write_text(json.dumps({"name": "dense", "vertices": 6, "edges": 9, "directed": False, "classes": 3}))
        for path in files(SEEDS / "npy"):
            if path.name.startswith("dense-"):
                (data / f"{path.name.removeprefix('dense-')}.npy").write_bytes(path.read_bytes()[1:])
        base = [program, "train", "--data", str(data), "--devices", "cpu:2", "--epochs", "2", "--hidden", "2", "--dropout", "0"]
        for which, model in enumerate(["gcn", "gin", "sage", "graphconv", "commnet", "resgcn"]):
            run = Path(folder) / model
            subprocess.run([*base, "--checkpoint", str(run), "--model", model], check=True, capture_output=True)
            put("weights", model, bytes([which]) + (run / "best/model.safetensors").read_bytes())
        newest = max((Path(folder) / "gcn").glob("epoch-*"))
        put("cost_model", "learned", (newest / "cost_model.json").read_bytes())
        put("partition", "run", (newest / "run.json").read_bytes())
        for at, path in enumerate(files(newest)):
            put("checkpoint", path.name, bytes([at]) + path.read_bytes())


def texts_of_plans(program):
    """Seeds of profile, tasks, partition, assignment, degrees and dataset."""
    profile = {
        "name": "test", "capacity_bytes": 1 << 30, "memory_bytes_per_s": 4e12, "gather_bytes_per_s": 2e12,
        "cached_gather_bytes_per_s": 4e12, "short_gather_bytes_per_s": 1e12, "to_device_bytes_per_s": 5e10,
        "to_host_bytes_per_s": 5e10, "between_devices_bytes_per_s": 2.4e11, "flops_per_s": 6e13, "launch_s": 5e-6,
    }
    built_in = json.loads((SEEDS / "cost_model/learned").read_text())["profile"]
    put("profile", "rates", json.dumps(built_in | profile))
    put("profile", "cpu", json.dumps(built_in))
    tensors = [{"name": "x", "bytes": 8}, {"name": "w", "bytes": 4}, {"name": "h", "bytes": 8}, {"name": "y", "bytes": 8, "publish": True},
               {"name": "s", "bytes": 2, "kind": "fresh"}, {"name": "v", "bytes": 4, "kind": "local"}]
    ops = [{"name": "a", "inputs": ["x", "w"], "outputs": ["h"]}, {"name": "b", "inputs": ["h", "x", "s"], "outputs": ["y"]},
           {"name": "c", "inputs": ["y", "w"], "outputs": ["v"], "next": {"v": "w"}}]
    put("tasks", "step", b"\1" + json.dumps({"tensors": tensors, "ops": ops}).encode())
    put("tasks", "steady", b"\x12" + json.dumps({"tensors": tensors, "ops": ops}).encode())
    chain = [{"name": f"t{i}", "bytes": 1 << i} for i in range(9)]
    links = [{"name": f"o{i}", "inputs": [f"t{i}", "t0"], "outputs": [f"t{i + 1}"]} for i in range(8)]
    put("tasks", "chain", b"\x08" + json.dumps({"tensors": chain, "ops": links}).encode())
    put("partition", "list", "[[0, 2], [2, 6]]")
    put("partition", "replay", '{"parts": [[0, 2], [2, 6]], "splits": [{"epoch": 1, "parts": [[0, 3], [3, 6]]}, {"epoch": 2, "parts": [[0, 2], [2, 6]]}]}')
    put("partition", "small-run", '{"parts": [[0, 6], [6, 6]]}')
    put("assignment", "text", "0\n2\n1\n0\n2\n2\n")
    put("assignment", "array", ints([0, 2, 1, 0, 2, 2]))
    put("degrees", "plain", b"\0# degree vertices clustering\n0 3\n1 40 0\n2 30 0.5\n3,20,0.25\n7 4 0.9\n15 1 0.1\n")
    put("degrees", "halved", b"\1" + b"2 300\n4 50 1\n")
    put("dataset", "bytes", bytes(range(256)))


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/debug/lapidary")
    shutil.rmtree(SEEDS, ignore_errors=True)
    arrays()
    texts()
    folders()
    trained(program)
    texts_of_plans(program)
    for folder in sorted(SEEDS.iterdir()):
        found = files(folder)
        print(f"{folder.name:14} {len(found):3} seeds, {sum(path.stat().st_size for path in found):6} bytes")


if __name__ == "__main__":
    main()
