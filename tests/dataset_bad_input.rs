//! Datasets with one defect: the error names the file, the position and what was expected.

use std::fs;
use std::path::Path;

use lapidary::dataset::{Arrays, Dataset, Error};
use lapidary::graph::Graph;
use ndarray::Array2;

/// Returns a .npy file, padded as numpy does.
fn npy(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let width = (11 + text.len()).next_multiple_of(64) - 11;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((width as u16 + 1).to_le_bytes());
    bytes.extend(format!("{text:<width$}\n").as_bytes());
    bytes.extend(data);
    bytes
}

fn le<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn i64s(values: &[i64]) -> Vec<u8> {
    npy("<i8", false, &format!("({},)", values.len()), &le(values))
}

fn u32s(values: &[u32]) -> Vec<u8> {
    npy("<u4", false, &format!("({},)", values.len()), &le(values))
}

fn f32s(values: &[f32]) -> Vec<u8> {
    npy("<f4", false, &format!("({},)", values.len()), &le(values))
}

/// Returns a triangle and an isolated vertex. Rows 0: [1, 2], 1: [0, 2], 2: [0, 1], 3: [].
fn good(sparse: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let edges = [(1, 0), (2, 0), (0, 1), (2, 1), (0, 2), (1, 2)];
    let arrays =
        Arrays::edges(4, &edges).labels(&[0, 1, -1, 2]).train(&[0]).val(&[1]).test(&[3]).graph_ids(&[0, 0, 0, 1]);
    let arrays = if sparse {
        arrays.sparse_features(vec![0u64, 2, 2, 3, 3], vec![0u32, 4, 1], vec![1f32, 2.0, 3.0], 5)
    } else {
        arrays.features(Array2::from_elem((4, 5), 0.5))
    };
    Dataset::from_arrays(arrays).unwrap().write(dir.path().join("set")).unwrap();
    dir
}

/// Replaces or removes one file of the valid dataset, and opens it.
fn open_with(sparse: bool, file: &str, bytes: Option<Vec<u8>>) -> Result<Dataset, Error> {
    let dir = good(sparse);
    let path = dir.path().join("set").join(file);
    match bytes {
        Some(bytes) => fs::write(path, bytes).unwrap(),
        None => fs::remove_file(path).unwrap(),
    }
    Dataset::open(dir.path().join("set"))
}

/// Checks that the error names the file and contains all of `words`.
#[track_caller]
fn expect(file: &str, bytes: Option<Vec<u8>>, words: &[&str]) {
    let sparse = file.starts_with("features_");
    let error = open_with(sparse, file, bytes).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(file), "{error}");
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn the_good_set_opens() {
    for sparse in [false, true] {
        let dir = good(sparse);
        Dataset::open(dir.path().join("set")).unwrap();
    }
}

#[test]
fn a_missing_file() {
    for file in [
        "dataset.json",
        "indptr.npy",
        "indices.npy",
        "features_indptr.npy",
        "features_indices.npy",
        "features_values.npy",
    ] {
        expect(file, None, &["is missing"]);
    }
    let error = Dataset::open("/no/such/directory").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("/no/such/directory") && error.contains("is missing"), "{error}");
    // Optional files may be missing.
    for file in ["train.npy", "val.npy", "test.npy", "graph_ids.npy"] {
        open_with(false, file, None).unwrap();
    }
}

#[test]
fn a_directory_where_a_file_should_be() {
    let dir = good(false);
    let path = dir.path().join("set/indices.npy");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = Dataset::open(dir.path().join("set")).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("indices.npy"), "{error}");
    let cause = std::error::Error::source(&error).expect("a cause");
    assert!(cause.to_string().contains("not a plain file"), "{cause}");
}

#[test]
fn a_file_that_is_cut_short_at_any_byte() {
    let whole = i64s(&[0, 2, 4, 6, 6]);
    for len in 0..whole.len() {
        expect("indptr.npy", Some(whole[..len].to_vec()), &[]);
    }
    expect("indptr.npy", Some(whole[..whole.len() - 1].to_vec()), &["cut short", "40 bytes", "39"]);
    let mut long = whole;
    long.push(0);
    expect("indptr.npy", Some(long), &["1 bytes after"]);
}

