//! Features that are larger than the memory of a device, or than memory: rows that stay, and rows that are read from a
//! file for each mini-batch.

use std::collections::BTreeSet;
use std::fs::OpenOptions;

use assert_cmd::Command;
use lapidary::sample::{BatchKey, NeighborSampler, Sampler, Scratch, epoch_order};
use lapidary::{Batches, ByteSize, Dataset, Devices, Error, FeatureCache, Model, StorageType, Trainer};

const SEED: u64 = 5;
const BATCH: usize = 16;

/// Writes a dataset directory, and returns the dataset that is mapped from it.
fn mapped(folder: &tempfile::TempDir) -> Dataset {
    let path = folder.path().join("data");
    Dataset::builtin("planted").unwrap().write(&path).unwrap();
    Dataset::open(path).unwrap()
}

fn batches() -> Batches {
    Batches::new(BATCH, NeighborSampler::new("4,3".parse().unwrap()))
}

fn trainer(model: &Model, data: &Dataset, batches: Batches, devices: Devices) -> lapidary::Result<Trainer> {
    Trainer::builder(model, data).seed(SEED).devices(devices).batches(batches).eval_every(0).build()
}

fn cache(text: &str) -> FeatureCache {
    text.parse().unwrap()
}

fn weights(trainer: &Trainer) -> Vec<u8> {
    trainer.weights().unwrap().to_safetensors().unwrap()
}

/// Returns, for each batch of the first epoch, the vertices whose features it needs.
fn needed(data: &Dataset) -> Vec<Vec<u32>> {
    let labels = data.labels().unwrap();
    let is_seed = |&v: &usize| data.split()[v] == lapidary::dataset::TRAIN && labels.is_labelled(v);
    let mut seeds: Vec<u32> = (0..data.graph().vertex_count()).filter(is_seed).map(|v| v as u32).collect();
    epoch_order(&mut seeds, SEED, 1);
    let sampler = NeighborSampler::new("4,3".parse().unwrap());
    let draw = |(number, seeds): (usize, &[u32])| {
        let key = BatchKey { seed: SEED, epoch: 1, batch: number as u64 };
        sampler.sample(data.graph(), seeds, key, &mut Scratch::default()).unwrap().vertices
    };
    seeds.chunks(BATCH).enumerate().map(draw).collect()
}

#[test]
fn rows_that_stay_on_a_device_change_no_bit_and_are_not_copied() {
    let data = Dataset::builtin("planted").unwrap();
    for name in ["sage", "gcn", "gat"] {
        let widths = [data.feature_width(), 8, data.class_count()];
        let model = Model::from_config(lapidary::model::ModelConfig::new(name, &widths)).unwrap();
        for devices in [Devices::cpu(), Devices::sim(1), Devices::sim(2)] {
            let mut plain = trainer(&model, &data, batches(), devices.clone()).unwrap();
            let want = [plain.step().unwrap(), plain.step().unwrap()];
            for share in ["1%", "30%", "100%"] {
                let kept = batches().device_cache(cache(share));
                let mut keeping = trainer(&model, &data, kept, devices.clone()).unwrap();
                for want in &want {
                    let epoch = keeping.step().unwrap();
                    assert_eq!(epoch.loss, want.loss, "{name} {share}");
                    assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes);
                    let stages = epoch.stages.unwrap();
                    assert!(stages.found > 0 && (share != "100%" || stages.found == stages.vertices));
                    if epoch.bytes_to_device > 0 {
                        // Two blocks say where the rows are: offsets of 8 bytes, and a number of 4 for each row.
                        let blocks =
                            2 * 8 * (stages.vertices + stages.batches * devices.count() as u64) + 4 * stages.vertices;
                        let rows = stages.found * 4 * data.feature_width() as u64;
                        assert_eq!(epoch.bytes_to_device, want.bytes_to_device + blocks - rows, "{name} {share}");
                    }
                }
                assert!(weights(&keeping) == weights(&plain), "{name} {share}");
            }
        }
    }
}

#[test]
fn rows_that_stay_are_rounded_and_fit_the_memory() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    let build = |cached: bool, memory: Option<u64>| {
        let batches = if cached { batches().device_cache(cache("40%")) } else { batches() };
        let mut builder = Trainer::builder(&model, &data).devices(Devices::sim(1)).batches(batches).eval_every(0);
        if let Some(bytes) = memory {
            builder = builder.device_memory(ByteSize(bytes));
        }
        builder.dtype(StorageType::Bf16).build()
    };
    let mut plain = build(false, None).unwrap();
    let want = plain.step().unwrap().loss;
    let mut roomy = build(true, None).unwrap();
    assert_eq!(roomy.step().unwrap().loss, want);
    // Where the kept rows do not fit beside a batch, they come and go like anything else, as planned.
    let peak = roomy.planned_peak_device_bytes()[0];
    let mut tight = build(true, Some(peak * 3 / 4)).unwrap();
    let epoch = tight.step().unwrap();
    assert_eq!(epoch.loss, want);
    assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes);
    assert!(tight.peak_device_bytes()[0] <= peak * 3 / 4);
}

