//! Launches of attention and its gradients, and of the operations on single rows and parameters that belong to them.

use super::args::{self, MOST_STEPS};
use super::compile::File;
use super::edges::lookup;
use super::modules::THREADS;
use super::prepare::{BlockAddresses, Plan, blocks_of_cells, blocks_of_warps};
use super::rows::{WARP, columns, mask, pack_steps};
use crate::error::{Error, Result};
use crate::op::call::Call;
use crate::op::{Attention, AttentionPass, AttentionRows, Score};

/// Most columns of a warp: four per thread.
const MOST_COLUMNS: usize = 4 * WARP;

/// Most heads whose columns alternate: `TOGETHER` of `attention.cuh`.
const TOGETHER: usize = 8;

/// Threads that share a dot product: `OCTET` of `attention.cuh`.
const OCTET: usize = 8;

/// The heads and columns that a warp takes.
struct Slices {
    heads: usize,
    columns: usize,
    /// Slices of heads that are too wide for one.
    parts: usize,
}

impl Slices {
    /// Each warp takes at most one head per thread, and whole groups of heads whose columns alternate. `width` is the
    /// number of columns of a head that a warp adds.
    fn of(heads: usize, width: usize) -> Self {
        let groups = MOST_COLUMNS / width.max(1) / TOGETHER;
        let slice_heads = (groups * TOGETHER).clamp(TOGETHER, WARP).min(heads);
        let columns = slice_heads * width;
        let parts = columns.div_ceil(MOST_COLUMNS).max(1);
        Self { heads: slice_heads, columns: columns.min(MOST_COLUMNS), parts }
    }

    /// Returns the columns of a thread.
    fn tiles(&self) -> usize {
        self.columns.div_ceil(WARP).next_power_of_two()
    }
}

/// Returns the kernel name for a number of columns per thread; see the ends of `attention.cu` and `attention_grad.cu`.
fn kernel_name(score: Score, pass: AttentionPass, tiles: usize) -> &'static str {
    use AttentionPass::{Forward, Partial, SourceGrad, TargetGrad};
    let names = match (score, pass) {
        (Score::Gat, Forward | Partial) => ["attention_1", "attention_2", "attention_4"],
        (Score::Gatv2, Forward | Partial) => ["attention_v2_1", "attention_v2_2", "attention_v2_4"],
        (Score::Gat, SourceGrad) => ["attention_source_grad_1", "attention_source_grad_2", "attention_source_grad_4"],
        (Score::Gatv2, SourceGrad) => {
            ["attention_v2_source_grad_1", "attention_v2_source_grad_2", "attention_v2_source_grad_4"]
        }
        (Score::Gat, TargetGrad) => ["attention_target_grad"; 3],
        (Score::Gatv2, TargetGrad) => {
            ["attention_v2_target_grad_1", "attention_v2_target_grad_2", "attention_v2_target_grad_4"]
        }
    };
    names[tiles / 2]
}

/// Returns the columns of each head.
fn head_width(call: &'static str, d: usize, heads: usize) -> Result<usize> {
    if heads > 0 && d.is_multiple_of(heads) {
        return Ok(d / heads);
    }
    Err(Error::Argument { call, operand: "heads", want: "a divisor of the columns", got: heads as f64 })
}

