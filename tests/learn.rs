//! Learned splits: a move does not change the training, and a run can be replayed.

use std::path::Path;

use assert_cmd::Command;
use lapidary::dataset::generate::{PlantedOptions, RmatOptions, planted, rmat};
use lapidary::{Adam, Dataset, Devices, Error, Model, Partition, Predictor, Trainer, TrainerBuilder};

fn devices(text: &str) -> Devices {
    Devices::parse(text).unwrap()
}

fn model(data: &Dataset) -> Model {
    Model::gcn(&[data.feature_width(), 16, data.class_count()]).dropout(0.5)
}

/// Puts nearly everything on the first of three devices, so that the gain of any other split exceeds noise.
fn lopsided(data: &Dataset) -> Partition {
    let n = data.graph().vertex_count();
    Partition::LearnedFrom(vec![0..n - 200, n - 200..n - 100, n - 100..n])
}

fn losses(builder: TrainerBuilder<'_>, epochs: usize) -> (Vec<f64>, Trainer) {
    let mut trainer = builder.optimizer(Adam::new(0.01).weight_decay(5e-4)).build().unwrap();
    let mut losses = Vec::new();
    for epoch in 0..epochs {
        if epoch == 5 {
            trainer.set_learning_rate(0.003).unwrap();
        }
        losses.push(trainer.step().unwrap().loss);
    }
    (losses, trainer)
}

fn weights_of(dir: &Path, epoch: u64) -> Vec<u8> {
    std::fs::read(dir.join(format!("epoch-{epoch:08}/model.safetensors"))).unwrap()
}

#[test]
fn training_goes_on_over_a_move_as_if_nothing_had_happened() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model(&data);
    let (want, mut whole) = losses(Trainer::builder(&model, &data), 20);
    let splits = vec![
        (1, vec![0..1000, 1000..2000, 2000..3000]),
        (4, vec![0..10, 10..2990, 2990..3000]),
        (5, vec![0..0, 0..2000, 2000..3000]),
        (11, vec![0..1000, 1000..2000, 2000..3000]),
    ];
    for name in ["sim:3", "cpu:3"] {
        for eval_every in [1, 3, 0] {
            let builder = Trainer::builder(&model, &data).devices(devices(name)).eval_every(eval_every);
            let (got, mut trainer) = losses(builder.partition(Partition::Replay(splits.clone())), 20);
            for (epoch, (got, want)) in crate::common::pairs(&got, &want).enumerate() {
                assert!((got - want).abs() <= 1e-4 * want, "{name}, epoch {epoch}: the loss is {got}, not {want}");
            }
            let epochs: Vec<u64> = trainer.splits().iter().map(|split| split.epoch).collect();
            assert_eq!(epochs, [1, 4, 5, 11]);
            assert_eq!(trainer.last_move().unwrap().epoch, 11);
            assert_eq!(trainer.parts(), [[0, 1000], [1000, 2000], [2000, 3000]]);
            crate::common::curve::peaks_within_plan(&trainer);
            let [got, want] = [trainer.evaluate().unwrap(), whole.evaluate().unwrap()].map(|a| a.test.unwrap());
            assert!((got - want).abs() < 0.01, "{name}: {got}, not {want}");
        }
    }
}

#[test]
fn gradients_can_be_read_after_a_move() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model(&data);
    let splits = Partition::Replay(vec![(1, vec![0..1000, 1000..3000]), (2, vec![0..2000, 2000..3000])]);
    let builder = Trainer::builder(&model, &data).devices(devices("sim:2")).partition(splits).keep_gradients(true);
    let mut trainer = builder.build().unwrap();
    for _ in 0..2 {
        trainer.step().unwrap();
        assert!(trainer.gradients().unwrap().iter().count() > 0);
    }
}

