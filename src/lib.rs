//! Lapidary
#![allow(missing_docs)]
pub mod dataset;
pub mod graph;
pub mod lower;
pub mod model;
pub mod program;
pub use model::Model;
