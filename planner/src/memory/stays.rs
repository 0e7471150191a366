//! What is on the device when: the stays of tensors, read off a plan.

use super::Plan;
use crate::tasks::{TaskGraph, TensorId};

/// How a tensor came to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// It was there when the epoch began.
    Start,
    /// It was copied from the host.
    Load,
    /// An op made it.
    Made,
}

/// A tensor on the device, from its arrival until it leaves.
///
/// Moments are numbered: 0 is the start of the epoch, `k` is the run of the `k`-th op, and the moment after the last op
/// is that of [`Plan::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The tensor.
    pub tensor: TensorId,
    /// The first moment at which it is on the device.
    pub from: usize,
    /// The last one.
    pub to: usize,
    /// How it came.
    pub arrival: Arrival,
    /// Whether it was copied to the host meanwhile.
    pub stored: bool,
    /// Whether it is there when the epoch ends.
    pub kept: bool,
}

/// Returns the stays of all tensors, in the order in which they begin.
///
/// At each moment, the bytes of the tensors whose stays contain it are those on the device. Their maximum is
/// [`Plan::peak_bytes`].
///
/// # Panics
/// If the plan evicts or stores what is not on the device. [`check`](crate::check::check) finds such plans.
/// # Cost
/// O(tensors + sum of the lists' lengths).
pub fn stays(graph: &TaskGraph, plan: &Plan) -> Vec<Stay> {
    let mut walk = Walk { open: vec![None; graph.tensors().len()], stays: Vec::new() };
    plan.start.resident.iter().for_each(|&t| walk.arrive(t, 0, Arrival::Start));
    for (moment, step) in (1..).zip(&plan.steps) {
        walk.copies(moment, [&step.store, &step.evict, &step.load]);
        for &t in &graph.op(step.op).outputs {
            walk.arrive(t, moment, Arrival::Made);
            if graph.tensor(t).publish {
                walk.of(t).stored = true;
            }
        }
    }
    let finish = &plan.finish;
    let does_something = [&finish.store, &finish.evict, &finish.load].iter().any(|tensors| !tensors.is_empty());
    let last = plan.steps.len() + usize::from(does_something);
    walk.copies(last, [&finish.store, &finish.evict, &finish.load]);
    for stay in walk.open.iter().flatten() {
        (walk.stays[*stay].to, walk.stays[*stay].kept) = (last, true);
    }
    walk.stays
}

/// The stays so far.
struct Walk {
    /// For each tensor on the device, its stay.
    open: Vec<Option<usize>>,
    stays: Vec<Stay>,
}

impl Walk {
    fn arrive(&mut self, tensor: TensorId, from: usize, arrival: Arrival) {
        self.open[tensor.index()] = Some(self.stays.len());
        self.stays.push(Stay { tensor, from, to: from, arrival, stored: false, kept: false });
    }

    fn of(&mut self, tensor: TensorId) -> &mut Stay {
        let stay = self.open[tensor.index()].expect("the tensor is on the device");
        &mut self.stays[stay]
    }

    /// Stores, evicts and loads before something happens at a moment.
    fn copies(&mut self, moment: usize, [store, evict, load]: [&[TensorId]; 3]) {
        store.iter().for_each(|&t| self.of(t).stored = true);
        for &t in evict {
            // What arrives at a moment stays beyond the evictions of that moment.
            self.of(t).to = moment - 1;
            self.open[t.index()] = None;
        }
        load.iter().for_each(|&t| self.arrive(t, moment, Arrival::Load));
    }
}
