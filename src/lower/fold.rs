//! Fold: a gather over the transposed graph without the rows of other parts.
//!
//! On a directed graph, the rows that a part reads backward are others than those that it reads forward. Instead of
//! reading them, a part can add up what its own rows contribute to the rows of others, which it read forward, and send
//! each sum to the owner. Then as many rows move backward as forward. The owner adds the sums of other parts to that of
//! its own rows, in part order.

use std::sync::Arc;

use lapidary_kernels::op::{DType, EdgeWeight, Gather, LoopWeight, Move};
use lapidary_kernels::{Arg, Call, Mat, Shared};

use super::{Crossing, Exchange, ExchangePath, Lifetime, LoweredStep, Lowering};
use crate::graph::Block;
use crate::program::{BlockSpec, Op, OpId, Origin, Program, TensorId};

/// One of the two gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoldSide {
    /// From the part's own rows to a row for each row of its forward halo.
    Out,
    /// From the part's own rows, and from the sums of other parts, to the part's own rows.
    In,
}

/// An array of a gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoldArray {
    /// Offsets, u64 `[rows + 1]`.
    Indptr,
    /// Sources, u32 `[edges]`.
    Indices,
    /// Weights, f32 `[edges]`; that of a sum is 1.
    Weights,
}

/// The block of one of the two gathers.
#[derive(Debug)]
pub(super) struct FoldBlock {
    pub indptr: Shared<u64>,
    pub indices: Shared<u32>,
    /// For each edge, its index in the part's forward block; [`SUM`] if the source is a sum of another part.
    origins: Vec<u64>,
}

/// The origin of an edge from a sum.
const SUM: u64 = u64::MAX;

impl FoldBlock {
    /// Returns both blocks of a part. `forward` is its block over the edges that are gathered backward, `lent` its rows
    /// that others read, for each of them in turn; the first `low` are those of parts before it.
    ///
    /// # Cost
    /// O(rows + halo + edges of the part + lent).
    pub(super) fn both(forward: &Block, lent: &[u32], low: usize) -> [Self; 2] {
        let (turned, origins) = forward.transpose();
        let own = forward.own_sources();
        let (indptr, indices) = (turned.indptr(), turned.indices());
        let inner = indptr[own] as usize;
        let out = Self {
            indptr: indptr[own..].iter().map(|end| end - inner as u64).collect::<Vec<_>>().into(),
            indices: indices.slice(inner..indices.len()),
            origins: origins[inner..].to_vec(),
        };
        let (before, after) = lent.split_at(low);
        let mut ends = vec![0u64; own + 1];
        lent.iter().for_each(|&row| ends[row as usize + 1] += 1);
        for row in 0..own {
            ends[row + 1] += ends[row] + indptr[row + 1] - indptr[row];
        }
        let edges = inner + lent.len();
        let mut into = (vec![0u32; edges], vec![SUM; edges]);
        let mut next: Vec<u64> = ends[..own].to_vec();
        let mut put = |row: usize, source: u32, origin: u64| {
            let place = next[row] as usize;
            (into.0[place], into.1[place]) = (source, origin);
            next[row] += 1;
        };
        // In the order of the whole graph: sums of parts before this one, own rows, sums of parts after it.
        let sum = |i: usize| (own + i) as u32;
        before.iter().enumerate().for_each(|(i, &row)| put(row as usize, sum(i), SUM));
        for row in 0..own {
            let edges = indptr[row] as usize..indptr[row + 1] as usize;
            edges.for_each(|edge| put(row, indices[edge], origins[edge]));
        }
        after.iter().enumerate().for_each(|(i, &row)| put(row as usize, sum(low + i), SUM));
        [out, Self { indptr: ends.into(), indices: into.0.into(), origins: into.1 }]
    }

    /// Returns the weights of the edges, given those of the part's forward block.
    pub(super) fn weights(&self, forward: &[f32]) -> Shared<f32> {
        let weight = |&origin: &u64| if origin == SUM { 1.0 } else { forward[origin as usize] };
        self.origins.iter().map(weight).collect::<Vec<f32>>().into()
    }
}

