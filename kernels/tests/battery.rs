//! Runs every call on every device. `LAPIDARY_TEST_DEVICE=cuda` selects the tests that can run on GPU 0; [`emulated`]
//! does the same with an emulated GPU.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod common;

mod attention;
mod bf16;
mod conformance;
mod device;
mod dropout;
#[cfg(feature = "cuda")]
mod emulated;
mod fused;
mod gather;
mod gradients;
mod layer_norm;
mod multi_label;
mod optimizers;
mod passes;
mod peers;
#[cfg(feature = "cuda")]
mod planted;
mod sim;
mod tiles;
mod windows;
