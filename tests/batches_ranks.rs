//! Mini-batches on ranks: several processes train as one does with the same parts. Here, the ranks are threads of one
//! process; `ci/ranks` does the same over MPI.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::scripted::{Draw, scripted};
use crate::common::{hostile_graph, numbers};
use lapidary::dataset::generate::{PlantedOptions, planted};
use lapidary::model::ModelConfig;
use lapidary::partition::{VertexWeight, metis};
use lapidary::sample::{BatchKey, NeighborSampler, Sampler, Scratch, epoch_order};
use lapidary::{
    Accuracy, Adam, Arrays, Batches, ByteSize, Dataset, Devices, Epoch, Error, MemoryPolicy, Model, Partition,
    Position, Ranks, RunOptions, SeedShares, StorageType, Trainer,
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

pub(super) fn simulated(devices: usize, ranks: Ranks) -> RunOptions {
    RunOptions::new().devices(Devices::sim(devices)).partition(Partition::parse("edges").unwrap()).ranks(ranks)
}

pub(super) fn trainer(
    model: &Model,
    data: &Dataset,
    options: RunOptions,
    batches: Batches,
) -> lapidary::Result<Trainer> {
    Trainer::builder(model, data).options(options).optimizer(Adam::new(0.02)).seed(5).batches(batches).build()
}

/// Runs `work` on each of `count` ranks, and returns the results by rank.
pub(super) fn on_ranks<T: Send>(count: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = Ranks::threads(count).into_iter().map(|ranks| scope.spawn(move || work(ranks))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the bytes of all files of a checkpoint folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        match entry.path() {
            path if path.is_dir() => all.extend(files(&path).into_iter().map(|(of, b)| (format!("{name}/{of}"), b))),
            path => drop(all.insert(name, std::fs::read(path).unwrap())),
        }
    }
    all
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
    run.peaks = trainer.peak_device_bytes();
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

/// Returns a sampler that draws `left` shares of batches, and then fails or panics on rank 1.
fn failing(ranks: &Ranks, left: usize, panics: bool) -> impl Sampler + use<> {
    let (left, fails) = (AtomicUsize::new(left), ranks.rank() == 1);
    scripted("3,3", move |_, _| {
        let left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Err(_) if fails && panics => Draw::Panics,
            Err(_) if fails => Draw::Fails,
            _ => Draw::Some,
        }
    })
}

#[test]
fn a_rank_whose_sampler_fails_ends_the_job() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let start = Instant::now();
    // Four batches are drawn to learn their sizes. The first is drawn before the run, later ones in it.
    for (left, look_ahead, panics) in [(1, 2, false), (4, 0, false), (9, 0, true), (9, 1, true), (30, 3, false)] {
        let errors = on_ranks(3, |ranks| {
            let batches = Batches::new(16, failing(&ranks, left, panics)).look_ahead(look_ahead);
            let mut trainer = trainer(&model, &data, simulated(1, ranks), batches)?;
            (0..9).try_for_each(|_| trainer.step().map(drop))
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let (error, what) = (error.unwrap_err(), format!("rank {rank}, {left} batches before"));
            match rank {
                1 => assert!(matches!(error, Error::Batch { stage: "sampling", .. }), "{what}: {error}"),
                _ => assert!(matches!(error, Error::OtherRank { rank: 1, .. }), "{what}: {error}"),
            }
        }
    }
    assert!(start.elapsed() < Duration::from_secs(120), "a rank waited for {:?}", start.elapsed());
}

#[test]
fn all_ranks_stop_at_the_batch_where_numbers_are_not_finite() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let errors = on_ranks(2, |ranks| {
        let builder = Trainer::builder(&model, &data).options(simulated(1, ranks)).optimizer(Adam::new(1e30));
        let mut trainer = builder.batches(Batches::new(32, neighbors("3,3"))).build().unwrap();
        (0..5).find_map(|_| trainer.step().err()).expect("this learning rate diverges").to_string()
    });
    assert!(errors[0].contains("first appeared in step") && errors[0] == errors[1], "{errors:?}");
}

/// Returns the seeds of each part, chosen one part after the other.
type Shares = fn(&[u32], &[[usize; 2]]) -> Vec<Vec<u32>>;

fn is_in(part: [usize; 2], v: u32) -> bool {
    (part[0]..part[1]).contains(&(v as usize))
}

/// Each part has consecutive seeds of the batch.
fn consecutive(seeds: &[u32], parts: &[[usize; 2]]) -> Vec<Vec<u32>> {
    let end = |part: usize| seeds.len() * part / parts.len();
    (0..parts.len()).map(|part| seeds[end(part)..end(part + 1)].to_vec()).collect()
}

