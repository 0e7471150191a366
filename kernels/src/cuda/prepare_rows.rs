//! Gathers, and kernels over cells and rows.

use super::args::{self, MOST_STEPS};
use super::choices::{Shape, columns_at_a_time};
use super::compile::File;
use super::engine::Task;
use super::faults::Lookup;
use super::modules::THREADS;
use super::prepare::{BlockAddresses, Plan, blocks_of_cells, blocks_of_warps, check_same, kernel_call};
use crate::call::{BlockSlots, Call, DropoutKey, Mat, RowStep, concat_len};
use crate::error::{Error, Result, check_shape};
use crate::float::Float;
use crate::memory::Slot;
use crate::random::{run_key, threshold};

/// Threads of a warp.
const WARP: usize = 32;

/// How a row of `d` cells is held by threads.
#[derive(Clone, Copy)]
pub(super) struct Width {
    /// Cells of one load.
    vector: usize,
    /// Threads a row: a power of two.
    pub(super) lanes: usize,
}

impl Width {
    /// As many cells a load as 16 bytes hold, if rows are a multiple of them.
    pub(super) fn of(d: usize, stored: Float) -> Self {
        let vector = match d {
            _ if d.is_multiple_of(8) && stored == Float::Bf16 => 8,
            _ if d.is_multiple_of(4) => 4,
            _ => 2 - d % 2,
        };
        Self { vector, lanes: d.div_ceil(vector).next_power_of_two().clamp(1, WARP) }
    }

    pub(super) fn rows_of_block(&self) -> usize {
        THREADS as usize / self.lanes
    }

    /// Loads a thread and edge that a gather holds in registers: as many as the row needs, up to what the kernels are made for.
    fn tiles(&self, d: usize) -> usize {
        let most = [4, 4, 2, 2, 1][self.vector / 2];
        d.div_ceil(self.vector * self.lanes).next_power_of_two().clamp(1, most)
    }
}

/// Where the sources of a gather are, beside its own matrix.
struct Sources {
    halo: u64,
    sum: u64,
    /// Of the own matrix.
    first: u64,
    windowed: bool,
}

/// A kernel for each vector and tile; see the end of `gather.cu`.
fn gather_name(vector: usize, tiles: usize, weighted: bool) -> &'static str {
    match (vector, tiles, weighted) {
        (8, _, false) => "gather_8x1",
        (4, 1, false) => "gather_4x1",
        (4, _, false) => "gather_4x2",
        (2, 1, false) => "gather_2x1",
        (2, 2, false) => "gather_2x2",
        (2, _, false) => "gather_2x4",
        (_, 1, false) => "gather_1x1",
        (_, 2, false) => "gather_1x2",
        (_, _, false) => "gather_1x4",
        (8, _, true) => "gather_weighted_8x1",
        (4, 1, true) => "gather_weighted_4x1",
        (4, _, true) => "gather_weighted_4x2",
        (2, 1, true) => "gather_weighted_2x1",
        (2, 2, true) => "gather_weighted_2x2",
        (2, _, true) => "gather_weighted_2x4",
        (_, 1, true) => "gather_weighted_1x1",
        (_, 2, true) => "gather_weighted_1x2",
        (_, _, true) => "gather_weighted_1x4",
    }
}

