//! The backward passes of attention: over the transposed block for the gradients of the sources, over the block itself
//! for those of the destinations' part of the scores. Both compute the weights again.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::forward::{accumulate, add_values, v2_scores};
use super::math::{LANES, LOG2_E, Lanes, exp2, head_sums, leaky, repeat, spread};
use super::{CHUNK, Chunk, Group, Operands, RowNumbers};
use crate::error::Result;
use crate::op::Score;

/// Consecutive rows and their part of the output, for a group of `G` heads. `SOURCE` says whether the rows are the
/// sources of the edges.
pub(super) struct Rows<'a, const G: usize, const SOURCE: bool> {
    pub(super) operands: &'a Operands<'a>,
    pub(super) group: Group,
    pub(super) rows: Range<usize>,
    pub(super) out: &'a mut [f32],
}

impl<const G: usize, const SOURCE: bool> WithSimd for Rows<'_, G, SOURCE> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Result<()> {
        let Self { operands, group, rows, out } = self;
        let (d, heads) = (operands.d, operands.op.heads);
        let extra = usize::from(operands.edge_values.is_some());
        // The columns of the group: ranges of equal parts of the output.
        let (columns, of_heads) = (group.columns(), group.head..group.head + G);
        let at = |first: usize, range: &Range<usize>| first + range.start..first + range.end;
        let (cols, parts): (usize, Vec<Range<usize>>) = match (operands.op.score, SOURCE) {
            (Score::Gat, true) => (d + 2 * heads, vec![columns, at(d, &of_heads), at(d + heads, &of_heads)]),
            (Score::Gat, false) => (heads * (1 + extra), (0..=extra).map(|i| at(i * heads, &of_heads)).collect()),
            (Score::Gatv2, true) => (d, vec![columns]),
            (Score::Gatv2, false) => (d * (2 + extra), (0..2 + extra).map(|i| at(i * d, &columns)).collect()),
        };
        let mut sums = vec![0.0f32; parts.iter().map(Range::len).sum()];
        // The columns of a source plus those of its edge.
        let mut with_edge = vec![0.0f32; if extra > 0 { group.columns().len() } else { 0 }];
        for (i, v) in rows.enumerate() {
            let out = &mut out[i * cols..(i + 1) * cols];
            sums.fill(0.0);
            match operands.sum.map(|sum| sum.row(v)) {
                Some(sum) => {
                    let mut first = 0;
                    for part in &parts {
                        sums[first..first + part.len()].copy_from_slice(&sum[part.clone()]);
                        first += part.len();
                    }
                }
                None if SOURCE && operands.op.score == Score::Gat => {
                    let first = sums.len() - G;
                    sums[first..].copy_from_slice(&operands.target_grad[v * heads + group.head..][..G]);
                }
                None => {}
            }
            let row = operands.rows.row(v);
            let numbers = numbers::<G, SOURCE>(operands, group, row);
            let mut chunk = operands.chunks(v)?;
            while operands.next(&mut chunk)? {
                match operands.op.score {
                    Score::Gat => gat::<G, SOURCE>(operands, group, row, &numbers, &chunk, &mut sums),
                    Score::Gatv2 => {
                        gatv2::<G, SOURCE>(operands, group, row, &numbers, &chunk, &mut sums, &mut with_edge)
                    }
                }
            }
            let mut first = 0;
            for part in &parts {
                out[part.clone()].copy_from_slice(&sums[first..first + part.len()]);
                first += part.len();
            }
        }
        Ok(())
    }
}

/// Returns the numbers of a row that all its edges share.
#[inline(always)]
fn numbers<const G: usize, const SOURCE: bool>(operands: &Operands<'_>, group: Group, row: &[f32]) -> RowNumbers {
    let (d, heads) = (operands.d, operands.op.heads);
    let at = match operands.op.score {
        Score::Gat => d + group.head,
        Score::Gatv2 => 2 * d + group.head - heads,
    };
    let mut numbers = RowNumbers::default();
    if operands.op.score == Score::Gat {
        repeat::<G>(&row[at..], &mut numbers.first);
    }
    if !SOURCE {
        repeat::<G>(&row[at + heads..], &mut numbers.log_sums);
        repeat::<G>(&row[at + 2 * heads..], &mut numbers.dots);
    }
    numbers
}

/// Numbers of a chunk, one for each edge and head.
struct Cells {
    /// The sum inside the leaky ReLU; then the gradient of it.
    inner: [f32; CHUNK * LANES],
    log_sums: [f32; CHUNK * LANES],
    dots: [f32; CHUNK * LANES],
    /// The product of the gradient and the values; then the gradient of the score.
    d_scores: [f32; CHUNK * LANES],
    /// The exponents; then the weights after dropout.
    weights: [f32; CHUNK * LANES],
    factors: [f32; CHUNK * LANES],
}

