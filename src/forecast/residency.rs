//! What is on a device when, in the epoch of a plan.

use std::collections::BTreeSet;

use lapidary_kernels::Slot;
use lapidary_kernels::op::Op;
use lapidary_planner::memory::{Arrival, stays};

use crate::lower::{Lifetime, Lowered, LoweredStep};
use crate::plan::PlannedDevice;

/// What is on a device at each kernel call of an epoch.
#[derive(Clone, Debug)]
pub struct Residency {
    /// The device.
    pub device: usize,
    /// Number of kernel calls of the epoch. Moments are numbered: 0 is the start of the epoch, and `k` is the `k`-th call.
    pub calls: usize,
    /// The first call of the evaluation, if there is one.
    pub evaluates_from: Option<usize>,
    /// Most bytes on the device at once: the maximum over the moments.
    pub peak_bytes: u64,
    /// Most bytes at once in the setup, which runs before the first epoch.
    pub setup_peak_bytes: u64,
    /// Each stay of a tensor on the device, in the order in which they begin.
    pub stays: Vec<TensorStay>,
}

/// A tensor on the device, from when it arrives until it leaves.
#[derive(Clone, Debug)]
pub struct TensorStay {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// What it is for.
    pub role: TensorRole,
    /// The first moment at which it is on the device.
    pub from: usize,
    /// The last one.
    pub to: usize,
    /// How it came.
    pub arrival: Arrival,
    /// Whether it is copied to the host meanwhile.
    pub stored: bool,
    /// Whether it is there when the epoch ends.
    pub kept: bool,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorRole {
    /// The graph, the features, the labels, and what is computed from them once.
    Data,
    /// A parameter, its moments, or their next values.
    Weights,
    /// A result of the forward pass.
    Forward,
    /// A result of the backward pass: made from the gradient of the loss.
    Backward,
    /// A result of the evaluation.
    Evaluation,
    /// Built from what other parts sent.
    Received,
}

impl TensorRole {
    /// Every role.
    pub const ALL: [Self; 6] =
        [Self::Data, Self::Weights, Self::Forward, Self::Backward, Self::Evaluation, Self::Received];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "graph and features",
            Self::Weights => "weights and optimizer",
            Self::Forward => "forward pass",
            Self::Backward => "backward pass",
            Self::Evaluation => "evaluation",
            Self::Received => "from other parts",
        }
    }
}

impl Residency {
    /// Returns what is on a device when. `None` if it runs nothing.
    pub(super) fn new(device: usize, lowered: &Lowered, [setup, main]: [&PlannedDevice; 2]) -> Option<Self> {
        let (tasks, plan) = main.plan.as_ref()?;
        let roles = Roles::new(lowered, &main.steps);
        let named = stays(&tasks.graph, plan).into_iter().filter_map(|stay| {
            let slot = tasks.slot_of(stay.tensor)?;
            let (tensor, role) = (lowered.tensor(slot), roles.of(slot));
            let (name, bytes) = (tensor.name.to_string(), tensor.bytes);
            let (from, to, arrival, stored, kept) = (stay.from, stay.to, stay.arrival, stay.stored, stay.kept);
            (bytes > 0).then_some(TensorStay { name, bytes, role, from, to, arrival, stored, kept })
        });
        Some(Self {
            device,
            calls: plan.steps.len(),
            evaluates_from: main.script().evaluates_from.map(|before| before + 1),
            peak_bytes: plan.peak_bytes,
            setup_peak_bytes: setup.plan.as_ref().map_or(0, |(_, plan)| plan.peak_bytes),
            stays: named.collect(),
        })
    }
}

/// The roles of the tensors of an epoch.
struct Roles<'a> {
    lowered: &'a Lowered,
    /// Next values of what is carried from epoch to epoch.
    next: BTreeSet<Slot>,
    /// What is made from the gradient of the loss.
    backward: BTreeSet<Slot>,
    /// What the phases after the first make.
    evaluation: BTreeSet<Slot>,
}

impl<'a> Roles<'a> {
    fn new(lowered: &'a Lowered, steps: &[LoweredStep]) -> Self {
        let first = steps.first().map_or(0, |step| step.phase);
        let mut roles = Self {
            lowered,
            next: steps.iter().flat_map(|step| &step.next).map(|(new, _)| *new).collect(),
            backward: BTreeSet::new(),
            evaluation: BTreeSet::new(),
        };
        for step in steps {
            if step.phase != first {
                roles.evaluation.extend(step.call.writes());
            } else if is_loss_gradient(&step.call.op) || step.call.reads().any(|slot| roles.backward.contains(&slot)) {
                roles.backward.extend(step.call.writes());
                // What the parts build together of it follows from it, too.
                let of_step =
                    |sent: &&crate::lower::Exchange| sent.published().iter().any(|slot| roles.backward.contains(slot));
                let received: Vec<Slot> =
                    lowered.exchanges.iter().filter(of_step).flat_map(|sent| sent.received().to_vec()).collect();
                roles.backward.extend(received);
            }
        }
        roles
    }

    fn of(&self, slot: Slot) -> TensorRole {
        match self.lowered.tensor(slot).kind {
            Lifetime::Constant | Lifetime::Batch => TensorRole::Data,
            Lifetime::State => TensorRole::Weights,
            Lifetime::Received => TensorRole::Received,
            Lifetime::Local if self.next.contains(&slot) => TensorRole::Weights,
            Lifetime::Local if self.evaluation.contains(&slot) => TensorRole::Evaluation,
            Lifetime::Local if self.backward.contains(&slot) => TensorRole::Backward,
            Lifetime::Local => TensorRole::Forward,
        }
    }
}

/// Losses and counts are sums over the vertices. What else there is of a loss is its gradient.
fn is_loss_gradient(op: &Op) -> bool {
    matches!(op.head(), Op::Loss(loss) if !loss.record().sums)
}
