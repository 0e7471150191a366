//! Dense products, sums over rows, layer normalisation and optimizer steps.

use super::args;
use super::blas::DenseProduct;
use super::compile::File;
use super::engine::Task;
use super::prepare::{Plan, blocks_of_cells, blocks_of_warps, check_same};
use crate::call::{Call, Mat, RowStep};
use crate::cpu::linear_weight_grad_workspace_bytes;
use crate::error::{Error, Result, check_shape};
use crate::float::Float;
use crate::memory::Slot;

/// The side of a block's square of a product: `SQUARE` of `product.cu`.
const SQUARE: usize = 64;

/// Most parts of a sum over rows, and fewest rows of one.
const MOST_PARTS: usize = 256;
const LEAST_ROWS: usize = 256;

/// How rows are cut for a sum, by their number alone.
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
    /// [`Call::Linear`] or [`Call::LinearInputGrad`], and what follows it.
    pub(super) fn product_then(&mut self, call: &Call, steps: &[RowStep]) -> Result<()> {
        let name = call.name();
        let (a, weight, out, b_transposed) = match *call {
            Call::Linear { x, weight, out } => (x, weight, out, true),
            Call::LinearInputGrad { grad, weight, out } => (grad, weight, out, false),
            _ => unreachable!("only products with a weight come here"),
        };
        let (a_at, b_at, out_at) = (self.mat(a)?, self.mat(weight)?, self.mat(out)?);
        let (n, want) = match b_transposed {
            true => (weight.rows, [weight.rows, a.cols]),
            false => (weight.cols, [a.cols, weight.cols]),
        };
        check_shape(name, "weight", want, [weight.rows, weight.cols])?;
        check_shape(name, "out", [a.rows, n], [out.rows, out.cols])?;
        let steps = self.steps(name, steps, out)?;
        let product = DenseProduct {
            a: a_at,
            a_transposed: false,
            b: b_at,
            b_transposed,
            out: out_at,
            m: a.rows,
            n,
            k: a.cols,
            stored: a.float,
            made: out.float,
        };
        self.product(product, None);
        self.steps_in_place(name, out, out_at, &steps)
    }

    pub(super) fn weight_grad(&mut self, call: &Call) -> Result<()> {
        const CALL: &str = "linear_weight_grad";
        let &Call::LinearWeightGrad { grad, x, out, workspace } = call else {
            unreachable!("only weight gradients come here")
        };
        let (n, d_in, d_out) = (x.rows, x.cols, grad.cols);
        let need_bytes = linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64) as usize;
        let (grad_at, x_at, out_at) = (self.mat(grad)?, self.mat(x)?, self.mat(out)?);
        let room = workspace.map(|slot| self.vec::<u8>(slot, need_bytes)).transpose()?;
        check_shape(CALL, "grad", [n, d_out], [grad.rows, grad.cols])?;
        check_shape(CALL, "out", [d_out, d_in], [out.rows, out.cols])?;
        if need_bytes > 0 && room.is_none() {
            return Err(Error::Shape { call: CALL, operand: "workspace", want: [need_bytes / 4, 1], got: [0, 1] });
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
            stored: x.float,
            made: out.float,
        };
        let room = room.filter(|_| need_bytes > 0);
        self.product(product, room.map(|room| (room, need_bytes / (4 * d_in * d_out))));
        Ok(())
    }

    /// A product; where there is no BLAS, its sum may be cut into parts, for which there is room.
    fn product(&mut self, product: DenseProduct, parts: Option<(u64, usize)>) {
        let DenseProduct { a, a_transposed, b, b_transposed, out, m, n, k, stored, made } = product;
        if m == 0 || n == 0 {
            return;
        }
        if self.has_blas() && product.suits_blas() {
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
            wide: u64::from(made == Float::F32),
        };
        let squares = m.div_ceil(SQUARE) * n.div_ceil(SQUARE);
        self.kernel(File::Product.over(stored), "product", [squares, count], &args);
        if let Some((partial, parts)) = parts {
            let args = args::Parts { partial, out, cells: (m * n) as u64, parts: parts as u64 };
            self.kernel(File::Sums.over(Float::F32), "sum_parts", blocks_of_cells(m * n), &args);
        }
    }

    pub(super) fn column_sum(&mut self, x: Mat, out: Slot) -> Result<()> {
        let (x_at, out_at) = (self.mat(x)?, self.vec::<f32>(out, x.cols)?);
        let (cut, mut args) = self.columns(x, out_at)?;
        args.x = x_at;
        let tiles = x.cols.div_ceil(32);
        self.kernel(File::Sums.over(x.float), "column_partials", [cut.parts * tiles, 1], &args);
        self.kernel(File::Sums.over(Float::F32), "column_finish", blocks_of_cells(x.cols), &args);
        Ok(())
    }

    /// What a sum over the rows of `x` takes, but for its address.
    fn columns(&self, x: Mat, out: u64) -> Result<(Cut, args::Columns)> {
        let cut = Cut::new(x.rows, MOST_PARTS, LEAST_ROWS);
        let (parts, rows_of_part) = (cut.parts as u64, cut.rows as u64);
        let partial = self.partials(cut.parts * x.cols)?;
        let args = args::Columns { x: 0, partial, out, rows: x.rows as u64, rows_of_part, parts, d: x.cols as u64 };
        Ok((cut, args))
    }

    pub(super) fn layer_norm(&mut self, call: &Call) -> Result<()> {
        let name = call.name();
        let none = |x: Mat, eps: f32| args::LayerNorm {
            grad: 0,
            x: 0,
            gain: 0,
            bias: 0,
            out: 0,
            partial: 0,
            rows: x.rows as u64,
            rows_of_part: 0,
            d: x.cols as u64,
            eps: f64::from(eps),
        };
        match *call {
            Call::LayerNorm { x, gain, bias, eps, out } => {
                let (gain, bias) = (self.vec::<f32>(gain, x.cols)?, self.vec::<f32>(bias, x.cols)?);
                let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
                check_same(name, "out", x, out)?;
                check_eps(name, eps)?;
                let args = args::LayerNorm { x: x_at, gain, bias, out: out_at, ..none(x, eps) };
                self.kernel(File::LayerNorm.over(x.float), "layer_norm", blocks_of_warps(x.rows), &args);
            }
            Call::LayerNormInputGrad { grad, x, gain, eps, out } => {
                let gain = self.vec::<f32>(gain, x.cols)?;
                let (grad_at, x_at, out_at) = (self.mat(grad)?, self.mat(x)?, self.mat(out)?);
                check_same(name, "grad", x, grad)?;
                check_same(name, "out", x, out)?;
                check_eps(name, eps)?;
                let args = args::LayerNorm { grad: grad_at, x: x_at, gain, out: out_at, ..none(x, eps) };
                self.kernel(File::LayerNorm.over(x.float), "layer_norm_input_grad", blocks_of_warps(x.rows), &args);
            }
            Call::LayerNormGainGrad { grad, x, eps, out } => {
                let (grad_at, x_at, out_at) = (self.mat(grad)?, self.mat(x)?, self.vec::<f32>(out, x.cols)?);
                check_same(name, "grad", x, grad)?;
                check_eps(name, eps)?;
                let (cut, sums) = self.columns(x, out_at)?;
                let partial = sums.partial;
                let args = args::LayerNorm { grad: grad_at, x: x_at, partial, ..none(x, eps) };
                let args = args::LayerNorm { rows_of_part: cut.rows as u64, ..args };
                self.kernel(File::LayerNorm.over(x.float), "layer_norm_gain_partials", [cut.parts, 1], &args);
                self.kernel(File::Sums.over(Float::F32), "column_finish", blocks_of_cells(x.cols), &sums);
            }
            _ => unreachable!("only layer normalisations come here"),
        }
        Ok(())
    }

    pub(super) fn optimizer(&mut self, call: &Call) -> Result<()> {
        match *call {
            Call::Sgd { param, grad, moment, out, window, clock, rate, momentum, weight_decay } => {
                let len = window.len;
                let (clock, rate) = (self.clock(clock)?, self.vec::<f32>(rate, 1)?);
                let [moment, next_moment] = match moment {
                    Some([old, new]) => [self.vec::<f32>(old, len)?, self.vec::<f32>(new, len)?],
                    None => [0; 2],
                };
                let args = args::Sgd {
                    param: self.window::<f32>(param, window)?,
                    grad: self.window::<f32>(grad, window)?,
                    moment,
                    next_moment,
                    out: self.vec::<f32>(out, len)?,
                    clock,
                    rate,
                    len: len as u64,
                    momentum: momentum as f32,
                    decay: weight_decay as f32,
                };
                self.kernel(File::Optimizers.over(Float::F32), "sgd", blocks_of_cells(len), &args);
            }
            Call::Adam { param, grad, m, v, out, window, clock, rate, beta1, beta2, eps, weight_decay, decoupled } => {
                let (len, [next, next_m, next_v]) = (window.len, out);
                let args = args::Adam {
                    clock: self.clock(clock)?,
                    rate: self.vec::<f32>(rate, 1)?,
                    param: self.window::<f32>(param, window)?,
                    grad: self.window::<f32>(grad, window)?,
                    m: self.vec::<f32>(m, len)?,
                    v: self.vec::<f32>(v, len)?,
                    out: self.vec::<f32>(next, len)?,
                    next_m: self.vec::<f32>(next_m, len)?,
                    next_v: self.vec::<f32>(next_v, len)?,
                    len: len as u64,
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    decoupled: u64::from(decoupled),
                };
                self.kernel(File::Optimizers.over(Float::F32), "adam", blocks_of_cells(len), &args);
            }
            _ => unreachable!("only optimizer steps come here"),
        }
        Ok(())
    }
}

fn check_eps(call: &'static str, eps: f32) -> Result<()> {
    let got = f64::from(eps);
    if got >= 0.0 { Ok(()) } else { Err(Error::Argument { call, operand: "eps", want: "at least 0", got }) }
}
