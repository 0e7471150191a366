//! Edge weights from every kind of file that may hold them, and what is refused.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use lapidary::dataset::Dataset;
use lapidary::dataset::import::{EdgeWeights, Fate, Format, Imported, Join, Options, import};

use crate::common::{archive, npy};

const KEEP: Options<'_> = with(EdgeWeights::Keep);
const DROP: Options<'_> = with(EdgeWeights::Drop);

const fn with(edge_weights: EdgeWeights<'_>) -> Options<'_> {
    Options { edge_weights, ..plain() }
}

/// The default options, as a constant.
const fn plain<'a>() -> Options<'a> {
    Options {
        name: None,
        duplicates: None,
        self_loops: None,
        isolated: None,
        symmetrise: None,
        edge_weights: EdgeWeights::Guess,
        join: None,
        split: 0,
        random_split: None,
        header: None,
        vertices: None,
        columns: lapidary::dataset::import::TableColumns { key: None, label: None, features: None },
        vertex_order: None,
        missing: lapidary::dataset::import::Missing::Refuse,
        features: None,
        labels: None,
        splits: [None; 3],
        scratch: None,
        watch: None,
    }
}

/// A folder with one file.
struct Source {
    dir: tempfile::TempDir,
    path: PathBuf,
}

fn file(name: &str, bytes: impl AsRef<[u8]>) -> Source {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    Source { dir, path }
}

fn packed(text: &str) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(text.as_bytes()).unwrap();
    packer.finish().unwrap()
}

