//! Levels: turns a program over all vertices into one over the levels of a mini-batch.
//!
//! A mini-batch with L layers has the levels 0 to L. Level L has the seeds. Each gather over the graph reads the level
//! before that of its rows. A level has the first vertices of the level before it, so whatever is needed at a later
//! level than it is computed at is taken by a gather over [`BatchEdges::Own`], whose gradient is 0 for all other rows.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use lapidary_kernels::op::{BatchEdges, EdgeWeight, Gather, LoopWeight, RowSpace, RowStep, TensorType};

use super::dataflow::{OpId, Program, TensorId};
use super::ir::Origin;
use super::shape::ProgramError;
use super::{Attention, BlockSpec, Op};

/// The most layers of mini-batches.
pub const MOST_LAYERS: usize = 16;

/// The sizes of the levels of a mini-batch, or bounds of them for many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
pub struct LevelSizes {
    /// Number of vertices of each level.
    rows: [u64; MOST_LAYERS + 1],
    /// Number of edges drawn into each level, and of self-loops among them. The first level has none.
    edges: [[u64; 2]; MOST_LAYERS + 1],
    /// Number of non-zeros of the sparse features of its vertices.
    pub feature_cells: u64,
    /// Number of rows of features that stay on the device; the same for all batches.
    pub kept: u64,
    /// Number of vertices whose rows are among them, if rows stay.
    pub found: u64,
    /// Number of vertices whose rows are not, if rows stay.
    pub copied: u64,
    /// Number of seeds of the whole batch, over which the loss is a mean.
    pub labelled: u64,
}

impl LevelSizes {
    /// Creates sizes from the number of vertices of each level, and of the edges drawn into each but the first, with the
    /// self-loops among them.
    ///
    /// # Panics
    /// If there are more than [`MOST_LAYERS`] layers.
    pub fn new(rows: &[u64], drawn: &[[u64; 2]], feature_cells: u64, labelled: u64) -> Self {
        let mut sizes = Self { feature_cells, labelled, ..Self::default() };
        sizes.rows[..rows.len()].copy_from_slice(rows);
        sizes.edges[1..=drawn.len()].copy_from_slice(drawn);
        sizes
    }

    /// Returns the number of vertices of a level.
    pub fn rows(&self, level: u8) -> u64 {
        self.rows[level as usize]
    }

    /// Returns the number of edges drawn into a level.
    pub fn drawn(&self, level: u8) -> u64 {
        self.edges[level as usize][0]
    }

    /// Returns the number of edges drawn into all levels.
    pub fn all_drawn(&self) -> u64 {
        self.edges.iter().map(|[drawn, _]| drawn).sum()
    }

    /// Returns the number of edges of a block into a level.
    pub fn block_edges(&self, edges: BatchEdges, level: u8) -> u64 {
        let ([drawn, loops], rows) = (self.edges[level as usize], self.rows(level));
        match edges {
            BatchEdges::Drawn { self_loops: false } => drawn,
            BatchEdges::Drawn { self_loops: true } => (drawn - loops).saturating_add(rows),
            BatchEdges::Own => rows,
            BatchEdges::Features { .. } => self.feature_cells,
            BatchEdges::Kept => self.found,
            BatchEdges::Copied => self.copied,
        }
    }

    /// Returns sizes that are larger by a tenth, so that hardly any batch of the same kind passes them.
    pub fn with_room(&self) -> Self {
        let more = |size: u64| size.saturating_add(size.div_ceil(10));
        let mut roomy = *self;
        roomy.rows.iter_mut().for_each(|rows| *rows = more(*rows));
        roomy.edges.iter_mut().for_each(|[drawn, _]| *drawn = more(*drawn));
        [roomy.feature_cells, roomy.found, roomy.copied] = [self.feature_cells, self.found, self.copied].map(more);
        roomy
    }

    /// Returns sizes that no batch passes that is within these or within the others.
    pub fn or(&self, other: &Self) -> Self {
        let mut both = *self;
        both.rows.iter_mut().zip(other.rows).for_each(|(rows, others)| *rows = others.max(*rows));
        for ([drawn, loops], [others, other_loops]) in both.edges.iter_mut().zip(other.edges) {
            // Self-loops that were drawn are replaced, so without them there are most edges.
            let plain = (others - other_loops).max(*drawn - *loops);
            *drawn = others.max(*drawn);
            *loops = *drawn - plain;
        }
        both.feature_cells = other.feature_cells.max(self.feature_cells);
        both.kept = other.kept.max(self.kept);
        both.found = other.found.max(self.found);
        both.copied = other.copied.max(self.copied);
        both
    }
}

