//! Tiles: splits a part's vertices into consecutive ranges, so that an operation does not need a whole matrix on the
//! device.

use std::ops::Range;

use lapidary_kernels::Window;
use serde::{Deserialize, Serialize};

use super::{Cut, ExchangePath, Layout, Sizes};
use crate::program::{BlockSpec, LevelSizes, RowSpace};

/// Most windows of one update. With 16 windows, Adam needs 2.3 arrays of the weight's size on the device; with one, it
/// needs seven. The weight's product and gradient need two in any case.
const MOST_WINDOWS: usize = 16;

/// Most tiles of sources that a call reads.
const MOST_SOURCES: u64 = 32;

/// How much faster a device's memory is than its link, at least, in the choice of a gather's calls.
const FASTER: u64 = 8;

/// Fewest numbers per window. Less is not worth a step.
const LEAST_WINDOW: usize = 1024;

/// The sizes of a part and of its tiles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiling {
    /// The part.
    pub part: Sizes,
    /// The tiles: consecutive ranges that together are the part. With one tile, it is the part itself.
    pub tiles: Vec<Sizes>,
    /// Number of tiles of the halo on each side of the part's own rows; the same on every part.
    pub halo_tiles: usize,
    /// Number of rows of the largest tile of all parts.
    pub largest_tile: u64,
    /// Number of edges of the tile of all parts that has most, in either direction, with a self-loop for each row.
    pub most_edges: u64,
    /// Memory for gathers over tiles.
    pub gather_bytes: u64,
    /// How the rows of the halo arrive.
    pub exchange: ExchangePath,
    /// The number of the part.
    pub number: usize,
    /// If rows arrive in stages, how many rows of each part this part reads: forward, and over the transposed graph.
    /// Otherwise empty.
    pub owners: [Vec<u64>; 2],
    /// Whether gathers over the transposed graph are folded: see [`BackwardMode`](super::BackwardMode).
    pub folds: bool,
}

impl From<Sizes> for Tiling {
    /// Creates a tiling with one tile.
    fn from(part: Sizes) -> Self {
        let owners = [Vec::new(), Vec::new()];
        let exchange = ExchangePath::Host;
        Self {
            part,
            tiles: vec![part],
            halo_tiles: 1,
            largest_tile: part.vertices,
            most_edges: most_edges(&part),
            gather_bytes: u64::MAX,
            exchange,
            number: 0,
            owners,
            folds: false,
        }
    }
}

impl Tiling {
    /// Lays out each part, on the assumption that its edges are spread evenly over its tiles and over the other parts.
    pub fn evenly(parts: &[Sizes], layout: Layout) -> Vec<Self> {
        let Layout { tiles, path, .. } = layout;
        let all = parts.iter().map(|part| {
            let share = |whole: u64, tile: usize| {
                let [start, end] = ends(whole, tiles, tile);
                end - start
            };
            let of_tile = |tile: usize| {
                let mut sizes = *part;
                sizes.first_vertex += ends(part.vertices, tiles, tile)[0];
                sizes.vertices = share(part.vertices, tile);
                sizes.feature_cells = share(part.feature_cells, tile);
                for cut in [&mut sizes.forward, &mut sizes.backward] {
                    (cut.edges, cut.self_loops) = (share(cut.edges, tile), share(cut.self_loops, tile));
                    cut.packed = share(cut.packed, tile);
                }
                sizes
            };
            // The part in the middle stands for all.
            let number = part.parts / 2;
            let others = part.parts - 1;
            let read = |cut: Cut| -> Vec<u64> {
                let of = |owner: usize| {
                    let [start, end] = ends(cut.halo, others.max(1), owner - usize::from(owner > number));
                    end - start
                };
                (0..part.parts).map(|owner| if owner == number { 0 } else { of(owner) }).collect()
            };
            let owners = match path {
                ExchangePath::Staged => [part.forward, part.backward].map(read),
                ExchangePath::Host | ExchangePath::Peer => [Vec::new(), Vec::new()],
            };
            let tiles = (0..tiles).map(of_tile).collect();
            Self { tiles, exchange: path, number, owners, ..Self::from(*part) }
        });
        Self::of_all(vec![all.collect()], layout)
    }