impl Source {
    fn read(&self, kind: Format, options: &Options<'_>) -> Imported {
        import(kind, &self.path, options).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()))
    }

    #[track_caller]
    fn refused(&self, kind: Format, options: &Options<'_>, words: &[&str]) {
        let error = import(kind, &self.path, options).map(|_| ()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
}

/// The edges `(source, destination, weight)` row by row.
fn edges(data: &Dataset) -> Vec<(u32, u32, f32)> {
    let (graph, weights) = (data.graph(), data.edge_weights().expect("it has weights"));
    let row = |v: usize| graph.edges(v).map(move |i| (graph.indices()[i], v as u32, weights[i]));
    (0..graph.vertex_count()).flat_map(row).collect()
}

#[track_caller]
fn dropped(got: &Imported, values: u64, note: &str) {
    assert!(got.dataset.edge_weights().is_none());
    assert_eq!((got.report.values_dropped, &got.report.edge_weights), (values, &None));
    let named = got.report.notes.iter().any(|found| found.contains("option `edge_weights`"));
    let noted = got.report.notes.iter().any(|found| !note.is_empty() && found.contains(note));
    assert_eq!((named, noted), (!note.is_empty(), !note.is_empty()), "{:?}", got.report.notes);
}

fn ints(values: &[i64]) -> Vec<u8> {
    npy("<i8", &format!("({},)", values.len()), bytemuck::cast_slice(values))
}

fn floats(values: &[f32]) -> Vec<u8> {
    npy("<f4", &format!("({},)", values.len()), bytemuck::cast_slice(values))
}

#[test]
fn a_titled_column_of_an_edge_list_holds_weights() {
    let want = [(1, 0, -2.0), (0, 1, 0.5), (2, 2, 1e-3)];
    let texts = [
        ("g.csv", "source,target,weight\n0,1,0.5\n1,0,-2\n2,2,1e-3\n"),
        ("g.csv", "from,to,W\n0,1,0.5\n1,0,-2\n2,2,1e-3\n"),
        ("g.csv", "a,b,value\n0,1,.5\n1,0,-2.0\n2,2,0.001\n"),
        ("g.txt", "# comment\nFromNodeId ToNodeId Edge_Weight\n0 1 0.5\n% more\n1  0\t-2\n2 2 1e-3\n"),
        ("g.csv", "weight,target,source\n0.5,1,0\n-2,0,1\n1e-3,2,2\n"),
        ("g.csv", "source,target,time,weight\n0,1,9,0.5\n1,0,9,-2\n2,2,,1e-3\n"),
        ("g.csv", "\"source\",\"target\",\"weight\"\n\"0\",\"1\",\"0.5\"\n1,0,-2\n2,2, 1e-3 \n"),
    ];
    for (name, text) in texts {
        for bytes in [text.as_bytes().to_vec(), packed(text)] {
            let got = file(name, bytes).read(Format::Edges, &plain());
            assert_eq!(edges(&got.dataset), want, "{text}");
            assert!(got.report.edge_weights.as_ref().is_some_and(|from| from.contains("column")), "{text}");
            let times = if text.contains("time") { 2 } else { 0 };
            assert_eq!(got.report.values_dropped, times, "{text}");
        }
        let got = file(name, text).read(Format::Edges, &DROP);
        dropped(&got, 3, "");
    }
}

#[test]
fn names_and_large_ids_have_weights_too() {
    let got = file("g.csv", "person,friend,weight\nann,bob,2\nbob,cy,3\n").read(Format::Edges, &plain());
    assert_eq!(edges(&got.dataset), [(0, 1, 2.0), (1, 2, 3.0)]);
    let big = "source,target,w\n99999999999,5,2\n5,7,3\n";
    let got = file("g.csv", big).read(Format::Edges, &plain());
    assert_eq!(edges(&got.dataset), [(2, 0, 2.0), (0, 1, 3.0)]);
    // A table numbers the vertices otherwise; a vertex without a row goes with its edges and their weights.
    let table = file("v.csv", "name,x\ncy,1\nbob,2\n");
    let options = Options { vertices: Some(&table.path), missing: lapidary::dataset::import::Missing::Drop, ..plain() };
    let got = file("g.csv", "source,target,weight\nann,bob,2\nbob,cy,3\ncy,bob,4\n").read(Format::Edges, &options);
    assert_eq!(edges(&got.dataset), [(1, 0, 3.0), (0, 1, 4.0)]);
}

#[test]
fn a_column_of_unknown_meaning_is_kept_only_if_asked_for() {
    let text = "0,1,5\n1,2,3\n";
    let got = file("g.csv", text).read(Format::Edges, &plain());
    dropped(&got, 2, "column 3 was left out, since its meaning is unknown; set option `edge_weights` to 3");
    for choice in [EdgeWeights::Keep, EdgeWeights::Column("3")] {
        let got = file("g.csv", text).read(Format::Edges, &with(choice));
        assert_eq!(edges(&got.dataset), [(0, 1, 5.0), (1, 2, 3.0)]);
        assert_eq!(got.report.edge_weights.as_deref(), Some("column 3"));
    }
    let titled = "source,target,time,rating\n0,1,7,5\n1,2,8,3\n";
    dropped(&file("g.csv", titled).read(Format::Edges, &plain()), 2, "column 3 (`time`), column 4 (`rating`)");
    for column in ["rating", "4"] {
        let got = file("g.csv", titled).read(Format::Edges, &with(EdgeWeights::Column(column)));
        assert_eq!(edges(&got.dataset), [(0, 1, 5.0), (1, 2, 3.0)]);
        assert_eq!(got.report.edge_weights.as_deref(), Some("column 4 (`rating`)"));
    }
    file("g.csv", titled).refused(Format::Edges, &KEEP, &["`keep`", "one of column 3 (`time`), column 4 (`rating`)"]);
    for column in ["5", "0", "1", "source", "stars", "-1", ""] {
        let options = with(EdgeWeights::Column(column));
        file("g.csv", titled).refused(Format::Edges, &options, &["option `edge_weights`", "one of column 3"]);
    }
    // A column of text is no weight.
    dropped(&file("g.csv", "0,1,x\n1,2,y\n").read(Format::Edges, &plain()), 2, "");
    file("g.csv", "0,1,x\n1,2,y\n").refused(Format::Edges, &KEEP, &["no column of numbers"]);
    file("g.txt", "0 1\n1 2\n").refused(Format::Edges, &KEEP, &["`keep`", "no column of numbers"]);
}

#[test]
fn a_weight_that_is_no_finite_number_is_refused_with_its_line() {
    for bad in ["nan", "inf", "-Infinity", "1e50", "x", "", "0x1", "1;2", "\"\""] {
        for first in ["source,target,weight\n0,1,1\n", "source,target,weight\nann,bob,1\n", "0,1,1\n"] {
            let choice = if first.starts_with('0') { EdgeWeights::Column("3") } else { EdgeWeights::Guess };
            let text = format!("{first}1,0,{bad}\n0,2,1\n");
            let line = format!("line {} has no finite number in column 3", 1 + first.lines().count());
            file("g.csv", text).refused(Format::Edges, &with(choice), &["g.csv: ", &line, "option `edge_weights`"]);
        }
    }
    // A line that lacks the column.
    file("g.txt", "0 1 5\n1 2\n").refused(Format::Edges, &with(EdgeWeights::Column("3")), &["line 2 has no finite"]);
    let sum = "source,target,weight\n0,1,3e38\n0,1,3e38\n";
    file("g.csv", sum).refused(Format::Edges, &plain(), &["edge 0: 0 -> 1 has the weight inf"]);
}

#[test]
fn weights_of_repeated_edges_are_joined() {
    let text = "source,target,weight\n0,1,1\n0,1,2\n1,0,7\n1,2,4\n2,2,1\n2,2,2\n";
    let of = |options: Options<'_>| {
        let got = file("g.csv", text).read(Format::Edges, &options);
        (edges(&got.dataset), got.report.notes.join("; "))
    };
    let join = |join| Options { join: Some(join), ..plain() };
    let one_way = |a, b| vec![(1, 0, 7.0), (0, 1, a), (1, 2, 4.0), (2, 2, b)];
    assert_eq!(of(plain()).0, one_way(3.0, 3.0));
    assert!(of(plain()).1.contains("the weights of a repeated edge were added"));
    assert_eq!(of(join(Join::Sum)).0, one_way(3.0, 3.0));
    assert_eq!(of(join(Join::Mean)).0, one_way(1.5, 1.5));
    assert_eq!(of(join(Join::Max)).0, one_way(2.0, 2.0));
    assert!(of(join(Join::Max)).1.contains("is the max of those"));
    let both = |options: Options<'_>| of(Options { symmetrise: Some(true), ..options });
    let two_way = |a, b| vec![(1, 0, a), (0, 1, a), (2, 1, 4.0), (1, 2, 4.0), (2, 2, b)];
    assert_eq!(both(plain()).0, two_way(5.0, 3.0));
    assert!(both(plain()).1.contains("each has the mean of the two"));
    assert_eq!(both(join(Join::Sum)).0, two_way(10.0, 3.0));
    assert_eq!(both(join(Join::Mean)).0, two_way(10.0 / 3.0, 1.5));
    assert_eq!(both(join(Join::Max)).0, two_way(7.0, 2.0));
    // Kept repeats are not joined.
    let kept = of(Options { duplicates: Some(Fate::Keep), self_loops: Some(Fate::Drop), ..plain() });
    assert_eq!(kept.0, [(1, 0, 7.0), (0, 1, 1.0), (0, 1, 2.0), (1, 2, 4.0)]);
    let source = file("g.csv", text);
    let options = Options { duplicates: Some(Fate::Keep), ..join(Join::Sum) };
    source.refused(Format::Edges, &options, &["option `join` is `sum`", "option `duplicates`"]);
    let options = Options { edge_weights: EdgeWeights::Drop, ..join(Join::Mean) };
    source.refused(Format::Edges, &options, &["option `join` is `mean`", "no weights"]);
}

