//! Files of older versions, in `tests/formats/`, are read. Those of newer versions are refused by name, and stay as they
//! are. `docs/formats.md` has the versions. The records of `checkpoint-1` have the fields that programs of that version wrote.

use std::fs;
use std::path::{Path, PathBuf};

use lapidary::{Adam, Dataset, Devices, Error, Model, Partition, Predictor, Trainer, dataset};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::command::{run, succeeds};
use crate::common::digest_anew;
use crate::common::ranks::files;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name)
}

/// Returns a copy of a fixture, which a test may change.
fn copied(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, bytes) in files(&fixture(name)) {
        let to = folder.path().join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
    folder
}

/// Changes a JSON file.
fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

/// Returns a trainer with the settings of the runs in `tests/formats/`.
fn trainer() -> Trainer {
    let data = Dataset::builtin("karate").unwrap();
    let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
    let builder = Trainer::builder(&model, &data).devices(Devices::parse("cpu:2").unwrap()).seed(1);
    builder.optimizer(Adam::new(0.01)).build().unwrap()
}

/// The row of a table in docs/formats.md that begins with these words.
fn row(begins: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/formats.md")).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("| {begins}"))).unwrap();
    line.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// Runs a command that reads a newer file in `folder`, and checks that it says so, and that it changes nothing.
fn refused_by_command(folder: &Path, args: &[&str], says: &str) {
    let before = files(folder);
    let (code, stdout, stderr) = run(args);
    assert_eq!(code, Some(1), "{args:?}: {stdout}{stderr}");
    let error = stderr.lines().filter(|line| line.starts_with("error:") || line.contains("caused by:"));
    let error = error.collect::<Vec<_>>().join(" ");
    assert!(error.contains(says) && error.contains("update Lapidary"), "{args:?}: {stderr}");
    assert!(files(folder) == before, "{args:?}: files changed");
}

#[test]
fn checkpoints_of_every_older_version_predict_and_resume() {
    let newest: u32 = row("checkpoint folder")[3].parse().unwrap();
    for version in 1..=newest {
        let folder = copied(&format!("checkpoint-{version}"));
        let path = folder.path().to_str().unwrap();
        let record: Value = serde_json::from_slice(&fs::read(folder.path().join("best/run.json")).unwrap()).unwrap();
        assert_eq!(record["format"], version);

        // The weights are those of the file, and give the accuracy of the record.
        let infer = ["infer", "--data", "builtin:karate", "--checkpoint", path, "--json"];
        let line: Value = serde_json::from_str(succeeds(&infer).lines().last().unwrap()).unwrap();
        assert_eq!(line["test_accuracy"], record["best"]["test_accuracy"], "version {version}");

        let mut trainer = trainer();
        assert_eq!(trainer.resume(folder.path()).unwrap(), Some(3), "version {version}");
        trainer.step().unwrap();
        trainer.save(folder.path()).unwrap();
        let saved: Value =
            serde_json::from_slice(&fs::read(folder.path().join("epoch-00000004/run.json")).unwrap()).unwrap();
        assert_eq!(saved["format"], newest, "the newest version is written");
    }
}

#[test]
fn a_newer_checkpoint_is_refused_and_not_taken_for_a_damaged_one() {
    type Change = fn(&Path);
    // Whatever a newer version does with the digests and the other files.
    let changes: [(&str, Change); 4] = [
        ("its digests are right", digest_anew),
        ("its digests are in another form", |folder| fs::write(folder.join("B3SUMS"), "{\"format\": 3}\n").unwrap()),
        ("it has no digests", |folder| fs::remove_file(folder.join("B3SUMS")).unwrap()),
        ("its weights have another name", |folder| {
            fs::rename(folder.join("model.safetensors"), folder.join("model.v3")).unwrap();
            digest_anew(folder);
        }),
    ];
    for (what, change) in changes {
        let folder = copied("checkpoint-2");
        // An older one, from which a run would continue if the newest were damaged.
        let (old, newest) = (folder.path().join("epoch-00000003"), folder.path().join("epoch-00000004"));
        fs::create_dir(&newest).unwrap();
        files(&old).into_iter().for_each(|(name, bytes)| fs::write(newest.join(name), bytes).unwrap());
        for checkpoint in [&newest, &folder.path().join("best")] {
            edit(&checkpoint.join("run.json"), |record| record["format"] = 3.into());
            change(checkpoint);
        }
        let before = files(folder.path());
        let newer = |error: Error| match error {
            Error::NewerFile { path, what: "run record", found: 3, newest: 2 } => path,
            other => panic!("{what}: {other}"),
        };
        assert_eq!(newer(Predictor::open(folder.path()).unwrap_err()), folder.path().join("best/run.json"));
        let mut trainer = trainer();
        assert_eq!(newer(trainer.resume(folder.path()).unwrap_err()), newest.join("run.json"));
        assert_eq!(trainer.epoch(), 0);
        assert!(files(folder.path()) == before, "{what}: files changed");

        let path = folder.path().to_str().unwrap();
        let says = "run.json is a run record of version 3, and this program reads versions up to 2";
        let infer = ["infer", "--data", "builtin:karate", "--checkpoint", path];
        refused_by_command(folder.path(), &infer, says);
        let train = ["train", "--data", "builtin:karate", "--hidden", "8", "--checkpoint", path, "--resume"];
        refused_by_command(folder.path(), &train, says);
    }
}

#[test]
fn a_record_whose_version_is_no_number_from_1_is_invalid() {
    for format in [json!(0), json!(-1), json!("2"), json!(2.5), Value::Null] {
        let folder = copied("checkpoint-2");
        let best = folder.path().join("best");
        edit(&best.join("run.json"), |record| record["format"] = format.clone());
        digest_anew(&best);
        let error = Predictor::open(&best).unwrap_err();
        assert!(matches!(error, Error::RunRecord { .. }), "{format}: {error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("`format`") && source.contains("expected 1 or 2"), "{format}: {source}");
    }
}

#[test]
fn a_newer_cost_model_is_refused_and_its_checkpoint_not_taken_for_a_damaged_one() {
    assert_eq!(row("cost model")[3], "1");
    let folder = copied("checkpoint-2");
    let checkpoint = folder.path().join("epoch-00000003");
    edit(&checkpoint.join("cost_model.json"), |model| {
        assert_eq!(model["format"], "lapidary cost model 1");
        model["format"] = "lapidary cost model 2".into();
        model["unknown"] = 1.into();
    });
    digest_anew(&checkpoint);
    let before = files(folder.path());
    let error = trainer().resume(folder.path()).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(matches!(error, Error::CostModel { .. }), "{error}");
    assert!(source.contains("version 2, and this program reads versions up to 1: update Lapidary"), "{source}");
    assert!(files(folder.path()) == before, "files changed");
}

#[test]
fn dataset_directories_without_a_version_are_of_the_first_and_newer_ones_are_refused() {
    assert_eq!(row("dataset directory")[3], "1");
    let folder = copied("dataset-1");
    let manifest = folder.path().join("dataset.json");
    assert!(!fs::read_to_string(&manifest).unwrap().contains("format"));
    let data = Dataset::open(folder.path()).unwrap();
    assert_eq!((data.graph().vertex_count(), data.graph().edge_count(), data.class_count()), (4, 6, 2));

    edit(&manifest, |manifest| manifest["format"] = 1.into());
    assert_eq!(Dataset::open(folder.path()).unwrap().fingerprint(), data.fingerprint());

    // A newer version may have other entries.
    edit(&manifest, |manifest| *manifest = json!({"format": 2, "name": ["x"]}));
    match Dataset::open(folder.path()).unwrap_err() {
        dataset::Error::NewerDirectory { path, found: 2, newest: 1 } => assert_eq!(path, manifest),
        other => panic!("{other}"),
    }
    let path = folder.path().to_str().unwrap();
    let says = "dataset.json is of a dataset directory of version 2, and this program reads versions up to 1";
    refused_by_command(folder.path(), &["data", "info", path], says);
    refused_by_command(folder.path(), &["train", "--data", path], says);
    refused_by_command(
        folder.path(),
        &["data", "partition", path, &format!("{path}/moved"), "--by", "edges", "--parts", "2"],
        says,
    );

    for format in [json!(0), json!("1"), json!(1.5)] {
        edit(&manifest, |manifest| manifest["format"] = format.clone());
        let error = Dataset::open(folder.path()).unwrap_err();
        assert!(matches!(error, dataset::Error::Manifest { .. }), "{format}: {error}");
    }
}

#[test]
fn ranges_of_every_older_version_are_read_and_newer_ones_refused() {
    assert_eq!(row("ranges of parts")[3], "1");
    let parsed = |path: &Path| Partition::parse(path.to_str().unwrap());
    assert_eq!(parsed(&fixture("parts-1.json")).unwrap(), Partition::Ranges(vec![0..10, 10..34]));
    for version in [1, 2] {
        let record = fixture(&format!("checkpoint-{version}/epoch-00000003/run.json"));
        assert!(matches!(parsed(&record).unwrap(), Partition::Ranges(parts) if parts.len() == 2), "{version}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("parts.json");
    for (newer, what) in [
        (json!({"parts_format": 2, "parts": [[0, 10], [10, 34]]}), "list of parts of version 2"),
        (json!({"format": 3, "parts": [[0, 10], [10, 34]]}), "run record of version 3"),
    ] {
        fs::write(&path, newer.to_string()).unwrap();
        assert!(matches!(parsed(&path).unwrap_err(), Error::NewerFile { .. }));
        let partition = path.to_str().unwrap();
        let train = ["train", "--data", "builtin:karate", "--devices", "cpu:2", "--partition", partition];
        refused_by_command(folder.path(), &train, what);
    }
}