#[test]
fn rows_that_are_read_for_each_batch_change_no_bit_and_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let data = mapped(&folder);
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    let run = |batches: Batches| {
        let mut trainer = trainer(&model, &data, batches, Devices::cpu()).unwrap();
        let epochs: Vec<_> = (0..2).map(|_| trainer.step().unwrap()).collect();
        let stages = epochs[0].stages.unwrap();
        (weights(&trainer), [stages.vertices, stages.rows_read, stages.bytes_read])
    };
    let (want, [all, none, _]) = run(batches());
    let needed = needed(&data);
    assert_eq!((all, none), (needed.iter().map(Vec::len).sum::<usize>() as u64, 0));
    let row_bytes = 4 * data.feature_width() as u64;
    for (look_ahead, share) in [(0, "0%"), (2, "0%"), (2, "25%"), (1, "100%")] {
        let (weights, [_, rows, bytes]) = run(batches().look_ahead(look_ahead).feature_cache(cache(share)));
        assert!(weights == want, "{share}, {look_ahead} ahead");
        assert_eq!(rows == all, share == "0%", "{rows} of {all}");
        assert_eq!(rows == 0, share == "100%", "{rows} of {all}");
        if share == "0%" {
            // Each page that has a needed row, once for each batch.
            let header = data_offset(&folder);
            let pages = |rows: &Vec<u32>| {
                let of_row = |&row: &u32| {
                    let start = header + u64::from(row) * row_bytes;
                    start / 4096..=(start + row_bytes - 1) / 4096
                };
                rows.iter().flat_map(of_row).collect::<BTreeSet<_>>().len() as u64
            };
            assert_eq!(bytes, 4096 * needed.iter().map(pages).sum::<u64>());
        }
    }
    let both = batches().device_cache(cache("20%")).feature_cache(cache("50%"));
    let (weights, [_, rows, _]) = run(both);
    assert!(weights == want && rows > 0);
}

/// Returns where the features begin in their file.
fn data_offset(folder: &tempfile::TempDir) -> u64 {
    let bytes = std::fs::read(folder.path().join("data/features.npy")).unwrap();
    10 + u64::from(u16::from_le_bytes([bytes[8], bytes[9]]))
}

#[test]
fn sampled_evaluations_use_the_caches_too() {
    let folder = tempfile::tempdir().unwrap();
    let data = mapped(&folder);
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    let sampled = || batches().evaluation(NeighborSampler::new("5,5".parse().unwrap()));
    let run = |batches: Batches| {
        let builder = Trainer::builder(&model, &data).seed(SEED).devices(Devices::sim(1)).batches(batches);
        let epoch = builder.build().unwrap().step().unwrap();
        assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes);
        (epoch.loss, epoch.accuracy.unwrap().val)
    };
    let want = run(sampled());
    assert_eq!(run(sampled().device_cache(cache("30%"))), want);
    assert_eq!(run(sampled().feature_cache(cache("30%"))), want);
}

#[test]
fn a_file_that_becomes_shorter_ends_the_run_with_the_stage() {
    let folder = tempfile::tempdir().unwrap();
    let data = mapped(&folder);
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    let mut trainer = trainer(&model, &data, batches().feature_cache(cache("10%")), Devices::cpu()).unwrap();
    trainer.step().unwrap();
    let path = folder.path().join("data/features.npy");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = trainer.step().unwrap_err();
    // The change is what the user has to know of.
    assert!(matches!(&error, Error::Dataset(_)), "{error}");
    assert!(error.to_string().contains("bytes instead of"), "{error}");
}

#[test]
fn caches_that_cannot_be_are_errors() {
    for text in ["", "x", "10", "-1%", "101%", "5MB", "1 GiB", "0%"] {
        let parsed: Result<FeatureCache, _> = text.parse();
        assert_eq!(parsed.is_ok(), ["10", "5MB", "1 GiB", "0%"].contains(&text), "{text}");
    }
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    let refused = trainer(&model, &data, batches().feature_cache(cache("10%")), Devices::cpu());
    let Err(Error::Value { option: "feature_cache", expected, .. }) = refused else { panic!("no file has the rows") };
    assert!(expected.contains("features.npy"), "{expected}");
    let sparse = sparse_ring();
    let model = Model::sage(&[sparse.feature_width(), 8, sparse.class_count()]);
    let refused = trainer(&model, &sparse, batches().device_cache(cache("10%")), Devices::cpu());
    assert!(matches!(refused, Err(Error::Value { option: "device_cache", .. })));
}