#[test]
fn a_run_that_moved_is_replayed_bit_for_bit_and_resumed() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model(&data);
    let folder = tempfile::tempdir().unwrap();
    let builder = || Trainer::builder(&model, &data).devices(devices("sim:3")).epochs(1_000_000);
    let (_, trainer) = losses(builder().partition(lopsided(&data)), 12);
    let splits = trainer.splits().to_vec();
    assert!(splits.len() >= 2, "nothing moved from {:?}", trainer.parts());
    let moved = trainer.last_move().unwrap();
    assert_eq!(moved.epoch, splits.last().unwrap().epoch);
    let [now_s, then_s] = moved.slowest_s.unwrap();
    assert!(then_s < now_s);
    assert_eq!(trainer.part_seconds().len(), 3);
    assert!(splits[1].parts[0][1] < 2800, "the first device kept {:?}", splits[1].parts[0]);
    trainer.save(folder.path()).unwrap();

    let record = folder.path().join("epoch-00000012/run.json");
    let replay = Partition::parse(record.to_str().unwrap()).unwrap();
    let (_, again) = losses(builder().partition(replay), 12);
    assert_eq!(again.splits(), splits);
    let second = tempfile::tempdir().unwrap();
    again.save(second.path()).unwrap();
    assert!(weights_of(folder.path(), 12) == weights_of(second.path(), 12), "a replay has other bits");
    assert!(!second.path().join("epoch-00000012/cost_model.json").exists(), "a replay learns nothing");

    // A resumed run continues with the same split and the same cost model.
    let mut resumed = builder().optimizer(Adam::new(0.01).weight_decay(5e-4)).build().unwrap();
    assert_eq!(resumed.resume(folder.path()).unwrap(), Some(12));
    assert_eq!((resumed.parts(), resumed.splits()), (trainer.parts(), &splits[..]));
    let known = |dir: &Path| std::fs::read(dir.join("epoch-00000012/cost_model.json")).unwrap();
    let third = tempfile::tempdir().unwrap();
    resumed.save(third.path()).unwrap();
    assert!(known(folder.path()) == known(third.path()), "something was forgotten");
    assert!(weights_of(folder.path(), 12) == weights_of(third.path(), 12));
    resumed.step().unwrap();
}

#[test]
fn records_of_older_versions_have_one_split() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model(&data);
    let folder = tempfile::tempdir().unwrap();
    let edges = Partition::parse("edges").unwrap();
    let builder = || Trainer::builder(&model, &data).devices(devices("cpu:2")).partition(edges.clone());
    let mut trainer = builder().build().unwrap();
    trainer.step().unwrap();
    trainer.save(folder.path()).unwrap();
    let path = folder.path().join("epoch-00000001/run.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(record["splits"][0]["epoch"], 1);
    assert!(record.as_object_mut().unwrap().remove("splits").is_some());
    std::fs::write(&path, record.to_string()).unwrap();
    crate::common::digest_anew(path.parent().unwrap());
    let ranges = trainer.parts().iter().map(|part| part[0]..part[1]).collect();
    assert_eq!(Partition::parse(path.to_str().unwrap()).unwrap(), Partition::Ranges(ranges));
    let mut resumed = builder().build().unwrap();
    assert_eq!(resumed.resume(folder.path()).unwrap(), Some(1));
    assert_eq!(resumed.splits(), trainer.splits());

    record["splits"] = serde_json::json!([{"epoch": 3, "parts": [[0, 9], [9, 34]]}, {"epoch": 1, "parts": [[0, 34]]}]);
    std::fs::write(&path, record.to_string()).unwrap();
    let error = Partition::parse(path.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("order of their epochs"), "{error}");
    record["splits"] = serde_json::json!([{"epoch": 1, "parts": [[0, 9], [9, 34]]}, {"epoch": 3, "parts": [[0, 34]]}]);
    std::fs::write(&path, record.to_string()).unwrap();
    let replay = Partition::parse(path.to_str().unwrap()).unwrap();
    let built = Trainer::builder(&model, &data).devices(devices("cpu:2")).partition(replay).build();
    assert!(matches!(built, Err(Error::Parts { .. })), "a later split of another number of parts is an error at once");
}

#[test]
fn a_fixed_split_never_moves_and_a_gain_too_small_moves_nothing() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model(&data);
    let n = data.graph().vertex_count();
    let fixed = [Partition::parse("vertices").unwrap(), Partition::Ranges(vec![0..n - 2, n - 2..n - 1, n - 1..n])];
    for partition in fixed {
        let builder = Trainer::builder(&model, &data).devices(devices("sim:3")).epochs(1_000_000);
        let (_, trainer) = losses(builder.partition(partition), 10);
        assert_eq!((trainer.splits().len(), trainer.last_move()), (1, None));
    }
    // No move pays, since no epochs are left.
    let builder = Trainer::builder(&model, &data).devices(devices("sim:3")).epochs(3);
    let (_, trainer) = losses(builder.partition(lopsided(&data)), 10);
    assert_eq!(trainer.splits().len(), 1);
}

