//! What is predicted: one kind of call, with its widths.

use serde::{Deserialize, Serialize};

use crate::cache::CERTAIN;
use crate::feature::{FEATURES, Feature, Features};
use crate::profile::Profile;

/// One operation of a layer, whose seconds a model learns.
///
/// Calls with the same name and the same work share their samples, whichever layer they stand in. A layer whose calls
/// should be learned apart gets a name of its own (`convs.0/gather`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// The kernel (`gather`, `linear_weight_grad`), and more if it should be learned apart.
    pub name: String,
    /// What it does, and to how much.
    pub work: Work,
}

/// What an operation does to each vertex of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// Sums the rows of its in-neighbours.
    Gather {
        /// Numbers a row.
        width: u32,
    },
    /// Multiplies its row with a matrix `[k, m]`, or takes part in a gradient of that.
    Product {
        /// Numbers of a row of one operand.
        k: u32,
        /// Numbers of a row of the other.
        m: u32,
    },
    /// Reads and writes rows, cell by cell.
    Elementwise {
        /// Bytes that are read and written for a vertex.
        bytes: u32,
    },
}

/// Seconds a call, and seconds a unit of each feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weights {
    // Invariant: finite, not negative.
    pub(crate) per_call_s: f64,
    pub(crate) per_feature_s: [f64; FEATURES.len()],
}

impl Weights {
    /// Seconds of one call.
    pub(crate) fn seconds(&self, features: &Features) -> f64 {
        let terms = self.per_feature_s.iter().zip(features).map(|(weight, &count)| weight * count as f64);
        terms.fold(self.per_call_s, |sum, term| sum + term)
    }
}

impl Operation {
    /// An operation.
    pub fn new(name: impl Into<String>, work: Work) -> Self {
        Self { name: name.into(), work }
    }
}

impl Work {
    /// Width of the rows that it reads along the edges; 0 if it does not follow edges.
    pub fn width(self) -> u32 {
        match self {
            Self::Gather { width } => width,
            Self::Product { .. } | Self::Elementwise { .. } => 0,
        }
    }

    /// Whether its time can depend on a feature: what does not follow edges takes the same time for every vertex.
    pub(crate) fn uses(self, feature: Feature) -> bool {
        matches!(self, Self::Gather { .. }) || feature == Feature::Vertices
    }

    /// What the device's profile says of it: the profile's seconds, as weights. Of a gather's neighbours, those that miss
    /// the cache take [`Profile::gather_s`]'s time, and the others less; the first of a row take more, as rows of few do.
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
        // A cache that is measured to be slower than the memory saves nothing.
        let saved_s = saved_s.clamp(0.0, per_neighbour_s);
        let per_feature_s = FEATURES.map(|feature| match feature {
            Feature::Vertices => per_vertex_s,
            Feature::Neighbours => per_neighbour_s - saved_s,
            // Half of it because the row is in no cache, half because its page is not.
            Feature::Misses | Feature::PageMisses => saved_s / 2.0 / f64::from(CERTAIN),
            Feature::FirstNeighbours => (row_bytes / profile.short_gather_bytes_per_s - cached_s).max(0.0),
            Feature::Runs | Feature::RunAccesses | Feature::WideAccesses => 0.0,
        });
        Weights { per_call_s, per_feature_s }
    }
}

/// The constant and the two slopes of a function that is linear in vertices and edges.
fn split_linear(seconds: impl Fn(u64, u64) -> f64) -> (f64, f64, f64) {
    // Slopes are taken far out, where the constant is lost in rounding, not the slope.
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