impl Plan<'_> {
    /// [`Call::Gather`] or [`Call::GatherWindow`], and what follows it.
    pub(super) fn gather(&mut self, call: &Call, steps: &[RowStep]) -> Result<()> {
        const CALL: &str = "gather";
        let (block, weights, own, out) = match *call {
            Call::Gather { block, weights, own, out, .. } | Call::GatherWindow { block, weights, own, out, .. } => {
                (block, weights, own, out)
            }
            _ => unreachable!("only gathers come here"),
        };
        let BlockAddresses { indptr, indices } = self.block(block)?;
        let weights = weights.map_or(Ok(0), |weights| self.vec::<f32>(weights, block.edges))?;
        let (own_at, out_at) = (self.mat(own)?, self.mat(out)?);
        let (n, d) = (block.rows, out.cols);
        let sources = self.sources(CALL, call, block, d)?;
        check_shape(CALL, "out", [n, d], [out.rows, out.cols])?;
        let steps = self.steps(CALL, steps, out)?;
        let (first, rest) = steps.split_at(steps.len().min(MOST_STEPS));
        let limit = block.own_sources as u64 + block.halo_sources as u64;
        let fault = self.lookup(lookup(CALL, block, limit));
        let args = args::Gather {
            indptr,
            indices,
            weights,
            own: own_at,
            halo: sources.halo,
            sum: sources.sum,
            out: out_at,
            fault,
            rows: n as u64,
            edges: block.edges as u64,
            first_source: sources.first,
            own_sources: own.rows as u64,
            sources: if sources.windowed { 0 } else { limit },
            windowed: u64::from(sources.windowed),
            d: columns(CALL, d)?,
            lanes: 0,
            steps: pack_steps(first, out.float),
        };
        let held = own.rows + block.halo_sources;
        let weighted = weights != 0;
        let shape = Shape { rows: n, edges: block.edges, sources: held, d, stored: own.float, weighted };
        self.launch_gather(shape, args);
        self.steps_in_place(CALL, out, out_at, rest)
    }

    /// Whole rows, or some of their columns at a time where the cache has room for those alone and that is faster.
    fn launch_gather(&mut self, shape: Shape, args: args::Gather) {
        let launch = |columns: usize| {
            let vector = Width::of(shape.d, shape.stored).vector;
            let width = Width { vector, lanes: columns.div_ceil(vector).next_power_of_two().clamp(1, WARP) };
            let tiles = width.tiles(columns);
            let slices = shape.d.div_ceil(tiles * width.lanes * width.vector);
            let name = gather_name(width.vector, tiles, shape.weighted);
            let blocks = [shape.rows.div_ceil(width.rows_of_block()), slices];
            kernel_call(
                File::Gather.over(shape.stored),
                name,
                blocks,
                &args::Gather { lanes: width.lanes as u32, ..args },
            )
        };
        let whole = launch(shape.d);
        let cache_bytes = self.engine().cache_bytes;
        let columns = columns_at_a_time(&shape, cache_bytes);
        let narrow = columns.and_then(|columns| Some((columns, launch(columns)?)));
        let chosen = match (whole, narrow) {
            (Some(whole), Some((columns, narrow))) => match self.engine().choices.by_columns(&shape) {
                Some(by_columns) => Some(Task::Kernel(if by_columns { narrow } else { whole })),
                None => Some(Task::Trial { shape, columns, calls: Box::new([whole, narrow]) }),
            },
            (whole, _) => whole.map(Task::Kernel),
        };
        chosen.into_iter().for_each(|task| self.add(task));
    }

    /// Where a gather's sources are, if they are what its block needs.
    fn sources(&self, name: &'static str, call: &Call, block: BlockSlots, d: usize) -> Result<Sources> {
        match *call {
            Call::Gather { own, halo, .. } => {
                let halo_at = halo.map_or(Ok(0), |halo| self.mat(halo))?;
                check_shape(name, "own", [block.own_sources, d], [own.rows, own.cols])?;
                if halo.is_some() || block.halo_sources > 0 {
                    let got = halo.map_or([0, 0], |halo| [halo.rows, halo.cols]);
                    check_shape(name, "halo", [block.halo_sources, d], got)?;
                }
                Ok(Sources { halo: halo_at, sum: 0, first: 0, windowed: false })
            }
            Call::GatherWindow { first, own, sum, .. } => {
                let sum_at = sum.map_or(Ok(0), |sum| self.mat(sum))?;
                let end = first.saturating_add(own.rows);
                if end > block.own_sources {
                    let (index, limit) = (end as u64, block.own_sources as u64 + 1);
                    return Err(Error::Index { call: name, operand: "the window's end", index, limit });
                }
                if let Some(sum) = sum {
                    check_shape(name, "sum", [block.rows, d], [sum.rows, sum.cols])?;
                }
                check_shape(name, "halo", [0, d], [block.halo_sources, d])?;
                check_shape(name, "own", [own.rows, d], [own.rows, own.cols])?;
                Ok(Sources { halo: 0, sum: sum_at, first: first as u64, windowed: true })
            }
            _ => unreachable!("only gathers come here"),
        }
    }

    /// A chain of calls that work cell by cell: the first is a step too.
    pub(super) fn cells(&mut self, head: &Call, steps: &[RowStep]) -> Result<()> {
        let name = head.name();
        let (x, first, out) = head.as_row_step().ok_or(Error::NotFusable { call: name })?;
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        // Of two operands, either may be the one that does not fit the output.
        match *head {
            Call::Add { a, b, .. } => {
                self.mat(b)?;
                check_same(name, "a", out, a)?;
                check_same(name, "b", out, b)?;
            }
            Call::ReluGrad { grad, y, .. } => {
                self.mat(y)?;
                check_same(name, "grad", out, grad)?;
                check_same(name, "y", out, y)?;
            }
            _ => {
                self.steps(name, &[first], x)?;
                check_same(name, "out", x, out)?;
            }
        }
        let mut all = self.steps(name, &[first], out)?;
        all.extend(self.steps(name, steps, out)?);
        let (now, later) = all.split_at(all.len().min(MOST_STEPS));
        self.rows(name, out, [x_at, out_at], now)?;
        self.steps_in_place(name, out, out_at, later)
    }

    /// Steps on rows that are there already.
    pub(super) fn steps_in_place(
        &mut self,
        call: &'static str,
        out: Mat,
        out_at: u64,
        steps: &[args::Step],
    ) -> Result<()> {
        steps.chunks(MOST_STEPS).try_for_each(|steps| self.rows(call, out, [out_at; 2], steps))
    }

    fn rows(&mut self, call: &'static str, out: Mat, [x, out_at]: [u64; 2], steps: &[args::Step]) -> Result<()> {
        let (rows, d, sources) = (out.rows as u64, columns(call, out.cols)?, out.rows as u64);
        let lanes = Width::of(out.cols, out.float).lanes as u32;
        let steps = pack_steps(steps, out.float);
        let args = args::Rows { x, picked: 0, out: out_at, fault: 0, rows, sources, d, lanes, steps };
        self.rows_kernel(out, &args);
        Ok(())
    }

    fn rows_kernel(&mut self, out: Mat, args: &args::Rows) {
        let width = Width::of(out.cols, out.float);
        let name = rows_kernel_name(width);
        let blocks = if out.cols == 0 { 0 } else { out.rows.div_ceil(width.rows_of_block()) };
        self.kernel(File::Rows.over(out.float), name, [blocks, 1], args);
    }

    pub(super) fn pack(&mut self, call: &Call) -> Result<()> {
        const CALL: &str = "pack";
        let &Call::Pack { x, rows, out } = call else { unreachable!("only packs come here") };
        let picked = self.vec::<u32>(rows, out.rows)?;
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        check_shape(CALL, "out", [out.rows, x.cols], [out.rows, out.cols])?;
        let limit = x.rows as u64;
        let fault = self.lookup(Lookup { call: CALL, operand: "rows", limit, edges: 0 });
        let (rows, d, lanes) = (out.rows as u64, columns(CALL, x.cols)?, Width::of(x.cols, x.float).lanes as u32);
        let steps = args::Steps::default();
        let args = args::Rows { x: x_at, picked, out: out_at, fault, rows, sources: limit, d, lanes, steps };
        self.rows_kernel(out, &args);
        Ok(())
    }

    /// A copy for each part, of numbers that are rows of one column.
    pub(super) fn concat(&mut self, parts: &[(Slot, usize)], out: Slot) -> Result<()> {
        let opened = parts.iter().map(|&(part, len)| self.vec::<f32>(part, len)).collect::<Result<Vec<_>>>()?;
        let mut out_at = self.vec::<f32>(out, concat_len(parts))?;
        for (part, &(_, len)) in opened.into_iter().zip(parts) {
            self.rows("concat", Mat::f32(out, len, 1), [part, out_at], &[])?;
            out_at += (len * size_of::<f32>()) as u64;
        }
        Ok(())
    }

    pub(super) fn round(&mut self, x: Mat, out: Mat) -> Result<()> {
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        check_same("round", "out", x, out)?;
        let cells = x.rows * x.cols;
        let args = args::Round { x: x_at, out: out_at, cells: cells as u64 };
        self.kernel(File::Rows.over(Float::F32), "round_cells", blocks_of_cells(cells), &args);
        Ok(())
    }

    pub(super) fn transpose(&mut self, call: &Call) -> Result<()> {
        let &Call::Transpose { x, out } = call else { unreachable!("only transposes come here") };
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        check_shape("transpose", "out", [x.cols, x.rows], [out.rows, out.cols])?;
        let squares = [x.rows.div_ceil(WARP), x.cols.div_ceil(WARP)];
        let args = args::Transpose {
            x: x_at,
            out: out_at,
            rows: x.rows as u64,
            cols: x.cols as u64,
            column_squares: squares[1] as u64,
        };
        self.kernel(File::Rows.over(x.float), "transpose", [squares[0] * squares[1], 1], &args);
        Ok(())
    }

    pub(super) fn permute_edges(&mut self, call: &Call) -> Result<()> {
        const CALL: &str = "permute_edges";
        let &Call::PermuteEdges { values, permutation, out, edges } = call else {
            unreachable!("only permutations come here")
        };
        let (values, out) = (self.vec::<f32>(values, edges)?, self.vec::<f32>(out, edges)?);
        let permutation = self.vec::<u64>(permutation, edges)?;
        let limit = edges as u64;
        let fault = self.lookup(Lookup { call: CALL, operand: "permutation", limit, edges: limit });
        let args = args::Permute { values, permutation, out, fault, edges: limit };
        self.kernel(File::Rows.over(Float::F32), "permute_edges", blocks_of_cells(edges), &args);
        Ok(())
    }

    pub(super) fn sparse_dropout(&mut self, call: &Call) -> Result<()> {
        const CALL: &str = "sparse_dropout";
        let &Call::SparseDropout { block, values, out, key, clock } = call else {
            unreachable!("only sparse dropouts come here")
        };
        let (clock, BlockAddresses { indptr, indices }) = (self.clock(clock)?, self.block(block)?);
        let (values, out) = (self.vec::<f32>(values, block.edges)?, self.vec::<f32>(out, block.edges)?);
        let mask = mask(CALL, key)?;
        let fault = self.lookup(lookup(CALL, block, u64::MAX));
        let (rows, edges) = (block.rows as u64, block.edges as u64);
        let args = args::SparseDropout { indptr, indices, values, out, clock, fault, rows, edges, mask };
        self.kernel(File::Rows.over(Float::F32), "sparse_dropout", blocks_of_warps(block.rows), &args);
        Ok(())
    }

    /// Steps with their operands, for rows of `out`.
    pub(super) fn steps(&self, call: &'static str, steps: &[RowStep], out: Mat) -> Result<Vec<args::Step>> {
        let step = |step: &RowStep| {
            let (kind, operand, mask) = match *step {
                RowStep::Scale(scale) => (0, self.vec::<f32>(scale, out.rows)?, args::Mask::default()),
                RowStep::AddBias(bias) => (1, self.vec::<f32>(bias, out.cols)?, args::Mask::default()),
                RowStep::Add(slot) => (2, self.mat(Mat { slot, ..out })?, args::Mask::default()),
                RowStep::Relu => (3, 0, args::Mask::default()),
                RowStep::ReluGrad(slot) => (4, self.mat(Mat { slot, ..out })?, args::Mask::default()),
                RowStep::Dropout { key, clock } => (5, self.clock(clock)?, mask(call, key)?),
            };
            Ok(args::Step { operand, kind, unused: 0, mask })
        };
        steps.iter().map(step).collect()
    }
}

