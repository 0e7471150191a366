//! Weights of the edges of a store. They are kept in a file of their own, in the order of the edges.
//!
//! Each row is sorted together with its weights, and the weights of edges that become one are joined. All weights of such
//! edges are needed for that, so repeats of recent edges are stored too. Edges with weights take 8 bytes each in the
//! graph, and 12 more while their rows are sorted: all rows, or a quarter at a time if there are many edges.

#![cfg_attr(not(feature = "import"), allow(dead_code, unreachable_pub))] // only importers use it

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use lapidary_arrays::Shared;
use rayon::prelude::*;
use tempfile::SpooledTempFile;

use super::{BLOCK, BUFFER, EdgeStore, LONG, PARTS, Rename, SPOOL_BYTES, renaming};
use crate::dataset::error::{Error, Result};
use crate::dataset::rows::{Keep, Seen};
use crate::graph::{Graph, ranges_of_edges, rows_mut};

/// How the weights of edges that become one are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// They are added.
    Sum,
    /// Their mean is taken.
    Mean,
    /// The greatest is taken.
    Max,
}

impl Join {
    /// All ways with their names.
    const ALL: [(Self, &'static str); 3] = [(Self::Sum, "sum"), (Self::Mean, "mean"), (Self::Max, "max")];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(join, _)| *join == self).map_or("", |(_, name)| name)
    }
}

impl std::str::FromStr for Join {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text).map(|&(join, _)| join);
        let (option, expected) = ("the value", "`sum`, `mean` or `max`".into());
        found.ok_or_else(|| Error::Option { option, found: text.into(), expected })
    }
}

/// The reverses of edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reverses {
    /// None are added.
    Without,
    /// The reverse of each edge is added, with the same weight.
    Same,
    /// The reverse of each edge is added, with the weight of the other sign.
    Negated,
}

/// A graph and the weights of its edges, if they have any.
pub(crate) struct Built {
    pub graph: Graph,
    pub weights: Option<Shared<f32>>,
    pub seen: Seen,
}

/// The weights of a store, in the order of its edges.
pub(super) struct WeightFile {
    file: SpooledTempFile,
    folder: PathBuf,
    /// Weights not yet written, or read back.
    buffer: Vec<f32>,
    count: u64,
}

impl WeightFile {
    fn new(folder: &Path) -> Self {
        let file = SpooledTempFile::new_in(SPOOL_BYTES, folder);
        Self { file, folder: folder.into(), buffer: Vec::with_capacity(BUFFER), count: 0 }
    }

    fn extend(&mut self, weights: &[f32]) -> Result<()> {
        self.count += weights.len() as u64;
        for weights in weights.chunks(BUFFER) {
            if self.buffer.len() + weights.len() > BUFFER {
                self.flush()?;
            }
            self.buffer.extend_from_slice(weights);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let written = self.file.write_all(bytemuck::cast_slice(&self.buffer));
        self.buffer.clear();
        written.map_err(Error::io("write a temporary file in", &self.folder))
    }

    /// Returns the file, to be read from its start. All weights were written.
    pub(super) fn rewound(&mut self) -> Result<&mut Self> {
        self.file.seek(SeekFrom::Start(0)).map_err(Error::io("read a temporary file in", &self.folder))?;
        Ok(self)
    }

    /// Reads the next weights.
    pub(super) fn next(&mut self, count: usize) -> Result<&[f32]> {
        self.buffer.resize(count.min(BLOCK), 0.0);
        let read = self.file.read_exact(bytemuck::cast_slice_mut(&mut self.buffer));
        read.map_err(Error::io("read a temporary file in", &self.folder))?;
        Ok(&self.buffer)
    }
}

/// An entry of a row: a source, and the weight of the edge from it.
#[derive(Clone, Copy, Default)]
struct Entry {
    source: u32,
    weight: f32,
    /// Whether the edge is an added reverse.
    is_reverse: bool,
}

impl EdgeStore {
    /// Makes room for one weight for each edge. No edge has been added yet.
    pub(crate) fn with_weights(mut self) -> Self {
        assert_eq!(self.count, 0, "each edge gets a weight");
        self.weights = Some(WeightFile::new(&self.folder));
        self.recent = None;
        self
    }

    /// Appends the weights of edges, in the order of the edges; before or after these. Does nothing without weights.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn extend_weights(&mut self, weights: &[f32]) -> Result<()> {
        self.weights.as_mut().map_or(Ok(()), |file| file.extend(weights))
    }

