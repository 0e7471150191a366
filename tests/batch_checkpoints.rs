//! Checkpoints within an epoch of mini-batches: a run that was stopped after any batch goes on with the next one.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary::model::Weight;
use lapidary::sample::NeighborSampler;
use lapidary::{Adam, Batches, Dataset, Error, Model, Position, Predictor, Trainer};

use crate::common::command::LAPIDARY;
use crate::common::digest_anew;
use crate::common::endless::{ENDLESS, signal, wait_for};
use crate::common::scripted::{Draw, scripted};

/// A trainer with 7 batches per epoch.
fn trainer(data: &Dataset, look_ahead: usize) -> Trainer {
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]).dropout(0.3);
    let batches = Batches::new(20, NeighborSampler::new("4,3".parse().unwrap())).look_ahead(look_ahead);
    Trainer::builder(&model, data).optimizer(Adam::new(0.02)).seed(3).epochs(3).batches(batches).build().unwrap()
}

fn planted() -> Dataset {
    Dataset::builtin("planted").unwrap()
}

fn at(epoch: u64, batch: u64) -> Position {
    Position { epoch, batch }
}

/// Returns the files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect();
    files.sort();
    files
}

/// Returns the names of the checkpoints in a folder.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_was_stopped_after_any_batch_ends_with_the_same_checkpoint() {
    let data = planted();
    let folder = tempfile::tempdir().unwrap();
    let mut whole = trainer(&data, 2);
    assert_eq!(whole.batches_per_epoch(), Some(7));
    let losses: Vec<f64> = (0..3).map(|_| whole.step().unwrap().loss).collect();
    let last = |dir: &Path| files(&dir.join("epoch-00000003"));
    whole.save(folder.path().join("whole")).unwrap();
    let want = last(&folder.path().join("whole"));
    for (look_ahead, stops) in [(0, &[1][..]), (2, &[3]), (2, &[6]), (0, &[2, 5]), (2, &[1, 2, 4])] {
        let dir = folder.path().join(format!("{look_ahead} {stops:?}"));
        let mut stopped = trainer(&data, look_ahead);
        assert_eq!(stopped.step().unwrap().loss, losses[0]);
        let mut done = 0;
        for &stop in stops {
            assert_eq!(stopped.step_batches(stop - done).unwrap(), None);
            done = stop;
            assert_eq!(stopped.position(), at(1, stop));
            stopped.save(&dir).unwrap();
            // What is not saved is lost, and run again.
            stopped.step_batches(1).unwrap();
            stopped = trainer(&data, look_ahead);
            assert_eq!(stopped.resume(&dir).unwrap(), Some(1));
            assert_eq!((stopped.epoch(), stopped.position()), (1, at(1, stop)));
        }
        let epoch = stopped.step().unwrap();
        assert_eq!((epoch.epoch, epoch.loss), (2, losses[1]), "{stops:?}");
        assert_eq!(epoch.stages.unwrap().batches, 7 - done, "only what this process ran is measured");
        assert_eq!(stopped.step().unwrap().loss, losses[2]);
        stopped.save(&dir).unwrap();
        assert!(last(&dir) == want, "{look_ahead} ahead, stopped after {stops:?}");
    }
}

