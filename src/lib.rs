//! Lapidary
#![allow(missing_docs)]
pub mod graph;
pub mod model;
pub mod program;
pub use model::Model;
