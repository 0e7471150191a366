//! What can be wrong with a dataset, in one sentence each.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use crate::graph::GraphError;

/// The result of dataset work.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a dataset could not be opened, built, imported or written.
///
/// `file` names the file, or the array when it came from memory (`` `features` ``). Positions, rows and columns
/// count from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried: "open", "write", ...
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that has to be there is not.
    #[error("{} is missing; {needed}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// Why it is needed.
        needed: &'static str,
    },
    /// A file that is no `.npy` file, or of an unknown version.
    #[error("{file} is not a .npy file that can be read: {why}")]
    NotNpy {
        /// The file.
        file: String,
        /// What is wrong with its header.
        why: String,
    },
    /// A file that ends before its array does.
    #[error("{file} is cut short: its header promises {need_bytes} bytes of data, but {have_bytes} follow")]
    Truncated {
        /// The file.
        file: String,
        /// Bytes that the header promises.
        need_bytes: u64,
        /// Bytes that are there.
        have_bytes: u64,
    },
    /// A file that goes on after its array.
    #[error("{file} has {extra_bytes} bytes after its array; was it written twice, or with another shape?")]
    TrailingBytes {
        /// The file.
        file: String,
        /// Bytes too many.
        extra_bytes: u64,
    },
    /// An element type that this array may not have.
    #[error("{file} holds {found}, expected {expected}; convert it with numpy's astype")]
    Dtype {
        /// The file.
        file: String,
        /// The type as numpy spells it.
        found: String,
        /// The types that it may have.
        expected: &'static str,
    },
    /// A matrix stored column by column.
    #[error("{file} is in Fortran order, expected C order; save numpy.ascontiguousarray(..) of it")]
    FortranOrder {
        /// The file.
        file: String,
    },
    /// A shape that does not fit the others.
    #[error("{file} has shape {found:?}, expected {expected}")]
    Shape {
        /// The file.
        file: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that fits, and why.
        expected: String,
    },
    /// One element out of range.
    #[error("{file}: element {position} is {found}, expected {expected}")]
    Value {
        /// The file.
        file: String,
        /// Where.
        position: usize,
        /// What stands there.
        found: String,
        /// What may.
        expected: String,
    },
    /// Arrays that are no CSR.
    #[error("{file}: {problem}")]
    Graph {
        /// The file.
        file: String,
        /// The violation.
        problem: GraphError,
    },
    /// No vertices at all.
    #[error("{file} describes a graph without vertices; there is nothing to train on")]
    EmptyGraph {
        /// The file.
        file: String,
    },
    /// A graph said to be undirected that has an edge without its reverse.
    #[error(
        "{file} says that the graph is undirected, but some edge has no reverse; store both directions, or say directed"
    )]
    Asymmetric {
        /// Where it is said.
        file: String,
    },
    /// A feature that is NaN or infinite.
    #[error("{file}: the feature in row {row}, column {column} is {found}; every feature must be finite")]
    NotFinite {
        /// The file.
        file: String,
        /// Vertex.
        row: usize,
        /// Feature.
        column: usize,
        /// The value.
        found: f32,
    },
    /// Columns of a sparse feature row that are out of range or do not ascend.
    #[error("{file}: row {row} has column {found} at position {position}, expected {expected}")]
    SparseColumn {
        /// The file.
        file: String,
        /// Vertex.
        row: usize,
        /// Where in the array.
        position: usize,
        /// The column.
        found: u32,
        /// What would be right.
        expected: String,
    },
    /// A label that names no class.
    #[error("{file}: the label of vertex {vertex} is {found}, expected -1 (none) or 0 to {}", classes.saturating_sub(1))]
    Label {
        /// The file.
        file: String,
        /// Vertex.
        vertex: usize,
        /// The label.
        found: i64,
        /// Number of classes.
        classes: usize,
    },
    /// A split id that names no vertex.
    #[error("{file}: id {found} at position {position} is no vertex; there are {vertices} (0 to {})", vertices.saturating_sub(1))]
    SplitId {
        /// The file.
        file: String,
        /// Where.
        position: usize,
        /// The id.
        found: i64,
        /// Number of vertices.
        vertices: usize,
    },
    /// An id that stands twice in one split.
    #[error("{file}: vertex {vertex} is listed twice, the second time at position {position}")]
    SplitDuplicate {
        /// The file.
        file: String,
        /// Vertex.
        vertex: u32,
        /// Where the second is.
        position: usize,
    },
    /// A vertex in two splits.
    #[error(
        "overlapping splits: vertex {vertex} is in both {first} and {second}; a vertex may be in one split at most"
    )]
    SplitOverlap {
        /// Vertex.
        vertex: u32,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// Graph ids that fall.
    #[error("{file}: the graph id of vertex {vertex} is {found}, less than the {previous} before it; graph ids ascend")]
    GraphIds {
        /// The file.
        file: String,
        /// Vertex.
        vertex: usize,
        /// Its id.
        found: i64,
        /// The id before.
        previous: i64,
    },
    /// A `dataset.json` that cannot be understood.
    #[error("{} is not a valid dataset description", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A `dataset.json` that says something else than the arrays.
    #[error("{file} says {key} {stated}, but {found}")]
    Disagrees {
        /// The description.
        file: String,
        /// The entry.
        key: &'static str,
        /// Its value.
        stated: String,
        /// What the arrays say, and which.
        found: String,
    },
    /// A directory to be written that has something in it.
    #[error("{} exists and is not empty; name a new directory, or remove it first", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// A built-in set that does not exist.
    #[error("there is no built-in dataset `{name}`; there are karate and planted")]
    Builtin {
        /// The name asked for.
        name: String,
    },
    /// An option with a value that it cannot have, whatever the data.
    #[error("{} is {found}, expected {expected}", named(.option))]
    Option {
        /// The name of a field, or words for what has none.
        option: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: Cow<'static, str>,
    },
    /// An option with a value that the data at hand does not allow.
    #[error("{} is {found}, expected {expected}", named(.option))]
    NotForThisData {
        /// As in [`Error::Option`].
        option: &'static str,
        /// Its value.
        found: String,
        /// What this data allows.
        expected: Cow<'static, str>,
    },
    /// A dataset that does not fit into the host's memory.
    #[error("{} is {found}, expected fewer: {shortage}", named(.option))]
    TooLarge {
        /// What there is too much of, as in [`Error::Option`].
        option: &'static str,
        /// How much.
        found: String,
        /// What it needs, and what the host has.
        shortage: String,
    },
    /// A source to import from that does not hold what its kind should.
    #[error("{file}: {why}")]
    Import {
        /// The file or directory.
        file: String,
        /// What was expected and what was found.
        why: String,
    },
    /// A pickle that is cut short or otherwise no pickle of data.
    #[error("{file}: at byte {offset} the pickle {why}")]
    Pickle {
        /// The file.
        file: String,
        /// Where.
        offset: usize,
        /// What is wrong.
        why: String,
    },
    /// A pickle that asks for code to be run.
    #[error("{file} asks to run `{global}`; a data file has no reason to, and nothing was run")]
    Forbidden {
        /// The file.
        file: String,
        /// What it names.
        global: String,
    },
}

/// The name of a field as messages have it, which tells it from other quoted text: option `split`. Words stay as they are.
fn named(option: &str) -> Cow<'_, str> {
    if option.contains(' ') { option.into() } else { format!("option `{option}`").into() }
}

impl Error {
    /// For `map_err` on I/O.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
