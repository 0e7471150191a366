//! The forward pass of attention.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::math::{Shape, exp2, leaky, log2, power, sum_of};
use super::{CHUNK, Operands, Twins};
use crate::error::Result;
use crate::op::{AttentionPass, Score};

/// Consecutive rows and their part of the outputs.
pub(super) struct Rows<'a, const K: usize, const C: usize> {
    pub(super) operands: &'a Operands<'a>,
    pub(super) shape: Shape<K, C>,
    pub(super) rows: Range<usize>,
    /// All columns of the output, or of the state of a window.
    pub(super) out: &'a mut [f32],
    pub(super) log_sum: &'a mut [f32],
}

impl<const K: usize, const C: usize> WithSimd for Rows<'_, K, C> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Result<()> {
        let Self { operands, shape, rows, out, log_sum } = self;
        let (d, heads) = (operands.d, shape.heads());
        let partial = operands.op.pass == AttentionPass::Partial;
        let cols = if partial { d + 2 * heads } else { d };
        let mut own_state = vec![0.0; if partial { 0 } else { d + 2 * heads }];
        let mut weights = vec![0.0; 2 * CHUNK * heads];
        for (i, v) in rows.enumerate() {
            let out = &mut out[i * cols..(i + 1) * cols];
            let state = if partial { &mut *out } else { &mut own_state[..] };
            match operands.sum {
                Some(sum) => state.copy_from_slice(sum.row(v)),
                None => state.fill(0.0),
            }
            let edges = operands.edges(v)?;
            row(operands, shape, v, edges, state, &mut weights)?;
            if partial {
                continue;
            }
            let (values, state) = own_state.split_at(d);
            let (shifts, sums) = state.split_at(heads);
            for head in 0..heads {
                let columns = shape.columns(head);
                let by = if sums[head] == 0.0 { 0.0 } else { 1.0 / sums[head] };
                for (out, value) in out[columns.clone()].iter_mut().zip(&values[columns]) {
                    *out = value * by;
                }
            }
            // A fused call does not have the second output.
            let log_sum = log_sum.get_mut(i * heads..(i + 1) * heads).unwrap_or_default();
            for ((out, &sum), &shift) in log_sum.iter_mut().zip(sums).zip(shifts) {
                *out = if sum == 0.0 { 0.0 } else { shift + log2(sum) };
            }
        }
        Ok(())
    }
}

/// Adds the edges of a row to its state: the sums, the shift of each head, the sum of each head's exponentials.
#[inline(always)]
fn row<const K: usize, const C: usize>(
    operands: &Operands<'_>,
    shape: Shape<K, C>,
    v: usize,
    edges: Range<usize>,
    state: &mut [f32],
    weights: &mut [f32],
) -> Result<()> {
    let heads = shape.heads();
    let (values, state) = state.split_at_mut(operands.d);
    let (shifts, sums) = state.split_at_mut(heads);
    let (weights, factors) = weights.split_at_mut(CHUNK * heads);
    let indices = operands.block.indices;
    let key = operands.draws.as_ref().and_then(|draws| draws.row(v));
    let mut twins = Twins::default();
    let mut first = edges.start;
    while first < edges.end {
        let chunk = first..(first + CHUNK).min(edges.end);
        let len = chunk.len();
        let mut sources = [&[][..]; CHUNK];
        for (source, edge) in sources.iter_mut().zip(chunk.clone()) {
            *source = operands.source(indices[edge])?;
            operands.prefetch(edge + CHUNK);
        }
        let weights = &mut weights[..len * heads];
        scores(operands, shape, v, first, &sources[..len], weights);
        rescale(shape, weights, values, shifts, sums);
        for weights in weights.chunks_exact_mut(heads) {
            for head in 0..heads {
                weights[head] = exp2(weights[head], shifts[head]);
                sums[head] += weights[head];
            }
        }
        if let Some(draws) = &operands.draws {
            for (edge, weights) in chunk.clone().zip(weights.chunks_exact_mut(heads)) {
                let factors = &mut factors[..heads];
                draws.factors(v, key, indices[edge], twins.next(indices[edge]), factors);
                weights.iter_mut().zip(factors).for_each(|(weight, factor)| *weight *= *factor);
            }
        }
        accumulate(shape, &sources[..len], weights, values);
        first = chunk.end;
    }
    Ok(())
}

