//! Helpers of the fuzz targets: files in memory, small valid inputs, and what must hold of anything that a reader accepts.
//!
//! A target writes the fuzzer's bytes to a file, or to one file of a folder that is otherwise valid, and calls the
//! function that users call. An error is fine. A panic, a hang or a large allocation is a finding, and so is an accepted
//! input that cannot be written and read again.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lapidary::dataset::Info;
use lapidary::dataset::import::{Format, Imported, Options, import};
use lapidary::{Arrays, Dataset};
use ndarray::Array2;

/// Returns a folder of this process alone, in memory if the system has such a place. `ci/fuzz` names it and removes it.
pub fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
    SCRATCH.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let parent = match std::env::var_os("LAPIDARY_FUZZ_SCRATCH") {
            Some(named) => named.into(),
            None if memory.is_dir() => memory.into(),
            None => std::env::temp_dir(),
        };
        let folder = parent.join(format!("lapidary-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the folder for files can be made");
        folder
    })
}

/// Writes a file of the scratch folder, and returns its path.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    fs::write(&path, bytes).expect("a file can be written to the scratch folder");
    path
}

/// Returns the path of a test fixture.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

/// Returns the bytes as gzip.
pub fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).expect("memory takes it");
    gz.finish().expect("memory takes it")
}

/// A folder with valid files, of which one at a time is replaced.
pub struct Folder {
    /// The folder.
    pub path: PathBuf,
    /// The names of its files, relative to it, in order, and their contents.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Folder {
    /// Copies a folder into the scratch folder, under a name.
    pub fn copy(from: &Path, name: &str) -> Self {
        let path = scratch().join(name);
        let mut files = Vec::new();
        collect(from, from, &mut files);
        files.sort();
        for (name, bytes) in &files {
            let to = path.join(name);
            fs::create_dir_all(to.parent().expect("it is in the folder")).expect("a folder can be made");
            fs::write(to, bytes).expect("a file can be written");
        }
        Self { path, files }
    }

    /// Runs `with` while a file has other contents.
    pub fn with<R>(&self, which: usize, bytes: &[u8], with: impl FnOnce(&Path) -> R) -> R {
        let (name, whole) = &self.files[which];
        let path = self.path.join(name);
        fs::write(&path, bytes).expect("a file can be written");
        let result = with(&self.path);
        fs::write(&path, whole).expect("a file can be written");
        result
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder is there").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned();
            files.push((name, fs::read(&path).expect("the file is there")));
        }
    }
}

/// Returns a small dataset with dense features and classes.
pub fn dense() -> Dataset {
    let features = Array2::from_shape_fn((6, 3), |(v, i)| (v * 3 + i) as f32 / 4.0);
    let edges = [(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3), (5, 0), (0, 5), (2, 2)];
    let arrays = Arrays::edges(6, &edges).name("dense").directed(false).features(features);
    let arrays = arrays.labels(&[0i64, 1, 0, 1, -1, 2]).classes(3).train(&[0i64, 1]).val(&[2i64]).test(&[3i64, 5]);
    Dataset::from_arrays(arrays.source("a test").licence("none")).expect("it is valid")
}

/// Returns a small directed dataset with edge weights, sparse features, several labels per vertex, and several graphs.
pub fn sparse() -> Dataset {
    let labels = Array2::from_shape_fn((5, 2), |(v, c)| ((v + c) % 2) as u8);
    let arrays = Arrays::edges(5, &[(0, 1), (1, 0), (2, 1), (4, 3)]).name("sparse").directed(true);
    let arrays =
        arrays.sparse_features(vec![0u64, 1, 3, 3, 4, 4], vec![0u32, 1, 3, 2], vec![1.0f32, 0.5, -2.0, 3.0], 4);
    let arrays =
        arrays.multi_labels(labels).graph_ids(&[0i64, 0, 0, 7, 7]).train_mask(&[true, true, false, false, false]);
    let arrays = arrays.edge_weights(vec![0.5f32, 1.0, -2.0, 0.0]);
    Dataset::from_arrays(arrays.test(&[3i64, 4])).expect("it is valid")
}

/// Writes a dataset to a new folder of the scratch folder, and returns the folder.
pub fn written(data: &Dataset, name: &str) -> PathBuf {
    let path = free(name);
    data.write(&path).expect("an accepted dataset can be written");
    path
}

/// Returns a path in the scratch folder at which nothing is left of the last input.
fn free(name: &str) -> PathBuf {
    let path = scratch().join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("the scratch folder is ours");
    }
    path
}

