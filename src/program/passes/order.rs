//! Order: linear-first, gather-first, or hoisted.
//!
//! A linear layer works on the columns of a matrix, a gather and a row scale on its rows, so they commute: `S A S (X
//! W^T) = (S A S X) W^T`. The multiplications are the same in both orders. The difference is the width at which rows
//! are gathered, and how often:
//!
//! | order | forward | backward |
//! | --- | --- | --- |
//! | linear-first | at the linear's output width | the same again |
//! | gather-first | at its input width | again only if the input itself needs a gradient |
//! | hoisted: gather-first on a constant input | once for the whole run | never |
//!
//! In a mini-batch, a gather has fewer rows than sources, so the multiplications count as well.
//!
//! # Source
//! MG-GCN (Balin et al., 2021), section 4.4. There, the backward product of the first layer is left out in any order.
//! That is exact only if the gather comes first, so it is left out here only in that case.

use lapidary_kernels::op::{EdgeWeight, Gather};

use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::shape::ProgramError;
use crate::program::{BatchEdges, BlockSpec, LevelSizes, Linear, Op, RowSpace, RowStep};

/// Quantities that the choice depends on, beside the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Number of vertices.
    pub vertices: u64,
    /// Number of edges, without added self-loops.
    pub edges: u64,
    /// The sizes of mini-batches, if the program is for them.
    pub levels: Option<LevelSizes>,
    /// Whether gradients are computed.
    pub backward: bool,
    /// How often the program will run; the cost of a hoisted gather is divided by this.
    pub runs: u64,
}

/// Moves each linear before or behind the gathers and row scales next to it, whichever moves fewer bytes per run. On a
/// tie the linear comes first.
///
/// # Errors
/// None for a well-formed program.
/// # Cost
/// O(operations).
pub fn order(program: &mut Program, workload: &Workload) -> Result<(), ProgramError> {
    // Rebuilding a segment does not affect other linears, so the list stays valid.
    let linears: Vec<OpId> =
        program.ops().into_iter().filter(|&op| *program.op(op) == Op::Linear(Linear::Product)).collect();
    for linear in linears {
        let segment = Segment::around(program, linear);
        if !segment.row_ops.iter().any(|&o| program.op(o).gathers()) {
            continue;
        }
        let linear_first = segment.linear_first_bytes(program, workload);
        let gather_first = segment.gather_first_bytes(program, workload);
        let want_first = linear_first <= gather_first;
        let is_there = if want_first { segment.linear_is_first(program) } else { segment.linear_is_last(program) };
        if !is_there {
            segment.rebuild(program, want_first)?;
        }
    }
    Ok(())
}

/// A linear and the gathers and row scales around it whose results have no other reader.
struct Segment {
    linear: OpId,
    /// The input of its first operation.
    input: TensorId,
    /// The output of its last operation.
    output: TensorId,
    /// The gathers and row scales, in the order in which they apply.
    row_ops: Vec<OpId>,
}

impl Segment {
    fn around(program: &Program, linear: OpId) -> Self {
        let mut input = program.inputs(linear)[0];
        let mut row_ops = Vec::new();
        while let Some(op) = program.producer(input).filter(|&op| is_row_op(program, op)) {
            if program.consumers(input).len() != 1 || is_output(program, input) {
                break;
            }
            row_ops.push(op);
            input = program.inputs(op)[0];
        }
        row_ops.reverse();
        let mut output = program.op_outputs(linear)[0];
        while let [reader] = program.consumers(output)[..] {
            let applies_to_it = is_row_op(program, reader) && program.inputs(reader)[0] == output;
            if !applies_to_it || is_output(program, output) {
                break;
            }
            row_ops.push(reader);
            output = program.op_outputs(reader)[0];
        }
        Self { linear, input, output, row_ops }
    }

    fn linear_is_first(&self, program: &Program) -> bool {
        program.inputs(self.linear)[0] == self.input
    }

    fn linear_is_last(&self, program: &Program) -> bool {
        program.op_outputs(self.linear)[0] == self.output
    }

    /// Returns the bytes per run if the row operations follow the linear: the forward pass, and the same again
    /// backward.
    fn linear_first_bytes(&self, program: &Program, workload: &Workload) -> f64 {
        let width = program.tensor(program.op_outputs(self.linear)[0]).ty.width;
        let passes = if workload.backward { 2.0 } else { 1.0 };
        passes * self.row_bytes(program, workload, width) + self.product_bytes(program, workload, self.input)
    }

