//! Files that were once misread silently. Each test is named after what went wrong.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use crate::common::{archive, npy};
use assert_cmd::Command;
use lapidary::dataset::import::{Format, Ids, Imported, Missing, Options, TableColumns, import};
use lapidary::dataset::{Dataset, Features, Labels, RandomSplit, TEST, TRAIN, VAL};
use proptest::prelude::*;
use tempfile::TempDir;

/// A folder with files.
struct Folder(TempDir);

impl Folder {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, bytes)| fs::write(folder.path(name), bytes).unwrap());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn edges(&self, name: &str, options: &Options<'_>) -> Result<Imported, String> {
        import(Format::Edges, &self.path(name), options).map_err(|error| error.to_string())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("lapidary"));
        command.current_dir(self.0.path()).args(args);
        command
    }
}

/// Returns the edges of a text by the names of their ends, and the notes of the import.
fn read(text: &[u8]) -> Result<(Vec<String>, Vec<String>), String> {
    read_with(text, &Options::default())
}

fn read_with(text: &[u8], options: &Options<'_>) -> Result<(Vec<String>, Vec<String>), String> {
    let folder = Folder::new(&[("edges", text)]);
    let got = folder.edges("edges", options)?;
    Ok((named_edges(&got), got.report.notes))
}

fn named_edges(got: &Imported) -> Vec<String> {
    let graph = got.dataset.graph();
    let name = |v: usize| match &got.ids {
        None => v.to_string(),
        Some(Ids::Numbers(ids)) => ids[v].to_string(),
        Some(Ids::Names(names)) => names[v].to_string(),
    };
    let rows = (0..graph.vertex_count()).flat_map(|v| graph.sources(v).iter().map(move |&u| (u as usize, v)));
    let mut edges: Vec<String> = rows.map(|(u, v)| format!("{}>{}", name(u), name(v))).collect();
    edges.sort();
    edges
}

fn edges_of(text: impl AsRef<[u8]>) -> Vec<String> {
    read(text.as_ref()).unwrap().0
}

fn says(notes: &[String], what: &str) -> bool {
    notes.iter().any(|note| note.contains(what))
}

const EDGES: &[u8] = b"source,target\nann,bob\nbob,cid\ncid,ann\ndan,ann\n";
const TABLE: &[u8] = b"name,age,label,height\ndan,4,tea,0.4\nbob,2,art,0.2\nann,1,tea,0.1\ncid,3,art,0.3\n";

fn features(data: &Dataset) -> Vec<f32> {
    match data.features() {
        Some(Features::Dense(dense)) => dense.data().to_vec(),
        _ => panic!("dense features"),
    }
}

fn labels(data: &Dataset) -> Vec<u32> {
    match data.labels() {
        Some(Labels::Class(classes)) => classes.to_vec(),
        _ => panic!("one label a vertex"),
    }
}

#[test]
fn rows_of_a_table_went_to_the_wrong_vertices() {
    let shuffled = b"source,target\ndan,ann\ncid,ann\nbob,cid\nann,bob\n";
    let folder = Folder::new(&[("a.csv", EDGES), ("b.csv", shuffled), ("v.csv", TABLE)]);
    let table = folder.path("v.csv");
    let options = Options { vertices: Some(&table), ..Options::default() };
    for file in ["a.csv", "b.csv"] {
        let got = folder.edges(file, &options).unwrap();
        assert_eq!(got.ids, Some(Ids::Names(["dan", "bob", "ann", "cid"].map(Into::into).to_vec())), "{file}");
        assert_eq!(named_edges(&got), ["ann>bob", "bob>cid", "cid>ann", "dan>ann"]);
        assert_eq!(features(&got.dataset), [4.0, 0.4, 2.0, 0.2, 1.0, 0.1, 3.0, 0.3]);
        assert_eq!(labels(&got.dataset), [1, 0, 1, 0]);
        assert_eq!(got.dataset.class_names().unwrap(), ["art", "tea"]);
    }
    // Names of classes are kept on disk.
    let dst = folder.path("set");
    folder.edges("a.csv", &options).unwrap().write(&dst).unwrap();
    assert_eq!(Dataset::open(&dst).unwrap().class_names().unwrap(), ["art", "tea"]);
    assert_eq!(fs::read_to_string(dst.join("vertex_names.txt")).unwrap(), "dan\nbob\nann\ncid\n");
    let manifest = fs::read_to_string(dst.join("dataset.json")).unwrap();
    fs::write(dst.join("dataset.json"), manifest.replace("\"art\",", "")).unwrap();
    assert!(Dataset::open(&dst).unwrap_err().to_string().contains("class_names"));
}

