//! Invalid input to the command: one `error:` line that names the problem, the exit code, and no incomplete output.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use lapidary::Dataset;
use ndarray::{Array1, Array2};
use ndarray_npy::{WritableElement, write_npy};
use tempfile::TempDir;

/// Runs the command. It must fail with exit code 1 and exactly one `error:` line that contains all of `wanted`.
fn fails<I, S>(args: I, wanted: &[&str])
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    fails_with(1, args, wanted);
}

fn fails_with<I, S>(code: i32, args: I, wanted: &[&str])
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    let done = Command::cargo_bin("lapidary").unwrap().args(args).assert().code(code);
    let output = done.get_output();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().filter(|line| line.starts_with("error:")).count(), 1, "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in wanted {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    assert!(output.stdout.is_empty());
}

/// A valid dataset directory, which tests then damage.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Dataset::builtin("planted").unwrap().write(folder.path().join("data")).unwrap();
        Self { folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.data().join(name)
    }

    fn read<T: ndarray_npy::ReadableElement + Clone>(&self, name: &str) -> Vec<T> {
        ndarray_npy::read_npy::<_, Array1<T>>(self.file(name)).unwrap().to_vec()
    }

    fn write<T: WritableElement>(&self, name: &str, values: Vec<T>) {
        write_npy(self.file(name), &Array1::from(values)).unwrap();
    }

    fn train_fails(&self, wanted: &[&str]) {
        let data = self.data();
        fails([Path::new("train"), Path::new("--data"), &data], wanted);
    }
}

#[test]
fn a_missing_folder() {
    fails(["train", "--data", "no/such/folder"], &["no/such/folder"]);
}

#[test]
fn a_missing_file() {
    let fixture = Fixture::new();
    fs::remove_file(fixture.file("indices.npy")).unwrap();
    fixture.train_fails(&["indices.npy"]);
}

#[test]
fn a_truncated_file() {
    let fixture = Fixture::new();
    let file = fs::OpenOptions::new().write(true).open(fixture.file("features.npy")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 100).unwrap();
    fixture.train_fails(&["features.npy"]);
}

#[test]
fn a_wrong_dtype() {
    let fixture = Fixture::new();
    let offsets: Vec<i64> = fixture.read("indptr.npy");
    fixture.write("indptr.npy", offsets.iter().map(|&x| x as f64).collect());
    fixture.train_fails(&["indptr.npy", "f8", "i8"]);
}

#[test]
fn a_wrong_shape() {
    let fixture = Fixture::new();
    let mut labels: Vec<i64> = fixture.read("labels.npy");
    labels.pop();
    fixture.write("labels.npy", labels);
    fixture.train_fails(&["labels.npy", "2999", "3000"]);
}

#[test]
fn an_index_out_of_range() {
    let fixture = Fixture::new();
    let mut indices: Vec<u32> = fixture.read("indices.npy");
    indices[17] = 3000;
    fixture.write("indices.npy", indices);
    fixture.train_fails(&["indices.npy", "17", "3000"]);
}

#[test]
fn offsets_that_fall() {
    let fixture = Fixture::new();
    let mut offsets: Vec<i64> = fixture.read("indptr.npy");
    offsets[8] = offsets[7] - 1;
    fixture.write("indptr.npy", offsets);
    fixture.train_fails(&["indptr.npy", "position 8"]);
}

#[test]
fn a_nan_feature() {
    let fixture = Fixture::new();
    let mut features: Array2<f32> = ndarray_npy::read_npy(fixture.file("features.npy")).unwrap();
    features[[5, 3]] = f32::NAN;
    write_npy(fixture.file("features.npy"), &features).unwrap();
    fixture.train_fails(&["features.npy", "row 5", "column 3", "NaN"]);
}

#[test]
fn a_label_out_of_range() {
    let fixture = Fixture::new();
    let mut labels: Vec<i64> = fixture.read("labels.npy");
    labels[4] = 7;
    fixture.write("labels.npy", labels);
    fixture.train_fails(&["labels.npy", "7"]);
}

#[test]
fn an_empty_graph() {
    let fixture = Fixture::new();
    fixture.write("indptr.npy", vec![0i64]);
    fixture.write("indices.npy", Vec::<u32>::new());
    fixture.train_fails(&["indptr.npy"]);
}

#[test]
fn overlapping_splits() {
    let fixture = Fixture::new();
    let train: Vec<i64> = fixture.read("train.npy");
    let mut test: Vec<i64> = fixture.read("test.npy");
    test[0] = train[3];
    fixture.write("test.npy", test);
    fixture.train_fails(&["train.npy", "test.npy", &train[3].to_string()]);
}

