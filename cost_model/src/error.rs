//! Why features cannot be summed.

/// Why slices are no CSR, or why features are not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SumsError {
    /// Offsets that do not rise from 0 to the number of edges.
    #[error("the offset at position {position} is {found}; offsets rise from 0 to the number of edges, {edges}")]
    Offsets {
        /// Where.
        position: usize,
        /// What stands there.
        found: u64,
        /// Number of edges.
        edges: usize,
    },
    /// No offsets at all.
    #[error("the offsets are empty; a graph of V vertices has V + 1 of them")]
    NoOffsets,
    /// A width whose accesses were not counted.
    #[error("accesses to rows of {width} numbers were not counted; name that width when the features are summed")]
    Width {
        /// The width.
        width: u32,
    },
    /// Sums for another device.
    #[error(
        "the features were summed for `{found}`, but seconds are asked of `{expected}`, whose accesses or caches differ"
    )]
    Device {
        /// Name of the profile of the sums.
        found: String,
        /// Name of the profile of the model.
        expected: String,
    },
    /// A neighbour that is no vertex.
    #[error("the source at position {position} is {found}, but there are {vertices} vertices")]
    Source {
        /// Where.
        position: usize,
        /// The source.
        found: u32,
        /// Number of vertices.
        vertices: usize,
    },
}
