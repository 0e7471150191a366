//! Lowering: turns programs and the sizes of a part into one table of tensors with true sizes, and kernel calls over
//! it.
//!
//! Several programs (a training epoch, its evaluation) are lowered together and share what they have in common: tensors
//! of the same origin, blocks, and everything that is computed from constants alone. The latter runs once before the
//! first epoch; this is how gathers are hoisted.
//!
//! Every part of a graph is lowered separately, to the same steps over the same slots; only the sizes differ. The rows
//! and sums that cross between parts are listed as [`Exchange`]s.
//!
//! A part can be split into tiles (see [`Tiling`]). Every tensor with the part's rows is then one tensor per tile, and
//! every operation over it one step per tile, so that no step needs a whole matrix on the device. A gather of one
//! tile's rows has one step for each tile of its sources, in order; each step adds to the sum so far, so the bits are
//! the same. Sums over all rows, such as gradients of weights, also continue from tile to tile. An optimizer update is
//! split into windows of its parameter, whose new values are joined. The parameter stays in one piece; its moments do
//! not.

mod batch;
mod bind;
mod contents;
mod fold;
mod inputs;
mod kept_rows;
mod layout;
mod own_edges;
mod own_routes;
mod routes;
mod runs;
mod sizes;
mod slot_set;
mod stages;
mod sums;
mod table;
mod tiles;
mod tiling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lapidary_kernels::{Call, Mat, Slot, StorageType};

pub use batch::{Batch, BatchSupply, FeatureSource, FirstLevel, Gathered, level_sizes};
pub(crate) use batch::{ROWS_A_TASK, take};
pub use contents::{Contents, Supply};
pub use fold::{FoldArray, FoldSide};
pub use inputs::{FeatureData, Inputs, LabelData};
pub use kept_rows::KeptRows;
pub use layout::{BackwardMode, ExchangePath, Layout, TileOrder};
pub use routes::{Crossing, Routes, Source};
use runs::Runs;
pub use sizes::{Cut, Sizes};
pub use slot_set::SlotSet;
pub use sums::SumMode;
use table::Table;
pub(crate) use table::operation_name;
pub use tiling::Tiling;

use crate::program::{BlockSpec, OpId, Origin, Program, RowSpace, TensorId};

/// The lifetime of a lowered tensor, for the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The same in every epoch.
    Constant,
    /// Carried from epoch to epoch: parameters, moments, the clock.
    State,
    /// Computed and used within an epoch.
    Local,
    /// Built from what other parts published: new in every epoch.
    Received,
    /// Given by the caller: new in every mini-batch.
    Batch,
}

/// A tensor with its true size. Its index in [`Lowered::tensors`] is its [`Slot`].
#[derive(Clone, Debug)]
pub struct LoweredTensor {
    /// Unique readable name.
    pub name: Arc<str>,
    /// Size in bytes.
    pub bytes: u64,
    /// Its lifetime.
    pub kind: Lifetime,
    /// The contents of a constant that no operation computes.
    pub contents: Option<Contents>,
    /// The tile of the part that its rows belong to.
    pub tile: usize,
}

/// One kernel call, with the name of its operation.
#[derive(Clone, Debug)]
pub struct LoweredStep {
    /// Unique name: that of its first output.
    pub name: Arc<str>,
    /// The kernel call.
    pub call: Arc<Call>,
    /// Outputs that are the next epoch's value of an input: `(output, input)`.
    pub next: Vec<(Slot, Slot)>,
    /// Number of the phase that it belongs to; 0 for the setup.
    pub phase: usize,
    /// Slots that are made or received before, although the call does not read them. All parts run the steps in one
    /// order, and on other parts the call reads them.
    pub after: Vec<Slot>,
}

impl LoweredStep {
    /// Creates the step of a gather with this halo, which the call does not read if it has no rows.
    fn with_halo(name: Arc<str>, call: Call, halo: Mat) -> Self {
        match halo.rows {
            0 => Self { after: vec![halo.slot], ..Self::new(name, call) },
            _ => Self::new(name, Call { halo: Some(halo), ..call }),
        }
    }

