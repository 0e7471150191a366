//! Lowering: programs and the sizes of a part become one table of tensors with true sizes, and kernel calls over it.
//!
//! Several programs (a training epoch, its evaluation) are lowered together and share what they have in common:
//! tensors of one origin, blocks, and everything that is computed from constants alone, which runs once before the
//! first epoch (that is how a hoisted gather comes to be).
//!
//! Every part of a graph is lowered by itself, to the same steps over the same slots; only sizes differ. What crosses
//! between parts is a list of [`Exchange`]s.

mod bind;
mod contents;
mod inputs;
mod routes;
mod sizes;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use lapidary_kernels::{Call, Mat, Slot};

use bind::Binder;
pub use contents::{Contents, Supply};
pub use inputs::{FeatureData, Inputs, LabelData};
pub use routes::{Routes, Source};
pub use sizes::{Cut, Sizes};
use table::Table;

use crate::program::{BlockSpec, Op, OpId, Origin, Program, RowSpace, TensorId};

/// What a lowered tensor is to the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    pub kind: Kind,
    /// What a constant that no operation makes holds.
    pub contents: Option<Contents>,
}

/// One kernel call and the name of the operation behind it.
#[derive(Clone, Debug)]
pub struct Step {
    /// That of its first output: unique.
    pub name: String,
    /// What the device does.
    pub call: Call,
    /// Outputs that are the next epoch's value of an input: `(output, input)`.
    pub next: Vec<(Slot, Slot)>,
    /// The phase that it is part of; 0 in the setup.
    pub phase: usize,
}

/// What the parts make together of what each of them publishes. The slots are the same on every part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Each part packs the rows that others read; each receives the rows of its halo.
    Halo {
        /// Published by each part, `[packed, width]`.
        packed: Slot,
        /// Received by each part, `[halo, width]`.
        halo: Slot,
        /// Over which block the rows are gathered.
        block: BlockSpec,
        /// Numbers a row.
        width: usize,
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
    /// What every part publishes.
    pub fn published(&self) -> Slot {
        match *self {
            Self::Halo { packed, .. } => packed,
            Self::Sum { term, .. } => term,
        }
    }

    /// What every part receives.
    pub fn received(&self) -> Slot {
        match *self {
            Self::Halo { halo, .. } => halo,
            Self::Sum { sum, .. } => sum,
        }
    }
}

/// One of the programs that were lowered together.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Its calls, in order.
    pub steps: Vec<Step>,
    /// Its results.
    pub outputs: BTreeMap<String, Slot>,
}

/// Programs bound to the sizes of one part.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// All tensors of all phases.
    pub tensors: Vec<LoweredTensor>,
    /// Where each origin lies.
    pub origins: BTreeMap<Origin, Slot>,
    /// What runs once, before everything else.
    pub setup: Vec<Step>,
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
    pub fn sequence(&self, phases: &[usize]) -> Vec<Step> {
        let mut newest: BTreeMap<Slot, Slot> = BTreeMap::new();
        let mut steps = Vec::new();
        for &phase in phases {
            let newest_of = |slot: Slot| newest.get(&slot).copied().unwrap_or(slot);
            let renamed =
                self.phases[phase].steps.iter().map(|step| Step { call: step.call.renamed(newest_of), ..step.clone() });
            let renamed: Vec<Step> = renamed.collect();
            newest.extend(renamed.iter().flat_map(|step| &step.next).map(|&(new, old)| (old, new)));
            steps.extend(renamed);
        }
        steps
    }
}

/// Binds programs, each with a name, to the sizes of one part. Names of later programs' tensors begin with the program's.
///
/// # Cost
/// O(operations log operations); nothing is looked at or allocated that grows with the graph.
pub fn lower(programs: &[(&str, &Program)], sizes: &Sizes, seed: u64) -> Lowered {
    let mut lowering = Lowering {
        table: Table::new(sizes),
        seed,
        setup: Vec::new(),
        constants: BTreeMap::new(),
        exchanges: Vec::new(),
    };
    let mut phases = Vec::new();
    for (i, (name, program)) in programs.iter().enumerate() {
        let prefix = if i == 0 { String::new() } else { format!("{name}.") };
        phases.push(lowering.phase(&prefix, program));
    }
    let (tensors, origins) = lowering.table.finish();
    Lowered { tensors, origins, setup: lowering.setup, phases, exchanges: lowering.exchanges }
}

/// What is lowered so far.
struct Lowering<'a> {
    table: Table<'a>,
    seed: u64,
    setup: Vec<Step>,
    /// What is computed from constants alone, by operation and operands.
    constants: BTreeMap<String, Vec<Slot>>,
    exchanges: Vec<Exchange>,
}

