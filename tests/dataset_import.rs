//! Importers, compared with other programs' output for the same files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::common::{npy, shared};
use lapidary::dataset::import::{npz, planetoid};
use lapidary::dataset::{Dataset, Error, Features, Labels, TEST, TRAIN, VAL};
use proptest::prelude::*;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/planetoid")
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let file =
        |entry: fs::DirEntry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap());
    fs::read_dir(dir).unwrap().map(|entry| file(entry.unwrap())).collect()
}

/// Checks that the written files are the same, byte for byte.
fn assert_files(data: &Dataset, expected: &Path, name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let written = dir.path().join("set");
    data.write(&written).unwrap();
    let (got, mut want) = (files(&written), files(expected));
    if let Some(text) = want.get_mut("dataset.json") {
        *text = String::from_utf8(text.clone()).unwrap().replace("NAME", name).into_bytes();
    }
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    for (file, bytes) in &want {
        assert!(got[file] == *bytes, "{name}: {file} differs from {}", expected.display());
    }
}

#[test]
fn planetoid_files_of_every_protocol_give_the_same_set() {
    for name in ["p0", "p2", "p4", "p5", "old"] {
        let data = planetoid(&fixtures(), Some(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_files(&data, &fixtures().join("expected"), name);
        let by_prefix = planetoid(&fixtures().join(format!("ind.{name}")), None).unwrap();
        assert_eq!(by_prefix.name(), name);
        assert_eq!(planetoid(&fixtures().join(name), None).unwrap().name(), name);
    }
}

#[test]
fn planetoid_equals_the_shared_sets() {
    for name in ["cora", "citeseer"] {
        let (Some(raw), Some(known)) = (shared("data/raw/planetoid"), shared(&format!("data/{name}"))) else {
            continue;
        };
        let data = planetoid(&raw, Some(name)).unwrap();
        assert_files(&data, &known, name);
    }
}

fn copy_of(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with(&format!("ind.{name}.")) {
            fs::copy(&path, dir.path().join(file)).unwrap();
        }
    }
    dir
}

fn import_error(dir: &Path, name: Option<&str>) -> String {
    planetoid(dir, name).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn what_is_wrong_with_planetoid_files_is_said() {
    let error = import_error(&fixtures(), None);
    assert!(["old", "p0", "p2", "p4", "p5", "several"].iter().all(|part| error.contains(part)), "{error}");
    let empty = tempfile::tempdir().unwrap();
    assert!(import_error(empty.path(), None).contains("holds no Planetoid set"));
    let broken = |file: &str, bytes: Option<&[u8]>| {
        let dir = copy_of("p4");
        let path = dir.path().join(format!("ind.p4.{file}"));
        match bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = import_error(dir.path(), None);
        assert!(error.contains(&format!("ind.p4.{file}")), "{error}");
        error
    };
    for part in ["x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"] {
        if part != "graph" {
            assert!(broken(part, None).contains("missing"));
        }
    }
    assert!(broken("x", Some(b"cos\nsystem\n(S'true'\ntR.")).contains("`os.system`"));
    assert!(broken("ally", Some(b"\x80\x02N.")).contains("not a numpy array"));
    assert!(broken("allx", Some(b"\x80\x02N.")).contains("CSR matrix"));
    assert!(broken("graph", Some(b"\x80\x02N.")).contains("adjacency lists"));
    assert!(broken("graph", Some(b"\x80\x02}K\x01](K\xc8es.")).contains("vertex 200"));
    assert!(broken("test.index", Some(b"10\n7\neleven\n8\n")).contains("line 3"));
    assert!(broken("test.index", Some(b"10\n7\n7\n8\n")).contains("twice"));
    assert!(broken("test.index", Some(b"10\n7\n8\n")).contains("3 rows"));
    assert!(broken("test.index", Some(b"10\n7\n2\n8\n")).contains("id 2"));
    assert!(broken("test.index", Some(b"10\n7\n4000000000\n8\n")).contains("gaps"));
    let whole = fs::read(fixtures().join("ind.p4.allx")).unwrap();
    assert!(broken("allx", Some(&whole[..whole.len() / 2])).contains("pickle"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Changes or cuts bytes of real pickles: the result is an error or a dataset, never a panic.
    #[test]
    fn damaged_pickles_never_panic(
        which in 0usize..3,
        part in 0usize..7,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let name = ["old", "p0", "p4"][which];
        let part = ["x", "y", "tx", "ty", "allx", "ally", "graph"][part];
        let dir = copy_of(name);
        let path = dir.path().join(format!("ind.{name}.{part}"));
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, bytes).unwrap();
        let _ = planetoid(dir.path(), None);
    }
}

fn archive(path: &Path, deflate: bool, members: &[(&str, Vec<u8>)]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(path).unwrap());
    let method = if deflate { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in members {
        zip.start_file(format!("{name}.npy"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

fn le<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

type Members = Vec<(&'static str, Vec<u8>)>;

fn members() -> Members {
    vec![
        ("indptr", npy("<i8", "(4,)", &le(&[0i64, 2, 3, 4]))),
        ("indices", npy("<i4", "(4,)", &le(&[2i32, 1, 0, 0]))),
        ("x", npy("<f4", "(3, 2)", &le(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]))),
        ("y", npy("<i8", "(3,)", &le(&[0i64, 1, -1]))),
        ("train", npy("|b1", "(3,)", &[1, 0, 0])),
        ("val", npy("<i8", "(1,)", &le(&[2i64]))),
        ("meta", npy("<U3", "()", b"t\0\0\0w\0\0\0o\0\0\0")),
    ]
}

#[test]
fn an_archive_is_read_stored_or_deflated() {
    let dir = tempfile::tempdir().unwrap();
    for deflate in [false, true] {
        let path = dir.path().join("small.npz");
        archive(&path, deflate, &members());
        let data = npz(&path).unwrap();
        assert_eq!((data.name(), data.directed(), data.class_count()), ("small", false, 2));
        assert_eq!(data.graph().indices()[..], [1, 2, 0, 0], "rows are sorted");
        let Some(Features::Dense(x)) = data.features() else { panic!("dense") };
        assert_eq!(x.data()[..], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let Some(Labels::Class(y)) = data.labels() else { panic!("single labels") };
        assert_eq!(y[..], [0, 1, u32::MAX]);
        assert_eq!([TRAIN, VAL, TEST].map(|which| data.split_size(which)), [1, 1, 0]);
    }
}

#[test]
fn archives_may_use_the_other_number_types() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.npz");
    let halves = [0x3c00u16, 0xc000];
    archive(
        &path,
        true,
        &[
            ("indptr", npy("<i4", "(3,)", &le(&[0i32, 1, 2]))),
            ("indices", npy("<i8", "(2,)", &le(&[1i64, 1]))),
            ("x", npy("<f2", "(2, 1)", &le(&halves))),
            ("y", npy("|u1", "(2, 2)", &[0, 1, 1, 1])),
            ("test", npy("<i4", "(1,)", &le(&[1i32]))),
        ],
    );
    let data = npz(&path).unwrap();
    assert!(data.directed());
    let Some(Features::Dense(x)) = data.features() else { panic!("dense") };
    assert_eq!(x.data()[..], [1.0, -2.0]);
    assert!(matches!(data.labels(), Some(Labels::Multi { classes: 2, .. })));
}

#[test]
fn what_is_wrong_with_an_archive_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.npz");
    let error = |change: &dyn Fn(&mut Members)| {
        let mut members = members();
        change(&mut members);
        archive(&path, true, &members);
        let error = npz(&path).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("bad.npz"), "{error}");
        error.to_string()
    };
    assert!(error(&|m| drop(m.remove(0))).contains("[indptr]: is missing"));
    assert!(error(&|m| m[1].1 = npy(">i4", "(4,)", &[0; 16])).contains("big-endian"));
    assert!(error(&|m| m[1].1 = npy("<i4", "(4,)", &[0; 15])).contains("cut short"));
    assert!(error(&|m| m[1].1 = npy("<i4", "(4,)", &[0; 17])).contains("1 bytes after"));
    assert!(error(&|m| m[1].1 = npy("<i4", "(2, 2)", &[0; 16])).contains("[2, 2]"));
    assert!(error(&|m| m[1].1 = npy("<i4", "(4,)", &le(&[2i32, 1, -1, 0]))).contains("element 2 is -1"));
    assert!(error(&|m| m[1].1 = npy("<i4", "(4,)", &le(&[2i32, 1, 3, 0]))).contains("position 2 is 3"));
    assert!(error(&|m| m[0].1 = npy("<i8", "(4,)", &le(&[0i64, 3, 2, 4]))).contains("[indptr]"));
    assert!(error(&|m| m[2].1 = npy("<f4", "(2, 3)", &[0; 24])).contains("[x]"));
    assert!(error(&|m| m[2].1 = b"not an array".to_vec()).contains("\\x93NUMPY"));
    fs::write(&path, b"PK\x03\x04 no archive").unwrap();
    let broken = npz(&path).map(|_| ()).unwrap_err();
    assert!(broken.to_string().contains("not an archive"), "{broken}");
    assert!(matches!(npz(&dir.path().join("none.npz")), Err(Error::Missing { .. })));
}

#[test]
fn a_changed_byte_in_an_archive_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changed.npz");
    archive(&path, false, &members());
    let mut bytes = fs::read(&path).unwrap();
    let six = 6f32.to_le_bytes();
    let at = bytes.windows(4).position(|window| window == six).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = npz(&path).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("[x]"), "{error}");
}
