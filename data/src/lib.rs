//! Graphs and datasets: files, importers and generators.
//!
//! [`graph`] uses no other module, and [`dataset`] uses only it, [`host`] and [`plain_file`]. This crate knows no kernel, model or
//! device.

pub mod dataset;
pub mod graph;
pub mod host;
pub mod plain_file;