    fn new(name: impl Into<Arc<str>>, call: Call) -> Self {
        Self { name: name.into(), call: Arc::new(call), next: Vec::new(), phase: 0, after: Vec::new() }
    }
}

/// Data that the parts build together from what each of them publishes. The slots are the same on every part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Each part packs the rows that others read, and receives the rows of its halo.
    Halo {
        /// Published by each part: the packed rows, one slot per tile.
        packed: Vec<Slot>,
        /// Received by each part: its halo, one slot per tile.
        halo: Vec<Slot>,
        /// Which rows move.
        crossing: Crossing,
        /// Numbers per row.
        width: usize,
        /// Storage type of the rows.
        float: StorageType,
    },
    /// Each part packs the rows that others read. The others fetch them from its device, while it fetches theirs: see
    /// [`Move::Fetch`](lapidary_kernels::op::Move::Fetch).
    Fetch {
        /// The pack that each part lends.
        packed: Slot,
        /// The halo that each part fetches.
        halo: Slot,
        /// Which rows move.
        crossing: Crossing,
        /// If set, the only part that lends rows. The packs of the others are empty.
        owner: Option<usize>,
    },
    /// Each part has a term of a sum over all vertices. All parts receive the sum; the terms are added in part order.
    Sum {
        /// The term that each part publishes.
        term: Slot,
        /// The sum that each part receives.
        sum: Slot,
    },
    /// Each part has a term of such a sum, and the devices add them together: see
    /// [`Move::AllReduce`](lapidary_kernels::op::Move::AllReduce).
    Reduce {
        /// The term of each part.
        term: Slot,
        /// The sum.
        sum: Slot,
    },
}

impl Exchange {
    /// Returns the slots that every part publishes on the host.
    pub fn published(&self) -> &[Slot] {
        match self {
            Self::Fetch { .. } | Self::Reduce { .. } => &[],
            Self::Halo { packed, .. } => packed,
            Self::Sum { term, .. } => std::slice::from_ref(term),
        }
    }

    /// Returns the slots that every part receives from the host.
    pub fn received(&self) -> &[Slot] {
        match self {
            Self::Fetch { .. } | Self::Reduce { .. } => &[],
            Self::Halo { halo, .. } => halo,
            Self::Sum { sum, .. } => std::slice::from_ref(sum),
        }
    }
}

/// One of the programs that were lowered together.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// The calls, in order.
    pub steps: Vec<LoweredStep>,
    /// The outputs: one slot per tile for those with rows of the part, else one slot.
    pub outputs: BTreeMap<String, Vec<Slot>>,
}

impl Phase {
    /// Returns an output that is not tiled.
    ///
    /// # Panics
    /// If the program has no such output, or if it has rows of the part.
    pub fn output(&self, name: &str) -> Slot {
        match self.outputs.get(name).map(Vec::as_slice) {
            Some(&[slot]) => slot,
            other => panic!("the program has no result {name} in one piece: {other:?}"),
        }
    }
}

/// Programs bound to the sizes of one part.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// All tensors of all phases.
    pub tensors: Vec<LoweredTensor>,
    /// Slots of each origin: one, one per tile, one per piece, or one per window of its update.
    pub origins: BTreeMap<Origin, Vec<Slot>>,
    /// Steps that run once, before everything else.
    pub setup: Vec<LoweredStep>,
    /// The programs, in the order given.
    pub phases: Vec<Phase>,
    /// Exchanges between parts; empty for a single part.
    pub exchanges: Vec<Exchange>,
}

impl Lowered {
    /// Returns a tensor.
    ///
    /// # Panics
    /// If the slot is of another table.
    pub fn tensor(&self, slot: Slot) -> &LoweredTensor {
        &self.tensors[slot.0 as usize]
    }