#[test]
fn a_file_that_is_no_npy() {
    expect("labels.npy", Some(b"0 1 -1 2\n".to_vec()), &["not a .npy file", "NUMPY"]);
    expect("labels.npy", Some(Vec::new()), &["not a .npy file"]);
    expect("labels.npy", Some(b"\x93NUMPY\x09\x00".to_vec()), &["version is 9"]);
    let mut huge = b"\x93NUMPY\x02\x00".to_vec();
    huge.extend(u32::MAX.to_le_bytes());
    expect("labels.npy", Some(huge), &["header claims"]);
    // Nesting that would exhaust the stack of a recursive reader.
    let mut deep = b"\x93NUMPY\x01\x00\x60\xea".to_vec();
    deep.resize(deep.len() + 60_000, b'(');
    expect("labels.npy", Some(deep), &["not a plain array's"]);
    expect("labels.npy", Some(npy("<i8", false, "(18446744073709551615, 2)", &[])), &["cut short"]);
}

#[test]
fn a_wrong_dtype() {
    expect("indptr.npy", Some(npy("<i4", false, "(5,)", &[0; 20])), &["'<i4'", "expected int64"]);
    expect("indptr.npy", Some(npy(">i8", false, "(5,)", &[0; 40])), &["big-endian"]);
    expect("indices.npy", Some(npy("<f4", false, "(6,)", &[0; 24])), &["'<f4'", "uint32"]);
    expect("features.npy", Some(npy("<f8", false, "(4, 5)", &[0; 160])), &["'<f8'", "float32"]);
    expect("labels.npy", Some(npy("<i4", false, "(4,)", &[0; 16])), &["'<i4'", "int64"]);
    expect("train.npy", Some(npy("<i4", false, "(1,)", &[0; 4])), &["'<i4'", "int64"]);
    expect("features_values.npy", Some(npy("<f8", false, "(3,)", &[0; 24])), &["'<f8'", "float32"]);
    expect("graph_ids.npy", Some(npy("|O", false, "(4,)", &[0; 32])), &["'|O'"]);
}

#[test]
fn a_wrong_shape() {
    expect("indptr.npy", Some(npy("<i8", false, "(5, 1)", &[0; 40])), &["[5, 1]", "vertices + 1"]);
    expect("indices.npy", Some(npy("<u4", false, "(2, 3)", &[0; 24])), &["[2, 3]", "[edges]"]);
    expect("features.npy", Some(npy("<f4", false, "(5, 4)", &[0; 80])), &["[5, 4]", "4"]);
    expect("features.npy", Some(npy("<f4", false, "(20,)", &[0; 80])), &["[20]", "[4, columns]"]);
    expect("labels.npy", Some(i64s(&[0, 1, 2])), &["[3]", "4 rows"]);
    expect("labels.npy", Some(npy("<i8", false, "(2, 2)", &[0; 32])), &["[2, 2]", "[vertices]"]);
    expect("labels.npy", Some(npy("|u1", false, "(4,)", &[0; 4])), &["[vertices, classes]"]);
    expect("labels.npy", Some(npy("|u1", false, "(3, 3)", &[0; 9])), &["[3, 3]", "4 rows"]);
    expect("train.npy", Some(npy("|b1", false, "(3,)", &[0; 3])), &["[3]", "[4]"]);
    expect("graph_ids.npy", Some(i64s(&[0, 0])), &["[2]", "4 rows"]);
    expect("features_indptr.npy", Some(i64s(&[0, 2, 3])), &["[3]", "[5]"]);
    expect("features_values.npy", Some(f32s(&[1.0, 2.0])), &["[2]", "[3]"]);
}

#[test]
fn arrays_without_columns() {
    expect("features.npy", Some(npy("<f4", false, "(4, 0)", &[])), &["feature_width 5", "has 0"]);
    let dir = good(false);
    let set = dir.path().join("set");
    fs::write(set.join("dataset.json"), r#"{"name":"x","vertices":4,"edges":6,"directed":false}"#).unwrap();
    for descr in ["<f4", "<f2"] {
        fs::write(set.join("features.npy"), npy(descr, false, "(4, 0)", &[])).unwrap();
        let error = Dataset::open(&set).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("features.npy has shape [4, 0], expected [4, 1 or more columns]"), "{error}");
    }
    expect("labels.npy", Some(npy("|u1", false, "(4, 0)", &[])), &["[4, 0]", "1 or more classes"]);
    let none = Arrays::edges(2, &[]).sparse_features(vec![0u64; 3], Vec::<u32>::new(), Vec::<f32>::new(), 0);
    let error = Dataset::from_arrays(none).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("feature_width 0"), "{error}");
}

