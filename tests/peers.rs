//! Rows that are copied between devices: the same bits as through the host, and bytes as planned, counted separately.

use crate::common::Tier;
use crate::common::curve::peaks_within_plan;
use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::forecast::{DryRun, Subject};
use lapidary::model::ModelConfig;
use lapidary::{
    Adam, ByteSize, Dataset, Devices, Epoch, Error, ExchangeMode, MemoryPolicy, Model, Partition, Predictor,
    StorageType, Trainer, TrainerBuilder,
};

fn model(name: &str, data: &Dataset) -> Model {
    let config = ModelConfig::new(name, &[data.feature_width(), 16, data.class_count()]);
    Model::from_config(config).unwrap().dropout(0.5).heads(2)
}

fn devices(count: usize, exchange: ExchangeMode) -> Devices {
    Devices::parse(&format!("sim:{count}")).unwrap().exchange(exchange)
}

/// A run's results as bits. Its measured bytes were compared with the plan.
struct Run {
    bits: Vec<u64>,
    last: Epoch,
    tiles: usize,
    peak_bytes: u64,
}

fn train(builder: TrainerBuilder<'_>, epochs: usize) -> Result<Run, Error> {
    let mut trainer = builder.optimizer(Adam::new(0.01)).partition(Partition::parse("edges")?).build()?;
    let mut bits = Vec::new();
    let mut last = None;
    for _ in 0..epochs {
        let done = trainer.step()?;
        assert_eq!([done.bytes_to_device, done.bytes_to_host], done.planned_bytes);
        assert_eq!(done.bytes_between_devices, done.planned_bytes_between_devices);
        bits.push(done.loss.to_bits());
        last = Some(done);
    }
    let peaks = peaks_within_plan(&trainer);
    for (_, weight) in trainer.weights()?.iter() {
        bits.extend(weight.data.iter().map(|x| u64::from(x.to_bits())));
    }
    let peak_bytes = peaks.into_iter().max().unwrap();
    Ok(Run { bits, last: last.unwrap(), tiles: trainer.tiles(), peak_bytes })
}

#[test]
fn rows_from_device_to_device_change_no_bit() {
    rows_from_device_to_device(Tier::Quick);
}

#[test]
#[ignore = "full: the other models on larger graphs"]
fn rows_from_device_to_device_change_no_bit_on_larger_graphs() {
    rows_from_device_to_device(Tier::Full);
}

fn rows_from_device_to_device(tier: Tier) {
    for name in ["karate", "planted"] {
        let data = Dataset::builtin(name).unwrap();
        for &name in tier.models(&data) {
            let model = model(name, &data);
            for count in if tier == Tier::Quick { [2, 3] } else { [3, 4] } {
                for (eval_every, dtype) in
                    [(1, StorageType::F32), (0, StorageType::F32), (2, StorageType::F32), (1, StorageType::Bf16)]
                {
                    let run = |exchange| {
                        let builder = Trainer::builder(&model, &data).eval_every(eval_every).dtype(dtype);
                        train(builder.devices(devices(count, exchange)), 4).unwrap()
                    };
                    let (host, peer) = (run(ExchangeMode::Host), run(ExchangeMode::Peer));
                    let staged = run(ExchangeMode::Staged);
                    let what = format!("{name} on {} with {count} devices in {dtype}", data.name());
                    assert!(host.bits == peer.bits && host.bits == staged.bits, "{what}: other bits");
                    let between = [&peer, &staged].map(|run| run.last.bytes_between_devices);
                    // In stages, rows that two gathers read are fetched twice.
                    assert!(between[0] == between[1] || (between[0] < between[1] && name.starts_with("gat")), "{what}");
                    assert_eq!(host.last.bytes_between_devices, 0, "{what}");
                    assert!(peer.last.bytes_between_devices > 0, "{what}");
                    // Only sums of gradients go through the host.
                    let [through, direct] =
                        [&host, &peer].map(|run| [run.last.bytes_to_device, run.last.bytes_to_host]);
                    assert_eq!(through[0] - direct[0], peer.last.bytes_between_devices, "{what}");
                    assert!(direct[1] < through[1], "{what}");
                }
            }
        }
    }
}

