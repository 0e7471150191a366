//! Parquet and Arrow files: tables that `data import` reads, and tables of predictions that `infer` writes. `ci/python` reads
//! and writes the same with other programs.

use std::fs::{self, File};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Float64Array, Int64Array, ListArray, RecordBatch,
    StringArray,
};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::FileWriter;
use lapidary::dataset::generate::{PlantedOptions, SplitSizes, planted};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use super::predictions::write_several_labels;
use crate::common::command::{run, succeeds};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a table in batches of 7 rows. The ending of its name decides the format.
    fn write(&self, name: &str, columns: Vec<(&str, ArrayRef)>) {
        let table =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, c)| (name, c, true))).unwrap();
        let batches = (0..table.num_rows()).step_by(7).map(|at| table.slice(at, 7.min(table.num_rows() - at)));
        let file = File::create(self.path(name)).unwrap();
        if name.ends_with(".parquet") {
            let mut writer = ArrowWriter::try_new(file, table.schema(), None).unwrap();
            batches.for_each(|batch| writer.write(&batch).unwrap());
            writer.close().unwrap();
        } else {
            let mut writer = FileWriter::try_new(file, &table.schema()).unwrap();
            batches.for_each(|batch| writer.write(&batch).unwrap());
            writer.finish().unwrap();
        }
    }

    /// Imports edges with a table of vertices to a dataset directory.
    #[track_caller]
    fn import(&self, edges: &str, vertices: &str, set: &str) {
        let [edges, vertices, set] = [edges, vertices, set].map(|name| self.path(name));
        succeeds(&["data", "import", "edges", &edges, &set, "--vertices", &vertices]);
    }

    /// Asserts that two dataset directories have the same files but for the names of their sources.
    #[track_caller]
    fn assert_same(&self, one: &str, other: &str) {
        let mut files: Vec<_> = fs::read_dir(self.path(one)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert!(files.len() > 2, "{files:?}");
        for file in files.iter().filter(|file| *file != "dataset.json") {
            let [one, other] = [one, other].map(|set| fs::read(self.0.path().join(set).join(file)).unwrap());
            assert!(one == other, "{}", file.display());
        }
    }
}

fn texts(values: impl IntoIterator<Item = Option<&'static str>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<StringArray>())
}

/// Names that text readers could take for comments, numbers, several cells or titles.
const NAMES: [&str; 8] = ["#one", "% two", "//three", "a,b", "say \"hi\"", "source", "7", "1e5"];

fn edges() -> Vec<(&'static str, ArrayRef)> {
    let end = |step: usize| texts((0..24).map(move |i| Some(NAMES[(i % 8 + step * (1 + i / 8)) % 8])));
    let weight = Arc::new((0..24).map(|i| Some(0.1 + f64::from(i))).collect::<Float64Array>());
    vec![("from", end(0)), ("to", end(1)), ("weight", weight)]
}

fn vertices() -> Vec<(&'static str, ArrayRef)> {
    let kinds: DictionaryArray<Int32Type> = (0..8).map(|i| [Some("cat"), Some("dog"), None][i % 3]).collect();
    let pairs = ListArray::from_iter_primitive::<Float32Type, _, _>((0..8).map(|i| Some([Some(i as f32), Some(0.5)])));
    let triples = FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(
        (0..8).map(|i| Some([Some(i), Some(-i), Some(1 << 40)])),
        3,
    );
    vec![
        ("name", texts(NAMES.map(Some))),
        ("label", Arc::new(kinds)),
        ("pair", Arc::new(pairs)),
        ("age", Arc::new(Int64Array::from_iter_values((0..8).map(|i| i * i)))),
        ("triple", Arc::new(triples)),
        ("train", Arc::new((0..8).map(|i| Some(i < 4)).collect::<BooleanArray>())),
    ]
}

#[test]
fn tables_are_imported_as_the_same_tables_in_csv_are() {
    let folder = Folder::new();
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let mut text = String::from("from,to,weight\n");
    for i in 0..24 {
        let [u, v] = [i % 8, (i % 8 + 1 + i / 8) % 8].map(|at| quoted(NAMES[at]));
        text += &format!("{u},{v},{}\n", 0.1 + i as f64);
    }
    fs::write(folder.path("e.csv"), text).unwrap();
    let mut text = String::from("name,label,pair:0,pair:1,age,triple:0,triple:1,triple:2,train\n");
    for i in 0..8 {
        let kind = ["cat", "dog", ""][i % 3];
        text +=
            &format!("{},{kind},{i},0.5,{},{i},{},{},{}\n", quoted(NAMES[i]), i * i, -(i as i64), 1_u64 << 40, i < 4);
    }
    fs::write(folder.path("v.csv"), text).unwrap();
    folder.import("e.csv", "v.csv", "csv");
    for format in ["parquet", "arrow"] {
        let [e, v] = ["e", "v"].map(|name| format!("{name}.{format}"));
        folder.write(&e, edges());
        folder.write(&v, vertices());
        folder.import(&e, &v, format);
        folder.assert_same(format, "csv");
    }
    let info = succeeds(&["data", "info", &folder.path("parquet"), "--json"]);
    assert!(info.contains("\"width\":6"), "{info}");
}