/// Opens a dataset directory of which one file has other contents: of [`dense`] or of [`sparse`], as `first` selects.
/// `which` selects the file.
pub fn opened(first: usize, bytes: &[u8], which: impl FnOnce(&Folder) -> usize) {
    static FOLDERS: OnceLock<[Folder; 2]> = OnceLock::new();
    let folders = FOLDERS.get_or_init(|| {
        let folder = |data: &Dataset, name| Folder::copy(&written(data, "fresh"), name);
        [folder(&dense(), "dense"), folder(&sparse(), "sparse")]
    });
    let folder = &folders[first % 2];
    folder.with(which(folder), bytes, |path| {
        if let Ok(data) = Dataset::open(path) {
            check_again(&data);
        }
    });
}

/// Imports a text file: plain, or as gzip. Bytes that begin like gzip are read as gzip in any case.
pub fn imported_text(kind: Format, name: &str, bytes: &[u8], is_packed: bool, options: &Options<'_>) {
    let path = if is_packed { file(name, &packed(bytes)) } else { file(name, bytes) };
    imported(kind, &path, options);
}

/// Checks what the rest of the library relies on.
///
/// # Panics
/// If it does not hold.
pub fn check(data: &Dataset) {
    let graph = data.graph();
    let (n, e) = (graph.vertex_count(), graph.edge_count());
    let (indptr, indices) = (graph.indptr(), graph.indices());
    assert!(n > 0, "a dataset has a vertex");
    assert_eq!((indptr.len(), indices.len()), (n + 1, e));
    assert_eq!((indptr[0], indptr[n]), (0, e as u64));
    assert!(indptr.is_sorted(), "offsets ascend");
    assert!(indices.iter().all(|&u| (u as usize) < n), "a source is a vertex");
    assert!((0..n).all(|v| graph.sources(v).is_sorted()), "sources ascend");
    assert!(data.directed() || graph.is_symmetric(), "an undirected graph is symmetric");
    let weights = data.edge_weights().map_or(&[][..], |weights| weights);
    assert!(data.edge_weights().is_none() || weights.len() == e, "there is a weight for each edge");
    assert!(weights.iter().all(|weight| weight.is_finite()), "weights are finite");
    assert_eq!(data.split().len(), n);
    assert!(data.split().iter().all(|&split| split <= 3), "a split is none, train, val or test");
    if let Some(order) = data.permutation() {
        let (old, new) = (order.old_of_new(), order.new_of_old());
        assert_eq!((old.len(), new.len()), (n, n));
        assert!((0..n).all(|v| new[old[v] as usize] as usize == v), "a permutation has an inverse");
    }
    let graph_ids = data.graph_ids().map(|ids| data.permutation().map_or(ids.to_vec(), |order| order.restored(ids, 1)));
    assert!(graph_ids.is_none_or(|ids| ids.len() == n && ids.is_sorted()), "graphs are consecutive");
    assert!(data.class_names().is_none_or(|names| names.is_empty() || names.len() == data.class_count()));
    let _ = Info::of(data);
}

/// Checks a dataset, writes it, and checks that it is read again as it was.
///
/// # Panics
/// If it is not.
pub fn check_again(data: &Dataset) {
    check(data);
    let path = written(data, "again");
    reopened(data, &path);
}

fn reopened(data: &Dataset, path: &Path) {
    let read = Dataset::open(path).expect("what was written can be opened");
    assert_eq!(read.fingerprint(), data.fingerprint(), "it was read as it was written");
    assert_eq!((read.name(), read.directed()), (data.name(), data.directed()));
    assert_eq!((read.class_count(), read.class_names()), (data.class_count(), data.class_names()));
    assert_eq!(read.feature_width(), data.feature_width());
    assert_eq!((read.source(), read.licence()), (data.source(), data.licence()));
    assert_eq!(read.permutation(), data.permutation());
    assert_eq!(read.default_feature_norm(), data.default_feature_norm());
}

/// Imports, and checks what was accepted.
pub fn imported(kind: Format, source: &Path, options: &Options<'_>) {
    let options = Options { scratch: Some(scratch()), ..*options };
    let Ok(found) = import(kind, source, &options) else { return };
    written_with_ids(&found);
}

fn written_with_ids(found: &Imported) {
    check(&found.dataset);
    let path = free("again");
    found.write(&path).expect("an accepted dataset can be written");
    reopened(&found.dataset, &path);
}

/// Splits the first byte from the rest: it selects what is fuzzed.
pub fn selected(bytes: &[u8]) -> Option<(usize, &[u8])> {
    bytes.split_first().map(|(&first, rest)| (usize::from(first), rest))
}

/// Returns one of three values by two bits.
pub fn choice<T: Copy>(bits: usize, first: T, second: T, third: T) -> T {
    [first, second, third, first][bits & 3]
}