#[test]
fn a_path_that_is_empty() {
    for error in [Dataset::open(""), Dataset::load("")].map(|opened| opened.map(|_| ()).unwrap_err().to_string()) {
        assert_eq!(error, "the path of the dataset is empty, expected the name of a directory");
    }
    let error = Dataset::builtin("karate").unwrap().write("").unwrap_err();
    assert!(error.to_string().contains("is empty"), "{error}");
}

#[test]
fn fortran_order() {
    expect("features.npy", Some(npy("<f4", true, "(4, 5)", &[0; 80])), &["Fortran order", "C order"]);
    // A vector is the same in both orders.
    open_with(false, "labels.npy", Some(npy("<i8", true, "(4,)", &[0; 32]))).unwrap();
}

#[test]
fn offsets_that_are_none() {
    expect("indptr.npy", Some(i64s(&[1, 2, 4, 6, 6])), &["first offset is 1"]);
    expect("indptr.npy", Some(i64s(&[0, 4, 2, 6, 6])), &["position 2", "2", "less than the 4"]);
    expect("indptr.npy", Some(i64s(&[0, 2, -4, 6, 6])), &["element 2 is -4"]);
    expect("indptr.npy", Some(i64s(&[0, 2, 4, 6, 7])), &["last offset is 7", "6 edges"]);
    expect("indptr.npy", Some(i64s(&[])), &["offsets are empty"]);
    expect("indptr.npy", Some(i64s(&[0])), &["indptr.npy"]);
}

#[test]
fn sources_that_are_none() {
    expect("indices.npy", Some(u32s(&[1, 2, 0, 4, 0, 1])), &["position 3 is 4", "4 vertices"]);
    expect("indices.npy", Some(u32s(&[1, 2, 2, 0, 0, 1])), &["position 3 (row 1)", "less than the 2"]);
    expect("indices.npy", Some(npy("<i4", false, "(6,)", &le(&[1i32, 2, 0, -2, 0, 1]))), &["element 3 is -2"]);
    expect("indices.npy", Some(i64s(&[1, 2, 0, 1 << 40, 0, 1])), &["element 3 is 1099511627776", "0 to 3"]);
    // The same sources in each of the three types are the same graph.
    let plain = open_with(false, "indices.npy", Some(u32s(&[1, 2, 0, 2, 0, 1]))).unwrap();
    for same in [npy("<i4", false, "(6,)", &le(&[1i32, 2, 0, 2, 0, 1])), i64s(&[1, 2, 0, 2, 0, 1])] {
        let data = open_with(false, "indices.npy", Some(same)).unwrap();
        assert_eq!(data.graph().indices()[..], plain.graph().indices()[..]);
    }
}

#[test]
fn a_graph_without_vertices() {
    let dir = good(false);
    let set = dir.path().join("set");
    for file in ["features.npy", "labels.npy", "train.npy", "val.npy", "test.npy", "graph_ids.npy"] {
        fs::remove_file(set.join(file)).unwrap();
    }
    fs::write(set.join("indptr.npy"), i64s(&[0])).unwrap();
    fs::write(set.join("indices.npy"), u32s(&[])).unwrap();
    fs::write(set.join("dataset.json"), r#"{"name":"none","vertices":0,"edges":0,"directed":false}"#).unwrap();
    let error = Dataset::open(&set).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::EmptyGraph { .. }) && error.to_string().contains("indptr.npy"), "{error}");
    assert!(matches!(Dataset::from_arrays(Arrays::edges(0, &[])), Err(Error::EmptyGraph { .. })));
}