/// Many rows are several blocks of text, and numbers are read by several threads.
#[test]
fn many_numbers_are_the_same_edges() {
    let folder = Folder::new();
    let ends = |factor: i64| Int64Array::from_iter_values((0..200_000).map(|i| (i * factor + i / 7) % 5000));
    let [source, target] = [ends(31), ends(17)];
    let text: String = (0..200_000).map(|i| format!("{} {}\n", source.value(i), target.value(i))).collect();
    fs::write(folder.path("e.txt"), text).unwrap();
    succeeds(&["data", "import", "edges", &folder.path("e.txt"), &folder.path("text")]);
    folder.write("e.parquet", vec![("u", Arc::new(source)), ("v", Arc::new(target))]);
    succeeds(&["data", "import", "edges", &folder.path("e.parquet"), &folder.path("parquet")]);
    folder.assert_same("parquet", "text");
}

#[test]
fn what_is_wrong_is_said() {
    let folder = Folder::new();
    folder.write("e.parquet", edges());
    folder.write("v.parquet", vertices());
    let fails = |edges: &str, flags: &[&str], said: &str| {
        let (edges, set) = (folder.path(edges), folder.path("set"));
        let (code, _, errors) = run(&[&["data", "import", "edges", &edges, &set], flags].concat());
        assert!(code == Some(2) || code == Some(1), "{code:?}: {errors}");
        assert!(errors.contains(said), "{errors}");
        assert!(!folder.0.path().join("set").exists());
    };
    fails("e.parquet", &["--header", "no"], "a Parquet file has titles");
    fails("e.parquet", &["--vertex-order", &folder.path("v.parquet")], "--vertices");
    let whole = fs::read(folder.path("e.parquet")).unwrap();
    for (name, bytes) in
        [("cut.parquet", &whole[..whole.len() - 9]), ("short.parquet", b"PAR1"), ("short.arrow", b"ARROW1")]
    {
        fs::write(folder.path(name), bytes).unwrap();
        fails(name, &[], "cannot be read as");
    }
    let lists = [vec![Some(1)], vec![Some(1), Some(2)]].map(Some);
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    folder.write("lists.parquet", vec![("name", texts([Some("a"), Some("b")])), ("x", Arc::new(lists))]);
    let said = "line 3 has a list of 2 in column `x`, the first one has 1";
    fails("e.parquet", &["--vertices", &folder.path("lists.parquet")], said);
    folder.write("one.parquet", vec![("only", texts([Some("a")]))]);
    fails("one.parquet", &[], "has one column");
}

/// Damaged bytes end in an error, or do not matter; never in a crash.
#[test]
fn no_damaged_byte_crashes() {
    let folder = Folder::new();
    for (format, steps) in [("parquet", 40), ("arrow", 40)] {
        let name = format!("v.{format}");
        folder.write(&name, vertices());
        folder.write("e.arrow", edges());
        let whole = fs::read(folder.path(&name)).unwrap();
        for i in 0..steps {
            let mut damaged = whole.clone();
            let at = 8 + i * (whole.len() - 16) / steps;
            damaged[at] ^= 1 << (i % 8);
            damaged[at + 1] = damaged[at + 1].wrapping_add(97);
            fs::write(folder.path("damaged"), damaged).unwrap();
            let [edges, set, table] = ["e.arrow", &format!("{format}{i}"), "damaged"].map(|name| folder.path(name));
            let (code, _, errors) = run(&["data", "import", "edges", &edges, &set, "--vertices", &table]);
            assert!(matches!(code, Some(0..=2)), "byte {at} of {name}: {code:?}, {errors}");
        }
    }
}

/// Reads a table of predictions.
fn read(path: &str) -> RecordBatch {
    let file = File::open(path).unwrap();
    let batches: Vec<RecordBatch> = if path.ends_with(".parquet") {
        ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap).collect()
    } else {
        FileReader::try_new(file, None).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(batches.len(), 1);
    batches[0].clone()
}