#[test]
fn what_was_learned_splits_graphs_that_were_never_seen() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model(&data);
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = Trainer::builder(&model, &data).devices(devices("cpu:2")).build().unwrap();
    for _ in 0..4 {
        trainer.step().unwrap();
    }
    trainer.save(folder.path()).unwrap();
    let best = folder.path().join("best");
    let file = best.join("cost_model.json");
    let json = std::fs::read_to_string(&file).unwrap();
    let learned: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(
        learned["ops"].as_array().unwrap().iter().any(|op| op["op"]["name"].as_str().unwrap().starts_with("gather"))
    );

    let options = PlantedOptions {
        vertices: 2000,
        mean_degree: 12.0,
        feature_width: data.feature_width(),
        seed: 7,
        ..PlantedOptions::default()
    };
    let unseen = planted(&options).unwrap();
    let parts = |partition: &str| {
        let predictor = Predictor::open(&best).unwrap().devices(devices("cpu:2"));
        predictor.partition(Partition::parse(partition).unwrap()).run(&unseen).unwrap().parts
    };
    // Changed so that only vertices, or only in-edges, have a cost, the file gives the splits of those strategies.
    for (strategy, feature) in [("vertices", 0), ("edges", 1)] {
        let mut only = learned.clone();
        for op in only["ops"].as_array_mut().unwrap() {
            let gathers = op["op"]["work"].get("gather").is_some();
            op["per_call_s"] = 0.0.into();
            for (i, weight) in op["per_feature_s"].as_array_mut().unwrap().iter_mut().enumerate() {
                *weight = if gathers && i == feature { 1.0 } else { 0.0 }.into();
            }
        }
        std::fs::write(&file, only.to_string()).unwrap();
        crate::common::digest_anew(&best);
        let [[_, learned_end], [_, end]] = [parts("learned")[0], parts(strategy)[0]];
        assert!(learned_end.abs_diff(end) <= 1, "{strategy}: {learned_end}, not {end}");
    }
    let by_vertices = parts("vertices")[0];
    assert_ne!(by_vertices, parts("edges")[0], "the graph tells nothing apart");

    for broken in [&json[..json.len() / 2], "{}", ""] {
        std::fs::write(&file, broken).unwrap();
        crate::common::digest_anew(&best);
        let error = Predictor::open(&best).unwrap_err();
        assert!(matches!(&error, Error::CostModel { path, .. } if *path == file), "{error}");
    }
    let refused = Command::cargo_bin("lapidary")
        .unwrap()
        .args(["infer", "--data", "builtin:planted", "--checkpoint"])
        .arg(&best)
        .assert();
    let text = String::from_utf8_lossy(&refused.failure().code(1).get_output().stderr).into_owned();
    assert!(text.contains("cost_model.json") && text.contains("to learn anew"), "{text}");
    std::fs::remove_file(&file).unwrap();
    crate::common::digest_anew(&best);
    let prediction = Predictor::open(&best).unwrap().devices(devices("sim:2")).run(&unseen).unwrap();
    assert!(prediction.part_seconds.len() == 2 && prediction.part_seconds.iter().all(|&seconds| seconds > 0.0));
}

#[test]
fn a_slow_device_gets_less() {
    let options =
        RmatOptions { vertices: 1 << 14, edge_factor: 8.0, feature_width: 64, classes: 8, ..RmatOptions::default() };
    let data = rmat(&options).unwrap();
    let model = Model::gcn(&[64, 64, data.class_count()]);
    let start = vec![0..1 << 13, 1 << 13..1 << 14];
    let edges = |part: &std::ops::Range<usize>| data.graph().indptr()[part.end] - data.graph().indptr()[part.start];
    let before = edges(&start[0]);
    // So slow that no other load on this machine has the same effect, and the device that would otherwise get more. The
    // learner's own tests check how even the parts become.
    let builder = Trainer::builder(&model, &data).devices(devices("sim:2").slowed(0, 1000)).eval_every(0);
    let (_, trainer) = losses(builder.epochs(1_000_000).partition(Partition::LearnedFrom(start)), 12);
    let [first, end] = trainer.parts()[0];
    let after = edges(&(first..end));
    assert!(after < before, "the slow device has {after} edges, and had {before}: {:?}", trainer.splits());
}

#[test]
fn the_summary_counts_the_splits() {
    let folder = tempfile::tempdir().unwrap();
    let train = |flags: &[&str]| {
        let mut command = Command::cargo_bin("lapidary").unwrap();
        let done = command.args(["train", "--epochs", "4", "--devices", "cpu:2"]).args(flags).assert().success();
        let output = done.get_output().clone();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let run = folder.path().join("splits.json");
    let splits = serde_json::json!({"parts": [[0, 2000], [2000, 3000]], "splits": [
        {"epoch": 1, "parts": [[0, 1000], [1000, 3000]]}, {"epoch": 3, "parts": [[0, 2000], [2000, 3000]]}]});
    std::fs::write(&run, splits.to_string()).unwrap();
    let (stdout, _) = train(&["--json", "--partition", run.to_str().unwrap()]);
    let summary: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&summary["splits"], &summary["parts"]), (&2.into(), &splits["parts"]));
    let (_, stderr) = train(&["--partition", run.to_str().unwrap()]);
    assert_eq!(stderr.matches("vertices moved between devices").count(), 1, "{stderr}");
}
