//! The summary of a dataset, compared with known values.

use crate::common::shared;
use lapidary::dataset::{Arrays, Dataset, DegreeInfo, FeatureNorm, Info};
use ndarray::array;

#[test]
fn karate_in_numbers() {
    let info = Info::of(&Dataset::builtin("karate").unwrap());
    assert_eq!((info.vertices, info.edges, info.self_loops, info.duplicate_edges, info.isolated), (34, 156, 0, 0, 0));
    assert_eq!(info.degree, DegreeInfo { min: 1, median: 3.0, mean: 156.0 / 34.0, max: 17 });
    let features = info.features.unwrap();
    assert_eq!((features.kind, features.width, features.norm), ("sparse", 34, FeatureNorm::Row));
    assert!((features.density - 1.0 / 34.0).abs() < 1e-12);
    let labels = info.labels.unwrap();
    assert_eq!((labels.kind, labels.classes, labels.labelled, &labels.per_class[..]), ("single", 2, 34, &[17, 17][..]));
    let splits: Vec<_> = info.splits.iter().map(|s| (s.name, s.vertices, s.labelled, &s.per_class[..])).collect();
    assert_eq!(splits, [("train", 2, 2, &[1, 1][..]), ("val", 4, 4, &[2, 2]), ("test", 28, 28, &[14, 14])]);
}

#[test]
fn loops_repeats_and_loose_vertices_are_counted() {
    // 0 -> 1 three times, a loop at 2 (which has no other edge), no edge at 3, 4 -> 0.
    let edges = [(0, 1), (0, 1), (0, 1), (2, 2), (4, 0)];
    let arrays = Arrays::edges(5, &edges)
        .labels(&[1, -1, 0, 0, -1])
        .train(&[0, 1, 2])
        .features(array![[0.0f32], [1.0], [0.0], [2.0], [0.0]])
        .graph_ids(&[5, 5, 5, 8, 9]);
    let info = Info::of(&Dataset::from_arrays(arrays).unwrap());
    assert_eq!((info.self_loops, info.duplicate_edges, info.isolated, info.directed), (1, 2, 2, true));
    assert_eq!(info.degree, DegreeInfo { min: 0, median: 1.0, mean: 1.0, max: 3 });
    assert_eq!((info.features.unwrap().density, info.graphs), (0.4, Some(3)));
    assert_eq!((info.splits.len(), info.splits[0].vertices, info.splits[0].labelled), (1, 3, 2));
    assert_eq!(info.splits[0].per_class, [1, 1]);
    let multi = Arrays::edges(2, &[]).multi_labels(array![[1u8, 1], [0, 1]]).test(&[1]);
    let info = Info::of(&Dataset::from_arrays(multi).unwrap());
    assert_eq!(info.labels.unwrap().per_class, [1, 2]);
    assert_eq!(info.splits[0].per_class, [0, 1]);
}

#[test]
fn counts_are_the_same_on_any_number_of_threads() {
    let n = 3001i64;
    let labels: Vec<i64> = (0..n).map(|v| v * 7 % 6 - 1).collect();
    let split: [Vec<i64>; 3] = [0, 1, 2].map(|which| (0..n).filter(|v| v % 5 == which).collect());
    let [train, val, test] = &split;
    let arrays = Arrays::edges(n as usize, &[]).labels(&labels).classes(7).train(train).val(val).test(test);
    let data = Dataset::from_arrays(arrays).unwrap();
    let count = |ids: &mut dyn Iterator<Item = i64>| {
        let mut counts = vec![0; 7];
        ids.filter_map(|v| usize::try_from(labels[v as usize]).ok()).for_each(|class| counts[class] += 1);
        counts
    };
    for threads in [1, 2, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let info = pool.install(|| Info::of(&data));
        let all = info.labels.unwrap();
        assert_eq!((all.labelled, all.per_class), (labels.iter().filter(|&&y| y >= 0).count(), count(&mut (0..n))));
        for (found, ids) in crate::common::pairs(&info.splits, &split) {
            let want = count(&mut ids.iter().copied());
            let got = (found.vertices, found.labelled, found.per_class.clone());
            assert_eq!(got, (ids.len(), want.iter().sum(), want));
        }
    }
}

