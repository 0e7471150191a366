//! The oracle of attention: see [`crate::op::Attention`]. It reads the operands by the facts of the operation, so it is
//! not among those of [`crate::reference`].

use crate::op::oracle::{Array, Given};
use crate::op::{Attention, AttentionPass, Score, alternating_columns};
use crate::random::{draw, row_key, threshold};
use crate::reference::Dense;

/// The operands of a call, and what an edge's weight is made of.
struct Edges<'a> {
    given: &'a Given<'a>,
    op: &'a Attention,
    own: Dense,
    halo: Option<Dense>,
    rows: Dense,
    /// Columns of the values.
    d: usize,
    /// The place of each column of heads that are side by side.
    places: Vec<usize>,
}

/// One edge: its index, its source, and how many edges of the row before it have the same source.
struct Edge {
    index: usize,
    source: usize,
    twin: u32,
}

impl Edges<'_> {
    /// Returns the edges of a row whose sources are in the window.
    fn of(&self, v: usize) -> Vec<Edge> {
        let block = self.given.block();
        let window = self.given.first_source().map(|first| first..first + self.own.rows);
        let mut edges: Vec<Edge> = Vec::new();
        for index in block.edges(v) {
            let source = block.indices[index] as usize;
            if window.as_ref().is_some_and(|window| !window.contains(&source)) {
                continue;
            }
            let twin = edges.last().filter(|last| last.source == source).map_or(0, |last| last.twin + 1);
            edges.push(Edge { index, source, twin });
        }
        edges
    }

    /// Returns column `c` of a source.
    fn source(&self, edge: &Edge, c: usize) -> f64 {
        let local = edge.source - self.given.first_source().unwrap_or(0);
        match local.checked_sub(self.own.rows) {
            None => self.own.at(local, c),
            Some(u) => self.halo.as_ref().expect("the block has a halo").at(u, c),
        }
    }

    /// Returns what the value of an edge adds to position `at` of the edge vector.
    fn value(&self, edge: &Edge, at: usize) -> f64 {
        let place = self.op.place_of_edge_values();
        place.map_or(0.0, |place| self.given.floats(place)[edge.index] * self.given.floats(place + 1)[at])
    }

    /// Returns the factor of a weight: 0 if it is dropped.
    fn kept(&self, v: usize, edge: &Edge, head: usize) -> f64 {
        let (Some(dropout), Some(place)) = (self.op.dropout, self.op.place_of_clock()) else { return 1.0 };
        let (source, row) = (self.given.u32s(place + 1)[edge.source], self.given.first_row() + v as u64);
        let (from, to) = match self.op.pass {
            AttentionPass::SourceGrad => (row as u32, u64::from(source)),
            _ => (source, row),
        };
        let key = row_key(self.given.seed(), self.given.u64s(place)[0], dropout.salt, to);
        let cell = crate::random::edge_column(from, edge.twin, head, self.op.heads);
        if draw(key, cell) < threshold(dropout.rate) { 0.0 } else { f64::from(1.0 / (1.0 - dropout.rate)) }
    }

    fn leaky(&self, x: f64) -> f64 {
        if x > 0.0 { x } else { f64::from(self.op.slope) * x }
    }

    fn slope(&self, x: f64) -> f64 {
        if x > 0.0 { 1.0 } else { f64::from(self.op.slope) }
    }

    /// Returns the columns of a head.
    fn columns(&self, head: usize) -> impl Iterator<Item = usize> + use<'_> {
        let width = self.d / self.op.heads;
        self.places[head * width..(head + 1) * width].iter().copied()
    }

    /// Returns the sum inside the leaky ReLU: of a head ([`Score::Gat`]), or of a column ([`Score::Gatv2`]).
    fn inner(&self, v: usize, edge: &Edge, at: usize) -> f64 {
        let (d, k) = (self.d, self.op.heads);
        let (from, to) = match (self.op.score, self.op.pass) {
            // The gradient of a destination has its part of the score behind the gradient.
            (Score::Gat, AttentionPass::SourceGrad) => (self.rows.at(v, d + at), self.source(edge, d + at)),
            (Score::Gat, AttentionPass::TargetGrad) => (self.source(edge, d + at), self.rows.at(v, d + at)),
            (Score::Gat, _) => (self.source(edge, d + at), self.rows.at(v, d + k + at)),
            (Score::Gatv2, AttentionPass::SourceGrad) => (self.rows.at(v, at), self.source(edge, d + at)),
            (Score::Gatv2, AttentionPass::TargetGrad) => (self.source(edge, at), self.rows.at(v, d + at)),
            (Score::Gatv2, _) => (self.source(edge, at), self.rows.at(v, at)),
        };
        from + to + self.value(edge, at)
    }

    fn a(&self, c: usize) -> f64 {
        self.given.floats(self.op.place_of_a().expect("the score has a vector"))[c]
    }

    /// Returns the score of a head, in base 2.
    fn exponent(&self, v: usize, edge: &Edge, head: usize) -> f64 {
        let score: f64 = match self.op.score {
            Score::Gat => self.leaky(self.inner(v, edge, head)),
            Score::Gatv2 => self.columns(head).map(|c| self.a(c) * self.leaky(self.inner(v, edge, c))).sum(),
        };
        score * std::f64::consts::LOG2_E
    }

    /// Returns an edge's weight before dropout, its factor, and the gradient of its score.
    fn backward(&self, v: usize, edge: &Edge, head: usize) -> [f64; 3] {
        let source_pass = self.op.pass == AttentionPass::SourceGrad;
        let after = match self.op.score {
            Score::Gat => self.d + self.op.heads,
            Score::Gatv2 => 2 * self.d,
        };
        let of_grads = |at: usize| if source_pass { self.source(edge, at) } else { self.rows.at(v, at) };
        let of_values = |at: usize| if source_pass { self.rows.at(v, at) } else { self.source(edge, at) };
        let (log_sum, dot) = (of_grads(after + head), of_grads(after + self.op.heads + head));
        let weight = (self.exponent(v, edge, head) - log_sum).exp2();
        let kept = self.kept(v, edge, head);
        let d_weight: f64 = self.columns(head).map(|c| of_grads(c) * of_values(c)).sum();
        [weight, kept, weight * (kept * d_weight - dot)]
    }
}

