//! The oracle: a serial version of every kernel, in `f64` from inputs to outputs, written to be obviously right.
//!
//! No device calls these functions. They panic on operands whose shapes do not agree, as indexing does. Only the
//! dropout scale is rounded to `f32`, because its exact value is part of the kernel's definition.

use crate::random::{DropoutKey, draw, row_key, threshold};
use crate::step::{AdamStep, SgdStep};
use crate::view::{BlockView, MatView, MultiTargets, Targets};

/// A dense row-major matrix of `f64` that owns its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// All elements, row by row, `[rows * cols]`.
    pub data: Vec<f64>,
}

impl Dense {
    /// Returns the matrix whose cell `(r, c)` is `f(r, c)`.
    pub fn from_fn(rows: usize, cols: usize, mut f: impl FnMut(usize, usize) -> f64) -> Self {
        let mut data = Vec::with_capacity(rows * cols);
        for r in 0..rows {
            for c in 0..cols {
                data.push(f(r, c));
            }
        }
        Self { rows, cols, data }
    }

    /// Returns cell `(r, c)`.
    ///
    /// # Panics
    /// If there is no such cell.
    pub fn at(&self, r: usize, c: usize) -> f64 {
        assert!(c < self.cols, "column {c} of {}", self.cols);
        self.data[r * self.cols + c]
    }

    /// Returns row `r`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, r: usize) -> &[f64] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }

    /// Applies `f` to every cell.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self { rows: self.rows, cols: self.cols, data: self.data.iter().map(|&x| f(x)).collect() }
    }

    /// Combines the cells of two matrices of the same shape with `f`.
    pub fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self::from_fn(self.rows, self.cols, |r, c| f(self.at(r, c), other.at(r, c)))
    }
}

impl From<MatView<'_>> for Dense {
    fn from(view: MatView<'_>) -> Self {
        Self { rows: view.rows(), cols: view.cols(), data: view.data().iter().copied().map(f64::from).collect() }
    }
}

/// Computes `out[v] = sum_{u -> v} weights[edge] * x[u]`; without weights, the sum of `x[u]`. See
/// [`crate::cpu::gather()`].
pub fn gather(block: BlockView<'_>, weights: Option<&[f64]>, own: &Dense, halo: Option<&Dense>) -> Dense {
    Dense::from_fn(block.rows(), own.cols, |v, c| {
        let mut sum = 0.0;
        for edge in block.edges(v) {
            let u = block.indices[edge] as usize;
            let x = match u.checked_sub(block.own_sources) {
                None => own.at(u, c),
                Some(u) => halo.expect("the block has a halo").at(u, c),
            };
            sum += weights.map_or(1.0, |weights| weights[edge]) * x;
        }
        sum
    })
}

/// Computes [`gather`] over the sources of the window, which starts at `first` and has the rows of `own`. Adds to
/// `sum`, or to 0.
pub fn gather_window(
    block: BlockView<'_>,
    weights: Option<&[f64]>,
    own: &Dense,
    first: usize,
    sum: Option<Dense>,
) -> Dense {
    assert_eq!(block.halo_sources, 0);
    let mut out = sum.unwrap_or_else(|| Dense::from_fn(block.rows(), own.cols, |_, _| 0.0));
    for v in 0..block.rows() {
        for edge in block.edges(v) {
            let u = block.indices[edge] as usize;
            assert!(u < block.own_sources);
            if (first..first + own.rows).contains(&u) {
                let factor = weights.map_or(1.0, |weights| weights[edge]);
                (0..own.cols).for_each(|c| out.data[v * own.cols + c] += factor * own.at(u - first, c));
            }
        }
    }
    out
}

/// `out[v] = scale[v] * x[v]`.
pub fn row_scale(x: &Dense, scale: &[f64]) -> Dense {
    Dense::from_fn(x.rows, x.cols, |r, c| scale[r] * x.at(r, c))
}

/// `out = x * weight^T`.
pub fn linear(x: &Dense, weight: &Dense) -> Dense {
    Dense::from_fn(x.rows, weight.rows, |r, c| (0..x.cols).map(|k| x.at(r, k) * weight.at(c, k)).sum())
}

