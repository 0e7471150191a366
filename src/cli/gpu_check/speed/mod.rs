//! How fast the GPU is. These sections share what is left of the time, and say what they left out.

mod kernels;
mod peers;
mod training;

pub(super) use kernels::{device, gathers, products};
pub(super) use peers::{Peers, graph_bytes, others};
pub(super) use training::{bf16, capacity, epochs, splits};

/// What to do if a measurement fails or is wrong.
const NEXT: &str = "Measure it again, alone: `lapidary gpu-check --only 'NAME'`. If it fails again, report it with \
    results.json.";