/// Computes a pass of attention: see [`Attention`].
pub fn attention(given: &Given<'_>, op: &Attention) -> Vec<Array> {
    let (own, rows) = (given.mat(0), given.mat(1));
    let of_ends = if op.pass == AttentionPass::SourceGrad { rows.cols } else { own.cols };
    let d = if op.score == Score::Gat { of_ends - 2 * op.heads } else { of_ends };
    let places = alternating_columns(op.heads, d / op.heads);
    let edges = Edges { given, op, own, halo: given.halo(), rows, d, places };
    match op.pass {
        AttentionPass::Forward | AttentionPass::Partial => forward(&edges),
        AttentionPass::SourceGrad | AttentionPass::TargetGrad => vec![backward(&edges).into()],
    }
}

fn forward(edges: &Edges<'_>) -> Vec<Array> {
    let (k, d, n) = (edges.op.heads, edges.d, edges.given.block().rows());
    let mut state = edges.given.sum().unwrap_or_else(|| Dense::from_fn(n, d + 2 * k, |_, _| 0.0));
    for v in 0..n {
        let row = &mut state.data[v * (d + 2 * k)..][..d + 2 * k];
        let listed = edges.of(v);
        for head in 0..k {
            let exponents: Vec<f64> = listed.iter().map(|edge| edges.exponent(v, edge, head)).collect();
            let (shift_at, sum_at) = (d + head, d + k + head);
            let before = if row[sum_at] == 0.0 { f64::NEG_INFINITY } else { row[shift_at] };
            let shift = exponents.iter().map(|x| x.round()).fold(before, f64::max);
            if exponents.is_empty() {
                continue;
            }
            let scale = (before - shift).exp2();
            row[sum_at] *= scale;
            edges.columns(head).for_each(|c| row[c] *= scale);
            row[shift_at] = shift;
            for (edge, exponent) in listed.iter().zip(exponents) {
                let weight = (exponent - shift).exp2();
                row[sum_at] += weight;
                let weight = weight * edges.kept(v, edge, head);
                edges.columns(head).for_each(|c| row[c] += weight * edges.source(edge, c));
            }
        }
    }
    if edges.op.pass == AttentionPass::Partial {
        return vec![state.into()];
    }
    let head_of = |c: usize| c / (d / k);
    let sum = |v: usize, head: usize| state.at(v, d + k + head);
    let out = Dense::from_fn(n, d, |v, c| match sum(v, head_of(c)) {
        0.0 => 0.0,
        sum => state.at(v, edges.places[c]) / sum,
    });
    let log_sum = Dense::from_fn(n, k, |v, head| match sum(v, head) {
        0.0 => 0.0,
        sum => state.at(v, d + head) + sum.log2(),
    });
    vec![out.into(), log_sum.into()]
}