    /// Builds the graph as [`EdgeStore::finish`] does, with the weights of its edges, if they have any.
    ///
    /// Where repeated edges are dropped, the weights of those that become one are joined by `join`, added reverses
    /// included. By default, the weights of edges that were listed in the same direction are added; if both directions
    /// were listed, both get the mean of the two sums. Sums are in f64.
    ///
    /// # Panics
    /// If there are not as many weights as edges; and as [`EdgeStore::finish`] does.
    /// # Cost
    /// As [`EdgeStore::finish`].
    pub(crate) fn finish_weighted(
        self,
        vertices: usize,
        reverses: Reverses,
        rules: (Keep, Option<Join>),
        name: impl Fn(u32) -> u32 + Sync,
    ) -> Result<Built> {
        self.finish_weighted_renamed(vertices, reverses, rules, &renaming(name))
    }

    fn finish_weighted_renamed(
        mut self,
        vertices: usize,
        reverses: Reverses,
        (keep, join): (Keep, Option<Join>),
        rename: Rename<'_>,
    ) -> Result<Built> {
        let reversed = reverses != Reverses::Without;
        let Some(weights) = &mut self.weights else {
            let (graph, seen) = self.finish_renamed(vertices, reversed, keep, rename)?;
            return Ok(Built { graph, weights: None, seen });
        };
        assert_eq!(weights.count, self.count, "each edge has a weight");
        weights.flush()?;
        let edges = self.check_size(vertices, reversed)?;
        let (mut indptr, self_loops) = self.offsets(vertices, reversed, keep.self_loops, rename)?;
        let mut seen = Seen { duplicates: 0, self_loops };
        let parts = if edges < LONG { 1 } else { PARTS };
        let (mut indices, mut weights) = (Vec::new(), Vec::new());
        let sign = if reverses == Reverses::Negated { -1.0 } else { 1.0 };
        let mut offset = 0;
        for rows in ranges_of_edges(&indptr, parts) {
            let local: Vec<u64> = indptr[rows.start..=rows.end].iter().map(|from| from - offset).collect();
            offset = indptr[rows.end];
            let mut part = vec![Entry::default(); local[rows.len()] as usize];
            self.scatter(rows.start, &local, &mut part, (reversed, keep.self_loops), rename, |weights, edge| {
                let weight = if edge.is_reverse { sign * weights[edge.at] } else { weights[edge.at] };
                Entry { source: edge.source, weight, is_reverse: edge.is_reverse }
            })?;
            let tidied = |row: &mut [Entry]| tidy_row(row, keep.duplicates, join);
            let rows_of_part = rows_mut(&local, &mut part);
            let lens: Vec<(usize, u64)> = rows_of_part.into_par_iter().map(tidied).collect();
            for (row, ((len, repeats), range)) in rows.clone().zip(lens.into_iter().zip(local.windows(2))) {
                let kept = &part[range[0] as usize..][..len];
                indptr[row] = indices.len() as u64;
                indices.extend(kept.iter().map(|entry| entry.source));
                weights.extend(kept.iter().map(|entry| entry.weight));
                seen.duplicates += repeats;
            }
        }
        indptr[vertices] = indices.len() as u64;
        indices.shrink_to_fit();
        weights.shrink_to_fit();
        let graph = Graph::new(indptr.into(), indices.into()).expect("offsets were counted, rows sorted");
        Ok(Built { graph, weights: Some(weights.into()), seen })
    }
}

/// Sorts a row, joins repeats unless they are kept, and moves the edges to its front. Returns their number, and that of
/// the repeats.
fn tidy_row(row: &mut [Entry], keep: bool, join: Option<Join>) -> (usize, u64) {
    // The sort is stable: repeats stay in the order of the file, so sums do not depend on threads.
    row.sort_by_key(|entry| entry.source);
    let repeats = row.windows(2).filter(|pair| pair[0].source == pair[1].source).count();
    if keep || repeats == 0 {
        return (row.len(), repeats as u64);
    }
    let (mut from, mut to) = (0, 0);
    while from < row.len() {
        let source = row[from].source;
        let len = row[from..].iter().take_while(|entry| entry.source == source).count();
        let weight = joined(&row[from..from + len], join);
        row[to] = Entry { source, weight, is_reverse: false };
        to += 1;
        from += len;
    }
    (to, repeats as u64)
}