/// Each part has its own seeds.
fn own(seeds: &[u32], parts: &[[usize; 2]]) -> Vec<Vec<u32>> {
    parts.iter().map(|part| seeds.iter().copied().filter(|&v| is_in(*part, v)).collect()).collect()
}

/// Each part has as many seeds as if they were consecutive, and first its own ones.
fn balanced(seeds: &[u32], parts: &[[usize; 2]]) -> Vec<Vec<u32>> {
    let counts: Vec<usize> = consecutive(seeds, parts).iter().map(Vec::len).collect();
    let mut shares = own(seeds, parts);
    shares.iter_mut().zip(&counts).for_each(|(share, &count)| share.truncate(count));
    let taken: BTreeSet<u32> = shares.iter().flatten().copied().collect();
    let mut left = seeds.iter().copied().filter(|v| !taken.contains(v));
    for (share, count) in shares.iter_mut().zip(counts) {
        share.extend(left.by_ref().take(count - share.len()));
        share.sort_by_key(|v| seeds.iter().position(|seed| seed == v));
    }
    shares
}

/// Returns, for an epoch, the number of rows that each rank has to fetch: of each batch, the distinct vertices of the
/// shares of its parts that are neither among its own nor kept, counted one by one.
fn rows_to_fetch(
    data: &Dataset,
    sampler: &impl Sampler,
    size: usize,
    parts: &[[usize; 2]],
    devices: usize,
    kept: &BTreeSet<u32>,
    shares: Shares,
) -> Vec<u64> {
    let labels = data.labels().unwrap();
    let mut seeds: Vec<u32> = (0..data.graph().vertex_count())
        .filter(|&v| data.split()[v] == 1 && labels.is_labelled(v))
        .map(|v| v as u32)
        .collect();
    epoch_order(&mut seeds, 5, 1);
    let mut rows = vec![0; parts.len() / devices];
    for (number, seeds) in seeds.chunks(size).enumerate() {
        let key = BatchKey { seed: 5, epoch: 1, batch: number as u64 };
        let shares = shares(seeds, parts);
        for (rank, rows) in rows.iter_mut().enumerate() {
            let own = rank * devices..(rank + 1) * devices;
            let mut met = BTreeSet::new();
            for share in &shares[own.clone()] {
                met.extend(sampler.sample(data.graph(), share, key, &mut Scratch::default()).unwrap().vertices);
            }
            let is_own = |v: u32| parts[own.clone()].iter().any(|part| is_in(*part, v));
            *rows += met.into_iter().filter(|&v| !is_own(v) && !kept.contains(&v)).count() as u64;
        }
    }
    rows
}

#[test]
fn features_are_fetched_in_two_rounds_a_batch_and_each_row_once() {
    let data = Dataset::builtin("planted").unwrap();
    for (layers, ranks_and_devices) in [(1, [3, 1]), (2, [2, 2]), (3, [2, 1]), (4, [3, 1])] {
        let [count, devices] = ranks_and_devices;
        let widths = [&[data.feature_width()][..], &vec![6; layers - 1], &[data.class_count()]].concat();
        let model = Model::from_config(ModelConfig::new("sage", &widths)).unwrap();
        let (sampler, size) = (neighbors(&vec!["3"; layers].join(",")), 40);
        let of_ranks = on_ranks(count, |ranks| {
            let batches = Batches::new(size, sampler.clone());
            let mut trainer = trainer(&model, &data, simulated(devices, ranks), batches).unwrap();
            let stages = trainer.step().unwrap().stages.unwrap();
            (trainer.parts().to_vec(), stages)
        });
        let want = rows_to_fetch(&data, &sampler, size, &of_ranks[0].0, devices, &BTreeSet::new(), balanced);
        assert!(want.iter().all(|&rows| rows > 0));
        for ((_, stages), want) in of_ranks.iter().zip(want) {
            assert_eq!((stages.batches, stages.rounds), (4, 8), "{layers} layers");
            assert_eq!(stages.fetched_rows, want, "{layers} layers");
            assert_eq!(stages.fetched_bytes, want * (data.feature_width() as u64 * 4 + 4), "{layers} layers");
        }
        // One process fetches nothing.
        let mut alone = trainer(&model, &data, simulated(2, Ranks::alone()), Batches::new(size, sampler)).unwrap();
        let stages = alone.step().unwrap().stages.unwrap();
        assert_eq!((stages.rounds, stages.fetched_rows, stages.fetched_bytes), (0, 0, 0));
    }
}