    /// Returns the bytes per run if the row operations come first.
    fn gather_first_bytes(&self, program: &Program, workload: &Workload) -> f64 {
        let input = program.tensor(self.input);
        let once = self.row_bytes(program, workload, input.ty.width);
        if input.constant {
            return once / workload.runs.max(1) as f64;
        }
        let passes = if workload.backward && input.wants_gradient { 2.0 } else { 1.0 };
        passes * once + self.product_bytes(program, workload, self.output)
    }

    /// Returns what the product, forward and backward, costs with the rows of a tensor: 0 if it has as many rows in both
    /// orders.
    fn product_bytes(&self, program: &Program, workload: &Workload, at: TensorId) -> f64 {
        let rows_of = |tensor: TensorId| workload.rows(program.tensor(tensor).ty.rows);
        if rows_of(self.input) == rows_of(self.output) {
            return 0.0;
        }
        let [d_in, d_out] = [program.inputs(self.linear)[0], program.op_outputs(self.linear)[0]]
            .map(|tensor| program.tensor(tensor).ty.width as f64);
        let per_row = 4.0 * (d_in + d_out) + 2.0 * d_in * d_out / FLOPS_PER_BYTE;
        let passes = if workload.backward { 3.0 } else { 1.0 };
        passes * rows_of(at) * per_row
    }

    fn row_bytes(&self, program: &Program, workload: &Workload, width: usize) -> f64 {
        let bytes = |&op: &OpId| {
            let rows = workload.rows(program.tensor(program.op_outputs(op)[0]).ty.rows);
            op_bytes(program.op(op), workload, rows, width)
        };
        self.row_ops.iter().map(bytes).sum()
    }

    fn rebuild(&self, program: &mut Program, linear_first: bool) -> Result<(), ProgramError> {
        let weight = program.inputs(self.linear)[1];
        let mut x = self.input;
        if linear_first {
            x = program.push1(Linear::Product, &[x, weight])?;
        }
        for &op in &self.row_ops {
            let mut inputs = program.inputs(op);
            inputs[0] = x;
            x = program.push1(program.op(op).clone(), &inputs)?;
        }
        if !linear_first {
            x = program.push1(Linear::Product, &[x, weight])?;
        }
        program.redirect(self.output, x);
        let mut old: Vec<OpId> = self.row_ops.clone();
        old.push(self.linear);
        while let Some(unread) =
            old.iter().position(|&op| program.op_outputs(op).iter().all(|&t| program.consumers(t).is_empty()))
        {
            program.remove_op(old.swap_remove(unread));
        }
        Ok(())
    }
}

fn is_row_op(program: &Program, op: OpId) -> bool {
    match program.op(op) {
        Op::Row(RowStep::Scale) => true,
        Op::Gather(Gather { block, .. }) => {
            matches!(block, BlockSpec::Graph { .. } | BlockSpec::Batch { edges: BatchEdges::Drawn { .. }, .. })
        }
        _ => false,
    }
}

fn is_output(program: &Program, tensor: TensorId) -> bool {
    program.outputs().values().any(|&t| t == tensor)
}

/// Multiplications and additions of a product that take as long as a byte of memory, on current CPUs and GPUs.
const FLOPS_PER_BYTE: f64 = 8.0;

impl Workload {
    fn rows(&self, rows: RowSpace) -> f64 {
        match (rows, &self.levels) {
            (RowSpace::Level(level), Some(levels)) => levels.rows(level) as f64,
            (RowSpace::Kept, Some(levels)) => levels.kept as f64,
            (RowSpace::Copied, Some(levels)) => levels.copied as f64,
            _ => self.vertices as f64,
        }
    }

    /// Returns the number of edges of a block.
    fn edges(&self, block: BlockSpec) -> f64 {
        match (block, &self.levels) {
            (BlockSpec::Batch { edges, level, .. }, Some(levels)) => levels.block_edges(edges, level) as f64,
            (BlockSpec::Graph { self_loops: true, .. }, _) => self.edges as f64 + self.vertices as f64,
            _ => self.edges as f64,
        }
    }
}

fn op_bytes(op: &Op, workload: &Workload, n: f64, width: usize) -> f64 {
    let row = 4.0 * width as f64;
    match op {
        Op::Gather(Gather { block, weight }) => {
            let edges = workload.edges(*block);
            let per_edge = if *weight == EdgeWeight::Stored { 8.0 } else { 4.0 };
            8.0 * n + edges * (per_edge + row) + n * row
        }
        _ => 2.0 * n * row + 4.0 * n,
    }
}