    /// Joins what several supplies return for parts of one graph, in the order of the parts.
    pub fn of_all(of_supplies: Vec<Vec<Self>>, layout: Layout) -> Vec<Self> {
        let mut all = of_supplies.concat();
        if layout.tiles > 1 {
            return with_halo_tiles(all, layout.gather_bytes);
        }
        // The rows of all parts decide.
        let sizes: Vec<Sizes> = all.iter().map(|tiling| tiling.part).collect();
        let folds = layout.backward.folds(&sizes);
        all.iter_mut().for_each(|tiling| tiling.folds = folds);
        all
    }

    /// Sets the sizes of mini-batches, or bounds of them.
    pub fn with_levels(mut self, levels: LevelSizes) -> Self {
        self.part.levels = levels;
        self.tiles.iter_mut().for_each(|tile| tile.levels = levels);
        self
    }

    /// Whether the whole halo is fetched from other devices.
    pub(super) fn fetches(&self) -> bool {
        self.exchange == ExchangePath::Peer
    }

    /// Whether the halo is fetched from one device after the other.
    pub(super) fn is_staged(&self) -> bool {
        self.exchange == ExchangePath::Staged && self.has_halo()
    }

    /// Whether the sources of a gather, the part's own rows and its halo, are numbered in the order of the whole graph.
    pub(super) fn is_in_order(&self) -> bool {
        self.tiles.len() > 1 || self.is_staged()
    }

    /// Returns how many rows of each part this part reads over a block.
    pub(super) fn owners(&self, block: BlockSpec) -> &[u64] {
        let transposed = matches!(self.part.canonical(block), BlockSpec::Graph { transposed: true, .. });
        &self.owners[usize::from(transposed)]
    }

    /// Whether a tensor with these rows is tiled.
    pub(super) fn cuts(&self, rows: RowSpace) -> bool {
        let of_batch = matches!(rows, RowSpace::Edges(BlockSpec::Batch { .. }));
        self.tiles.len() > 1 && matches!(rows, RowSpace::Vertices | RowSpace::Edges(_)) && !of_batch
    }

    /// Returns the windows in which a parameter of `numbers` numbers is updated: one, or several if the part is tiled.
    pub(super) fn windows(&self, numbers: usize) -> Vec<Window> {
        windows(numbers, if self.tiles.len() > 1 { MOST_WINDOWS } else { 1 })
    }

    /// Returns the rows of the halo's tiles over a block: those before the part's own rows, and those after.
    pub(super) fn halo_rows(&self, block: BlockSpec) -> [Vec<Range<u64>>; 2] {
        let cut = self.part.cut(block);
        [(0, cut.low), (cut.low, cut.halo)].map(|(start, end)| {
            let tile = |tile| ends(end - start, self.halo_tiles, tile).map(|row| start + row);
            (0..self.halo_tiles).map(tile).map(|[start, end]| start..end).collect()
        })
    }

    /// Returns how a gather of rows of `row_bytes` bytes goes through its tiles: the choice that fits the memory and
    /// moves least. It is the same on every part. `edge_bytes` are those of an edge; without `joins`, a call reads one
    /// tile of sources.
    ///
    /// Each group of rows reads all sources again, unless they all stay; and each call reads and writes the sums of its
    /// rows, in faster memory.
    pub(super) fn grouping(&self, row_bytes: usize, edge_bytes: u64, joins: bool) -> Grouping {
        if self.is_staged() {
            return Grouping { sources: 1, rows: 1 };
        }
        let tiles = self.tiles.len() as u64;
        let all = tiles + if self.has_halo() { 2 * self.halo_tiles as u64 } else { 0 };
        let tile_bytes = self.largest_tile.saturating_mul(row_bytes as u64).max(1);
        let edges_bytes =
            self.most_edges.saturating_mul(edge_bytes).saturating_add(self.largest_tile.saturating_mul(8));
        let most = if joins { all.min(MOST_SOURCES) } else { 1 };
        let choice = |sources: u64| {
            // Beside the sources and the sums of the group, the call has the sum that it writes.
            let room = self.gather_bytes.checked_sub(tile_bytes.saturating_mul(sources + 1))?;
            let rows = (room / tile_bytes.saturating_add(edges_bytes)).min(tiles);
            let loads = if sources == all { all } else { all.saturating_mul(tiles.div_ceil(rows.max(1))) };
            let sums = 2 * tiles.saturating_mul(all.div_ceil(sources));
            (rows > 0).then_some((loads.saturating_mul(FASTER).saturating_add(sums), Grouping { sources, rows }))
        };
        let best = (1..=most).filter_map(choice).min_by_key(|&(cost, _)| cost);
        best.map_or(Grouping { sources: 1, rows: 1 }, |(_, grouping)| grouping)
    }

