//! Lowering: programs and the sizes of a part become one table of tensors with true sizes, and kernel calls over it.
//!
//! Several programs (a training epoch, its evaluation) are lowered together and share what they have in common:
//! tensors of one origin, blocks, and everything that is computed from constants alone, which runs once before the
//! first epoch (that is how a hoisted gather comes to be).
//!
//! Every part of a graph is lowered by itself, to the same steps over the same slots; only sizes differ. What crosses
//! between parts is a list of [`Exchange`]s.
//!
//! A part may be cut into tiles (see [`Tiling`]): then every tensor with the part's rows is one tensor a tile, and every
//! operation over it one step a tile, so that none needs all of a matrix at hand. A gather of one tile's rows is a step for
//! each tile of its sources, in their order, each going on from the sum so far: the same bits. Sums over all rows, such as
//! gradients of weights, go on from tile to tile as well. An optimizer's step is then cut too, into windows of its parameter,
//! whose new values are joined: the parameter stays in one piece, the optimizer's memory of it does not.

mod bind;
mod contents;
mod inputs;
mod routes;
mod runs;
mod sizes;
mod table;
mod tiles;
mod tiling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lapidary_kernels::{Call, Slot, StorageType};

pub use contents::{Contents, Supply};
pub use inputs::{FeatureData, Inputs, LabelData};
pub use routes::{Routes, Source};
use runs::Run;
pub use sizes::{Cut, Sizes};
use table::Table;
pub(crate) use table::operation_name;
pub use tiling::{ExchangePath, Tiling};

use crate::program::{BlockSpec, OpId, Origin, Program, RowSpace, TensorId};

/// What a lowered tensor is to the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The same in every epoch.
    Constant,
    /// Carried from one epoch to the next: parameters, moments, the clock.
    State,
    /// Made and used up within an epoch.
    Local,
    /// Made from what other parts published: new in every epoch.
    Received,
}

/// One tensor with its true size. Its place in [`Lowered::tensors`] is its [`Slot`].
#[derive(Clone, Debug)]
pub struct LoweredTensor {
    /// A name for people; no two are the same.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What it is to the plan.
    pub kind: Lifetime,
    /// What a constant that no operation makes holds.
    pub contents: Option<Contents>,
    /// Of which tile of the part, if it has rows of one.
    pub tile: usize,
}

/// One kernel call and the name of the operation behind it.
#[derive(Clone, Debug)]
pub struct LoweredStep {
    /// That of its first output: unique.
    pub name: String,
    /// What the device does.
    pub call: Arc<Call>,
    /// Outputs that are the next epoch's value of an input: `(output, input)`.
    pub next: Vec<(Slot, Slot)>,
    /// The number of the phase that it is part of; 0 in the setup.
    pub phase: usize,
}

impl LoweredStep {
    fn new(name: String, call: Call) -> Self {
        Self { name, call: Arc::new(call), next: Vec::new(), phase: 0 }
    }
}

/// What the parts make together of what each of them publishes. The slots are the same on every part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Each part packs the rows that others read; each receives the rows of its halo.
    Halo {
        /// Published by each part: the packed rows of each of its tiles.
        packed: Vec<Slot>,
        /// Received by each part: the tiles of its halo.
        halo: Vec<Slot>,
        /// Over which block the rows are gathered.
        block: BlockSpec,
        /// Numbers a row.
        width: usize,
        /// How they are stored.
        float: StorageType,
    },
    /// Each part packs the rows that others read, which they fetch from its device while it fetches theirs: see [`Move::Fetch`](lapidary_kernels::op::Move::Fetch).
    Fetch {
        /// Lent by each part.
        packed: Slot,
        /// Fetched by each part: its halo.
        halo: Slot,
        /// Over which block the rows are gathered.
        block: BlockSpec,
    },
    /// Each part holds a term of a sum over all vertices; all receive the sum, added in part order.
    Sum {
        /// Published by each part.
        term: Slot,
        /// Received by each part.
        sum: Slot,
    },
}

impl Exchange {
    /// What every part publishes on the host.
    pub fn published(&self) -> &[Slot] {
        match self {
            Self::Fetch { .. } => &[],
            Self::Halo { packed, .. } => packed,
            Self::Sum { term, .. } => std::slice::from_ref(term),
        }
    }

    /// What every part receives from the host.
    pub fn received(&self) -> &[Slot] {
        match self {
            Self::Fetch { .. } => &[],
            Self::Halo { halo, .. } => halo,
            Self::Sum { sum, .. } => std::slice::from_ref(sum),
        }
    }
}

