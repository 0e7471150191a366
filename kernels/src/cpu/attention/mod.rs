//! Attention: gathers whose weights are computed from the rows of both ends, and their gradients.
//!
//! Rows are split into tasks as in a plain gather. The edges of a row are taken in chunks: first the scores of a chunk,
//! then their exponentials, then the rows. Sums run edge by edge in CSR order. Exponents are in base 2, and relative to an
//! integer. If a score is far above the integer, the sums are multiplied by a power of two, which is exact. So the result
//! has the same bits for any chunks, windows, parts and threads, except that weights below about `2^-94` of the largest
//! may be 0.

mod backward;
mod forward;
mod math;
mod rows;

use std::ops::Range;

use super::parallel::{balanced_rows, split_at_ends, task_count, try_for_each};
use super::prefetch::prefetch;
use super::rows::{RowWork, Steps};
use super::slots::{Open, Vector};
use super::sources::{LINE, bad_row, check_block};
use crate::error::{Error, Result};
use crate::op::call::Call;
use crate::op::{Attention, AttentionPass, AttentionRows, Score, head_groups};
use crate::random::{RowKey, draw, edge_column, row_key, threshold};
use crate::view::{BlockView, MatView};
use math::LANES;

/// Cache lines of the sources of a chunk.
const LINES: usize = 64;

/// Most edges of a chunk.
const CHUNK: usize = 16;

/// Fewest cells of a task.
const LEAST_WORK: usize = 1 << 14;

/// The operands of a pass.
struct Operands<'a> {
    call: &'static str,
    op: &'a Attention,
    block: BlockView<'a>,
    /// The sources of the window, if the call is one.
    window: Option<Range<usize>>,
    own: MatView<'a>,
    halo: Option<MatView<'a>>,
    /// One row per row of the block.
    rows: MatView<'a>,
    /// The sums that a window continues.
    sum: Option<MatView<'a>>,
    /// The vector of [`Score::Gatv2`].
    a: &'a [f32],
    /// For [`Score::Gat`], the gradient of the destination's part of the score.
    target_grad: &'a [f32],
    edge_values: Option<(&'a [f32], &'a [f32])>,
    draws: Option<Draws<'a>>,
    /// Columns of the values.
    d: usize,
    /// Edges of a chunk: as many as have rows that fit the first-level cache, with those of the next chunk.
    chunk: usize,
}

/// The draws of a dropout of weights.
struct Draws<'a> {
    seed: u64,
    epoch: u64,
    salt: u32,
    threshold: u32,
    scale: f32,
    first_row: u64,
    ids: &'a [u32],
    heads: usize,
    /// Whether rows are the sources of edges.
    transposed: bool,
}

pub(super) fn launch_rows(slots: &Open<'_>, op: AttentionRows, call: &Call) -> Result<()> {
    rows::launch(slots, op, call)
}