impl Cells {
    #[inline(always)]
    fn new() -> Self {
        let zeros = [0.0; CHUNK * LANES];
        Self {
            inner: zeros,
            log_sums: zeros,
            dots: zeros,
            d_scores: zeros,
            weights: zeros,
            factors: [1.0; CHUNK * LANES],
        }
    }

    /// Loads what the destinations of a chunk's edges know of each head, and draws the factors of the weights. `at` is
    /// the place of the logarithms of the sums in a destination's row.
    #[inline(always)]
    fn load<const G: usize, const SOURCE: bool>(
        &mut self,
        operands: &Operands<'_>,
        group: Group,
        numbers: &RowNumbers,
        chunk: &Chunk<'_>,
        at: usize,
    ) {
        if SOURCE {
            let heads = operands.op.heads;
            for (i, source) in chunk.sources[..chunk.len].iter().enumerate() {
                let of_edge = i * G..(i + 1) * G;
                self.log_sums[of_edge.clone()].copy_from_slice(&source[at..at + G]);
                self.dots[of_edge].copy_from_slice(&source[at + heads..at + heads + G]);
            }
        } else {
            self.log_sums = numbers.log_sums;
            self.dots = numbers.dots;
        }
        if let Some(draws) = &operands.draws {
            draws.factors::<G>(chunk, group.head, &mut self.factors[..chunk.len * G]);
        }
    }

    /// Turns exponents into weights after dropout, and products into gradients of the scores.
    #[inline(always)]
    fn finish(&mut self, len: usize) {
        let rest = self.log_sums[..len].iter().zip(&self.dots[..len]).zip(&self.factors[..len]);
        for ((weight, d_score), ((log_sum, dot), factor)) in
            self.weights[..len].iter_mut().zip(&mut self.d_scores[..len]).zip(rest)
        {
            let before = exp2(*weight - log_sum, 0.0);
            *d_score = before * (*d_score * factor - dot);
            *weight = before * factor;
        }
    }
}

#[inline(always)]
fn gat<const G: usize, const SOURCE: bool>(
    operands: &Operands<'_>,
    group: Group,
    row: &[f32],
    numbers: &RowNumbers,
    chunk: &Chunk<'_>,
    sums: &mut [f32],
) {
    let (d, heads, slope) = (operands.d, operands.op.heads, operands.op.slope);
    let (columns, at, len) = (group.columns(), d + group.head, chunk.len * G);
    let sources = &chunk.sources[..chunk.len];
    let mut cells = Cells::new();
    cells.load::<G, SOURCE>(operands, group, numbers, chunk, at + heads);
    for (i, source) in sources.iter().enumerate() {
        let of_edge = i * G..(i + 1) * G;
        // Both kinds of rows have their part of the score behind the columns.
        cells.inner[of_edge.clone()].copy_from_slice(&source[at..at + G]);
        let products: [f32; G] = head_sums([&source[columns.clone()], &row[columns.clone()]], |[x, y]| x * y);
        cells.d_scores[of_edge].copy_from_slice(&products);
    }
    add_values::<G>(operands, group, chunk, &mut cells.inner[..len]);
    for ((inner, weight), own) in cells.inner[..len].iter_mut().zip(&mut cells.weights).zip(&numbers.first) {
        *inner += own;
        *weight = leaky(slope, *inner) * LOG2_E;
    }
    cells.finish(len);
    for (inner, d_score) in cells.inner[..len].iter_mut().zip(&cells.d_scores) {
        *inner = if *inner > 0.0 { *d_score } else { slope * d_score };
    }
    let (values_out, scores_out) = sums.split_at_mut(if SOURCE { columns.len() } else { 0 });
    for d_inner in cells.inner[..len].chunks_exact(G) {
        for head in 0..G {
            scores_out[head] += d_inner[head];
        }
    }
    if SOURCE {
        accumulate::<G>(sources, columns.start, &cells.weights[..len], values_out);
        return;
    }
    for (i, d_inner) in cells.inner[..len].chunks_exact(G).enumerate() {
        let Some((value, _)) = operands.edge_value(chunk, i) else { return };
        for head in 0..G {
            scores_out[G + head] += d_inner[head] * value;
        }
    }
}