#[test]
fn an_epoch_in_pieces_is_the_epoch_in_one() {
    let data = planted();
    let mut whole = trainer(&data, 2);
    let wanted = whole.step().unwrap();
    for size in [1, 3, 6, 7, 100] {
        let mut pieces = trainer(&data, 1);
        let (tell, told) = std::sync::mpsc::channel();
        pieces.on_batch(move |number, count| tell.send((number, count)).unwrap());
        pieces.start_trace();
        let mut calls = 1;
        let epoch = loop {
            match pieces.step_batches(size).unwrap() {
                Some(epoch) => break epoch,
                None => calls += 1,
            }
            assert!(pieces.evaluate().unwrap().val.is_some());
            assert!(pieces.best().is_none(), "the best parameters are those of an epoch");
        };
        assert_eq!((calls, pieces.position()), (7u64.div_ceil(size), at(1, 0)));
        assert_eq!((epoch.epoch, epoch.loss, epoch.accuracy), (1, wanted.loss, wanted.accuracy));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), (1..=7).map(|number| (number, 7)).collect::<Vec<_>>());
        let (got, want) = (epoch.stages.unwrap(), wanted.stages.unwrap());
        assert_eq!((got.batches, got.vertices, got.edges), (7, want.vertices, want.edges));
        assert_eq!(pieces.trace().unwrap().stages().len(), 3 * 7);
        assert_eq!(pieces.weights().unwrap(), whole.weights().unwrap());
    }
    // On the whole graph, an epoch is one step.
    let model = Model::gcn(&[data.feature_width(), 4, data.class_count()]);
    let mut full = Trainer::builder(&model, &data).build().unwrap();
    assert_eq!((full.step_batches(1).unwrap().map(|epoch| epoch.epoch), full.batches_per_epoch()), (Some(1), None));
}

#[test]
fn a_state_within_an_epoch_is_not_the_epoch() {
    let data = planted();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let mut run = trainer(&data, 1);
    run.step_batches(4).unwrap();
    run.save(dir).unwrap();
    assert_eq!(names(dir), ["batch-00000001-00000004"]);
    assert!(matches!(Predictor::open(dir), Err(Error::NoCheckpoint { .. })));
    // Named itself, it is.
    let within = Predictor::open(dir.join("batch-00000001-00000004")).unwrap();
    assert_eq!(*within.weights(), run.weights().unwrap());
    run.step().unwrap();
    run.save(dir).unwrap();
    run.step_batches(2).unwrap();
    let snapshot = run.snapshot().unwrap();
    assert_eq!((snapshot.epoch(), snapshot.position().to_string()), (1, "batch 2 of epoch 2".into()));
    snapshot.save(dir).unwrap();
    assert_eq!(names(dir), ["batch-00000001-00000004", "batch-00000002-00000002", "best", "epoch-00000001"]);
    let best = fs::read_to_string(dir.join("best/run.json")).unwrap();
    assert!(!best.contains("partial"), "{best}");
    fs::remove_dir_all(dir.join("best")).unwrap();
    let newest = Predictor::open(dir).unwrap();
    assert_eq!(*newest.weights(), Predictor::open(dir.join("epoch-00000001")).unwrap().weights().clone());
    // A run with other batches has other states.
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]).dropout(0.3);
    let other = Batches::new(21, NeighborSampler::new("4,3".parse().unwrap()));
    let mut other = Trainer::builder(&model, &data).optimizer(Adam::new(0.02)).seed(3).batches(other).build().unwrap();
    assert!(matches!(other.resume(dir), Err(Error::OtherRun { what: "choice of mini-batches", .. })));
}

