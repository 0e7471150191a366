//! What it costs to compute a range of vertices.
//!
//! This version has the prefix sums that make the cost of any consecutive range O(1) to read ([`PrefixCost`]). The
//! features of a vertex and the regression that learns their weights are to come; see `ARCHITECTURE.md`.

mod prefix;

pub use prefix::{PrefixCost, PrefixError};