/// Returns the forward program of mini-batches with this number of layers. Its outputs have the same names. Each
/// operation works on the smallest level from which its results are read.
///
/// Edges that were drawn stand for others, so every sum over them is weighted. If rows of dense features stay on the
/// device (`keeps`), the features are put together from these and from those that a batch copies.
///
/// # Errors
/// [`ProgramError::Levels`] if another number of gathers follow one another; [`ProgramError::NotInBatches`].
/// # Cost
/// O(operations log operations).
pub fn over_levels(program: &Program, layers: usize, keeps: bool) -> Result<Program, ProgramError> {
    let levels = Levels::of(program, layers)?;
    let mut made = Made { program: Program::new(), tensors: BTreeMap::new(), levels };
    for &old in program.origins().values() {
        match program.tensor(old).origin {
            Some(Origin::Features) if keeps && made.levels.of_tensor(old) == 0 => made.features(program, old)?,
            _ => made.origin(program, old)?,
        }
    }
    for op in program.ops() {
        made.op(program, op)?;
    }
    for (name, &output) in program.outputs() {
        let level = made.levels.of_tensor(output);
        let output = made.at(output, level)?;
        made.program.set_output(name.clone(), output);
    }
    Ok(made.program)
}

/// The level at which each tensor with rows of vertices is computed.
struct Levels {
    last: u8,
    of: BTreeMap<TensorId, u8>,
}

impl Levels {
    fn of(program: &Program, layers: usize) -> Result<Self, ProgramError> {
        // Counted from the seeds first: how many gathers are between a tensor and a loss.
        let mut before: BTreeMap<TensorId, usize> = BTreeMap::new();
        for op in program.ops().into_iter().rev() {
            let out = program.op_outputs(op).iter().filter_map(|output| before.get(output).copied()).max().unwrap_or(0);
            let gathers = program.op(op).gathers() && matches!(program.op(op).block(), Some(BlockSpec::Graph { .. }));
            for (place, input) in program.inputs(op).into_iter().enumerate() {
                let needed = out + usize::from(gathers && place == 0);
                let known = before.entry(input).or_insert(0);
                *known = needed.max(*known);
            }
        }
        let gathers = before.values().copied().max().unwrap_or(0);
        let last = u8::try_from(layers).ok().filter(|_| gathers == layers);
        let last = last.ok_or(ProgramError::Levels { gathers, levels: layers })?;
        // Products of sparse features are computed for all vertices of the batch.
        for op in program.ops() {
            if matches!(program.op(op).block(), Some(BlockSpec::Features { .. })) {
                before.extend(program.op_outputs(op).into_iter().map(|output| (output, layers)));
            }
        }
        Ok(Self { last, of: before.into_iter().map(|(tensor, before)| (tensor, last - before as u8)).collect() })
    }

    fn of_tensor(&self, tensor: TensorId) -> u8 {
        self.of.get(&tensor).copied().unwrap_or(self.last)
    }
}

/// The new program so far.
struct Made {
    program: Program,
    /// The new tensor of an old one, at each level at which it is read.
    tensors: BTreeMap<(TensorId, u8), TensorId>,
    levels: Levels,
}

impl Made {
    /// Adds what no operation makes. Arrays with a row per edge of the graph are added where they are read.
    fn origin(&mut self, program: &Program, old: TensorId) -> Result<(), ProgramError> {
        let described = program.tensor(old);
        let level = self.levels.of_tensor(old);
        let Some(origin) = described.origin.clone() else { return Ok(()) };
        let (origin, rows) = match described.ty.rows {
            RowSpace::Vertices => (Origin::OfBatch(origin.into(), level), RowSpace::Level(level)),
            RowSpace::Edges(block @ BlockSpec::Features { .. }) => {
                (Origin::OfBatch(origin.into(), 0), RowSpace::Edges(features(block)))
            }
            RowSpace::Edges(_) | RowSpace::Sources(_) => return Ok(()),
            rows => (origin, rows),
        };
        let new = self.program.input(origin, TensorType { rows, ..described.ty })?;
        self.tensors.insert((old, level), new);
        Ok(())
    }