#[test]
fn rows_of_arrays_went_to_vertices_in_the_order_of_their_first_edge() {
    let x: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = npy("<f4", "(4, 1)", &x);
    let train = npy("<i8", "(1,)", &3i64.to_le_bytes());
    let order = b"ann\nbob\ncid\ndan\n";
    let folder = Folder::new(&[("e.csv", EDGES), ("x.npy", &x), ("train.npy", &train), ("order.txt", order)]);
    let (x, train, order) = (folder.path("x.npy"), folder.path("train.npy"), folder.path("order.txt"));
    for (array, options) in [
        ("features", Options { features: Some(&x), ..Options::default() }),
        ("labels", Options { labels: Some(&x), ..Options::default() }),
        ("train", Options { splits: [Some(&train), None, None], ..Options::default() }),
    ] {
        let error = folder.edges("e.csv", &options).unwrap_err();
        assert!(error.contains(&format!("option `{array}`")) && error.contains("option `vertex_order`"), "{error}");
    }
    let options = Options {
        features: Some(&x),
        splits: [Some(&train), None, None],
        vertex_order: Some(&order),
        ..Options::default()
    };
    let got = folder.edges("e.csv", &options).unwrap();
    assert_eq!(features(&got.dataset), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(got.ids, Some(Ids::Names(["ann", "bob", "cid", "dan"].map(Into::into).to_vec())));
    assert_eq!(got.dataset.split()[..], [0, 0, 0, TRAIN]);
    // An extra name is a vertex without edges; a missing name is an error.
    fs::write(&order, b"ann\nbob\ncid\n").unwrap();
    let error = folder.edges("e.csv", &options).unwrap_err();
    assert!(error.contains("1 vertex") && error.contains("`dan`"), "{error}");
    fs::write(&order, b"ann\nbob\n\ncid\ndan\n").unwrap();
    assert!(folder.edges("e.csv", &options).unwrap_err().contains("line 3 is empty"));
    fs::write(&order, b"ann\nbob\ncid\nann\ndan\n").unwrap();
    assert!(folder.edges("e.csv", &options).unwrap_err().contains("twice, in line 1 and line 4"));
}

#[test]
fn vertices_without_a_row_and_rows_without_a_vertex_were_not_noticed() {
    let table = b"age,name\n1,ann\n2,bob\n5,eva\n6,fay\n";
    let folder = Folder::new(&[("e.csv", EDGES), ("v.csv", table)]);
    let table = folder.path("v.csv");
    let columns = TableColumns { key: Some("name"), ..TableColumns::default() };
    let with = |missing| Options { vertices: Some(&table), columns, missing, ..Options::default() };
    let error = folder.edges("e.csv", &with(Missing::Refuse)).unwrap_err();
    for part in ["2 vertices", "`cid`, `dan`", "2 rows", "`eva` in line 4", "option `missing` to drop"] {
        assert!(error.contains(part), "no {part} in: {error}");
    }
    let got = folder.edges("e.csv", &with(Missing::Drop)).unwrap();
    assert_eq!((named_edges(&got), features(&got.dataset)), (vec!["ann>bob".into()], vec![1.0, 2.0]));
    assert!(says(&got.report.notes, "2 vertices without a row were dropped, with 3 edges"));
    assert!(says(&got.report.notes, "2 rows whose vertex has no edge were dropped"));
    assert!(folder.edges("e.csv", &with(Missing::Keep)).unwrap_err().contains("2 vertices"));
    fs::write(folder.path("all.csv"), b"name\neva\nann\nbob\ncid\ndan\n").unwrap();
    let all = folder.path("all.csv");
    let keep = Options { vertices: Some(&all), missing: Missing::Keep, ..Options::default() };
    let got = folder.edges("e.csv", &keep).unwrap();
    assert_eq!((got.dataset.graph().vertex_count(), got.report.isolated), (5, 1));
}

#[test]
fn a_name_as_long_as_a_book_filled_the_screen() {
    let long = "x".repeat(5000);
    let folder = Folder::new(&[("e.csv", format!("ann,{long}\n").as_bytes()), ("v.csv", b"name\nann\n")]);
    let table = folder.path("v.csv");
    let error = folder.edges("e.csv", &Options { vertices: Some(&table), ..Options::default() }).unwrap_err();
    assert!(error.contains("1 vertex") && error.contains("xxx...") && error.len() < 500, "{error}");
}

#[test]
fn tables_of_numbered_vertices_are_read_by_number() {
    // Ids without a gap, with gaps, and far above 2^32.
    for ids in [[0u64, 1, 2], [7, 9, 30], [1, 1 << 40, 3 << 50]] {
        let [a, b, c] = ids;
        let folder = Folder::new(&[
            ("e.txt", format!("{a} {b}\n{b} {c}\n").as_bytes()),
            ("v.tsv", format!("id\tx\n{c}\t3\n{a}\t1\n{b}\t2\n").as_bytes()),
        ]);
        let table = folder.path("v.tsv");
        let got = folder.edges("e.txt", &Options { vertices: Some(&table), ..Options::default() }).unwrap();
        assert_eq!(got.ids, Some(Ids::Numbers(vec![c, a, b])));
        assert_eq!(features(&got.dataset), [3.0, 1.0, 2.0]);
        let mut want = [format!("{a}>{b}"), format!("{b}>{c}")];
        want.sort();
        assert_eq!(named_edges(&got), want);
    }
}

#[test]
fn cells_of_a_table_that_are_not_what_their_column_holds() {
    let folder = Folder::new(&[("e.csv", EDGES)]);
    let table = folder.path("v.csv");
    let error = |text: &str, columns: TableColumns<'_>| {
        fs::write(&table, text).unwrap();
        folder.edges("e.csv", &Options { vertices: Some(&table), columns, ..Options::default() }).unwrap_err()
    };
    let plain = TableColumns::default();
    assert!(error("", plain).contains("is empty"));
    assert!(error("name,x\nann,1\nbob,2,3\n", plain).contains("line 3 has 3 cells, but there are 2 titles"));
    assert!(error("name,x\nann,1\nbob,2\ncid,x\ndan,4\n", plain).contains("column `x` holds numbers in 3 of 4 rows"));
    assert!(error("name,x\nann,1\nbob,\ncid,3\ndan,4\n", plain).contains("no number in 1 of 4 rows, as in line 3"));
    assert!(error("name,split\nann,train\nbob,holdout\n", plain).contains("`holdout` in column `split`"));
    assert!(error("name,train\nann,2\n", plain).contains("`2` in column `train`, expected 0 or 1"));
    assert!(error("name,split,train\nann,train,1\n", plain).contains("remove one or the other"));
    assert!(error("name,x\nann,1\nann,2\n", plain).contains("`ann` twice, in line 2 and line 3"));
    assert!(error("name,x\n,1\n", plain).contains("line 2 has no name"));
    let no_key = TableColumns { key: Some("who"), ..plain };
    assert!(error("name,x\nann,1\n", no_key).contains("no column `who` (option `columns.key`); it has `name`, `x`"));
    let titles = ["y".to_string()];
    let no_feature = TableColumns { features: Some(&titles), ..plain };
    assert!(error("name,x\nann,1\n", no_feature).contains("no column `y` (option `columns.features`)"));
}

