//! The policy that keeps nothing.

use super::problem::Problem;
use super::schedule::{Schedule, Turn};

/// Before each op everything leaves, then all its inputs are loaded.
pub(super) fn schedule(problem: &Problem) -> Schedule {
    let turn =
        |op: crate::tasks::OpId| Turn { op, survives: problem.empty(), during: problem.need[op.index()].clone() };
    problem.program_order().into_iter().map(turn).collect()
}
