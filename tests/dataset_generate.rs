//! Generators: their promises, and the same bytes on any number of threads.

use std::collections::BTreeMap;

use lapidary::dataset::generate::{
    BterOptions, DegreeProfile, DegreeRow, PlantedOptions, RmatOptions, SplitSizes, bter, planted, rmat,
};
use lapidary::dataset::{Arrays, Dataset, Features, Info, Labels, TEST, TRAIN, VAL};

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
    // More than one chunk of every kind of draw.
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
        (PlantedOptions { mean_degree: f64::NAN, ..good() }, "mean_degree"),
        (PlantedOptions { mean_degree: 2000.0, ..good() }, "mean_degree"),
        (PlantedOptions { max_degree: 1.0, ..good() }, "max_degree"),
        (PlantedOptions { exponent: 1.0, ..good() }, "exponent"),
        (PlantedOptions { inside: 1.5, ..good() }, "inside"),
        (PlantedOptions { signal: f64::INFINITY, ..good() }, "signal"),
        (PlantedOptions { split: SplitSizes::Fractions { train: 0.9, val: 0.2, test: 0.0 }, ..good() }, "split"),
    ] {
        let error = planted(&bad).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    for (bad, word) in [
        (PlantedOptions { feature_width: usize::MAX, ..good() }, "option `feature_width` is 18446744073709551615"),
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
    assert!(error.to_string().contains("edge_factor"), "{error}");
}

fn like_karate_times(scale: f64, seed: u64) -> BterOptions {
    let profile = DegreeProfile::of(Dataset::builtin("karate").unwrap().graph()).unwrap();
    let (feature_width, classes) = (3, 4);
    BterOptions { feature_width, classes, seed, ..BterOptions::new(profile.scaled(scale).unwrap()) }
}

#[test]
fn a_bter_graph_is_the_same_on_any_number_of_threads() {
    let one = on_threads(1, || bytes(&bter(&like_karate_times(3000.0, 7)).unwrap()));
    let three = on_threads(3, || bytes(&bter(&like_karate_times(3000.0, 7)).unwrap()));
    assert!(one == three);
    assert!(one != bytes(&bter(&like_karate_times(3000.0, 8)).unwrap()));
}

/// Returns the clustering by degree, from all pairs of neighbours.
fn clustering_by_enumeration(data: &Dataset) -> BTreeMap<u64, (u64, f64)> {
    let graph = data.graph();
    let mut found: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for v in 0..graph.vertex_count() {
        let row = graph.sources(v);
        let closed = |&u: &u32| row.iter().filter(|&&w| w > u && graph.sources(u as usize).contains(&w)).count() as u64;
        let entry = found.entry(row.len() as u64).or_default();
        *entry = (entry.0 + 1, entry.1 + row.iter().map(closed).sum::<u64>());
    }
    let share = |(degree, (vertices, closed)): (u64, (u64, u64))| {
        let wedges = vertices * degree * degree.saturating_sub(1) / 2;
        (degree, (vertices, if wedges > 0 { closed as f64 / wedges as f64 } else { 0.0 }))
    };
    found.into_iter().map(share).collect()
}

#[test]
fn the_profile_of_a_graph_is_what_enumeration_finds() {
    for (name, tolerance) in [("karate", 1e-12), ("planted", 0.012)] {
        let data = Dataset::builtin(name).unwrap();
        let want = clustering_by_enumeration(&data);
        let profile = DegreeProfile::of(data.graph()).unwrap();
        assert_eq!(profile.rows().len(), want.len());
        for row in profile.rows() {
            let (vertices, clustering) = want[&row.degree];
            assert_eq!(row.vertices, vertices);
            assert!((row.clustering - clustering).abs() <= tolerance, "{name}: {row:?}, want {clustering}");
        }
        assert_eq!(profile.edges() as usize, data.graph().edge_count());
    }
    // Loops and repeats do not count as neighbours.
    let edges = [(0, 1), (1, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (0, 2), (2, 0)];
    let data = Dataset::from_arrays(Arrays::edges(3, &edges)).unwrap();
    let profile = DegreeProfile::of(data.graph()).unwrap();
    assert_eq!(profile.rows(), [DegreeRow { degree: 2, vertices: 3, clustering: 1.0 }]);
    let directed = Dataset::from_arrays(Arrays::edges(2, &[(0, 1)])).unwrap();
    let error = DegreeProfile::of(directed.graph()).unwrap_err().to_string();
    assert!(error.contains("`symmetrise`"), "{error}");
}

#[test]
fn a_bter_graph_has_the_degrees_and_the_clustering_that_were_asked_for() {
    // Power-law degrees up to 200, with clustering that falls from 0.6.
    let rows = (1..=200u64).map(|degree| DegreeRow {
        degree,
        vertices: (60_000.0 * (degree as f64).powf(-2.0)).round() as u64,
        clustering: if degree < 2 { 0.0 } else { 0.6 * (degree as f64 / 2.0).powf(-0.4) },
    });
    let want = DegreeProfile::new(rows.collect()).unwrap();
    let data = bter(&BterOptions::new(want.clone())).unwrap();
    let info = Info::of(&data);
    assert!(data.graph().is_symmetric() && !data.directed());
    assert_eq!((info.self_loops, info.duplicate_edges, info.vertices as u64), (0, 0, want.vertices()));
    let got = DegreeProfile::of(data.graph()).unwrap();
    assert!((got.edges() as f64 / want.edges() as f64 - 1.0).abs() < 0.02, "{} for {}", got.edges(), want.edges());
    // Vertices and closed pairs of neighbours, in ranges of degrees that double.
    let range = |profile: &DegreeProfile, low: u64| {
        let rows = profile.rows().iter().filter(|row| (low..2 * low).contains(&row.degree));
        rows.fold((0.0, 0.0, 0.0), |(vertices, wedges, closed), row| {
            let here = (row.vertices * row.degree * row.degree.saturating_sub(1)) as f64;
            (vertices + row.vertices as f64, wedges + here, closed + here * row.clustering)
        })
    };
    for low in [1, 2, 4, 8, 16, 32, 64] {
        let ((n, wedges, closed), (n_want, wedges_want, closed_want)) = (range(&got, low), range(&want, low));
        // Drawn degrees are spread around the wanted ones, which affects the lowest range most.
        let tolerance = if low == 2 { 0.25 } else { 0.15 };
        assert!((n / n_want - 1.0).abs() < tolerance, "degrees from {low}: {n} vertices for {n_want}");
        if low > 1 {
            let (c, c_want) = (closed / wedges, closed_want / wedges_want);
            assert!((c / c_want - 1.0).abs() < 0.25, "degrees from {low}: clustering {c} for {c_want}");
        }
    }
}

#[test]
fn a_profile_may_be_text_and_ends_are_met() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("degrees.txt");
    std::fs::write(&path, "# degree vertices clustering\n0, 5\n1 101\n\n3\t8\t1\n").unwrap();
    let profile = DegreeProfile::read(&path).unwrap();
    assert_eq!((profile.vertices(), profile.edges()), (114, 125));
    // A clustering of 1 gives cliques of 4 without excess edges. Vertices of degree 1 pair off, except for one.
    let data = bter(&BterOptions::new(profile.clone())).unwrap();
    let got = DegreeProfile::of(data.graph()).unwrap();
    let counts: Vec<_> = got.rows().iter().map(|row| (row.degree, row.vertices)).collect();
    assert_eq!(counts, [(0, 6), (1, 100), (3, 8)]);
    assert_eq!(profile.scaled(2.0).unwrap().vertices(), 228);
    let error = |text: &str| {
        std::fs::write(&path, text).unwrap();
        DegreeProfile::read(&path).unwrap_err().to_string()
    };
    assert!(error("1 2 3 4\n").contains("line 1"));
    assert!(error("1 -2\n").contains("line 1"));
    assert!(error("1 2\n1 3\n").contains("degree 1 twice"));
    assert!(error("2 2 1.5\n").contains("clustering 1.5"));
    assert!(error("").contains("at least one vertex"));
    assert!(error("4294967295 1 0\n").contains("4294967295"));
    let error = |scale: f64| profile.scaled(scale).unwrap_err().to_string();
    assert!(error(f64::NAN).contains("the scale") && error(1e-9).contains("at least one vertex"));
    let huge = DegreeProfile::new(vec![DegreeRow { degree: 2, vertices: u64::MAX, clustering: 0.0 }]).unwrap();
    let error = bter(&BterOptions::new(huge)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the number of vertices"), "{error}");
}

#[test]
fn the_command_makes_the_same_bter_files_again() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, seed: &str| {
        let dst = dir.path().join(name);
        let mut command = assert_cmd::Command::cargo_bin("lapidary").unwrap();
        command.args(["data", "generate", "bter"]).arg(&dst);
        command.args([
            "--like",
            "builtin:karate",
            "--scale",
            "50",
            "--classes",
            "3",
            "--features",
            "2",
            "--seed",
            seed,
            "--json",
        ]);
        let done = command.assert().success();
        let line: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!([&line["vertices"], &line["features"]["width"], &line["labels"]["classes"]], [34 * 50, 2, 3]);
        ["indptr", "indices", "features", "labels", "train"]
            .map(|file| std::fs::read(dst.join(format!("{file}.npy"))).unwrap())
    };
    assert!(make("one", "3") == make("two", "3"));
    assert!(make("three", "4") != make("four", "3"));
}
