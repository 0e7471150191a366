//! The tables of predictions that `infer` writes, its metrics, and what `train` says of the largest class.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::command::{run, succeeds};
use lapidary::dataset::FeatureNorm;
use lapidary::{Arrays, Dataset, Graph, Predictor};
use ndarray::Array2;
use ndarray_npy::read_npy;
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a dataset `set`, whose vertices are called `Person, N` and whose classes are `cat` and `dog, "big"`, and
/// a model `run` that was trained on it.
struct Trained(TempDir);

impl Trained {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let (mut table, mut edges) = (String::from("person,age,x,kind\n"), String::new());
        for v in 0..60 {
            let kind = v % 2;
            table += &format!("\"Person, {v}\",{},{},{}\n", kind * 3, v % 7, ["cat", "\"dog, \"\"big\"\"\""][kind]);
            for step in [2, 4, 10] {
                edges += &format!("\"Person, {v}\",\"Person, {}\"\n", (v + step) % 60);
            }
        }
        fs::write(folder.path("v.csv"), table).unwrap();
        fs::write(folder.path("e.csv"), edges).unwrap();
        let [edges, vertices, set, model] = ["e.csv", "v.csv", "set", "run"].map(|name| folder.path(name));
        let split = ["--split", "0.6,0.2,0.2", "--stratified", "--split-seed", "7"];
        let import = ["data", "import", "edges", &edges, &set, "--vertices", &vertices, "--label-column", "kind"];
        succeeds(&[&import[..], &split].concat());
        succeeds(&["train", "--data", &set, "--epochs", "60", "--checkpoint", &model]);
        folder
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Applies the model to the dataset `set`, and returns the code, the output and the errors.
    fn infer(&self, set: &str, flags: &[&str]) -> (Option<i32>, String, String) {
        let [model, set] = ["run", set].map(|name| self.path(name));
        run(&[&["infer", "--checkpoint", &model, "--data", &set], flags].concat())
    }

    /// Applies the model to the dataset `set`. Returns the rows of the table `name`, the titles first.
    #[track_caller]
    fn table(&self, set: &str, name: &str, flags: &[&str]) -> Vec<Vec<String>> {
        let out = self.path(name);
        let (code, _, errors) = self.infer(set, &[&["--out", &out], flags].concat());
        assert_eq!(code, Some(0), "{errors}");
        rows(&out)
    }
}

/// Reads a table, the titles first.
fn rows(path: &str) -> Vec<Vec<String>> {
    let separator = if path.ends_with(".tsv") { b'\t' } else { b',' };
    let mut reader = csv::ReaderBuilder::new().has_headers(false).delimiter(separator).from_path(path).unwrap();
    reader.records().map(|row| row.unwrap().iter().map(String::from).collect()).collect()
}

#[test]
fn names_come_out_as_they_went_in() {
    let folder = Trained::new();
    let table = folder.table("set", "predictions.csv", &[]);
    assert_eq!(table[0], ["vertex", "prediction", "probability"]);
    assert_eq!(table.len(), 61);
    let right = table[1..].iter().filter(|row| {
        let number: usize = row[0].strip_prefix("Person, ").unwrap().parse().unwrap();
        let probability: f64 = row[2].parse().unwrap();
        assert!((0.5..=1.0).contains(&probability), "{row:?}");
        row[1] == ["cat", "dog, \"big\""][number % 2]
    });
    assert!(right.count() >= 58);
    // The same names in the same order, whatever the order in the files and in memory.
    let [set, moved] = ["set", "moved"].map(|name| folder.path(name));
    succeeds(&["data", "partition", &set, &moved, "--parts", "3", "--by", "random"]);
    for (set, flags) in [("moved", &[][..]), ("moved", &["--reorder", "degree"]), ("set", &["--reorder", "rcm"])] {
        let other = folder.table(set, "other.csv", flags);
        for (row, want) in other.iter().zip(&table) {
            assert_eq!(row[..2], want[..2], "{set} {flags:?}");
        }
    }
}