impl Plan<'_> {
    /// Prepares a pass of attention, or a window of one, and the steps that follow it.
    pub(super) fn attention(&mut self, op: &Attention, call: &Call) -> Result<()> {
        let name = call.name_of_head();
        let (block, BlockAddresses { indptr, indices }) = self.block_of(call)?;
        let (own, rows, out) = (call.inputs[0], call.inputs[1], call.out());
        let transposed = op.pass == AttentionPass::SourceGrad;
        let values = if transposed { rows } else { own };
        let d = match op.score {
            Score::Gat => values.cols.saturating_sub(2 * op.heads),
            Score::Gatv2 => values.cols,
        };
        let width = head_width(name, d, op.heads)?;
        let mask = op.dropout.map(|dropout| mask(name, call.dropout_key(dropout.rate, dropout.salt, 0))).transpose()?;
        let end = call.first_source.unwrap_or(0).saturating_add(own.rows);
        if end > block.own_sources {
            let (index, limit) = (end as u64, block.own_sources as u64 + 1);
            return Err(Error::Index { call: name, operand: "the window's end", index, limit });
        }
        let has_columns = op.score == Score::Gatv2 || op.pass != AttentionPass::TargetGrad;
        let slices = Slices::of(op.heads, if has_columns { width } else { 0 });
        let at = |place: Option<usize>| place.map_or(Ok(0), |place| self.mat(call.inputs[place]));
        let (values_place, clock_place) = (op.place_of_edge_values(), op.place_of_clock());
        let target_grad = (op.score == Score::Gat && transposed).then_some(2);
        let steps = self.steps(call)?;
        let (first, rest) = steps.split_at(steps.len().min(MOST_STEPS));
        let limit = block.own_sources as u64 + block.halo_sources as u64;
        let windowed = call.first_source.is_some();
        let row_blocks = block.rows.div_ceil(THREADS as usize / WARP);
        let args = args::Attention {
            indptr,
            indices,
            own: self.mat(own)?,
            halo: call.halo.map_or(Ok(0), |halo| self.mat(halo))?,
            at_rows: self.mat(rows)?,
            sum: call.sum.map_or(Ok(0), |sum| self.mat(sum))?,
            out: self.mat(out)?,
            log_sum: call.outputs.get(1).map_or(Ok(0), |&log_sum| self.mat(log_sum))?,
            a: at(op.place_of_a())?,
            target_grad: at(target_grad)?,
            edge_values: at(values_place)?,
            edge_vector: at(values_place.map(|place| place + 1))?,
            clock: at(clock_place)?,
            ids: at(clock_place.map(|place| place + 1))?,
            fault: self.lookup(lookup(name, block, limit)),
            rows: block.rows as u64,
            edges: block.edges as u64,
            first_source: call.first_source.unwrap_or(0) as u64,
            own_sources: own.rows as u64,
            sources: if windowed { 0 } else { limit },
            windowed: u64::from(windowed),
            row_blocks: row_blocks as u64,
            mask: mask.unwrap_or_default(),
            own_cols: columns(name, own.cols)?,
            row_cols: columns(name, rows.cols)?,
            d: columns(name, d)?,
            heads: columns(name, op.heads)?,
            width: width as u32,
            slice_heads: slices.heads as u32,
            slice_columns: slices.columns as u32,
            parts: slices.parts as u32,
            head_bits: slices.heads.next_power_of_two().trailing_zeros(),
            transposed: u32::from(transposed),
            has_values: u32::from(op.edge_values),
            partial: u32::from(op.pass == AttentionPass::Partial),
            slope: op.slope,
            unused: 0,
            steps: pack_steps(first, out.float()),
        };
        let file = match op.pass {
            AttentionPass::Forward | AttentionPass::Partial => File::Attention,
            AttentionPass::SourceGrad | AttentionPass::TargetGrad => File::AttentionGrad,
        };
        let blocks = op.heads.div_ceil(slices.heads) * slices.parts * row_blocks;
        self.kernel(file.over(values.float()), kernel_name(op.score, op.pass, slices.tiles()), [blocks, 1], &args);
        self.steps_in_place(call, args.out, rest)
    }

    /// Prepares an operation on single rows or parameters.
    pub(super) fn attention_rows(&mut self, op: AttentionRows, call: &Call) -> Result<()> {
        let (name, x, out) = (call.name(), call.inputs[0], call.out());
        let at = |place: usize| call.inputs.get(place).map_or(Ok(0), |&mat| self.mat(mat));
        let [x_at, second, third, fourth] = [at(0)?, at(1)?, at(2)?, at(3)?];
        let cells = out.numbers();
        // A dot product has eight threads.
        let dots = |count: usize| blocks_of_cells(count * OCTET);
        let (d, heads, skip, blocks) = match op {
            AttentionRows::Grads { heads, score } => {
                let skip = if score == Score::Gat { x.cols + heads } else { 0 };
                (x.cols, heads, skip, blocks_of_warps(out.rows))
            }
            AttentionRows::Columns { part, .. } => (x.cols, 1, part * out.cols, blocks_of_cells(cells)),
            AttentionRows::HeadDots { heads } => (x.cols, heads, 0, dots(heads)),
            AttentionRows::HeadScale { heads } => (out.cols, heads, 0, blocks_of_cells(cells)),
            AttentionRows::Alternate { heads, inverse } => {
                (x.rows, heads, usize::from(inverse), blocks_of_cells(cells))
            }
            AttentionRows::ScoreWeight { heads } => (x.rows, heads, 0, blocks_of_cells(cells)),
            AttentionRows::ScoreWeightGrad { heads } => (out.rows, heads, 0, blocks_of_cells(cells)),
            AttentionRows::ScoreVectorGrad { heads, second } => {
                (out.cols, heads, out.cols + if second { heads } else { 0 }, dots(out.cols))
            }
        };
        head_width(name, d, heads)?;
        // The dot products of a vector's gradient are over the columns of its operands.
        let cols = if matches!(op, AttentionRows::ScoreVectorGrad { .. }) { x.cols } else { out.cols };
        let [rows, cols, d, heads, skip] = [out.rows, cols, d, heads, skip].map(|size| size as u64);
        let args =
            args::AttentionRows { x: x_at, second, third, fourth, out: self.mat(out)?, rows, cols, d, heads, skip };
        let kernel = match op {
            AttentionRows::Grads { .. } => "attention_grads",
            _ => name,
        };
        self.kernel(File::AttentionRows.over(x.float()), kernel, blocks, &args);
        Ok(())
    }
}