/// `out = grad * weight`.
pub fn linear_input_grad(grad: &Dense, weight: &Dense) -> Dense {
    Dense::from_fn(grad.rows, weight.cols, |r, c| (0..grad.cols).map(|k| grad.at(r, k) * weight.at(k, c)).sum())
}

/// `out = grad^T * x`.
pub fn linear_weight_grad(grad: &Dense, x: &Dense) -> Dense {
    Dense::from_fn(grad.cols, x.cols, |r, c| (0..x.rows).map(|k| grad.at(k, r) * x.at(k, c)).sum())
}

/// `out = x^T`.
pub fn transpose(x: &Dense) -> Dense {
    Dense::from_fn(x.cols, x.rows, |r, c| x.at(c, r))
}

/// `out[v] = x[v] + bias`.
pub fn add_bias(x: &Dense, bias: &[f64]) -> Dense {
    Dense::from_fn(x.rows, x.cols, |r, c| x.at(r, c) + bias[c])
}

/// Sums over rows.
pub fn column_sum(x: &Dense) -> Vec<f64> {
    (0..x.cols).map(|c| (0..x.rows).map(|r| x.at(r, c)).sum()).collect()
}

/// `out = a + b`.
pub fn add(a: &Dense, b: &Dense) -> Dense {
    a.zip(b, |a, b| a + b)
}

/// `out = max(x, 0)`.
pub fn relu(x: &Dense) -> Dense {
    x.map(|x| if x > 0.0 { x } else { 0.0 })
}

/// `out = grad where y > 0, else 0`.
pub fn relu_grad(grad: &Dense, y: &Dense) -> Dense {
    grad.zip(y, |grad, y| if y > 0.0 { grad } else { 0.0 })
}

/// Returns `(x - mean) / sqrt(variance + eps)` of each row, and the roots.
fn normalised(x: &Dense, eps: f64) -> (Dense, Vec<f64>) {
    let d = x.cols as f64;
    let means: Vec<f64> = (0..x.rows).map(|r| x.row(r).iter().sum::<f64>() / d).collect();
    let variance = |r: usize| x.row(r).iter().map(|x| (x - means[r]).powi(2)).sum::<f64>() / d;
    let roots: Vec<f64> = (0..x.rows).map(|r| (variance(r) + eps).sqrt()).collect();
    (Dense::from_fn(x.rows, x.cols, |r, c| (x.at(r, c) - means[r]) / roots[r]), roots)
}

/// Computes `out = (x - mean) / sqrt(variance + eps) * gain + bias` for each row.
pub fn layer_norm(x: &Dense, gain: &[f64], bias: &[f64], eps: f64) -> Dense {
    let (y, _) = normalised(x, eps);
    Dense::from_fn(x.rows, x.cols, |r, c| y.at(r, c) * gain[c] + bias[c])
}

/// Computes the input gradient of [`layer_norm`]. With `y` the normalised `x` and `g = grad * gain`, each row is `out =
/// (g - mean(g) - y * mean(g * y)) / sqrt(variance + eps)`.
pub fn layer_norm_input_grad(grad: &Dense, x: &Dense, gain: &[f64], eps: f64) -> Dense {
    let (y, roots) = normalised(x, eps);
    let g = Dense::from_fn(x.rows, x.cols, |r, c| grad.at(r, c) * gain[c]);
    let d = x.cols as f64;
    let g_mean: Vec<f64> = (0..x.rows).map(|r| g.row(r).iter().sum::<f64>() / d).collect();
    let gy_mean = |r: usize| g.row(r).iter().zip(y.row(r)).map(|(g, y)| g * y).sum::<f64>() / d;
    let gy_mean: Vec<f64> = (0..x.rows).map(gy_mean).collect();
    Dense::from_fn(x.rows, x.cols, |r, c| (g.at(r, c) - g_mean[r] - y.at(r, c) * gy_mean[r]) / roots[r])
}

/// Sums `grad` times the normalised `x` over rows.
pub fn layer_norm_gain_grad(grad: &Dense, x: &Dense, eps: f64) -> Vec<f64> {
    let (y, _) = normalised(x, eps);
    (0..x.cols).map(|c| (0..x.rows).map(|r| grad.at(r, c) * y.at(r, c)).sum()).collect()
}

