//! Datasets from arrays, written to a directory and read back, and the built-in datasets.

use std::fs;
use std::path::Path;

use lapidary::dataset::{Arrays, Dataset, Error, FeatureNorm, Features, Labels, NONE, TEST, TRAIN, VAL};
use lapidary_kernels::call::NO_LABEL;
use ndarray::{Array2, array, s};
use proptest::prelude::*;

/// Checks that two datasets are equal.
fn assert_same(a: &Dataset, b: &Dataset) {
    assert_eq!((a.name(), a.directed(), a.class_count()), (b.name(), b.directed(), b.class_count()));
    assert_eq!((a.source(), a.licence(), a.feature_norm()), (b.source(), b.licence(), b.feature_norm()));
    assert_eq!(a.graph().indptr()[..], b.graph().indptr()[..]);
    assert_eq!(a.graph().indices()[..], b.graph().indices()[..]);
    assert_eq!(a.split()[..], b.split()[..]);
    assert_eq!(a.graph_ids(), b.graph_ids());
    match (a.features(), b.features()) {
        (None, None) => {}
        (Some(Features::Dense(a)), Some(Features::Dense(b))) => {
            assert_eq!((a.rows(), a.width()), (b.rows(), b.width()));
            assert_eq!(a.data()[..], b.data()[..]);
        }
        (Some(Features::Sparse(a)), Some(Features::Sparse(b))) => {
            assert_eq!((a.rows(), a.width()), (b.rows(), b.width()));
            assert_eq!(a.indptr()[..], b.indptr()[..]);
            assert_eq!(a.indices()[..], b.indices()[..]);
            assert_eq!(a.values()[..], b.values()[..]);
        }
        (a, b) => panic!("{a:?} became {b:?}"),
    }
    match (a.labels(), b.labels()) {
        (None, None) => {}
        (Some(Labels::Class(a)), Some(Labels::Class(b))) => assert_eq!(a[..], b[..]),
        (Some(Labels::Multi { data: a, classes: m }), Some(Labels::Multi { data: b, classes: n })) => {
            assert_eq!((&a[..], m), (&b[..], n));
        }
        (a, b) => panic!("{a:?} became {b:?}"),
    }
}

fn there_and_back(data: &Dataset) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set");
    data.write(&path).unwrap();
    assert_same(data, &Dataset::open(&path).unwrap());
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["set"], "nothing is left beside the dataset");
}

#[test]
fn karate_is_zacharys() {
    let data = Dataset::load("builtin:karate").unwrap();
    let graph = data.graph();
    assert_eq!((graph.vertex_count(), graph.edge_count(), data.directed()), (34, 156, false));
    let degrees: Vec<u64> = (0..34).map(|v| graph.in_degree(v)).collect();
    let published =
        [16, 9, 10, 6, 3, 4, 4, 4, 5, 2, 3, 1, 2, 5, 2, 2, 2, 2, 2, 3, 2, 2, 2, 5, 3, 3, 2, 4, 3, 4, 4, 6, 12, 17];
    assert_eq!(degrees, published);
    assert_eq!((data.feature_width(), data.class_count()), (34, 2));
    assert_eq!([NONE, TRAIN, VAL, TEST].map(|which| data.split_size(which)), [0, 2, 4, 28]);
    let Some(Labels::Class(labels)) = data.labels() else { panic!("single labels") };
    assert_eq!((labels.iter().filter(|&&l| l == 0).count(), labels[0], labels[33]), (17, 0, 1));
    assert_eq!(data.default_feature_norm(), FeatureNorm::Row);
    assert_eq!(data.split()[..1], [TRAIN]);
    there_and_back(&data);
}

#[test]
fn the_built_in_planted_set_is_as_described() {
    let data = Dataset::builtin("planted").unwrap();
    assert_eq!((data.graph().vertex_count(), data.feature_width(), data.class_count()), (3000, 64, 7));
    assert_eq!([TRAIN, VAL, TEST].map(|which| data.split_size(which)), [140, 500, 1000]);
    let mean = data.graph().edge_count() as f64 / 3000.0;
    assert!((7.5..8.5).contains(&mean), "mean degree {mean}");
    assert_eq!(data.default_feature_norm(), FeatureNorm::None);
    there_and_back(&data);
    let error = Dataset::load("builtin:cora").unwrap_err();
    assert!(error.to_string().contains("`cora`"), "{error}");
}