    /// Whether gathers over the graph also read rows of other parts.
    pub(super) fn has_halo(&self) -> bool {
        self.part.parts > 1
    }
}

/// How a gather goes through its tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grouping {
    /// How many tiles of sources a call reads.
    pub(super) sources: u64,
    /// How many tiles of rows are summed side by side: each group of sources is added to all of them before the next.
    pub(super) rows: u64,
}

/// Returns the most edges that a tile has in either direction, with a self-loop for each row.
fn most_edges(tile: &Sizes) -> u64 {
    tile.forward.edges.max(tile.backward.edges).saturating_add(tile.vertices)
}

/// Splits halos so that no tile of a halo has more rows than the largest tile of a part. Notes the largest tile, and the
/// memory for gathers.
fn with_halo_tiles(mut tilings: Vec<Tiling>, gather_bytes: u64) -> Vec<Tiling> {
    let edges = tilings.iter().flat_map(|tiling| &tiling.tiles).map(most_edges).max().unwrap_or(0);
    let largest = tilings.iter().flat_map(|tiling| &tiling.tiles).map(|tile| tile.vertices).max().unwrap_or(0).max(1);
    let sides = tilings.iter().flat_map(|tiling| [tiling.part.forward, tiling.part.backward]);
    let longest = sides.flat_map(|cut| [cut.low, cut.halo - cut.low]).max().unwrap_or(0);
    let halo_tiles = longest.div_ceil(largest).max(1) as usize;
    for tiling in &mut tilings {
        (tiling.halo_tiles, tiling.largest_tile) = (halo_tiles, largest);
        (tiling.most_edges, tiling.gather_bytes) = (edges, gather_bytes);
    }
    tilings
}

/// Splits `numbers` numbers into at most `most` windows.
fn windows(numbers: usize, most: usize) -> Vec<Window> {
    let pieces = (numbers / LEAST_WINDOW).clamp(1, most);
    let window = |piece| {
        let [first, end] = ends(numbers as u64, pieces, piece).map(|place| place as usize);
        Window { first, len: end - first }
    };
    (0..pieces).map(window).collect()
}

/// Returns the start and end of one of `pieces` nearly equal pieces.
fn ends(whole: u64, pieces: usize, piece: usize) -> [u64; 2] {
    [piece, piece + 1].map(|i| (u128::from(whole) * i as u128 / pieces as u128) as u64)
}

