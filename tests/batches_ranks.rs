//! Mini-batches on ranks: several processes train as one does with the same parts. Here, the ranks are threads of one
//! process; `ci/ranks` does the same over MPI.

use std::collections::BTreeMap;

use crate::common::ranks::{files, on_ranks, simulated};
use crate::common::scripted::{Draw, scripted};
use crate::common::{hostile_graph, numbers};
use lapidary::model::ModelConfig;
use lapidary::sample::{BatchKey, NeighborSampler};
use lapidary::{
    Accuracy, Adam, Arrays, Batches, ByteSize, Dataset, Epoch, Error, MemoryPolicy, Model, Partition, Position, Ranks,
    RunOptions, SeedShares, StorageType, Trainer,
};
use ndarray::Array2;

pub(super) fn neighbors(fanouts: &str) -> NeighborSampler {
    NeighborSampler::new(fanouts.parse().unwrap())
}

/// A directed graph with repeated edges, self-loops, isolated vertices and edge weights.
pub(super) fn hostile() -> Dataset {
    let graph = hostile_graph();
    let (n, e) = (graph.vertex_count(), graph.edge_count());
    let labels: Vec<i64> = (0..n as i64).map(|v| if v % 11 == 5 { -1 } else { v % 3 }).collect();
    let [train, val] = [false, true].map(|val| (0..n as i64).filter(|v| (v % 4 == 1) == val).collect::<Vec<_>>());
    let features = Array2::from_shape_vec((n, 5), numbers(5 * n, 3)).unwrap();
    let weights: Vec<f32> = (0..e).map(|e| 0.25 + (e % 7) as f32).collect();
    let arrays = Arrays::new(graph).directed(true).edge_weights(weights);
    Dataset::from_arrays(arrays.features(features).labels(&labels).train(&train).val(&val)).unwrap()
}

pub(super) fn model(name: &str, data: &Dataset) -> Model {
    let config = ModelConfig::new(name, &[data.feature_width(), 8, data.class_count()]);
    Model::from_config(config).unwrap().dropout(0.3).heads(2)
}

pub(super) fn trainer(
    model: &Model,
    data: &Dataset,
    options: RunOptions,
    batches: Batches,
) -> lapidary::Result<Trainer> {
    Trainer::builder(model, data).options(options).optimizer(Adam::new(0.02)).seed(5).batches(batches).build()
}

/// What a run gives: losses, accuracies, what it copied, the sizes of its batches, and the files of its checkpoint.
#[derive(Debug, PartialEq)]
pub(super) struct Run {
    losses: Vec<f64>,
    accuracy: Option<f64>,
    copied: [u64; 2],
    peaks: Vec<u64>,
    /// The peaks of the plans for a batch, before the first epoch and after the last.
    planned_peaks: [Vec<u64>; 2],
    sizes: [u64; 3],
    files: BTreeMap<String, Vec<u8>>,
}

/// Returns the planned peak of each part in a batch.
fn peaks_of_batches(trainer: &Trainer) -> Vec<u64> {
    let explained = trainer.explain();
    let peaks = explained.lines().filter_map(|line| line.split_once(", peak ")?.1.strip_suffix(" bytes"));
    peaks.map(|peak| peak.parse().unwrap()).collect()
}

pub(super) fn train(model: &Model, data: &Dataset, options: RunOptions, batches: Batches, epochs: usize) -> Run {
    let mut trainer = trainer(model, data, options, batches).unwrap();
    let mut run = Run {
        losses: Vec::new(),
        accuracy: None,
        copied: [0; 2],
        peaks: Vec::new(),
        planned_peaks: [peaks_of_batches(&trainer), Vec::new()],
        sizes: [0; 3],
        files: BTreeMap::new(),
    };
    for _ in 0..epochs {
        let epoch = trainer.step().unwrap();
        let copied = [epoch.bytes_to_device, epoch.bytes_to_host];
        assert_eq!(copied, epoch.planned_bytes);
        let stages = epoch.stages.unwrap();
        run.losses.push(epoch.loss);
        (run.accuracy, run.copied) = (epoch.accuracy.unwrap().val, copied);
        run.sizes = [stages.batches, stages.vertices, stages.edges];
    }
    run.peaks = trainer.planned_peak_device_bytes();
    assert!(trainer.peak_device_bytes().iter().zip(&run.peaks).all(|(held, planned)| held <= planned));
    run.planned_peaks[1] = peaks_of_batches(&trainer);
    let folder = tempfile::tempdir().unwrap();
    trainer.save(folder.path()).unwrap();
    run.files = files(folder.path());
    assert!(run.files.len() > 4, "{:?}", run.files.keys());
    run
}