#[test]
fn labels_that_are_all_missing_are_labels() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set");
    Dataset::from_arrays(Arrays::edges(3, &[]).labels(&[-1, -1, -1]).train(&[1])).unwrap().write(&path).unwrap();
    let info = Info::of(&Dataset::open(&path).unwrap());
    assert_eq!((info.splits[0].vertices, info.splits[0].labelled), (1, 0));
    let labels = info.labels.unwrap();
    assert_eq!((labels.labelled, labels.classes), (0, 0));
}

#[test]
fn it_serialises() {
    let info = Info::of(&Dataset::builtin("karate").unwrap());
    let json = serde_json::to_value(&info).unwrap();
    assert_eq!((&json["degree"]["max"], &json["splits"][2]["name"]), (&17.into(), &"test".into()));
}

#[test]
fn the_shared_sets_are_as_published() {
    // vertices, edges, self-loops, isolated
    for (name, counts) in [
        ("cora", [2708, 10556, 0, 0]),
        ("citeseer", [3327, 9228, 124, 48]),
        ("soc-slashdot0902", [82168, 948464, 78303, 0]),
    ] {
        let Some(path) = shared(&format!("data/{name}")) else { continue };
        let info = Info::of(&Dataset::open(path).unwrap());
        assert_eq!([info.vertices, info.edges, info.self_loops, info.isolated], counts, "{name}");
    }
}

#[test]
fn skew_and_the_histogram_are_those_of_the_degrees() {
    // In-degrees 0, 0, 1, 3, 4: the differences over all pairs.
    let edges = [(0, 2), (0, 3), (1, 3), (2, 3), (0, 4), (1, 4), (2, 4), (3, 4)];
    let info = Info::of(&Dataset::from_arrays(Arrays::edges(5, &edges)).unwrap());
    let degrees = [0.0f64, 0.0, 1.0, 3.0, 4.0];
    let differences: f64 = degrees.iter().flat_map(|a| degrees.iter().map(move |b| (a - b).abs())).sum();
    assert!((info.skew.gini - differences / (2.0 * 5.0 * 8.0)).abs() < 1e-12);
    assert_eq!(info.skew.top_percent_share, 0.5);
    let ranges: Vec<_> = info.degree_histogram.iter().map(|r| (r.least, r.most, r.vertices)).collect();
    assert_eq!(ranges, [(0, 0, 2), (1, 1, 1), (2, 3, 1), (4, 7, 1)]);
    let none = Info::of(&Dataset::from_arrays(Arrays::edges(3, &[])).unwrap());
    assert_eq!((none.skew.gini, none.skew.top_percent_share), (0.0, 0.0));
    assert_eq!(none.degree_histogram.len(), 1);
    let planted = Dataset::builtin("planted").unwrap();
    let info = Info::of(&planted);
    assert_eq!(info.degree_histogram.iter().map(|range| range.vertices).sum::<usize>(), 3000);
    for range in &info.degree_histogram {
        let inside = (0..3000).filter(|&v| (range.least..=range.most).contains(&planted.graph().in_degree(v))).count();
        assert_eq!(range.vertices, inside);
    }
}

#[test]
fn the_printed_histogram_lines_up() {
    let done = assert_cmd::Command::cargo_bin("lapidary").unwrap().args(["data", "info", "builtin:planted"]).assert();
    let text = String::from_utf8(done.success().get_output().stdout.clone()).unwrap();
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.contains("in-degree  vertices")).collect();
    assert!(lines.len() > 5, "{text}");
    // Numbers end in the same column as their titles, and bars start in one column.
    for (title, end) in [("in-degree", 9), ("vertices", 19)] {
        assert!(lines[0][..end].ends_with(title), "{text}");
        assert!(lines[1..].iter().all(|line| line.as_bytes()[end - 1].is_ascii_digit()), "{text}");
        assert!(lines[1..].iter().all(|line| line.as_bytes()[end] == b' '), "{text}");
    }
    let bars: Vec<usize> = lines[1..].iter().filter_map(|line| line.find('#')).collect();
    assert!(bars.len() > 4 && bars.iter().all(|&at| at == bars[0]), "{text}");
}
