//! The options of an import, and which of them a format has.

use std::path::Path;

use super::job::Format;
use super::rules::Fate;
use super::vertex_order::Missing;
use super::vertex_table::TableColumns;
use super::weights::EdgeWeights;
use crate::dataset::edge_store::Join;
use crate::dataset::error::{Error, Result};
use crate::dataset::split::RandomSplit;

/// How far an import has read. A file that is read twice counts twice.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes of source files read, as stored (compressed).
    pub done_bytes: u64,
    /// Bytes of the source files known so far.
    pub total_bytes: u64,
}

/// A callback, called whenever a few hundred KB have been read, from any thread.
pub type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

/// Options of an import. By default edges are treated as in PyTorch Geometric.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// `planetoid`: which of several datasets in the folder.
    pub name: Option<&'a str>,
    /// Whether edges that repeat another are kept.
    pub duplicates: Option<Fate>,
    /// Whether edges `v -> v` are kept.
    pub self_loops: Option<Fate>,
    /// Whether vertices without an edge to or from another are kept; they are by default.
    pub isolated: Option<Fate>,
    /// Whether the reverse of every edge is added. Repeated edges are then dropped, unless `duplicates` keeps them.
    pub symmetrise: Option<bool>,
    /// Which values of edges are kept as weights.
    pub edge_weights: EdgeWeights<'a>,
    /// How the weights of repeated edges, reverses included, become one. By default those of one direction are added, and
    /// if both directions were listed, each gets the mean of the two.
    pub join: Option<Join>,
    /// `heterophilous`, `npz`: which of several splits.
    pub split: usize,
    /// Random splits, for files that have none.
    pub random_split: Option<RandomSplit>,
    /// `edges`: whether the first line that is not a comment holds column titles; guessed by default.
    pub header: Option<bool>,
    /// `edges`: a table of the vertices, CSV or TSV with titles: features, classes and splits by vertex name.
    pub vertices: Option<&'a Path>,
    /// What the columns of the table are.
    pub columns: TableColumns<'a>,
    /// `edges`: a text with one vertex name per line, in the order of the rows of the array files.
    pub vertex_order: Option<&'a Path>,
    /// What happens to vertices that the table or the order lacks, and to rows whose vertex has no edge.
    pub missing: Missing,
    /// `edges` and `mtx`: a `.npy` file, `[vertices, width]`.
    pub features: Option<&'a Path>,
    /// `edges` and `mtx`: a `.npy` file, `[vertices]` or, for several labels per vertex, `[vertices, classes]`.
    pub labels: Option<&'a Path>,
    /// `edges` and `mtx`: `.npy` files of ids or masks, for training, validation and testing.
    pub splits: [Option<&'a Path>; 3],
    /// Folder for the unnamed temporary file of edges; the system's folder by default.
    pub scratch: Option<&'a Path>,
    /// Callback for progress.
    pub watch: Option<Watch<'a>>,
}

impl<'a> Options<'a> {
    /// Returns the first array file and the flag that names it.
    pub(super) fn array(&self) -> Option<(&'static str, &'a Path)> {
        let [train, val, test] = self.splits;
        let all =
            [("features", self.features), ("labels", self.labels), ("train", train), ("val", val), ("test", test)];
        all.into_iter().find_map(|(option, path)| Some((option, path?)))
    }
}

/// Refuses options that a format would ignore, and options that contradict each other.
pub(super) fn check_options(kind: Format, options: &Options<'_>) -> Result<()> {
    let is_edges = kind == Format::Edges;
    let takes_arrays = is_edges || kind == Format::MatrixMarket;
    let has_table = options.vertices.is_some();
    let TableColumns { key, label, features } = options.columns;
    let shown = |path: &Path| path.display().to_string();
    let (array, array_path) = options.array().map_or(("", None), |(option, path)| (option, Some(shown(path))));
    let order = options.vertex_order.map(shown);
    let only_edges = "nothing: only `edges` names its vertices";
    let needs_table = "nothing without option `vertices`";
    // The value of each option that is refused here.
    let has_values = !matches!(kind, Format::Planetoid | Format::Heterophilous | Format::Ppi | Format::Lux);
    let refused: [(Option<String>, &'static str, &'static str); 13] = [
        (
            options.name.filter(|_| kind != Format::Planetoid).map(Into::into),
            "name",
            "nothing: only a folder of `planetoid` holds several sets",
        ),
        (
            (options.split != 0 && !matches!(kind, Format::Heterophilous | Format::Npz))
                .then(|| options.split.to_string()),
            "split",
            "nothing, or shares as in 0.6,0.2,0.2: only `heterophilous` and `npz` archives may have several splits",
        ),
        (
            array_path.clone().filter(|_| !takes_arrays),
            array,
            "nothing: only `edges` and `mtx` come without features, labels and splits",
        ),
        (
            options.header.filter(|_| !is_edges).map(|header| if header { "yes" } else { "no" }.into()),
            "header",
            "nothing: only a text of `edges` may have column titles",
        ),
        (
            options.edge_weights.asked().filter(|_| !has_values).map(|asked| format!("`{asked:.60}`")),
            "edge_weights",
            "nothing or `drop`: files of this kind hold no weights",
        ),
        (options.vertices.filter(|_| !is_edges).map(shown), "vertices", only_edges),
        (order.clone().filter(|_| !is_edges), "vertex_order", only_edges),
        (
            array_path.filter(|_| has_table),
            array,
            "nothing beside option `vertices`, whose table holds features, classes and splits",
        ),
        (order.filter(|_| has_table), "vertex_order", "nothing beside option `vertices`, whose rows are in order"),
        (key.filter(|_| !has_table).map(Into::into), "columns.key", needs_table),
        (label.filter(|_| !has_table).map(Into::into), "columns.label", needs_table),
        (features.filter(|_| !has_table).map(|titles| titles.join(",")), "columns.features", needs_table),
        (
            (options.missing != Missing::Refuse && !has_table && options.vertex_order.is_none())
                .then(|| "given".into()),
            "missing",
            "nothing without option `vertices` or option `vertex_order`",
        ),
    ];
    match refused.into_iter().find_map(|(found, option, expected)| Some((found?, option, expected))) {
        Some((found, option, expected)) => Err(Error::Option { option, found, expected: expected.into() }),
        None => Ok(()),
    }
}
