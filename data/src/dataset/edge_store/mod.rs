//! Builds a CSR from a long list of edges, which is kept on disk meanwhile.
//!
//! Edges come in any order from text, archives or a generator, and their number is not known in advance. They are
//! appended as pairs of 32-bit ids to an unnamed temporary file. Building the CSR reads the file once to count the
//! in-edges of each vertex, and once more to write each source into its row. This is a counting sort by destination.
//! Then each row is sorted by itself. When repeated edges are dropped from a long list, a quarter of the rows is filled
//! at a time, each with its own read of the file.
//!
//! A compressed file of a few MB can hold the same edges a billion times. Where repeats are dropped, an edge that repeats
//! a recent one is therefore only counted, not stored.
//!
//! Edges may have weights, which are kept in a second file: see [`weighted`].
//!
//! Peak memory is therefore the result, a quarter of the edges before repeats are dropped, about 16 bytes per vertex,
//! and one block of the file.

mod weighted;

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use tempfile::SpooledTempFile;

use super::error::{Error, Result};
use super::rows::{Keep, Seen, tidy};
use crate::graph::{Graph, MAX_VERTICES, prefix_sum, ranges_of_edges, scan_count};
use crate::host;
use weighted::WeightFile;

#[cfg_attr(not(feature = "import"), allow(unused_imports, unreachable_pub))]
pub use weighted::Join;
#[cfg_attr(not(feature = "import"), allow(unused_imports))] // only importers use them
pub(crate) use weighted::{Built, Reverses};

/// Size in bytes from which on the file is on disk; a shorter list stays in memory.
const SPOOL_BYTES: usize = 4 << 20;
/// Edges read back at a time.
const BLOCK: usize = 1 << 21;
/// Edges collected before a write, when they come one by one.
const BUFFER: usize = 1 << 13;
/// Sets of [`Recent`], as a power of two. Each has two edges.
const RECENT_SETS_LOG: u32 = 16;
/// Number of edges, reverses included, from which on the rows are filled in parts if repeats are dropped.
const LONG: u64 = 1 << 24;
/// Number of such parts.
const PARTS: usize = 4;

/// A list of edges `u -> v`, each stored as `[u, v]`.
pub(crate) struct EdgeStore {
    file: SpooledTempFile,
    folder: PathBuf,
    /// Edges not yet written.
    buffer: Vec<[u32; 2]>,
    /// Number of edges that were appended.
    count: u64,
    /// Number of edges in the file and the buffer.
    stored: u64,
    /// Finds repeats of recent edges, if repeats are dropped.
    recent: Option<Recent>,
    /// The weights of the edges, if they have any.
    weights: Option<WeightFile>,
    /// Free memory at the start, in bytes.
    free_bytes: u64,
}

/// The edges of late, to recognise those that come again and again.
///
/// Deflate can only repeat what is within 32 KiB, which are 8000 lines at most. So a text that unfolds to many times its
/// size repeats edges that are still here.
struct Recent {
    /// Edges by their hash, the later one first.
    sets: Vec<[[u32; 2]; 2]>,
    /// Number of repeats that were not stored, and how many of them are loops.
    repeats: u64,
    loops: u64,
}

impl Recent {
    /// Returns an empty set. No vertex has the number `u32::MAX`.
    fn new() -> Self {
        Self { sets: vec![[[u32::MAX; 2]; 2]; 1 << RECENT_SETS_LOG], repeats: 0, loops: 0 }
    }

    /// Returns whether an edge is not among the recent ones, and adds it.
    fn is_new(&mut self, edge: [u32; 2]) -> bool {
        let key = u64::from(edge[0]) << 32 | u64::from(edge[1]);
        let set = &mut self.sets[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RECENT_SETS_LOG)) as usize];
        if set.contains(&edge) {
            self.repeats += 1;
            self.loops += u64::from(edge[0] == edge[1]);
            return false;
        }
        *set = [edge, set[0]];
        true
    }
}