/// Applies dropout to one cell. `row` counts from the key's first row.
fn drop_cell(key: DropoutKey, epoch: u64, row: usize, column: u32, x: f64) -> f64 {
    let row = row_key(key.seed, epoch, key.op, key.first_row + row as u64);
    let kept = draw(row, column) >= threshold(key.rate);
    if kept { x * f64::from(1.0f32 / (1.0f32 - key.rate)) } else { 0.0 }
}

/// `out = x / (1 - rate)` in the cells that are kept, 0 in the others.
pub fn dropout(x: &Dense, key: DropoutKey, epoch: u64) -> Dense {
    Dense::from_fn(x.rows, x.cols, |r, c| drop_cell(key, epoch, r, key.first_column + c as u32, x.at(r, c)))
}

/// Applies [`dropout`] to the values of a sparse matrix in CSR, or of its transpose.
pub fn sparse_dropout(
    (block, is_transposed): (BlockView<'_>, bool),
    values: &[f64],
    key: DropoutKey,
    epoch: u64,
) -> Vec<f64> {
    let mut out = vec![0.0; values.len()];
    for v in 0..block.rows() {
        for edge in block.edges(v) {
            let source = block.indices[edge];
            let (row, column) = if is_transposed { (source as usize, v as u32) } else { (v, source) };
            out[edge] = drop_cell(key, epoch, row, column, values[edge]);
        }
    }
    out
}

/// Copies the rectangle of `shape` whose first cell is `first`.
pub fn slice(x: &Dense, first: [usize; 2], [rows, cols]: [usize; 2]) -> Dense {
    Dense::from_fn(rows, cols, |r, c| x.at(first[0] + r, first[1] + c))
}

/// Puts the parts of a grid with `across` parts in a row together.
pub fn join(parts: &[Dense], across: usize) -> Dense {
    let (mut data, mut rows) = (Vec::new(), 0);
    for parts in parts.chunks(across) {
        rows += parts[0].rows;
        for r in 0..parts[0].rows {
            parts.iter().for_each(|part| data.extend((0..part.cols).map(|c| part.at(r, c))));
        }
    }
    Dense { rows, cols: parts[..across].iter().map(|part| part.cols).sum(), data }
}

/// Copies the chosen rows, in order.
pub fn pack(x: &Dense, rows: &[u32]) -> Dense {
    Dense::from_fn(rows.len(), x.cols, |r, c| x.at(rows[r] as usize, c))
}

/// `out[i] = values[permutation[i]]`.
pub fn permute_edges(values: &[f64], permutation: &[u64]) -> Vec<f64> {
    permutation.iter().map(|&i| values[i as usize]).collect()
}

/// Returns the softmax of a row.
fn softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.iter().map(|x| x / total).collect()
}