/// Splits a part into `tiles` ranges with about equal shares of its vertices and of its edges in `indptrs`.
///
/// # Cost
/// O(tiles log n).
pub(super) fn cut_rows(part: &Range<usize>, indptrs: &[&[u64]], tiles: usize) -> Vec<Range<usize>> {
    // Share of the vertices before `v`, plus its share of the edges in each of `indptrs`.
    let until = |v: usize| {
        let edges = indptrs.iter().map(|indptr| {
            let whole = indptr[part.end] - indptr[part.start];
            (indptr[v] - indptr[part.start]) as f64 / whole.max(1) as f64
        });
        (v - part.start) as f64 / part.len().max(1) as f64 + edges.sum::<f64>()
    };
    let whole = until(part.end);
    let mut start = part.start;
    let cut = |tile: usize| {
        let target = whole * (tile + 1) as f64 / tiles as f64;
        let (mut low, mut high) = (start, part.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if until(middle + 1) <= target { low = middle + 1 } else { high = middle }
        }
        let end = if tile + 1 == tiles { part.end } else { low };
        std::mem::replace(&mut start, end)..end
    };
    (0..tiles).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_edges_are_shared_evenly() {
        let degrees: Vec<u64> = (0..1000).map(|v| if v < 10 { 500 } else { 5 }).collect();
        let indptr: Vec<u64> = std::iter::once(0)
            .chain(degrees.iter().scan(0, |sum, d| {
                *sum += d;
                Some(*sum)
            }))
            .collect();
        for (part, tiles) in [(0..1000, 7), (3..900, 4), (5..5, 3), (0..2, 5)] {
            let cut = cut_rows(&part, &[&indptr], tiles);
            assert_eq!(cut.len(), tiles);
            assert_eq!((cut[0].start, cut[tiles - 1].end), (part.start, part.end));
            assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start));
            let edges = |rows: &Range<usize>| indptr[rows.end] - indptr[rows.start];
            let longest = degrees[part.clone()].iter().max().copied().unwrap_or(0);
            assert!(cut.iter().all(|rows| edges(rows) <= 2 * edges(&part) / tiles as u64 + longest), "{cut:?}");
            assert!(cut.iter().all(|rows| rows.len() <= 2 * part.len() / tiles + 2), "{cut:?}");
        }
    }

    #[test]
    fn a_gather_in_more_memory_reads_its_sources_less_often() {
        // 16 tiles of 1000 rows of 256 bytes, each with 88 kB of edges.
        let grouping = |gather_bytes| {
            let tile = Sizes { vertices: 1000, ..no_sizes() };
            let tiling = Tiling {
                tiles: vec![tile; 16],
                largest_tile: 1000,
                most_edges: 20_000,
                gather_bytes,
                ..Tiling::from(tile)
            };
            (tiling.grouping(256, 4, true), tiling.grouping(256, 4, false))
        };
        let of = |sources, rows| Grouping { sources, rows };
        assert_eq!(grouping(u64::MAX).0, of(16, 16));
        assert_eq!(grouping(17 * 256_000 + 344_000).0.sources, 16);
        // Without room, and with room for one tile of each.
        assert_eq!(grouping(0), (of(1, 1), of(1, 1)));
        assert_eq!(grouping(2 * 256_000 + 344_000), (of(1, 1), of(1, 1)));
        let mut loads = u64::MAX;
        for gather_bytes in (1..=24).map(|tiles| tiles * 256_000) {
            let (Grouping { sources, rows }, alone) = grouping(gather_bytes);
            let held = (sources + 1) * 256_000 + rows * 344_000;
            assert!(held <= gather_bytes || (sources, rows) == (1, 1), "{sources} and {rows} in {gather_bytes}");
            let read = if sources == 16 { 16 } else { 16 * 16u64.div_ceil(rows) };
            assert!(read <= loads, "{gather_bytes} bytes");
            assert_eq!(alone.sources, 1);
            loads = read;
        }
    }

    fn no_sizes() -> Sizes {
        Sizes {
            parts: 1,
            first_vertex: 0,
            vertices: 0,
            forward: Cut::default(),
            backward: Cut::default(),
            symmetric: true,
            feature_cells: 0,
            labelled: [0; 4],
            levels: LevelSizes::default(),
        }
    }

    #[test]
    fn windows_cover_a_parameter_that_is_cut() {
        for (numbers, pieces) in [(0, 1), (5, 1), (2 * LEAST_WINDOW - 1, 1), (2 * LEAST_WINDOW, 2), (1 << 20, 16)] {
            assert_eq!(windows(numbers, 1), [Window { first: 0, len: numbers }]);
            let windows = windows(numbers, MOST_WINDOWS);
            assert_eq!(windows.len(), pieces, "{numbers}");
            assert_eq!((windows[0].first, windows[pieces - 1].end()), (0, numbers));
            assert!(windows.windows(2).all(|pair| pair[0].end() == pair[1].first));
        }
    }

    #[test]
    fn even_pieces_cover_the_whole() {
        for (whole, pieces) in [(0, 3), (10, 3), (2, 5), (u64::MAX, 7)] {
            let all: Vec<[u64; 2]> = (0..pieces).map(|piece| ends(whole, pieces, piece)).collect();
            assert_eq!((all[0][0], all[pieces - 1][1]), (0, whole));
            assert!(all.windows(2).all(|pair| pair[0][1] == pair[1][0]));
        }
    }
}
