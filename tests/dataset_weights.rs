//! Edge weights: the file, the arrays, and what is refused.

use std::fs;
use std::path::Path;

use lapidary::dataset::{Arrays, Dataset, Info};
use lapidary::graph::Graph;
use proptest::prelude::*;

use crate::common::npy;

const EDGES: [(u32, u32); 6] = [(3, 0), (0, 1), (1, 1), (0, 1), (2, 3), (1, 0)];
const LISTED: [f32; 6] = [0.5, -2.0, 7.0, 3.0, 0.0, 1.5];
/// In the order of the rows: 1 -> 0, 3 -> 0, 0 -> 1 twice, 1 -> 1, 2 -> 3.
const SORTED: [f32; 6] = [1.5, 0.5, -2.0, 3.0, 7.0, 0.0];

fn weighted() -> Dataset {
    Dataset::from_arrays(Arrays::edges(4, &EDGES).edge_weights(LISTED.to_vec())).unwrap()
}

fn weights(data: &Dataset) -> Vec<f32> {
    data.edge_weights().expect("it has weights").to_vec()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    npy("<f4", &format!("({},)", values.len()), bytemuck::cast_slice(values))
}

/// Opens the dataset with another file of weights.
fn open_with(bytes: &[u8]) -> Result<Dataset, String> {
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("set");
    weighted().write(&set).unwrap();
    fs::write(set.join("edge_weights.npy"), bytes).unwrap();
    Dataset::open(&set).map_err(|e| e.to_string())
}

#[track_caller]
fn refused(bytes: &[u8], words: &[&str]) {
    let error = open_with(bytes).map(|_| ()).unwrap_err();
    for word in words.iter().chain(&["edge_weights.npy"]) {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn weights_of_a_list_follow_its_edges_into_the_rows() {
    assert_eq!(weights(&weighted()), SORTED);
    let graph = Graph::from_edges(4, &EDGES).unwrap();
    let (indptr, indices) = (graph.indptr().clone(), graph.indices().clone());
    for arrays in [Arrays::new(graph), Arrays::csr(indptr, indices)] {
        let data = Dataset::from_arrays(arrays.edge_weights(SORTED.to_vec())).unwrap();
        assert_eq!(weights(&data), SORTED);
        assert_eq!(data.fingerprint(), weighted().fingerprint());
    }
}

#[test]
fn weights_come_back_from_their_file_and_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("set");
    weighted().write(&set).unwrap();
    assert!(fs::read(set.join("edge_weights.npy")).unwrap().ends_with(bytemuck::cast_slice(&SORTED)));
    let data = Dataset::open(&set).unwrap();
    assert_eq!(weights(&data), SORTED);
    assert_eq!(data.fingerprint(), weighted().fingerprint());
    let plain = Dataset::from_arrays(Arrays::edges(4, &EDGES)).unwrap();
    assert_eq!(plain.fingerprint().differences(data.fingerprint()), ["edge_weights"]);
    let without = data.clone().without_edge_weights();
    assert!(without.edge_weights().is_none() && data.edge_weights().is_some());
    assert_eq!(without.fingerprint(), plain.fingerprint());
    let bare = dir.path().join("bare");
    without.write(&bare).unwrap();
    assert!(!bare.join("edge_weights.npy").exists());
    assert!(Dataset::open(&bare).unwrap().edge_weights().is_none());
    // A change of the file concerns only the dataset that uses it.
    fs::write(set.join("edge_weights.npy"), f32s(&[1.0; 6][..5])).unwrap();
    let error = data.check_files().unwrap_err().to_string();
    assert!(error.contains("edge_weights.npy has "), "{error}");
    without.check_files().unwrap();
}

#[test]
fn a_file_of_weights_that_does_not_fit_is_refused() {
    let good = f32s(&SORTED);
    assert!(open_with(&good).is_ok());
    for cut in 0..good.len() {
        refused(&good[..cut], &[]);
    }
    refused(&[&good[..], b"more"].concat(), &["4 bytes after its array"]);
    refused(&f32s(&SORTED[..5]), &["[5]", "[6] (one weight per edge)"]);
    refused(&f32s(&[]), &["[0]"]);
    refused(&npy("<f4", "(6, 1)", bytemuck::cast_slice(&SORTED)), &["[6, 1]", "[edges]"]);
    let wide = SORTED.map(f64::from);
    refused(&npy("<f8", "(6,)", bytemuck::cast_slice(&wide)), &["'<f8'", "float32"]);
    refused(&npy("<i4", "(6,)", bytemuck::cast_slice(&SORTED)), &["'<i4'", "float32"]);
    refused(b"1.0\n", &["not a .npy file"]);
}

#[test]
fn a_weight_that_is_not_finite_is_named_with_its_edge() {
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut bad = SORTED;
        bad[4] = value;
        refused(&f32s(&bad), &[&format!("edge 4: 1 -> 1 has the weight {word};")]);
        // The last edge, behind a row without edges.
        bad = SORTED;
        bad[5] = value;
        refused(&f32s(&bad), &[&format!("edge 5: 2 -> 3 has the weight {word};")]);
        // An edge of a list is counted in the list.
        bad = LISTED;
        bad[0] = value;
        let arrays = Arrays::edges(4, &EDGES).edge_weights(bad.to_vec());
        let error = Dataset::from_arrays(arrays).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`edge_weights`: edge 0: 3 -> 0 has the weight {word};")), "{error}");
    }
    let error = Dataset::from_arrays(Arrays::edges(4, &EDGES).edge_weights(vec![1.0; 7])).unwrap_err().to_string();
    assert!(error.contains("[7]") && error.contains("[6] (one weight per edge)"), "{error}");
}

#[test]
fn info_describes_the_weights() {
    let info = Info::of(&weighted()).edge_weights.unwrap();
    assert_eq!((info.min, info.max, info.mean), (-2.0, 7.0, 10.0 / 6.0));
    assert_eq!((info.negative, info.zero, info.symmetric), (1, 1, false));
    let both = [(0, 1), (1, 0), (1, 1)];
    let data =
        |weights: [f32; 3]| Dataset::from_arrays(Arrays::edges(2, &both).edge_weights(weights.to_vec())).unwrap();
    assert!(Info::of(&data([2.0, 2.0, 5.0])).edge_weights.unwrap().symmetric);
    let data = data([2.0, 1.0, 5.0]);
    assert!(!data.directed() && !Info::of(&data).edge_weights.unwrap().symmetric);
    let text = serde_json::to_value(Info::of(&data)).unwrap();
    assert_eq!(text["edge_weights"]["max"], 5.0);
    assert!(Info::of(&Dataset::builtin("karate").unwrap()).edge_weights.is_none());
    let none = Dataset::from_arrays(Arrays::edges(2, &[]).edge_weights(vec![])).unwrap();
    assert!(Info::of(&none).edge_weights.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_weights_come_back_as_they_went(
        list in proptest::collection::vec((0u32..9, 0u32..9, proptest::num::f32::NORMAL | proptest::num::f32::ZERO), 0..60),
    ) {
        let edges: Vec<(u32, u32)> = list.iter().map(|&(u, v, _)| (u, v)).collect();
        let values: Vec<f32> = list.iter().map(|&(_, _, x)| x).collect();
        let data = Dataset::from_arrays(Arrays::edges(9, &edges).edge_weights(values)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let set: &Path = &dir.path().join("set");
        data.write(set).unwrap();
        let back = Dataset::open(set).unwrap();
        prop_assert_eq!(weights(&back).iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                        weights(&data).iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        prop_assert_eq!(back.fingerprint(), data.fingerprint());
    }
}
