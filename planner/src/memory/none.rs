//! The policy that keeps nothing.

use super::problem::Problem;
use super::schedule::{Change, Changes, Turn};

/// Before each op all tensors leave, then the inputs of the op are loaded.
pub(super) fn changes(problem: &Problem) -> Changes {
    let order = problem.program_order();
    let mut during = problem.empty();
    during.extend(problem.need[order[0].index()].iter().copied());
    let change = |pair: &[crate::tasks::TaskId]| {
        let [leave, come] = [pair[0], pair[1]].map(|op| problem.need[op.index()].clone());
        Change { op: pair[1], leave, come }
    };
    let first = Turn { op: order[0], survives: problem.empty(), during };
    Changes { first, rest: order.windows(2).map(change).collect() }
}