#[test]
fn scores_of_each_class_are_those_of_the_array() {
    let folder = Trained::new();
    let logits: Array2<f32> = {
        let out = folder.path("logits.npy");
        assert_eq!(folder.infer("set", &["--out", &out]).0, Some(0));
        read_npy(out).unwrap()
    };
    let table = folder.table("set", "logits.tsv", &["--scores", "logits"]);
    assert_eq!(table[0][3..], ["logit:cat", "logit:dog, \"big\""]);
    for (row, want) in table[1..].iter().zip(logits.rows()) {
        let found: Vec<f32> = row[3..].iter().map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(found, want.to_vec());
    }
    let table = folder.table("set", "shares.csv", &["--scores", "probabilities"]);
    for row in &table[1..] {
        let shares: Vec<f64> = row[3..].iter().map(|cell| cell.parse().unwrap()).collect();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        assert_eq!(row[2].parse::<f64>().unwrap(), shares[0].max(shares[1]));
    }
}

/// A graph that the model never saw has no labels, so the names of the classes are those of the training.
#[test]
fn a_new_graph_without_labels_gets_the_classes_of_the_training() {
    let folder = Trained::new();
    let x = Array2::from_shape_fn((3, 2), |(v, c)| if c == 0 { 3.0 * (v % 2) as f32 } else { v as f32 });
    let arrays = Arrays::new(Graph::from_edges(3, &[(0, 1), (1, 0)]).unwrap()).features(x);
    Dataset::from_arrays(arrays.feature_norm(FeatureNorm::None)).unwrap().write(folder.path("new")).unwrap();
    let table = folder.table("new", "new.csv", &[]);
    let vertices: Vec<&str> = table[1..].iter().map(|row| row[0].as_str()).collect();
    assert_eq!(vertices, ["0", "1", "2"]);
    assert!(table[1..].iter().all(|row| ["cat", "dog, \"big\""].contains(&row[1].as_str())), "{table:?}");
    // The library knows them too.
    let data = Dataset::open(folder.path("new")).unwrap();
    let classes = Predictor::open(folder.path("run")).unwrap().classes_for(&data);
    assert_eq!(classes.names.unwrap(), ["cat", "dog, \"big\""]);
    // A checkpoint of an older version does not know them.
    let record = folder.path("run/best/run.json");
    let mut fields: BTreeMap<String, Value> = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    fields.remove("classes").unwrap();
    fields.insert("format".into(), 1.into());
    fs::write(&record, serde_json::to_string(&fields).unwrap()).unwrap();
    fs::remove_file(folder.path("run/best/B3SUMS")).unwrap();
    let table = folder.table("new", "old.csv", &[]);
    assert!(table[1..].iter().all(|row| ["0", "1"].contains(&row[1].as_str())), "{table:?}");
}

/// Writes a dataset whose even vertices have the labels 0 and 2, and whose odd ones have 1 and 2.
pub fn write_several_labels(folder: &str) {
    let n = 40;
    let edges: Vec<(u32, u32)> =
        (0..n as u32).flat_map(|v| [(v, (v + 2) % n as u32), ((v + 2) % n as u32, v)]).collect();
    let x = Array2::from_shape_fn((n, 2), |(v, c)| if v % 2 == c { 1.0 } else { 0.0 });
    let labels = Array2::from_shape_fn((n, 3), |(v, c)| u8::from(c == 2 || v % 2 == c));
    let all: Vec<i64> = (0..n as i64).collect();
    let arrays = Arrays::new(Graph::from_edges(n, &edges).unwrap()).features(x).multi_labels(labels);
    let data = Dataset::from_arrays(arrays.train(&all[..20]).val(&all[20..30]).test(&all[30..])).unwrap();
    data.write(folder).unwrap();
}

