//! Errors of feature sums.

/// Why slices are not a valid CSR, or why features are not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SumsError {
    /// The offsets do not rise from 0 to the number of edges.
    #[error("the offset at position {position} is {found}; offsets rise from 0 to the number of edges, {edges}")]
    Offsets {
        /// Position in the offsets.
        position: usize,
        /// The offset found there.
        found: u64,
        /// Number of edges.
        edges: usize,
    },
    /// The slice of offsets is empty.
    #[error("the offsets are empty; a graph of V vertices has V + 1 of them")]
    NoOffsets,
    /// The features were not summed for this width.
    #[error("accesses to rows of {width} numbers were not counted; name that width when the features are summed")]
    Width {
        /// The width.
        width: u32,
    },
    /// The features were summed for another device.
    #[error(
        "the features were summed for `{found}`, but seconds are asked of `{expected}`, whose accesses or caches differ"
    )]
    Device {
        /// Name of the profile that the features were summed for.
        found: String,
        /// Name of the model's profile.
        expected: String,
    },
    /// A source id is not a vertex.
    #[error("the source at position {position} is {found}, but there are {vertices} vertices")]
    Source {
        /// Position in the edges.
        position: usize,
        /// The source id.
        found: u32,
        /// Number of vertices.
        vertices: usize,
    },
}