fn backward(edges: &Edges<'_>) -> Dense {
    let (op, d, k) = (edges.op, edges.d, edges.op.heads);
    let n = edges.given.block().rows();
    let extra = usize::from(op.edge_values);
    let cols = match (op.score, op.pass) {
        (Score::Gat, AttentionPass::SourceGrad) => d + 2 * k,
        (Score::Gat, _) => k + extra * k,
        (Score::Gatv2, AttentionPass::SourceGrad) => d,
        (Score::Gatv2, _) => 2 * d + extra * d,
    };
    let mut out = edges.given.sum().unwrap_or_else(|| Dense::from_fn(n, cols, |_, _| 0.0));
    for v in 0..n {
        let row = &mut out.data[v * cols..][..cols];
        if (op.score, op.pass) == (Score::Gat, AttentionPass::SourceGrad) {
            row[d + k..].copy_from_slice(&edges.given.floats(2)[v * k..][..k]);
        }
        for edge in edges.of(v) {
            for head in 0..k {
                let [weight, kept, d_score] = edges.backward(v, &edge, head);
                let edge_value = op.place_of_edge_values().map(|place| edges.given.floats(place)[edge.index]);
                if op.pass == AttentionPass::SourceGrad {
                    edges.columns(head).for_each(|c| row[c] += weight * kept * edges.source(&edge, c));
                }
                match (op.score, op.pass) {
                    (Score::Gat, pass) => {
                        let d_inner = d_score * edges.slope(edges.inner(v, &edge, head));
                        let first = if pass == AttentionPass::SourceGrad { d } else { 0 };
                        row[first + head] += d_inner;
                        if let (Some(value), AttentionPass::TargetGrad) = (edge_value, pass) {
                            row[k + head] += d_inner * value;
                        }
                    }
                    (Score::Gatv2, pass) => {
                        for c in edges.columns(head) {
                            let inner = edges.inner(v, &edge, c);
                            let d_inner = d_score * edges.a(c) * edges.slope(inner);
                            row[c] += d_inner;
                            if pass == AttentionPass::TargetGrad {
                                row[d + c] += d_score * edges.leaky(inner);
                                if let Some(value) = edge_value {
                                    row[2 * d + c] += d_inner * value;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    out
}

/// Computes what the passes backward need from a destination: see [`crate::op::AttentionRows::Grads`].
pub fn attention_grads(given: &Given<'_>, heads: usize, score: Score) -> Dense {
    let (grad, y, log_sum, rows) = (given.mat(0), given.mat(1), given.mat(2), given.mat(3));
    let d = grad.cols;
    let (first, own) = match score {
        Score::Gat => (d + heads, heads),
        Score::Gatv2 => (0, d),
    };
    let mut columns = vec![0; d];
    alternating_columns(heads, d / heads).into_iter().enumerate().for_each(|(c, place)| columns[place] = c);
    Dense::from_fn(grad.rows, d + own + 2 * heads, |v, at| match at {
        c if c < d => grad.at(v, columns[c]),
        c if c < d + own => rows.at(v, first + c - d),
        c if c < d + own + heads => log_sum.at(v, c - d - own),
        c => {
            let (head, width) = (c - d - own - heads, d / heads);
            (head * width..(head + 1) * width).map(|c| grad.at(v, c) * y.at(v, c)).sum()
        }
    })
}

/// Computes `[w; a w; b w]`: see [`crate::op::AttentionRows::ScoreWeight`].
pub fn score_weight(given: &Given<'_>, heads: usize) -> Dense {
    let (w, a, b) = (given.mat(0), given.floats(1), given.floats(2));
    let width = w.rows / heads;
    let row = |vector: &[f64], head: usize, k: usize| -> f64 {
        (head * width..(head + 1) * width).map(|c| vector[c] * w.at(c, k)).sum()
    };
    let mut rows = vec![0; w.rows];
    alternating_columns(heads, width).into_iter().enumerate().for_each(|(row, place)| rows[place] = row);
    Dense::from_fn(w.rows + 2 * heads, w.cols, |r, k| match r.checked_sub(w.rows) {
        None => w.at(rows[r], k),
        Some(head) if head < heads => row(a, head, k),
        Some(head) => row(b, head - heads, k),
    })
}

/// Computes the gradient of `w` in [`score_weight`].
pub fn score_weight_grad(given: &Given<'_>, heads: usize) -> Dense {
    let (grad, a, b) = (given.mat(0), given.floats(1), given.floats(2));
    let d = a.len();
    let places = alternating_columns(heads, d / heads);
    Dense::from_fn(d, grad.cols, |c, k| {
        let head = c / (d / heads);
        grad.at(places[c], k) + a[c] * grad.at(d + head, k) + b[c] * grad.at(d + heads + head, k)
    })
}

/// Computes the gradient of `a`, or of `b`, in [`score_weight`].
pub fn score_vector_grad(given: &Given<'_>, heads: usize, second: bool) -> Dense {
    let (grad, w) = (given.mat(0), given.mat(1));
    let d = w.rows;
    Dense::from_fn(1, d, |_, c| {
        let row = d + if second { heads } else { 0 } + c / (d / heads);
        (0..w.cols).map(|k| w.at(c, k) * grad.at(row, k)).sum()
    })
}
