//! The features of a vertex: what the time that it takes is a weighted sum of.
//!
//! A feature is added here and nowhere else: a variant, its line in [`FEATURES`], its name, and what it counts. To
//! count the runs of at least eight neighbours, which a wide load may serve, one would write
//!
//! ```text
//! LongRuns,                                        // in `Feature` and in `FEATURES`
//! Self::LongRuns => "long_runs",                   // in `name`
//! Self::LongRuns => u64::from(length >= 8),        // in `of_run`
//! ```
//!
//! Sums, regression and files follow from the table. Files of another table are refused by name, since their samples
//! lack the new feature.

use std::num::NonZeroU32;

/// What is counted of a vertex v with the in-neighbours N(v). C(v) are the maximal runs of consecutively numbered ones.
///
/// # Source
/// ROC (Jia et al., MLSys 2020), table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// 1.
    Vertices,
    /// `|N(v)|`.
    Neighbours,
    /// `|C(v)|`.
    Runs,
    /// `sum over c in C(v) of ceil(|c| / WS)`: accesses to one number of each neighbour.
    RunAccesses,
    /// `sum over c in C(v) of ceil(|c| d / WS)`: accesses to all `d` numbers of each neighbour.
    WideAccesses,
}

/// All features, in the order in which arrays of them are laid out.
pub const FEATURES: [Feature; 5] =
    [Feature::Vertices, Feature::Neighbours, Feature::Runs, Feature::RunAccesses, Feature::WideAccesses];

/// The features of a range of vertices, summed; in the order of [`FEATURES`].
pub type Features = [u64; FEATURES.len()];

impl Feature {
    /// What files and tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vertices => "vertices",
            Self::Neighbours => "neighbours",
            Self::Runs => "runs",
            Self::RunAccesses => "run_accesses",
            Self::WideAccesses => "wide_accesses",
        }
    }

    /// What a vertex counts, whatever its neighbours.
    pub(crate) fn of_vertex(self) -> u64 {
        u64::from(self == Self::Vertices)
    }

    /// What a run of `length` neighbours counts, for rows of `width` numbers of which `access` are read at once.
    pub(crate) fn of_run(self, length: u64, width: u32, access: NonZeroU32) -> u64 {
        let access = u64::from(access.get());
        match self {
            Self::Vertices => 0,
            Self::Neighbours => length,
            Self::Runs => 1,
            Self::RunAccesses => length.div_ceil(access),
            Self::WideAccesses => length.saturating_mul(u64::from(width)).div_ceil(access),
        }
    }

    /// Whether it depends on the width of the rows.
    pub(crate) fn is_wide(self) -> bool {
        self == Self::WideAccesses
    }

    /// `f` if the feature of every vertex is `f |N(v)|`, so that the offsets of the CSR are its prefix sums.
    pub(crate) fn per_neighbour(self, width: u32, access: NonZeroU32) -> Option<u64> {
        match self {
            Self::Neighbours => Some(1),
            Self::WideAccesses => width.is_multiple_of(access.get()).then(|| u64::from(width / access)),
            _ => None,
        }
    }
}