#[test]
fn every_kind_of_array_comes_back_as_it_went() {
    let edges = [(0u32, 1u32), (1, 0), (2, 2), (4, 1), (4, 1)];
    let full = Arrays::edges(5, &edges)
        .name("small \"quoted\" é")
        .source("made up")
        .licence("CC0")
        .feature_norm(FeatureNorm::None)
        .features(Array2::from_shape_fn((5, 3), |(v, c)| v as f32 - 0.5 * c as f32))
        .labels(&[0, -1, 3, 1, -1])
        .train(&[4, 0])
        .val(&[1])
        .graph_ids(&[-3, 0, 0, 7, 7]);
    let data = Dataset::from_arrays(full).unwrap();
    assert!(data.directed());
    assert_eq!(data.class_count(), 4);
    assert_eq!((data.split_size(TRAIN), data.labelled_split_size(TRAIN)), (2, 1));
    let Some(Labels::Class(labels)) = data.labels() else { panic!("single labels") };
    assert_eq!(labels[..], [0, NO_LABEL, 3, 1, NO_LABEL]);
    there_and_back(&data);

    let topology = Dataset::from_arrays(Arrays::csr(vec![0u64, 1], vec![0u32])).unwrap();
    assert_eq!((topology.feature_width(), topology.class_count(), topology.directed()), (0, 0, false));
    there_and_back(&topology);

    let multi = Arrays::edges(2, &[]).multi_labels(array![[0u8, 1, 1], [0, 0, 0]]).train_mask(&[false, true]);
    let multi = Dataset::from_arrays(multi).unwrap();
    assert_eq!((multi.class_count(), multi.labelled_split_size(TRAIN)), (3, 1));
    there_and_back(&multi);
}

#[test]
fn matrices_of_any_layout_are_taken_as_they_read() {
    let whole = Array2::from_shape_fn((4, 6), |(v, c)| (10 * v + c) as f32);
    let want = |x: ndarray::ArrayView2<'_, f32>| x.iter().copied().collect::<Vec<_>>();
    let got = |arrays: Arrays| {
        let data = Dataset::from_arrays(arrays).unwrap();
        let Some(Features::Dense(dense)) = data.features() else { panic!("dense") };
        dense.data().to_vec()
    };
    let graph = || Arrays::edges(2, &[]);
    assert_eq!(got(graph().features(whole.slice(s![1..3, ..]))), want(whole.slice(s![1..3, ..])));
    assert_eq!(got(graph().features(whole.clone().slice_move(s![1..3, ..]))), want(whole.slice(s![1..3, ..])));
    assert_eq!(got(graph().features(whole.slice(s![1..3, 2..5]))), want(whole.slice(s![1..3, 2..5])));
    let turned = whole.slice(s![.., 1..3]).reversed_axes();
    assert_eq!(got(graph().features(turned.to_owned())), want(turned));
}

#[test]
fn rows_are_divided_by_their_sum() {
    let x = array![[1.0f32, 3.0], [0.0, 0.0], [2.0, -2.0], [1.0, -3.0]];
    let data = Dataset::from_arrays(Arrays::edges(4, &[]).features(x)).unwrap();
    let Features::Dense(dense) = data.features().unwrap().row_normalised() else { panic!("dense") };
    assert_eq!(dense.data()[..], [0.25, 0.75, 0.0, 0.0, 2.0, -2.0, -0.5, 1.5]);
    let sparse = Arrays::edges(3, &[]).sparse_features(vec![0u64, 2, 2, 3], vec![0u32, 3, 1], vec![1f32, 3.0, 5.0], 4);
    let data = Dataset::from_arrays(sparse).unwrap();
    let Features::Sparse(sparse) = data.features().unwrap().row_normalised() else { panic!("sparse") };
    assert_eq!(sparse.values()[..], [0.25, 0.75, 1.0]);
}

#[test]
fn a_directory_that_is_in_use_is_not_overwritten() {
    let data = Dataset::builtin("karate").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set");
    fs::create_dir(&path).unwrap();
    data.write(&path).unwrap();
    let before = fs::read(path.join("indices.npy")).unwrap();
    let other = Dataset::from_arrays(Arrays::edges(1, &[])).unwrap();
    let error = other.write(&path).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert_eq!(fs::read(path.join("indices.npy")).unwrap(), before);
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(other.write(&file).unwrap_err(), Error::Exists { .. }));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
    let nowhere = other.write(dir.path().join("no/such/parent")).unwrap_err();
    assert!(matches!(nowhere, Error::Io { .. }), "{nowhere}");
}