#[test]
fn columns_say_splits_and_classes() {
    let folder = Folder::new(&[("e.csv", EDGES)]);
    let table = folder.path("v.csv");
    let titles = ["x".to_string()];
    let columns = TableColumns { key: Some("who"), label: Some("kind"), features: Some(&titles) };
    let options = Options { vertices: Some(&table), columns, ..Options::default() };
    for (head, rows) in [
        ("kind,x,y,who,split", ["0,1,9,ann,train", "2,2,9,bob,val", ",3,9,cid,", "1,4,9,dan,Test"]),
        (
            "kind,x,y,who,train,val,test",
            ["0,1,9,ann,1,0,0", "2,2,9,bob,0,1,0", "-1,3,9,cid,0,0,0", "1,4,9,dan,0,,true"],
        ),
    ] {
        fs::write(&table, format!("{head}\n{}\n", rows.join("\n"))).unwrap();
        let data = folder.edges("e.csv", &options).unwrap().dataset;
        assert_eq!(data.split()[..], [TRAIN, VAL, 0, TEST], "{head}");
        assert_eq!((labels(&data), data.class_count(), data.class_names()), (vec![0, 2, u32::MAX, 1], 3, None));
        assert_eq!(features(&data), [1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn a_byte_order_mark_lost_the_first_edge_or_joined_the_first_name() {
    assert_eq!(edges_of("\u{feff}0 1\n1 2\n"), ["0>1", "1>2"]);
    assert_eq!(edges_of("\u{feff}ann,bob\nbob,cid\n"), ["ann>bob", "bob>cid"]);
    assert_eq!(edges_of("\u{feff}\"ann\",bob\nbob,cid\n"), ["ann>bob", "bob>cid"]);
    assert_eq!(edges_of("\u{feff}source,target\n5,6\n6,7\n"), ["5>6", "6>7"]);
    let folder = Folder::new(&[("e.csv", EDGES), ("v.csv", &["\u{feff}".as_bytes(), TABLE].concat())]);
    let table = folder.path("v.csv");
    let options = Options { vertices: Some(&table), ..Options::default() };
    assert_eq!(features(&folder.edges("e.csv", &options).unwrap().dataset).len(), 8);
    assert!(read(b"\xff\xfe0\x00 \x001\x00").unwrap_err().contains("UTF-16"));
}

#[test]
fn lines_that_end_with_a_carriage_return_alone_were_lost() {
    assert_eq!(edges_of("0 1\r1 2\r2 0\r"), ["0>1", "1>2", "2>0"]);
    assert_eq!(edges_of("0 1\r1 2\n2 0\r\n3 0"), ["0>1", "1>2", "2>0", "3>0"]);
    assert_eq!(edges_of("ann,bob\rbob,cid\r"), ["ann>bob", "bob>cid"]);
    assert_eq!(edges_of("\"ann\",bob\rbob,cid\r"), ["ann>bob", "bob>cid"]);
}

#[test]
fn a_first_line_of_large_or_odd_numbers_was_taken_for_a_header() {
    for first in ["99999999999999999999", "-0", "18446744073709551616", "1.5", "+1"] {
        let (edges, notes) = read(format!("{first} 1\n1 2\n").as_bytes()).unwrap();
        let mut want = vec!["1>2".to_string(), format!("{first}>1")];
        want.sort();
        assert_eq!(edges, want);
        assert!(says(&notes, "vertices are names, not numbers: line 1"), "{notes:?}");
    }
}

#[test]
fn quotes_were_part_of_names_and_commas_in_them_cut_names() {
    let text = "name a,name b,weight\n\"Smith, J\",\"O\"\"Hara\",1\n\"O\"\"Hara\",Li,2\n";
    let (edges, notes) = read_with(text.as_bytes(), &Options { header: Some(true), ..Options::default() }).unwrap();
    assert_eq!(edges, ["O\"Hara>Li", "Smith, J>O\"Hara"]);
    assert!(says(&notes, "line 1 was read as column titles: `name a`, `name b`, `weight`"), "{notes:?}");
    // Numbers in quotes are numbers.
    assert_eq!(edges_of("\"0\",\"1\"\n\"1\",\"2\"\n"), ["0>1", "1>2"]);
    // A quoted cell may contain line ends, and what follows one is not an edge.
    let (edges, notes) = read(b"0,1,\"a note\n7,8,of two lines\"\n1,2,\n").unwrap();
    assert_eq!(edges, ["0>1", "1>2"]);
    assert!(says(&notes, "1 line ends stand within quoted cells"), "{notes:?}");
    let error = read(b"ann,\"bob\ncid,dan\neva,fay\n").unwrap_err();
    assert!(error.contains("line 1") && error.contains("quote left open"), "{error}");
}

#[test]
fn column_titles_above_names_became_an_edge() {
    let (edges, notes) = read(EDGES).unwrap();
    assert_eq!(edges, ["ann>bob", "bob>cid", "cid>ann", "dan>ann"]);
    assert!(says(&notes, "line 1 was read as column titles: `source`, `target`"));
    // A line that might be a header is read as an edge, and a note says so.
    let (edges, notes) = read(b"person,friend\nann,bob\n").unwrap();
    assert_eq!(edges, ["ann>bob", "person>friend"]);
    assert!(says(&notes, "the edge person -> friend; set option `header` to yes"));
    let asked = |header| Options { header: Some(header), ..Options::default() };
    assert_eq!(read_with(b"person,friend\nann,bob\n", &asked(true)).unwrap().0, ["ann>bob"]);
    // With a table, the error is certain, and the message says what to do.
    let folder = Folder::new(&[("e.csv", b"person,friend\nann,bob\n"), ("v.csv", b"name\nann\nbob\n")]);
    let table = folder.path("v.csv");
    let error = folder.edges("e.csv", &Options { vertices: Some(&table), ..Options::default() }).unwrap_err();
    assert!(error.contains("`person`, `friend`") && error.contains("set option `header` to yes"), "{error}");
    assert_eq!(read_with(b"source,target\nann,bob\n", &asked(false)).unwrap().0, ["ann>bob", "source>target"]);
    assert_eq!(read_with(b"0 1\n1 2\n", &asked(true)).unwrap().0, ["1>2"]);
    // Names above numbers are a header only if all other lines are numbers.
    assert_eq!(edges_of("a b\n0 1\n"), ["0>1"]);
    let (edges, notes) = read(b"a b\n0 1\n1 c\n").unwrap();
    assert_eq!(edges, ["0>1", "1>c", "a>b"]);
    assert!(says(&notes, "line 3 is `1 c`"), "{notes:?}");
}

#[test]
fn the_first_column_was_the_source_whatever_its_title() {
    let (edges, notes) = read(b",source,target\n0,12,15\n1,15,12\n").unwrap();
    assert_eq!(edges, ["12>15", "15>12"]);
    assert!(says(&notes, "from column `source` to column `target`"));
    assert_eq!(edges_of("weight,dst,src\n1,b,a\n2,c,a\n"), ["a>b", "a>c"]);
}

#[test]
fn titles_stood_over_the_wrong_columns_beside_names_of_rows() {
    // pandas and R write a column for the names of rows; only pandas has a title for it.
    assert_eq!(edges_of("\tsource\ttarget\n0\t12\t15\n1\t15\t12\n"), ["12>15", "15>12"]);
    assert_eq!(edges_of(",source,target\n0,12,15\n1,15,12\n"), ["12>15", "15>12"]);
    for text in ["source\ttarget\n1\t12\t15\n2\t15\t12\n", "source,target\n1,12,15\n2,15,12\n"] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.contains("line 1 has 2 titles, but the next one 3 cells"), "{error}");
    }
    // A delimiter at the end of lines is no cell.
    assert_eq!(edges_of("source,target\n12,15,\n15,12,\n"), ["12>15", "15>12"]);
}

#[test]
fn names_of_vertices_without_edges_became_the_number_0() {
    let folder = Folder::new(&[("e.txt", b"7 9\n9 7\n"), ("v.csv", b"id,x\n9,1\nlonely,2\n7,3\n")]);
    let table = folder.path("v.csv");
    let options = Options { vertices: Some(&table), missing: Missing::Keep, ..Options::default() };
    let got = folder.edges("e.txt", &options).unwrap();
    assert_eq!(got.ids, Some(Ids::Names(["9", "lonely", "7"].map(Into::into).to_vec())));
    assert_eq!((named_edges(&got), features(&got.dataset)), (vec!["7>9".into(), "9>7".into()], vec![1.0, 2.0, 3.0]));
    // Names are kept one a line.
    fs::write(&table, b"id,x\n9,1\n\"a\nb\",2\n7,3\n").unwrap();
    let error = folder.edges("e.txt", &options).unwrap_err();
    assert!(error.contains("a name with a line break"), "{error}");
}

#[test]
fn empty_cells_were_passed_over_and_the_next_column_taken() {
    for text in ["0,1\n2,,3\n", "0,1\n,2,3\n", "a,b\nc,,d\n", "\"a\",b\nc,,d\n"] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.contains("line 2 has an empty cell"), "{text:?}: {error}");
    }
    // Lines of only separators are skipped.
    assert_eq!(edges_of("0,1\n,,\n1,2\n"), ["0>1", "1>2"]);
}

