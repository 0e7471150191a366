//! Checkpoints are verified, and are only resumed on the data that they were trained on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use assert_cmd::Command;
use lapidary::{Adam, Arrays, Dataset, Devices, Error, Graph, Model, Predictor, Trainer};
use ndarray::Array2;

const EPOCH: &str = "epoch-00000003";

fn lapidary() -> Command {
    Command::cargo_bin("lapidary").unwrap()
}

fn karate() -> Dataset {
    Dataset::builtin("karate").unwrap()
}

/// Returns a trainer on two devices, so that a cost model is saved too.
fn trainer(seed: u64) -> Trainer {
    let data = karate();
    let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
    let builder = Trainer::builder(&model, &data).devices(Devices::parse("cpu:2").unwrap()).seed(seed);
    builder.optimizer(Adam::new(0.01)).build().unwrap()
}

/// Trains one epoch, saves it, and returns the trainer.
fn saved_once(dir: &Path) -> Trainer {
    let mut trainer = trainer(1);
    trainer.step().unwrap();
    trainer.save(dir).unwrap();
    trainer
}

/// Trains three epochs and saves them.
fn saved(dir: &Path, seed: u64) {
    let mut trainer = trainer(seed);
    for _ in 0..3 {
        trainer.step().unwrap();
    }
    trainer.save(dir).unwrap();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Checks that the library and the command refuse the checkpoint because of `file`.
fn refused(what: &str, folder: &Path, file: &Path, why: &str) {
    let is_epoch = name(folder) == EPOCH;
    let mut errors = vec![Predictor::open(folder).unwrap_err()];
    if is_epoch {
        let mut trainer = trainer(1);
        errors.push(trainer.resume(folder.parent().unwrap()).unwrap_err());
        assert_eq!(trainer.epoch(), 0, "{what}: something was resumed");
    }
    for error in errors {
        let text = error.to_string();
        assert!(matches!(&error, Error::Damaged { path, .. } if path == file), "{what}: {text}");
        assert!(text.contains(why) && text.contains("use another checkpoint"), "{what}: {text}");
    }
    let mut commands = vec![lapidary()];
    commands[0].args(["infer", "--data", "builtin:karate", "--checkpoint"]).arg(folder);
    if is_epoch {
        let mut train = lapidary();
        train.args(["train", "--data", "builtin:karate", "--resume", "--checkpoint"]).arg(folder.parent().unwrap());
        commands.push(train);
    }
    for mut command in commands {
        let done = command.assert().code(1);
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        let error = text.lines().find(|line| line.starts_with("error:")).unwrap();
        assert!(error.contains(&file.display().to_string()) && error.contains(why), "{what}: {text}");
    }
}

#[test]
fn digests_are_of_every_other_file_as_b3sum_has_them() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 1);
    for (checkpoint, count) in [(EPOCH, 5), ("best", 3)] {
        let checkpoint = folder.path().join(checkpoint);
        let mut others: Vec<String> = files(&checkpoint)
            .iter()
            .filter(|file| name(file) != "B3SUMS")
            .map(|file| format!("{}  {}", blake3::hash(&fs::read(file).unwrap()), name(file)))
            .collect();
        assert_eq!(others.len(), count, "{others:?}");
        let text = fs::read_to_string(checkpoint.join("B3SUMS")).unwrap();
        assert!(text.ends_with('\n'));
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        others.sort_unstable();
        assert_eq!(lines, others);
    }
}