    /// Adds dense features, of which some rows stay on the device. A row that is not among the kept ones, or not among
    /// the copied ones, is 0 there.
    fn features(&mut self, program: &Program, old: TensorId) -> Result<(), ProgramError> {
        let ty = program.tensor(old).ty;
        let mut rows = |origin, rows, edges| {
            let block = BlockSpec::Batch { edges, level: 0, transposed: false };
            let some = self.program.input(origin, TensorType { rows, ..ty })?;
            self.program.push1(Gather::over(block), &[some])
        };
        let kept = rows(Origin::KeptFeatures, RowSpace::Kept, BatchEdges::Kept)?;
        let copied = rows(Origin::CopiedFeatures, RowSpace::Copied, BatchEdges::Copied)?;
        let all = self.program.push1(RowStep::Add, &[copied, kept])?;
        self.tensors.insert((old, 0), all);
        Ok(())
    }

    /// Adds an operation, at the level of its results.
    fn op(&mut self, program: &Program, id: OpId) -> Result<(), ProgramError> {
        let (old, outputs) = (program.op(id), program.op_outputs(id));
        let level = outputs.iter().map(|&output| self.levels.of_tensor(output)).min().unwrap_or(self.levels.last);
        let not_here = ProgramError::NotInBatches { op: old.name() };
        let mut op = old.clone();
        let (mut drawn, mut weights) = (None, None);
        match &mut op {
            Op::Gather(Gather { block: block @ BlockSpec::Graph { .. }, weight }) => {
                drawn = Some(*block);
                *block = drawn_edges(*block, level);
                weights = (*weight == EdgeWeight::One).then_some(*block);
                *weight = EdgeWeight::Stored;
            }
            Op::Attention(Attention { block: block @ BlockSpec::Graph { .. }, .. }) => {
                drawn = Some(*block);
                *block = drawn_edges(*block, level);
            }
            Op::Gather(Gather { block: block @ BlockSpec::Features { .. }, .. }) => *block = features(*block),
            other if other.block().is_some() => return Err(not_here),
            _ => {}
        }
        let mut inputs = Vec::new();
        for (place, input) in program.inputs(id).into_iter().enumerate() {
            let described = program.tensor(input);
            inputs.push(match (described.ty.rows, &described.origin, op.block()) {
                (RowSpace::Edges(BlockSpec::Graph { .. }), Some(Origin::EdgeWeights(_, loops)), Some(block)) => {
                    self.edge_weights(block, *loops)?
                }
                (RowSpace::Sources(_), Some(Origin::SourceIds(_)), Some(block)) => {
                    let ty = TensorType { rows: RowSpace::Sources(block), ..described.ty };
                    self.program.input(Origin::SourceIds(block), ty)?
                }
                (RowSpace::Edges(BlockSpec::Graph { .. }) | RowSpace::Sources(_), ..) => return Err(not_here),
                (RowSpace::Vertices, ..) if drawn.is_some() && place == 0 => self.at(input, level - 1)?,
                (RowSpace::Vertices, ..) => self.at(input, level)?,
                _ => self.at(input, self.levels.of_tensor(input))?,
            });
        }
        if let Some(block) = weights {
            inputs.push(self.edge_weights(block, LoopWeight::One)?);
        }
        let new = self.program.push(op, &inputs)?;
        for (old, new) in outputs.into_iter().zip(new) {
            // The levels of the results of one operation are the same.
            self.levels.of.insert(old, level);
            self.tensors.insert((old, level), new);
        }
        Ok(())
    }

    fn edge_weights(&mut self, block: BlockSpec, loops: LoopWeight) -> Result<TensorId, ProgramError> {
        self.program.input(Origin::EdgeWeights(block, loops), TensorType::f32(RowSpace::Edges(block), 1))
    }

    /// Returns the new tensor of an old one at a level, which is not before the one that it is computed at.
    fn at(&mut self, old: TensorId, level: u8) -> Result<TensorId, ProgramError> {
        if let Some(&new) = self.tensors.get(&(old, level)) {
            return Ok(new);
        }
        let before = self.at(old, level - 1)?;
        let block = BlockSpec::Batch { edges: BatchEdges::Own, level, transposed: false };
        let new = self.program.push1(Gather::over(block), &[before])?;
        self.tensors.insert((old, level), new);
        Ok(new)
    }
}

/// Returns the drawn edges of a block of the graph, into a level.
fn drawn_edges(block: BlockSpec, level: u8) -> BlockSpec {
    let self_loops = matches!(block, BlockSpec::Graph { self_loops: true, .. });
    BlockSpec::Batch { edges: BatchEdges::Drawn { self_loops }, level, transposed: false }
}

/// Returns the sparse features of the vertices of a batch.
fn features(block: BlockSpec) -> BlockSpec {
    match block {
        BlockSpec::Features { width, transposed } => {
            BlockSpec::Batch { edges: BatchEdges::Features { width }, level: 0, transposed }
        }
        other => other,
    }
}