#[test]
fn names_were_cut_at_commas_in_a_text_of_blanks() {
    assert_eq!(edges_of("ann bob\nSmith,J Doe,A\n"), ["Smith,J>Doe,A", "ann>bob"]);
}

#[test]
fn lines_that_were_passed_over_were_not_counted() {
    let folder =
        Folder::new(&[("e.txt", b"# a\n0 1\n% b\n// c\n1 2\n"), ("q.csv", b"# a\n\"x\",y\n#tag,y\n\"#tag\",z\n")]);
    assert_eq!(folder.edges("e.txt", &Options::default()).unwrap().report.comment_lines, 3);
    let quoted = folder.edges("q.csv", &Options::default()).unwrap();
    assert_eq!((named_edges(&quoted), quoted.report.comment_lines), (vec!["#tag>z".into(), "x>y".into()], 2));
    let text = folder.command(&["data", "import", "edges", "e.txt", "set"]).assert().success();
    let text = String::from_utf8_lossy(&text.get_output().stdout).into_owned();
    assert!(text.contains("3 lines passed over"), "{text}");
}

#[test]
fn which_row_is_whose_was_not_said_of_numbers() {
    let rule = |text: &str| {
        let (_, notes) = read(text.as_bytes()).unwrap();
        notes.into_iter().find(|note| note.starts_with("row of each vertex")).unwrap()
    };
    assert_eq!(rule("0 1\n1 2\n"), "row of each vertex (ids are rows): 0 = id 0, 1 = id 1, 2 = id 2");
    assert_eq!(rule("1 2\n2 3\n"), "row of each vertex (ids count from 1): 0 = id 1, 1 = id 2, 2 = id 3");
    let chain: String = (0..9).map(|i| format!("{} {}\n", 10 * i, 10 * i + 10)).collect();
    let want = "0 = id 0, 1 = id 10, 2 = id 20, ..., 7 = id 70, 8 = id 80, 9 = id 90";
    assert_eq!(rule(&chain), format!("row of each vertex (ids have gaps, ascending): {want}"));
}