#[test]
fn a_flipped_bit_in_any_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 1);
    for checkpoint in [EPOCH, "best"] {
        let checkpoint = folder.path().join(checkpoint);
        for file in files(&checkpoint) {
            let right = fs::read(&file).unwrap();
            let mut changed = right.clone();
            // In the middle of the file; in B3SUMS, in the first digest.
            let at = if name(&file) == "B3SUMS" { 20 } else { right.len() / 2 };
            changed[at] ^= 1;
            fs::write(&file, changed).unwrap();
            let what = format!("{} flipped", file.display());
            if name(&file) == "B3SUMS" {
                let error = Predictor::open(&checkpoint).unwrap_err();
                assert!(matches!(&error, Error::Damaged { .. }), "{what}: {error}");
                assert!(error.to_string().contains("B3SUMS"), "{what}: {error}");
            } else {
                refused(&what, &checkpoint, &file, "is damaged or was replaced");
            }
            fs::write(&file, right).unwrap();
        }
        Predictor::open(&checkpoint).unwrap();
    }
    assert_eq!(trainer(1).resume(folder.path()).unwrap(), Some(3));
}

#[test]
fn the_weights_of_another_run_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [folder.path().join("one"), folder.path().join("other")];
    runs.iter().zip(1..).for_each(|(run, seed)| saved(run, seed));
    for checkpoint in [EPOCH, "best"] {
        let [one, other] = [&runs[0], &runs[1]].map(|run| run.join(checkpoint).join("model.safetensors"));
        let right = fs::read(&one).unwrap();
        assert_ne!(right, fs::read(&other).unwrap());
        fs::copy(other, &one).unwrap();
        refused("swapped", one.parent().unwrap(), &one, "is damaged or was replaced");
        fs::write(one, right).unwrap();
    }
}

#[test]
fn files_that_are_gone_or_came_later_are_found() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 1);
    for checkpoint in [EPOCH, "best"] {
        let checkpoint = folder.path().join(checkpoint);
        for file in files(&checkpoint) {
            let right = fs::read(&file).unwrap();
            fs::remove_file(&file).unwrap();
            refused("gone", &checkpoint, &file, "is missing");
            fs::write(file, right).unwrap();
        }
    }
    let later = folder.path().join("best/optimizer.safetensors");
    fs::copy(folder.path().join(EPOCH).join("optimizer.safetensors"), &later).unwrap();
    refused("came later", &folder.path().join("best"), &later, "is not listed");
    fs::remove_file(later).unwrap();
    // Unrelated files are ignored.
    fs::write(folder.path().join("best/notes.txt"), "the good one").unwrap();
    Predictor::open(folder.path()).unwrap();
}

/// Turns a checkpoint into one of an older version: no digests, and a record without fingerprints of the data.
fn make_old(checkpoint: &Path) {
    fs::remove_file(checkpoint.join("B3SUMS")).unwrap();
    let path = checkpoint.join("run.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(record["format"], 2);
    record["format"] = 1.into();
    assert!(record.as_object_mut().unwrap().remove("fingerprint").is_some());
    fs::write(path, record.to_string()).unwrap();
}

#[test]
fn checkpoints_of_older_versions_are_read_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 1);
    let new = Predictor::open(folder.path()).unwrap();
    for checkpoint in [EPOCH, "best"] {
        make_old(&folder.path().join(checkpoint));
    }
    assert!(Predictor::open(folder.path()).unwrap().weights() == new.weights());
    assert_eq!(trainer(1).resume(folder.path()).unwrap(), Some(3));
    let dir = folder.path().to_str().unwrap();
    let flags = ["--seed", "1", "--hidden", "8", "--dropout", "0", "--epochs", "5", "--resume"];
    for flags in [&["infer"][..], &[&["train"], &flags[..]].concat()] {
        let done = lapidary().args(flags).args(["--data", "builtin:karate", "--checkpoint", dir]).assert().success();
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert_eq!(text.matches("WARN").count(), 1, "{text}");
        assert!(text.contains("older version") && text.contains("cannot be found out"), "{text}");
    }
    // New checkpoints have digests.
    assert!(folder.path().join("epoch-00000005/B3SUMS").exists());
}

#[test]
fn a_warning_that_no_terminal_shows_has_no_colours() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 1);
    make_old(&folder.path().join("best"));
    let dir = folder.path().to_str().unwrap();
    let infer = ["infer", "--data", "builtin:karate", "--checkpoint", dir];
    let done = lapidary().args(infer).env_remove("NO_COLOR").assert().success();
    let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(text.contains("WARN") && !text.contains('\u{1b}'), "{text:?}");
}

