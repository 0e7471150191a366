//! The forward pass of attention.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::math::{LANES, LOG2_E, exp2, head_sums, leaky, log2, power, repeat, spread};
use super::{CHUNK, Chunk, Group, Operands, RowNumbers};
use crate::error::Result;
use crate::op::{AttentionPass, Score};

/// Consecutive rows and their part of the outputs, for a group of `G` heads.
pub(super) struct Rows<'a, const G: usize> {
    pub(super) operands: &'a Operands<'a>,
    pub(super) group: Group,
    pub(super) rows: Range<usize>,
    /// All columns of the output, or of the state of a window.
    pub(super) out: &'a mut [f32],
    pub(super) log_sum: &'a mut [f32],
}

/// What is known of a row so far: the sums of a group's columns and, for each head, an integer near its scores and the
/// sum of the exponentials divided by two to its power.
struct State<'a, const G: usize> {
    values: &'a mut [f32],
    shifts: [f32; G],
    sums: [f32; G],
}

impl<const G: usize> WithSimd for Rows<'_, G> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Result<()> {
        let Self { operands, group, rows, out, log_sum } = self;
        let (d, heads) = (operands.d, operands.op.heads);
        let partial = operands.op.pass == AttentionPass::Partial;
        let cols = if partial { d + 2 * heads } else { d };
        let columns = group.columns();
        let mut values = vec![0.0f32; columns.len()];
        for (i, v) in rows.enumerate() {
            let mut state = State::<G> { values: &mut values, shifts: [0.0; G], sums: [0.0; G] };
            match operands.sum.map(|sum| sum.row(v)) {
                Some(sum) => {
                    state.values.copy_from_slice(&sum[columns.clone()]);
                    state.shifts.copy_from_slice(&sum[d + group.head..][..G]);
                    state.sums.copy_from_slice(&sum[d + heads + group.head..][..G]);
                }
                None => state.values.fill(0.0),
            }
            let y = operands.rows.row(v);
            let mut row = RowNumbers::default();
            if operands.op.score == Score::Gat {
                repeat::<G>(&y[d + heads + group.head..][..G], &mut row.first);
            }
            let mut chunk = operands.chunks(v)?;
            while operands.next(&mut chunk)? {
                add(operands, group, &row, &chunk, y, &mut state);
            }
            let out = &mut out[i * cols..(i + 1) * cols];
            if partial {
                out[columns.clone()].copy_from_slice(state.values);
                out[d + group.head..][..G].copy_from_slice(&state.shifts);
                out[d + heads + group.head..][..G].copy_from_slice(&state.sums);
                continue;
            }
            // The heads are side by side in the output.
            for head in 0..G {
                let by = if state.sums[head] == 0.0 { 0.0 } else { 1.0 / state.sums[head] };
                let out = &mut out[(group.head + head) * group.width..][..group.width];
                for (out, values) in out.iter_mut().zip(state.values.chunks_exact(G)) {
                    *out = values[head] * by;
                }
            }
            // A fused call does not have the second output.
            let log_sum = log_sum.get_mut(i * heads + group.head..).unwrap_or_default();
            for ((out, &sum), &shift) in log_sum.iter_mut().zip(&state.sums).zip(&state.shifts) {
                *out = if sum == 0.0 { 0.0 } else { log2(sum, shift) };
            }
        }
        Ok(())
    }
}

/// Adds a chunk of edges to the state of a row.
#[inline(always)]
fn add<const G: usize>(
    operands: &Operands<'_>,
    group: Group,
    row: &RowNumbers,
    chunk: &Chunk<'_>,
    y: &[f32],
    state: &mut State<'_, G>,
) {
    let cells = chunk.len * G;
    let mut weights = [0.0f32; CHUNK * LANES];
    let weights = &mut weights[..cells];
    scores::<G>(operands, group, row, chunk, y, weights);
    rescale(weights, state);
    let mut shifts = [0.0f32; CHUNK * LANES];
    repeat::<G>(&state.shifts, &mut shifts[..cells]);
    for (weight, shift) in weights.iter_mut().zip(&shifts[..cells]) {
        *weight = exp2(*weight, *shift);
    }
    for weights in weights.chunks_exact(G) {
        state.sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
    }
    if let Some(draws) = &operands.draws {
        let mut factors = [0.0f32; CHUNK * LANES];
        draws.factors::<G>(chunk, group.head, &mut factors[..cells]);
        weights.iter_mut().zip(&factors[..cells]).for_each(|(weight, factor)| *weight *= factor);
    }
    accumulate::<G>(&chunk.sources[..chunk.len], group.columns().start, weights, state.values);
}

/// Writes the scores of a chunk, in base 2.
#[inline(always)]
fn scores<const G: usize>(
    operands: &Operands<'_>,
    group: Group,
    row: &RowNumbers,
    chunk: &Chunk<'_>,
    y: &[f32],
    scores: &mut [f32],
) {
    let (d, slope) = (operands.d, operands.op.slope);
    let sources = &chunk.sources[..chunk.len];
    match operands.op.score {
        Score::Gat => {
            for (source, scores) in sources.iter().zip(scores.chunks_exact_mut(G)) {
                scores.copy_from_slice(&source[d + group.head..][..G]);
            }
            add_values::<G>(operands, group, chunk, scores);
            for (score, to) in scores.iter_mut().zip(&row.first) {
                *score = leaky(slope, *score + to) * LOG2_E;
            }
        }
        Score::Gatv2 => {
            for (i, (source, scores)) in sources.iter().zip(scores.chunks_exact_mut(G)).enumerate() {
                let score: [f32; G] = v2_scores(operands, group, source, y, operands.edge_value(chunk, i));
                scores.copy_from_slice(&score);
            }
        }
    }
}