#[test]
fn a_rank_reads_only_its_own_rows_of_the_features() {
    let (n, width) = (hostile_graph().vertex_count(), 5);
    // A rank has wrong features for the vertices of others.
    let of_rank = |own: std::ops::Range<usize>| {
        let mut features = Array2::from_shape_vec((n, width), numbers(width * n, 3)).unwrap();
        (0..n).filter(|v| !own.contains(v)).for_each(|v| features.row_mut(v).fill(1e6));
        let labels: Vec<i64> = (0..n as i64).map(|v| v % 3).collect();
        let train: Vec<i64> = (0..n as i64).step_by(2).collect();
        let arrays = Arrays::new(hostile_graph()).directed(true).features(features).labels(&labels);
        Dataset::from_arrays(arrays.train(&train).val(&[1, 3, 5])).unwrap()
    };
    let parts = vec![0..n / 4, n / 4..n / 4, n / 4..n];
    let options = |devices: usize, ranks: Ranks| simulated(devices, ranks).partition(Partition::Ranges(parts.clone()));
    let run = |data: &Dataset, options: RunOptions, kept: bool| {
        let model = model("gcn", data);
        let batches = Batches::new(7, neighbors("3,2"));
        let batches = if kept { batches.device_cache("40%".parse().unwrap()) } else { batches };
        let mut trainer = trainer(&model, data, options, batches).unwrap();
        let losses: Vec<f64> = (0..3).map(|_| trainer.step().unwrap().loss).collect();
        (losses, trainer.weights().unwrap().to_safetensors().unwrap())
    };
    let want = run(&of_rank(0..n), options(3, Ranks::alone()), false);
    for kept in [false, true] {
        for got in on_ranks(3, |ranks| run(&of_rank(parts[ranks.rank()].clone()), options(1, ranks), kept)) {
            assert_eq!(got, want);
        }
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
    let sparse = Dataset::from_arrays(arrays.sparse_features(indptr, columns, numbers(2 * n, 1), 7)).unwrap();
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

#[test]
fn a_rank_that_stops_computing_wakes_the_others_and_its_own_stages() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    for look_ahead in [0, 1, 4] {
        let ended = on_ranks(3, |ranks| {
            let batches = Batches::new(16, neighbors("3,3")).look_ahead(look_ahead);
            let rank = ranks.rank();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut trainer = trainer(&model, &data, simulated(1, ranks), batches)?;
                trainer.on_batch(move |number, _| assert!(rank != 2 || number < 4, "enough"));
                (0..3).try_for_each(|_| trainer.step().map(drop))
            }))
        });
        for (rank, ended) in ended.into_iter().enumerate() {
            match ended {
                Err(_) => assert_eq!(rank, 2),
                Ok(ended) => assert!(matches!(ended, Err(Error::OtherRank { rank: 2, .. })), "{rank}: {ended:?}"),
            }
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
fn kept_rows_are_those_that_are_not_fetched() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let (sampler, size) = (neighbors("4,3"), 50);
    let n = data.graph().vertex_count();
    // The rows that are kept, found by themselves: those that most of the batches of the epoch read, which is never
    // trained on; of those, the ones with the most out-edges.
    let labels = data.labels().unwrap();
    let mut seeds: Vec<u32> =
        (0..n as u32).filter(|&v| data.split()[v as usize] == 1 && labels.is_labelled(v as usize)).collect();
    epoch_order(&mut seeds, 5, u64::MAX);
    for count in [2, 3] {
        let trainer = |ranks: Ranks| {
            let batches = Batches::new(size, sampler.clone()).device_cache("25%".parse().unwrap());
            trainer(&model, &data, simulated(if ranks.count() > 1 { 1 } else { count }, ranks), batches).unwrap()
        };
        let parts = trainer(Ranks::alone()).parts().to_vec();
        let mut visits = vec![(0u32, 0u64); n];
        for (number, seeds) in seeds.chunks(size).enumerate() {
            let key = BatchKey { seed: 5, epoch: u64::MAX, batch: number as u64 };
            for share in balanced(seeds, &parts) {
                let drawn = sampler.sample(data.graph(), &share, key, &mut Scratch::default()).unwrap();
                drawn.vertices.iter().for_each(|&v| visits[v as usize].0 += 1);
            }
        }
        data.graph().indices().iter().for_each(|&u| visits[u as usize].1 += 1);
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|&v| std::cmp::Reverse(visits[v]));
        let kept: BTreeSet<u32> = order[..n / 4].iter().map(|&v| v as u32).collect();
        let of_ranks = on_ranks(count, |ranks| trainer(ranks).step().unwrap().stages.unwrap().fetched_rows);
        let [all, without] =
            [BTreeSet::new(), kept].map(|kept| rows_to_fetch(&data, &sampler, size, &parts, 1, &kept, balanced));
        assert!(all.iter().zip(&without).all(|(all, without)| 0 < *without && without < all));
        assert_eq!(of_ranks, without, "{count} ranks");
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
fn a_rank_that_fails_in_an_evaluation_or_between_batches_ends_the_job() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    for look_ahead in [0, 1, 4] {
        // Four batches of an evaluation are drawn to learn their sizes.
        for (left, panics) in [(4, false), (7, true), (9, false)] {
            let errors = on_ranks(3, |ranks| {
                let failing = failing(&ranks, left, panics);
                let batches = Batches::new(40, neighbors("3,3")).evaluation(failing).look_ahead(look_ahead);
                let mut trainer = trainer(&model, &data, simulated(1, ranks), batches)?;
                (0..9).try_for_each(|_| trainer.step().map(drop))
            });
            for (rank, error) in errors.into_iter().enumerate() {
                match (rank, error.unwrap_err()) {
                    (1, Error::Batch { stage: "sampling", .. }) | (0 | 2, Error::OtherRank { rank: 1, .. }) => {}
                    (_, error) => panic!("rank {rank}, {look_ahead} ahead, {left} batches before: {error}"),
                }
            }
        }
        let errors = on_ranks(3, |ranks| {
            let batches = Batches::new(16, neighbors("3,3")).evaluation(neighbors("3,3")).look_ahead(look_ahead);
            let mut trainer = trainer(&model, &data, simulated(1, ranks.clone()), batches)?;
            for call in 0..99 {
                if call == 3 && ranks.rank() == 2 {
                    let error = Error::Value { option: "batch", value: "3".into(), expected: "enough".into() };
                    ranks.fail(&error);
                    return Err(error);
                }
                trainer.step_batches(2)?;
            }
            Ok(())
        });
        for (rank, error) in errors.into_iter().enumerate() {
            match (rank, error.unwrap_err()) {
                (2, Error::Value { .. }) | (0 | 1, Error::OtherRank { rank: 2, .. }) => {}
                (_, error) => panic!("rank {rank}, {look_ahead} ahead: {error}"),
            }
        }
    }
}