/// One of the programs that were lowered together.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Its calls, in order.
    pub steps: Vec<LoweredStep>,
    /// Its results: a slot a tile for those with rows of the part, else one.
    pub outputs: BTreeMap<String, Vec<Slot>>,
}

impl Phase {
    /// A result that is not cut into tiles.
    ///
    /// # Panics
    /// If the program has no such result, or it has rows of the part.
    pub fn output(&self, name: &str) -> Slot {
        match self.outputs.get(name).map(Vec::as_slice) {
            Some(&[slot]) => slot,
            other => panic!("the program has no result {name} in one piece: {other:?}"),
        }
    }
}

/// Programs bound to the sizes of one part.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// All tensors of all phases.
    pub tensors: Vec<LoweredTensor>,
    /// Where each origin lies: one slot, one a tile, or one a window of its update.
    pub origins: BTreeMap<Origin, Vec<Slot>>,
    /// What runs once, before everything else.
    pub setup: Vec<LoweredStep>,
    /// The programs, in the order in which they were given.
    pub phases: Vec<Phase>,
    /// What crosses between parts; none if there is one.
    pub exchanges: Vec<Exchange>,
}

impl Lowered {
    /// A tensor.
    ///
    /// # Panics
    /// If the slot is of another table.
    pub fn tensor(&self, slot: Slot) -> &LoweredTensor {
        &self.tensors[slot.0 as usize]
    }

    /// Several phases run one after the other: what an earlier one updated, a later one reads the new value of.
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

/// Binds programs, each with a name, to the sizes of one part. Names of later programs' tensors begin with the program's.
///
/// # Cost
/// O(operations (log operations + tiles^2)); nothing is looked at or allocated that grows with the graph.
pub fn lower(programs: &[(&str, &Program)], tiling: &Tiling, seed: u64) -> Lowered {
    let mut lowering = Lowering {
        table: Table::new(tiling),
        seed,
        setup: Run::default(),
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
    let (tensors, origins) = lowering.table.finish();
    Lowered { tensors, origins, setup: lowering.setup.finish(), phases, exchanges: lowering.exchanges }
}

/// Where the tensors of a program lie: a slot a tile, or one.
type Slots = BTreeMap<TensorId, Vec<Slot>>;

/// What is lowered so far.
struct Lowering<'a> {
    table: Table<'a>,
    seed: u64,
    setup: Run,
    /// What is computed from constants alone, by operation and operands.
    constants: BTreeMap<String, Vec<Vec<Slot>>>,
    exchanges: Vec<Exchange>,
    /// The tiles of the halos that are exchanged, by what is packed and over which block.
    halos: BTreeMap<(Slot, BlockSpec), Vec<Slot>>,
}

impl Lowering<'_> {
    fn phase(&mut self, prefix: &str, program: &Program) -> Phase {
        let mut slots = Slots::new();
        for (origin, &tensor) in program.origins() {
            let described = program.tensor(tensor);
            slots.insert(tensor, self.table.origin(origin, &described.name, described.ty));
        }
        let mut steps = Run::default();
        // Tensors of which each part holds a term.
        let mut terms: BTreeSet<TensorId> = BTreeSet::new();
        for op in program.ops() {
            if self.table.tiling().has_halo() && self.note_terms(program, op, &mut terms, &mut slots) {
                steps.close();
            }
            let reads: Vec<&[Slot]> = program.inputs(op).iter().map(|t| &slots[t][..]).collect();
            let outputs = program.op_outputs(op);
            let constant = program.tensor(outputs[0]).constant;
            let key = format!("{:?} {reads:?}", program.op(op));
            if let Some(known) = self.constants.get(&key).filter(|_| constant) {
                slots.extend(outputs.iter().copied().zip(known.iter().cloned()));
                continue;
            }
            let writes = self.outputs(prefix, program, op, &slots);
            slots.extend(outputs.iter().copied().zip(writes.iter().cloned()));
            let made = self.steps(program, op, &slots);
            if constant {
                self.setup.push(made);
                self.constants.insert(key, writes);
            } else {
                steps.push(made);
            }
        }
        let outputs = program.outputs().iter().map(|(name, tensor)| (name.clone(), slots[tensor].clone())).collect();
        Phase { steps: steps.finish(), outputs }
    }

    /// Slots for what an operation makes.
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

    /// A sum over vertices is a sum over parts of each part's. What is linear works on the terms; before anything else
    /// reads them they are added up. Returns whether `op` has to wait for that.
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