/// Adds what the values of a chunk's edges add to the scores of [`Score::Gat`].
#[inline(always)]
pub(super) fn add_values<const G: usize>(operands: &Operands<'_>, group: Group, chunk: &Chunk<'_>, inner: &mut [f32]) {
    for (i, inner) in inner.chunks_exact_mut(G).enumerate() {
        let Some((value, vector)) = operands.edge_value(chunk, i) else { return };
        let vector = &vector[group.head..][..G];
        for head in 0..G {
            inner[head] += value * vector[head];
        }
    }
}

/// Returns the scores of [`Score::Gatv2`], in base 2. `x` and `y` are rows of both ends.
#[inline(always)]
pub(super) fn v2_scores<const G: usize>(
    operands: &Operands<'_>,
    group: Group,
    x: &[f32],
    y: &[f32],
    value: Option<(f32, &[f32])>,
) -> [f32; G] {
    let (columns, slope) = (group.columns(), operands.op.slope);
    let (x, y, a) = (&x[columns.clone()], &y[columns.clone()], &operands.a[columns.clone()]);
    let sums: [f32; G] = match value {
        None => head_sums([a, x, y], |[a, x, y]| a * leaky(slope, x + y)),
        Some((value, vector)) => {
            head_sums([a, x, y, &vector[columns]], |[a, x, y, e]| a * leaky(slope, x + y + value * e))
        }
    };
    sums.map(|sum| sum * LOG2_E)
}

/// A score may be so much larger than the shift of its head. Then its exponential is below `2^33`.
const MARGIN: f32 = 32.0;

/// Sets the shifts by the first scores of a row. Raises them if a score is much larger, and divides the sums accordingly.
/// The result does not depend on the shifts, because a multiplication by a power of two is exact.
#[inline(always)]
fn rescale<const G: usize>(scores: &[f32], state: &mut State<'_, G>) {
    if state.sums == [0.0; G] {
        state.shifts.iter_mut().zip(scores).for_each(|(shift, score)| *shift = score.round_ties_even());
    }
    let mut limits = [0.0f32; CHUNK * LANES];
    repeat::<G>(&state.shifts.map(|shift| shift + MARGIN), &mut limits[..scores.len()]);
    let over = scores.iter().zip(&limits).fold(0u32, |over, (score, limit)| over | u32::from(score > limit));
    if over == 0 {
        return;
    }
    for head in 0..G {
        let largest =
            scores.iter().skip(head).step_by(G).fold(f32::NEG_INFINITY, |most, &x| if x > most { x } else { most });
        let (before, shift) = (state.shifts[head], largest.round_ties_even());
        if shift > before {
            let by = power(before - shift);
            state.sums[head] *= by;
            state.values.iter_mut().skip(head).step_by(G).for_each(|value| *value *= by);
            state.shifts[head] = shift;
        }
    }
}

/// Adds the weighted rows of a chunk to `values`, from column `first` of the rows on.
#[inline(always)]
pub(super) fn accumulate<const G: usize>(sources: &[&[f32]], first: usize, weights: &[f32], values: &mut [f32]) {
    let mut lanes = [[0.0f32; LANES]; CHUNK];
    for (lanes, weights) in lanes.iter_mut().zip(weights.chunks_exact(G)) {
        *lanes = spread::<G>(weights);
    }
    let lanes = &lanes[..sources.len()];
    let mut done = 0;
    while done + 8 * LANES <= values.len() {
        tile::<8>(sources, first + done, lanes, &mut values[done..done + 8 * LANES]);
        done += 8 * LANES;
    }
    if done + 4 * LANES <= values.len() {
        tile::<4>(sources, first + done, lanes, &mut values[done..done + 4 * LANES]);
        done += 4 * LANES;
    }
    while done + LANES <= values.len() {
        tile::<1>(sources, first + done, lanes, &mut values[done..done + LANES]);
        done += LANES;
    }
    let rest = &mut values[done..];
    for (source, lanes) in sources.iter().zip(lanes) {
        let x = &source[first + done..][..rest.len()];
        rest.iter_mut().zip(x).zip(lanes).for_each(|((value, x), weight)| *value += weight * x);
    }
}

/// Adds `T` times `LANES` columns, which stay in registers.
#[inline(always)]
fn tile<const T: usize>(sources: &[&[f32]], first: usize, weights: &[[f32; LANES]], values: &mut [f32]) {
    let mut sums = [[0.0f32; LANES]; T];
    for (sums, values) in sums.iter_mut().zip(values.chunks_exact(LANES)) {
        sums.copy_from_slice(values);
    }
    for (source, weights) in sources.iter().zip(weights) {
        let x = &source[first..first + T * LANES];
        for t in 0..T {
            for i in 0..LANES {
                sums[t][i] += weights[i] * x[t * LANES + i];
            }
        }
    }
    for (sums, values) in sums.iter().zip(values.chunks_exact_mut(LANES)) {
        values.copy_from_slice(sums);
    }
}