pub(super) fn launch(slots: &Open<'_>, op: &Attention, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    let name = call.name_of_head();
    let block = slots.block_of(call)?;
    let (own, rows) = (slots.mat(call.inputs[0])?, slots.mat(call.inputs[1])?);
    let halo = call.halo.map(|mat| slots.mat(mat)).transpose()?;
    let sum = call.sum.map(|mat| slots.mat(mat)).transpose()?;
    let numbers = |place: usize| slots.numbers::<f32>(call.inputs[place]);
    let third = (op.score == Score::Gatv2 || op.pass == AttentionPass::SourceGrad).then(|| numbers(2)).transpose()?;
    let values = op.place_of_edge_values().map(|at| Ok((numbers(at)?, numbers(at + 1)?))).transpose()?;
    let drawn = op.place_of_clock().map(|at| Ok((slots.clock(call.inputs[at])?, slots.numbers(call.inputs[at + 1])?)));
    let drawn: Option<([u64; 2], Vector<u32>)> = drawn.transpose()?;
    let third = third.as_ref().map_or(&[][..], Vector::view);
    let of_ends = if op.pass == AttentionPass::SourceGrad { rows.view().cols() } else { own.view().cols() };
    let d = if op.score == Score::Gat { of_ends.saturating_sub(2 * op.heads) } else { of_ends };
    let operands = Operands {
        call: name,
        op,
        block: block.view(),
        window: call.first_source.map(|first| first..first.saturating_add(own.view().rows())),
        own: own.view(),
        halo: halo.as_ref().map(|halo| halo.view()),
        rows: rows.view(),
        sum: sum.as_ref().map(|sum| sum.view()),
        a: if op.score == Score::Gatv2 { third } else { &[] },
        target_grad: if op.score == Score::Gat { third } else { &[] },
        edge_values: values.as_ref().map(|(values, vector)| (values.view(), vector.view())),
        draws: drawn.as_ref().zip(op.dropout).map(|((clock, ids), dropout)| Draws {
            seed: call.part.seed,
            epoch: clock[0],
            salt: dropout.salt,
            threshold: threshold(dropout.rate),
            scale: 1.0 / (1.0 - dropout.rate),
            first_row: call.part.first_row,
            ids: ids.view(),
            heads: op.heads,
            transposed: op.pass == AttentionPass::SourceGrad,
        }),
        d,
        chunk: (LINES / own.view().cols().div_ceil(LINE).max(1)).clamp(4, CHUNK),
    };
    operands.check()?;
    let mut out = slots.mat_mut(call.out())?;
    let mut log_sum = call.outputs.get(1).map(|&mat| slots.numbers_mut::<f32>(mat)).transpose()?;
    let steps = Steps::new(name, steps, call.out().rows, call.out().cols)?;
    let log_sum = log_sum.as_mut().map_or(&mut [][..], |log_sum| log_sum.view());
    operands.run(&steps, out.view().data(), log_sum, call.out().cols)
}

