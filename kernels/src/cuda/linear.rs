//! Launches of dense products, sums over rows, and operations that prepare a weight for a product.

use super::args;
use super::blas::DenseProduct;
use super::compile::File;
use super::engine::Task;
use super::prepare::{Plan, blocks_of_cells};
use crate::cpu::linear_weight_grad_workspace_bytes;
use crate::error::{Error, Result};
use crate::matmul::Matmul;
use crate::op::call::{Call, Mat};
use crate::op::{Grid, Linear, Slice};
use crate::storage_type::StorageType;

/// Side of the square of a product that one block computes: `SQUARE` of `product.cu`.
const SQUARE: usize = 64;

/// Rows and columns of a product that one block computes by tensor cores: `DOWN` and `ACROSS` of `product_3xtf32.cu`.
const RECTANGLE: [usize; 2] = [128, 64];

/// Side of the square of a transpose that one block computes: threads per warp.
const WARP: usize = 32;

/// Most parts of a sum over rows, and fewest rows per part.
const MOST_PARTS: usize = 256;
const LEAST_ROWS: usize = 256;

/// How the rows of a sum are split into parts, by their number alone.
pub(super) struct Cut {
    pub(super) parts: usize,
    pub(super) rows: usize,
}

impl Cut {
    pub(super) fn new(n: usize, most_parts: usize, least_rows: usize) -> Self {
        let rows = n.div_ceil(most_parts).max(least_rows);
        Self { parts: n.div_ceil(rows), rows }
    }
}