#[test]
fn weights_go_with_isolated_vertices() {
    let text = "source,target,weight\n0,0,9\n1,3,2\n3,3,4\n2,2,5\n";
    let options = Options { isolated: Some(Fate::Drop), ..plain() };
    let got = file("g.csv", text).read(Format::Edges, &options);
    assert_eq!(edges(&got.dataset), [(0, 1, 2.0), (1, 1, 4.0)]);
}

fn matrix(kind: &str, entries: &str) -> Source {
    let cells = entries.lines().count();
    file("m.mtx", format!("%%MatrixMarket matrix coordinate {kind}\n% more\n3 3 {cells}\n{entries}"))
}

#[test]
fn values_of_a_matrix_market_file_are_weights() {
    let read = |kind: &str, entries: &str| matrix(kind, entries).read(Format::MatrixMarket, &plain());
    let got = read("real general", "1 2 0.5\n1 2 0.25\n3 1 -2e0\n");
    assert_eq!(edges(&got.dataset), [(2, 0, -2.0), (0, 1, 0.75)]);
    assert_eq!(got.report.edge_weights.as_deref(), Some("the values of the matrix"));
    assert_eq!((got.report.values_dropped, got.report.duplicates), (0, 1));
    let got = read("integer symmetric", "2 1 5\n3 3 7\n");
    assert_eq!(edges(&got.dataset), [(1, 0, 5.0), (0, 1, 5.0), (2, 2, 7.0)]);
    assert!(!got.dataset.directed());
    let got = read("real skew-symmetric", "2 1 5\n");
    assert_eq!(edges(&got.dataset), [(1, 0, 5.0), (0, 1, -5.0)]);
    dropped(&read("pattern general", "1 2\n"), 0, "");
    dropped(&read("complex hermitian", "2 1 5 1\n"), 1, "");
    dropped(&matrix("real general", "1 2 0.5\n").read(Format::MatrixMarket, &DROP), 1, "");
    let third = matrix("real general", "1 2 0.5\n").read(Format::MatrixMarket, &with(EdgeWeights::Column("3")));
    assert_eq!(edges(&third.dataset), [(0, 1, 0.5)]);
    matrix("pattern general", "1 2\n").refused(Format::MatrixMarket, &KEEP, &["`keep`", "pattern"]);
    matrix("complex general", "1 2 1 1\n").refused(Format::MatrixMarket, &KEEP, &["`keep`", "complex"]);
    let other = with(EdgeWeights::Column("4"));
    matrix("real general", "1 2 1 1\n").refused(Format::MatrixMarket, &other, &["`4`", "third column"]);
    for bad in ["1 2 nan", "1 2 inf", "1 2", "1 2 x"] {
        let source = matrix("real general", &format!("2 2 1\n{bad}\n"));
        source.refused(Format::MatrixMarket, &plain(), &["m.mtx", "line 5 has no finite value", bad]);
    }
}