    /// Returns the slots that every mini-batch gives, and what it gives in them. Learned rows are not among them, since a
    /// batch that is prepared ahead does not have them yet.
    pub fn given_by_batch(&self) -> Vec<(Slot, Contents)> {
        let is_learned = |contents: &Contents| matches!(contents, Contents::Origin(origin) if origin.is_embedding());
        let given = (0..).map(Slot).zip(&self.tensors).filter(|(_, tensor)| tensor.kind == Lifetime::Batch);
        let given = given.filter_map(|(slot, tensor)| Some((slot, tensor.contents.clone()?)));
        given.filter(|(_, contents)| !is_learned(contents)).collect()
    }

    /// Returns the slot of the learned rows of a mini-batch, and the level whose rows they are.
    pub fn learned_slot(&self) -> Option<(Slot, u8)> {
        self.origins.iter().find_map(|(origin, slots)| match origin {
            Origin::OfBatch(of, level) if **of == Origin::Embedding => Some((slots[0], *level)),
            _ => None,
        })
    }

    /// Returns the steps of several phases that run one after the other. If an earlier phase updated a tensor, later
    /// phases read the new value.
    pub fn sequence(&self, phases: &[usize]) -> Vec<LoweredStep> {
        let mut newest: BTreeMap<Slot, Slot> = BTreeMap::new();
        let mut steps = Vec::new();
        for &phase in phases {
            let newest_of = |slot: Slot| newest.get(&slot).copied().unwrap_or(slot);
            let renamed = self.phases[phase].steps.iter();
            let is_old = |slot: Slot| newest.contains_key(&slot);
            let renamed = renamed.map(|step| {
                let mut slots = step.call.reads().chain(step.call.writes());
                if !slots.any(is_old) {
                    return step.clone();
                }
                LoweredStep { call: Arc::new((*step.call).clone().renamed(newest_of)), ..step.clone() }
            });
            let renamed: Vec<LoweredStep> = renamed.collect();
            newest.extend(renamed.iter().flat_map(|step| &step.next).map(|&(new, old)| (old, new)));
            steps.extend(renamed);
        }
        steps
    }
}

/// Binds named programs to the sizes of one part. Tensor names of later programs begin with the program's name.
///
/// # Cost
/// O(operations (log operations + tiles^2)). No data that grows with the graph is read or allocated.
pub fn lower(programs: &[(&str, &Program)], tiling: &Tiling, seed: u64) -> Lowered {
    lower_in_order(programs, tiling, TileOrder::Ascending, seed)
}

/// Lowers programs like [`lower`]. Their steps go through tiles in this order.
pub fn lower_in_order(programs: &[(&str, &Program)], tiling: &Tiling, order: TileOrder, seed: u64) -> Lowered {
    let mut lowering = Lowering {
        table: Table::new(tiling),
        seed,
        order,
        setup: Runs::new(order),
        constants: BTreeMap::new(),
        exchanges: Vec::new(),
        halos: BTreeMap::new(),
    };
    let mut phases = Vec::new();
    for (i, (name, program)) in programs.iter().enumerate() {
        let prefix = if i == 0 { String::new() } else { format!("{name}.") };
        let mut phase = lowering.phase(&prefix, program);
        phase.steps.iter_mut().for_each(|step| step.phase = i);
        phases.push(phase);
    }
    let (mut tensors, origins) = lowering.table.finish();
    let setup = lowering.setup.finish();
    let steps = setup.iter().chain(phases.iter().flat_map(|phase| &phase.steps));
    let read: SlotSet = steps.flat_map(|step| step.call.reads()).collect();
    for (slot, tensor) in (0..).map(Slot).zip(&mut tensors) {
        // A block that was folded is not needed.
        if matches!(tensor.contents, Some(Contents::Indptr(_) | Contents::Indices(_))) && !read.contains(slot) {
            (tensor.bytes, tensor.contents) = (0, None);
        }
    }
    Lowered { tensors, origins, setup, phases, exchanges: lowering.exchanges }
}

/// The slots of a program's tensors: one, or one per tile.
type Slots = BTreeMap<TensorId, Vec<Slot>>;

