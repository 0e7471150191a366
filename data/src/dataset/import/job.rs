//! One import: its format, its work and its report.

use std::path::Path;
use std::str::FromStr;

use lapidary_arrays::Shared;
use serde::Serialize;

use super::ids::Ids;
use super::numbers::Numbers;
use super::options::{Options, check_options};
use super::rules::{Fate, Rules, connected, select};
use super::source::Meter;
use super::weights::joined_note;
use super::{csr_archives, edge_list, heterophilous, lux, matrix_market, npz, ogb, planetoid, ppi};
use crate::dataset::Dataset;
use crate::dataset::build::{Origin, Parts, RawFeatures, RawLabels};
use crate::dataset::edge_store::{Built, EdgeStore, Join, Reverses};
use crate::dataset::error::{Error, Result};
use crate::dataset::rows::{Keep, Seen};
use crate::dataset::split::NAMES;
use crate::graph::Graph;
use crate::host;

/// The number of vertices from which on their edges are counted: fewer need no memory to speak of.
const MANY_VERTICES: usize = 1 << 24;
/// The most vertices for each edge of so many.
const MOST_VERTICES_PER_EDGE: u64 = 64;

/// The format of the files to import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Planetoid's eight files, `ind.NAME.*`.
    Planetoid,
    /// An `.npz` archive of `indptr`, `indices`, `x`, `y`, `train`, `val`, `test`; or of one of the next two formats.
    Npz,
    /// An `.npz` archive of shchur/gnn-benchmark: `adj_data`, `attr_data`, `labels`, ...
    GnnBenchmark,
    /// An `.npz` archive of the heterophilous datasets: `edges`, `node_features`, `node_labels`, `train_masks`, ...
    Heterophilous,
    /// A folder with DGL's `reddit_data.npz` and `reddit_graph.npz`.
    Reddit,
    /// A folder with GraphSAINT's `adj_full.npz`, `feats.npy`, `class_map.json`, `role.json`.
    GraphSaint,
    /// A folder with `train_graph.json`, `train_feats.npy`, `train_labels.npy`, `train_graph_id.npy`, and so on for `valid` and
    /// `test`.
    Ppi,
    /// A folder of OGB: `raw/edge.csv.gz`, ..., `split/`.
    Ogb,
    /// A text of edges, one per line, compressed or not.
    Edges,
    /// A Matrix Market file.
    MatrixMarket,
    /// The files of the original ROC: `PREFIX.lux`, `PREFIX.feats.bin`, `PREFIX.label`, `PREFIX.mask`.
    Lux,
}

impl Format {
    /// All formats with their names, in the order in which they are listed.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::Planetoid, "planetoid"),
        (Self::Npz, "npz"),
        (Self::GnnBenchmark, "gnn-benchmark"),
        (Self::Heterophilous, "heterophilous"),
        (Self::Reddit, "reddit"),
        (Self::GraphSaint, "graphsaint"),
        (Self::Ppi, "ppi"),
        (Self::Ogb, "ogb"),
        (Self::Edges, "edges"),
        (Self::MatrixMarket, "mtx"),
        (Self::Lux, "lux"),
    ];

    /// Returns the name of the format on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Returns what is done with edges by default: the same as PyTorch Geometric, for the formats that it reads.
    fn rules(self) -> Rules {
        use Fate::{Drop, Keep};
        match self {
            Self::Planetoid | Self::Heterophilous => Rules::new(Drop, Keep, true),
            Self::GnnBenchmark => Rules::new(Drop, Drop, true),
            Self::Npz | Self::GraphSaint | Self::Ogb | Self::Lux => Rules::new(Keep, Keep, false),
            Self::Reddit | Self::Edges | Self::MatrixMarket => Rules::new(Drop, Keep, false),
            Self::Ppi => Rules::new(Drop, Drop, false),
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text).map(|&(kind, _)| kind);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|&(_, name)| name).collect();
            let expected = format!("one of {}", names.join(", ")).into();
            Error::Option { option: "the kind of import", found: format!("`{text:.40}`"), expected }
        })
    }
}

