//! Vertex features. The predicted time of a vertex is a weighted sum of its features.
//!
//! To add a feature, add a variant, its entry in [`FEATURES`], its name, and how it is counted; all of this is in this
//! file. For example, this would count the runs of at least eight neighbours, which a wide load may serve:
//!
//! ```text
//! LongRuns,                                                        // in `Feature` and in `FEATURES`
//! Self::LongRuns => "long_runs",                                   // in `name`
//! Self::LongRuns => Counted::InRuns(|length, _| (length >= 8) as u64),  // in `counted`
//! ```
//!
//! Sums, regression and files are derived from the table. Files with another table are rejected by name, because their
//! samples lack the new feature.
//! lack the new feature.

use std::num::NonZeroU32;

use crate::cache::CERTAIN;
use crate::profile::Profile;

/// A feature of a vertex v with in-neighbours N(v). C(v) is the set of maximal runs of consecutively numbered
/// neighbours.
///
/// # Source
/// The first five are ROC's (Jia et al., MLSys 2020, table 1).
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
    /// Expected number of neighbours whose row is not in the cache, in units of 1/255; see [`Profile::cache_bytes`].
    Misses,
    /// The same for a cache of the same size that holds whole pages of at most 4096 bytes. Popular rows on the same
    /// page miss less.
    PageMisses,
    /// `min(|N(v)|, 16)`: the first neighbours of a row, whose rows have not been prefetched.
    FirstNeighbours,
}

/// Most bytes per page.
const PAGE: u64 = 4096;

/// Number of neighbours of a vertex that count as its first ones.
const FIRST: u64 = 16;

/// The way a feature is counted.
pub(crate) enum Counted {
    /// 1 per vertex.
    Vertices,
    /// This number per neighbour.
    Neighbours(u64),
    /// A function of the number of neighbours.
    InRow(fn(u64) -> u64),
    /// The sum over runs of a function of the run length.
    InRuns(Box<dyn Fn(u64) -> u64 + Sync>),
    /// The sum over neighbours of their probability of a cache miss.
    Misses {
        /// Rows per cache line, as a power of two.
        log_rows_a_line: u32,
        /// Number of lines in the cache.
        lines: f64,
    },
}

/// All features, in the order used by arrays of features.
pub const FEATURES: [Feature; 8] = [
    Feature::Vertices,
    Feature::Neighbours,
    Feature::Runs,
    Feature::RunAccesses,
    Feature::WideAccesses,
    Feature::Misses,
    Feature::PageMisses,
    Feature::FirstNeighbours,
];

/// The sums of the features over a range of vertices, in the order of [`FEATURES`].
pub type Features = [u64; FEATURES.len()];

impl Feature {
    /// Returns the name used in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vertices => "vertices",
            Self::Neighbours => "neighbours",
            Self::Runs => "runs",
            Self::RunAccesses => "run_accesses",
            Self::WideAccesses => "wide_accesses",
            Self::Misses => "misses",
            Self::PageMisses => "page_misses",
            Self::FirstNeighbours => "first_neighbours",
        }
    }

    /// Whether the feature depends on the row width.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::WideAccesses | Self::Misses | Self::PageMisses)
    }

    /// Returns how the feature is counted on a device, for rows of `width` numbers.
    pub(crate) fn counted(self, width: u32, device: &Profile) -> Counted {
        let access = device.access_width;
        match self {
            Self::Vertices => Counted::Vertices,
            Self::Neighbours => Counted::Neighbours(1),
            Self::Runs => Counted::InRuns(Box::new(|_| 1)),
            Self::RunAccesses => Counted::InRuns(Box::new(move |length| accesses(length, 1, access))),
            Self::WideAccesses if width.is_multiple_of(access.get()) => Counted::Neighbours(u64::from(width / access)),
            Self::WideAccesses => Counted::InRuns(Box::new(move |length| accesses(length, width, access))),
            Self::Misses => misses(device, width, 1),
            Self::PageMisses => misses(device, width, (PAGE / 4 / u64::from(width.max(1))).max(1)),
            Self::FirstNeighbours => Counted::InRow(|neighbours| neighbours.min(FIRST)),
        }
    }
}

/// Returns the number of accesses that read `width` numbers of `length` consecutive neighbours.
fn accesses(length: u64, width: u32, access: NonZeroU32) -> u64 {
    length.saturating_mul(u64::from(width)).div_ceil(u64::from(access.get()))
}

/// Returns how misses are counted for a cache whose lines hold `rows_a_line` rows, rounded down to a power of two.
fn misses(device: &Profile, width: u32, rows_a_line: u64) -> Counted {
    let log_rows_a_line = rows_a_line.ilog2();
    match (device.cache_bytes, width) {
        (_, 0) => Counted::Neighbours(0),
        (0, _) => Counted::Neighbours(u64::from(CERTAIN)),
        (cache_bytes, _) => Counted::Misses {
            log_rows_a_line,
            lines: cache_bytes as f64 / ((4 * u64::from(width)) << log_rows_a_line) as f64,
        },
    }
}