impl EdgeStore {
    /// Returns an empty store. Its file will be in `folder`, by default the system's folder for temporary files.
    pub(crate) fn new(folder: Option<&Path>) -> Self {
        let folder = folder.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let file = SpooledTempFile::new_in(SPOOL_BYTES, &folder);
        let buffer = Vec::with_capacity(BUFFER);
        Self { file, folder, buffer, count: 0, stored: 0, recent: None, weights: None, free_bytes: host::free_bytes() }
    }

    /// Stores only one of the edges that repeat each other within a short distance. [`EdgeStore::finish`] must then drop
    /// repeats; it counts them all.
    #[cfg_attr(not(feature = "import"), allow(dead_code))] // only importers use it
    pub(crate) fn without_repeats(self) -> Self {
        Self { recent: Some(Recent::new()), ..self }
    }

    /// Returns the number of edges so far.
    #[cfg_attr(not(feature = "import"), allow(dead_code))] // only importers use it
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// Appends edges.
    ///
    /// # Errors
    /// A full disk; or more edges than the free memory can hold, which a small hostile file may decompress into.
    pub(crate) fn extend(&mut self, edges: &[[u32; 2]]) -> Result<()> {
        self.count += edges.len() as u64;
        let Some(recent) = &mut self.recent else { return self.store(edges) };
        let new: Vec<[u32; 2]> = edges.iter().copied().filter(|&edge| recent.is_new(edge)).collect();
        self.store(&new)
    }

    fn store(&mut self, edges: &[[u32; 2]]) -> Result<()> {
        self.stored += edges.len() as u64;
        if let Some(shortage) = host::lack(self.stored.saturating_mul(self.bytes_per_edge()), self.free_bytes) {
            let (found, shortage) = (self.stored.to_string(), format!("the list of edges {shortage}"));
            return Err(Error::TooLarge { option: "the number of edges", found, shortage });
        }
        if self.buffer.len() + edges.len() > BUFFER {
            self.flush()?;
        }
        if edges.len() < BUFFER {
            self.buffer.extend_from_slice(edges);
            return Ok(());
        }
        self.file.write_all(bytemuck::cast_slice(edges)).map_err(Error::io("write a temporary file in", &self.folder))
    }

    /// Appends edges given as an array of sources and an array of destinations.
    ///
    /// # Errors
    /// Those of [`EdgeStore::extend`].
    #[cfg_attr(not(feature = "import"), allow(dead_code))] // only importers use it
    pub(crate) fn extend_columns(&mut self, sources: &[u32], destinations: &[u32]) -> Result<()> {
        let mut block = Vec::new();
        for (sources, destinations) in sources.chunks(BUFFER).zip(destinations.chunks(BUFFER)) {
            block.clear();
            block.extend(sources.iter().zip(destinations).map(|(&u, &v)| [u, v]));
            self.extend(&block)?;
        }
        Ok(())
    }

    /// Returns the bytes of an edge in the graph.
    fn bytes_per_edge(&self) -> u64 {
        if self.weights.is_some() { 8 } else { 4 }
    }

    fn flush(&mut self) -> Result<()> {
        let written = self.file.write_all(bytemuck::cast_slice(&self.buffer));
        self.buffer.clear();
        written.map_err(Error::io("write a temporary file in", &self.folder))
    }

    /// Builds the graph. `name` maps each end to its new id. With `reversed`, each edge is added in the other direction
    /// too, except for loops.
    ///
    /// # Panics
    /// If `name` returns an id that is not a vertex. The caller has seen all ids.
    /// # Cost
    /// O(n + e) and sorting each row. The file is read twice, or five times if the rows are filled in parts.
    pub(crate) fn finish(
        self,
        vertices: usize,
        reversed: bool,
        keep: Keep,
        name: impl Fn(u32) -> u32 + Sync,
    ) -> Result<(Graph, Seen)> {
        self.finish_renamed(vertices, reversed, keep, &renaming(name))
    }