fn le<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

type Members = Vec<(&'static str, Vec<u8>)>;

fn geometric() -> Members {
    vec![
        ("edge_index.npy", npy("<i8", "(2, 4)", &le(&[0i64, 1, 2, 2, 1, 2, 0, 1]))),
        ("x.npy", npy("<f4", "(4, 1)", &le(&[1f32, 2.0, 3.0, 4.0]))),
        ("y.npy", npy("<i8", "(4,)", &le(&[0i64, 1, 0, 1]))),
        ("train_mask.npy", npy("|b1", "(4,)", &[1, 0, 0, 0])),
        ("val_mask.npy", npy("|b1", "(4,)", &[0, 1, 0, 0])),
        ("test_mask.npy", npy("|b1", "(4, 2)", &[0, 1, 0, 0, 1, 0, 0, 0])),
        ("edge_attr.npy", npy("<f4", "(4,)", &le(&[1f32; 4]))),
    ]
}

#[test]
fn arrays_of_pytorch_geometric_were_ignored() {
    let folder = Folder::new(&[("g.npz", &archive(&geometric()))]);
    let got = import(Format::Npz, &folder.path("g.npz"), &Options::default()).unwrap();
    assert_eq!(named_edges(&got), ["0>1", "1>2", "2>0", "2>1"]);
    assert_eq!((features(&got.dataset), labels(&got.dataset)), (vec![1.0, 2.0, 3.0, 4.0], vec![0, 1, 0, 1]));
    assert_eq!(got.dataset.split()[..], [TRAIN, VAL, TEST, 0]);
    assert!(got.report.notes[0].starts_with("edge_attr was left out"), "{:?}", got.report.notes);
    assert_eq!(got.report.notes.len(), 1);
    let fails = |change: &dyn Fn(&mut Members), split| {
        let mut members = geometric();
        change(&mut members);
        fs::write(folder.path("bad.npz"), archive(&members)).unwrap();
        import(Format::Npz, &folder.path("bad.npz"), &Options { split, ..Options::default() }).unwrap_err().to_string()
    };
    let train = npy("<i8", "(1,)", &le(&[0i64]));
    assert!(fails(&|m| m.push(("train.npy", train.clone())), 0).contains("both train and train_mask"));
    assert!(fails(&|m| m.push(("indptr.npy", train.clone())), 0).contains("both indptr and edge_index"));
    assert!(fails(&|m| m[0].1 = npy("<i8", "(2, 1)", &le(&[0i64, 4])), 0).contains("0 to 3"));
    assert!(fails(&|m| m[0].1 = npy("<i8", "(4,)", &le(&[0i64; 4])), 0).contains("[2, edges]"));
    assert!(fails(&|m| drop(m.remove(0)), 0).contains("edge_index"));
    assert!(fails(&|_| {}, 2).contains("option `split` is 2, expected 0: "));
    let mut alone = geometric();
    alone.truncate(1);
    alone.push(("num_nodes.npy", npy("<i8", "()", &le(&[6i64]))));
    fs::write(folder.path("alone.npz"), archive(&alone)).unwrap();
    let got = import(Format::Npz, &folder.path("alone.npz"), &Options::default()).unwrap();
    assert_eq!((got.dataset.graph().vertex_count(), got.report.notes), (6, vec![]));
}

#[test]
fn splits_are_drawn_where_there_are_none() {
    let folder = Folder::new(&[("e.csv", EDGES), ("v.csv", TABLE), ("g.npz", &archive(&geometric()))]);
    let table = folder.path("v.csv");
    let random = |stratified| Some(RandomSplit { stratified, ..RandomSplit::parse("0.5,0.25,0.25").unwrap() });
    let options = Options { vertices: Some(&table), random_split: random(false), ..Options::default() };
    let data = folder.edges("e.csv", &options).unwrap().dataset;
    assert_eq!([TRAIN, VAL, TEST].map(|which| data.split_size(which)), [2, 1, 1]);
    let options = Options { random_split: random(true), ..Options::default() };
    let error = folder.edges("e.csv", &options).unwrap_err();
    assert!(error.contains("stratified"), "{error}");
    let error = import(Format::Npz, &folder.path("g.npz"), &options).unwrap_err().to_string();
    assert!(error.contains("have splits already"), "{error}");
}

#[test]
fn names_in_and_trained_in_two_commands() {
    let (mut edges, mut table) = ("source,target\n".to_string(), "who,x,y,kind\n".to_string());
    for v in 0..200 {
        let kind = v % 2;
        table += &format!("\"Person, {v}\",{},{},{}\n", kind * 3, v % 7, ["cat", "dog"][kind]);
        for step in [2, 4, 10] {
            edges += &format!("\"Person, {v}\",\"Person, {}\"\n", (v + step) % 200);
        }
    }
    let folder = Folder::new(&[("e.csv", edges.as_bytes()), ("v.csv", table.as_bytes())]);
    let import = ["data", "import", "edges", "e.csv", "set", "--vertices", "v.csv", "--label-column", "kind"];
    let split = ["--split", "0.6,0.2,0.2", "--stratified", "--split-seed", "7"];
    folder.command(&[&import[..], &split].concat()).assert().success();
    let train = folder.command(&["train", "--data", "set", "--epochs", "60", "--json"]).assert().success();
    let text = String::from_utf8_lossy(&train.get_output().stdout).into_owned();
    let summary: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(summary["test_accuracy"].as_f64().unwrap() > 0.95, "{summary}");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let folder = Folder::new(&[("e.csv", EDGES), ("v.csv", TABLE), ("g.npz", &archive(&geometric()))]);
    let fails = |args: &[&str], code: i32, wanted: &str| {
        let done = folder.command(&[&["data", "import"], args].concat()).assert().code(code);
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(text.contains(wanted), "no {wanted} in: {text}");
        assert!(!folder.path("set").exists());
    };
    fails(&["edges", "e.csv", "set", "--vertices", "v.csv", "--features", "x.npy"], 2, "--features is x.npy");
    fails(&["edges", "e.csv", "set", "--vertices", "v.csv", "--vertex-order", "o"], 2, "--vertex-order");
    fails(&["edges", "e.csv", "set", "--key", "name"], 2, "--key");
    fails(&["edges", "e.csv", "set", "--missing", "drop"], 2, "--missing");
    fails(&["npz", "g.npz", "set", "--vertices", "v.csv"], 2, "--vertices");
    fails(&["npz", "g.npz", "set", "--header", "yes"], 2, "--header");
    fails(&["edges", "e.csv", "set", "--split", "0.9,0.9,0.9"], 2, "at most 1");
    fails(&["edges", "e.csv", "set", "--split", "3"], 2, "--split");
    fails(&["edges", "e.csv", "set", "--stratified"], 2, "--split");
    fails(&["edges", "e.csv", "set", "--header", "perhaps"], 2, "yes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Edges written as CSV by the `csv` crate are read back, whatever their names, quoted or not.
    #[test]
    fn names_come_back_from_csv(
        // A line that begins with # or % is a comment, so no first name does.
        edges in proptest::collection::vec(("([a-c\"',;é][a-c\"', ;#%é]{0,3})?z", "[a-c\"', ;é]{0,4}z"), 1..20),
        always in any::<bool>(),
    ) {
        let style = if always { csv::QuoteStyle::Always } else { csv::QuoteStyle::Necessary };
        let mut writer = csv::WriterBuilder::new().quote_style(style).from_writer(Vec::new());
        writer.write_record(["source", "target"]).unwrap();
        let plain: Vec<[String; 2]> = edges.iter().map(|(u, v)| [u.trim().to_string(), v.trim().to_string()]).collect();
        plain.iter().for_each(|edge| writer.write_record(edge).unwrap());
        let mut want: Vec<String> = plain.iter().map(|[u, v]| format!("{u}>{v}")).collect();
        want.sort();
        want.dedup();
        prop_assert_eq!(edges_of(writer.into_inner().unwrap()), want);
    }

    /// Changes or cuts bytes of tables and edges: the result is an error or a dataset, never a panic.
    #[test]
    fn damaged_tables_never_panic(
        which in 0usize..2,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut files = [EDGES.to_vec(), TABLE.to_vec()];
        let bytes = &mut files[which];
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = Folder::new(&[("e.csv", &files[0]), ("v.csv", &files[1])]);
        let table = folder.path("v.csv");
        for missing in [Missing::Refuse, Missing::Drop, Missing::Keep] {
            let _ = folder.edges("e.csv", &Options { vertices: Some(&table), missing, ..Options::default() });
        }
    }
}

#[test]
fn a_packed_table_is_read_as_a_plain_one() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(TABLE).unwrap();
    let folder = Folder::new(&[("e.csv", EDGES), ("v.csv.gz", &packed.finish().unwrap())]);
    let table = folder.path("v.csv.gz");
    let got = folder.edges("e.csv", &Options { vertices: Some(&table), ..Options::default() }).unwrap();
    assert_eq!(features(&got.dataset).len(), 8);
}