#[test]
fn a_checkpoint_for_another_width() {
    let fixture = Fixture::new();
    let run = fixture.folder.path().join("run");
    let run = run.to_str().unwrap();
    Command::cargo_bin("lapidary").unwrap().args(["train", "--epochs", "2", "--checkpoint", run]).assert().success();
    fails(["infer", "--checkpoint", run, "--data", "builtin:karate"], &["64", "34"]);
}

#[test]
fn weights_that_are_not_the_models() {
    let fixture = Fixture::new();
    let file = fixture.folder.path().join("weights.safetensors");
    fs::write(&file, b"not a safetensors file").unwrap();
    let file = file.to_str().unwrap();
    fails(["infer", "--weights", file, "--model", "gcn", "--data", "builtin:karate"], &[file]);
}

#[test]
fn a_folder_without_a_checkpoint() {
    let fixture = Fixture::new();
    let folder = fixture.data();
    let folder = folder.to_str().unwrap();
    fails(["infer", "--checkpoint", folder, "--data", "builtin:karate"], &[folder, "best/"]);
}

#[test]
fn an_unknown_model() {
    fails_with(2, ["train", "--model", "gnn"], &["gnn", "gcn", "(--model)"]);
}

#[test]
fn a_model_that_does_not_exist() {
    fails_with(2, ["train", "--model", "gat2"], &["gat2"]);
}

#[test]
fn choices_that_there_are_not() {
    let cases: [(&[&str], &str); 2] =
        [(&["--passes", "recompute"], "there is no pass `recompute`"), (&["--norm", "max"], "max")];
    for (flags, wanted) in cases {
        fails_with(2, ["train", "--epochs", "1"].iter().chain(flags), &[wanted, flags[0]]);
    }
    fails(["data", "generate", "bter", "x", "--degrees", "/nowhere/x"], &["/nowhere/x is missing"]);
    fails(["data", "import", "ogb", "/nowhere/x", "y"], &["num-node-list.csv.gz is missing"]);
}

#[test]
fn values_that_mean_nothing() {
    // Flags, and the text that the error must contain.
    let cases: [(&[&str], &[&str]); 17] = [
        (&["--layers", "18446744073709551615"], &["--layers", "from 1 to 10000"]),
        (&["--early-stop", "0"], &["--early-stop", "at least 1"]),
        (&["--early-stop", "5", "--eval-every", "0"], &["--early-stop cannot be `5`", "--eval-every 0"]),
        (&["--threads", "20000"], &["--threads", "at most 1024"]),
        (&["--momentum", "0.9"], &["--momentum", "sgd"]),
        (&["--model", "gin", "--norm", "sym"], &["`gin`", "`sym`", "--norm"]),
        (&["--device-memory", "much"], &["--device-memory", "`much`", "GiB"]),
        (&["--devices", "tpu"], &["--devices", "`tpu`", "sim:N"]),
        (&["--devices", "cuda"], &["--devices", "`cuda`", "cuda:0,1"]),
        (&["--devices", "cuda:0,x"], &["--devices", "`cuda:0,x`"]),
        (&["--lr", "-1"], &["--lr", "`-1`"]),
        (&["--lr", "nan"], &["--lr", "`NaN`"]),
        (&["--dropout", "1.0"], &["dropout", "[0, 1)"]),
        (&["--layers", "0"], &["--layers", "from 1 to 10000"]),
        (&["--hidden", "0"], &["--hidden", "at least 1"]),
        (&["--optimizer", "lion"], &["--optimizer", "`lion`", "adamw"]),
        (&["--decay-layers", "last"], &["--decay-layers", "`last`", "first"]),
    ];
    for (flags, wanted) in cases {
        fails_with(2, ["train", "--epochs", "1"].iter().chain(flags), wanted);
    }
    for (width, need) in [("4000000000", "needs 5.5 TiB"), ("18446744073709551615", "needs 16.0 EiB")] {
        fails_with(3, ["train", "--hidden", width], &[need, "--device-memory", "--hidden"]);
    }
}

#[test]
fn a_set_without_features_or_labels() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("rmat");
    let dst = dst.to_str().unwrap();
    Command::cargo_bin("lapidary")
        .unwrap()
        .args(["data", "generate", "rmat", dst, "--vertices", "64"])
        .assert()
        .success();
    fails(["train", "--data", dst], &["labels.npy"]);
    Command::cargo_bin("lapidary").unwrap().args(["data", "info", dst]).assert().success();
}

