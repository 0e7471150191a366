//! Helpers that several test modules share.

pub mod command;
pub mod curve;
pub mod endless;
pub mod oracle;
pub mod parted;
pub mod programs;
pub mod ranks;
pub mod scripted;
pub mod weights;

use std::io::Write;
use std::path::PathBuf;

use lapidary::graph::Graph;
use lapidary::{Dataset, MemoryPolicy};

/// The names of all built-in models.
pub static MODELS: [&str; 8] = ["gcn", "gat", "gatv2", "gin", "sage", "graphconv", "commnet", "resgcn"];

/// The tier of a test: `cargo test` runs the quick tests, and `ci/full` runs the ignored ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// All models on datasets of fewer than 1000 vertices, and one on larger ones.
    Quick,
    /// The other models on larger datasets.
    Full,
}

impl Tier {
    /// Returns the number of epochs in tests that compare two ways to train. Larger graphs have fewer.
    pub fn epochs(self) -> usize {
        match self {
            Self::Quick => 20,
            Self::Full => 4,
        }
    }

    /// Returns the models that this tier trains on `data`.
    pub fn models(self, data: &Dataset) -> &'static [&'static str] {
        let is_small = data.graph().vertex_count() < 1000;
        match self {
            Self::Quick => &MODELS[..if is_small { MODELS.len() } else { 1 }],
            Self::Full => &MODELS[if is_small { MODELS.len() } else { 1 }..],
        }
    }

    /// Returns the models that this tier trains on `data` in the longest tests: the quick tier trains three models on small
    /// datasets; the full tier trains the other three on them, and `larger` on larger datasets.
    pub fn models_by_size(self, data: &Dataset, larger: &'static [&'static str]) -> &'static [&'static str] {
        let is_small = data.graph().vertex_count() < 1000;
        match self {
            Self::Quick => &MODELS[..if is_small { 3 } else { 0 }],
            Self::Full => {
                if is_small {
                    &MODELS[3..]
                } else {
                    larger
                }
            }
        }
    }
}

/// Whether this is a run of `ci/long`.
pub fn is_long() -> bool {
    std::env::var_os("LAPIDARY_LONG").is_some()
}

/// Returns the memory policies of tests that train many models on many graphs. The best policy plans slowly, and the size of
/// a graph makes no difference to it: in the CI, it plans for the two smallest graphs alone.
pub fn policies(data: &Dataset) -> &'static [MemoryPolicy] {
    match data.name() {
        "karate" | "directed-small" => &[MemoryPolicy::Optimal, MemoryPolicy::Lru],
        _ if is_long() => &[MemoryPolicy::Optimal, MemoryPolicy::Lru],
        _ => &[MemoryPolicy::Lru],
    }
}

/// Returns the path of shared test data. If it does not exist, prints a line that begins with `SKIPPED`, and returns
/// `None`.
pub fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("LAPIDARY_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let found = root.join(path);
    if found.exists() {
        return Some(found);
    }
    // Not eprintln!, which the test harness hides when a test passes.
    let line = format!("\nSKIPPED: {} is not there (set LAPIDARY_SHARED to the folder that has it)\n", found.display());
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}

/// Returns a directed graph with self-loops, repeated edges, a hub, a vertex without in-edges, and isolated vertices.
pub fn hostile_graph() -> Graph {
    let mut edges = vec![(0, 0), (1, 0), (1, 0), (2, 0), (0, 1), (3, 1), (3, 3), (3, 3), (2, 4), (4, 2), (5, 4)];
    edges.extend((0..9).map(|u| (u, 6)));
    edges.extend([(6, 2), (6, 7), (7, 8), (8, 7)]);
    Graph::from_edges(12, &edges).unwrap() // 9, 10 and 11 are isolated
}

/// Returns small numbers with a long period, for tests that need no distribution.
pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns the pairs of entries of two lists of the same length.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn pairs<'a, A, B>(a: &'a [A], b: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    assert_eq!(a.len(), b.len(), "lists of different lengths");
    a.iter().zip(b)
}

/// Returns the largest difference, or infinity if one of them is NaN.
fn largest(differences: impl Iterator<Item = f64>) -> f64 {
    differences.fold(0.0f64, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) })
}

/// Returns the largest absolute difference of two entries, or infinity if an entry is NaN.
#[track_caller]
pub fn largest_difference(got: &[f32], want: &[f32]) -> f64 {
    largest(pairs(got, want).map(|(&g, &w)| (f64::from(g) - f64::from(w)).abs()))
}

/// Returns the largest absolute difference, divided by the largest absolute entry of `want`, or infinity if an entry is
/// NaN.
#[track_caller]
pub fn relative_difference(got: &[f32], want: &[f32]) -> f64 {
    let difference = largest_difference(got, want);
    if difference == 0.0 { 0.0 } else { difference / largest(want.iter().map(|&x| f64::from(x).abs())) }
}

#[test]
fn differences_notice_one_wrong_entry_and_what_is_no_number() {
    assert_eq!(relative_difference(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
    assert_eq!(relative_difference(&[0.0, 0.0], &[0.0, 0.0]), 0.0);
    assert_eq!(relative_difference(&[1.0], &[0.0]), f64::INFINITY);
    assert_eq!(relative_difference(&[f32::NAN, 1.0], &[1.0, 1.0]), f64::INFINITY);
    assert_eq!(largest_difference(&[1.0, f32::NAN], &[1.0, 1.0]), f64::INFINITY);
    assert!(std::panic::catch_unwind(|| largest_difference(&[1.0, 2.0], &[1.0])).is_err(), "lengths differ");
}

/// Returns a .npy file. Its header is numpy's, except for the padding.
pub fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    bytes
}

/// Returns a zip archive of members, in memory.
pub fn archive(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Rewrites the digests of a checkpoint folder, after a test has changed a file in it.
pub fn digest_anew(folder: &std::path::Path) {
    let mut lines = String::new();
    for entry in folder.read_dir().unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "B3SUMS" {
            let digest = blake3::hash(&std::fs::read(folder.join(&name)).unwrap());
            lines += &format!("{digest}  {name}\n");
        }
    }
    std::fs::write(folder.join("B3SUMS"), lines).unwrap();
}
