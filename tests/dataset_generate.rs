//! Generators: what they promise, and the same bytes on any number of threads.

#![allow(clippy::unwrap_used)]

use lapidary::dataset::generate::{PlantedOptions, RmatOptions, SplitSizes, planted, rmat};
use lapidary::dataset::{Dataset, Features, Info, Labels, TEST, TRAIN, VAL};

fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

type Bytes = (Vec<u64>, Vec<u32>, Vec<u32>, Vec<u32>, Vec<u32>);

fn bytes(data: &Dataset) -> Bytes {
    let labels = match data.labels() {
        Some(Labels::Class(labels)) => labels.to_vec(),
        _ => Vec::new(),
    };
    let features = match data.features() {
        Some(Features::Dense(dense)) => dense.data().iter().map(|x| x.to_bits()).collect(),
        _ => Vec::new(),
    };
    (data.graph().indptr().to_vec(), data.graph().indices().to_vec(), labels, features, data.split().to_vec())
}

fn planted_options(seed: u64) -> PlantedOptions {
    // More than one chunk of everything.
    PlantedOptions { vertices: 40_000, feature_width: 3, seed, ..PlantedOptions::default() }
}

fn rmat_options(seed: u64) -> RmatOptions {
    RmatOptions { vertices: 30_000, classes: 4, feature_width: 3, seed, ..RmatOptions::default() }
}

#[test]
fn a_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let one = on_threads(1, || bytes(&planted(&planted_options(7)).unwrap()));
    let three = on_threads(3, || bytes(&planted(&planted_options(7)).unwrap()));
    assert!(one == three);
    assert!(one != bytes(&planted(&planted_options(8)).unwrap()));
    let one = on_threads(1, || bytes(&rmat(&rmat_options(7)).unwrap()));
    let three = on_threads(3, || bytes(&rmat(&rmat_options(7)).unwrap()));
    assert!(one == three);
    assert!(one != bytes(&rmat(&rmat_options(8)).unwrap()));
}

#[test]
fn a_planted_graph_is_simple_symmetric_labelled_and_skewed() {
    let options = planted_options(3);
    let data = planted(&options).unwrap();
    let graph = data.graph();
    let info = Info::of(&data);
    assert!(graph.is_symmetric() && !data.directed());
    assert_eq!((info.self_loops, info.duplicate_edges), (0, 0));
    assert!((info.degree.mean / options.mean_degree - 1.0).abs() < 0.05, "{:?}", info.degree);
    assert!(
        info.degree.max as f64 > 5.0 * info.degree.mean && info.degree.median < info.degree.mean,
        "{:?}",
        info.degree
    );
    let labels = info.labels.unwrap();
    assert_eq!((labels.classes, labels.labelled), (7, options.vertices));
    let fair = options.vertices / 7;
    assert!(labels.per_class.iter().all(|&count| count > fair * 9 / 10 && count < fair * 11 / 10), "{labels:?}");
    let Some(Labels::Class(labels)) = data.labels() else { panic!("single labels") };
    let inside: usize = (0..graph.vertex_count())
        .map(|v| graph.sources(v).iter().filter(|&&u| labels[u as usize] == labels[v]).count())
        .sum();
    let share = inside as f64 / graph.edge_count() as f64;
    assert!((share - options.inside).abs() < 0.02, "{share} of the edges are inside");
    assert_eq!([TRAIN, VAL, TEST].map(|which| data.split_size(which)), [140, 500, 1000]);
    assert!(info.splits[0].per_class.iter().all(|&count| count == 20));
}

#[test]
fn features_carry_the_signal_that_was_asked_for() {
    let options = PlantedOptions { vertices: 20_000, classes: 2, feature_width: 8, signal: 3.0, ..planted_options(5) };
    let data = planted(&options).unwrap();
    let (Some(Features::Dense(x)), Some(Labels::Class(y))) = (data.features(), data.labels()) else { panic!("dense") };
    let mut sums = [[0.0f64; 8]; 2];
    let mut counts = [0.0f64; 2];
    for (row, &label) in x.data().chunks_exact(8).zip(y.iter()) {
        counts[label as usize] += 1.0;
        for (sum, &x) in sums[label as usize].iter_mut().zip(row) {
            *sum += f64::from(x);
        }
    }
    let apart: f64 = (0..8).map(|c| (sums[0][c] / counts[0] - sums[1][c] / counts[1]).powi(2)).sum();
    // The sum of 8 squares of a normal variable of variance 2 * 3^2.
    assert!((20.0..500.0).contains(&apart), "{apart}");
    let total: f64 = x.data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
    let within = total - (0..2).map(|k| sums[k].iter().map(|s| s * s).sum::<f64>() / counts[k]).sum::<f64>();
    let variance = within / (20_000.0 * 8.0);
    assert!((variance - 1.0).abs() < 0.02, "the noise has variance {variance}");
}