    fn finish_renamed(
        mut self,
        vertices: usize,
        reversed: bool,
        keep: Keep,
        rename: Rename<'_>,
    ) -> Result<(Graph, Seen)> {
        assert!(self.weights.is_none(), "edges with weights are joined");
        let edges = self.check_size(vertices, reversed)?;
        // Loops that will be dropped are not stored, since there may be many. The first read counts them.
        let (mut loops, mut repeats) = (0, 0);
        if let Some(recent) = &self.recent {
            assert!(!keep.duplicates, "repeats that were not stored cannot be kept");
            loops = recent.loops;
            repeats = (recent.repeats - loops) * if reversed { 2 } else { 1 };
            repeats += if keep.self_loops { loops } else { 0 };
        }
        let (mut indptr, stored_loops) = self.offsets(vertices, reversed, keep.self_loops, rename)?;
        loops += stored_loops;
        let parts = if keep.duplicates || edges < LONG { 1 } else { PARTS };
        let mut indices = Vec::new();
        let mut seen = Seen { duplicates: repeats, self_loops: loops };
        // Turns the offsets before repeats are dropped into the offsets after, part by part.
        let mut offset = 0;
        for rows in ranges_of_edges(&indptr, parts) {
            let end = indptr[rows.end];
            let mut local: Vec<u64> = indptr[rows.start..rows.end].iter().map(|from| from - offset).collect();
            local.push(end - offset);
            offset = end;
            let mut part = vec![0u32; local[rows.len()] as usize];
            self.scatter(rows.start, &local, &mut part, (reversed, keep.self_loops), rename, |_, edge| edge.source)?;
            seen.duplicates += tidy(rows.start, &mut local, &mut part, keep).duplicates;
            let before = indices.len() as u64;
            local.pop();
            indptr[rows].iter_mut().zip(local).for_each(|(to, from)| *to = before + from);
            if indices.is_empty() {
                indices = part;
            } else {
                indices.extend_from_slice(&part);
            }
        }
        indptr[vertices] = indices.len() as u64;
        indices.shrink_to_fit();
        let graph = Graph::new(indptr.into(), indices.into());
        Ok((graph.expect("offsets were counted, rows sorted"), seen))
    }

    /// Refuses a graph that does not fit into memory, and returns its number of edges, repeats included.
    fn check_size(&mut self, vertices: usize, reversed: bool) -> Result<u64> {
        if vertices > MAX_VERTICES {
            let problem = crate::graph::GraphError::TooManyVertices { vertices };
            return Err(Error::Graph { file: "the list of edges".into(), problem });
        }
        self.flush()?;
        let edges = self.stored.saturating_mul(if reversed { 2 } else { 1 });
        let need_bytes = edges.saturating_mul(self.bytes_per_edge()).saturating_add(16 * vertices as u64);
        if let Some(shortage) = host::lack(need_bytes, host::free_bytes()) {
            let (found, shortage) = (edges.to_string(), format!("the graph {shortage}"));
            return Err(Error::TooLarge { option: "the number of edges", found, shortage });
        }
        Ok(edges)
    }

    /// Returns the offsets of the rows, repeats included, and the number of loops in the file.
    fn offsets(
        &mut self,
        vertices: usize,
        reversed: bool,
        self_loops: bool,
        rename: Rename<'_>,
    ) -> Result<(Vec<u64>, u64)> {
        let mut indptr = vec![0u64; vertices + 1];
        let mut loops = 0;
        let len = vertices.div_ceil(scan_count()).max(1);
        self.blocks(rename, |block, _| {
            loops += block.par_iter().filter(|[u, v]| u == v).count() as u64;
            indptr[1..].par_chunks_mut(len).enumerate().for_each(|(range, counts)| {
                let start = range * len;
                each_edge(block, reversed, self_loops, |edge| {
                    if let Some(count) = counts.get_mut((edge.destination as usize).wrapping_sub(start)) {
                        *count += 1;
                    }
                });
            });
        })?;
        prefix_sum(&mut indptr);
        Ok((indptr, loops))
    }