#[test]
fn features_that_are_not_finite() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = [0.5f32; 20];
        x[13] = bad;
        x[19] = bad;
        expect("features.npy", Some(npy("<f4", false, "(4, 5)", &le(&x))), &["row 2, column 3", &bad.to_string()]);
        expect("features_values.npy", Some(f32s(&[1.0, 2.0, bad])), &["row 2, column 1", &bad.to_string()]);
    }
    // The same for half floats: 0x7e00 is NaN.
    let mut half = [0x3c00u16; 20];
    half[6] = 0x7e00;
    expect("features.npy", Some(npy("<f2", false, "(4, 5)", &le(&half))), &["row 1, column 1", "NaN"]);
    half[6] = 0xc000;
    let data = open_with(false, "features.npy", Some(npy("<f2", false, "(4, 5)", &le(&half)))).unwrap();
    assert_eq!(data.feature_width(), 5);
}

#[test]
fn dense_and_sparse_features_together() {
    for extra in ["features_indptr.npy", "features_indices.npy", "features_values.npy"] {
        let error = open_with(false, extra, Some(f32s(&[1.0]))).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("features.npy") && error.contains(extra) && error.contains("remove"), "{error}");
    }
}

#[test]
fn sparse_features_that_are_no_csr() {
    expect("features_indices.npy", Some(u32s(&[0, 5, 1])), &["row 0", "column 5 at position 1", "feature width 5"]);
    expect("features_indices.npy", Some(u32s(&[4, 0, 1])), &["row 0", "column 0 at position 1", "more than the 4"]);
    expect("features_indices.npy", Some(u32s(&[3, 3, 1])), &["row 0", "column 3 at position 1", "strictly"]);
    expect("features_indptr.npy", Some(i64s(&[0, 2, 1, 3, 3])), &["element 2 is 1", "never fall"]);
    expect("features_indptr.npy", Some(i64s(&[1, 2, 2, 3, 3])), &["element 0 is 1"]);
    expect("features_indptr.npy", Some(i64s(&[0, 2, 2, 3, 4])), &["element 4 is 4", "expected 3"]);
    expect("features_indptr.npy", Some(i64s(&[0, -2, 2, 3, 3])), &["element 1 is -2"]);
}

#[test]
fn labels_out_of_range() {
    expect("labels.npy", Some(i64s(&[0, 1, 3, 2])), &["vertex 2 is 3", "0 to 2"]);
    expect("labels.npy", Some(i64s(&[0, 1, -1, -2])), &["vertex 3 is -2"]);
    expect("labels.npy", Some(i64s(&[0, 1, i64::MAX, 2])), &["vertex 2 is 9223372036854775807"]);
    expect(
        "labels.npy",
        Some(npy("|u1", false, "(4, 3)", &[0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])),
        &["element 4 is 2", "vertex 1, class 1"],
    );
    let error = Dataset::from_arrays(Arrays::edges(1, &[]).labels(&[u32::MAX])).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("4294967295"), "{error}");
}

#[test]
fn splits_that_are_none() {
    expect("train.npy", Some(i64s(&[4])), &["id 4 at position 0", "there are 4 (0 to 3)"]);
    expect("val.npy", Some(i64s(&[2, -1])), &["id -1 at position 1"]);
    expect("test.npy", Some(i64s(&[3, 2, 3])), &["vertex 3", "twice", "position 2"]);
    expect("val.npy", Some(i64s(&[2, 0])), &["overlapping splits", "vertex 0", "train.npy"]);
    expect("test.npy", Some(npy("|b1", false, "(4,)", &[0, 1, 0, 0])), &["overlapping splits", "vertex 1", "val.npy"]);
}

#[test]
fn graph_ids_that_fall() {
    expect("graph_ids.npy", Some(i64s(&[0, 2, 1, 1])), &["vertex 2 is 1", "less than the 2"]);
}