impl Lowering<'_> {
    /// Whether a gather is folded: a plain sum over the transposed graph, with constant weights or none.
    pub(super) fn folds(&self, program: &Program, op: OpId, block: BlockSpec, call: &Call) -> bool {
        let transposed = matches!(block, BlockSpec::Graph { transposed: true, .. });
        let sums = match call.op.head() {
            Op::Gather(Gather { weight: EdgeWeight::One, .. }) => true,
            Op::Gather(Gather { weight: EdgeWeight::Stored, .. }) => {
                let weights = program.inputs(op)[1];
                let is_weights = |(origin, &tensor): (&Origin, &TensorId)| {
                    tensor == weights && matches!(origin, Origin::EdgeWeights(_, LoopWeight::One))
                };
                program.origins().iter().any(is_weights)
            }
            _ => false,
        };
        self.table.tiling().folds && transposed && sums && call.stored() == DType::F32
    }

    /// Returns the steps of a folded gather: one that makes the sums for other parts, and one that adds the sums of
    /// others to that of the part's own rows.
    pub(super) fn gather_and_fold(&mut self, block: BlockSpec, name: &Arc<str>, mut call: Call) -> Vec<LoweredStep> {
        let own = call.inputs[0];
        let weighted = matches!(call.op.head(), Op::Gather(Gather { weight: EdgeWeight::Stored, .. }));
        let fetches = self.table.tiling().exchange != ExchangePath::Host;
        let (out, out_weights) = self.table.folded(block, FoldSide::Out, weighted);
        let (into, in_weights) = self.table.folded(block, FoldSide::In, weighted);
        let mut matrix = |what: &str, rows: usize, kind: Lifetime| {
            let bytes = (rows as u64).saturating_mul(own.row_bytes() as u64);
            Mat { slot: self.table.push(format!("{what} {name}"), bytes, kind), rows, ..own }
        };
        let sums = matrix("sums for others of", out.rows, Lifetime::Local);
        let kind = if fetches { Lifetime::Local } else { Lifetime::Received };
        let received = matrix("sums of others of", into.halo_sources, kind);

        let mut sum = call.clone().apart().0;
        (sum.block, sum.outputs) = (Some(out), vec![sums]);
        sum.inputs.iter_mut().skip(1).zip(out_weights).for_each(|(mat, slot)| (mat.slot, mat.rows) = (slot, out.edges));
        let mut steps = vec![LoweredStep::new(format!("{name}[sums]"), sum)];

        let crossing = Crossing::Fold(block);
        if fetches {
            let rows = self.table.fetched_rows(crossing);
            let fetch = Call::new(Move::Fetch, [sums.into(), Arg::Slot(rows)], [received]);
            steps.push(LoweredStep::new(self.table.name(received.slot).to_owned(), fetch));
            self.exchanges.push(Exchange::Fetch { packed: sums.slot, halo: received.slot, crossing, owner: None });
        } else {
            let (packed, halo) = (vec![sums.slot], vec![received.slot]);
            let (width, float) = (own.cols, own.float());
            self.exchanges.push(Exchange::Halo { packed, halo, crossing, width, float });
        }

        call.block = Some(into);
        call.inputs[1..].iter_mut().zip(in_weights).for_each(|(mat, slot)| (mat.slot, mat.rows) = (slot, into.edges));
        steps.push(LoweredStep::with_halo(name.clone(), call, received));
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;

    #[test]
    fn sums_of_parts_are_gathered_in_their_order() {
        // Part 1 of 0..1, 1..3, 3..5. Vertex 1 reads 0, 2 and 4; vertex 2 reads 2 and 4.
        let edges = [(0, 1), (2, 1), (4, 1), (2, 2), (4, 2)];
        let graph = Graph::from_edges(5, &edges).expect("the ends are vertices");
        let forward = Block::of_part(&graph, 1..3);
        // Part 0 reads vertex 2, part 2 reads 1 and 2.
        let [out, into] = FoldBlock::both(&forward, &[1, 0, 1], 1);
        // Vertices 0 and 4 get sums over rows 0, and 0 and 1.
        assert_eq!((&out.indptr[..], &out.indices[..]), (&[0, 1, 3][..], &[0, 0, 1][..]));
        // Vertex 1: the sum of part 2. Vertex 2: that of part 0, then rows 0 and 1, then that of part 2.
        assert_eq!((&into.indptr[..], &into.indices[..]), (&[0, 1, 5][..], &[3, 2, 0, 1, 4][..]));
        let weights: Vec<f32> = (1..6).map(|edge| edge as f32).collect();
        assert_eq!(out.weights(&weights)[..], [1.0, 3.0, 5.0]);
        assert_eq!(into.weights(&weights)[..], [1.0, 1.0, 2.0, 4.0, 1.0]);
    }
}
