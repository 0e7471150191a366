//! Files with edge weights, and how they are imported.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use lapidary::dataset::Dataset;
use lapidary::dataset::import::{EdgeWeights, Format, Imported, Options, import};

use super::npy;

pub const KEEP: Options<'_> = with(EdgeWeights::Keep);
pub const DROP: Options<'_> = with(EdgeWeights::Drop);

pub const fn with(edge_weights: EdgeWeights<'_>) -> Options<'_> {
    Options { edge_weights, ..plain() }
}

/// The default options, as a constant.
pub const fn plain<'a>() -> Options<'a> {
    Options {
        name: None,
        duplicates: None,
        self_loops: None,
        isolated: None,
        symmetrise: None,
        edge_weights: EdgeWeights::Guess,
        join: None,
        split: 0,
        random_split: None,
        header: None,
        vertices: None,
        columns: lapidary::dataset::import::TableColumns { key: None, label: None, features: None },
        vertex_order: None,
        missing: lapidary::dataset::import::Missing::Refuse,
        features: None,
        labels: None,
        splits: [None; 3],
        scratch: None,
        watch: None,
    }
}

/// A folder with one file.
pub struct Source {
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
}

pub fn file(name: &str, bytes: impl AsRef<[u8]>) -> Source {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    Source { dir, path }
}

pub fn packed(text: &str) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(text.as_bytes()).unwrap();
    packer.finish().unwrap()
}

impl Source {
    pub fn read(&self, kind: Format, options: &Options<'_>) -> Imported {
        import(kind, &self.path, options).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()))
    }

    #[track_caller]
    pub fn refused(&self, kind: Format, options: &Options<'_>, words: &[&str]) {
        let error = import(kind, &self.path, options).map(|_| ()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
}

/// The edges `(source, destination, weight)` row by row.
pub fn edges(data: &Dataset) -> Vec<(u32, u32, f32)> {
    let (graph, weights) = (data.graph(), data.edge_weights().expect("it has weights"));
    let row = |v: usize| graph.edges(v).map(move |i| (graph.indices()[i], v as u32, weights[i]));
    (0..graph.vertex_count()).flat_map(row).collect()
}

#[track_caller]
pub fn dropped(got: &Imported, values: u64, note: &str) {
    assert!(got.dataset.edge_weights().is_none());
    assert_eq!((got.report.values_dropped, &got.report.edge_weights), (values, &None));
    let named = got.report.notes.iter().any(|found| found.contains("option `edge_weights`"));
    let noted = got.report.notes.iter().any(|found| !note.is_empty() && found.contains(note));
    assert_eq!((named, noted), (!note.is_empty(), !note.is_empty()), "{:?}", got.report.notes);
}

pub fn ints(values: &[i64]) -> Vec<u8> {
    npy("<i8", &format!("({},)", values.len()), bytemuck::cast_slice(values))
}

pub fn floats(values: &[f32]) -> Vec<u8> {
    npy("<f4", &format!("({},)", values.len()), bytemuck::cast_slice(values))
}
