//! Consecutive rows of a graph, for a process that needs no others.

use std::ops::Range;

use lapidary_arrays::Shared;
use rayon::prelude::*;

use super::block::Block;
use super::csr::{Graph, Turned, around, prefix_sum, rows_mut};
use super::vertex_set::VertexSet;

/// Consecutive rows of a graph or of its transpose. Vertices have the ids of the whole graph.
///
/// Cloning shares the arrays.
#[derive(Clone, Debug)]
pub struct GraphRows {
    // Invariant: `offsets` rises, by `indices.len()` in all; every source is below `vertices`; each row ascends; the
    // last row is below `vertices`.
    vertices: usize,
    first: usize,
    /// `[rows + 1]`. The first one need not be 0.
    offsets: Shared<u64>,
    indices: Shared<u32>,
}

impl Graph {
    /// Returns some rows, without a copy.
    ///
    /// # Panics
    /// If `rows` is not a range of vertices.
    pub fn rows(&self, rows: Range<usize>) -> GraphRows {
        let vertices = self.vertex_count();
        assert!(rows.start <= rows.end && rows.end <= vertices, "rows {rows:?} of {vertices} vertices");
        let edges = self.indptr()[rows.start] as usize..self.indptr()[rows.end] as usize;
        GraphRows {
            vertices,
            first: rows.start,
            offsets: self.indptr().slice(rows.start..rows.end + 1),
            indices: self.indices().slice(edges),
        }
    }

    /// Returns some rows of the transposed graph, without making the others.
    ///
    /// # Panics
    /// If `rows` is not a range of vertices.
    /// # Cost
    /// O(n + e), with 2 e sequential reads per thread. Takes 16 bytes per row, half of which it keeps, and 4 bytes per
    /// edge of these rows.
    pub fn transposed_rows(&self, rows: Range<usize>) -> GraphRows {
        let turned = self.turned(rows.clone());
        let indices = turned.rows().into();
        GraphRows { vertices: self.vertex_count(), first: rows.start, offsets: turned.offsets.into(), indices }
    }

    /// Returns the values of the edges of [`Graph::transposed_rows`], in their order. A symmetric graph has the edges of
    /// its transpose, but its values move all the same. Repeated edges keep their order.
    ///
    /// # Shapes
    /// `values`: `[e]`; the result: one value per edge of these rows.
    /// # Panics
    /// If `values` has another length than the edges; if `rows` is not a range of vertices.
    /// # Cost
    /// That of [`Graph::transposed_rows`].
    pub fn transposed_row_values(&self, values: &[f32], rows: Range<usize>) -> Vec<f32> {
        assert_eq!(self.edge_count(), values.len(), "one value for each edge");
        self.turned(rows).scatter(|_, position| values[position as usize])
    }

    fn turned(&self, rows: Range<usize>) -> Turned<'_> {
        let vertices = self.vertex_count();
        assert!(rows.start <= rows.end && rows.end <= vertices, "rows {rows:?} of {vertices} vertices");
        Turned::of_columns(self.indptr(), self.indices(), rows)
    }
}

impl GraphRows {
    /// Returns the number of vertices of the whole graph.
    pub fn vertex_count(&self) -> usize {
        self.vertices
    }

