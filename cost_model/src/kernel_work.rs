//! What a kernel call does, in quantities that its time depends on.

use serde::{Deserialize, Serialize};

use crate::profile::Profile;

/// A quantity that the time of a kernel call depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// 1.
    Calls,
    /// Rows of the tallest matrix; of a gather, those that it makes.
    Rows,
    /// Edges that it follows.
    Edges,
    /// Edges with a weight; of attention, once for each head.
    WeightedEdges,
    /// Bytes of source rows, once for each edge.
    GatheredBytes,
    /// Those of them that a core's own cache is expected to miss.
    PastNearCache,
    /// Those of them that the last cache is expected to miss.
    PastLastCache,
    /// Edges, once for each pass of a gather that runs in passes, or for each group of heads.
    PassEdges,
    /// Rows, once for each pass, group of heads or matrix of sources.
    PassRows,
    /// Bytes that passes copy, and of sums that they read and write.
    PassBytes,
    /// Bytes that are read or written in sequence.
    StreamedBytes,
    /// Those of them that the cores' own caches do not hold.
    StreamedPastNearCache,
    /// Those of them that the last cache does not hold.
    StreamedPastLastCache,
    /// Floating-point operations of a product.
    Flops,
    /// Cells of the tall matrices of a product.
    ProductCells,
    /// Cells, or edges and heads, for which a dropout draws.
    DrawnCells,
    /// Copies between host and device beside a call, on average.
    Copies,
}

/// All quantities, in the order of their values.
pub const QUANTITIES: [Quantity; 17] = [
    Quantity::Calls,
    Quantity::Rows,
    Quantity::Edges,
    Quantity::WeightedEdges,
    Quantity::GatheredBytes,
    Quantity::PastNearCache,
    Quantity::PastLastCache,
    Quantity::PassEdges,
    Quantity::PassRows,
    Quantity::PassBytes,
    Quantity::StreamedBytes,
    Quantity::StreamedPastNearCache,
    Quantity::StreamedPastLastCache,
    Quantity::Flops,
    Quantity::ProductCells,
    Quantity::DrawnCells,
    Quantity::Copies,
];

/// The amount of each quantity, in the order of [`QUANTITIES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelWork([f64; QUANTITIES.len()]);

impl KernelWork {
    /// Returns the work of one call that does nothing yet.
    pub fn call() -> Self {
        Self::default().with(Quantity::Calls, 1.0)
    }

    /// Sets a quantity.
    pub fn with(mut self, quantity: Quantity, amount: f64) -> Self {
        self.0[quantity as usize] = amount;
        self
    }

    /// Returns the amount of a quantity.
    pub fn get(&self, quantity: Quantity) -> f64 {
        self.0[quantity as usize]
    }

    /// Returns all amounts, in the order of [`QUANTITIES`].
    pub(crate) fn amounts(&self) -> &[f64; QUANTITIES.len()] {
        &self.0
    }

    /// Returns the seconds at these seconds per unit.
    pub(crate) fn seconds(&self, weights: &[f64; QUANTITIES.len()]) -> f64 {
        self.0.iter().zip(weights).map(|(amount, weight)| amount * weight).sum()
    }

    /// Whether all amounts are finite and not negative.
    pub(crate) fn is_valid(&self) -> bool {
        self.0.iter().all(|amount| amount.is_finite() && *amount >= 0.0)
    }
}

/// Returns the seconds per unit of each quantity on a device, before anything was measured. Every one is above 0, so that
/// a fit can change it.
pub(crate) fn prior(profile: &Profile) -> [f64; QUANTITIES.len()] {
    let (memory_s, gather_s) = (1.0 / profile.memory_bytes_per_s, 1.0 / profile.gather_bytes_per_s);
    let cached_s = 1.0 / profile.cached_gather_bytes_per_s;
    QUANTITIES.map(|quantity| match quantity {
        Quantity::Calls => profile.launch_s.max(1e-6),
        // The offset of a row, and the time to begin it.
        Quantity::Rows => 64.0 * memory_s,
        Quantity::Edges | Quantity::PassEdges => 4.0 * cached_s,
        Quantity::WeightedEdges => 4.0 * memory_s,
        Quantity::GatheredBytes => cached_s / 2.0,
        Quantity::PastNearCache => cached_s / 2.0,
        Quantity::PastLastCache => (gather_s - cached_s).max(cached_s / 2.0),
        Quantity::PassRows => 64.0 * memory_s,
        Quantity::PassBytes => memory_s,
        Quantity::StreamedBytes => memory_s / 3.0,
        Quantity::StreamedPastNearCache => memory_s / 3.0,
        Quantity::StreamedPastLastCache => memory_s / 3.0,
        Quantity::Flops => 1.0 / profile.flops_per_s,
        Quantity::ProductCells => memory_s,
        Quantity::DrawnCells => 4.0 * memory_s,
        Quantity::Copies => profile.launch_s.max(1e-6),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_where_their_order_says() {
        for (i, quantity) in QUANTITIES.into_iter().enumerate() {
            assert_eq!(quantity as usize, i);
            assert_eq!(KernelWork::default().with(quantity, 3.0).get(quantity), 3.0);
        }
        assert_eq!(KernelWork::call().amounts()[0], 1.0);
    }

    #[test]
    fn nothing_is_free() {
        for name in Profile::NAMES {
            let weights = prior(&Profile::named(name).expect("it is built in"));
            assert!(weights.iter().all(|weight| weight.is_finite() && *weight > 0.0), "{name}: {weights:?}");
        }
    }
}