#[test]
fn a_description_that_does_not_fit() {
    let says = |text: &str, words: &[&str]| expect("dataset.json", Some(text.into()), words);
    let error = open_with(false, "dataset.json", Some(b"{ not json".to_vec())).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("dataset.json") && std::error::Error::source(&error).is_some());
    let error = open_with(false, "dataset.json", Some(br#"{"name":"x","vertices":4,"edges":6}"#.to_vec()))
        .map(|_| ())
        .unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("directed"), "{error}");
    says(r#"{"name":"x","vertices":5,"edges":6,"directed":false}"#, &["vertices 5", "indptr.npy has 4"]);
    says(r#"{"name":"x","vertices":4,"edges":7,"directed":false}"#, &["edges 7", "indices.npy has 6"]);
    says(
        r#"{"name":"x","vertices":4,"edges":6,"directed":false,"feature_width":3}"#,
        &["feature_width 3", "features.npy has 5"],
    );
    // The description may state more classes than the labels use, but not fewer.
    let text = r#"{"name":"x","vertices":4,"edges":6,"directed":true,"classes":2}"#;
    let error = open_with(false, "dataset.json", Some(text.into())).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("labels.npy") && error.contains("vertex 3 is 2"), "{error}");
    // Sizes that would exhaust memory.
    says(
        r#"{"name":"x","vertices":4,"edges":6,"directed":false,"classes":18446744073709551615}"#,
        &["classes 18446744073709551615", "supported"],
    );
    let text = r#"{"name":"x","vertices":4,"edges":6,"directed":false,"feature_width":4294967296}"#;
    let error = open_with(true, "dataset.json", Some(text.into())).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("feature_width 4294967296") && error.contains("32-bit"), "{error}");
    let text = r#"{"name":"x","vertices":4,"edges":6,"directed":false,"feature_width":4294967295}"#;
    let error = open_with(true, "dataset.json", Some(text.into())).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("feature_width 4294967295") && error.contains("at most 4294967294"), "{error}");
    // Optional keys may be missing, and unknown keys are ignored.
    let text = r#"{"name":"x","vertices":4,"edges":6,"directed":true,"feature_norm":"row","more":[1]}"#;
    let data = open_with(false, "dataset.json", Some(text.into())).unwrap();
    assert_eq!((data.class_count(), data.directed()), (3, true));
    let error = open_with(true, "dataset.json", Some(text.into())).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("feature_width") && error.contains("sparse"), "{error}");
}

#[test]
fn an_undirected_graph_without_a_reverse() {
    // 3 -> 0 has no reverse.
    let dir = good(false);
    let set = dir.path().join("set");
    fs::write(set.join("indices.npy"), u32s(&[1, 3, 0, 2, 0, 1])).unwrap();
    let error = Dataset::open(&set).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Asymmetric { .. }) && error.to_string().contains("dataset.json"), "{error}");
}

#[test]
fn arrays_are_named_when_there_are_no_files() {
    let message = |arrays: Arrays| Dataset::from_arrays(arrays).map(|_| ()).unwrap_err().to_string();
    assert!(message(Arrays::edges(2, &[(0, 2)])).contains("`edges`: the source at position 0 is 2"));
    assert!(message(Arrays::csr(vec![0u64, 2], vec![0u32])).contains("`indptr`"));
    assert!(message(Arrays::edges(2, &[]).labels(&[1])).contains("`labels` has shape [1]"));
    let graph = Graph::from_edges(2, &[]).unwrap();
    assert!(message(Arrays::new(graph).features(Array2::zeros((3, 1)))).contains("`features` has shape [3, 1]"));
    assert!(message(Arrays::edges(2, &[]).train(&[0]).test(&[0])).contains("both `train` and `test`"));
    assert!(message(Arrays::edges(2, &[(0, 1)]).directed(false)).contains("undirected"));
    assert!(message(Arrays::edges(2, &[]).classes(3)).contains("classes 3"));
}

/// Changes each byte of each file: the result is an error or a dataset, never a panic.
#[test]
fn no_changed_byte_makes_it_panic() {
    for sparse in [false, true] {
        let dir = good(sparse);
        let set = dir.path().join("set");
        let files: Vec<_> = fs::read_dir(&set).unwrap().map(|entry| entry.unwrap().path()).collect();
        for file in files {
            change_each_byte(&set, &file);
        }
    }
}

fn change_each_byte(set: &Path, file: &Path) {
    let whole = fs::read(file).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= if at % 2 == 0 { 0x81 } else { 0x10 };
        fs::write(file, changed).unwrap();
        let _ = Dataset::open(set);
    }
    fs::write(file, whole).unwrap();
}