/// Returns a dataset; `changed` names the array that differs from the original.
fn data(changed: &str) -> Dataset {
    let n = 60;
    let mut edges: Vec<(u32, u32)> = (0..n as u32).flat_map(|v| [(v, (v + 1) % 60), (v, (v * 7 + 3) % 60)]).collect();
    let mut x = Array2::from_shape_fn((n, 5), |(v, c)| ((v * 31 + c * 17) % 11) as f32);
    let mut labels: Vec<i64> = (0..n as i64).map(|v| v % 3).collect();
    let mut val = vec![30, 31, 32, 33];
    match changed {
        "graph" => edges[4].1 = 40,
        "features" => x[[59, 4]] += 1.0,
        "labels" => labels[30] = (labels[30] + 1) % 3,
        "splits" => val[0] = 34,
        "" => {}
        other => panic!("nothing is called {other}"),
    }
    let train: Vec<i64> = (0..30).collect();
    let arrays = Arrays::new(Graph::from_edges(n, &edges).unwrap()).name("changing").directed(true).features(x);
    Dataset::from_arrays(arrays.labels(&labels).train(&train).val(&val).test(&[40, 41, 42])).unwrap()
}

#[test]
fn changed_data_is_not_resumed_on_and_the_change_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (run, whole, set) = (folder.path().join("run"), folder.path().join("whole"), folder.path().join("data"));
    let train = |dir: &Path, epochs: &str| {
        let mut command = lapidary();
        command.args(["train", "--seed", "5", "--epochs", epochs, "--data"]).arg(&set);
        command.arg("--checkpoint").arg(dir);
        command
    };
    data("").write(&set).unwrap();
    train(&run, "4").assert().success();
    train(&whole, "9").assert().success();
    let before = fs::read(run.join("epoch-00000004/model.safetensors")).unwrap();
    for changed in ["graph", "features", "labels", "splits"] {
        fs::remove_dir_all(&set).unwrap();
        data(changed).write(&set).unwrap();
        let text = train(&run, "9").arg("--resume").assert().code(1).get_output().stderr.clone();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.contains(&format!("trained on other {changed} than")) && text.contains("run.json"), "{text}");
        assert!(!run.join("epoch-00000009").exists());
    }
    fs::remove_dir_all(&set).unwrap();
    data("").write(&set).unwrap();
    train(&run, "9").arg("--resume").assert().success();
    assert_eq!(fs::read(run.join("epoch-00000004/model.safetensors")).unwrap(), before);
    for file in ["epoch-00000009/model.safetensors", "epoch-00000009/optimizer.safetensors", "best/model.safetensors"] {
        assert_eq!(fs::read(run.join(file)).unwrap(), fs::read(whole.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn several_changes_are_all_named() {
    let folder = tempfile::tempdir().unwrap();
    let first = data("");
    let model = Model::gcn(&[5, 4, 3]);
    let mut trainer = Trainer::builder(&model, &first).build().unwrap();
    trainer.step().unwrap();
    trainer.save(folder.path()).unwrap();
    let x = Array2::from_elem((60, 5), 1.0f32);
    let other = Arrays::new(first.graph().clone()).name("changing").features(x).labels(&[0i64, 1, 2].repeat(20));
    let other = Dataset::from_arrays(other.train(&[1i64])).unwrap();
    let error = Trainer::builder(&model, &other).build().unwrap().resume(folder.path()).unwrap_err();
    assert!(matches!(&error, Error::DataChanged { what, .. } if what == "features, splits"), "{error}");
}

/// Trains `builtin:karate` with these flags, and returns what the command prints on standard error.
fn train(dir: &Path, flags: &[&str], code: i32) -> String {
    let mut command = lapidary();
    command.args(["train", "--data", "builtin:karate", "--checkpoint"]).arg(dir).args(flags);
    let done = command.assert().code(code);
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

/// Returns the names of the folders in a checkpoint folder.
fn folders(dir: &Path) -> Vec<String> {
    files(dir).iter().filter(|path| path.is_dir()).map(|path| name(path).to_owned()).collect()
}

#[test]
fn the_newest_checkpoints_and_the_best_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let epochs = |keep: &[&str], name: &str| {
        let dir = folder.path().join(name);
        let flags = ["--epochs", "20", "--checkpoint-every", "2"];
        train(&dir, &[&flags[..], keep].concat(), 0);
        Predictor::open(dir.join("best")).unwrap();
        folders(&dir)
    };
    let named = |epochs: &[u32]| -> Vec<String> {
        [vec!["best".to_owned()], epochs.iter().map(|epoch| format!("epoch-{epoch:08}")).collect()].concat()
    };
    assert_eq!(epochs(&["--keep", "1"], "one"), named(&[20]));
    assert_eq!(epochs(&["--keep", "3"], "three"), named(&[16, 18, 20]));
    assert_eq!(epochs(&[], "default"), named(&[12, 14, 16, 18, 20]));
    assert_eq!(epochs(&["--keep", "0"], "all"), named(&[2, 4, 6, 8, 10, 12, 14, 16, 18, 20]));
    // A resumed run keeps as many, and never removes what it was resumed from too early.
    train(&folder.path().join("all"), &["--epochs", "22", "--resume", "--keep", "2"], 0);
    assert_eq!(folders(&folder.path().join("all")), named(&[20, 22]));
}

#[test]
fn checkpoints_are_written_by_the_clock_too() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "3000", "--keep", "0", "--eval-every", "0", "--checkpoint-every"];
    train(folder.path(), &[&flags[..], &["0.05s"]].concat(), 0);
    let count = folders(folder.path()).len();
    assert!(count > 2, "{:?}", folders(folder.path()));
    for wrong in ["1x", "s", "0s", "nans", "1e99h"] {
        let text = train(&folder.path().join("wrong"), &["--checkpoint-every", wrong], 2);
        assert!(text.contains("a number of epochs, or a time with its unit"), "{wrong}: {text}");
    }
}

/// The run falls back to the checkpoint before, says so, and ends with the bytes of a run that was never damaged.
#[test]
fn a_damaged_newest_checkpoint_falls_back_to_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, whole) = (folder.path().join("run"), folder.path().join("whole"));
    train(&whole, &["--epochs", "12"], 0);
    let damages: [fn(&Path); 4] = [
        |newest| fs::write(newest.join("model.safetensors"), "x").unwrap(),
        |newest| fs::remove_file(newest.join("optimizer.safetensors")).unwrap(),
        |newest| fs::write(newest.join("run.json"), "{").unwrap(),
        |newest| fs::write(newest.join("B3SUMS"), "").unwrap(),
    ];
    for damage in damages {
        if dir.exists() {
            fs::remove_dir_all(&dir).unwrap();
        }
        train(&dir, &["--epochs", "9", "--checkpoint-every", "3"], 0);
        damage(&dir.join("epoch-00000009"));
        let text = train(&dir, &["--epochs", "12", "--resume"], 0);
        assert!(text.contains("resumed from epoch 6"), "{text}");
        assert!(text.contains("WARN") && text.contains("epoch-00000009") && text.contains("of epoch 6"), "{text}");
        assert_eq!(
            folders(&dir),
            ["best", "damaged-epoch-00000009", "epoch-00000003", "epoch-00000006", "epoch-00000012"]
        );
        for file in
            ["epoch-00000012/model.safetensors", "epoch-00000012/optimizer.safetensors", "best/model.safetensors"]
        {
            assert!(fs::read(dir.join(file)).unwrap() == fs::read(whole.join(file)).unwrap(), "{file}");
        }
    }
}

