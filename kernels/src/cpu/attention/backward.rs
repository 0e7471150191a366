//! The backward passes of attention: over the transposed block for the gradients of the sources, over the block itself
//! for those of the destinations' part of the scores. Both compute the weights again.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::forward::accumulate;
use super::math::{Shape, dot, exp2, leaky, sum_of};
use super::{CHUNK, Operands, Twins};
use crate::error::Result;
use crate::op::Score;

/// Consecutive rows and their part of the output. `SOURCE` says whether the rows are the sources of the edges.
pub(super) struct Rows<'a, const K: usize, const C: usize, const SOURCE: bool> {
    pub(super) operands: &'a Operands<'a>,
    pub(super) shape: Shape<K, C>,
    pub(super) rows: Range<usize>,
    pub(super) out: &'a mut [f32],
}

/// Numbers of a chunk, one per edge and head.
struct Scratch<'a> {
    /// Weights after dropout.
    weights: &'a mut [f32],
    /// Gradients of the scores.
    d_scores: &'a mut [f32],
    factors: &'a mut [f32],
}

impl<const K: usize, const C: usize, const SOURCE: bool> WithSimd for Rows<'_, K, C, SOURCE> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Result<()> {
        let Self { operands, shape, rows, out } = self;
        let (d, heads) = (operands.d, shape.heads());
        let extra = usize::from(operands.edge_values.is_some());
        let cols = match (operands.op.score, SOURCE) {
            (Score::Gat, true) => d + 2 * heads,
            (Score::Gat, false) => heads * (1 + extra),
            (Score::Gatv2, true) => d,
            (Score::Gatv2, false) => d * (2 + extra),
        };
        let mut buffer = vec![0.0; 3 * CHUNK * heads];
        let (weights, rest) = buffer.split_at_mut(CHUNK * heads);
        let (d_scores, factors) = rest.split_at_mut(CHUNK * heads);
        let mut scratch = Scratch { weights, d_scores, factors };
        for (i, v) in rows.enumerate() {
            let out = &mut out[i * cols..(i + 1) * cols];
            match operands.sum {
                Some(sum) => out.copy_from_slice(sum.row(v)),
                None => {
                    out.fill(0.0);
                    if SOURCE && operands.op.score == Score::Gat {
                        out[d + heads..].copy_from_slice(&operands.target_grad[v * heads..(v + 1) * heads]);
                    }
                }
            }
            row::<K, C, SOURCE>(operands, shape, v, operands.edges(v)?, out, &mut scratch)?;
        }
        Ok(())
    }
}

#[inline(always)]
fn row<const K: usize, const C: usize, const SOURCE: bool>(
    operands: &Operands<'_>,
    shape: Shape<K, C>,
    v: usize,
    edges: Range<usize>,
    out: &mut [f32],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let heads = shape.heads();
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
        if let Some(draws) = &operands.draws {
            for (edge, factors) in chunk.clone().zip(scratch.factors.chunks_exact_mut(heads)) {
                draws.factors(v, key, indices[edge], twins.next(indices[edge]), factors);
            }
        }
        match operands.op.score {
            Score::Gat => gat::<K, C, SOURCE>(operands, shape, v, first, &sources[..len], out, scratch),
            Score::Gatv2 => gatv2::<K, C, SOURCE>(operands, shape, v, first, &sources[..len], out, scratch),
        }
        first = chunk.end;
    }
    Ok(())
}