impl Lowering<'_> {
    fn phase(&mut self, prefix: &str, program: &Program) -> Phase {
        let mut slots: BTreeMap<TensorId, Slot> = BTreeMap::new();
        for (origin, &tensor) in program.origins() {
            let described = program.tensor(tensor);
            slots.insert(tensor, self.table.origin(origin, &described.name, described.ty));
        }
        let mut steps = Vec::new();
        // Tensors of which each part holds a term.
        let mut terms: BTreeSet<TensorId> = BTreeSet::new();
        for op in program.ops() {
            if self.table.sizes().parts > 1 {
                self.note_terms(program, op, &mut terms, &mut slots);
            }
            let reads: Vec<Slot> = program.inputs(op).iter().map(|t| slots[t]).collect();
            let outputs = program.op_outputs(op);
            let constant = program.tensor(outputs[0]).constant;
            let key = format!("{:?} {reads:?}", program.op(op));
            if let Some(known) = self.constants.get(&key).filter(|_| constant) {
                slots.extend(outputs.iter().copied().zip(known.iter().copied()));
                continue;
            }
            let writes = self.outputs(prefix, program, op, &slots);
            slots.extend(outputs.iter().copied().zip(writes.iter().copied()));
            let next = outputs
                .iter()
                .zip(&writes)
                .filter_map(|(tensor, &slot)| program.next().get(tensor).map(|input| (slot, slots[input])));
            let next: Vec<(Slot, Slot)> = next.collect();
            let mut call = Binder { program, op, slots: &slots, table: &mut self.table, seed: self.seed }.call();
            let name = self.table.name(writes[0]).to_owned();
            let list = if constant { &mut self.setup } else { &mut steps };
            let (op, head) = match (program.op(op), &mut call) {
                (Op::Fused { head: op, .. }, Call::Fused { head, .. }) => (&**op, &mut **head),
                alone => alone,
            };
            match (op, head) {
                (Op::Gather { block }, Call::Gather { own, halo, .. }) if self.table.sizes().parts > 1 => {
                    let block = self.table.sizes().canonical(*block);
                    let (received, pack) = exchange_rows(&mut self.table, &mut self.exchanges, *own, block);
                    list.extend(pack);
                    *halo = (received.rows > 0).then_some(received);
                }
                (_, Call::LinearWeightGrad { grad, x, workspace, .. }) => {
                    let sizes = [x.rows, x.cols, grad.cols].map(|size| size as u64);
                    *workspace = self.table.workspace(&name, sizes);
                }
                _ => {}
            }
            list.push(Step { name, call, next, phase: 0 });
            if constant {
                self.constants.insert(key, writes);
            }
        }
        let outputs = program.outputs().iter().map(|(name, tensor)| (name.clone(), slots[tensor])).collect();
        Phase { steps, outputs }
    }

    /// Slots for what an operation makes.
    fn outputs(&mut self, prefix: &str, program: &Program, op: OpId, slots: &BTreeMap<TensorId, Slot>) -> Vec<Slot> {
        let outputs = program.op_outputs(op);
        let slots = outputs.iter().map(|tensor| {
            let described = program.tensor(*tensor);
            let name = match program.next().get(tensor) {
                Some(input) => format!("{}'", self.table.name(slots[input])),
                None => format!("{prefix}{}", described.name),
            };
            self.table.tensor(name, described.ty, if described.constant { Kind::Constant } else { Kind::Local })
        });
        slots.collect()
    }

    /// A sum over vertices is a sum over parts of each part's. What is linear works on the terms; before anything else
    /// reads them they are added up.
    fn note_terms(
        &mut self,
        program: &Program,
        op: OpId,
        terms: &mut BTreeSet<TensorId>,
        slots: &mut BTreeMap<TensorId, Slot>,
    ) {
        let inputs = program.inputs(op);
        let local = |rows| !matches!(rows, RowSpace::Param(_) | RowSpace::Scalar);
        let sums_vertices = inputs.iter().any(|&t| local(program.tensor(t).ty.rows));
        let outputs = program.op_outputs(op);
        let makes_term = sums_vertices && !local(program.tensor(outputs[0]).ty.rows);
        let is_linear = match program.op(op) {
            Op::Transpose => true,
            Op::Add => inputs.iter().all(|t| terms.contains(t)),
            _ => false,
        };
        if is_linear && inputs.iter().any(|t| terms.contains(t)) {
            terms.extend(outputs);
            return;
        }
        for tensor in inputs {
            if terms.remove(&tensor) {
                let term = slots[&tensor];
                let name = format!("{}.sum", self.table.name(term));
                let sum = self.table.tensor(name, program.tensor(tensor).ty, Kind::Received);
                self.exchanges.push(Exchange::Sum { term, sum });
                slots.insert(tensor, sum);
            }
        }
        if makes_term {
            terms.extend(outputs);
        }
    }
}

/// The halo of `own` over `block`, and the step that packs what other parts need of it, unless it was packed before.
fn exchange_rows(
    table: &mut Table<'_>,
    exchanges: &mut Vec<Exchange>,
    own: Mat,
    spec: BlockSpec,
) -> (Mat, Option<Step>) {
    let cut = table.sizes().cut(spec);
    let (packed_rows, halo_rows) = (cut.packed as usize, cut.halo as usize);
    let name = format!("{}.{}", table.name(own.slot), table::block_name(spec));
    let (packed_name, halo_name) = (format!("pack {name}"), format!("halo {name}"));
    if let Some(halo) = table.named(&halo_name) {
        return (Mat { slot: halo, rows: halo_rows, cols: own.cols }, None);
    }
    let bytes = |rows: usize| 4 * (rows as u64).saturating_mul(own.cols as u64);
    let rows = table.packed_rows(spec);
    let packed = table.push(packed_name.clone(), bytes(packed_rows), Kind::Local, None);
    let halo = table.push(halo_name, bytes(halo_rows), Kind::Received, None);
    exchanges.push(Exchange::Halo { packed, halo, block: spec, width: own.cols });
    let out = Mat { slot: packed, rows: packed_rows, cols: own.cols };
    let step = Step { name: packed_name, call: Call::Pack { x: own, rows, out }, next: Vec::new(), phase: 0 };
    (Mat { slot: halo, rows: halo_rows, cols: own.cols }, Some(step))
}
