//! Launches of row steps, by themselves or after another kernel.

use super::args::{self, MOST_STEPS};
use super::compile::File;
use super::modules::THREADS;
use super::prepare::Plan;
pub(super) use crate::cuda::width::{WARP, Width};
use crate::error::{Error, Result};
use crate::op::RowStep;
use crate::op::call::{Call, Mat};
use crate::random::DropoutKey;
use crate::random::{run_key, threshold};
use crate::storage_type::StorageType;

impl Width {
    pub(super) fn rows_of_block(&self) -> usize {
        THREADS as usize / self.lanes
    }
}

impl Plan<'_> {
    /// Prepares a single step, or a chain of steps.
    pub(super) fn row_steps(&mut self, first: RowStep, call: &Call) -> Result<()> {
        let (x_at, out_at) = (self.mat(call.inputs[0])?, self.mat(call.out())?);
        let mut all = vec![self.step(call, first, call.head_inputs().get(1).copied())?];
        all.extend(self.steps(call)?);
        let (now, later) = all.split_at(all.len().min(MOST_STEPS));
        self.rows(call.name(), call.out(), [x_at, out_at], now)?;
        self.steps_in_place(call, out_at, later)
    }

    /// Returns the steps that follow the call's head.
    pub(super) fn steps(&self, call: &Call) -> Result<Vec<args::RowStepArgs>> {
        call.steps().map(|(step, beside)| self.step(call, step, beside)).collect()
    }

    fn step(&self, call: &Call, step: RowStep, beside: Option<Mat>) -> Result<args::RowStepArgs> {
        let operand = beside.map_or(Ok(0), |mat| self.mat(mat))?;
        let mask = match step {
            RowStep::Dropout { rate, salt, first_column } => {
                mask(call.name_of_head(), call.dropout_key(rate, salt, first_column))?
            }
            _ => args::Mask::default(),
        };
        let (_, kind) = step.record().step().expect("a row step's record says so");
        Ok(args::RowStepArgs { operand, kind, number: step.number(), mask })
    }

    /// Prepares steps on rows that are already written.
    pub(super) fn steps_in_place(&mut self, call: &Call, out_at: u64, steps: &[args::RowStepArgs]) -> Result<()> {
        let mut chunks = steps.chunks(MOST_STEPS);
        chunks.try_for_each(|steps| self.rows(call.name_of_head(), call.out(), [out_at; 2], steps))
    }

    pub(super) fn rows(
        &mut self,
        call: &'static str,
        out: Mat,
        [x, out_at]: [u64; 2],
        steps: &[args::RowStepArgs],
    ) -> Result<()> {
        let (rows, d, sources) = (out.rows as u64, columns(call, out.cols)?, out.rows as u64);
        let lanes = Width::of(out.cols, out.float()).lanes as u32;
        let steps = pack_steps(steps, out.float());
        let args = args::Rows { x, picked: 0, out: out_at, fault: 0, rows, sources, d, lanes, steps };
        self.rows_kernel(out, &args);
        Ok(())
    }

    pub(super) fn rows_kernel(&mut self, out: Mat, args: &args::Rows) {
        let width = Width::of(out.cols, out.float());
        let name = rows_kernel_name(width);
        let blocks = if out.cols == 0 { 0 } else { out.rows.div_ceil(width.rows_of_block()) };
        self.kernel(File::Rows.over(out.float()), name, [blocks, 1], args);
    }
}

/// Packs steps for a kernel. `made` is the storage type of its output.
pub(super) fn pack_steps(steps: &[args::RowStepArgs], made: StorageType) -> args::RowStepsArgs {
    let wide = u32::from(made == StorageType::F32);
    let mut packed = args::RowStepsArgs { count: steps.len() as u32, wide, ..args::RowStepsArgs::default() };
    packed.step[..steps.len()].copy_from_slice(steps);
    packed
}

/// Returns the settings that decide every cell of a dropout.
pub(super) fn mask(call: &'static str, key: DropoutKey) -> Result<args::Mask> {
    let DropoutKey { seed, op, first_row, first_column, rate } = key;
    if !(0.0..1.0).contains(&rate) {
        let got = f64::from(rate);
        return Err(Error::Argument { call, operand: "rate", want: "at least 0 and below 1", got });
    }
    let scale = 1.0 / (1.0 - rate);
    Ok(args::Mask { run: run_key(seed), first_row, op, threshold: threshold(rate), scale, first_column })
}

/// Returns the name of the kernel for rows of this width.
pub(super) fn rows_kernel_name(width: Width) -> &'static str {
    ["rows_1", "rows_2", "rows_4", "rows_4", "rows_8"][width.vector / 2]
}

/// Checks the number of columns. Kernels count columns in 32 bits, and slices of them in 16.
pub(super) fn columns(call: &'static str, d: usize) -> Result<u32> {
    const MOST: usize = 1 << 22;
    if d <= MOST {
        Ok(d as u32)
    } else {
        Err(Error::Argument { call, operand: "columns", want: "at most 4194304 on a GPU", got: d as f64 })
    }
}