#[test]
fn little_memory_and_any_policy_change_no_bit() {
    let data = Dataset::builtin("planted").unwrap();
    let (mut direct, mut tiled) = (0, 0);
    let model = model("gcn", &data);
    let whole = train(Trainer::builder(&model, &data).devices(devices(3, ExchangeMode::Peer)), 1).unwrap();
    for policy in [MemoryPolicy::None, MemoryPolicy::Lru, MemoryPolicy::Roc, MemoryPolicy::Optimal] {
        for percent in [100, 40] {
            let memory = ByteSize::b(whole.peak_bytes * percent / 100);
            let run = |exchange| {
                let builder = Trainer::builder(&model, &data).memory(policy).device_memory(memory);
                train(builder.devices(devices(3, exchange)), 2).unwrap()
            };
            let (host, peer) = (run(ExchangeMode::Host), run(ExchangeMode::Peer));
            let what = format!("{policy:?}, {percent} %");
            let staged = run(ExchangeMode::Staged);
            assert!(staged.peak_bytes <= memory.as_u64(), "{what}");
            assert!(staged.tiles != host.tiles || staged.bits == host.bits, "{what}: other bits in stages");
            assert!(peer.peak_bytes <= memory.as_u64(), "{what}");
            assert_eq!(peer.last.bytes_between_devices > 0, peer.tiles == 1, "{what}");
            if host.tiles == peer.tiles {
                assert!(host.bits == peer.bits, "{what}: other bits");
            }
            let moved = peer.last.bytes_to_device + peer.last.bytes_to_host;
            direct += usize::from(peer.tiles == 1 && host.tiles == 1 && moved > whole.last.bytes_to_device * 2);
            tiled += usize::from(peer.tiles > 1 && host.tiles == peer.tiles);
        }
    }
    assert!(direct >= 2 && tiled >= 2, "{direct} runs kept less than all, {tiled} were cut");
}

#[test]
fn what_is_forecast_is_what_runs() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let partition = || Partition::parse("edges").unwrap();
    for exchange in [ExchangeMode::Host, ExchangeMode::Peer, ExchangeMode::Staged] {
        let sims = Devices::sim(3).exchange(exchange);
        let dry_run = DryRun::new(&model, Subject::Data(&data)).devices(sims).partition(partition());
        let forecast = dry_run.profile("a100").run().unwrap();
        let plan = forecast.policies[0].outcome.as_ref().unwrap();
        let run = train(Trainer::builder(&model, &data).devices(devices(3, exchange)), 3).unwrap();
        assert_eq!([run.last.bytes_to_device, run.last.bytes_to_host], plan.bytes());
        assert_eq!(run.last.bytes_between_devices, plan.bytes_between_devices());
        assert_eq!(plan.bytes_between_devices() > 0, exchange != ExchangeMode::Host);
        assert_eq!(plan.exchange.name(), exchange.to_string());
    }
}