/// Writes the scores of a chunk, in base 2.
#[inline(always)]
fn scores<const K: usize, const C: usize>(
    operands: &Operands<'_>,
    shape: Shape<K, C>,
    v: usize,
    first_edge: usize,
    sources: &[&[f32]],
    scores: &mut [f32],
) {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    let (heads, d, slope) = (shape.heads(), operands.d, operands.op.slope);
    let row = operands.rows.row(v);
    for (i, (source, scores)) in sources.iter().zip(scores.chunks_exact_mut(heads)).enumerate() {
        let value = operands.edge_values.map(|(values, vector)| (values[first_edge + i], vector));
        match operands.op.score {
            Score::Gat => {
                let (from, to) = (&source[d..d + heads], &row[d + heads..d + 2 * heads]);
                for head in 0..heads {
                    let mut inner = from[head] + to[head];
                    if let Some((value, vector)) = value {
                        inner += value * vector[head];
                    }
                    scores[head] = leaky(slope, inner) * LOG2_E;
                }
            }
            Score::Gatv2 => {
                for (head, score) in scores.iter_mut().enumerate() {
                    let columns = shape.columns(head);
                    let (x, y, a) = (&source[columns.clone()], &row[columns.clone()], &operands.a[columns.clone()]);
                    *score = LOG2_E
                        * match value {
                            None => sum_of(shape.width(), |c| a[c] * leaky(slope, x[c] + y[c])),
                            Some((value, vector)) => {
                                let vector = &vector[columns];
                                sum_of(shape.width(), |c| a[c] * leaky(slope, x[c] + y[c] + value * vector[c]))
                            }
                        };
                }
            }
        }
    }
}

/// Raises the shifts to the largest score of each head, and divides the sums accordingly.
#[inline(always)]
fn rescale<const K: usize, const C: usize>(
    shape: Shape<K, C>,
    scores: &[f32],
    values: &mut [f32],
    shifts: &mut [f32],
    sums: &mut [f32],
) {
    let heads = shape.heads();
    for head in 0..heads {
        let before = if sums[head] == 0.0 { f32::NEG_INFINITY } else { shifts[head] };
        let mut largest = before;
        for scores in scores.chunks_exact(heads) {
            let score = scores[head];
            largest = if score > largest { score } else { largest };
        }
        let shift = largest.round_ties_even();
        if shift > before {
            if sums[head] != 0.0 {
                let by = power(before - shift);
                sums[head] *= by;
                values[shape.columns(head)].iter_mut().for_each(|value| *value *= by);
            }
            shifts[head] = shift;
        } else if sums[head] == 0.0 {
            // No score is a number above minus infinity.
            shifts[head] = before;
        }
    }
}

/// Adds the weighted rows of a chunk.
#[inline(always)]
pub(super) fn accumulate<const K: usize, const C: usize>(
    shape: Shape<K, C>,
    sources: &[&[f32]],
    weights: &[f32],
    values: &mut [f32],
) {
    let heads = shape.heads();
    match C {
        8 => groups::<8, 8>(heads, sources, weights, values),
        32 => groups::<2, 32>(heads, sources, weights, values),
        64 => groups::<1, 64>(heads, sources, weights, values),
        _ => {
            for head in 0..heads {
                let columns = shape.columns(head);
                let mut first = columns.start;
                while first + 16 <= columns.end {
                    tile::<1, 16>(heads, head, first, sources, weights, values);
                    first += 16;
                }
                for (source, weights) in sources.iter().zip(weights.chunks_exact(heads)) {
                    let weight = weights[head];
                    let rest = values[first..columns.end].iter_mut().zip(&source[first..columns.end]);
                    rest.for_each(|(value, x)| *value += weight * x);
                }
            }
        }
    }
}

/// Adds rows whose heads have `C` columns, `H` heads at a time, which fit the registers.
#[inline(always)]
fn groups<const H: usize, const C: usize>(heads: usize, sources: &[&[f32]], weights: &[f32], values: &mut [f32]) {
    let mut head = 0;
    while head + H <= heads {
        tile::<H, C>(heads, head, head * C, sources, weights, values);
        head += H;
    }
    while head < heads {
        tile::<1, C>(heads, head, head * C, sources, weights, values);
        head += 1;
    }
}

/// Adds `H` times `C` columns from column `first` on. They belong to heads `head` and following.
#[inline(always)]
fn tile<const H: usize, const C: usize>(
    heads: usize,
    head: usize,
    first: usize,
    sources: &[&[f32]],
    weights: &[f32],
    values: &mut [f32],
) {
    let values = &mut values[first..first + H * C];
    let mut sums = [[0.0f32; C]; H];
    for (sums, values) in sums.iter_mut().zip(values.chunks_exact(C)) {
        sums.copy_from_slice(values);
    }
    for (source, weights) in sources.iter().zip(weights.chunks_exact(heads)) {
        let (x, weights) = (&source[first..first + H * C], &weights[head..head + H]);
        for h in 0..H {
            for c in 0..C {
                sums[h][c] += weights[h] * x[h * C + c];
            }
        }
    }
    for (sums, values) in sums.iter().zip(values.chunks_exact_mut(C)) {
        values.copy_from_slice(sums);
    }
}