#[cfg(unix)]
#[test]
fn an_empty_directory_that_cannot_be_replaced_is_refused_before_the_work() {
    let data = Dataset::builtin("karate").unwrap();
    let error = Dataset::check_destination(".").unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "the working directory of tests is full: {error}");
    if Path::new("/dev/shm").is_dir() && fs::read_dir("/dev/shm").unwrap().next().is_none() {
        let error = Dataset::check_destination("/dev/shm").unwrap_err();
        assert!(error.to_string().contains("a mount point"), "{error}");
    }
    // Through a link, the dataset takes the place of the directory.
    let dir = tempfile::tempdir().unwrap();
    let (link, there) = (dir.path().join("link"), dir.path().join("there"));
    fs::create_dir(&there).unwrap();
    std::os::unix::fs::symlink(&there, &link).unwrap();
    data.write(&link).unwrap();
    assert!(link.is_symlink() && there.join("indices.npy").is_file());
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_that_takes_no_files_gives_one_error() {
    let data = Dataset::builtin("karate").unwrap();
    let error = data.write("/proc/set").unwrap_err();
    assert!(error.to_string().contains("/proc"), "{error}");
    assert!(!Path::new("/proc/set").exists());
}

#[cfg(unix)]
#[test]
fn a_written_dataset_has_the_permissions_of_a_directory() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("usual")).unwrap();
    Dataset::builtin("karate").unwrap().write(dir.path().join("set")).unwrap();
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("set"), mode("usual"));
}

#[test]
fn other_programs_files_are_read_and_ours_are_read_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set");
    Dataset::builtin("karate").unwrap().write(&path).unwrap();
    let indptr: ndarray::Array1<i64> = ndarray_npy::read_npy(path.join("indptr.npy")).unwrap();
    assert_eq!((indptr.len(), indptr[34]), (35, 156));
    let dense = Array2::from_shape_fn((34, 2), |(v, c)| (v * 2 + c) as f32);
    for sparse in ["features_indptr.npy", "features_indices.npy", "features_values.npy"] {
        fs::remove_file(path.join(sparse)).unwrap();
    }
    ndarray_npy::write_npy(path.join("features.npy"), &dense).unwrap();
    let text =
        fs::read_to_string(path.join("dataset.json")).unwrap().replace("\"feature_width\": 34", "\"feature_width\": 2");
    fs::write(path.join("dataset.json"), text).unwrap();
    let data = Dataset::open(&path).unwrap();
    assert_eq!(data.feature_width(), 2);
    assert_eq!(data.features().unwrap().stored(), 68);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_dataset_comes_back_as_it_went(
        n in 1usize..40,
        seed in any::<u64>(),
        width in 1usize..5,
        sparse in any::<bool>(),
        labelled in any::<bool>(),
    ) {
        // A simple generator suffices here.
        let mut state = seed | 1;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let count = draw(4 * n + 1);
        let edges: Vec<(u32, u32)> = (0..count).map(|_| (draw(n) as u32, draw(n) as u32)).collect();
        let mut arrays = Arrays::edges(n, &edges).name(format!("set {seed}"));
        if sparse {
            let mut offsets = vec![0u64];
            let mut columns = Vec::new();
            for _ in 0..n {
                columns.extend((0..width as u32).filter(|_| draw(2) == 0));
                offsets.push(columns.len() as u64);
            }
            let values: Vec<f32> = columns.iter().map(|_| draw(100) as f32 - 50.0).collect();
            arrays = arrays.sparse_features(offsets, columns, values, width);
        } else {
            arrays = arrays.features(Array2::from_shape_simple_fn((n, width), || draw(1000) as f32 / 7.0));
        }
        if labelled {
            let labels: Vec<i64> = (0..n).map(|_| draw(6) as i64 - 1).collect();
            arrays = arrays.labels(&labels).classes(6);
        }
        let places: Vec<usize> = (0..n).map(|_| draw(4)).collect();
        let ids = |which| (0..n as i64).filter(|&v| places[v as usize] == which).collect::<Vec<_>>();
        let data = Dataset::from_arrays(arrays.train(&ids(1)).val(&ids(2)).test(&ids(3))).unwrap();
        there_and_back(&data);
    }
}
