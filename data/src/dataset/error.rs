//! The errors of datasets. Each message is one sentence.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use lapidary_arrays::NoHostMemory;

use crate::graph::GraphError;
use crate::sample::SampleError;

/// The result of an operation on a dataset.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a dataset could not be opened, built, imported or written.
///
/// `file` names the file, or the array if it came from memory (`` `features` ``). Positions, rows and columns count
/// from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system reported an error.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, such as "open" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A required file does not exist.
    #[error("{} is missing; {needed}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// Why it is needed.
        needed: &'static str,
    },
    /// A file of an open dataset has changed.
    #[error(
        "{} {how} while it was in use; put it back as it was, and replace a dataset only by renaming a new directory \
        over it when no run reads it",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// What has changed.
        how: String,
    },
    /// Datasets cannot be joined into one.
    #[error("`{dataset}` cannot be joined with other datasets: {why}")]
    NotJoined {
        /// The dataset that is not like the first one.
        dataset: String,
        /// The difference.
        why: String,
    },
    /// The host has no memory for an array.
    #[error(transparent)]
    HostMemory(#[from] NoHostMemory),
    /// The file is not a `.npy` file, or has an unknown version.
    #[error("{file} is not a .npy file that can be read: {why}")]
    NotNpy {
        /// The file.
        file: String,
        /// What is wrong with its header.
        why: String,
    },
    /// The file ends before its array does.
    #[error("{file} is cut short: its header promises {need_bytes} bytes of data, but {have_bytes} follow")]
    Truncated {
        /// The file.
        file: String,
        /// Bytes that the header promises.
        need_bytes: u64,
        /// Bytes that are there.
        have_bytes: u64,
    },
    /// The file continues after its array.
    #[error("{file} has {extra_bytes} bytes after its array; was it written twice, or with another shape?")]
    TrailingBytes {
        /// The file.
        file: String,
        /// Number of extra bytes.
        extra_bytes: u64,
    },
    /// The element type is not allowed for this array.
    #[error("{file} holds {found}, expected {expected}; convert it with numpy's astype")]
    Dtype {
        /// The file.
        file: String,
        /// The type, as numpy spells it.
        found: String,
        /// The types that are allowed.
        expected: &'static str,
    },
    /// The matrix is stored column by column.
    #[error("{file} is in Fortran order, expected C order; save numpy.ascontiguousarray(..) of it")]
    FortranOrder {
        /// The file.
        file: String,
    },
    /// The shape does not fit the other arrays.
    #[error("{file} has shape {found:?}, expected {expected}")]
    Shape {
        /// The file.
        file: String,
        /// The shape found.
        found: Vec<usize>,
        /// The shape needed, and why.
        expected: String,
    },
    /// An element is out of range.
    #[error("{file}: element {position} is {found}, expected {expected}")]
    Value {
        /// The file.
        file: String,
        /// The position of the element.
        position: usize,
        /// The element.
        found: String,
        /// The values that are allowed.
        expected: String,
    },
    /// The arrays are not a valid CSR.
    #[error("{file}: {problem}")]
    Graph {
        /// The file.
        file: String,
        /// The violation.
        problem: GraphError,
    },
    /// The graph has no vertices.
    #[error("{file} describes a graph without vertices; there is nothing to train on")]
    EmptyGraph {
        /// The file.
        file: String,
    },
    /// The graph is declared undirected, but some edge has no reverse.
    #[error(
        "{file} says that the graph is undirected, but some edge has no reverse; store both directions, or say directed"
    )]
    Asymmetric {
        /// The file that declares it.
        file: String,
    },
    /// The weight of an edge is NaN or infinite.
    #[error(
        "{file}: edge {edge}: {source_vertex} -> {destination} has the weight {found}; every weight must be finite"
    )]
    EdgeWeight {
        /// The file.
        file: String,
        /// The position of the edge.
        edge: usize,
        /// The source of the edge.
        source_vertex: u32,
        /// The destination of the edge.
        destination: u32,
        /// The weight found.
        found: f32,
    },
    /// A feature is NaN or infinite.
    #[error("{file}: the feature in row {row}, column {column} is {found}; every feature must be finite")]
    NotFinite {
        /// The file.
        file: String,
        /// The row, which is the vertex.
        row: usize,
        /// The column, which is the feature.
        column: usize,
        /// The value found.
        found: f32,
    },
    /// A column of a sparse feature row is out of range, or the columns do not ascend.
    #[error("{file}: row {row} has column {found} at position {position}, expected {expected}")]
    SparseColumn {
        /// The file.
        file: String,
        /// The row, which is the vertex.
        row: usize,
        /// The position in the array.
        position: usize,
        /// The column found.
        found: u32,
        /// The columns that are allowed there.
        expected: String,
    },
    /// A label is not a class.
    #[error("{file}: the label of vertex {vertex} is {found}, expected -1 (none) or 0 to {}", classes.saturating_sub(1))]
    Label {
        /// The file.
        file: String,
        /// The vertex.
        vertex: usize,
        /// The label found.
        found: i64,
        /// Number of classes.
        classes: usize,
    },
    /// A split contains an id that is not a vertex.
    #[error("{file}: id {found} at position {position} is no vertex; there are {vertices} (0 to {})", vertices.saturating_sub(1))]
    SplitId {
        /// The file.
        file: String,
        /// The position in the file.
        position: usize,
        /// The id found.
        found: i64,
        /// Number of vertices.
        vertices: usize,
    },
    /// A split contains an id twice.
    #[error("{file}: vertex {vertex} is listed twice, the second time at position {position}")]
    SplitDuplicate {
        /// The file.
        file: String,
        /// The vertex.
        vertex: u32,
        /// The position of the second occurrence.
        position: usize,
    },
    /// A vertex is in two splits.
    #[error(
        "overlapping splits: vertex {vertex} is in both {first} and {second}; a vertex may be in one split at most"
    )]
    SplitOverlap {
        /// The vertex.
        vertex: u32,
        /// The file of the first split.
        first: String,
        /// The file of the second split.
        second: String,
    },
    /// The graph ids do not ascend.
    #[error("{file}: the graph id of vertex {vertex} is {found}, less than the {previous} before it; graph ids ascend")]
    GraphIds {
        /// The file.
        file: String,
        /// The vertex.
        vertex: usize,
        /// Its graph id.
        found: i64,
        /// The graph id of the vertex before it.
        previous: i64,
    },
    /// The `dataset.json` file cannot be parsed.
    #[error("{} is not a valid dataset description", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The position and the cause.
        source: serde_json::Error,
    },
    /// A newer version of this program wrote the directory, in a format that this one does not know.
    #[error(
        "{} is of a dataset directory of version {found}, and this program reads versions up to {newest}: update Lapidary \
        to read it",
        path.display()
    )]
    NewerDirectory {
        /// The `dataset.json` file.
        path: PathBuf,
        /// The version of the directory.
        found: u64,
        /// The newest version that can be read.
        newest: u32,
    },
    /// There are dense features and sparse ones, and one would be ignored.
    #[error("{dense} and {sparse} are both there; keep the features that are meant, and remove the others")]
    TwoFeatures {
        /// The file of dense features.
        dense: String,
        /// A file of sparse features.
        sparse: String,
    },
    /// The `dataset.json` file disagrees with the arrays.
    #[error("{file} says {key} {stated}, but {found}")]
    Disagrees {
        /// The `dataset.json` file.
        file: String,
        /// The key.
        key: &'static str,
        /// The value of that key.
        stated: String,
        /// What the arrays contain instead.
        found: String,
    },
    /// The output directory exists and is not empty.
    #[error("{} exists and is not empty; name a new directory, or remove it first", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// There is no built-in dataset of this name.
    #[error("there is no built-in dataset `{name}`; there are karate and planted")]
    Builtin {
        /// The name asked for.
        name: String,
    },
    /// An option has a value that it cannot have, whatever the data.
    #[error("{} is {found}, expected {expected}", named(.option))]
    Option {
        /// The name of a field, or words for what has none.
        option: &'static str,
        /// The value given.
        found: String,
        /// The values that are allowed.
        expected: Cow<'static, str>,
    },
    /// An option has a value that the data at hand does not allow.
    #[error("{} is {found}, expected {expected}", named(.option))]
    NotForThisData {
        /// As in [`Error::Option`].
        option: &'static str,
        /// Its value.
        found: String,
        /// What this data allows.
        expected: Cow<'static, str>,
    },
    /// A dataset does not fit into the host's memory.
    #[error("{} is {found}, expected fewer: {shortage}", named(.option))]
    TooLarge {
        /// What there is too much of, as in [`Error::Option`].
        option: &'static str,
        /// How much.
        found: String,
        /// What it needs, and what the host has.
        shortage: String,
    },
    /// A partitioner of another project failed.
    #[error("{name} failed: {why}")]
    Partitioner {
        /// Its name.
        name: &'static str,
        /// What it said.
        why: String,
    },
    /// A mini-batch could not be drawn.
    #[error("cannot draw a mini-batch")]
    Batch(#[from] SampleError),
    /// This build leaves something out.
    #[error("this build has no {what}: its feature `{feature}` is not enabled")]
    NotBuilt {
        /// What is left out.
        what: &'static str,
        /// The feature of cargo that includes it.
        feature: &'static str,
    },
    /// A source to import from does not contain what its format requires.
    #[error("{file}: {why}")]
    Import {
        /// The file or directory.
        file: String,
        /// What was expected and what was found.
        why: String,
    },
    /// The pickle is cut short, or is otherwise not a pickle of data.
    #[error("{file}: at byte {offset} the pickle {why}")]
    Pickle {
        /// The file.
        file: String,
        /// The offset in bytes.
        offset: usize,
        /// What is wrong there.
        why: String,
    },
    /// The pickle asks to run code.
    #[error("{file} asks to run `{global}`; a data file has no reason to, and nothing was run")]
    Forbidden {
        /// The file.
        file: String,
        /// The function that it names.
        global: String,
    },
}

/// The name of a field as messages have it, which tells it from other quoted text: option `split`. Words stay as they are.
fn named(option: &str) -> Cow<'_, str> {
    if option.contains(' ') { option.into() } else { format!("option `{option}`").into() }
}

impl Error {
    /// Returns a function for `map_err` that adds the action and the path to an I/O error.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Returns a function for `map_err` like [`Error::io`]. If the file does not exist, the error says why it is needed.
    pub(crate) fn missing_or(
        action: &'static str,
        path: impl Into<PathBuf>,
        needed: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Missing { path, needed },
            _ => Self::Io { action, path, source },
        }
    }
}
