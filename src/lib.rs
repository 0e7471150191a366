//! Lapidary
#![allow(missing_docs)]
pub mod dataset;
pub mod graph;
