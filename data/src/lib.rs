//! Graphs and datasets: files, importers, generators and partitions.
//!
//! [`graph`] uses no other module, and [`dataset`] uses only it, [`host`] and [`plain_file`]. [`partition`] is above them.
//! This crate knows no kernel, model or device.

pub mod dataset;
pub mod graph;
pub mod host;
pub mod partition;
pub mod plain_file;
pub mod sample;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