/// What an import found and did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the format.
    pub kind: &'static str,
    /// Bytes read from files.
    pub bytes_read: u64,
    /// Number of edges that the source lists.
    pub edges_listed: u64,
    /// Number of skipped lines of a text of edges, which start with #, % or //.
    pub comment_lines: u64,
    /// Number of edges that repeat another, including added reverses.
    pub duplicates: u64,
    /// Whether repeated edges were dropped.
    pub duplicates_dropped: bool,
    /// Number of edges `v -> v` that the source lists.
    pub self_loops: u64,
    /// Whether those edges were dropped.
    pub self_loops_dropped: bool,
    /// Number of vertices without an edge to or from another.
    pub isolated: u64,
    /// Whether those vertices were dropped.
    pub isolated_dropped: bool,
    /// Whether the reverse of every edge was added.
    pub symmetrised: bool,
    /// Where the weights of the edges are from, if they have any: an array or a column.
    pub edge_weights: Option<String>,
    /// Number of edges whose weight, time or other values were dropped.
    pub values_dropped: u64,
    /// Further notes for the user.
    pub notes: Vec<String>,
}

/// A dataset from files of another program.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The dataset.
    pub dataset: Dataset,
    /// What was found and done.
    pub report: Report,
    /// The original names of the vertices, unless they are 0, 1, ....
    pub ids: Option<Ids>,
}

impl Imported {
    /// Writes a dataset directory, as [`Dataset::write`] does. Original vertex names other than 0, 1, ... go to
    /// `vertex_ids.npy` or `vertex_names.txt`.
    ///
    /// # Errors
    /// Those of [`Dataset::write`].
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.dataset.write_with(dir.as_ref(), |dir| self.ids.as_ref().map_or(Ok(()), |ids| ids.write(dir)))
    }
}

/// The input of a format's reader.
pub(super) struct ImportJob<'a> {
    pub source: &'a Path,
    pub options: &'a Options<'a>,
    pub rules: Rules,
    pub meter: Meter<'a>,
}

/// The output of a format's reader.
pub(super) struct Loaded {
    pub parts: Parts,
    pub edges_listed: u64,
    pub seen: Seen,
    /// Whether reverses were added.
    pub symmetrised: bool,
    pub ids: Option<Ids>,
    /// Where the weights are from, if they were kept.
    pub weights_from: Option<String>,
    pub values_dropped: u64,
    /// Number of skipped comment lines.
    pub comments: u64,
    pub notes: Vec<String>,
}

impl Loaded {
    /// Starts from a graph and the counts of its edges.
    pub(super) fn new(parts: Parts, edges_listed: u64, seen: Seen, symmetrised: bool) -> Self {
        Self {
            parts,
            edges_listed,
            seen,
            symmetrised,
            ids: None,
            weights_from: None,
            values_dropped: 0,
            comments: 0,
            notes: Vec::new(),
        }
    }
}

impl<'a> ImportJob<'a> {
    pub(super) fn new(kind: Format, source: &'a Path, options: &'a Options<'a>) -> Self {
        let mut rules = kind.rules();
        let asked = |fate: Option<Fate>, default: bool| fate.map_or(default, |fate| fate == Fate::Keep);
        // PyG's to_undirected merges the added edges with the existing ones.
        let duplicates = rules.keep.duplicates && options.symmetrise != Some(true);
        rules.keep.duplicates = asked(options.duplicates, duplicates);
        rules.keep.self_loops = asked(options.self_loops, rules.keep.self_loops);
        rules.symmetrise = options.symmetrise.unwrap_or(rules.symmetrise);
        Self { source, options, rules, meter: Meter::new(options.watch) }
    }

    /// Returns an empty list of edges.
    pub(super) fn store(&self) -> EdgeStore {
        let store = EdgeStore::new(self.options.scratch);
        if self.rules.keep.duplicates { store } else { store.without_repeats() }
    }

    /// Refuses a number of vertices that a file only claims: nearly all of them would have no edge, and each takes
    /// memory.
    ///
    /// # Errors
    /// [`Error::Import`] for millions of vertices with far fewer edges, and for more than the free memory can hold.
    pub(super) fn check_vertices(&self, vertices: usize, edges: u64) -> Result<()> {
        if vertices > MANY_VERTICES && edges < vertices as u64 / MOST_VERTICES_PER_EDGE {
            let why = format!("claims {vertices} vertices, but holds {edges} edges: nearly all would be isolated");
            return Err(self.wrong(why));
        }
        match host::lack(16 * vertices as u64, host::free_bytes()) {
            Some(lack) => Err(self.wrong(format!("has {vertices} vertices: that {lack}"))),
            None => Ok(()),
        }
    }

