//! Shared by the checks: random numbers, hostile graphs, the device under test, and comparisons with derived tolerances.

#![allow(missing_docs)]

#[macro_use]
mod calls;
mod compare;
mod graphs;
mod numbers;
mod rig;

pub use calls::*;
pub use compare::*;
pub use graphs::*;
pub use numbers::*;
pub use rig::*;
