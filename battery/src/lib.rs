//! Checks of a device: every call against the `f64` reference, and every law of [`lapidary_kernels::Device`].
//!
//! [`CHECKS`] is the list of all checks. `lapidary gpu-check` runs those of a GPU. In `kernels/tests/battery.rs`, each
//! check is a test of the same name. A check fails by a panic.

#![allow(clippy::unwrap_used)]

#[cfg(panic = "abort")]
compile_error!("a check fails by a panic, so panics must unwind");

#[macro_use]
pub mod common;

mod attention;
mod bf16;
mod conformance;
mod device;
mod dropout;
mod fused;
mod layer_norm;
mod list;
mod many_cells;
mod multi_label;
mod optimizers;
mod peers;
mod run;
mod tiles;

pub use list::{CHECKS, Check, check};
pub use many_cells::{MANY_CELLS, MANY_CELLS_BYTES};
pub use run::{Failure, run};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