#[test]
fn rows_in_memory_are_refused_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    Dataset::builtin("planted").unwrap().write(folder.path().join("data")).unwrap();
    let data = Dataset::open(folder.path().join("data")).unwrap();
    let model = model("sage", &data);
    for error in on_ranks(3, |ranks| {
        let batches = Batches::new(16, neighbors("3,3")).feature_cache("20%".parse().unwrap());
        trainer(&model, &data, simulated(1, ranks), batches).map(drop).unwrap_err()
    }) {
        assert!(matches!(&error, Error::Value { option: "feature_cache", .. }), "{error}");
        assert!(error.to_string().contains("with several ranks"), "{error}");
    }
}

#[test]
fn fewer_rows_are_fetched_if_seeds_are_where_their_vertices_are() {
    let options = PlantedOptions { vertices: 1200, classes: 12, ..PlantedOptions::default() };
    let plain = planted(&options).unwrap();
    let (sampler, size) = (neighbors("4,3"), 60);
    for count in [2, 3] {
        let parts = NonZeroU32::new(count as u32).unwrap();
        let found = metis::assign(plain.graph(), parts, metis::Objective::Volume, &[VertexWeight::Rows], 1).unwrap();
        let (order, ranges) = found.relabelling();
        let data = plain.relabelled(&order);
        let model = model("sage", &data);
        let run = |shares: SeedShares| -> (Vec<f64>, Vec<u64>) {
            let options = |ranks: Ranks| simulated(1, ranks).partition(Partition::Ranges(ranges.clone()));
            let of_ranks = on_ranks(count, |ranks| {
                let batches = Batches::new(size, sampler.clone()).seeds(shares);
                let epoch = trainer(&model, &data, options(ranks), batches).unwrap().step().unwrap();
                (epoch.loss, epoch.stages.unwrap().fetched_rows)
            });
            of_ranks.into_iter().unzip()
        };
        let pairs: Vec<[usize; 2]> = ranges.iter().map(|part| [part.start, part.end]).collect();
        let want = [consecutive as Shares, balanced, own]
            .map(|shares| rows_to_fetch(&data, &sampler, size, &pairs, 1, &BTreeSet::new(), shares));
        let got = [SeedShares::Balanced, SeedShares::Own].map(|shares| run(shares).1);
        assert_eq!(got, want[1..]);
        let [before, after, alone] = want.map(|rows| rows.iter().sum::<u64>());
        println!("{count} ranks fetch {before} rows if seeds are consecutive, {after} if balanced, {alone} if own");
        assert!(2 * after < before && alone < after, "{before}, {after}, {alone}");
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