#[test]
fn predictions_are_those_of_the_csv() {
    let folder = Folder::new();
    let [model, csv] = ["run", "p.csv"].map(|name| folder.path(name));
    let data = "builtin:karate";
    succeeds(&["train", "--data", data, "--epochs", "3", "--checkpoint", &model]);
    let infer = |out: &str, more: &[&str]| {
        succeeds(
            &[&["infer", "--checkpoint", &model, "--data", data, "--scores", "logits", "--out", out], more].concat(),
        );
    };
    infer(&csv, &[]);
    let rows: Vec<csv::StringRecord> = csv::Reader::from_path(&csv).unwrap().records().map(Result::unwrap).collect();
    let titles = csv::Reader::from_path(&csv).unwrap().headers().unwrap().clone();
    for name in ["p.parquet", "p.arrow", "p.feather"] {
        let out = folder.path(name);
        infer(&out, &[]);
        let table = read(&out);
        assert_eq!(
            table.schema().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(),
            titles.iter().collect::<Vec<_>>()
        );
        assert_eq!(table.num_rows(), rows.len());
        for (i, row) in rows.iter().enumerate() {
            for (at, cell) in row.iter().enumerate() {
                let column = table.column(at);
                match at {
                    0 | 1 => assert_eq!(column.as_primitive::<Int64Type>().value(i).to_string(), *cell),
                    _ => assert_eq!(column.as_primitive::<Float32Type>().value(i).to_string(), *cell),
                }
            }
        }
    }
    // Of several datasets, names are texts.
    let many = folder.path("many.parquet");
    infer(&many, &["--data", data]);
    let table = read(&many);
    assert_eq!((table.num_rows(), table.schema().field(0).name().as_str()), (2 * rows.len(), "data"));
    assert_eq!(table.column_by_name("vertex").unwrap().as_string::<i32>().value(rows.len() + 1), "1");
}

/// Ids of an edge list are numbers, also if they are not 0, 1, ...
#[test]
fn ids_that_were_renumbered_come_out_as_numbers() {
    let folder = Folder::new();
    fs::write(folder.path("e.txt"), "700 30\n30 5000000000\n5000000000 700\n").unwrap();
    let [edges, set, model, out] = ["e.txt", "set", "run", "p.arrow"].map(|name| folder.path(name));
    succeeds(&["data", "import", "edges", &edges, &set, "--symmetrise"]);
    let karate = ["train", "--data", "builtin:karate", "--epochs", "2", "--make-features", "degree"];
    succeeds(&[&karate[..], &["--checkpoint", &model]].concat());
    succeeds(&["infer", "--checkpoint", &model, "--data", &set, "--out", &out]);
    let ids = read(&out).column_by_name("vertex").unwrap().as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(ids, [30, 700, 5_000_000_000]);
}

#[test]
fn several_labels_are_lists() {
    let folder = Folder::new();
    let [set, model, out, csv] = ["set", "run", "p.parquet", "p.csv"].map(|name| folder.path(name));
    write_several_labels(&set);
    succeeds(&["train", "--data", &set, "--epochs", "100", "--checkpoint", &model, "--lr", "0.05"]);
    for out in [&out, &csv] {
        succeeds(&["infer", "--checkpoint", &model, "--data", &set, "--out", out]);
    }
    let table = read(&out);
    let joined = |name: &str, row: usize| {
        let list = table.column_by_name(name).unwrap().as_list::<i32>().value(row);
        let texts: Vec<String> = match name {
            "prediction" => list.as_primitive::<Int64Type>().values().iter().map(i64::to_string).collect(),
            _ => list.as_primitive::<Float32Type>().values().iter().map(f32::to_string).collect(),
        };
        texts.join(";")
    };
    for (row, want) in csv::Reader::from_path(&csv).unwrap().records().enumerate() {
        let want = want.unwrap();
        assert_eq!([joined("prediction", row), joined("probability", row)], [&want[1], &want[2]]);
        assert_eq!(&want[1], ["0;2", "1;2"][row % 2]);
    }
}

#[test]
fn many_rows_are_one_table() {
    let folder = Folder::new();
    let split = SplitSizes::PerClass { train: 10, val: 20, test: 20 };
    let data =
        planted(&PlantedOptions { vertices: 20_000, feature_width: 4, split, ..PlantedOptions::default() }).unwrap();
    data.write(folder.path("set")).unwrap();
    let [set, model, out] = ["set", "run", "p.parquet"].map(|name| folder.path(name));
    succeeds(&["train", "--data", &set, "--epochs", "1", "--checkpoint", &model, "--hidden", "4"]);
    succeeds(&["infer", "--checkpoint", &model, "--data", &set, "--out", &out]);
    let file = File::open(&out).unwrap();
    let batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let vertices: Vec<i64> =
        batches.flat_map(|batch| batch.unwrap().column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
    assert_eq!(vertices, (0..20_000).collect::<Vec<_>>());
}
