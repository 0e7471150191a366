//! Ranks: several processes train as one does with the same parts. Here, the ranks are threads of one process; `ci/ranks`
//! does the same over MPI.

use std::time::{Duration, Instant};

use crate::common::curve::{self, Curve, assert_same};
use crate::common::ranks::on_ranks;
use crate::common::{Tier, hostile_graph, numbers};
use lapidary::forecast::{DryRun, Network, Subject};
use lapidary::kernels::{SimDevice, SimSpeed};
use lapidary::model::{AttentionConfig, ModelConfig};
use lapidary::{
    Adam, Arrays, BackwardMode, ByteSize, Dataset, Devices, Error, Graph, MemoryPolicy, Model, Partition, Predictor,
    Ranks, RunOptions, Sent, TraceFile, Trainer,
};
use ndarray::Array2;

fn model(name: &str, data: &Dataset) -> Model {
    let config = ModelConfig::new(name, &[data.feature_width(), 16, data.class_count()]);
    Model::from_config(config).unwrap().dropout(0.5).heads(2)
}

fn train(model: &Model, data: &Dataset, options: RunOptions, epochs: usize) -> Curve {
    curve::train(Adam::new(0.01), Trainer::builder(model, data).options(options), epochs)
}

fn labelled(graph: Graph) -> Dataset {
    let n = graph.vertex_count();
    let labels: Vec<i64> = (0..n as i64).map(|v| v % 3).collect();
    let train: Vec<i64> = (0..n as i64).step_by(2).collect();
    let features = Array2::from_shape_vec((n, 5), numbers(5 * n, 3)).unwrap();
    Dataset::from_arrays(Arrays::new(graph).features(features).labels(&labels).train(&train)).unwrap()
}

/// An undirected graph; a directed one with repeated edges, self-loops and isolated vertices.
fn datasets() -> Vec<Dataset> {
    vec![Dataset::builtin("planted").unwrap(), labelled(hostile_graph())]
}

fn assert_same_bits(what: &str, got: &Curve, want: &Curve) {
    assert_eq!(got.losses, want.losses, "{what}: losses");
    assert_eq!(got.weights, want.weights, "{what}: weights");
    assert_eq!(got.gradients, want.gradients, "{what}: gradients");
}

fn simulated(parts: usize) -> RunOptions {
    RunOptions::new().devices(Devices::sim(parts)).partition(Partition::parse("edges").unwrap())
}

#[test]
fn ranks_train_as_one_process_with_the_same_parts() {
    trains_the_same(Tier::Quick, &[2, 3]);
}

#[test]
#[ignore = "full: the other models, and up to 8 ranks"]
fn many_ranks_train_as_one_process_with_the_same_parts() {
    trains_the_same(Tier::Full, &[1, 2, 3, 4, 8]);
}