    /// Builds the graph of a list of edges by the rules. All ids are below `vertices`.
    pub(super) fn graph(&self, store: EdgeStore, vertices: usize) -> Result<(Graph, Seen)> {
        self.check_vertices(vertices, store.len())?;
        store.finish(vertices, self.rules.symmetrise, self.rules.keep, |id| id)
    }

    /// Returns an empty list of edges, which have weights if `weighted`.
    pub(super) fn store_with(&self, weighted: bool) -> EdgeStore {
        let store = self.store();
        if weighted { store.with_weights() } else { store }
    }

    /// Builds the graph of a list of edges, and their weights if they have any, by the rules. All ids are below
    /// `vertices`.
    pub(super) fn build(&self, store: EdgeStore, vertices: usize) -> Result<Built> {
        self.check_vertices(vertices, store.len())?;
        self.finish(store, vertices, self.rules.symmetrise, |id| id)
    }

    /// Does the same for edges whose ends `name` maps to vertices, with their reverses if asked for.
    pub(super) fn finish(
        &self,
        store: EdgeStore,
        vertices: usize,
        symmetrise: bool,
        name: impl Fn(u32) -> u32 + Sync,
    ) -> Result<Built> {
        let reverses = if symmetrise { Reverses::Same } else { Reverses::Without };
        store.finish_weighted(vertices, reverses, self.joining(), name)
    }

    /// Returns which edges are kept, and how the weights of repeated ones are joined.
    pub(super) fn joining(&self) -> (Keep, Option<Join>) {
        (self.rules.keep, self.options.join)
    }

    /// Returns the number of the split that was asked for, of the `splits` that an array holds.
    ///
    /// # Errors
    /// [`Error::NotForThisData`] if there are not so many.
    pub(super) fn split_among(&self, splits: usize, array: &str) -> Result<usize> {
        let which = self.options.split;
        if which < splits {
            return Ok(which);
        }
        let expected = match splits {
            0 => format!("another archive: {array} has no splits"),
            1 => format!("0: {array} has one split"),
            _ => format!("0 to {}: {array} has {splits} splits", splits - 1),
        };
        Err(Error::NotForThisData { option: "split", found: which.to_string(), expected: expected.into() })
    }

    /// Returns an error about the source.
    pub(super) fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Import { file: self.source.display().to_string(), why: why.into() }
    }

    /// Returns parts with the graph, its weights and the name of the source.
    pub(super) fn weighted_parts(&self, graph: Graph, weights: Option<Shared<f32>>) -> Parts {
        Parts { edge_weights: weights, ..self.parts(graph) }
    }

    /// Returns parts with the graph and the name of the source.
    pub(super) fn parts(&self, graph: Graph) -> Parts {
        let stem = self.source.file_stem().map_or_else(|| "unnamed".into(), |stem| stem.to_string_lossy().into_owned());
        Parts::new(Origin::Import(self.source.into()), stem, graph)
    }

    /// Reads the array files that the options name.
    pub(super) fn add_arrays(&self, parts: &mut Parts) -> Result<()> {
        let vertices = parts.graph.vertex_count();
        if let Some(path) = self.options.features {
            parts.features = Some(dense(Numbers::open(&self.meter, path, "it was named for the features")?, vertices)?);
            parts.files.push(("features", path.display().to_string()));
        }
        if let Some(path) = self.options.labels {
            parts.labels = Some(labels(Numbers::open(&self.meter, path, "it was named for the labels")?, vertices)?);
            parts.files.push(("labels", path.display().to_string()));
        }
        for (which, path) in self.options.splits.into_iter().enumerate() {
            let Some(path) = path else { continue };
            parts.splits[which] = Some(Numbers::open(&self.meter, path, "it was named for a split")?.members()?);
            parts.files.push((NAMES[which], path.display().to_string()));
        }
        Ok(())
    }
}

/// Reads a matrix with one row per vertex. A vector is one column.
pub(super) fn dense(numbers: Numbers<'_>, vertices: usize) -> Result<RawFeatures> {
    let (rows, width) = match numbers.shape[..] {
        [rows, width] => (rows, width),
        [rows] => (rows, 1),
        _ => return Err(numbers.wrong_shape(format_args!("[{vertices}, width]"))),
    };
    if rows != vertices || width == 0 {
        return Err(numbers.wrong_shape(format_args!("[{vertices}, 1 or more] (one row per vertex)")));
    }
    Ok(RawFeatures::Dense { data: numbers.floats()?.into(), rows, width })
}