/// Turns the weights of an edge before dropout and their gradients into the weights after dropout and the gradients of
/// the scores. `weights` holds exponents, `d_scores` the products of the gradient and the values.
#[inline(always)]
fn finish(heads: usize, weights: &mut [f32], d_scores: &mut [f32], factors: Option<&[f32]>, dots: &[f32]) {
    for head in 0..heads {
        let weight = exp2(weights[head], 0.0);
        let factor = factors.map_or(1.0, |factors| factors[head]);
        d_scores[head] = weight * (d_scores[head] * factor - dots[head]);
        weights[head] = weight * factor;
    }
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;

#[inline(always)]
fn gat<const K: usize, const C: usize, const SOURCE: bool>(
    operands: &Operands<'_>,
    shape: Shape<K, C>,
    v: usize,
    first_edge: usize,
    sources: &[&[f32]],
    out: &mut [f32],
    scratch: &mut Scratch<'_>,
) {
    let (heads, d, slope) = (shape.heads(), operands.d, operands.op.slope);
    let row = operands.rows.row(v);
    let split = if SOURCE { d } else { 0 };
    let (values_out, scores_out) = out.split_at_mut(split);
    for (i, source) in sources.iter().enumerate() {
        // The gradients of the destination, and the values of the source.
        let (grads, values) = if SOURCE { (*source, row) } else { (row, *source) };
        let at = i * heads..(i + 1) * heads;
        let (weights, d_scores) = (&mut scratch.weights[at.clone()], &mut scratch.d_scores[at.clone()]);
        let (from, to) = (&values[d..d + heads], &grads[d..d + heads]);
        let (log_sums, dots) = (&grads[d + heads..d + 2 * heads], &grads[d + 2 * heads..d + 3 * heads]);
        let value = operands.edge_values.map(|(values, vector)| (values[first_edge + i], vector));
        let inner = |head: usize| {
            let inner = from[head] + to[head];
            value.map_or(inner, |(value, vector)| inner + value * vector[head])
        };
        for head in 0..heads {
            weights[head] = leaky(slope, inner(head)) * LOG2_E - log_sums[head];
        }
        for head in 0..heads {
            let columns = shape.columns(head);
            d_scores[head] = dot(&grads[columns.clone()], &values[columns]);
        }
        let factors = operands.draws.is_some().then_some(&scratch.factors[at]);
        finish(heads, weights, d_scores, factors, dots);
        for head in 0..heads {
            let d_inner = if inner(head) > 0.0 { d_scores[head] } else { slope * d_scores[head] };
            scores_out[head] += d_inner;
            if let (Some((value, _)), false) = (value, SOURCE) {
                scores_out[heads + head] += d_inner * value;
            }
        }
    }
    if SOURCE {
        accumulate(shape, sources, &scratch.weights[..sources.len() * heads], values_out);
    }
}

#[inline(always)]
fn gatv2<const K: usize, const C: usize, const SOURCE: bool>(
    operands: &Operands<'_>,
    shape: Shape<K, C>,
    v: usize,
    first_edge: usize,
    sources: &[&[f32]],
    out: &mut [f32],
    scratch: &mut Scratch<'_>,
) {
    let (heads, d, slope) = (shape.heads(), operands.d, operands.op.slope);
    let row = operands.rows.row(v);
    let (first_out, rest_out) = out.split_at_mut(d);
    for (i, source) in sources.iter().enumerate() {
        let (grads, values) = if SOURCE { (*source, row) } else { (row, *source) };
        let at = i * heads..(i + 1) * heads;
        let (weights, d_scores) = (&mut scratch.weights[at.clone()], &mut scratch.d_scores[at.clone()]);
        let (of_row, log_sums) = (&grads[d..2 * d], &grads[2 * d..2 * d + heads]);
        let dots = &grads[2 * d + heads..2 * d + 2 * heads];
        let value = operands.edge_values.map(|(values, vector)| (values[first_edge + i], vector));
        for head in 0..heads {
            let columns = shape.columns(head);
            let (x, y) = (&values[columns.clone()], &of_row[columns.clone()]);
            let a = &operands.a[columns.clone()];
            let score = match value {
                None => sum_of(shape.width(), |c| a[c] * leaky(slope, x[c] + y[c])),
                Some((value, vector)) => {
                    let vector = &vector[columns.clone()];
                    sum_of(shape.width(), |c| a[c] * leaky(slope, x[c] + y[c] + value * vector[c]))
                }
            };
            weights[head] = score * LOG2_E - log_sums[head];
            d_scores[head] = dot(&grads[columns.clone()], x);
        }
        let factors = operands.draws.is_some().then_some(&scratch.factors[at]);
        finish(heads, weights, d_scores, factors, dots);
        for head in 0..heads {
            let columns = shape.columns(head);
            let (d_score, weight) = (d_scores[head], weights[head]);
            let (x, y) = (&values[columns.clone()], &of_row[columns.clone()]);
            let (a, grad) = (&operands.a[columns.clone()], &grads[columns.clone()]);
            let inner = |c: usize| {
                let inner = x[c] + y[c];
                value.map_or(inner, |(value, vector)| inner + value * vector[columns.start + c])
            };
            let first = &mut first_out[columns.clone()];
            if SOURCE {
                for c in 0..shape.width() {
                    let d_inner = d_score * if inner(c) > 0.0 { a[c] } else { slope * a[c] };
                    first[c] += weight * grad[c] + d_inner;
                }
                continue;
            }
            let (of_a, of_edges) = rest_out.split_at_mut(d);
            let of_a = &mut of_a[columns.clone()];
            for c in 0..shape.width() {
                let inner = inner(c);
                first[c] += d_score * if inner > 0.0 { a[c] } else { slope * a[c] };
                of_a[c] += d_score * leaky(slope, inner);
            }
            if let Some((value, _)) = value {
                let of_edges = &mut of_edges[columns.clone()];
                for c in 0..shape.width() {
                    of_edges[c] += value * d_score * if inner(c) > 0.0 { a[c] } else { slope * a[c] };
                }
            }
        }
    }
}
