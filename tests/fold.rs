//! Sums that move backward over a directed graph in place of rows: the same results, and fewer rows.

use crate::common::curve::{self, Curve, assert_same};
use crate::common::{Tier, numbers};
use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::forecast::{DryRun, Forecast, Network, Subject};
use lapidary::model::ModelConfig;
use lapidary::{
    Adam, Arrays, BackwardMode, ByteSize, Dataset, Devices, ExchangeMode, Graph, Model, Partition, StorageType,
    Trainer, TrainerBuilder,
};
use ndarray::Array2;

const WIDTH: usize = 12;

fn model(name: &str) -> Model {
    Model::from_config(ModelConfig::new(name, &[WIDTH, 16, 5])).unwrap().dropout(0.5).heads(2)
}

fn dataset(graph: Graph, weighted: bool) -> Dataset {
    let (n, e) = (graph.vertex_count(), graph.edge_count());
    let labels: Vec<i64> = (0..n as i64).map(|v| v % 5).collect();
    let train: Vec<i64> = (0..n as i64).step_by(2).collect();
    let features = Array2::from_shape_vec((n, WIDTH), numbers(WIDTH * n, 3)).unwrap();
    let arrays = Arrays::new(graph).features(features).labels(&labels).train(&train);
    let weights: Vec<f32> = numbers(e, 7).into_iter().map(|x| x.abs() + 0.1).collect();
    Dataset::from_arrays(if weighted { arrays.edge_weights(weights) } else { arrays }).unwrap()
}

fn skewed(weighted: bool) -> Dataset {
    let options = RmatOptions { vertices: 700, directed: true, ..RmatOptions::default() };
    dataset(rmat(&options).unwrap().graph().clone(), weighted)
}

/// A vertex with an edge to every other one, and a ring.
fn hub(reversed: bool) -> Graph {
    let n = 90u32;
    let ring = (1..n).map(|v| (v, v % (n - 1) + 1));
    let edges: Vec<(u32, u32)> = (1..n).map(|v| (0, v)).chain(ring).collect();
    let turned = edges.iter().map(|&(u, v)| if reversed { (v, u) } else { (u, v) });
    Graph::from_edges(n as usize, &turned.collect::<Vec<_>>()).unwrap()
}

fn train(builder: TrainerBuilder<'_>) -> Curve {
    curve::train(Adam::new(0.01), builder.partition(Partition::parse("edges").unwrap()), 4)
}

#[test]
fn sums_train_as_rows_do() {
    trains_the_same(Tier::Quick);
}

#[test]
#[ignore = "full: the other models"]
fn sums_train_as_rows_do_in_every_model() {
    trains_the_same(Tier::Full);
}

fn trains_the_same(tier: Tier) {
    for weighted in [false, true] {
        let data = skewed(weighted);
        for &name in tier.models(&data) {
            let model = model(name);
            let whole = train(Trainer::builder(&model, &data));
            for (count, exchange) in
                [(2, ExchangeMode::Host), (5, ExchangeMode::Host), (3, ExchangeMode::Peer), (3, ExchangeMode::Staged)]
            {
                let run = |mode: BackwardMode| {
                    let devices = Devices::sim(count).exchange(exchange);
                    train(Trainer::builder(&model, &data).devices(devices).backward(mode))
                };
                let (pull, fold) = (run(BackwardMode::Pull), run(BackwardMode::Fold));
                let what = format!("{name}, weights: {weighted}, {count} devices over {exchange}");
                assert_same(&what, &fold, &whole);
                // Other bits show that something else ran. Attention is not folded.
                assert_eq!(fold.weights == pull.weights, name.starts_with("gat"), "{what}");
                assert_eq!(fold.tiles, 1);
            }
            let cpus = Trainer::builder(&model, &data).devices(Devices::cpus(3)).backward(BackwardMode::Fold);
            assert_same(name, &train(cpus), &whole);
        }
    }
}

#[test]
fn parts_that_are_empty_or_read_nothing_fold_too() {
    let data = dataset(hub(false), false);
    let model = model("gcn");
    let whole = train(Trainer::builder(&model, &data));
    for ranges in [vec![0..0, 0..1, 1..90, 90..90], vec![0..40, 40..90]] {
        let builder = Trainer::builder(&model, &data).devices(Devices::sim(ranges.len())).backward(BackwardMode::Fold);
        let got = curve::train(Adam::new(0.01), builder.partition(Partition::Ranges(ranges.clone())), 4);
        assert_same(&format!("{ranges:?}"), &got, &whole);
    }
}

fn planned(data: &Dataset, mode: BackwardMode, dtype: StorageType) -> Forecast {
    planned_in(ByteSize::gib(1), data, mode, dtype)
}

fn planned_in(memory: ByteSize, data: &Dataset, mode: BackwardMode, dtype: StorageType) -> Forecast {
    let model = model("gcn").dropout(0.0);
    let dry_run = DryRun::new(&model, Subject::Data(data)).backward(mode).dtype(dtype).evaluates(false);
    let dry_run = dry_run.partition(Partition::parse("vertices").unwrap()).profile("a100").device_memory(memory);
    dry_run.on_ranks(3, Network::default()).run().unwrap()
}

#[test]
fn what_moves_fewer_rows_is_chosen() {
    let rows = |forecast: &Forecast| forecast.traffic.as_ref().unwrap().epoch.rows;
    let folds = |forecast: &Forecast| forecast.policies[0].outcome.as_ref().unwrap().folds;
    for (reversed, fewer) in [(false, BackwardMode::Fold), (true, BackwardMode::Pull)] {
        let data = dataset(hub(reversed), false);
        let [auto, pull, fold] = [BackwardMode::Auto, BackwardMode::Pull, BackwardMode::Fold]
            .map(|mode| planned(&data, mode, StorageType::F32));
        let least = rows(&pull).min(rows(&fold));
        assert!(rows(&auto) == least && rows(&pull) != rows(&fold), "{} of {}", rows(&auto), rows(&pull));
        assert_eq!(folds(&auto), fewer == BackwardMode::Fold);
        assert_eq!([folds(&pull), folds(&fold)], [false, true]);
        // What does not fit would move the same rows.
        let nowhere = planned_in(ByteSize::b(1), &data, BackwardMode::Fold, StorageType::F32);
        assert!(nowhere.policies[0].outcome.is_err());
        assert_eq!(rows(&nowhere), rows(&fold));
    }
    // Sums of bf16 rows would be wider than the rows.
    let data = dataset(hub(false), false);
    assert!(!folds(&planned(&data, BackwardMode::Fold, StorageType::Bf16)));
    // On an undirected graph, the two are the same rows.
    let data = Dataset::builtin("karate").unwrap();
    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
    let plan = DryRun::new(&model, Subject::Data(&data)).devices(Devices::sim(3)).backward(BackwardMode::Fold);
    assert!(!folds(&plan.profile("a100").run().unwrap()));
}