#[test]
fn a_damaged_state_within_an_epoch_falls_back_to_the_one_before() {
    let data = planted();
    let changed = |from: &'static str, to: &'static str| {
        move |newest: &Path| {
            let record = fs::read_to_string(newest.join("run.json")).unwrap();
            assert!(record.contains(from), "{record}");
            fs::write(newest.join("run.json"), record.replace(from, to)).unwrap();
            digest_anew(newest);
        }
    };
    type Damage = Box<dyn Fn(&Path)>;
    let damages: [Damage; 7] = [
        Box::new(|newest| fs::write(newest.join("optimizer.safetensors"), "").unwrap()),
        Box::new(|newest| fs::remove_file(newest.join("model.safetensors")).unwrap()),
        Box::new(changed("\"batches\": 5", "\"batches\": 7")),
        Box::new(changed("\"batches\": 5", "\"batches\": 8")),
        Box::new(changed("\"batches\": 5", "\"batches\": 18446744073709551615")),
        Box::new(changed("\"seeds\": 100", "\"seeds\": 99")),
        Box::new(changed("\"loss_sum\":", "\"loss_sum\": \"x\", \"more\":")),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let mut run = trainer(&data, 0);
        run.step().unwrap();
        run.save(dir).unwrap();
        for batches in [3, 2] {
            run.step_batches(batches).unwrap();
            run.save(dir).unwrap();
        }
        damage(&dir.join("batch-00000002-00000005"));
        let mut resumed = trainer(&data, 0);
        assert_eq!(resumed.resume(dir).unwrap(), Some(1), "damage {number}");
        assert_eq!(resumed.position(), at(1, 3), "damage {number}");
        assert!(dir.join("damaged-batch-00000002-00000005").exists());
        damage_file(&dir.join("batch-00000002-00000003"));
        assert_eq!(resumed.resume(dir).unwrap(), Some(1));
        assert_eq!(resumed.position(), at(1, 0), "the epoch before");
        // Torn by a kill while it was removed: not a checkpoint.
        let torn = dir.join("batch-00000002-00000006");
        fs::create_dir(&torn).unwrap();
        fs::write(torn.join("model.safetensors"), "").unwrap();
        assert_eq!((resumed.resume(dir).unwrap(), resumed.position()), (Some(1), at(1, 0)));
    }
}

fn damage_file(folder: &Path) {
    fs::write(folder.join("model.safetensors"), "no weights").unwrap();
}

#[test]
fn numbers_that_are_not_finite_within_an_epoch_are_found_in_their_batch() {
    let data = planted();
    let mut run = trainer(&data, 1);
    run.step_batches(2).unwrap();
    let before = run.snapshot().unwrap();
    let (weights, position) = (run.weights().unwrap(), run.position());
    run.set_learning_rate(1e38).unwrap();
    let error = (0..20).find_map(|_| run.step_batches(1).and_then(|_| run.snapshot()).err()).expect("it diverges");
    assert!(error.to_string().contains("first appeared in step"), "{error}");
    // The trainer is in a state with finite numbers, from which it can go back further.
    assert!(run.weights().unwrap().iter().all(|(_, weight)| weight.data.iter().all(|x| x.is_finite())));
    run.restore(&before).unwrap();
    assert_eq!((run.weights().unwrap(), run.position()), (weights, position));
}

#[test]
fn a_divergence_in_the_first_epoch_is_due_to_the_features_only_in_its_first_batch() {
    let data = planted();
    let mut run = trainer(&data, 1);
    run.set_learning_rate(1e38).unwrap();
    let error = run.step().unwrap_err();
    assert!(matches!(error, Error::Diverged { epoch: 1, .. }), "updates were made before: {error}");
    let mut weights = run.weights().unwrap();
    let names: Vec<String> = weights.iter().map(|(name, _)| name.to_string()).collect();
    for name in names {
        let Weight { shape, data } = weights.get(&name).unwrap().clone();
        weights.insert(&name, Weight { shape, data: data.iter().map(|_| 1e30).collect() });
    }
    run.set_weights(&weights).unwrap();
    let error = run.step().unwrap_err();
    assert!(matches!(error, Error::NotFiniteAtStart { .. }), "{error}");
}

#[test]
fn a_run_returns_to_its_start_if_it_diverges_in_the_first_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--epochs", "2", "--optimizer", "sgd", "--lr", "1e38", "--on-nan", "rollback"];
    let (_, text) = ended(&train(&folder.path().join("run"), &flags).output().unwrap());
    assert!(text.contains(": back to epoch 0, with learning rate "), "{text}");
}

