//! Damaged or malicious files: one clear error each, nothing written outside the destination, and nothing left there.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::common::{archive, npy};
use assert_cmd::Command;
use flate2::Compression;
use flate2::write::GzEncoder;
use lapidary::dataset::import::{Format, Options, import};
use proptest::prelude::*;
use tempfile::TempDir;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import").join(path)
}

/// Returns the command with at most 1 GiB of address space, if the shell supports the limit.
fn bounded() -> Command {
    let mut command = Command::new("sh");
    let limited = "ulimit -v 1048576 2>/dev/null; exec \"$0\" \"$@\"";
    command.args(["-c", limited]).arg(assert_cmd::cargo::cargo_bin("lapidary")).env("RAYON_NUM_THREADS", "2");
    command
}

fn copy_tree(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            copy_tree(&path, &to.join(path.file_name().unwrap()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

/// A copy of a fixture in its own folder, which tests then damage.
struct Copy {
    folder: TempDir,
    source: PathBuf,
}

impl Copy {
    fn of(path: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source").join(Path::new(path).file_name().unwrap());
        fs::create_dir_all(source.parent().unwrap()).unwrap();
        copy_tree(&fixture(path), &source);
        Self { folder, source }
    }

    fn put(self, file: &str, bytes: &[u8]) -> Self {
        let path = if file.is_empty() { self.source.clone() } else { self.source.join(file) };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    /// Runs the import command. It must fail with one `error:` line that contains all of `wanted`, and leave nothing
    /// behind.
    fn fails(&self, kind: &str, wanted: &[&str]) -> String {
        self.fails_with(1, kind, &[], wanted)
    }

    fn fails_with(&self, code: i32, kind: &str, flags: &[&str], wanted: &[&str]) -> String {
        let here = self.folder.path().join("here");
        fs::create_dir_all(&here).unwrap();
        let mut command = bounded();
        command.args(["data", "import", kind]).arg(&self.source).arg(here.join("set")).args(flags);
        let done = command.assert().code(code);
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert_eq!(text.lines().filter(|line| line.starts_with("error:")).count(), 1, "{text}");
        assert!(!text.contains("panicked"), "{text}");
        for word in wanted {
            assert!(text.contains(word), "no `{word}` in: {text}");
        }
        assert_eq!(fs::read_dir(&here).unwrap().count(), 0, "something was left behind");
        let mut beside: Vec<_> =
            fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        beside.sort();
        assert_eq!(beside, ["here", "source"], "something was written elsewhere");
        text
    }
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    gz.write_all(text).unwrap();
    gz.finish().unwrap()
}

fn ints(values: &[i64]) -> Vec<u8> {
    npy("<i8", &format!("({},)", values.len()), bytemuck::cast_slice(values))
}

#[test]
fn sizes_in_headers_that_are_larger_than_the_file() {
    let lux = fs::read(fixture("lux/roc.add_self_edge.lux")).unwrap();
    for at in [0, 4] {
        let mut bytes = lux.clone();
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        Copy::of("lux/roc.add_self_edge.lux").put("", &bytes).fails("lux", &["cut short"]);
    }
    Copy::of("lux/roc.add_self_edge.lux").put("", &lux[..7]).fails("lux", &["cut short"]);
    Copy::of("lux/roc.add_self_edge.lux").put("", &[&lux[..], b"more"].concat()).fails("lux", &["4 bytes after"]);
    let huge = npy("<f8", "(6, 1000000000000)", b"few");
    Copy::of("graphsaint").put("feats.npy", &huge).fails("graphsaint", &["feats.npy", "cut short"]);
    Copy::of("graphsaint").put("feats.npy", &npy("<f8", "(6, 4)", &[0; 64])).fails("graphsaint", &["cut short"]);
    let adj = |shape: &[i64], indptr: &[i64], indices: &[i64]| {
        archive(&[
            ("adj_shape.npy", ints(shape)),
            ("adj_indptr.npy", ints(indptr)),
            ("adj_indices.npy", ints(indices)),
            ("adj_data.npy", npy("|b1", "(2,)", &[1, 1])),
        ])
    };
    let set = |bytes: &[u8]| Copy::of("gnn_benchmark.npz").put("", bytes);
    set(&adj(&[1 << 40, 1 << 40], &[0, 1, 2], &[1, 0])).fails("gnn-benchmark", &["adj_indptr", "[3]"]);
    set(&adj(&[-1, 2], &[0, 1, 2], &[1, 0])).fails("gnn-benchmark", &["adj_shape", "-1"]);
    set(&adj(&[2, 3], &[0, 1, 2], &[1, 0])).fails("gnn-benchmark", &["square"]);
    set(&adj(&[2, 2], &[0, 2, 1], &[1, 0])).fails("gnn-benchmark", &["adj_indptr", "rise"]);
    set(&adj(&[2, 2], &[0, 1, 9], &[1, 0])).fails("gnn-benchmark", &["adj_indptr", "rise"]);
    set(&adj(&[2, 2], &[0, 1, 2], &[1, 2])).fails("gnn-benchmark", &["adj_indices", "element 1 is 2"]);
    Copy::of("mtx/general.mtx")
        .put("", b"%%MatrixMarket matrix coordinate pattern general\n4294967290 4294967290 1\n1 1\n")
        .fails("mtx", &["claims 4294967290 vertices", "1 edges"]);
    Copy::of("mtx/general.mtx")
        .put("", b"%%MatrixMarket matrix coordinate pattern general\n3 3 99999999999\n1 1\n")
        .fails("mtx", &["after 1 entries", "99999999999"]);
    Copy::of("ogb")
        .put("raw/num-node-list.csv", b"4294967290\n")
        .fails("ogb", &["claims 4294967290 vertices", "6 edges"]);
    Copy::of("ogb").put("raw/num-node-list.csv", b"5\n").fails("ogb", &["edge 5 is 5,2", "5 vertices"]);
    Copy::of("ogb").put("raw/num-node-list.csv", b"7\n").fails("ogb", &["node-feat.csv.gz", "6 rows, expected 7"]);
    Copy::of("ogb").put("raw/num-node-list.csv", b"3\n3\n").fails("ogb", &["more than the 1 rows"]);
    Copy::of("ogb").put("raw/num-edge-list.csv", b"7\n").fails("ogb", &["6 edges", "says 7"]);
}

#[test]
fn a_bomb_is_not_unfolded() {
    // A header that promises more than deflate can hold, and an honest 64 MiB that a graph of 3 vertices cannot use.
    let zeros = vec![0u8; 64 << 20];
    let mut members = vec![
        ("adj_shape.npy", ints(&[2, 2])),
        ("adj_indptr.npy", ints(&[0, 1, 2])),
        ("adj_indices.npy", npy("<i8", "(8388608,)", &zeros)),
    ];
    let bomb = archive(&members);
    assert!(bomb.len() < 1 << 20);
    Copy::of("gnn_benchmark.npz").put("", &bomb).fails("gnn-benchmark", &["adj_indptr", "8388608"]);
    // The same member with a false size: the directory states four times as many bytes.
    members[2].1 = npy("<i8", "(4398046511104,)", &zeros[..1024]);
    Copy::of("gnn_benchmark.npz").put("", &archive(&members)).fails("gnn-benchmark", &["adj_indices", "cut short"]);
    // Text: an endless line, and endless columns.
    let gz = packed(&zeros);
    assert!(gz.len() < 1 << 17);
    Copy::of("edges/snap.txt.gz").put("", &gz).fails("edges", &["a line of more than 8 MiB"]);
    Copy::of("ogb").put("raw/edge.csv.gz", &gz).fails("ogb", &["a line of more than 8 MiB"]);
    Copy::of("ogb").put("raw/node-feat.csv.gz", &gz).fails("ogb", &["a line of more than 8 MiB"]);
    let columns = packed(&b"1,".repeat(1_000_000));
    Copy::of("ogb").put("raw/edge.csv.gz", &columns).fails("ogb", &["more than two columns"]);
    let one_row = packed(&[&b"1,".repeat(1_000_000)[..], b"1\n"].concat());
    Copy::of("ogb").put("raw/node-feat.csv.gz", &one_row).fails("ogb", &["1 rows, expected 6"]);
    let many_rows = packed(&b"1\n".repeat(5_000_000));
    Copy::of("ogb").put("raw/node-feat.csv.gz", &many_rows).fails("ogb", &["more than the 6 rows"]);
    let whole = fs::read(fixture("edges/snap.txt.gz")).unwrap();
    Copy::of("edges/snap.txt.gz").put("", &whole[..whole.len() - 9]).fails("edges", &["snap.txt.gz"]);
}

#[test]
fn names_in_archives_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let absolute = folder.path().join("absolute.npy");
    let absolute = absolute.to_str().unwrap();
    for name in ["../../adj_indptr.npy", "/adj_indptr.npy", "..\\adj_indptr.npy", absolute] {
        let bytes = archive(&[("adj_shape.npy", ints(&[1, 1])), (name, ints(&[0, 0]))]);
        Copy::of("gnn_benchmark.npz").put("", &bytes).fails("gnn-benchmark", &["has no adj_indptr"]);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // Next to the expected members, they are ignored.
    let copy = Copy::of("gnn_benchmark.npz");
    let mut zip =
        zip::ZipWriter::new_append(fs::OpenOptions::new().read(true).write(true).open(&copy.source).unwrap()).unwrap();
    zip.start_file("../../evil", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(b"evil").unwrap();
    zip.finish().unwrap();
    import(Format::Npz, &copy.source, &Options::default()).unwrap();
    assert!(!copy.folder.path().join("evil").exists());
}

#[test]
fn a_pickle_in_an_archive_is_not_run() {
    let touched = tempfile::tempdir().unwrap();
    let code = format!("cos\nsystem\n(S'touch {}/ran'\ntR.", touched.path().display());
    for member in ["adj_shape.npy", "adj_indptr.npy", "adj_indices.npy", "labels.npy"] {
        let mut members: Vec<(&str, Vec<u8>)> = vec![
            ("adj_shape.npy", ints(&[1, 1])),
            ("adj_indptr.npy", ints(&[0, 1])),
            ("adj_indices.npy", ints(&[0])),
            ("labels.npy", ints(&[0])),
        ];
        members.iter_mut().find(|(name, _)| *name == member).unwrap().1 = npy("|O", "(1,)", code.as_bytes());
        let wanted = [member.trim_end_matches(".npy"), "Python objects", "nothing was run"];
        Copy::of("gnn_benchmark.npz").put("", &archive(&members)).fails("gnn-benchmark", &wanted);
    }
    assert_eq!(fs::read_dir(touched.path()).unwrap().count(), 0);
    Copy::of("graphsaint").put("feats.npy", code.as_bytes()).fails("graphsaint", &["feats.npy", "NUMPY"]);
}

#[test]
fn json_that_does_not_end_or_is_something_else() {
    let whole = fs::read(fixture("ppi/train_graph.json")).unwrap();
    for len in [0, 1, 40, whole.len() / 2, whole.len() - 1] {
        Copy::of("ppi").put("train_graph.json", &whole[..len]).fails("ppi", &["train_graph.json", "JSON", "EOF"]);
    }
    let ppi = |text: &str, wanted: &[&str]| {
        drop(Copy::of("ppi").put("valid_graph.json", text.as_bytes()).fails("ppi", wanted))
    };
    ppi(&"[".repeat(1_000_000), &["valid_graph.json", "JSON"]);
    ppi(&format!("{{\"graph\": {}", "[".repeat(1_000_000)), &["JSON", "EOF"]);
    ppi("{\"nodes\": [{\"id\": 0}, {\"id\": 2}]}", &["vertex 2", "2 vertices"]);
    ppi("{\"nodes\": [{\"id\": \"a\"}]}", &["invalid type", "line 1"]);
    ppi("{\"nodes\": [{\"id\": 0}]}", &["1 nodes", "2"]);
    ppi("{\"links\": [{\"source\": 0}]}", &["missing field `target`"]);
    ppi("{\"nodes\": [{\"id\": 0}, {\"id\": 1}]} x", &["trailing"]);
    ppi(
        "{\"directed\": true, \"nodes\": [{\"id\": 0}, {\"id\": 1}]}",
        &["is directed but another split is not, or vice versa"],
    );
    let graphsaint = |file: &str, text: &str, wanted: &[&str]| {
        drop(Copy::of("graphsaint").put(file, text.as_bytes()).fails("graphsaint", wanted));
    };
    graphsaint("class_map.json", "{\"6\": 0}", &["vertex `6`", "0 to 5"]);
    graphsaint("class_map.json", "{\"0\": 0, \"1\": [0]}", &["class_map.json", "list"]);
    graphsaint("class_map.json", "{\"0\": [0, 1], \"1\": [0]}", &["has 1 classes", "2"]);
    graphsaint("class_map.json", "{\"0\": [2]}", &["2 in a list of 0 and 1"]);
    graphsaint("class_map.json", "{\"0\": 99999999999}", &["label", "99999999999"]);
    graphsaint("role.json", "{\"tr\": [0], \"va\": [0], \"te\": []}", &["overlapping"]);
    graphsaint("role.json", "{\"tr\": [9], \"va\": [], \"te\": []}", &["id 9"]);
    graphsaint("role.json", "{\"tr\": [0]}", &["missing field"]);
}

#[test]
fn text_that_is_no_graph() {
    let edges = |text: &[u8], wanted: &[&str]| drop(Copy::of("edges/names.tsv").put("", text).fails("edges", wanted));
    edges(b"", &["no edges"]);
    edges(b"# nothing\n", &["no edges"]);
    edges(b"0 1\n2\n", &["line 2", "one column"]);
    edges(b"a b\n\xff\xfe c\n", &["line 2", "UTF-8"]);
    let lux = |file: &str, text: &[u8], wanted: &[&str]| {
        let copy = Copy::of("lux").put(file, text);
        let copy = Copy { source: copy.source.join("roc"), folder: copy.folder };
        drop(copy.fails("lux", wanted));
    };
    lux("roc.mask", b"Train\nVal\nMaybe\n", &["line 3", "Maybe"]);
    lux("roc.mask", b"Train\n", &["1 lines, expected 6"]);
    lux("roc.label", b"0\n1\n2\n0\n1\n2\n2\n", &["more than the 6 rows"]);
    lux("roc.label", b"0\n1\n2\n0\n1\n0.5\n", &["row 5 has label 0.5"]);
    lux("roc.feats.bin", &[0; 25], &["25 bytes", "6 vertices"]);
    lux("roc.feats.bin", &[0xff; 24], &["NaN"]);
    let mtx =
        |text: &str, wanted: &[&str]| drop(Copy::of("mtx/general.mtx").put("", text.as_bytes()).fails("mtx", wanted));
    let banner = "%%MatrixMarket matrix coordinate pattern general\n";
    mtx("", &["%%MatrixMarket"]);
    mtx("%%MatrixMarket matrix array real general\n2 2\n1\n", &["`array`", "coordinate"]);
    mtx("%%MatrixMarket matrix coordinate pattern upper\n", &["`upper`"]);
    mtx(banner, &["before its size line"]);
    mtx(&format!("{banner}2 3 1\n1 1\n"), &["2 by 3", "square"]);
    mtx(&format!("{banner}%\n\n2 2 1\n0 1\n"), &["(0, 1)", "1 to 2"]);
    mtx(&format!("{banner}2 2 1\n1 3\n"), &["(1, 3)"]);
    mtx(&format!("{banner}2 2 1\n1 1\n2 2\n"), &["more entries than the 1"]);
    mtx(&format!("{banner}2 2 2\n1 1\nx\n"), &["line 4", "not an entry"]);
    Copy::of("ogb").put("raw/node-label.csv", b"0\n1\n2\n0\n1.5\n2\n").fails("ogb", &["row 4 has label 1.5"]);
    Copy::of("ogb").put("raw/node-label.csv", b"0\n1\n2\n\n1\n2\n").fails("ogb", &["line 4 is empty"]);
    Copy::of("ogb").put("split/time/test.csv", b"6\n").fails("ogb", &["id 6"]);
    Copy::of("ogb").put("split/sales/train.csv", b"1\n").fails("ogb", &["2 splits"]);
}

#[test]
fn what_a_kind_does_not_have_is_refused() {
    let other = Copy::of("heterophilous.npz");
    other.fails("gnn-benchmark", &["no adj_indptr", "edges", "node_features"]);
    other.fails("planetoid", &["ind.NAME.*"]);
    other.fails_with(2, "nonsense", &[], &["`nonsense`", "gnn-benchmark", "lux"]);
    other.fails_with(1, "heterophilous", &["--split", "3"], &["--split is 3"]);
    other.fails_with(2, "heterophilous", &["--name", "x"], &["--name"]);
    other.fails_with(2, "npz", &["--features", "x.npy"], &["x.npy"]);
    Copy::of("lux").fails_with(2, "lux", &["--split", "1"], &["--split is 1"]);
    Copy::of("reddit").put("reddit_data.npz", b"PK\x03\x04").fails("reddit", &["not an archive"]);
    for (kind, file) in [("reddit", "reddit_graph.npz"), ("graphsaint", "role.json"), ("ppi", "test_feats.npy")] {
        let copy = Copy::of(kind);
        fs::remove_file(copy.source.join(file)).unwrap();
        copy.fails(kind, &[file, "is missing"]);
    }
}

#[test]
fn a_destination_that_is_taken_is_known_before_the_work() {
    let copy = Copy::of("edges/snap.txt.gz").put("", b"not looked at");
    let taken = copy.folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("mine"), "mine").unwrap();
    let mut command = Command::cargo_bin("lapidary").unwrap();
    command.args(["data", "import", "edges"]).arg(&copy.source).arg(&taken);
    let done = command.assert().code(1);
    assert!(String::from_utf8_lossy(&done.get_output().stderr).contains("not empty"));
    assert_eq!(fs::read_to_string(taken.join("mine")).unwrap(), "mine");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Changes or cuts bytes of real files: the result is an error or a dataset, never a panic.
    #[test]
    fn damaged_files_never_panic(
        which in 0usize..16,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let (kind, tree, file) = [
            (Format::GnnBenchmark, "gnn_benchmark.npz", ""),
            (Format::GnnBenchmark, "gnn_benchmark_odd.npz", ""),
            (Format::Heterophilous, "heterophilous.npz", ""),
            (Format::Heterophilous, "heterophilous_columns.npz", ""),
            (Format::Reddit, "reddit", "reddit_graph.npz"),
            (Format::Reddit, "reddit", "reddit_data.npz"),
            (Format::GraphSaint, "graphsaint", "adj_full.npz"),
            (Format::GraphSaint, "graphsaint_multi", "class_map.json"),
            (Format::Ppi, "ppi", "train_graph.json"),
            (Format::Ppi, "ppi", "test_graph_id.npy"),
            (Format::Ogb, "ogb", "raw/edge.csv.gz"),
            (Format::Edges, "edges/titled.csv", ""),
            (Format::Edges, "edges/names.tsv", ""),
            (Format::MatrixMarket, "mtx/general.mtx", ""),
            (Format::Lux, "lux/roc.add_self_edge.lux", ""),
            (Format::Edges, "edges/huge.txt", ""),
        ][which];
        let original = if file.is_empty() { fixture(tree) } else { fixture(tree).join(file) };
        let mut bytes = fs::read(original).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let copy = Copy::of(tree).put(file, &bytes);
        let _ = import(kind, &copy.source, &Options::default());
    }
}