    /// Writes an entry for each edge of a part of the rows, starting at row `first`, into its row, in the order of the
    /// file. `entry` makes it from the weights of the block and the edge.
    fn scatter<T: Send>(
        &mut self,
        first: usize,
        indptr: &[u64],
        mut entries: &mut [T],
        (reversed, loops): (bool, bool),
        rename: Rename<'_>,
        entry: impl Fn(&[f32], Directed) -> T + Sync,
    ) -> Result<()> {
        let mut parts = Vec::new();
        for range in ranges_of_edges(indptr, scan_count()) {
            let from = indptr[range.start];
            let (part, rest) = std::mem::take(&mut entries).split_at_mut((indptr[range.end] - from) as usize);
            entries = rest;
            let next: Vec<u64> = indptr[range.clone()].iter().map(|offset| offset - from).collect();
            parts.push((first + range.start, next, part));
        }
        self.blocks(rename, |block, weights| {
            parts.par_iter_mut().for_each(|(start, next, part)| {
                each_edge(block, reversed, loops, |edge| {
                    if let Some(slot) = next.get_mut((edge.destination as usize).wrapping_sub(*start)) {
                        part[*slot as usize] = entry(weights, edge);
                        *slot += 1;
                    }
                });
            });
        })
    }

    /// Calls `work` with all edges, one block at a time, with their ends renamed, and with their weights, if they have any.
    fn blocks(&mut self, rename: Rename<'_>, mut work: impl FnMut(&[[u32; 2]], &[f32])) -> Result<()> {
        let folder = self.folder.clone();
        let failed = || Error::io("read a temporary file in", folder.clone());
        self.file.seek(SeekFrom::Start(0)).map_err(failed())?;
        let mut weights = self.weights.as_mut().map(WeightFile::rewound).transpose()?;
        let mut block = vec![[0u32; 2]; self.stored.min(BLOCK as u64) as usize];
        let mut left = self.stored;
        while left > 0 {
            let block = &mut block[..left.min(BLOCK as u64) as usize];
            self.file.read_exact(bytemuck::cast_slice_mut(block)).map_err(failed())?;
            rename(block);
            work(block, weights.as_mut().map_or(Ok(&[][..]), |weights| weights.next(block.len()))?);
            left -= block.len() as u64;
        }
        Ok(())
    }
}

/// Gives both ends of the edges of a block their new ids. What depends on how that is done is compiled once for each way,
/// and the rest only once.
type Rename<'a> = &'a (dyn Fn(&mut [[u32; 2]]) + Sync);

/// Returns the function that gives ends their new ids by `name`.
fn renaming(name: impl Fn(u32) -> u32 + Sync) -> impl Fn(&mut [[u32; 2]]) + Sync {
    move |block| block.par_iter_mut().for_each(|edge| *edge = edge.map(&name))
}

/// An edge of a block, or its reverse.
#[derive(Clone, Copy)]
struct Directed {
    source: u32,
    destination: u32,
    /// Position of the edge in its block.
    at: usize,
    is_reverse: bool,
}