#[test]
fn a_file_where_the_checkpoint_folder_should_be() {
    let fixture = Fixture::new();
    let file = fixture.file("train.npy");
    fails(["train", "--epochs", "1", "--checkpoint", file.to_str().unwrap()], &["train.npy"]);
}

#[test]
fn output_that_cannot_be_written() {
    let fixture = Fixture::new();
    let run = fixture.folder.path().join("run");
    let run = run.to_str().unwrap();
    Command::cargo_bin("lapidary").unwrap().args(["train", "--epochs", "1", "--checkpoint", run]).assert().success();
    let out = fixture.folder.path().join("no/such/folder/logits.npy");
    let out = out.to_str().unwrap();
    fails(["infer", "--checkpoint", run, "--data", "builtin:planted", "--out", out], &["logits"]);
}

#[test]
fn a_generated_set_does_not_replace_what_is_there() {
    let fixture = Fixture::new();
    let before = fs::read(fixture.file("indices.npy")).unwrap();
    let dst = fixture.data();
    fails(["data", "generate", "planted", dst.to_str().unwrap(), "--seed", "9"], &["data"]);
    assert_eq!(fs::read(fixture.file("indices.npy")).unwrap(), before);
}

#[test]
fn a_training_split_without_labels() {
    let fixture = Fixture::new();
    let train: Vec<i64> = fixture.read("train.npy");
    let mut labels: Vec<i64> = fixture.read("labels.npy");
    for v in train {
        labels[v as usize] = -1;
    }
    fixture.write("labels.npy", labels);
    fixture.train_fails(&["labelled vertex", "train.npy"]);
}

#[test]
#[cfg(unix)]
fn logits_go_through_links_and_into_devices() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let fixture = Fixture::new();
    let path = |name: &str| fixture.folder.path().join(name);
    let infer = |out: &Path| {
        let run = path("run");
        let mut command = Command::cargo_bin("lapidary").unwrap();
        command.args(["infer", "--data", "builtin:planted", "--checkpoint"]).arg(run).arg("--out").arg(out);
        command.assert().success();
    };
    Command::cargo_bin("lapidary")
        .unwrap()
        .args(["train", "--epochs", "1", "--checkpoint"])
        .arg(path("run"))
        .assert()
        .success();
    fs::write(path("real.npy"), b"old").unwrap();
    symlink(path("real.npy"), path("link.npy")).unwrap();
    infer(&path("link.npy"));
    assert!(path("link.npy").is_symlink());
    let logits: Array2<f32> = ndarray_npy::read_npy(path("real.npy")).unwrap();
    assert_eq!(logits.dim(), (3000, 7));
    infer(&path("new.npy"));
    assert_ne!(fs::metadata(path("new.npy")).unwrap().permissions().mode() & 0o044, 0, "readable as any new file");
    infer(Path::new("/dev/null"));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn a_pickle_that_asks_to_run_code() {
    let folder = tempfile::tempdir().unwrap();
    let proof = folder.path().join("it-ran");
    // The output of pickle.dumps for an object whose __reduce__ returns (os.system, ("touch ...",)).
    let program = format!("cposix\nsystem\n(S'touch {}'\ntR.", proof.display());
    for part in ["x", "tx", "allx", "y", "ty", "ally", "graph"] {
        fs::write(folder.path().join(format!("ind.evil.{part}")), &program).unwrap();
    }
    fs::write(folder.path().join("ind.evil.test.index"), "0\n").unwrap();
    let dst = folder.path().join("out");
    let (src, dst_text) = (folder.path().to_str().unwrap(), dst.to_str().unwrap());
    fails(["data", "import", "planetoid", src, dst_text], &["system"]);
    assert!(!proof.exists() && !dst.exists());
}

/// Simulates a full disk with /dev/full.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_ends_json_output_with_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("lapidary"))
        .args(["train", "--epochs", "1", "--json"])
        .stdout(full)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr).into_owned();
    assert_eq!(child.status.code(), Some(1), "{text}");
    assert!(text.contains("standard output") && text.contains("No space left"), "{text}");
}

#[test]
fn an_unknown_flag_is_a_usage_error() {
    let done = Command::cargo_bin("lapidary").unwrap().args(["train", "--no-such-flag"]).assert().code(2);
    assert!(String::from_utf8_lossy(&done.get_output().stderr).contains("--no-such-flag"));
}