/// Returns the weight of edges that become one, by the rules of [`EdgeStore::finish_weighted`].
fn joined(edges: &[Entry], join: Option<Join>) -> f32 {
    if let [edge] = edges {
        return edge.weight;
    }
    let weights = || edges.iter().map(|edge| f64::from(edge.weight));
    let weight = match join {
        Some(Join::Sum) => weights().sum(),
        Some(Join::Mean) => weights().sum::<f64>() / edges.len() as f64,
        Some(Join::Max) => weights().fold(f64::NEG_INFINITY, f64::max),
        None => {
            let sum = |reverse: bool| {
                let one = edges.iter().filter(|edge| edge.is_reverse == reverse);
                one.map(|edge| f64::from(edge.weight)).sum::<f64>()
            };
            let reverses = edges.iter().filter(|edge| edge.is_reverse).count();
            let directions = if reverses > 0 && reverses < edges.len() { 2.0 } else { 1.0 };
            (sum(false) + sum(true)) / directions
        }
    };
    weight as f32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Listed = Vec<([u32; 2], f32)>;

    /// The same result from a map: for each edge (destination, source), its weights, listed ones first.
    fn reference(edges: &Listed, reverses: Reverses, keep: Keep, join: Option<Join>) -> Vec<(u32, u32, f64)> {
        let mut all: BTreeMap<(u32, u32), [Vec<f64>; 2]> = BTreeMap::new();
        for &([u, v], weight) in edges {
            let weight = f64::from(weight);
            if u != v || keep.self_loops {
                all.entry((v, u)).or_default()[0].push(weight);
            }
            if u != v && reverses != Reverses::Without {
                let weight = if reverses == Reverses::Negated { -weight } else { weight };
                all.entry((u, v)).or_default()[1].push(weight);
            }
        }
        let mut rows = Vec::new();
        for ((v, u), [listed, added]) in all {
            let both = [&listed[..], &added[..]].concat();
            let sum = |of: &[f64]| of.iter().sum::<f64>();
            match join {
                _ if keep.duplicates => rows.extend(both.iter().map(|&weight| (v, u, weight))),
                Some(Join::Sum) => rows.push((v, u, sum(&both))),
                Some(Join::Mean) => rows.push((v, u, sum(&both) / both.len() as f64)),
                Some(Join::Max) => rows.push((v, u, both.iter().copied().fold(f64::NEG_INFINITY, f64::max))),
                None if listed.is_empty() || added.is_empty() => rows.push((v, u, sum(&both))),
                None => rows.push((v, u, (sum(&listed) + sum(&added)) / 2.0)),
            }
        }
        rows
    }

    /// Edges and weights in the order of the rows; those of repeated edges ascend.
    fn sorted(mut rows: Vec<(u32, u32, f64)>) -> Vec<(u32, u32, f64)> {
        rows.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        rows
    }

    fn rows_of(built: &Built) -> Vec<(u32, u32, f64)> {
        let weights = built.weights.as_ref().expect("it has weights");
        let row =
            |v: usize| built.graph.edges(v).map(move |i| (v as u32, built.graph.indices()[i], f64::from(weights[i])));
        (0..built.graph.vertex_count()).flat_map(row).collect()
    }

    fn store(edges: &Listed, cuts: usize, weights_last: bool) -> EdgeStore {
        let mut store = EdgeStore::new(None).without_repeats().with_weights();
        let weights: Vec<f32> = edges.iter().map(|edge| edge.1).collect();
        for part in edges.chunks(cuts) {
            store.extend(&part.iter().map(|edge| edge.0).collect::<Vec<_>>()).unwrap();
            if !weights_last {
                store.extend_weights(&part.iter().map(|edge| edge.1).collect::<Vec<_>>()).unwrap();
            }
        }
        if weights_last {
            store.extend_weights(&weights).unwrap();
        }
        store
    }

    const JOINS: [Option<Join>; 4] = [None, Some(Join::Sum), Some(Join::Mean), Some(Join::Max)];
    const REVERSES: [Reverses; 3] = [Reverses::Without, Reverses::Same, Reverses::Negated];

    proptest! {
        #[test]
        fn weights_follow_their_edges_and_are_joined(
            // Small whole numbers, whose sums and halves are exact.
            edges in proptest::collection::vec(([0u32..6, 0u32..6], (-8i8..8).prop_map(f32::from)), 0..60),
            flags in any::<[bool; 3]>(), reverses in 0usize..3, join in 0usize..4, cuts in 1usize..9,
        ) {
            let [duplicates, self_loops, weights_last] = flags;
            let (keep, reverses, join) = (Keep { duplicates, self_loops }, REVERSES[reverses], JOINS[join]);
            let built = store(&edges, cuts, weights_last).finish_weighted(6, reverses, (keep, join), |id| 5 - id).unwrap();
            let turned: Listed = edges.iter().map(|&(edge, weight)| (edge.map(|id| 5 - id), weight)).collect();
            let want = reference(&turned, reverses, keep, join);
            let want: Vec<_> = want.into_iter().map(|(v, u, weight)| (v, u, f64::from(weight as f32))).collect();
            prop_assert_eq!(sorted(rows_of(&built)), sorted(want));
            if reverses == Reverses::Same && !duplicates {
                prop_assert!(built.graph.has_symmetric_values(built.weights.as_ref().unwrap()));
            }
            let mut plain = EdgeStore::new(None);
            plain.extend(&turned.iter().map(|edge| edge.0).collect::<Vec<_>>()).unwrap();
            let (graph, seen) = plain.finish(6, reverses != Reverses::Without, keep, |id| id).unwrap();
            prop_assert_eq!(&graph.indptr()[..], &built.graph.indptr()[..]);
            prop_assert_eq!(&graph.indices()[..], &built.graph.indices()[..]);
            prop_assert_eq!(seen, built.seen);
        }
    }

    #[test]
    fn repeats_stay_in_the_order_of_the_list_where_they_are_kept() {
        let edges: Listed = (0..100).map(|i| ([i % 2, 1], i as f32)).collect();
        let keep = Keep { duplicates: true, self_loops: true };
        let built = store(&edges, 7, false).finish_weighted(2, Reverses::Without, (keep, None), |id| id).unwrap();
        let want: Vec<f32> = (0..50).map(|i| 2.0 * i as f32).chain((0..50).map(|i| 2.0 * i as f32 + 1.0)).collect();
        assert_eq!(built.weights.unwrap()[..], want);
    }

    #[test]
    fn equal_weights_of_both_directions_are_not_doubled() {
        let edges: Listed = vec![([0, 1], 3.0), ([1, 0], 3.0), ([0, 2], 5.0), ([2, 2], 7.0)];
        let keep = Keep { duplicates: false, self_loops: true };
        let with = |join| {
            let built = store(&edges, 9, true).finish_weighted(3, Reverses::Same, (keep, join), |id| id).unwrap();
            built.weights.unwrap().to_vec()
        };
        // 1 -> 0, 2 -> 0, 0 -> 1, 0 -> 2, 2 -> 2.
        assert_eq!(with(None), [3.0, 5.0, 3.0, 5.0, 7.0]);
        assert_eq!(with(Some(Join::Mean)), with(None));
        assert_eq!(with(Some(Join::Sum)), [6.0, 5.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn a_list_longer_than_a_block_that_is_filled_in_parts_is_the_same() {
        let n = 1000u32;
        let edge = |i: u32| [i.wrapping_mul(2_654_435_761) % n, i.wrapping_mul(40_503) % n];
        let edges: Listed = (0..9_000_000u32).map(|i| (edge(i), (i % 16) as f32)).collect();
        assert!(2 * edges.len() as u64 > LONG);
        let keep = Keep { duplicates: false, self_loops: true };
        let built = store(&edges, 123_457, true);
        let built = built.finish_weighted(n as usize, Reverses::Same, (keep, None), |id| id).unwrap();
        let mut sums = vec![0f64; (n * n) as usize];
        let mut listed = vec![false; (n * n) as usize];
        for &([u, v], weight) in &edges {
            sums[(v * n + u) as usize] += f64::from(weight);
            listed[(v * n + u) as usize] = true;
        }
        for (v, u, weight) in rows_of(&built) {
            let (one, other) = ((v * n + u) as usize, (u * n + v) as usize);
            let want = match (listed[one], listed[other]) {
                _ if u == v => sums[one],
                (true, true) => (sums[one] + sums[other]) / 2.0,
                _ => sums[one] + sums[other],
            };
            assert_eq!(weight, f64::from(want as f32), "{u} -> {v}");
        }
    }
}