#[test]
fn several_labels_per_vertex_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (set, model, out) = (path("set"), path("run"), path("out.csv"));
    write_several_labels(&set);
    succeeds(&["train", "--data", &set, "--epochs", "100", "--checkpoint", &model, "--lr", "0.05"]);
    let flags = ["--metric", "macro-f1,roc-auc,confusion", "--json", "--scores", "probabilities"];
    let infer = ["infer", "--checkpoint", &model, "--data", &set, "--out", &out];
    let line: Value = serde_json::from_str(&succeeds(&[&infer[..], &flags].concat())).unwrap();
    assert_eq!((&line["test_macro_f1"], &line["test_roc_auc"]), (&1.0.into(), &1.0.into()), "{line}");
    assert_eq!(line["test_confusion"], Value::Null);
    let table = rows(&out);
    assert_eq!(table[1][..2], ["0", "0;2"]);
    assert_eq!(table[2][..2], ["1", "1;2"]);
    let listed = format!("{};{}", table[1][3], table[1][5]);
    assert_eq!(table[1][2], listed);
}

#[test]
fn one_table_has_many_graphs() {
    let folder = Trained::new();
    let [model, set, again, out] = ["run", "set", "again", "all.csv"].map(|name| folder.path(name));
    succeeds(&["data", "partition", &set, &again, "--parts", "2", "--by", "random"]);
    succeeds(&["infer", "--checkpoint", &model, "--data", &set, "--data", &again, "--out", &out]);
    let table = rows(&out);
    assert_eq!(table[0], ["data", "vertex", "prediction", "probability"]);
    assert_eq!(table.len(), 121);
    for (a, b) in table[1..61].iter().zip(&table[61..]) {
        assert_eq!((&a[0], &b[0]), (&set, &again));
        assert_eq!(a[1..3], b[1..3]);
    }
}

#[test]
fn metrics_of_unbalanced_classes_are_printed() {
    let folder = Trained::new();
    let (_, text, _) = folder.infer("set", &["--metric", "macro-f1,roc-auc,confusion", "--json"]);
    let line: Value = serde_json::from_str(&text).unwrap();
    let counts: Vec<Vec<u64>> = serde_json::from_value(line["test_confusion"].clone()).unwrap();
    assert_eq!(counts.iter().flatten().sum::<u64>(), 12);
    let right = (counts[0][0] + counts[1][1]) as f64 / 12.0;
    assert_eq!(line["test_accuracy"].as_f64(), Some(right));
    let f1 = |class: usize| {
        2.0 * counts[class][class] as f64 / (0..2).map(|c| counts[class][c] + counts[c][class]).sum::<u64>() as f64
    };
    assert!((line["test_macro_f1"].as_f64().unwrap() - (f1(0) + f1(1)) / 2.0).abs() < 1e-12);
    assert!(line["test_roc_auc"].as_f64().unwrap() > 0.9);
    let (_, text, _) = folder.infer("set", &["--metric", "roc-auc,confusion"]);
    for words in ["test ROC-AUC", "dog, \"big\""] {
        assert!(text.contains(words), "{text}");
    }
}

/// The metrics after a training are those of its best epoch, on any devices and on mini-batches.
#[test]
fn training_measures_what_infer_measures() {
    let folder = tempfile::tempdir().unwrap();
    let asked = ["--metric", "macro-f1,roc-auc,confusion", "--json"];
    let measured = |text: &str| -> [Value; 3] {
        let line: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        ["test_macro_f1", "test_roc_auc", "test_confusion"].map(|name| line[name].clone())
    };
    let devices: [&[&str]; 3] = [
        &[],
        &["--devices", "sim:2", "--device-memory", "100KiB", "--memory", "lru"],
        &["--batch", "64", "--fanout", "5,5"],
    ];
    for (number, flags) in devices.into_iter().enumerate() {
        let model = folder.path().join(number.to_string()).to_str().unwrap().to_owned();
        let train = ["train", "--epochs", "60", "--checkpoint", &model];
        let text = succeeds(&[&train[..], flags, &asked].concat());
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [summary, metrics] = &lines[lines.len() - 2..] else { unreachable!("a run has a summary") };
        assert_eq!((&summary["event"], &metrics["event"]), (&"summary".into(), &"metrics".into()));
        assert_eq!(summary["best_epoch"], metrics["epoch"]);
        let infer = |checkpoint: &str| {
            measured(&succeeds(
                &[&["infer", "--checkpoint", checkpoint, "--data", "builtin:planted"], &asked[..]].concat(),
            ))
        };
        let found = measured(&text);
        assert!(found.iter().all(|value| !value.is_null()), "{flags:?}: {found:?}");
        assert_eq!(found, infer(&model), "{flags:?}");
        assert_ne!(found, infer(&format!("{model}/epoch-00000060")), "{flags:?}: the last epoch is not the best");
    }
    let text = succeeds(&["train", "--epochs", "3", "--metric", "roc-auc,confusion"]);
    for words in ["of epoch", "test ROC-AUC", "test class \\ predicted"] {
        assert!(text.contains(words), "{text}");
    }
    let batches = ["train", "--batch", "64", "--fanout", "5,5", "--eval-fanout", "5,5", "--metric", "macro-f1"];
    let (code, _, errors) = run(&batches);
    assert!(code == Some(2) && errors.contains("--metric") && errors.contains("--eval-fanout"), "{errors}");
    assert!(errors.contains("measure a checkpoint with `infer`"), "{errors}");
}