impl Plan<'_> {
    pub(super) fn linear(&mut self, op: Linear, call: &Call) -> Result<()> {
        let (first, out) = (call.inputs[0], call.out());
        match op {
            Linear::Product | Linear::ProductOnto => self.product_then(true, call),
            Linear::InputGrad | Linear::InputGradOnto => self.product_then(false, call),
            Linear::WeightGrad => self.weight_grad(call),
            Linear::ColumnSum => self.column_sum(first, out),
            Linear::Round => self.round(first, out),
            Linear::Transpose => self.transpose(first, out),
            Linear::Slice(_) | Linear::Columns { .. } => {
                self.slice(first, op.rectangle(first.rows).expect("it copies one"), out)
            }
            Linear::Join(_) | Linear::Beside { .. } => self.join(call, op.grid(out.rows).expect("it joins one")),
        }
    }

    /// Prepares a product with a weight, and the steps that follow it.
    fn product_then(&mut self, b_transposed: bool, call: &Call) -> Result<()> {
        let (a, weight, out) = (call.inputs[0], call.inputs[1], call.out());
        let (a_at, b_at, out_at) = (self.mat(a)?, self.mat(weight)?, self.mat(out)?);
        let sum = call.head_inputs().get(2).map(|&sum| self.mat(sum)).transpose()?;
        let steps = self.steps(call)?;
        let product = DenseProduct {
            a: a_at,
            a_transposed: false,
            b: b_at,
            b_transposed,
            out: out_at,
            m: a.rows,
            n: out.cols,
            k: a.cols,
            adds: sum.is_some(),
            stored: a.float(),
            made: out.float(),
        };
        if let Some(sum) = sum {
            self.rows(call.name_of_head(), out, [sum, out_at], &[])?;
        }
        self.product(product, None);
        self.steps_in_place(call, out_at, &steps)
    }

    fn weight_grad(&mut self, call: &Call) -> Result<()> {
        let (grad, x, out) = (call.inputs[0], call.inputs[1], call.out());
        let (n, d_in, d_out) = (x.rows, x.cols, grad.cols);
        let need_bytes = linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64) as usize;
        let (grad_at, x_at, out_at) = (self.mat(grad)?, self.mat(x)?, self.mat(out)?);
        let room = call.workspace.map(|slot| self.vec::<u8>(slot, need_bytes)).transpose()?;
        if need_bytes > 0 && room.is_none() {
            let (call, operand) = (call.name(), "workspace");
            return Err(Error::Shape { call, operand, want: [need_bytes / 4, 1], got: [0, 1] });
        }
        let product = DenseProduct {
            a: grad_at,
            a_transposed: true,
            b: x_at,
            b_transposed: false,
            out: out_at,
            m: d_out,
            n: d_in,
            k: n,
            adds: false,
            stored: x.float(),
            made: out.float(),
        };
        let room = room.filter(|_| need_bytes > 0);
        self.product(product, room.map(|room| (room, need_bytes / (4 * d_in * d_out))));
        Ok(())
    }

    /// Prepares a product. Lapidary's own kernels may split its sum into parts, if `parts` has their workspace and number.
    fn product(&mut self, product: DenseProduct, parts: Option<(u64, usize)>) {
        let DenseProduct { a, a_transposed, b, b_transposed, out, m, n, k, adds, stored, made } = product;
        if m == 0 || n == 0 {
            return;
        }
        // The kernel counts the terms of a sum in 32 bits.
        let by_tensor_cores =
            self.engine().matmul == Matmul::Tf32x3 && stored == StorageType::F32 && u32::try_from(k).is_ok();
        if !by_tensor_cores && self.has_blas() && product.suits_blas() {
            self.add(Task::Product(product));
            return;
        }
        let strides = |transposed, rows: usize, cols: usize| if transposed { [1, rows] } else { [cols, 1] };
        let [a_row, a_column] = strides(a_transposed, m, k).map(|stride| stride as u64);
        let [b_row, b_column] = strides(b_transposed, k, n).map(|stride| stride as u64);
        let (to, count) = parts.unwrap_or((out, 1));
        let args = args::Product {
            a,
            b,
            out: to,
            m: m as u64,
            n: n as u64,
            k: k as u64,
            a_row,
            a_column,
            b_row,
            b_column,
            k_of_part: k.div_ceil(count).max(1) as u64,
            wide: u64::from(made == StorageType::F32),
            adds: u64::from(adds),
        };
        let (file, name, [down, across]) = match (by_tensor_cores, a_transposed, b_transposed) {
            (false, ..) => (File::Product, "product", [SQUARE, SQUARE]),
            (true, false, false) => (File::Product3xTf32, "product_3xtf32_nn", RECTANGLE),
            (true, false, true) => (File::Product3xTf32, "product_3xtf32_nt", RECTANGLE),
            (true, true, false) => (File::Product3xTf32, "product_3xtf32_tn", RECTANGLE),
            (true, true, true) => unreachable!("no operation transposes both"),
        };
        let blocks = m.div_ceil(down) * n.div_ceil(across);
        self.kernel(file.over(stored), name, [blocks, count], &args);
        if let Some((partial, parts)) = parts {
            let args = args::Parts { partial, out, cells: (m * n) as u64, parts: parts as u64 };
            self.kernel(File::Sums.over(StorageType::F32), "sum_parts", blocks_of_cells(m * n), &args);
        }
    }

    fn column_sum(&mut self, x: Mat, out: Mat) -> Result<()> {
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        let (cut, mut args) = self.columns(x, out_at)?;
        args.x = x_at;
        let tiles = x.cols.div_ceil(32);
        self.kernel(File::Sums.over(x.float()), "column_partials", [cut.parts * tiles, 1], &args);
        self.kernel(File::Sums.over(StorageType::F32), "column_finish", blocks_of_cells(x.cols), &args);
        Ok(())
    }

    /// Returns the arguments of a sum over the rows of `x`, without the address of `x`.
    pub(super) fn columns(&self, x: Mat, out: u64) -> Result<(Cut, args::Columns)> {
        let cut = Cut::new(x.rows, MOST_PARTS, LEAST_ROWS);
        let (parts, rows_of_part) = (cut.parts as u64, cut.rows as u64);
        let partial = self.partials(cut.parts * x.cols)?;
        let args = args::Columns { x: 0, partial, out, rows: x.rows as u64, rows_of_part, parts, d: x.cols as u64 };
        Ok((cut, args))
    }

    fn round(&mut self, x: Mat, out: Mat) -> Result<()> {
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        let cells = x.rows * x.cols;
        let args = args::Round { x: x_at, out: out_at, cells: cells as u64 };
        self.kernel(File::Rows.over(StorageType::F32), "round_cells", blocks_of_cells(cells), &args);
        Ok(())
    }

    fn slice(&mut self, x: Mat, Slice { first, shape: [rows, cols] }: Slice, out: Mat) -> Result<()> {
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        let from = x_at + 4 * (first[0] * x.cols + first[1]) as u64;
        self.copy_rectangle([from, out_at], [x.cols, cols], [rows, cols]);
        Ok(())
    }

    fn join(&mut self, call: &Call, Grid { shape: [_, width], parts: [_, across] }: Grid) -> Result<()> {
        let mut out_at = self.mat(call.out())?;
        for parts in call.inputs.chunks(across.max(1)) {
            let mut first = 0;
            for &part in parts {
                let from = self.mat(part)?;
                self.copy_rectangle([from, out_at + 4 * first as u64], [part.cols, width], [part.rows, part.cols]);
                first += part.cols;
            }
            out_at += 4 * (parts[0].rows * width) as u64;
        }
        Ok(())
    }

    /// Prepares a copy of f32 between matrices whose rows are `strides` apart.
    fn copy_rectangle(&mut self, [from, to]: [u64; 2], strides: [usize; 2], [rows, cols]: [usize; 2]) {
        let [from_stride, to_stride] = strides.map(|stride| stride as u64);
        let args = args::Rectangle { from, to, from_stride, to_stride, rows: rows as u64, cols: cols as u64 };
        self.kernel(File::Rows.over(StorageType::F32), "copy_rectangle", blocks_of_cells(rows * cols), &args);
    }

    fn transpose(&mut self, x: Mat, out: Mat) -> Result<()> {
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        let squares = [x.rows.div_ceil(WARP), x.cols.div_ceil(WARP)];
        let args = args::Transpose {
            x: x_at,
            out: out_at,
            rows: x.rows as u64,
            cols: x.cols as u64,
            column_squares: squares[1] as u64,
        };
        self.kernel(File::Rows.over(x.float()), "transpose", [squares[0] * squares[1], 1], &args);
        Ok(())
    }
}