/// Steps on rows that are stored so when they are written.
fn pack_steps(steps: &[args::Step], made: Float) -> args::Steps {
    let wide = u32::from(made == Float::F32);
    let mut packed = args::Steps { count: steps.len() as u32, wide, ..args::Steps::default() };
    packed.step[..steps.len()].copy_from_slice(steps);
    packed
}

/// What is needed to decide any cell of a dropout.
fn mask(call: &'static str, key: DropoutKey) -> Result<args::Mask> {
    let DropoutKey { seed, op, first_row, rate } = key;
    if !(0.0..1.0).contains(&rate) {
        let got = f64::from(rate);
        return Err(Error::Argument { call, operand: "rate", want: "at least 0 and below 1", got });
    }
    let scale = 1.0 / (1.0 - rate);
    Ok(args::Mask { run: run_key(seed), first_row, op, threshold: threshold(rate), scale, unused: 0 })
}

fn lookup(call: &'static str, block: BlockSlots, limit: u64) -> Lookup {
    Lookup { call, operand: "indices", limit, edges: block.edges as u64 }
}

/// The kernel that moves rows of this width.
pub(super) fn rows_kernel_name(width: Width) -> &'static str {
    ["rows_1", "rows_2", "rows_4", "rows_4", "rows_8"][width.vector / 2]
}

/// Kernels count columns in 32 bits, and slices of them in 16.
pub(super) fn columns(call: &'static str, d: usize) -> Result<u32> {
    const MOST: usize = 1 << 22;
    if d <= MOST {
        Ok(d as u32)
    } else {
        Err(Error::Argument { call, operand: "columns", want: "at most 4194304 on a GPU", got: d as f64 })
    }
}
