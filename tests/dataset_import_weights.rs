//! Edge weights from texts: edge lists, Matrix Market files and the folders of OGB.

use std::fs;
use std::path::Path;

use lapidary::dataset::Dataset;
use lapidary::dataset::import::{EdgeWeights, Fate, Format, Join, Options};

use crate::common::weights::{DROP, KEEP, Source, dropped, edges, file, packed, plain, with};

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