/// The state of lowering.
struct Lowering<'a> {
    table: Table<'a>,
    seed: u64,
    order: TileOrder,
    setup: Runs,
    /// Outputs of operations on constants alone, by operation and operands.
    constants: BTreeMap<String, Vec<Vec<Slot>>>,
    exchanges: Vec<Exchange>,
    /// The tiles of the exchanged halos, by the packed tensor and the block.
    halos: BTreeMap<(Slot, BlockSpec), Vec<Slot>>,
}

impl Lowering<'_> {
    fn phase(&mut self, prefix: &str, program: &Program) -> Phase {
        let mut slots = Slots::new();
        for (origin, &tensor) in program.origins() {
            let described = program.tensor(tensor);
            slots.insert(tensor, self.table.origin(origin, &described.name, described.ty));
        }
        let mut steps = Runs::new(self.order);
        // Tensors of which each part has only a term.
        let mut terms: BTreeSet<TensorId> = BTreeSet::new();
        for op in program.ops() {
            if self.table.tiling().has_halo() && self.note_terms(program, op, &mut terms, &mut slots) {
                steps.close();
            }
            if program.starts_run(op) {
                steps.close();
            }
            let reads: Vec<&[Slot]> = program.inputs(op).iter().map(|t| &slots[t][..]).collect();
            let outputs = program.op_outputs(op);
            let constant = program.tensor(outputs[0]).constant;
            let key = constant.then(|| format!("{:?} {reads:?}", program.op(op)));
            if let Some(known) = key.as_ref().and_then(|key| self.constants.get(key)) {
                slots.extend(outputs.iter().copied().zip(known.iter().cloned()));
                continue;
            }
            let writes = self.outputs(prefix, program, op, &slots);
            slots.extend(outputs.iter().copied().zip(writes.iter().cloned()));
            let made = self.steps(program, op, &slots);
            match key {
                Some(key) => {
                    self.setup.push(made);
                    self.constants.insert(key, writes);
                }
                None => steps.push(made),
            }
        }
        let outputs = program.outputs().iter().map(|(name, tensor)| (name.clone(), slots[tensor].clone())).collect();
        Phase { steps: steps.finish(), outputs }
    }

    /// Creates slots for the outputs of an operation.
    fn outputs(&mut self, prefix: &str, program: &Program, op: OpId, slots: &Slots) -> Vec<Vec<Slot>> {
        let outputs = program.op_outputs(op);
        let slots = outputs.iter().map(|tensor| match program.next().get(tensor) {
            Some(input) => slots[input].iter().map(|&state| self.table.next(state)).collect(),
            None => {
                let described = program.tensor(*tensor);
                let kind = if described.constant { Lifetime::Constant } else { Lifetime::Local };
                self.table.tensor(&format!("{prefix}{}", described.name), described.ty, kind)
            }
        });
        slots.collect()
    }

    /// Tracks sums over vertices. Such a sum is the sum over parts of each part's term. Linear operations work on the
    /// terms; before any other operation reads them, they are added up. Returns whether `op` has to wait for that.
    fn note_terms(&mut self, program: &Program, op: OpId, terms: &mut BTreeSet<TensorId>, slots: &mut Slots) -> bool {
        let inputs = program.inputs(op);
        let local = |rows| !matches!(rows, RowSpace::Param(_) | RowSpace::Scalar);
        let sums_vertices = inputs.iter().any(|&t| local(program.tensor(t).ty.rows));
        let outputs = program.op_outputs(op);
        let makes_term = sums_vertices && !local(program.tensor(outputs[0]).ty.rows);
        let linear = program.op(op).steps().is_empty() && program.op(op).record().linear;
        if linear && inputs.iter().all(|t| terms.contains(t)) {
            terms.extend(outputs);
            return false;
        }
        let mut waits = false;
        for tensor in inputs {
            if terms.remove(&tensor) {
                let term = slots[&tensor][0];
                let name = format!("{}.sum", self.table.name(term));
                let sum = self.table.tensor(&name, program.tensor(tensor).ty, Lifetime::Received);
                self.exchanges.push(Exchange::Sum { term, sum: sum[0] });
                slots.insert(tensor, sum);
                waits = true;
            }
        }
        if makes_term {
            terms.extend(outputs);
        }
        waits
    }
}
