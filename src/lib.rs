//! Lapidary
#![allow(missing_docs)]
pub mod graph;