/// An archive of the in-edges 0 -> 1, 2 -> 1, 1 -> 2, out of order.
fn csr(more: &[(&str, Vec<u8>)]) -> Source {
    let arrays = [("indptr.npy", ints(&[0, 0, 2, 3])), ("indices.npy", ints(&[2, 0, 1]))];
    file("g.npz", archive(&[&arrays[..], more].concat()))
}

/// An archive of the edges 2 -> 1, 0 -> 1, 1 -> 2.
fn listed(more: &[(&str, Vec<u8>)]) -> Source {
    let ends = [2i64, 0, 1, 1, 1, 2];
    let arrays = [("edge_index.npy", npy("<i8", "(2, 3)", bytemuck::cast_slice(&ends)))];
    file("g.npz", archive(&[&arrays[..], more].concat()))
}

#[test]
fn values_of_archives_are_weights() {
    let want = [(0, 1, 0.5), (2, 1, 4.0), (1, 2, -1.0)];
    let values = floats(&[4.0, 0.5, -1.0]);
    let doubles: Vec<u8> = npy("<f8", "(3, 1)", bytemuck::cast_slice(&[4.0f64, 0.5, -1.0]));
    for (name, bytes) in [("data", &values), ("edge_weight", &values), ("edge_weights", &values), ("data", &doubles)] {
        let source = csr(&[(&format!("{name}.npy"), bytes.clone())]);
        for options in [plain(), KEEP, with(EdgeWeights::Column(name)), with(EdgeWeights::Column("1"))] {
            let got = source.read(Format::Npz, &options);
            assert_eq!(edges(&got.dataset), want);
            assert_eq!(got.report.edge_weights.as_deref(), Some(name));
            assert!(got.report.notes.is_empty(), "{:?}", got.report.notes);
        }
        assert!(source.read(Format::Npz, &DROP).report.values_dropped == 3);
    }
    for name in ["edge_weight", "edge_weights"] {
        let got = listed(&[(&format!("{name}.npy"), values.clone())]).read(Format::Npz, &plain());
        assert_eq!(edges(&got.dataset), want);
    }
    // Values of 1 say nothing, unless they are asked for.
    let ones = csr(&[("data.npy", ints(&[1, 1, 1]))]);
    dropped(&ones.read(Format::Npz, &plain()), 0, "");
    assert_eq!(edges(&ones.read(Format::Npz, &KEEP).dataset), [(0, 1, 1.0), (2, 1, 1.0), (1, 2, 1.0)]);
    for source in [csr(&[]), listed(&[])] {
        source.refused(Format::Npz, &KEEP, &["`keep`", "has no values of edges"]);
        source.refused(Format::Npz, &with(EdgeWeights::Column("2")), &["`2`", "has no values of edges"]);
        source.refused(Format::Npz, &with(EdgeWeights::Column("w")), &["`w`", "an array of"]);
    }
    let options = Options { symmetrise: Some(true), ..plain() };
    let got = csr(&[("data.npy", values)]).read(Format::Npz, &options);
    assert_eq!(edges(&got.dataset), [(1, 0, 0.5), (0, 1, 0.5), (2, 1, 1.5), (1, 2, 1.5)]);
}