#[test]
fn an_epoch_whose_evaluation_fails_lacks_the_evaluation_only() {
    let data = planted();
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]).dropout(0.3);
    let fails = Arc::new(AtomicBool::new(false));
    let build = || {
        let fails = fails.clone();
        let evaluation = scripted("3,3", move |_, key| match key.batch == 2 && fails.load(Ordering::SeqCst) {
            true => Draw::Fails,
            false => Draw::Some,
        });
        let batches = Batches::new(20, NeighborSampler::new("4,3".parse().unwrap())).evaluation(evaluation);
        Trainer::builder(&model, &data).batches(batches).build().unwrap()
    };
    let mut whole = build();
    let want: Vec<_> = (0..2).map(|_| whole.step().unwrap()).map(|epoch| (epoch.loss, epoch.accuracy)).collect();
    let mut run = build();
    fails.store(true, Ordering::SeqCst);
    let error = run.step().unwrap_err();
    assert!(matches!(error, Error::Batch { stage: "sampling", batch: 3, .. }), "{error}");
    assert_eq!((run.epoch(), run.position()), (0, at(0, 7)));
    let folder = tempfile::tempdir().unwrap();
    run.save(folder.path()).unwrap();
    assert_eq!(names(folder.path()), ["batch-00000001-00000007"]);
    assert!(run.step().is_err() && run.position() == at(0, 7), "no batch runs twice");
    fails.store(false, Ordering::SeqCst);
    let mut resumed = build();
    assert_eq!((resumed.resume(folder.path()).unwrap(), resumed.position()), (Some(0), at(0, 7)));
    for mut trainer in [run, resumed] {
        for want in &want {
            let epoch = trainer.step().unwrap();
            assert_eq!((epoch.loss, epoch.accuracy), *want);
        }
        assert_eq!(trainer.weights().unwrap(), whole.weights().unwrap());
    }
}

/// Returns a training of the built-in dataset with 7 batches per epoch.
fn train(dir: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(LAPIDARY);
    command.args(["train", "--batch", "20", "--fanout", "4,3", "--checkpoint"]).arg(dir).args(flags);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stderr.clone()).unwrap())
}

#[test]
fn the_command_writes_checkpoints_after_so_many_batches() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, flags: &[&str]| {
        let dir = folder.path().join(name);
        let (code, text) = ended(&train(&dir, flags).output().unwrap());
        assert_eq!(code, Some(0), "{text}");
        names(&dir)
    };
    // Batches 4, 8, 12, ... of the run; with 7 per epoch, number 28 is the end of epoch 4.
    let flags = ["--epochs", "5", "--checkpoint-every", "0", "--checkpoint-every-batches", "4"];
    assert_eq!(
        run("all", &[&flags[..], &["--keep", "0"]].concat()),
        [
            "batch-00000001-00000004",
            "batch-00000002-00000001",
            "batch-00000002-00000005",
            "batch-00000003-00000002",
            "batch-00000003-00000006",
            "batch-00000004-00000003",
            "batch-00000005-00000004",
            "best",
            "epoch-00000004",
            "epoch-00000005",
        ]
    );
    assert_eq!(
        run("two", &[&flags[..], &["--keep", "2"]].concat()),
        ["batch-00000004-00000003", "batch-00000005-00000004", "best", "epoch-00000004", "epoch-00000005"]
    );
    assert_eq!(run("none", &["--epochs", "5"]), ["best", "epoch-00000005"]);
    let want = files(&folder.path().join("none/epoch-00000005"));
    for name in ["all", "two"] {
        assert!(files(&folder.path().join(name).join("epoch-00000005")) == want, "checkpoints change no bit");
    }
    // Only the first checkpoint is left.
    let dir = folder.path().join("all");
    names(&dir).iter().skip(1).for_each(|name| fs::remove_dir_all(dir.join(name)).unwrap());
    let (code, text) = ended(&train(&dir, &flags).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(text.contains("holds the checkpoints of a run up to batch 4 of epoch 1;"), "{text}");
    let (code, text) = ended(&train(&dir, &[&flags[..], &["--resume"]].concat()).output().unwrap());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("resumed from batch 4 of epoch 1 in"), "{text}");
    assert!(files(&dir.join("epoch-00000005")) == want);
}