#[test]
fn inference_fetches_as_well() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let weights = Trainer::builder(&model, &data).build().unwrap().weights().unwrap();
    let predictor =
        || Predictor::new(&model, weights.clone(), None).unwrap().partition(Partition::parse("edges").unwrap());
    let [host, peer, staged] = [ExchangeMode::Host, ExchangeMode::Peer, ExchangeMode::Staged]
        .map(|exchange| predictor().devices(devices(3, exchange)).predict(&data).unwrap());
    for other in [peer, staged] {
        assert_eq!(host.dim(), other.dim());
        assert!(host.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

/// Random ends: nearly every row is read by all parts. Then a part needs less memory for the rows of two others than for
/// those of all.
#[test]
fn stages_need_less_memory_than_the_whole_halo() {
    let shape = RmatOptions { vertices: 2_000, edge_factor: 10.0, quarters: [0.25; 4], ..RmatOptions::default() };
    let data = rmat(&RmatOptions { feature_width: 24, classes: 6, ..shape }).unwrap();
    let model = model("gcn", &data);
    let [host, peer, staged] = [ExchangeMode::Host, ExchangeMode::Peer, ExchangeMode::Staged].map(|exchange| {
        let builder = Trainer::builder(&model, &data).memory(MemoryPolicy::None);
        train(builder.devices(devices(8, exchange)), 2).unwrap()
    });
    assert!(host.bits == peer.bits && host.bits == staged.bits);
    assert!(staged.peak_bytes * 10 < peer.peak_bytes * 9, "{} of {}", staged.peak_bytes, peer.peak_bytes);
    // With less memory than the whole halo needs, stages still do without tiles and the host.
    let memory = ByteSize::b(staged.peak_bytes);
    let small = |exchange| {
        let builder = Trainer::builder(&model, &data).device_memory(memory);
        train(builder.devices(devices(8, exchange)), 2).unwrap()
    };
    let small = small(ExchangeMode::Staged);
    assert_eq!((small.tiles, small.last.bytes_between_devices), (1, staged.last.bytes_between_devices));
    assert!(small.bits == host.bits);
}

/// Returns standard output and standard error of a command that must succeed.
fn said(flags: &[&str]) -> [String; 2] {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_lapidary")).args(flags).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{texts:?}");
    texts
}

#[test]
fn the_command_says_what_goes_from_device_to_device() {
    const KEY: &str = "bytes_between_devices";
    let plan = |exchange: &str| -> Vec<serde_json::Value> {
        let shape = ["plan", "--shape", "20000,900000,100,10", "--devices", "4", "--profile", "h200", "--json"];
        let [lines, _] = said(&[&shape[..], &["--exchange", exchange]].concat());
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (host, auto, peer) = (plan("host"), plan("auto"), plan("peer"));
    assert_eq!(host, auto);
    assert!(host.iter().all(|line| line.get(KEY).is_none()));
    let number = |line: &serde_json::Value, key: &str| line[key].as_f64().unwrap();
    let between = number(&peer[0], KEY);
    let of_devices: f64 = peer[0]["devices"].as_array().unwrap().iter().map(|device| number(device, KEY)).sum();
    assert!(between > 0.0 && between == of_devices);
    assert_eq!(number(&host[0], "bytes_to_device") - number(&peer[0], "bytes_to_device"), between);
    // NVLink is more than twice as fast as the bus.
    assert!(number(&peer[0], "epoch_seconds") < number(&host[0], "epoch_seconds"));
    let whole = peer.iter().rfind(|line| line["event"] == "whatif").unwrap();
    assert_eq!(number(whole, KEY), between);

    let train = ["train", "--data", "builtin:karate", "--epochs", "2", "--devices", "sim:2", "--exchange", "peer"];
    let [lines, _] = said(&[&train[..], &["--json"]].concat());
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, epochs) = lines.split_last().unwrap();
    for kind in ["planned", "measured"] {
        assert_eq!(summary[format!("{kind}_{KEY}")], epochs[1][KEY]);
    }
    assert!(number(&epochs[0], KEY) > 0.0);
    let [table, _] = said(&train);
    assert!(table.contains("\nbetween devices "), "{table}");
    let [plain, _] = said(&["train", "--data", "builtin:karate", "--epochs", "1", "--devices", "sim:2", "--json"]);
    assert!(!plain.contains(KEY), "{plain}");
}

#[test]
fn what_cannot_be_had_is_an_error() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("gcn", &data);
    let build = |devices: Devices| Trainer::builder(&model, &data).devices(devices).build().map(drop);
    let peer = |text: &str| build(Devices::parse(text).unwrap().exchange(ExchangeMode::Peer));
    build(Devices::parse("cpu:2").unwrap().exchange(ExchangeMode::Staged)).unwrap_err();
    let error = peer("cpu:2").unwrap_err();
    assert!(
        matches!(error, Error::Unreachable { .. }) && error.to_string().contains("choose `auto` or `host`"),
        "{error}"
    );
    // A single device has no peer to fetch from.
    peer("cpu").unwrap();
    peer("sim:1").unwrap();
    assert!("copper".parse::<ExchangeMode>().unwrap_err().to_string().contains("option `exchange`"));
}