/// `loss = 1 / count * sum over selected v of -weights[labels[v]] * log softmax(logits[v])[labels[v]]`; 0 if `count` is 0.
/// Without weights of the classes, all are 1.
pub fn softmax_cross_entropy(logits: &Dense, targets: Targets<'_>, weights: Option<&[f64]>, count: u64) -> f64 {
    let mut sum = 0.0;
    for r in 0..logits.rows {
        if let Some(label) = targets.label(r, logits.cols) {
            let row = logits.row(r);
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = row.iter().map(|x| (x - largest).exp()).sum();
            sum += weights.map_or(1.0, |weights| weights[label]) * (total.ln() + largest - row[label]);
        }
    }
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// `weights[labels[v]] * (softmax - onehot) / count` in selected rows, 0 in the others. Without weights of the classes, all
/// are 1.
pub fn softmax_cross_entropy_grad(logits: &Dense, targets: Targets<'_>, weights: Option<&[f64]>, count: u64) -> Dense {
    let mut out = Dense::from_fn(logits.rows, logits.cols, |_, _| 0.0);
    for r in 0..logits.rows {
        if let Some(label) = targets.label(r, logits.cols).filter(|_| count > 0) {
            for (c, p) in softmax(logits.row(r)).into_iter().enumerate() {
                let onehot = if c == label { 1.0 } else { 0.0 };
                let weight = weights.map_or(1.0, |weights| weights[label]);
                out.data[r * logits.cols + c] = weight * (p - onehot) / count as f64;
            }
        }
    }
    out
}

/// `[selected rows whose largest logit (the first on a tie) is at the label, selected rows]`.
pub fn count_correct(logits: &Dense, targets: Targets<'_>) -> [u64; 2] {
    let mut counts = [0, 0];
    for r in 0..logits.rows {
        if let Some(label) = targets.label(r, logits.cols) {
            let row = logits.row(r);
            let beaten = |other: usize| row[other] > row[label] || (row[other] == row[label] && other < label);
            counts[0] += u64::from(!(0..row.len()).any(beaten));
            counts[1] += 1;
        }
    }
    counts
}

/// `loss = 1 / (count * classes) * sum over all cells z of the selected rows of
/// max(z, 0) - z * t + ln(1 + exp(-|z|))`; 0 if `count` or `classes` is 0.
pub fn sigmoid_cross_entropy(logits: &Dense, targets: MultiTargets<'_>, count: u64) -> f64 {
    let mut sum = 0.0;
    for r in 0..logits.rows {
        for (c, target) in targets.row(r).into_iter().flatten().enumerate() {
            let (z, t) = (logits.at(r, c), if *target == 0 { 0.0 } else { 1.0 });
            sum += z.max(0.0) - z * t + (-z.abs()).exp().ln_1p();
        }
    }
    let cells = count as f64 * logits.cols as f64;
    if cells == 0.0 { 0.0 } else { sum / cells }
}

/// `(sigmoid(z) - t) / (count * classes)` in selected rows, 0 in the others.
pub fn sigmoid_cross_entropy_grad(logits: &Dense, targets: MultiTargets<'_>, count: u64) -> Dense {
    let cells = count as f64 * logits.cols as f64;
    Dense::from_fn(logits.rows, logits.cols, |r, c| match targets.row(r).filter(|_| count > 0) {
        None => 0.0,
        Some(targets) if targets[c] == 0 => 1.0 / (1.0 + (-logits.at(r, c)).exp()) / cells,
        // This form of sigmoid(z) - 1 avoids cancellation.
        Some(_) => -1.0 / (1.0 + logits.at(r, c).exp()) / cells,
    })
}

/// Returns half the sum of the squares of all cells.
pub fn half_squares(x: &Dense) -> f64 {
    x.data.iter().map(|x| x * x).sum::<f64>() / 2.0
}

/// `[true positives, false positives, false negatives]` over all cells of the selected rows.
pub fn count_micro(logits: &Dense, targets: MultiTargets<'_>) -> [u64; 3] {
    let mut counts = [0; 3];
    for r in 0..logits.rows {
        for (c, target) in targets.row(r).into_iter().flatten().enumerate() {
            match (logits.at(r, c) > 0.0, *target != 0) {
                (true, true) => counts[0] += 1,
                (true, false) => counts[1] += 1,
                (false, true) => counts[2] += 1,
                (false, false) => {}
            }
        }
    }
    counts
}

/// One SGD step; see [`crate::cpu::sgd`].
pub fn sgd(param: &mut [f64], grad: &[f64], mut moment: Option<&mut [f64]>, step: SgdStep) {
    let (rate, momentum) = (step.rate, step.momentum);
    for i in 0..param.len() {
        let mut g = grad[i] + step.weight_decay * param[i];
        if let Some(moment) = &mut moment {
            moment[i] = if step.step == 1 { g } else { momentum * moment[i] + g };
            g = moment[i];
        }
        param[i] -= rate * g;
    }
}

/// One Adam or AdamW step; see [`crate::cpu::adam`].
pub fn adam(param: &mut [f64], grad: &[f64], m: &mut [f64], v: &mut [f64], step: AdamStep) {
    let AdamStep { rate, beta1, beta2, eps, weight_decay: decay, .. } = step;
    let t = step.step as f64;
    for i in 0..param.len() {
        let mut g = grad[i];
        if step.decoupled {
            param[i] *= 1.0 - rate * decay;
        } else {
            g += decay * param[i];
        }
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let m_hat = m[i] / (1.0 - beta1.powf(t));
        let v_hat = v[i] / (1.0 - beta2.powf(t));
        param[i] -= rate * m_hat / (v_hat.sqrt() + eps);
    }
}