#[test]
fn a_signal_ends_a_run_after_the_batch_and_it_goes_on_with_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let made = ["data", "generate", "planted", "--vertices", "6000", "--features", "32"];
    assert!(Command::new(LAPIDARY).args(made).arg(&data).output().unwrap().status.success());
    let train = |dir: &Path, flags: &[&str]| {
        let mut command = Command::new(LAPIDARY);
        command.args(["train", "--batch", "2", "--fanout", "9,9", "--hidden", "64", "--data"]).arg(&data);
        command.arg("--checkpoint").arg(dir).args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let learned = ["--embedding", "16"];
    for (name, code, more) in [
        ("-TERM", Some(143), &[][..]),
        ("-INT", Some(130), &[]),
        ("-KILL", None, &[]),
        ("-TERM", Some(143), &learned),
        ("-KILL", None, &learned),
    ] {
        let dir = folder.path().join(format!("{name} {more:?}"));
        let train = |dir: &Path, flags: &[&str]| train(dir, &[flags, more].concat());
        let flags = ["--epochs", ENDLESS, "--keep", "0", "--checkpoint-every-batches", "20"];
        let mut child = train(&dir, &flags).spawn().unwrap();
        wait_for(&mut child, &dir.join("batch-00000001-00000020"));
        signal(&child, name);
        let (status, text) = ended(&child.wait_with_output().unwrap());
        assert_eq!(status, code, "{text}");
        let newest = newest(&dir);
        if code.is_some() {
            assert!(text.contains(&format!("interrupted after {newest}\n")), "{text}");
            assert!(!dir.join(".lock").exists());
        }
        let epochs = (newest.epoch + 1).to_string();
        let (status, text) = ended(&train(&dir, &["--epochs", &epochs, "--resume"]).output().unwrap());
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains(&format!("resumed from {newest} in")), "{text}");
        let whole = folder.path().join(format!("whole {epochs} {more:?}"));
        assert!(whole.exists() || train(&whole, &["--epochs", &epochs]).output().unwrap().status.success());
        for file in ["model.safetensors", "optimizer.safetensors", "best.safetensors"] {
            let file = format!("epoch-{epochs:0>8}/{file}");
            assert!(
                fs::read(dir.join(&file)).unwrap() == fs::read(whole.join(&file)).unwrap(),
                "{name} {more:?}: {file}"
            );
        }
    }
}

/// Returns the position of the newest checkpoint in a folder, by the names in it.
fn newest(dir: &Path) -> Position {
    let position = |name: &String| {
        let number = |text: &str| text.parse::<u64>().unwrap();
        let epoch = name.strip_prefix("epoch-").map(|epoch| at(number(epoch), 0));
        let within = name.strip_prefix("batch-").and_then(|rest| rest.split_once('-'));
        epoch.or(within.map(|(epoch, batch)| at(number(epoch) - 1, number(batch))))
    };
    names(dir).iter().filter_map(position).max().unwrap()
}

#[test]
fn wrong_flags_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| {
        let output = Command::new(LAPIDARY).arg("train").args(flags).output().unwrap();
        let (code, text) = ended(&output);
        assert_eq!(code, Some(2), "{text}");
        text
    };
    let dir = folder.path().to_str().unwrap();
    let batches = ["--batch", "20", "--fanout", "4,3", "--checkpoint-every-batches"];
    assert!(error(&["--checkpoint", dir, "--checkpoint-every-batches", "5"]).contains("--batch"));
    assert!(error(&[&batches[..], &["5"]].concat()).contains("--checkpoint <DIR>"));
    let text = error(&[&batches[..], &["0", "--checkpoint", dir]].concat());
    assert!(text.contains("--checkpoint-every-batches cannot be `0`: it is a number of mini-batches"), "{text}");
}