#[test]
fn an_epoch_that_is_damaged_twice_is_set_aside_twice() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), &["--epochs", "6", "--checkpoint-every", "3"], 0);
    for (count, asides) in
        [(1, vec!["damaged-epoch-00000006"]), (2, vec!["damaged-epoch-00000006", "damaged-epoch-00000006-2"])]
    {
        fs::write(folder.path().join("epoch-00000006/model.safetensors"), "x").unwrap();
        // The newest checkpoint is then the one that the run continues from, and not the damaged one.
        train(folder.path(), &["--epochs", "4", "--resume"], 0);
        assert_eq!(
            folders(folder.path()),
            [&["best"][..], &asides, &["epoch-00000003", "epoch-00000004"]].concat(),
            "{count}"
        );
        train(folder.path(), &["--epochs", "6", "--resume"], 0);
        fs::remove_dir_all(folder.path().join("epoch-00000004")).unwrap();
    }
}

#[test]
fn a_resumed_run_may_have_another_learning_rate_and_more_epochs_and_the_record_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let record = |epoch: u64| -> serde_json::Value {
        let path = folder.path().join(format!("epoch-{epoch:08}/run.json"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    train(folder.path(), &["--epochs", "4", "--lr", "0.02"], 0);
    assert_eq!(record(4)["epochs"], 4);
    assert!(record(4).get("changes").is_none());
    // Without --lr, the rate stays. The same rate again is no change.
    for flags in [&["--epochs", "6"][..], &["--epochs", "6", "--lr", "0.02"]] {
        train(folder.path(), &[flags, &["--resume"]].concat(), 0);
    }
    assert_eq!(record(6)["learning_rate"], 0.02);
    let text = train(folder.path(), &["--epochs", "8", "--lr", "0.005", "--resume"], 0);
    assert!(text.contains("learning rate 0.005 instead of 0.02"), "{text}");
    let changes = record(8)["changes"].clone();
    let change = |epoch, what: &str, from: f64, to: f64| serde_json::json!({ "epoch": epoch, "what": what, "from": from, "to": to, "why": "resume" });
    let want = [change(5, "epochs", 4.0, 6.0), change(7, "epochs", 6.0, 8.0), change(7, "learning_rate", 0.02, 0.005)];
    assert_eq!(changes, serde_json::Value::from(want.to_vec()));
    // The last rate that was asked for is the one to compare with.
    train(folder.path(), &["--epochs", "9", "--lr", "0.005", "--resume"], 0);
    assert_eq!(record(9)["changes"].as_array().unwrap().len(), 4, "only the number of epochs has changed");
}

/// The error used to print Rust structs.
#[test]
fn a_mismatch_of_settings_is_said_in_plain_words() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), &["--epochs", "1"], 0);
    for (flags, want) in [
        (&["--hidden", "7"][..], "another model than this run: widths [34,16,2], not [34,7,2]"),
        (&["--dropout", "0.25"], "another model than this run: dropout 0.5, not 0.25"),
        (&["--optimizer", "sgd"], "another optimizer than this run: "),
        (&["--weight-decay", "0.5"], "another optimizer than this run: weight_decay 0.0, not 0.5"),
        (&["--decay-layers", "first"], r#"another choice of layers that decay than this run: "all", not "first""#),
        (
            &["--passes", "none"],
            "another list of passes than this run: fuse true, order true, prune true, reuse true, not fuse false",
        ),
        (&["--seed", "3"], "another seed than this run: 0, not 3"),
    ] {
        let text = train(folder.path(), &[flags, &["--resume"]].concat(), 1);
        assert!(text.contains(want), "{flags:?}: {text}");
        assert!(!text.contains("Config") && !text.contains("Some("), "{text}");
    }
}