fn trains_the_same(tier: Tier, counts: &[usize]) {
    for data in datasets() {
        for &name in tier.models(&data) {
            let model = model(name, &data);
            let whole = train(&model, &data, simulated(1), 5);
            for &count in counts {
                let what = format!("{name} on {}, {count} ranks", data.name());
                for mode in [BackwardMode::Pull, BackwardMode::Fold] {
                    let parts = train(&model, &data, simulated(count).backward(mode), 5);
                    let options = || simulated(1).backward(mode);
                    for curve in on_ranks(count, |ranks| train(&model, &data, options().ranks(ranks), 5)) {
                        assert_same_bits(&what, &curve, &parts);
                        assert_same(&what, &curve, &whole);
                        assert_eq!(curve.peaks, parts.peaks, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_hold_the_weights_of_their_own_edges() {
    // A directed graph, with repeated edges and self-loops; and one that is symmetric, unlike its weights. In little
    // memory, the parts of the second are split into tiles.
    for (graph, little, tiled) in
        [(hostile_graph(), 2, false), (Dataset::builtin("karate").unwrap().graph().clone(), 3, true)]
    {
        let weights: Vec<f32> = (0..graph.edge_count()).map(|edge| 0.25 + (edge % 7) as f32).collect();
        let n = graph.vertex_count();
        let labels: Vec<i64> = (0..n as i64).map(|v| v % 3).collect();
        let features = Array2::from_shape_vec((n, 5), numbers(5 * n, 3)).unwrap();
        let arrays = Arrays::new(graph).edge_weights(weights).features(features).labels(&labels).train(&[0, 1, 4, 8]);
        let data = Dataset::from_arrays(arrays).unwrap();
        let attention = AttentionConfig { heads: 2, edge_weights: true, ..AttentionConfig::default() };
        for model in [Model::gcn(&[5, 4, 3]), Model::gat(&[5, 4, 3]).attention(attention)] {
            let peak = train(&model, &data, simulated(3), 1).peaks.into_iter().max().unwrap();
            for memory in [peak, peak / little] {
                // The default policy plans for seconds.
                let options = simulated(3).memory(MemoryPolicy::Lru).device_memory(ByteSize::b(memory));
                let parts = train(&model, &data, options.clone(), 3);
                assert_eq!(parts.tiles > 1, tiled && memory < peak);
                let of_rank = options.devices(Devices::sim(1));
                for curve in on_ranks(3, |ranks| train(&model, &data, of_rank.clone().ranks(ranks), 3)) {
                    assert_same_bits(&format!("{n} vertices, {memory} bytes"), &curve, &parts);
                    assert_eq!(curve.tiles, parts.tiles);
                }
            }
        }
    }
}

#[test]
fn ranks_add_slices_of_large_sums() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::gcn(&[data.feature_width(), 501, data.class_count()]);
    for count in [2, 3, 5] {
        let parts = train(&model, &data, simulated(count), 2);
        for curve in on_ranks(count, |ranks| train(&model, &data, simulated(1).ranks(ranks), 2)) {
            assert_same_bits(&format!("{count} ranks"), &curve, &parts);
        }
    }
}

#[test]
fn a_rank_may_have_several_devices_and_little_memory() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let peak = train(&model, &data, simulated(4), 1).peaks.into_iter().max().unwrap();
    for memory in [peak, peak / 2] {
        let options = |devices: usize| simulated(devices).device_memory(ByteSize::b(memory));
        let parts = train(&model, &data, options(4), 3);
        for curve in on_ranks(2, |ranks| train(&model, &data, options(2).ranks(ranks), 3)) {
            assert_same_bits(&format!("{memory} bytes"), &curve, &parts);
            assert_eq!(curve.tiles, parts.tiles);
        }
    }
}

#[test]
fn a_rank_may_have_nothing_to_do() {
    let data = Dataset::builtin("planted").unwrap();
    let (model, n) = (model("sage", &data), data.graph().vertex_count());
    let partition = Partition::Ranges(vec![0..0, 0..n / 3, n / 3..n, n..n]);
    let want = train(&model, &data, simulated(4).partition(partition.clone()), 3);
    for curve in on_ranks(4, |ranks| train(&model, &data, simulated(1).partition(partition.clone()).ranks(ranks), 3)) {
        assert_same_bits("an empty part", &curve, &want);
    }
}

#[test]
fn each_row_is_sent_once_to_each_part_that_reads_it() {
    each_row_is_sent_once(BackwardMode::Pull);
}

#[test]
fn each_sum_is_sent_once_to_the_owner_of_its_row() {
    each_row_is_sent_once(BackwardMode::Fold);
}

fn each_row_is_sent_once(mode: BackwardMode) {
    for data in datasets() {
        let model = Model::from_config(ModelConfig::new("gcn", &[data.feature_width(), 16, 3.max(data.class_count())]));
        let model = model.unwrap();
        let (count, epochs) = (4, 3);
        let options = || simulated(1).partition(Partition::parse("vertices").unwrap()).backward(mode);
        let of_ranks = on_ranks(count, |ranks| {
            let mut trainer = Trainer::builder(&model, &data).options(options().ranks(ranks.clone())).build().unwrap();
            let before = ranks.sent();
            (0..epochs).for_each(|_| assert!(trainer.step().unwrap().loss.is_finite()));
            assert_eq!(before[ranks.rank()], Sent::default());
            (trainer.parts().to_vec(), before, ranks.sent())
        });
        let dry_run = DryRun::new(&model, Subject::Data(&data)).options(options()).on_ranks(count, Network::default());
        let traffic = dry_run.run().unwrap().traffic.unwrap();
        let graph = data.graph();
        let parts = of_ranks[0].0.clone();
        // The rows of `owner` that `reader` reads, forward and in the transposed graph, counted one by one.
        let read = |owner: usize, reader: usize, transposed: bool| {
            let is_in = |v: usize, part: usize| (parts[part][0]..parts[part][1]).contains(&v);
            let mut rows = std::collections::BTreeSet::new();
            for v in 0..graph.vertex_count() {
                for &u in graph.sources(v) {
                    let (row, by) = if transposed { (v, u as usize) } else { (u as usize, v) };
                    if is_in(row, owner) && is_in(by, reader) {
                        rows.insert(row);
                    }
                }
            }
            rows.len() as u64
        };
        let once = of_ranks.iter().flat_map(|(_, before, _)| before);
        let once = once.fold([0, 0], |sum, sent| [sum[0] + sent.row_messages, sum[1] + sent.row_bytes]);
        assert!(once == [traffic.setup.messages, traffic.setup.bytes] && once[0] > 0, "{once:?} and {traffic:?}");
        for (rank, (_, before, after)) in of_ranks.iter().enumerate() {
            for to in (0..count).filter(|&to| to != rank) {
                let forward = read(rank, to, false);
                let folds = mode == BackwardMode::Fold && !graph.is_symmetric();
                let backward = if folds { read(to, rank, false) } else { read(rank, to, true) };
                // The first layer's gather is made once, in setup. An epoch has the second layer forward, in training
                // and in evaluation, and backward. Rows are 16 or as many numbers as there are classes, whichever is
                // less.
                let width = 16.min(3.max(data.class_count())) as u64;
                let bytes = epochs * 4 * width * (2 * forward + backward);
                let messages = epochs * (2 * u64::from(forward > 0) + u64::from(backward > 0));
                let (what, sent) = (format!("{}: {rank} to {to}", data.name()), after[to]);
                assert_eq!(sent.row_bytes - before[to].row_bytes, bytes, "{what}");
                assert_eq!(sent.row_messages - before[to].row_messages, messages, "{what}");
                // The dry run says the same.
                let planned = traffic.pairs.iter().find(|pair| (pair.0, pair.1) == (rank, to));
                let planned = planned.map(|pair| pair.2).unwrap_or_default();
                assert_eq!((epochs * planned.bytes, epochs * planned.messages), (bytes, messages), "{what}");
                assert_eq!(planned.rows, 2 * forward + backward, "{what}");
            }
        }
    }
}

#[test]
fn all_ranks_move_to_the_same_parts() {
    let data = Dataset::builtin("planted").unwrap();
    let (model, n) = (model("gcn", &data), data.graph().vertex_count());
    let splits = vec![(1, vec![0..n / 4, n / 4..n]), (3, vec![0..n / 2, n / 2..n])];
    for partition in [Partition::Replay(splits), Partition::default()] {
        let of_ranks = on_ranks(2, |ranks| {
            let options = simulated(1).partition(partition.clone()).ranks(ranks);
            let mut trainer = Trainer::builder(&model, &data).options(options).build().unwrap();
            let losses: Vec<f64> = (0..12).map(|_| trainer.step().unwrap().loss).collect();
            (losses, trainer.splits().to_vec(), trainer.weights().unwrap())
        });
        assert_eq!(of_ranks[0], of_ranks[1], "{partition}");
    }
}

#[test]
fn every_rank_gets_all_predictions() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gat", &data);
    let trainer = Trainer::builder(&model, &data).build().unwrap();
    let weights = trainer.weights().unwrap();
    let predictor = |options: RunOptions| Predictor::new(&model, weights.clone(), None).unwrap().options(options);
    let want = predictor(simulated(3)).run(&data).unwrap();
    for got in on_ranks(3, |ranks| predictor(simulated(1).ranks(ranks)).run(&data).unwrap()) {
        assert_eq!((got.logits, got.accuracy, got.parts), (want.logits.clone(), want.accuracy, want.parts.clone()));
    }
}

#[test]
fn a_run_is_resumed_on_other_ranks() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let dir = tempfile::tempdir().unwrap();
    let build = |ranks: Ranks| Trainer::builder(&model, &data).options(simulated(1).ranks(ranks)).build().unwrap();
    on_ranks(2, |ranks| {
        let mut trainer = build(ranks.clone());
        (0..3).for_each(|_| assert!(trainer.step().unwrap().loss.is_finite()));
        if ranks.is_first() {
            trainer.save(dir.path()).unwrap();
        }
    });
    let mut whole = build(Ranks::alone());
    let want: Vec<f64> = (0..6).map(|_| whole.step().unwrap().loss).collect();
    for count in [1, 2, 3] {
        for losses in on_ranks(count, |ranks| {
            let mut trainer = build(ranks);
            assert_eq!(trainer.resume(dir.path()).unwrap(), Some(3));
            (0..3).map(|_| trainer.step().unwrap().loss).collect::<Vec<_>>()
        }) {
            for (got, want) in losses.iter().zip(&want[3..]) {
                assert!((got - want).abs() <= 1e-5 * want, "{count} ranks: {got}, not {want}");
            }
        }
    }
}

/// Returns the error of each rank.
fn errors(count: usize, train: impl Fn(Ranks) -> lapidary::Result<()> + Sync) -> Vec<Error> {
    let start = Instant::now();
    let errors = on_ranks(count, |ranks| train(ranks).unwrap_err());
    // A rank that nobody tells would wait for ever. On a busy machine, the training itself takes some seconds.
    assert!(start.elapsed() < Duration::from_secs(120), "a rank waited for {:?}", start.elapsed());
    errors
}

#[test]
fn a_rank_that_fails_ends_the_job() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    // The devices of rank 1 cannot be opened; or the second time, when the parts move.
    for fails_at in [1, 2] {
        let of_ranks = errors(3, |ranks| {
            let (rank, opened) = (ranks.rank(), std::sync::atomic::AtomicU32::new(0));
            let devices = Devices::custom("mine", 1, ByteSize::mib(64), move |i, capacity_bytes| {
                let times = 1 + opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if rank == 1 && times == fails_at {
                    return Err(lapidary::kernels::Error::OutOfMemory { need_bytes: 1, have_bytes: 0 });
                }
                Ok(Box::new(SimDevice::new(&format!("mine:{i}"), None, capacity_bytes, SimSpeed::default())?))
            });
            let n = data.graph().vertex_count();
            let splits = vec![(1, vec![0..9, 9..n, n..n]), (3, vec![0..99, 99..n, n..n])];
            let options = RunOptions::new().devices(devices).partition(Partition::Replay(splits)).ranks(ranks);
            let mut trainer = Trainer::builder(&model, &data).options(options).build()?;
            (0..5).try_for_each(|_| trainer.step().map(drop))
        });
        for (rank, error) in of_ranks.iter().enumerate() {
            let text = error.to_string();
            match rank {
                1 => assert!(matches!(error, Error::Device { .. }), "{text}"),
                _ => assert!(matches!(error, Error::OtherRank { rank: 1, .. }) && text.contains("mine"), "{text}"),
            }
        }
    }
}

#[test]
fn ranks_with_other_devices_are_refused() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("gcn", &data);
    let of_ranks = errors(3, |ranks| {
        let devices = if ranks.rank() == 2 { 2 } else { 1 };
        Trainer::builder(&model, &data).options(simulated(devices).ranks(ranks)).build().map(drop)
    });
    for error in of_ranks {
        assert!(matches!(error, Error::RanksDiffer { rank: 2, .. }), "{error}");
    }
}

#[test]
fn the_network_is_measured_and_planned_with() {
    assert!(matches!(Ranks::alone().measure_links(), Err(Error::Alone)));
    // Each pair, and a ring.
    for (count, want) in [(2, 1), (3, 3), (9, 9)] {
        let of_ranks = on_ranks(count, |ranks| ranks.measure_links().unwrap());
        let links = &of_ranks[0];
        assert!(of_ranks.iter().all(|other| other == links));
        assert_eq!(links.len(), want);
        for link in links {
            let numbers = [link.latency_s, link.bytes_per_s];
            assert!(numbers.into_iter().all(|x| x.is_finite() && x > 0.0), "{link:?}");
        }
        let network = Network::of_links(links).unwrap();
        assert!(links.iter().any(|link| link.latency_s == network.latency_s));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("network.json");
        std::fs::write(&file, serde_json::to_string(&network).unwrap()).unwrap();
        let read: Network = file.to_str().unwrap().parse().unwrap();
        for (got, want) in [(read.latency_s, network.latency_s), (read.bytes_per_s, network.bytes_per_s)] {
            assert!((got - want).abs() <= 1e-12 * want, "{got}, not {want}");
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_measurement() {
    let of_ranks = errors(3, |ranks| {
        if ranks.rank() == 1 {
            let error = Error::WorkersGone;
            ranks.fail(&error);
            return Err(error);
        }
        ranks.measure_links().map(drop)
    });
    for rank in [0, 2] {
        assert!(matches!(of_ranks[rank], Error::OtherRank { rank: 1, .. }), "{}", of_ranks[rank]);
    }
}

#[test]
fn a_trace_has_a_process_for_each_rank() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |ranks| {
        let options = simulated(2).ranks(ranks.clone());
        let mut trainer = Trainer::builder(&model, &data).options(options).build().unwrap();
        let path = folder.path().join(format!("{}.json", ranks.rank()));
        let mut file = TraceFile::create(path, TraceFile::LIMIT_BYTES).unwrap();
        trainer.start_trace();
        assert!(trainer.step().unwrap().loss.is_finite());
        file.add(trainer.trace().unwrap()).unwrap();
        file.finish().unwrap();
    });
    let text = std::fs::read(folder.path().join("0.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 0..2u64 {
        let of_rank = || events.iter().filter(move |event| event["pid"] == rank);
        let names: Vec<_> = of_rank().filter(|event| event["name"] == "process_name").collect();
        let name = names[0]["args"]["name"].as_str().unwrap();
        assert!(names.len() == 1 && name.starts_with(&format!("rank {rank} on ")), "{name}");
        // Kernels ran on the first lane of both devices.
        for thread in [0, 3] {
            assert!(of_rank().any(|event| event["ph"] == "X" && event["tid"] == thread), "{rank}: {thread}");
        }
    }
    assert!(events.iter().all(|event| event["pid"].as_u64() < Some(2)));
}

#[test]
fn all_ranks_stop_where_numbers_are_not_finite() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let of_ranks = errors(2, |ranks| {
        let builder = Trainer::builder(&model, &data).options(simulated(1).ranks(ranks));
        let mut trainer = builder.optimizer(Adam::new(1e30)).build()?;
        (0..20).try_for_each(|_| trainer.step().map(drop))
    });
    let texts: Vec<String> = of_ranks.iter().map(ToString::to_string).collect();
    assert!(texts[0].contains("first appeared") && texts[0] == texts[1], "{texts:?}");
}