#[test]
fn a_share_is_written_as_it_was_read() {
    for text in ["0%", "0.1%", "7%", "12.5%", "29%", "33.333333%", "58%", "100%"] {
        assert_eq!(cache(text).to_string(), text);
    }
}

#[test]
fn the_command_explains_why_rows_are_not_read_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    mapped(&folder);
    let planted = folder.path().join("data");
    let (half, sparse) = (folder.path().join("half"), folder.path().join("sparse"));
    Dataset::builtin("planted").unwrap().write(&half).unwrap();
    let file = half.join("features.npy");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(3).position(|text| text == b"<f4").unwrap();
    bytes[at + 2] = b'2';
    let header = data_offset(&folder) as usize;
    bytes.truncate(header + (bytes.len() - header) / 2);
    bytes[header..].fill(0);
    std::fs::write(file, bytes).unwrap();
    sparse_ring().write(&sparse).unwrap();
    let missing = folder.path().join("missing");
    let cases = [
        (&planted, &["--feature-norm", "row"][..], "10%", "set --feature-norm to none, or leave this option out"),
        (&half, &[], "10%", "in float32, and this dataset has no such file; leave this option out"),
        (&sparse, &[], "10%", "those of this dataset are sparse; leave this option out"),
        // Flags are checked before the dataset is read.
        (&missing, &[], "7%x", "write a share of all rows, as in 10%"),
    ];
    for verb in ["train", "plan"] {
        for (data, more, size, wanted) in &cases {
            if verb == "plan" && !more.is_empty() {
                continue;
            }
            let mut command = Command::cargo_bin("lapidary").unwrap();
            let batches = ["--model", "sage", "--batch", "16", "--fanout", "4,3", "--feature-cache", size];
            let output = command.args([verb, "--data"]).arg(data).args(batches).args(*more).output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{text}");
            assert!(text.contains(&format!("--feature-cache cannot be `{size}`: ")) && text.contains(wanted), "{text}");
        }
    }
}

/// A ring with sparse features.
fn sparse_ring() -> Dataset {
    let edges: Vec<(u32, u32)> = (0..20).flat_map(|v| [(v, (v + 1) % 20), ((v + 1) % 20, v)]).collect();
    let graph = lapidary::graph::Graph::from_edges(20, &edges).unwrap();
    let labels: Vec<i64> = (0..20).map(|v| v % 2).collect();
    let indptr: Vec<u64> = (0..=20).collect();
    let indices: Vec<u32> = (0..20).map(|v| v % 5).collect();
    let arrays = lapidary::Arrays::new(graph).sparse_features(indptr, indices, vec![1.0; 20], 5).labels(&labels);
    Dataset::from_arrays(arrays.train(&(0..20).collect::<Vec<i64>>())).unwrap()
}

#[test]
fn the_dry_run_says_what_is_read_and_what_stays() {
    let folder = tempfile::tempdir().unwrap();
    mapped(&folder);
    let data = folder.path().join("data");
    let run = |verb: &str, more: &[&str]| {
        let mut command = Command::cargo_bin("lapidary").unwrap();
        let batches = ["--model", "sage", "--batch", "16", "--fanout", "4,3", "--feature-cache", "25%"];
        let output = command.args([verb, "--json", "--data"]).arg(&data).args(batches).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<serde_json::Value>>()
    };
    let plan =
        run("plan", &["--device-cache", "10%"]).into_iter().find(|line| line["event"] == "plan_batches").unwrap();
    let epoch = &run("train", &["--device-cache", "10%", "--epochs", "1"])[0];
    // All batches of the epoch were drawn, so what is planned is what happens.
    assert_eq!(plan["drawn"], plan["batches"]);
    for what in ["feature_rows_read", "feature_bytes_read"] {
        assert_eq!(plan[what], epoch[what], "{what}");
        assert!(plan[what].as_u64() > Some(0));
    }
    let found = epoch["feature_rows_found"].as_f64().unwrap() / epoch["input_rows"].as_f64().unwrap();
    assert!((plan["found_on_device"].as_f64().unwrap() - found).abs() < 1e-12);
    let hits: Vec<f64> =
        plan["caches"].as_array().unwrap().iter().map(|cache| cache["hits"].as_f64().unwrap()).collect();
    assert!(hits.windows(2).all(|pair| pair[0] <= pair[1]) && hits.last() > Some(&0.5), "{hits:?}");
    let tenth = plan["caches"].as_array().unwrap().iter().find(|cache| cache["share"] == 0.1).unwrap();
    assert!((tenth["hits"].as_f64().unwrap() - found).abs() < 1e-12);
}