#[test]
fn training_starts_from_weights() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second, third) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("c"));
    train(&first, &["--epochs", "5"], 0);
    let file = first.join("epoch-00000005/model.safetensors");
    // With a learning rate of 0, the weights stay.
    let flags = ["--epochs", "1", "--lr", "0", "--weights"];
    train(&second, &[&flags[..], &[file.to_str().unwrap()]].concat(), 0);
    let kept = fs::read(second.join("epoch-00000001/model.safetensors")).unwrap();
    assert!(kept == fs::read(&file).unwrap());
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(second.join("epoch-00000001/run.json")).unwrap()).unwrap();
    assert_eq!(record["initial_weights"].as_str().unwrap(), blake3::hash(&kept).to_hex().as_str());
    // Of a folder, the best weights are used.
    train(&third, &[&flags[..], &[first.to_str().unwrap()]].concat(), 0);
    let best = fs::read(first.join("best/model.safetensors")).unwrap();
    assert!(fs::read(third.join("epoch-00000001/model.safetensors")).unwrap() == best);
    let wrong = ["--hidden", "7", "--weights", file.to_str().unwrap()];
    let text = train(&folder.path().join("d"), &wrong, 1);
    assert!(text.contains("the weight `convs.0.lin.weight` is [16, 34], but the model needs [7, 34]"), "{text}");
}