#[test]
fn attributes_of_edges_are_kept_only_if_asked_for() {
    let one = listed(&[("edge_attr.npy", floats(&[4.0, 0.5, -1.0]))]);
    dropped(&one.read(Format::Npz, &plain()), 0, "edge_attr was left out");
    let want = [(0, 1, 0.5), (2, 1, 4.0), (1, 2, -1.0)];
    assert_eq!(edges(&one.read(Format::Npz, &KEEP).dataset), want);
    assert_eq!(edges(&one.read(Format::Npz, &with(EdgeWeights::Column("edge_attr"))).dataset), want);
    let cells: [f32; 6] = [4.0, 7.0, 0.5, 8.0, -1.0, 9.0];
    let wide = listed(&[("edge_attr.npy", npy("<f4", "(3, 2)", bytemuck::cast_slice(&cells)))]);
    assert_eq!(edges(&wide.read(Format::Npz, &with(EdgeWeights::Column("1"))).dataset), want);
    let got = wide.read(Format::Npz, &with(EdgeWeights::Column("2")));
    assert_eq!(edges(&got.dataset), [(0, 1, 8.0), (2, 1, 7.0), (1, 2, 9.0)]);
    assert_eq!(got.report.edge_weights.as_deref(), Some("column 2 of edge_attr"));
    wide.refused(Format::Npz, &KEEP, &["1 to 2", "several columns"]);
    wide.refused(Format::Npz, &with(EdgeWeights::Column("3")), &["1 to 2"]);
}

#[test]
fn damaged_values_of_archives_are_refused() {
    for (bad, words) in [
        (floats(&[1.0, f32::NAN, 1.0]), ["[data]: element 1 is NaN", "finite weight"]),
        (floats(&[1.0, 2.0, f32::INFINITY]), ["[data]: element 2 is inf", "finite weight"]),
        (npy("<f8", "(3,)", bytemuck::cast_slice(&[1e300f64, 2.0, 3.0])), ["element 0 is inf", "finite weight"]),
        (floats(&[2.0, 1.0]), ["[data] has shape [2]", "[3] (one weight per edge)"]),
        (floats(&[2.0; 4]), ["[data] has shape [4]", "[3] (one weight per edge)"]),
        (npy("<f4", "(3, 2)", bytemuck::cast_slice(&[2.0f32; 6])), ["shape [3, 2]", "[3] (one weight per edge)"]),
        (npy("<f4", "()", bytemuck::cast_slice(&[2.0f32])), ["shape []", "[3] (one weight per edge)"]),
        (floats(&[2.0; 3])[..70].to_vec(), ["[data]", ""]),
        (npy("<c8", "(3,)", bytemuck::cast_slice(&[2.0f32; 6])), ["'<c8'", "floats"]),
        (b"text".to_vec(), ["[data]", ".npy"]),
    ] {
        csr(&[("data.npy", bad.clone())]).refused(Format::Npz, &plain(), &words);
        if words[0].contains("element") {
            // Values that are left out need not be finite.
            assert!(csr(&[("data.npy", bad)]).read(Format::Npz, &DROP).dataset.edge_weights().is_none());
        }
    }
    // Bad offsets and sources are found with weights, too.
    let values = ("data.npy", floats(&[2.0; 3]));
    for (indptr, indices) in [([0, 2, 1, 3], [0, 1, 2]), ([0, 1, 2, 4], [0, 1, 2]), ([0, 1, 2, 3], [0, 1, 3])] {
        let arrays = [("indptr.npy", ints(&indptr)), ("indices.npy", ints(&indices)), values.clone()];
        file("g.npz", archive(&arrays)).refused(Format::Npz, &plain(), &["g.npz["]);
    }
}

