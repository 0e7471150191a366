//! The tests of whole programs and of data, as one program. A file of this folder is a module of it: `cargo test --test all misread::`.
#![allow(clippy::unwrap_used)]

mod common;

mod bad_input;
mod bf16;
mod checkpoints;
mod dataset_bad_input;
mod dataset_core;
mod dataset_formats;
mod dataset_generate;
mod dataset_hostile;
mod dataset_import;
mod dataset_info;
#[cfg(feature = "cuda")]
mod emulated;
mod fuse;
mod gradients;
mod graph;
mod learn;
mod misread;
mod multi_label;
mod outputs;
mod parity;
mod peers;
mod plan;
mod plan_tasks;
mod program;
mod runtime;
mod stress;
mod tiles;
mod train;