/// A folder that is replaced is there at every moment.
#[test]
fn a_checkpoint_that_is_replaced_is_always_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = saved_once(folder.path());
    let (done, looks) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(folder.path().join("best/run.json").exists());
                Predictor::open(folder.path().join("best")).unwrap();
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        // On a busy machine, the reader may start late.
        let mut saves = 0;
        while !reader.is_finished() && (saves < 200 || looks.load(Ordering::Relaxed) < 10) {
            trainer.step().unwrap();
            trainer.save(folder.path()).unwrap();
            saves += 1;
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_reported_and_the_next_one_tried() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let mut trainer = trainer(1);
    let mut writer = lapidary::CheckpointWriter::open(&dir, 2).unwrap();
    trainer.step().unwrap();
    fs::write(&dir, "a file where the folder should be").unwrap();
    let error = loop {
        match writer.write(trainer.snapshot().unwrap()) {
            Err(error) => break error,
            Ok(()) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    trainer.step().unwrap();
    assert!(matches!(&error, Error::Io { path, .. } if path.starts_with(&dir)), "{error}");
    fs::remove_file(&dir).unwrap();
    trainer.step().unwrap();
    drop(writer.write(trainer.snapshot().unwrap()));
    writer.finish().unwrap();
    assert_eq!(folders(&dir).last().map(String::as_str), Some("epoch-00000003"));
    let mut again = lapidary::CheckpointWriter::open("/dev/null/run", 2).unwrap();
    drop(again.write(trainer.snapshot().unwrap()));
    assert!(matches!(again.finish(), Err(Error::Io { .. })), "the last one matters");
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), &["--epochs", "1"], 0);
    let place = |name: &str| folder.path().join(name);
    for left in [".new-epoch-00000009", ".old-best"] {
        fs::create_dir(place(left)).unwrap();
        fs::write(place(left).join("model.safetensors"), "x").unwrap();
    }
    fs::write(place(".probe-x"), "").unwrap();
    fs::create_dir(place("of-somebody-else")).unwrap();
    train(folder.path(), &["--epochs", "2", "--resume"], 0);
    let names: Vec<String> = files(folder.path()).iter().map(|path| name(path).to_owned()).collect();
    assert_eq!(names, ["best", "epoch-00000001", "epoch-00000002", "of-somebody-else"]);
}

/// A damaged `best/` used to stay as it was, because its digests and sizes were those of the new one.
#[test]
fn a_damaged_best_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = saved_once(folder.path());
    let path = folder.path().join("best/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(Predictor::open(folder.path()), Err(Error::Damaged { .. })));
    trainer.save(folder.path()).unwrap();
    Predictor::open(folder.path()).unwrap();
}

/// A pipe in place of the lock used to be read without end.
#[test]
#[cfg(unix)]
fn a_pipe_in_place_of_the_lock_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.path().join(".lock")).status().unwrap();
    assert!(made.success());
    let text = train(folder.path(), &["--epochs", "1"], 1);
    assert!(text.contains("it is a pipe, not a plain file"), "{text}");
}
