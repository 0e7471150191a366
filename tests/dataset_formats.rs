//! Importers, tested with files that numpy and scipy wrote (`fixtures/make_import.py`) by each format's definition.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{archive, npy, shared};
use lapidary::dataset::import::{Fate, Format, Ids, Imported, Options, import};
use lapidary::dataset::{Dataset, Features, Labels, TEST, TRAIN, VAL};

const NO_LABEL: u32 = u32::MAX;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import").join(path)
}

fn read(kind: Format, path: &str, options: &Options<'_>) -> Imported {
    import(kind, &fixture(path), options).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Returns the sources of each vertex.
fn rows(data: &Dataset) -> Vec<Vec<u32>> {
    (0..data.graph().vertex_count()).map(|v| data.graph().sources(v).to_vec()).collect()
}

/// The edges in the fixtures: 0 -> 1 twice, 1 -> 2, 2 -> 1, 3 -> 3, 5 -> 2.
fn listed() -> Vec<Vec<u32>> {
    vec![vec![], vec![0, 0, 2], vec![1, 5], vec![3], vec![], vec![]]
}

/// The same without repeats.
fn distinct() -> Vec<Vec<u32>> {
    vec![vec![], vec![0, 2], vec![1, 5], vec![3], vec![], vec![]]
}

/// The same with all reverses.
fn undirected(loops: bool) -> Vec<Vec<u32>> {
    vec![vec![1], vec![0, 2], vec![1, 5], if loops { vec![3] } else { vec![] }, vec![], vec![2]]
}

/// The feature matrix of the fixtures.
fn features() -> Vec<f32> {
    (0..18u8).map(|x| f32::from(x) / 4.0 - 1.0).collect()
}

fn dense(data: &Dataset) -> Vec<f32> {
    match data.features() {
        Some(Features::Dense(dense)) => dense.data().to_vec(),
        other => panic!("{other:?}"),
    }
}

fn classes(data: &Dataset) -> Vec<u32> {
    match data.labels() {
        Some(Labels::Class(classes)) => classes.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn multi(data: &Dataset) -> Vec<u8> {
    match data.labels() {
        Some(Labels::Multi { data, .. }) => data.to_vec(),
        other => panic!("{other:?}"),
    }
}

const CLASSES: [u32; 6] = [0, 1, 2, 0, 1, 2];
const ONE_MISSING: [u32; 6] = [0, 1, 2, 0, NO_LABEL, 2];

#[test]
fn gnn_benchmark_is_undirected_without_loops() {
    for kind in [Format::GnnBenchmark, Format::Npz] {
        let got = read(kind, "gnn_benchmark.npz", &Options::default());
        let data = &got.dataset;
        assert_eq!(rows(data), undirected(false));
        assert!(!data.directed());
        assert_eq!(classes(data), CLASSES);
        let Some(Features::Sparse(x)) = data.features() else { panic!("sparse") };
        let mut cells = vec![0f32; 18];
        for v in 0..6 {
            for at in x.indptr()[v] as usize..x.indptr()[v + 1] as usize {
                cells[3 * v + x.indices()[at] as usize] = x.values()[at];
            }
        }
        let want: Vec<f32> = features().into_iter().map(|x| if x > 1.0 { x } else { 0.0 }).collect();
        assert_eq!(cells, want);
        // scipy merged the repeated edge into a cell of 2.
        let report = &got.report;
        assert_eq!((report.kind, report.edges_listed, report.values_dropped), ("gnn-benchmark", 5, 0));
        assert_eq!(report.edge_weights.as_deref(), Some("adj_data"));
        assert_eq!((report.self_loops, report.duplicates, report.isolated), (1, 2, 2));
    }
}

#[test]
fn other_number_types_and_orders_give_the_same_set() {
    let got = read(Format::GnnBenchmark, "gnn_benchmark_odd.npz", &Options::default());
    assert_eq!(rows(&got.dataset), undirected(false));
    assert_eq!(dense(&got.dataset), features());
    assert_eq!(classes(&got.dataset), ONE_MISSING);
    assert_eq!(got.report.values_dropped, 0, "bool data is no weight");
}

#[test]
fn heterophilous_sets_have_many_splits() {
    for (which, file) in (0..3).flat_map(|which| [(which, "heterophilous.npz"), (which, "heterophilous_columns.npz")]) {
        let options = Options { split: which, ..Options::default() };
        let got = read(Format::Heterophilous, file, &options);
        let data = &got.dataset;
        assert_eq!((rows(data), dense(data), classes(data)), (undirected(true), features(), CLASSES.to_vec()));
        let mut want = [0u32; 6];
        for (first, split) in [(0, TRAIN), (2, VAL), (4, TEST)] {
            want[(which + first) % 6] = split;
            want[(which + first + 1) % 6] = split;
        }
        assert_eq!(data.split()[..], want, "{file}, split {which}");
        assert_eq!((got.report.edges_listed, got.report.self_loops, got.report.isolated), (6, 1, 2));
    }
    let options = Options { split: 3, ..Options::default() };
    let error = import(Format::Heterophilous, &fixture("heterophilous.npz"), &options).unwrap_err().to_string();
    assert!(error.contains("option `split` is 3") && error.contains("0 to 2"), "{error}");
}

#[test]
fn reddit_is_a_pair_of_archives() {
    let got = read(Format::Reddit, "reddit", &Options::default());
    let data = &got.dataset;
    assert_eq!((rows(data), dense(data), classes(data)), (distinct(), features(), CLASSES.to_vec()));
    assert_eq!(data.split()[..], [TRAIN, TRAIN, VAL, VAL, TEST, TEST]);
    assert_eq!((got.report.duplicates, got.report.duplicates_dropped, got.report.self_loops), (1, true, 1));
    let all = Options { duplicates: Some(Fate::Keep), self_loops: Some(Fate::Drop), ..Options::default() };
    let mut want = listed();
    want[3].clear();
    assert_eq!(rows(&read(Format::Reddit, "reddit", &all).dataset), want);
}

#[test]
fn graphsaint_has_one_label_or_several() {
    let got = read(Format::GraphSaint, "graphsaint", &Options::default());
    let data = &got.dataset;
    assert_eq!((rows(data), dense(data), classes(data)), (distinct(), features(), ONE_MISSING.to_vec()));
    assert_eq!(data.split()[..], [TRAIN, TRAIN, VAL, TEST, 0, TEST]);
    let got = read(Format::GraphSaint, "graphsaint_multi", &Options::default());
    assert_eq!(multi(&got.dataset), [1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn ppi_is_many_graphs() {
    let got = read(Format::Ppi, "ppi", &Options::default());
    let data = &got.dataset;
    let want: [&[u32]; 9] = [&[1], &[0], &[3], &[2], &[5], &[4], &[7], &[6, 8], &[7]];
    assert_eq!(rows(data), want);
    assert_eq!(data.graph_ids().unwrap(), [0, 0, 1, 1, 2, 2, 3, 3, 3]);
    assert_eq!(data.split()[..], [TRAIN, TRAIN, TRAIN, TRAIN, VAL, VAL, TEST, TEST, TEST]);
    assert_eq!(dense(data), [&features()[..12], &features()[..6], &features()[..9]].concat());
    let bits = |n: usize| (0..4 * n).map(|at| u8::from(at % 3 == 0)).collect::<Vec<_>>();
    assert_eq!(multi(data), [bits(4), bits(2), bits(3)].concat());
    assert_eq!((got.report.edges_listed, got.report.self_loops), (9, 1));
    assert!(got.report.notes[0].contains("1 links between two graphs"), "{:?}", got.report.notes);
}

#[test]
fn ogb_is_a_folder_of_packed_tables() {
    for path in ["ogb", "ogb/raw"] {
        let got = read(Format::Ogb, path, &Options::default());
        let data = &got.dataset;
        assert_eq!((rows(data), dense(data), classes(data)), (listed(), features(), ONE_MISSING.to_vec()));
        assert_eq!(data.split()[..], [TRAIN, VAL, TEST, TRAIN, 0, TEST]);
        assert_eq!((data.name(), data.directed()), ("ogb", true));
    }
    let symmetrise = Options { symmetrise: Some(true), ..Options::default() };
    assert_eq!(rows(&read(Format::Ogb, "ogb", &symmetrise).dataset), undirected(true));
    // Because of its name, this dataset gets reverse edges, as in its own loader: each edge then occurs twice.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("ogbn_products");
    fs::create_dir_all(copy.join("raw")).unwrap();
    for file in ["edge.csv.gz", "num-node-list.csv.gz"] {
        fs::copy(fixture("ogb/raw").join(file), copy.join("raw").join(file)).unwrap();
    }
    let got = import(Format::Ogb, &copy, &Options::default()).unwrap();
    let want: [&[u32]; 6] = [&[1, 1], &[0, 0, 2, 2], &[1, 1, 5], &[3], &[], &[2]];
    assert_eq!((rows(&got.dataset), got.dataset.directed()), (want.map(<[u32]>::to_vec).to_vec(), false));
}

#[test]
fn an_edge_list_may_be_packed_count_from_one_or_have_gaps_or_names() {
    // Vertex 4 has no edge. If ids have gaps, it is unknown.
    let closed = vec![vec![], vec![0, 2], vec![1, 4], vec![3], vec![]];
    let numbers = |from: &dyn Fn(u64) -> u64| Some(Ids::Numbers([0, 1, 2, 3, 5].map(from).to_vec()));
    let names = ["vertex a", "vertex b", "vertex c", "vertex d", "vertex f"];
    let names = Some(Ids::Names(names.map(Into::into).to_vec()));
    let cases: [(&str, Option<Ids>); 6] = [
        ("snap.txt.gz", numbers(&|v| v)),
        ("from_one.txt", numbers(&|v| v + 1)),
        ("far.txt", numbers(&|v| 100 * v + 7)),
        ("huge.txt", numbers(&|v| v * 100_000_000_000_000_000 + 3)),
        ("names.tsv", names),
        ("titled.csv", numbers(&|v| v)),
    ];
    for (file, ids) in cases {
        let got = read(Format::Edges, &format!("edges/{file}"), &Options::default());
        assert_eq!((rows(&got.dataset), &got.ids), (closed.clone(), &ids), "{file}");
        assert!(got.dataset.directed());
        let report = &got.report;
        assert_eq!(
            (report.edges_listed, report.duplicates, report.self_loops, report.isolated),
            (6, 1, 1, 1),
            "{file}"
        );
        assert_eq!((report.values_dropped, report.edge_weights.is_some()), (0, file == "titled.csv"));
    }
}

#[test]
fn rows_of_features_say_which_vertices_there_are() {
    let (x, y, train) = (fixture("edges/x.npy"), fixture("edges/y.npy"), fixture("edges/train.npy"));
    let splits = [Some(train.as_path()), None, None];
    let options = Options { features: Some(&x), labels: Some(&y), splits, ..Options::default() };
    for file in ["snap.txt.gz", "from_one.txt", "titled.csv"] {
        let got = read(Format::Edges, &format!("edges/{file}"), &options);
        let data = &got.dataset;
        assert_eq!((rows(data), dense(data), classes(data)), (distinct(), features(), CLASSES.to_vec()), "{file}");
        assert_eq!((data.split_size(TRAIN), got.report.isolated), (2, 2));
        assert_eq!(got.ids.is_some(), file == "from_one.txt");
    }
    for file in ["far.txt", "huge.txt"] {
        let error = import(Format::Edges, &fixture(&format!("edges/{file}")), &options).unwrap_err().to_string();
        assert!(error.contains("x.npy") && error.contains("6 rows") && error.contains('5'), "{file}: {error}");
    }
}

#[test]
fn isolated_vertices_go_with_their_rows() {
    let (x, y) = (fixture("edges/x.npy"), fixture("edges/y.npy"));
    let isolated = Some(Fate::Drop);
    let options = Options { features: Some(&x), labels: Some(&y), isolated, ..Options::default() };
    let got = read(Format::Edges, "edges/snap.txt.gz", &options);
    // Vertex 3 has only a loop, vertex 4 has no edge.
    assert_eq!(rows(&got.dataset), [vec![], vec![0, 2], vec![1, 3], vec![]]);
    assert_eq!(classes(&got.dataset), [0, 1, 2, 2]);
    let all = features();
    assert_eq!(dense(&got.dataset), [&all[..9], &all[15..]].concat());
    assert_eq!(got.ids, Some(Ids::Numbers(vec![0, 1, 2, 5])));
    assert_eq!((got.report.isolated, got.report.isolated_dropped), (2, true));
    // The same for sparse features, several labels and other per-vertex arrays.
    let options = Options { isolated, ..Options::default() };
    let sparse = read(Format::GnnBenchmark, "gnn_benchmark.npz", &options).dataset;
    let Some(Features::Sparse(x)) = sparse.features() else { panic!("sparse") };
    assert_eq!((x.rows(), x.indices().len()), (4, 3), "the last row alone is above 1, of those that are left");
    let ids = read(Format::Ogb, "ogb", &options).dataset;
    assert_eq!(ids.split()[..], [TRAIN, VAL, TEST, TEST]);
    assert_eq!(multi(&read(Format::GraphSaint, "graphsaint_multi", &options).dataset).len(), 12);
}

#[test]
fn a_matrix_counts_from_one_and_may_be_half_of_itself() {
    let got = read(Format::MatrixMarket, "mtx/general.mtx", &Options::default());
    assert_eq!((rows(&got.dataset), got.report.values_dropped, got.report.duplicates), (distinct(), 0, 1));
    let got = read(Format::MatrixMarket, "mtx/symmetric.mtx", &Options::default());
    assert_eq!((rows(&got.dataset), got.report.values_dropped, got.dataset.directed()), (undirected(true), 0, false));
    let half = Options { symmetrise: Some(false), ..Options::default() };
    let got = read(Format::MatrixMarket, "mtx/symmetric.mtx", &half);
    assert_eq!(rows(&got.dataset), [vec![1], vec![2], vec![5], vec![3], vec![], vec![]]);
}

#[test]
fn the_files_of_roc() {
    for path in ["lux/roc", "lux/roc.add_self_edge.lux"] {
        let got = read(Format::Lux, path, &Options::default());
        let data = &got.dataset;
        assert_eq!((rows(data), dense(data), classes(data)), (listed(), features(), CLASSES.to_vec()));
        assert_eq!(data.split()[..], [TRAIN, TRAIN, VAL, 0, TEST, TEST]);
        assert_eq!((data.name(), got.report.duplicates, got.report.self_loops), ("roc", 1, 1));
    }
    let symmetrise = Options { symmetrise: Some(true), ..Options::default() };
    assert_eq!(rows(&read(Format::Lux, "lux/roc", &symmetrise).dataset), undirected(true));
    // Features as text, which exist before ROC's first run.
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("lux/roc.add_self_edge.lux"), dir.path().join("set.lux")).unwrap();
    let text: String = features().chunks(3).map(|row| format!("{},{},{}\n", row[0], row[1], row[2])).collect();
    fs::write(dir.path().join("set.feats.csv"), text).unwrap();
    let got = import(Format::Lux, &dir.path().join("set"), &Options::default()).unwrap();
    assert_eq!(dense(&got.dataset), features());
}

#[test]
fn names_are_written_beside_the_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let (named, numbered) = (dir.path().join("named"), dir.path().join("numbered"));
    read(Format::Edges, "edges/names.tsv", &Options::default()).write(&named).unwrap();
    let names = fs::read_to_string(named.join("vertex_names.txt")).unwrap();
    assert_eq!(names, "vertex a\nvertex b\nvertex c\nvertex d\nvertex f\n");
    read(Format::Edges, "edges/far.txt", &Options::default()).write(&numbered).unwrap();
    let ids = ndarray_npy::read_npy::<_, ndarray::Array1<i64>>(numbered.join("vertex_ids.npy")).unwrap();
    assert_eq!(ids.to_vec(), [7, 107, 207, 307, 507]);
    for dir in [named, numbered] {
        assert_eq!(Dataset::open(dir).unwrap().graph().edge_count(), 5);
    }
}

#[test]
fn the_published_heterophilous_set() {
    let Some(raw) = shared("data/raw/heterophilous/minesweeper.npz") else { return };
    let data = import(Format::Npz, &raw, &Options::default()).unwrap().dataset;
    assert_eq!((data.graph().vertex_count(), data.graph().edge_count()), (10_000, 78_804));
    assert_eq!([TRAIN, VAL, TEST].map(|which| data.split_size(which)), [5000, 2500, 2500]);
    let other = import(Format::Heterophilous, &raw, &Options { split: 9, ..Options::default() }).unwrap().dataset;
    assert!(data.split()[..] != other.split()[..]);
}

/// A dataset in `shared/data`, exported to the files of another program, is imported byte for byte.
#[test]
fn a_known_set_comes_back_from_text() {
    let Some(known) = shared("data/tolokers") else { return };
    let data = Dataset::open(&known).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("edges.txt");
    let mut lines = String::new();
    for v in (0..data.graph().vertex_count()).rev() {
        data.graph()
            .sources(v)
            .iter()
            .filter(|&&u| u as usize <= v)
            .for_each(|u| lines.push_str(&format!("{u} {v}\n")));
    }
    fs::write(&text, lines).unwrap();
    let (x, y) = (known.join("features.npy"), known.join("labels.npy"));
    let splits = ["train", "val", "test"].map(|name| known.join(format!("{name}.npy")));
    let splits = [0, 1, 2].map(|at| Some(splits[at].as_path()));
    let options =
        Options { features: Some(&x), labels: Some(&y), splits, symmetrise: Some(true), ..Options::default() };
    let got = import(Format::Edges, &text, &options).unwrap();
    assert_eq!(got.ids, None);
    let written = dir.path().join("tolokers");
    got.write(&written).unwrap();
    for entry in fs::read_dir(&known).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if name != "dataset.json" {
            assert!(fs::read(&path).unwrap() == fs::read(written.join(name)).unwrap(), "{name:?}");
        }
    }
}

#[test]
fn the_command_says_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("set");
    let mut command = assert_cmd::Command::cargo_bin("lapidary").unwrap();
    command.args(["data", "import", "edges"]).arg(fixture("edges/snap.txt.gz")).arg(&dst);
    command.args(["--symmetrise", "--self-loops", "drop", "--isolated", "drop", "--json"]);
    let done = command.assert().success();
    assert!(done.get_output().stderr.is_empty(), "no bar for programs");
    let line: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let import = &line["import"];
    assert_eq!(
        [&import["edges_listed"], &import["self_loops"], &import["isolated"], &line["vertices"], &line["edges"]],
        [6, 1, 1, 4, 6]
    );
    assert!(import["seconds"].as_f64().unwrap() > 0.0 && import["bytes_read"].as_u64().unwrap() > 50);
    assert_eq!(Dataset::open(&dst).unwrap().graph().edge_count(), 6);
    let mut command = assert_cmd::Command::cargo_bin("lapidary").unwrap();
    command.args(["data", "import", "edges", "a", "b", "--duplicates", "some"]);
    command.assert().code(2);
}

fn ints(values: &[i64]) -> Vec<u8> {
    npy("<i8", &format!("({},)", values.len()), bytemuck::cast_slice(values))
}

#[test]
fn cells_of_sparse_features_and_labels_may_stand_in_any_order_and_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set.npz");
    // Rows {2: 1, 0: 2, 2: 4}, {}, {1: 3}; labels {1, 0}, {}, {1, 1}.
    let floats: [f32; 4] = [1.0, 2.0, 4.0, 3.0];
    let members = [
        ("adj_shape.npy", ints(&[3, 3])),
        ("adj_indptr.npy", ints(&[0, 0, 0, 1])),
        ("adj_indices.npy", ints(&[0])),
        ("attr_shape.npy", ints(&[3, 4])),
        ("attr_indptr.npy", ints(&[0, 3, 3, 4])),
        ("attr_indices.npy", ints(&[2, 0, 2, 1])),
        ("attr_data.npy", npy("<f4", "(4,)", bytemuck::cast_slice(&floats))),
        ("labels_shape.npy", ints(&[3, 2])),
        ("labels_indptr.npy", ints(&[0, 2, 2, 4])),
        ("labels_indices.npy", ints(&[1, 0, 1, 1])),
    ];
    fs::write(&path, archive(&members)).unwrap();
    let data = import(Format::GnnBenchmark, &path, &Options::default()).unwrap().dataset;
    assert_eq!(rows(&data), [vec![2], vec![], vec![0]]);
    let Some(Features::Sparse(x)) = data.features() else { panic!("sparse") };
    assert_eq!(
        (&x.indptr()[..], &x.indices()[..], &x.values()[..]),
        (&[0, 2, 2, 3][..], &[0, 2, 1][..], &[2.0, 5.0, 3.0][..])
    );
    assert_eq!(multi(&data), [1, 1, 0, 0, 0, 1]);
}

#[test]
fn all_number_types_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set.npz");
    let x: [(&str, Vec<u8>); 14] = [
        ("|b1", vec![0, 1]),
        ("|u1", vec![0, 1]),
        ("|i1", vec![0, 1]),
        ("<i2", vec![0, 0, 1, 0]),
        (">u2", vec![0, 0, 0, 1]),
        ("<u4", vec![0, 0, 0, 0, 1, 0, 0, 0]),
        (">i4", vec![0, 0, 0, 0, 0, 0, 0, 1]),
        ("<i8", [0i64, 1].map(i64::to_le_bytes).concat()),
        (">u8", [0u64, 1].map(u64::to_be_bytes).concat()),
        ("<f2", vec![0, 0, 0, 0x3c]),
        (">f2", vec![0, 0, 0x3c, 0]),
        (">f4", [0f32, 1.0].map(f32::to_be_bytes).concat()),
        ("<f8", [0f64, 1.0].map(f64::to_le_bytes).concat()),
        (">f8", [0f64, 1.0].map(f64::to_be_bytes).concat()),
    ];
    for (descr, bytes) in x {
        let members = [
            ("edges.npy", npy("<i8", "(0, 2)", &[])),
            ("node_features.npy", npy(descr, "(2, 1)", &bytes)),
            ("node_labels.npy", npy(descr, "(2,)", &bytes)),
        ];
        fs::write(&path, archive(&members)).unwrap();
        let got = import(Format::Heterophilous, &path, &Options::default()).unwrap_or_else(|e| panic!("{descr}: {e}"));
        assert_eq!((dense(&got.dataset), classes(&got.dataset)), (vec![0.0, 1.0], vec![0, 1]), "{descr}");
        if !descr.contains('f') {
            let member = npy(descr, "(1, 2)", &bytes);
            fs::write(&path, archive(&[("edges.npy", member), members[1].clone(), members[2].clone()])).unwrap();
            let got = import(Format::Heterophilous, &path, &Options::default()).unwrap();
            assert_eq!(rows(&got.dataset), [[1], [0]], "{descr}");
        }
    }
}