#[test]
fn ranks_train_on_batches_as_one_process_with_the_same_parts() {
    for data in [Dataset::builtin("planted").unwrap(), hostile()] {
        for name in ["gcn", "sage", "gat"] {
            let model = model(name, &data);
            let seeds = data.labelled_split_size(1);
            // A last batch that is smaller; one with a single seed, of which all ranks but one have none; one batch.
            for size in [seeds.div_ceil(3) + 1, seeds - 1, seeds] {
                for count in [1, 2, 3] {
                    let batches = || Batches::new(size, neighbors("4,3"));
                    let want = train(&model, &data, simulated(count, Ranks::alone()), batches(), 3);
                    let got = on_ranks(count, |ranks| train(&model, &data, simulated(1, ranks), batches(), 3));
                    for (rank, got) in got.iter().enumerate() {
                        assert_eq!(*got, want, "{name} on {}, rank {rank} of {count}, {size} seeds", data.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_rank_may_have_several_devices_and_any_look_ahead() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let batches = |look_ahead: usize| Batches::new(50, neighbors("4,3")).look_ahead(look_ahead);
    let want = train(&model, &data, simulated(4, Ranks::alone()), batches(2), 3);
    for look_ahead in [0, 1, 5] {
        // Each rank another one: it is of no concern to the others.
        let of_rank = |ranks: Ranks| batches(look_ahead * (1 - ranks.rank()));
        for got in on_ranks(2, |ranks| train(&model, &data, simulated(2, ranks.clone()), of_rank(ranks), 3)) {
            assert_eq!(got, want);
        }
    }
}

#[test]
fn more_ranks_than_seeds() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("gcn", &data);
    for size in [1, 2] {
        let batches = || Batches::new(size, neighbors("3,3"));
        let want = train(&model, &data, simulated(5, Ranks::alone()), batches(), 2);
        for got in on_ranks(5, |ranks| train(&model, &data, simulated(1, ranks), batches(), 2)) {
            assert_eq!(got, want);
        }
    }
}

#[test]
fn a_run_on_batches_is_resumed_on_ranks() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let batches = || Batches::new(40, neighbors("4,3"));
    let folder = tempfile::tempdir().unwrap();
    let mut whole = trainer(&model, &data, simulated(2, Ranks::alone()), batches()).unwrap();
    (0..2).for_each(|_| assert!(whole.step().unwrap().loss.is_finite()));
    whole.save(folder.path()).unwrap();
    let want: Vec<f64> = (0..2).map(|_| whole.step().unwrap().loss).collect();
    for got in on_ranks(2, |ranks| {
        let mut trainer = trainer(&model, &data, simulated(1, ranks), batches()).unwrap();
        assert_eq!(trainer.resume(folder.path()).unwrap(), Some(2));
        (0..2).map(|_| trainer.step().unwrap().loss).collect::<Vec<_>>()
    }) {
        assert_eq!(got, want);
    }
}

#[test]
fn all_ranks_plan_again_when_the_share_of_one_grows() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    for remainder in [0, 1, 2] {
        // One edge of each vertex is drawn, but all of them for some shares of later batches.
        let growing = move |seeds: &[u32], key: BatchKey| {
            let grows = key.batch >= 5 && seeds.first().is_some_and(|seed| seed % 3 == remainder);
            if grows { Draw::All } else { Draw::Some }
        };
        let batches = || Batches::new(12, scripted("1,1", growing));
        let free = train(&model, &data, simulated(3, Ranks::alone()), batches(), 2);
        let [before, after] = [0, 1].map(|i| free.planned_peaks[i].iter().copied().max().unwrap());
        assert!(after > before, "no batch was larger than planned");
        for memory in [None, Some(ByteSize(after * 14 / 15))] {
            let options = |devices: usize, ranks: Ranks| match memory {
                // The default policy plans for seconds.
                Some(memory) => simulated(devices, ranks).device_memory(memory).memory(MemoryPolicy::Lru),
                None => simulated(devices, ranks),
            };
            let want = train(&model, &data, options(3, Ranks::alone()), batches(), 2);
            assert_eq!(want.copied[1] > free.copied[1], memory.is_some());
            for got in on_ranks(3, |ranks| train(&model, &data, options(1, ranks), batches(), 2)) {
                assert_eq!(got, want);
            }
        }
        // All ranks find that it does not fit, in the same batch.
        let errors = on_ranks(3, |ranks| {
            let options = simulated(1, ranks).device_memory(ByteSize(after / 2)).memory(MemoryPolicy::Lru);
            let mut trainer = trainer(&model, &data, options, batches()).unwrap();
            (0..2).find_map(|_| trainer.step().err()).expect("the largest batch does not fit")
        });
        assert!(errors.iter().all(|error| matches!(error, Error::DoesNotFit { .. })), "{errors:?}");
    }
}

#[test]
fn sparse_and_bf16_features_give_the_same_bits_on_ranks() {
    let n = hostile_graph().vertex_count();
    let labels: Vec<i64> = (0..n as i64).map(|v| v % 3).collect();
    let train: Vec<i64> = (0..n as i64).step_by(2).collect();
    let indptr: Vec<u64> = (0..=n as u64).map(|v| 2 * v).collect();
    let columns: Vec<u32> = (0..n as u32).flat_map(|v| [v % 3, 3 + v % 4]).collect();
    let arrays = Arrays::new(hostile_graph()).directed(true).labels(&labels).train(&train).val(&[1, 3]);
    let sparse = Dataset::from_arrays(arrays.sparse_features(indptr, columns, numbers(2 * n, 1), 9)).unwrap();
    for (data, dtype) in [(sparse, StorageType::F32), (Dataset::builtin("planted").unwrap(), StorageType::Bf16)] {
        let model = model("sage", &data);
        let run = |options: RunOptions| {
            let builder = Trainer::builder(&model, &data).options(options).dtype(dtype);
            let mut trainer =
                builder.batches(Batches::new(data.split_size(1) / 3 + 1, neighbors("3,2"))).build().unwrap();
            let epochs: Vec<_> = (0..3).map(|_| trainer.step().unwrap()).collect();
            let losses: Vec<f64> = epochs.iter().map(|epoch| epoch.loss).collect();
            ((losses, trainer.weights().unwrap().to_safetensors().unwrap()), epochs[2].stages.unwrap())
        };
        let (want, _) = run(simulated(3, Ranks::alone()));
        for (got, stages) in on_ranks(3, |ranks| run(simulated(1, ranks))) {
            assert_eq!(got, want);
            // Sizes are told in one round; sparse features are not fetched.
            let rounds = if dtype == StorageType::F32 { 1 } else { 2 };
            assert_eq!(stages.rounds, rounds * stages.batches);
        }
    }
}

/// The loss of an epoch, its accuracy, and the bytes that it copied.
type Numbers = (f64, Option<Accuracy>, [u64; 2]);

/// Returns what does not depend on how many ranks there are: losses, accuracies, bytes copied, and the parameters.
fn numbers_of(trainer: &Trainer, epochs: &[Epoch]) -> (Vec<Numbers>, Vec<u8>) {
    let of_epoch = |epoch: &Epoch| {
        let copied = [epoch.bytes_to_device, epoch.bytes_to_host];
        assert_eq!(copied, epoch.planned_bytes);
        (epoch.loss, epoch.accuracy, copied)
    };
    (epochs.iter().map(of_epoch).collect(), trainer.weights().unwrap().to_safetensors().unwrap())
}

/// Batches with kept rows, if any, and a sampled evaluation.
fn combined(kept: &str, look_ahead: usize) -> Batches {
    let batches = Batches::new(50, neighbors("4,3")).evaluation(neighbors("3,2")).look_ahead(look_ahead);
    if kept.is_empty() { batches } else { batches.device_cache(kept.parse().unwrap()) }
}

#[test]
fn kept_rows_and_sampled_evaluations_give_the_same_bits_on_ranks() {
    let data = Dataset::builtin("planted").unwrap();
    for name in ["sage", "gat"] {
        let model = model(name, &data);
        let run = |options: RunOptions, batches: Batches| {
            let mut trainer = trainer(&model, &data, options, batches).unwrap();
            let epochs: Vec<Epoch> = (0..2).map(|_| trainer.step().unwrap()).collect();
            (numbers_of(&trainer, &epochs), epochs)
        };
        for count in [1, 2, 3] {
            let ((plain, weights), _) = run(simulated(count, Ranks::alone()), combined("", 2));
            for kept in ["", "1%", "30%", "100%"] {
                let (want, _) = run(simulated(count, Ranks::alone()), combined(kept, 2));
                let losses = |epochs: &[Numbers]| -> Vec<_> {
                    epochs.iter().map(|(loss, accuracy, _)| (*loss, *accuracy)).collect()
                };
                assert!(losses(&want.0) == losses(&plain) && want.1 == weights, "{name} {count} {kept}");
                for look_ahead in [0, 1, 4] {
                    let of_ranks = on_ranks(count, |ranks| run(simulated(1, ranks), combined(kept, look_ahead)));
                    for (got, epochs) in of_ranks {
                        assert!(got == want, "{name}, {count} ranks, {kept} kept, {look_ahead} ahead");
                        let rounds = if count > 1 { 2 } else { 0 };
                        for epoch in epochs {
                            let [train, eval] = [epoch.stages, epoch.eval_stages].map(Option::unwrap);
                            let seeds: usize = (1..=3).map(|split| data.labelled_split_size(split)).sum();
                            assert_eq!(eval.batches, seeds.div_ceil(50) as u64);
                            assert_eq!([train, eval].map(|s| s.rounds), [train, eval].map(|s| rounds * s.batches));
                            let fetches = count > 1 && kept != "100%";
                            assert_eq!([train, eval].map(|s| s.fetched_rows > 0), [fetches; 2]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_go_on_within_an_epoch() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let folder = tempfile::tempdir().unwrap();
    let build = |devices: usize, ranks: Ranks| {
        let batches = Batches::new(20, neighbors("4,3")).evaluation(neighbors("3,2"));
        let batches = batches.device_cache("20%".parse().unwrap());
        trainer(&model, &data, simulated(devices, ranks), batches).unwrap()
    };
    let finish = |trainer: &mut Trainer| -> Vec<_> {
        (0..2).map(|_| trainer.step().unwrap()).map(|epoch| (epoch.loss, epoch.accuracy)).collect()
    };
    for (count, stop) in [(1, 3), (2, 1), (2, 6), (3, 4)] {
        let dir = folder.path().join(format!("{count} {stop}"));
        let mut whole = build(count, Ranks::alone());
        whole.step().unwrap();
        let want = (finish(&mut whole), whole.weights().unwrap());
        // Stopped on ranks: rank 0 writes, as the command does.
        on_ranks(count, |ranks| {
            let is_first = ranks.is_first();
            let mut trainer = build(1, ranks);
            trainer.step().unwrap();
            for batches in [1, stop - 1].into_iter().filter(|batches| *batches > 0) {
                assert_eq!(trainer.step_batches(batches).unwrap(), None);
            }
            let snapshot = trainer.snapshot().unwrap();
            if is_first {
                snapshot.save(&dir).unwrap();
            }
        });
        let resumed = |trainer: &mut Trainer| {
            assert_eq!(trainer.resume(&dir).unwrap(), Some(1));
            assert_eq!(trainer.position(), Position { epoch: 1, batch: stop });
            (finish(trainer), trainer.weights().unwrap())
        };
        for got in on_ranks(count, |ranks| resumed(&mut build(1, ranks))) {
            assert!(got == want, "{count} ranks, after {stop} batches");
        }
        assert!(resumed(&mut build(count, Ranks::alone())) == want);
        // On another number of ranks, it goes on as one process does with as many parts.
        for others in [1, 2, 3] {
            let want = resumed(&mut build(others, Ranks::alone()));
            for got in on_ranks(others, |ranks| resumed(&mut build(1, ranks))) {
                assert!(got == want, "from {count} to {others} ranks, after {stop} batches");
            }
        }
    }
}

#[test]
fn unequal_and_empty_shares_have_the_loss_of_one_device() {
    for data in [Dataset::builtin("planted").unwrap(), hostile()] {
        let n = data.graph().vertex_count();
        let config = ModelConfig::new("sage", &[data.feature_width(), 8, data.class_count()]);
        let model = Model::from_config(config).unwrap();
        let losses = |options: RunOptions, shares: SeedShares| -> Vec<f64> {
            let batches = Batches::new(7, neighbors("4,3")).evaluation(neighbors("3,2")).seeds(shares);
            let mut trainer = trainer(&model, &data, options, batches).unwrap();
            (0..2).map(|_| trainer.step().unwrap().loss).collect()
        };
        let want = losses(simulated(1, Ranks::alone()), SeedShares::Own);
        assert_eq!(want, losses(simulated(1, Ranks::alone()), SeedShares::Balanced));
        for parts in [vec![0..n / 2, n / 2..n], vec![0..n - 9, n - 9..n - 9, n - 9..n], vec![0..0, 0..n, n..n]] {
            for shares in [SeedShares::Balanced, SeedShares::Own] {
                let options = |devices: usize, ranks: Ranks| {
                    simulated(devices, ranks).partition(Partition::Ranges(parts.clone()))
                };
                let alone = losses(options(parts.len(), Ranks::alone()), shares);
                for (loss, want) in alone.iter().zip(&want) {
                    assert!((loss - want).abs() < 1e-4 * want, "{parts:?}, {shares}: {loss}, not {want}");
                }
                for got in on_ranks(parts.len(), |ranks| losses(options(1, ranks), shares)) {
                    assert_eq!(got, alone, "{parts:?}, {shares}");
                }
            }
        }
    }
}