impl Operands<'_> {
    fn check(&self) -> Result<()> {
        let argument = |operand, want, got: f64| Err(Error::Argument { call: self.call, operand, want, got });
        check_block(self.call, self.block)?;
        if self.op.heads == 0 || !self.d.is_multiple_of(self.op.heads) {
            return argument("heads", "a divisor of the columns", self.op.heads as f64);
        }
        if let Some(dropout) = self.op.dropout.filter(|dropout| !(0.0..1.0).contains(&dropout.rate)) {
            return argument("rate", "in [0, 1)", dropout.rate.into());
        }
        match &self.window {
            Some(window) if window.end > self.block.own_sources => {
                let (index, limit) = (window.end as u64, self.block.own_sources as u64 + 1);
                Err(Error::Index { call: self.call, operand: "the window's end", index, limit })
            }
            _ => Ok(()),
        }
    }

    /// Runs the pass over all rows. `cols` is the number of columns of `out`.
    fn run(&self, steps: &Steps<'_>, out: &mut [f32], log_sum: &mut [f32], cols: usize) -> Result<()> {
        let (n, e) = (self.block.rows(), self.block.indices.len());
        if n == 0 || (cols == 0 && log_sum.is_empty()) {
            return Ok(());
        }
        let heads = if log_sum.is_empty() { 0 } else { self.op.heads };
        let ranges = balanced_rows(self.block.indptr, task_count((n + e).saturating_mul(self.d.max(1)), LEAST_WORK));
        let outs = split_at_ends(out, ranges.iter().map(|range| range.end * cols));
        let log_sums = split_at_ends(log_sum, ranges.iter().map(|range| range.end * heads));
        let tasks = ranges.into_iter().zip(outs.into_iter().zip(log_sums));
        try_for_each(tasks, |(rows, (out, log_sum))| {
            let group = steps.group::<f32>();
            for first in rows.clone().step_by(group) {
                let rows_of_group = first..(first + group).min(rows.end);
                let at = |cols: usize| (first - rows.start) * cols..(rows_of_group.end - rows.start) * cols;
                let out = &mut out[at(cols)];
                self.dispatch(rows_of_group.clone(), out, &mut log_sum[at(heads)])?;
                steps.apply(first, out);
            }
            Ok(())
        })
    }

    /// Runs the pass over some rows, one group of heads after the other.
    fn dispatch(&self, rows: Range<usize>, out: &mut [f32], log_sum: &mut [f32]) -> Result<()> {
        let width = self.d / self.op.heads;
        for (head, size) in head_groups(self.op.heads) {
            let (group, rows) = (Group { head, size, width }, rows.clone());
            match size {
                8 => self.pass::<8>(group, rows, out, log_sum),
                4 => self.pass::<4>(group, rows, out, log_sum),
                2 => self.pass::<2>(group, rows, out, log_sum),
                _ => self.pass::<1>(group, rows, out, log_sum),
            }?;
        }
        Ok(())
    }

    fn pass<const G: usize>(
        &self,
        group: Group,
        rows: Range<usize>,
        out: &mut [f32],
        log_sum: &mut [f32],
    ) -> Result<()> {
        let (arch, operands) = (pulp::Arch::new(), self);
        match self.op.pass {
            AttentionPass::Forward | AttentionPass::Partial => {
                arch.dispatch(forward::Rows::<G> { operands, group, rows, out, log_sum })
            }
            AttentionPass::SourceGrad => arch.dispatch(backward::Rows::<G, true> { operands, group, rows, out }),
            AttentionPass::TargetGrad => arch.dispatch(backward::Rows::<G, false> { operands, group, rows, out }),
        }
    }

    /// Returns the edges of row `v` before the first chunk.
    #[inline(always)]
    fn chunks(&self, v: usize) -> Result<Chunk<'_>> {
        let edges = self.edges(v)?;
        let key = match &self.draws {
            Some(draws) => draws.row(v),
            None => None,
        };
        let (first, end, indices) = (edges.start, edges.end, self.block.indices);
        let sources = [&[][..]; CHUNK];
        Ok(Chunk { row: v, first, len: 0, end, sources, indices, key, last: Twins::default(), twins: [0; CHUNK] })
    }

    /// Goes to the next chunk. Returns whether there is one.
    #[inline(always)]
    fn next<'a>(&'a self, chunk: &mut Chunk<'a>) -> Result<bool> {
        chunk.first += chunk.len;
        chunk.len = self.chunk.min(chunk.end - chunk.first);
        for i in 0..chunk.len {
            let edge = chunk.first + i;
            let u = chunk.indices[edge];
            chunk.sources[i] = self.source(u)?;
            self.prefetch(edge + self.chunk);
            if self.draws.is_some() {
                chunk.twins[i] = chunk.last.next(u);
            }
        }
        Ok(chunk.len > 0)
    }

    /// Returns the value of edge `i` of a chunk, and the vector by which it is multiplied.
    #[inline(always)]
    fn edge_value(&self, chunk: &Chunk<'_>, i: usize) -> Option<(f32, &[f32])> {
        self.edge_values.map(|(values, vector)| (values[chunk.first + i], vector))
    }

    /// Returns the edges of row `v` that the call covers.
    #[inline(always)]
    fn edges(&self, v: usize) -> Result<Range<usize>> {
        let edges = self.block.indptr[v] as usize..self.block.indptr[v + 1] as usize;
        let Some(sources) = self.block.indices.get(edges.clone()) else {
            return Err(bad_row(self.call, self.block, v));
        };
        Ok(match &self.window {
            None => edges,
            Some(window) => {
                let [low, high] =
                    [window.start, window.end].map(|end| sources.partition_point(|&u| (u as usize) < end));
                edges.start + low..edges.start + high
            }
        })
    }

    /// Returns the matrix that has the row of a source, and the index of the row's first column in it. Neither is checked.
    #[inline(always)]
    fn locate(&self, u: u32) -> (&[f32], usize) {
        let local = (u as usize).wrapping_sub(self.window.as_ref().map_or(0, |window| window.start));
        let (data, local) = match local.checked_sub(self.own.rows()) {
            Some(outside) if self.window.is_none() => (self.halo.map_or(&[][..], |halo| halo.data()), outside),
            _ => (self.own.data(), local),
        };
        (data, local.wrapping_mul(self.own.cols()))
    }

    /// Returns the row of a source.
    #[inline(always)]
    fn source(&self, u: u32) -> Result<&[f32]> {
        let (data, start) = self.locate(u);
        let limit = (self.block.own_sources + self.block.halo_sources) as u64;
        let bad = Error::Index { call: self.call, operand: "indices", index: u.into(), limit };
        data.get(start..start.wrapping_add(self.own.cols())).ok_or(bad)
    }

    /// Prefetches the row of the source of an edge, which may be behind the last one.
    #[inline(always)]
    fn prefetch(&self, edge: usize) {
        let Some(&u) = self.block.indices.get(edge) else { return };
        let (data, start) = self.locate(u);
        for line in 0..self.own.cols().div_ceil(LINE) + 1 {
            prefetch(data, start.wrapping_add(line * LINE));
        }
    }
}