#[inline(always)]
fn gatv2<const G: usize, const SOURCE: bool>(
    operands: &Operands<'_>,
    group: Group,
    row: &[f32],
    numbers: &RowNumbers,
    chunk: &Chunk<'_>,
    sums: &mut [f32],
    with_edge: &mut [f32],
) {
    let d = operands.d;
    let (columns, at, len) = (group.columns(), 2 * d + group.head, chunk.len * G);
    let sources = &chunk.sources[..chunk.len];
    // The gradients of the destination: [gradient | its row | log_sum | dots].
    let grads_of = |i: usize| if SOURCE { sources[i] } else { row };
    let values_of = |i: usize| if SOURCE { row } else { sources[i] };
    let mut cells = Cells::new();
    cells.load::<G, SOURCE>(operands, group, numbers, chunk, at);
    for i in 0..chunk.len {
        let (grads, values, of_edge) = (grads_of(i), values_of(i), i * G..(i + 1) * G);
        let scores: [f32; G] = v2_scores(operands, group, values, &grads[d..2 * d], operands.edge_value(chunk, i));
        cells.weights[of_edge.clone()].copy_from_slice(&scores);
        let products: [f32; G] = head_sums([&grads[columns.clone()], &values[columns.clone()]], |[g, x]| g * x);
        cells.d_scores[of_edge].copy_from_slice(&products);
    }
    cells.finish(len);
    let (a, slope) = (&operands.a[columns.clone()], operands.op.slope);
    for (i, d_scores) in cells.d_scores[..len].chunks_exact(G).enumerate() {
        let (mut x, y) = (&values_of(i)[columns.clone()], &grads_of(i)[d..2 * d][columns.clone()]);
        let d_scores = spread::<G>(d_scores);
        let edge = operands.edge_value(chunk, i);
        if let Some((value, vector)) = edge {
            for ((sum, x), vector) in with_edge.iter_mut().zip(x).zip(&vector[columns.clone()]) {
                *sum = x + value * vector;
            }
            x = with_edge;
        }
        let (first, rest) = sums.split_at_mut(columns.len());
        let inner = |d: f32, a: f32, x: f32| d * if x > 0.0 { a } else { slope * a };
        if SOURCE {
            let weights = spread::<G>(&cells.weights[i * G..(i + 1) * G]);
            add_to_source([x, y, a, &grads_of(i)[columns.clone()]], [d_scores, weights], slope, first);
            continue;
        }
        add_columns([x, y, a], d_scores, first, |[x, y, a], d| inner(d, a, x + y));
        let (of_a, of_edges) = rest.split_at_mut(columns.len());
        add_columns([x, y], d_scores, of_a, |[x, y], d| d * leaky(slope, x + y));
        if let Some((value, _)) = edge {
            add_columns([x, y, a], d_scores, of_edges, |[x, y, a], d| value * inner(d, a, x + y));
        }
    }
}

/// Adds the gradient that an edge gives its source: by its weight, and by its score. Both at once: a sum over the edges of a
/// chunk would depend on where chunks begin.
#[inline(always)]
fn add_to_source([x, y, a, grad]: [&[f32]; 4], [d_scores, weights]: [[f32; LANES]; 2], slope: f32, out: &mut [f32]) {
    let [d_score, weight, slope] = [Lanes(d_scores), Lanes(weights), Lanes([slope; LANES])];
    let (blocks, rest) = out.as_chunks_mut::<LANES>();
    let [(x, x_rest), (y, y_rest), (a, a_rest), (grad, grad_rest)] = [x, y, a, grad].map(<[f32]>::as_chunks::<LANES>);
    let terms = |x: Lanes, y: Lanes, a: Lanes, grad: Lanes| weight * grad + d_score * (x + y).choose(a, slope * a);
    for (i, block) in blocks.iter_mut().enumerate() {
        *block = (Lanes(*block) + terms(Lanes(x[i]), Lanes(y[i]), Lanes(a[i]), Lanes(grad[i]))).0;
    }
    if !rest.is_empty() {
        let [x, y, a, grad] = [x_rest, y_rest, a_rest, grad_rest].map(Lanes::padded);
        let sums = Lanes::padded(rest) + terms(x, y, a, grad);
        rest.copy_from_slice(&sums.0[..rest.len()]);
    }
}

/// Adds `term` of the numbers of rows, and of the number of the column's head, to each column.
#[inline(always)]
fn add_columns<const N: usize>(
    rows: [&[f32]; N],
    of_heads: [f32; LANES],
    out: &mut [f32],
    term: impl Fn([f32; N], f32) -> f32,
) {
    let (blocks, rest) = out.as_chunks_mut::<LANES>();
    let rows = rows.map(|row| row.as_chunks::<LANES>());
    for (i, block) in blocks.iter_mut().enumerate() {
        let rows = rows.map(|(row, _)| row[i]);
        for lane in 0..LANES {
            block[lane] += term(rows.map(|row| row[lane]), of_heads[lane]);
        }
    }
    for (lane, out) in rest.iter_mut().enumerate() {
        *out += term(rows.map(|(_, row)| row[lane]), of_heads[lane]);
    }
}