/// Calls `take` for each edge of a block and, if asked for, its reverse.
fn each_edge(block: &[[u32; 2]], reversed: bool, loops: bool, mut take: impl FnMut(Directed)) {
    for (at, &[u, v]) in block.iter().enumerate() {
        if u != v || loops {
            take(Directed { source: u, destination: v, at, is_reverse: false });
        }
        if reversed && u != v {
            take(Directed { source: v, destination: u, at, is_reverse: true });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same result from plain lists.
    fn reference(n: usize, edges: &[[u32; 2]], reversed: bool, keep: Keep) -> Vec<Vec<u32>> {
        let mut rows = vec![Vec::new(); n];
        for &[u, v] in edges {
            if u == v && !keep.self_loops {
                continue;
            }
            rows[v as usize].push(u);
            if reversed && u != v {
                rows[u as usize].push(v);
            }
        }
        for row in &mut rows {
            row.sort_unstable();
            if !keep.duplicates {
                row.dedup();
            }
        }
        rows
    }

    proptest! {
        #[test]
        fn it_is_the_graph_of_its_edges(
            edges in proptest::collection::vec([0u32..7, 0u32..7], 0..60),
            flags in any::<[bool; 3]>(),
            cuts in 1usize..9,
        ) {
            let [reversed, duplicates, self_loops] = flags;
            let keep = Keep { duplicates, self_loops };
            let mut store = EdgeStore::new(None);
            if !duplicates && cuts % 2 == 0 {
                store = store.without_repeats();
            }
            for part in edges.chunks(cuts) {
                store.extend(part).unwrap();
            }
            // The ids are reversed on the way.
            let (graph, seen) = store.finish(7, reversed, keep, |id| 6 - id).unwrap();
            let turned: Vec<[u32; 2]> = edges.iter().map(|edge| edge.map(|id| 6 - id)).collect();
            let want = reference(7, &turned, reversed, keep);
            for (v, want) in want.iter().enumerate() {
                prop_assert_eq!(graph.sources(v), &want[..]);
            }
            prop_assert_eq!(seen.self_loops, edges.iter().filter(|[u, v]| u == v).count() as u64);
            if !duplicates {
                let all = reference(7, &turned, reversed, Keep { duplicates: true, self_loops });
                let all: usize = all.iter().map(Vec::len).sum();
                prop_assert_eq!(seen.duplicates as usize, all - graph.edge_count());
            }
        }
    }

    #[test]
    fn a_few_edges_a_million_times_are_counted_and_not_stored() {
        // As many edges as two windows of deflate can hold.
        let few: Vec<[u32; 2]> = (0..16_000u32).map(|i| [i.wrapping_mul(2_654_435_761) % 5000, i % 4999]).collect();
        let mut store = EdgeStore::new(None).without_repeats();
        (0..100).for_each(|_| store.extend(&few).unwrap());
        assert_eq!(store.len(), 1_600_000);
        assert!(store.stored < 200_000, "{} edges were stored", store.stored);
        let keep = Keep { duplicates: false, self_loops: true };
        let (graph, seen) = store.finish(5000, false, keep, |id| id).unwrap();
        assert_eq!(graph.edge_count() as u64 + seen.duplicates, 1_600_000);
        let want = reference(5000, &few, false, keep);
        assert!(want.iter().enumerate().all(|(v, row)| graph.sources(v) == row));
    }

    #[test]
    fn a_list_longer_than_a_block_and_the_spool_and_filled_in_parts_is_the_same() {
        let n = 1000u32;
        let edges: Vec<[u32; 2]> =
            (0..9_000_000u32).map(|i| [i.wrapping_mul(2_654_435_761) % n, i.wrapping_mul(40_503) % n]).collect();
        assert!(2 * edges.len() as u64 > LONG);
        for (duplicates, self_loops) in [(true, true), (false, true), (false, false)] {
            let keep = Keep { duplicates, self_loops };
            let mut store = EdgeStore::new(None);
            for (at, part) in edges.chunks(1_234_567).enumerate() {
                // Small and large batches in turn.
                part.chunks(if at % 2 == 0 { 777 } else { part.len() }).for_each(|few| store.extend(few).unwrap());
            }
            assert_eq!(store.len(), edges.len() as u64);
            let (graph, _) = store.finish(n as usize, true, keep, |id| id).unwrap();
            let want = reference(n as usize, &edges, true, keep);
            assert!(want.iter().enumerate().all(|(v, row)| graph.sources(v) == row));
        }
    }
}
