//! Mini-batches on ranks: which rows of features a rank fetches from others, counted one by one.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::batches_ranks::{model, neighbors, trainer};
use crate::common::ranks::{on_ranks, simulated};
use crate::common::{hostile_graph, numbers};
use lapidary::dataset::generate::{PlantedOptions, planted};
use lapidary::model::ModelConfig;
use lapidary::partition::{VertexWeight, metis};
use lapidary::sample::{BatchKey, Sampler, Scratch, epoch_order};
use lapidary::{Arrays, Batches, Dataset, Error, Model, Partition, Ranks, RunOptions, SeedShares};
use ndarray::Array2;

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