    /// Returns the vertices whose rows these are.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.offsets.len() - 1
    }

    /// Returns the number of edges in these rows.
    pub fn edge_count(&self) -> usize {
        self.indices.len()
    }

    /// Returns where each row begins, and where the last one ends, `[rows + 1]`. Only differences have a meaning: the
    /// first offset need not be 0.
    pub fn offsets(&self) -> &Shared<u64> {
        &self.offsets
    }

    /// Returns the sources of all rows, `[edges]`.
    pub fn indices(&self) -> &Shared<u32> {
        &self.indices
    }

    /// Returns some of the rows, without a copy.
    ///
    /// # Panics
    /// If these are not among them.
    pub fn of(&self, rows: &Range<usize>) -> Self {
        let edges = self.edges(rows);
        Self {
            vertices: self.vertices,
            first: rows.start,
            offsets: self.offsets.slice(rows.start - self.first..rows.end - self.first + 1),
            indices: self.indices.slice(edges),
        }
    }

    /// Returns the positions of the edges of some of the rows.
    ///
    /// # Panics
    /// If these are not among them.
    pub fn edges(&self, rows: &Range<usize>) -> Range<usize> {
        let [start, end] = [rows.start, rows.end].map(|v| (self.offsets[v - self.first] - self.offsets[0]) as usize);
        start..end
    }

    /// Returns the sources of vertex `v`, ascending.
    ///
    /// # Panics
    /// If its row is not among these.
    pub fn sources(&self, v: usize) -> &[u32] {
        &self.indices[self.edges(&(v..v + 1))]
    }

    /// Returns the vertices outside of the range of these rows that the rows read.
    ///
    /// # Cost
    /// O(n / 64 + edges).
    pub fn outside(&self) -> VertexSet {
        let range = self.range();
        VertexSet::of(self.vertices, self.indices.iter().copied().filter(|&u| !range.contains(&(u as usize))))
    }

    /// Returns all rows as a block without a halo, without a copy.
    ///
    /// # Panics
    /// If these are not all rows of the graph.
    pub fn whole_block(&self) -> Block {
        assert_eq!(self.range(), 0..self.vertices, "all rows of the graph");
        Block::rectangular(self.offsets.clone(), self.indices.clone(), self.vertices)
    }

    /// Returns where each row begins and ends once every vertex has exactly one self-loop, from 0, `[rows + 1]`.
    ///
    /// # Cost
    /// O(rows log d), in parallel.
    pub fn offsets_with_self_loops(&self) -> Vec<u64> {
        let mut offsets = vec![0u64; self.offsets.len()];
        offsets[1..].par_iter_mut().zip(self.range()).for_each(|(count, v)| {
            *count = (self.edges(&(v..v + 1)).len() - self.loops_at(v) + 1) as u64;
        });
        prefix_sum(&mut offsets);
        offsets
    }

    /// Returns the values of the edges once every vertex has exactly one self-loop; see
    /// [`Graph::with_self_loops_and_values`], which does this for all rows.
    ///
    /// # Shapes
    /// `values`: `[edges]`; `offsets`: [`GraphRows::offsets_with_self_loops`].
    /// # Panics
    /// If `values` or `offsets` have another length.
    pub fn with_self_loops_and_values(
        &self,
        values: &[f32],
        offsets: &[u64],
        of_loop: impl Fn(usize, Option<f32>) -> f32 + Sync,
    ) -> Vec<f32> {
        assert_eq!(self.edge_count(), values.len(), "one value for each edge");
        assert_eq!(self.offsets.len(), offsets.len(), "one offset for each row, and the end");
        let mut filled = vec![0f32; offsets.last().map_or(0, |&end| end as usize)];
        rows_mut(offsets, &mut filled).into_par_iter().zip(self.range()).for_each(|(row, v)| {
            let old = &values[self.edges(&(v..v + 1))];
            let below = self.sources_around(v)[0].len();
            let above = below + self.loops_at(v);
            row[..below].copy_from_slice(&old[..below]);
            row[below] = of_loop(v, old[below..above].last().copied());
            row[below + 1..].copy_from_slice(&old[above..]);
        });
        filled
    }

    pub(super) fn loops_at(&self, v: usize) -> usize {
        let [below, above] = self.sources_around(v);
        self.sources(v).len() - below.len() - above.len()
    }

    /// Returns the sources of a vertex below it and those above it.
    pub(super) fn sources_around(&self, v: usize) -> [&[u32]; 2] {
        around(self.sources(v), v)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::super::SelfLoops;
    use super::*;

    /// Returns the sources and the values of each row.
    fn listed(rows: &GraphRows, values: &[f32]) -> Vec<(Vec<u32>, Vec<f32>)> {
        assert_eq!(rows.edge_count(), values.len());
        rows.range().map(|v| (rows.sources(v).to_vec(), values[rows.edges(&(v..v + 1))].to_vec())).collect()
    }

    proptest! {
        #[test]
        fn rows_are_those_of_the_whole_graph(
            edges in proptest::collection::vec((0u32..9, 0u32..9), 0..60), cuts in (0usize..12, 0usize..12),
        ) {
            let n = 11; // the last two have no edges
            let graph = Graph::from_edges(n, &edges).unwrap();
            let values: Vec<f32> = (0..edges.len()).map(|i| i as f32).collect();
            let range = cuts.0.min(cuts.1)..cuts.0.max(cuts.1);
            let whole = graph.transpose_without_permutation();
            let turned = graph.transposed_rows(range.clone());
            let turned_values = graph.transposed_row_values(&values, range.clone());
            prop_assert_eq!(turned.range(), range.clone());
            let of_whole = listed(&whole.rows(0..n), &graph.transpose_values(&values));
            prop_assert_eq!(&listed(&turned, &turned_values)[..], &of_whole[range.clone()]);
            let rows = graph.rows(range.clone());
            let loops = SelfLoops::of(&rows);
            prop_assert_eq!(loops.within(&range), graph.self_loops_in(range.clone()) as u64);
            let half = range.start..range.start + range.len() / 2;
            prop_assert_eq!(loops.within(&half), graph.self_loops_in(half) as u64);

            // With self-loops, of rows that do not begin at 0.
            let looped = graph.with_self_loops();
            let of_loop = |v: usize, old: Option<f32>| old.unwrap_or(-(v as f32));
            let offsets = rows.offsets_with_self_loops();
            let own = &values[graph.rows(0..n).edges(&range)];
            let got = rows.with_self_loops_and_values(own, &offsets, of_loop);
            let want = graph.with_self_loops_and_values(&values, of_loop);
            prop_assert_eq!(&got[..], &want[looped.rows(0..n).edges(&range)]);

            // Some of the rows, and the blocks made of them.
            let middle = range.start + range.len() / 3..range.end - range.len() / 3;
            let of_middle = [rows.of(&middle), turned.of(&middle)];
            for (graph, rows) in [&graph, &whole].into_iter().zip(of_middle) {
                let same = |got: Block, want: Block| {
                    prop_assert_eq!((&got.indptr()[..], &got.indices()[..]), (&want.indptr()[..], &want.indices()[..]));
                    prop_assert_eq!((got.halo(), got.own_sources()), (want.halo(), want.own_sources()));
                    Ok(())
                };
                same(Block::of_rows(&rows), Block::of_part(graph, middle.clone()))?;
                same(Block::of_rows_with_self_loops(&rows), Block::of_part(&graph.with_self_loops(), middle.clone()))?;
            }
        }
    }
}