/// Reads labels: a vector or one column of classes, or 0 and 1 with one column per class.
pub(super) fn labels(numbers: Numbers<'_>, vertices: usize) -> Result<RawLabels> {
    match numbers.shape[..] {
        [rows] | [rows, 1] if rows == vertices => Ok(RawLabels::Class(numbers.labels()?.into())),
        [rows, classes] if rows == vertices => Ok(RawLabels::Multi { data: numbers.bits()?.into(), rows, classes }),
        _ => Err(numbers.wrong_shape(format_args!("[{vertices}] or [{vertices}, classes] (one row per vertex)"))),
    }
}

/// Imports a dataset from files of another program.
///
/// # Errors
/// An option that the format does not have; files that are missing, damaged, of another format, or do not fit each
/// other. Each error names the file and the position.
/// # Cost
/// O(size). Memory is that of the result before repeated edges are dropped, plus a few blocks.
pub fn import(kind: Format, source: &Path, options: &Options<'_>) -> Result<Imported> {
    let kind = if kind == Format::Npz { npz::kind_of(source)? } else { kind };
    check_options(kind, options)?;
    let job = ImportJob::new(kind, source, options);
    if let Some(join) = options.join.filter(|_| job.rules.keep.duplicates) {
        let expected = "nothing where repeated edges are kept; set option `duplicates` to drop".into();
        return Err(Error::Option { option: "join", found: format!("`{}`", join.name()), expected });
    }
    let mut loaded = match kind {
        Format::Planetoid => planetoid::load(&job)?,
        Format::Npz => npz::load(&job)?,
        Format::GnnBenchmark => csr_archives::gnn_benchmark(&job)?,
        Format::Heterophilous => heterophilous::load(&job)?,
        Format::Reddit => csr_archives::reddit(&job)?,
        Format::GraphSaint => csr_archives::graphsaint(&job)?,
        Format::Ppi => ppi::load(&job)?,
        Format::Ogb => ogb::load(&job)?,
        Format::Edges => edge_list::load(&job)?,
        Format::MatrixMarket => matrix_market::load(&job)?,
        Format::Lux => lux::load(&job)?,
    };
    let weighted = loaded.parts.edge_weights.is_some();
    if let Some(join) = options.join.filter(|_| !weighted) {
        let expected = "nothing: the edges have no weights that are kept".into();
        return Err(Error::NotForThisData { option: "join", found: format!("`{}`", join.name()), expected });
    }
    if weighted && !job.rules.keep.duplicates && loaded.seen.duplicates > 0 {
        loaded.notes.push(joined_note(options.join, loaded.symmetrised));
    }
    let drop_isolated = options.isolated == Some(Fate::Drop);
    let connected = connected(&loaded.parts.graph);
    let isolated = connected.iter().filter(|&&connected| !connected).count();
    if drop_isolated && isolated > 0 {
        select(&mut loaded.parts, &connected)?;
        let numbers = || Ids::Numbers((0..connected.len() as u64).collect());
        loaded.ids.get_or_insert_with(numbers).select(&connected);
    }
    drop(connected);
    if let Some(split) = &options.random_split {
        if loaded.parts.splits.iter().any(Option::is_some) {
            let found = "the files have splits already".into();
            let expected = "no splits to be made then".into();
            return Err(Error::NotForThisData { option: "split", found, expected });
        }
        let members = split.draw(loaded.parts.graph.vertex_count(), loaded.parts.labels.as_ref())?;
        loaded.notes.push(format!("splits were drawn with seed {}", split.seed));
        loaded.parts.splits = members.map(Some);
    }
    let report = Report {
        kind: kind.name(),
        bytes_read: job.meter.done_bytes(),
        edges_listed: loaded.edges_listed,
        comment_lines: loaded.comments,
        duplicates: loaded.seen.duplicates,
        duplicates_dropped: !job.rules.keep.duplicates,
        self_loops: loaded.seen.self_loops,
        self_loops_dropped: !job.rules.keep.self_loops,
        isolated: isolated as u64,
        isolated_dropped: drop_isolated,
        symmetrised: loaded.symmetrised,
        edge_weights: loaded.weights_from,
        values_dropped: loaded.values_dropped,
        notes: loaded.notes,
    };
    Ok(Imported { dataset: loaded.parts.build()?, report, ids: loaded.ids })
}
