//! Operations: kinds of calls, with their widths, whose time is predicted.

use serde::{Deserialize, Serialize};

use crate::cache::CERTAIN;
use crate::feature::{FEATURES, Feature, Features};
use crate::profile::Profile;

/// One operation of a layer, whose seconds the model learns.
///
/// Calls with the same name and the same work share their samples, whatever layer they belong to. To learn the calls of
/// one layer separately, give it a name of its own (`convs.0/gather`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Name of the kernel (`gather`, `linear_weight_grad`), with a prefix if it is learned separately.
    pub name: String,
    /// The kind and amount of work.
    pub work: Work,
}

/// The work of an operation per vertex of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// Sums the rows of the vertex's in-neighbours.
    Gather {
        /// Numbers per row.
        width: u32,
    },
    /// Multiplies the vertex's row by a matrix `[k, m]`, or computes a gradient of that product.
    Product {
        /// Numbers per row of one operand.
        k: u32,
        /// Numbers per row of the other operand.
        m: u32,
    },
    /// Reads and writes rows, cell by cell.
    Elementwise {
        /// Bytes read and written per vertex.
        bytes: u32,
    },
}

/// Seconds per call, and seconds per unit of each feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weights {
    // Invariant: finite and not negative.
    pub(crate) per_call_s: f64,
    pub(crate) per_feature_s: [f64; FEATURES.len()],
}

impl Weights {
    /// Returns the seconds of one call.
    pub(crate) fn seconds(&self, features: &Features) -> f64 {
        let terms = self.per_feature_s.iter().zip(features).map(|(weight, &count)| weight * count as f64);
        terms.fold(self.per_call_s, |sum, term| sum + term)
    }
}

impl Operation {
    /// Creates an operation.
    pub fn new(name: impl Into<String>, work: Work) -> Self {
        Self { name: name.into(), work }
    }
}

impl Work {
    /// Returns the width of the rows that it reads along the edges; 0 if it does not follow edges.
    pub fn width(self) -> u32 {
        match self {
            Self::Gather { width } => width,
            Self::Product { .. } | Self::Elementwise { .. } => 0,
        }
    }

    /// Whether the time can depend on a feature. An operation that does not follow edges takes the same time for every
    /// vertex.
    pub(crate) fn uses(self, feature: Feature) -> bool {
        matches!(self, Self::Gather { .. }) || feature == Feature::Vertices
    }

    /// Returns the weights that the device's profile implies. For a gather, neighbours that miss the cache take the
    /// time of [`Profile::gather_s`], and the others less. The first neighbours of a row take more, because short rows
    /// do.
    pub(crate) fn prior(self, profile: &Profile) -> Weights {
        let (per_call_s, per_vertex_s, per_neighbour_s) = match self {
            Self::Gather { width } => {
                let seconds = |n, e| profile.gather_s(n, e, u64::from(width));
                split_linear(seconds)
            }
            Self::Product { k, m } => split_linear(|n, _| profile.linear_s(n, u64::from(k), u64::from(m))),
            Self::Elementwise { bytes } => split_linear(|n, _| profile.elementwise_s(n * u64::from(bytes))),
        };
        let row_bytes = 4.0 * f64::from(self.width());
        let cached_s = row_bytes / profile.cached_gather_bytes_per_s;
        let saved_s = row_bytes / profile.gather_bytes_per_s - cached_s;
        // A cache that was measured to be slower than memory saves nothing.
        let saved_s = saved_s.clamp(0.0, per_neighbour_s);
        let per_feature_s = FEATURES.map(|feature| match feature {
            Feature::Vertices => per_vertex_s,
            Feature::Neighbours => per_neighbour_s - saved_s,
            // Half of the saving is lost if the row is not cached, half if its page is not cached.
            Feature::Misses | Feature::PageMisses => saved_s / 2.0 / f64::from(CERTAIN),
            Feature::FirstNeighbours => (row_bytes / profile.short_gather_bytes_per_s - cached_s).max(0.0),
            Feature::Runs | Feature::RunAccesses | Feature::WideAccesses => 0.0,
        });
        Weights { per_call_s, per_feature_s }
    }
}

/// Returns the constant and the two slopes of a function that is linear in vertices and edges.
fn split_linear(seconds: impl Fn(u64, u64) -> f64) -> (f64, f64, f64) {
    // At this distance, rounding affects the constant and not the slope.
    const FAR: u64 = 1 << 30;
    let constant = seconds(0, 0);
    let slope = |n, e| ((seconds(n, e) - constant) / FAR as f64).max(0.0);
    (constant, slope(FAR, 0), slope(0, FAR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prior_says_what_the_profile_says() {
        let profile = Profile::named("p100").expect("it is built in");
        let (n, e) = (12_345u64, 678_901u64);
        let features = FEATURES.map(|feature| match feature {
            Feature::Vertices => n,
            Feature::Neighbours => e,
            Feature::Misses | Feature::PageMisses => e * u64::from(CERTAIN),
            _ => 17,
        });
        let works = [
            (Work::Gather { width: 41 }, profile.gather_s(n, e, 41)),
            (Work::Product { k: 602, m: 16 }, profile.linear_s(n, 602, 16)),
            (Work::Product { k: 602, m: 256 }, profile.linear_s(n, 602, 256)),
            (Work::Elementwise { bytes: 48 }, profile.elementwise_s(48 * n)),
        ];
        for (work, want) in works {
            let got = work.prior(&profile).seconds(&features);
            assert!((got / want - 1.0).abs() < 1e-9, "{work:?}: {got} is not {want}");
        }
    }
}