#[test]
fn an_rmat_graph_is_simple_and_very_skewed() {
    let data = rmat(&rmat_options(3)).unwrap();
    let info = Info::of(&data);
    assert!(data.graph().is_symmetric());
    assert_eq!((info.self_loops, info.duplicate_edges, info.vertices), (0, 0, 30_000));
    assert!(info.degree.max as f64 > 30.0 * info.degree.mean, "{:?}", info.degree);
    assert_eq!([TRAIN, VAL, TEST].map(|which| data.split_size(which)), [18_000, 6_000, 6_000]);
    let directed = rmat(&RmatOptions { directed: true, ..rmat_options(3) }).unwrap();
    assert!(directed.directed() && !directed.graph().is_symmetric());
    let plain = rmat(&RmatOptions { classes: 0, feature_width: 0, ..rmat_options(3) }).unwrap();
    assert!(plain.labels().is_none() && plain.features().is_none());
    assert_eq!(plain.graph().indices()[..], data.graph().indices()[..], "extras do not change the graph");
}

#[test]
fn small_and_odd_sizes_work() {
    for vertices in [1, 2, 3, 5] {
        let mean_degree = (vertices as f64 - 1.0) / 2.0;
        let options = PlantedOptions { vertices, classes: 1, mean_degree, ..PlantedOptions::default() };
        assert_eq!(planted(&options).unwrap().graph().vertex_count(), vertices);
        let options = RmatOptions { vertices, edge_factor: 3.0, ..RmatOptions::default() };
        assert_eq!(rmat(&options).unwrap().graph().vertex_count(), vertices);
    }
    let none = PlantedOptions { mean_degree: 0.0, feature_width: 0, ..PlantedOptions::default() };
    assert_eq!(planted(&none).unwrap().graph().edge_count(), 0);
    let all = SplitSizes::Fractions { train: 1.0, val: 0.0, test: 0.0 };
    assert_eq!(planted(&PlantedOptions { split: all, ..PlantedOptions::default() }).unwrap().split_size(TRAIN), 3000);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let good = PlantedOptions::default;
    for (bad, word) in [
        (PlantedOptions { vertices: 0, ..good() }, "vertices"),
        (PlantedOptions { classes: 0, ..good() }, "classes"),
        (PlantedOptions { classes: 3001, ..good() }, "classes"),
        (PlantedOptions { mean_degree: f64::NAN, ..good() }, "mean degree"),
        (PlantedOptions { mean_degree: 2000.0, ..good() }, "mean degree"),
        (PlantedOptions { max_degree: 1.0, ..good() }, "greatest degree"),
        (PlantedOptions { exponent: 1.0, ..good() }, "exponent"),
        (PlantedOptions { inside: 1.5, ..good() }, "inside"),
        (PlantedOptions { signal: f64::INFINITY, ..good() }, "signal"),
        (PlantedOptions { split: SplitSizes::Fractions { train: 0.9, val: 0.2, test: 0.0 }, ..good() }, "split"),
    ] {
        let error = planted(&bad).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    for (bad, word) in [
        (PlantedOptions { feature_width: usize::MAX, ..good() }, "the number of features is 18446744073709551615"),
        (PlantedOptions { feature_width: 1_000_000_000_000, ..good() }, "needs 10.7 PiB"),
        (PlantedOptions { vertices: 4_294_967_294, mean_degree: 1e9, max_degree: 1e9, ..good() }, "host has"),
    ] {
        let error = planted(&bad).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("this host has"), "{error}");
    }
    for bad in [
        RmatOptions { vertices: 4_294_967_294, edge_factor: 1e6, ..RmatOptions::default() },
        RmatOptions { vertices: 1 << 24, edge_factor: 1e6, directed: true, ..RmatOptions::default() },
        RmatOptions { feature_width: usize::MAX / 4, ..RmatOptions::default() },
    ] {
        let error = rmat(&bad).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("this host has"), "{error}");
    }
    let error = rmat(&RmatOptions { quarters: [0.5; 4], ..RmatOptions::default() }).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("quarters"), "{error}");
    let error = rmat(&RmatOptions { edge_factor: -1.0, ..RmatOptions::default() }).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("edge factor"), "{error}");
}