impl Draws<'_> {
    /// Returns the key that all edges of a row share, if they do.
    #[inline(always)]
    fn row(&self, v: usize) -> Option<RowKey> {
        (!self.transposed).then(|| row_key(self.seed, self.epoch, self.salt, self.first_row + v as u64))
    }

    /// Writes the factors of the weights of a chunk, for the `G` heads from `first` on: 0, or the scale of a dropout.
    #[inline(always)]
    fn factors<const G: usize>(&self, chunk: &Chunk<'_>, first: usize, factors: &mut [f32]) {
        let mut draws = [RowKey::default(); CHUNK * LANES];
        let mut columns = [0u32; CHUNK * LANES];
        for i in 0..chunk.len {
            let id = self.ids[chunk.indices[chunk.first + i] as usize];
            let (key, from) = match chunk.key {
                Some(key) => (key, id),
                None => {
                    let row = (self.first_row + chunk.row as u64) as u32;
                    (row_key(self.seed, self.epoch, self.salt, id.into()), row)
                }
            };
            for head in 0..G {
                draws[i * G + head] = key;
                columns[i * G + head] = edge_column(from, chunk.twins[i], first + head, self.heads);
            }
        }
        for ((factor, key), column) in factors.iter_mut().zip(&draws).zip(&columns) {
            *factor = if draw(*key, *column) < self.threshold { 0.0 } else { self.scale };
        }
    }
}

/// Numbers of a row that all its edges share, repeated for the edges of a chunk.
struct RowNumbers {
    /// The row's own part of the scores.
    first: [f32; CHUNK * LANES],
    log_sums: [f32; CHUNK * LANES],
    dots: [f32; CHUNK * LANES],
}

impl Default for RowNumbers {
    #[inline(always)]
    fn default() -> Self {
        Self { first: [0.0; CHUNK * LANES], log_sums: [0.0; CHUNK * LANES], dots: [0.0; CHUNK * LANES] }
    }
}

/// Some edges of a row.
struct Chunk<'a> {
    row: usize,
    /// Index of the first edge.
    first: usize,
    len: usize,
    /// Index behind the last edge of the row.
    end: usize,
    /// The rows of the sources.
    sources: [&'a [f32]; CHUNK],
    indices: &'a [u32],
    /// The key of the draws that the row's edges share, if they do.
    key: Option<RowKey>,
    last: Twins,
    /// For each edge, how many before it have the same ends.
    twins: [u32; CHUNK],
}

/// Consecutive heads that are computed together. Their columns alternate: see [`head_groups`].
#[derive(Clone, Copy)]
struct Group {
    /// The first head.
    head: usize,
    /// Number of heads.
    size: usize,
    /// Columns of a head.
    width: usize,
}

impl Group {
    /// Returns the columns of the group.
    #[inline(always)]
    fn columns(self) -> Range<usize> {
        self.head * self.width..(self.head + self.size) * self.width
    }
}

/// Numbers edges between the same two vertices, which are next to each other in a row.
#[derive(Default)]
struct Twins {
    last: Option<u32>,
    count: u32,
}

impl Twins {
    /// Returns how many edges before this one have the same source.
    #[inline(always)]
    fn next(&mut self, u: u32) -> u32 {
        self.count = if self.last == Some(u) { self.count + 1 } else { 0 };
        self.last = Some(u);
        self.count
    }
}
