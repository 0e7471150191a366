//! The features of a vertex: what the time that it takes is a weighted sum of.
//!
//! A feature is added here and nowhere else: a variant, its line in [`FEATURES`], its name, and what it counts. To
//! count the runs of at least eight neighbours, which a wide load may serve, one would write
//!
//! ```text
//! LongRuns,                                                        // in `Feature` and in `FEATURES`
//! Self::LongRuns => "long_runs",                                   // in `name`
//! Self::LongRuns => Counted::InRuns(|length, _| (length >= 8) as u64),  // in `counted`
//! ```
//!
//! Sums, regression and files follow from the table. Files of another table are refused by name, since their samples
//! lack the new feature.

use std::num::NonZeroU32;

use crate::cache::CERTAIN;
use crate::profile::Profile;

/// What is counted of a vertex v with the in-neighbours N(v). C(v) are the maximal runs of consecutively numbered ones.
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
    /// Neighbours whose row is expected not to be in the cache, in 255ths; see [`Profile::cache_bytes`].
    Misses,
    /// The same of a cache of as many bytes that holds whole pages, of 4096 bytes at most: popular rows that stand together
    /// miss less.
    PageMisses,
    /// `min(|N(v)|, 16)`: a row's first neighbours, whose rows nothing has asked for ahead.
    FirstNeighbours,
}

/// Bytes of a page, at most.
const PAGE: u64 = 4096;

/// So many neighbours of a vertex are its first.
const FIRST: u64 = 16;

/// How a feature is counted.
pub(crate) enum Counted {
    /// One a vertex.
    Vertices,
    /// So many a neighbour, the same for all.
    Neighbours(u64),
    /// What this makes of the number of neighbours.
    InRow(fn(u64) -> u64),
    /// What this makes of each run's length.
    InRuns(Box<dyn Fn(u64) -> u64 + Sync>),
    /// The chance of each neighbour to be missing from a cache.
    Misses {
        /// Rows that the cache keeps or loses together, as a power of two.
        log_rows_a_line: u32,
        /// How many lines it holds.
        lines: f64,
    },
}

/// All features, in the order in which arrays of them are laid out.
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
            Self::Misses => "misses",
            Self::PageMisses => "page_misses",
            Self::FirstNeighbours => "first_neighbours",
        }
    }

    /// Whether it depends on the width of the rows.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::WideAccesses | Self::Misses | Self::PageMisses)
    }

    /// How it is counted on a device, for rows of `width` numbers.
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

/// Accesses that read `width` numbers of `length` neighbours in sequence.
fn accesses(length: u64, width: u32, access: NonZeroU32) -> u64 {
    length.saturating_mul(u64::from(width)).div_ceil(u64::from(access.get()))
}

/// Misses of a cache whose lines hold so many rows, or the next power of two below.
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
