//! Graphs, and datasets over them: files, importers and generators.
//!
//! [`graph`] stands alone, [`dataset`] knows only it and [`host`]. This crate has no kernel, model or device.

pub mod dataset;
pub mod graph;
pub mod host;