/// A folder of DGL's Reddit with the edges 0 -> 1, 0 -> 1, 2 -> 0.
fn reddit(data: Vec<u8>) -> Source {
    let graph = archive(&[
        ("row.npy", ints(&[0, 0, 2])),
        ("col.npy", ints(&[1, 1, 0])),
        ("data.npy", data),
        ("shape.npy", ints(&[3, 3])),
    ]);
    let mut source = file("reddit_graph.npz", graph);
    let x = npy("<f4", "(3, 1)", bytemuck::cast_slice(&[1f32, 2.0, 3.0]));
    let arrays = [("feature.npy", x), ("label.npy", ints(&[0, 1, 0])), ("node_types.npy", ints(&[1, 2, 3]))];
    fs::write(source.dir.path().join("reddit_data.npz"), archive(&arrays)).unwrap();
    source.path = source.dir.path().into();
    source
}

#[test]
fn values_of_sparse_matrices_are_weights() {
    let got = reddit(floats(&[1.0, 2.0, 5.0])).read(Format::Reddit, &plain());
    assert_eq!(edges(&got.dataset), [(2, 0, 5.0), (0, 1, 3.0)]);
    dropped(&reddit(floats(&[1.0, 2.0, 5.0])).read(Format::Reddit, &DROP), 2, "");
    dropped(&reddit(floats(&[1.0; 3])).read(Format::Reddit, &plain()), 0, "");
    reddit(floats(&[1.0, f32::NAN, 5.0])).refused(Format::Reddit, &plain(), &["[data]: element 1 is NaN"]);
    reddit(floats(&[1.0; 2])).refused(Format::Reddit, &plain(), &["[data] has shape [2]"]);
    // The rows of these matrices are sources: 0 -> 1, 0 -> 2, 1 -> 0, 2 -> 2. Loops are dropped, reverses are added.
    let arrays = [
        ("adj_indptr.npy", ints(&[0, 2, 3, 4])),
        ("adj_indices.npy", ints(&[1, 2, 0, 2])),
        ("adj_data.npy", floats(&[1.0, 4.0, 2.0, 9.0])),
        ("adj_shape.npy", ints(&[3, 3])),
        ("labels.npy", ints(&[0, 1, 0])),
    ];
    let source = file("g.npz", archive(&arrays));
    for kind in [Format::GnnBenchmark, Format::Npz] {
        let got = source.read(kind, &plain());
        assert_eq!(edges(&got.dataset), [(1, 0, 1.5), (2, 0, 4.0), (0, 1, 1.5), (0, 2, 4.0)]);
        assert_eq!(got.report.edge_weights.as_deref(), Some("adj_data"));
    }
    dropped(&source.read(Format::Npz, &DROP), 3, "");
}

/// A folder of OGB with the edges 0 -> 1, 2 -> 1, 1 -> 0.
fn ogb(files: &[(&str, &str)]) -> Source {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    fs::create_dir(&raw).unwrap();
    let edges = [("edge.csv", "0,1\n2,1\n1,0\n"), ("num-node-list.csv", "3\n")];
    for (name, text) in edges.iter().chain(files) {
        let bytes = if name.ends_with(".gz") { packed(text) } else { text.as_bytes().to_vec() };
        fs::write(raw.join(name), bytes).unwrap();
    }
    let path = dir.path().into();
    Source { dir, path }
}