#[test]
fn what_cannot_be_written_is_refused_and_nothing_is_lost() {
    let folder = Trained::new();
    let [model, set, sheet, npy, table] =
        ["run", "set", "out.xlsx", "out.npy", "out.csv"].map(|name| folder.path(name));
    let refused = |flags: &[&str], code: i32, words: &str| {
        let (found, _, errors) = folder.infer("set", flags);
        assert!(found == Some(code) && errors.contains(words), "{flags:?}: {found:?}, {errors}");
    };
    refused(&["--out", &sheet], 2, "end the name in .csv");
    refused(&["--out", &npy, "--scores", "logits"], 2, "--scores");
    refused(&["--scores", "logits"], 2, "--out");
    refused(&["--metric", "auc"], 2, "roc-auc");
    refused(&["--metric", "roc-auc", "--data", &set], 2, "--metric");
    refused(&["--out", &folder.path("missing/out.csv")], 1, "missing/out.csv");
    assert!(!Path::new(&npy).exists() && !Path::new(&sheet).exists());
    // An earlier table stays if the names do not fit.
    fs::write(&table, "earlier").unwrap();
    fs::write(folder.path("set/vertex_names.txt"), "only one\n").unwrap();
    let (code, _, errors) = run(&["infer", "--checkpoint", &model, "--data", &set, "--out", &table]);
    assert!(code == Some(1) && errors.contains("vertex_names.txt"), "{code:?}, {errors}");
    assert_eq!(fs::read_to_string(&table).unwrap(), "earlier");
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 5, "no other file is left");
}

#[test]
fn a_model_that_learned_nothing_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set").to_str().unwrap().to_owned();
    let n = 100;
    let labels: Vec<i64> = (0..n).map(|v| i64::from(v % 5 == 0)).collect();
    let ids: Vec<i64> = (0..n).collect();
    let x = Array2::from_elem((n as usize, 3), 1.0);
    let arrays = Arrays::new(Graph::from_edges(n as usize, &[]).unwrap()).features(x).labels(&labels);
    let data = Dataset::from_arrays(arrays.train(&ids[..50]).val(&ids[50..60]).test(&ids[60..])).unwrap();
    data.write(&set).unwrap();
    let (_, text, errors) = run(&["train", "--data", &set, "--epochs", "30"]);
    assert!(text.contains("largest class") && text.contains("80.00 % (0)"), "{text}");
    assert_eq!(errors.matches("hardly better than predicting class 0").count(), 1, "{errors}");
    assert!(errors.contains("--epochs 200") && errors.contains("--hidden 64"), "{errors}");
    let line: Value =
        serde_json::from_str(succeeds(&["train", "--epochs", "20", "--json"]).lines().last().unwrap()).unwrap();
    assert!(line["test_largest_class"].as_f64().unwrap() < 0.5);
    let (_, _, errors) = run(&["train", "--epochs", "8"]);
    assert!(errors.contains("the last epoch was the best"), "{errors}");
    // One evaluation says nothing of others.
    let (_, _, errors) = run(&["train", "--epochs", "8", "--eval-every", "0"]);
    assert!(!errors.contains("the last epoch was the best"), "{errors}");
    let (_, text, errors) = run(&["train"]);
    assert!(text.contains("largest class") && !errors.contains("hardly better"), "{errors}");
}