#[test]
fn ogb_has_a_file_of_weights_or_of_features_of_edges() {
    let want = [(1, 0, 3.0), (0, 1, 0.5), (2, 1, 2.0)];
    for name in ["edge-weight.csv", "edge_weight.csv.gz"] {
        let got = ogb(&[(name, "0.5\n2\n3.0\n\n")]).read(Format::Ogb, &plain());
        assert_eq!(edges(&got.dataset), want);
        assert_eq!(got.report.edge_weights.as_deref(), Some(name));
    }
    let wide = ogb(&[("edge-feat.csv.gz", "9,0.5\n8,2\n7,3\n")]);
    let got = wide.read(Format::Ogb, &plain());
    dropped(&got, 0, "edge-feat");
    assert_eq!(edges(&wide.read(Format::Ogb, &with(EdgeWeights::Column("2"))).dataset), want);
    wide.refused(Format::Ogb, &KEEP, &["1 to 2", "edge-feat.csv.gz"]);
    assert_eq!(edges(&ogb(&[("edge-feat.csv", "0.5\n2\n3\n")]).read(Format::Ogb, &KEEP).dataset), want);
    ogb(&[]).refused(Format::Ogb, &KEEP, &["neither edge-weight nor edge-feat"]);
    for (text, words) in [
        ("1\n2\n", "has 2 rows, expected 3"),
        ("1\n2\n3\n4\n", "has more than 3 rows"),
        ("1\nnan\n3\n", "line 2 has the weight NaN"),
        ("1\n2\ninf\n", "line 3 has the weight inf"),
        ("1\nx\n3\n", "line 2 has `x`"),
        ("1\n2,2\n3\n", "line 2 has 2 numbers"),
        ("1\n\n2\n3\n", "line 2 is empty"),
        ("", "starts without a row"),
    ] {
        ogb(&[("edge-weight.csv", text)]).refused(Format::Ogb, &plain(), &["edge-weight.csv", words]);
    }
    let symmetrise = Options { symmetrise: Some(true), ..plain() };
    let got = ogb(&[("edge-weight.csv", "0.5\n2\n3\n")]).read(Format::Ogb, &symmetrise);
    assert_eq!(edges(&got.dataset), [(1, 0, 1.75), (0, 1, 1.75), (2, 1, 2.0), (1, 2, 2.0)]);
}

#[test]
fn files_of_kinds_without_weights_have_none_to_keep() {
    let source = file("x", "");
    for kind in [Format::Planetoid, Format::Heterophilous, Format::Ppi, Format::Lux] {
        source.refused(kind, &KEEP, &["option `edge_weights` is `keep`", "hold no weights"]);
        source.refused(kind, &with(EdgeWeights::Column("3")), &["option `edge_weights` is `3`"]);
    }
}

fn command(source: &Path, dst: &Path, flags: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = assert_cmd::Command::cargo_bin("lapidary").unwrap();
    command.args(["data", "import", "edges"]).arg(source).arg(dst).args(flags).assert()
}

#[test]
fn the_command_keeps_weights_and_says_so() {
    let source = file("g.csv", "source,target,weight\n0,1,0.5\n1,0,2\n0,1,-1\n2,0,0\n");
    let dst = source.dir.path().join("set");
    let done = command(&source.path, &dst, &["--join", "max", "--json"]).success();
    let line: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(line["import"]["edge_weights"], "column 3 (`weight`)");
    let weights = &line["edge_weights"];
    assert_eq!([&weights["min"], &weights["max"], &weights["mean"]], [0.0, 2.0, 2.5 / 3.0]);
    assert_eq!((&weights["negative"], &weights["zero"]), (&0.into(), &1.into()));
    assert_eq!(weights["symmetric"], false);
    assert_eq!(edges(&Dataset::open(&dst).unwrap()), [(1, 0, 2.0), (2, 0, 0.0), (0, 1, 0.5)]);
    let mut info = assert_cmd::Command::cargo_bin("lapidary").unwrap();
    let text = info.args(["data", "info"]).arg(&dst).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("0 to 2, mean 0.8333, 1 zero, not symmetric"), "{text}");
    let other = source.dir.path().join("other");
    let text = command(&source.path, &other, &["--edge-weights", "drop"]).success().get_output().stdout.clone();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("dropped from 4 edges") && text.contains("edge weights"), "{text}");
    assert!(!other.join("edge_weights.npy").exists());
    let third = source.dir.path().join("third");
    let text = command(&source.path, &third, &["--edge-weights", "4"]).failure().get_output().stderr.clone();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("--edge-weights is `4`, expected one of column 3 (`weight`)"), "{text}");
    command(&source.path, &third, &["--join", "min"]).code(2);
    assert!(!third.exists());
    let plain = file("g.txt", "0 1 4\n1 0 5\n");
    let text = command(&plain.path, &third, &[]).success().get_output().stdout.clone();
    assert!(String::from_utf8(text).unwrap().contains("set --edge-weights to 3 to keep column 3 as weights"));
}
