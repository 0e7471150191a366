//! Prefix sums of the vertex features of a graph.
//!
//! One pass over the edges finds the runs of every row and writes their counts, summed within a chunk of rows. A second
//! pass over the vertices adds the totals of the chunks before. If the device has a cache, a pass before that counts
//! how often each source is read. Sums that the CSR already has are not stored again: the sum of vertices is the index,
//! and the offsets are the prefix sums of the neighbours and of all their multiples.

use std::ops::Range;

use rayon::prelude::*;

use crate::cache::Popularity;
use crate::error::SumsError;
use crate::feature::{Counted, FEATURES, Feature, Features};
use crate::profile::Profile;

/// Approximate number of rows plus edges per chunk.
const CHUNK: u64 = 1 << 18;

/// Longest run whose counts are looked up in a table.
const TABLE: usize = 64;

/// The prefix sums of all features of a graph, as exact integers.
#[derive(Clone, Debug)]
pub struct FeatureSums<'a> {
    // Invariant: `indptr` rises from 0; every stored column has its length, starts at 0 and never decreases.
    indptr: &'a [u64],
    device: Profile,
    stored: Vec<Stored>,
}

#[derive(Clone, Debug)]
struct Stored {
    feature: Feature,
    /// Row width, for a feature that depends on it.
    width: Option<u32>,
    sums: Vec<u64>,
}

impl<'a> FeatureSums<'a> {
    /// Sums the features of a CSR over in-edges.
    ///
    /// # Shapes
    /// `indptr`: `[n + 1]`; `indices`: `[e]`, ascending within a row. `device` has the accesses and caches to count
    /// for. `widths` are those that [`FeatureSums::columns`] will be called with; 0 need not be included.
    /// # Cost
    /// Two parallel passes over the edges for all widths together, and two over the vertices. Memory: 24 n bytes, and
    /// for each width 8 n bytes per cache, plus 8 n bytes if the width is not a multiple of an access.
    /// # Errors
    /// [`SumsError::Offsets`], [`SumsError::NoOffsets`], [`SumsError::Source`].
    pub fn new(indptr: &'a [u64], indices: &[u32], device: &Profile, widths: &[u32]) -> Result<Self, SumsError> {
        let (Some(&first), Some(&last), edges) = (indptr.first(), indptr.last(), indices.len()) else {
            return Err(SumsError::NoOffsets);
        };
        for (position, found, want) in [(0, first, 0), (indptr.len() - 1, last, edges as u64)] {
            if found != want {
                return Err(SumsError::Offsets { position, found, edges });
            }
        }
        let counters = counters(indptr.len() - 1, indices, device, widths)?;
        let mut columns = vec![vec![0u64; indptr.len()]; counters.len()];
        let chunks = chunks(indptr);
        let mut pieces: Vec<Vec<&mut [u64]>> = chunks.iter().map(|_| Vec::new()).collect();
        for column in &mut columns {
            let mut rest = &mut column[1..];
            for (chunk, pieces) in chunks.iter().zip(&mut pieces) {
                let (piece, after) = rest.split_at_mut(chunk.len());
                pieces.push(piece);
                rest = after;
            }
        }
        let sum = |(chunk, pieces): (&Range<usize>, &mut Vec<&mut [u64]>)| {
            sum_chunk(indptr, indices, &counters, chunk.clone(), pieces)
        };
        chunks.par_iter().zip(&mut pieces).try_for_each(sum)?;
        add_bases(pieces);
        let stored = counters.into_iter().zip(columns);
        let stored = stored.map(|(Counter { feature, width, .. }, sums)| Stored { feature, width, sums });
        Ok(Self { indptr, device: device.clone(), stored: stored.collect() })
    }

    /// Returns the number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Returns an error if the device has other accesses or caches than these sums were counted for.
    pub(crate) fn check_device(&self, device: &Profile) -> Result<(), SumsError> {
        let counted_for = |profile: &Profile| (profile.access_width, profile.cache_bytes);
        if counted_for(&self.device) == counted_for(device) {
            return Ok(());
        }
        Err(SumsError::Device { found: self.device.name.clone(), expected: device.name.clone() })
    }

    /// Returns the bytes of the sums that are stored in addition to the graph.
    pub fn byte_count(&self) -> u64 {
        self.stored.iter().map(|stored| 8 * stored.sums.len() as u64).sum()
    }

    /// Returns the features for rows of `width` numbers.
    ///
    /// # Errors
    /// [`SumsError::Width`] if the features were not summed for that width and it is not a multiple of an access.
    pub fn columns(&self, width: u32) -> Result<Columns<'_>, SumsError> {
        let mut columns = [Column::Index; FEATURES.len()];
        for (column, feature) in columns.iter_mut().zip(FEATURES) {
            *column = match feature.counted(width, &self.device) {
                Counted::Vertices => Column::Index,
                Counted::Neighbours(factor) => Column::Scaled { factor, sums: self.indptr },
                Counted::InRow(_) | Counted::InRuns(_) | Counted::Misses { .. } => {
                    let wanted = feature.is_wide().then_some(width);
                    let found = self.stored.iter().find(|stored| stored.feature == feature && stored.width == wanted);
                    Column::Scaled { factor: 1, sums: &found.ok_or(SumsError::Width { width })?.sums }
                }
            };
        }
        Ok(Columns { vertices: self.vertex_count(), columns })
    }
}

/// The features of a graph's vertices for rows of one width.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    vertices: usize,
    columns: [Column<'a>; FEATURES.len()],
}

/// The location of the prefix sums of one feature.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column<'a> {
    /// The index itself: every vertex counts 1.
    Index,
    /// `factor` times the stored sums.
    Scaled { factor: u64, sums: &'a [u64] },
}

impl<'a> Columns<'a> {
    /// Returns the number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.vertices
    }

    /// Returns the features of a range of vertices.
    ///
    /// # Cost
    /// O(1).
    /// # Panics
    /// If the range is out of bounds.
    pub fn of(&self, range: Range<usize>) -> Features {
        assert!(range.start <= range.end && range.end <= self.vertices, "{range:?} of {} vertices", self.vertices);
        self.columns.map(|column| match column {
            Column::Index => range.len() as u64,
            Column::Scaled { factor, sums } => factor.saturating_mul(sums[range.end] - sums[range.start]),
        })
    }

    /// Returns the columns in the order of [`FEATURES`].
    pub(crate) fn columns(&self) -> [Column<'a>; FEATURES.len()] {
        self.columns
    }
}

/// One feature to count, for one width.
struct Counter {
    feature: Feature,
    width: Option<u32>,
    count: Count,
}

enum Count {
    /// Per row, from the number of its neighbours.
    Row(fn(u64) -> u64),
    /// Per run. Runs of less than `TABLE` neighbours are looked up.
    Runs { table: Vec<u64>, of_run: Box<dyn Fn(u64) -> u64 + Sync> },
    /// Per neighbour: one probability for each group of 1, 2, 4, ... consecutive sources.
    Sources { chances: Vec<u8>, log_a_chance: u32 },
}

impl Count {
    /// Returns the count of a row. `alone` says that no two of its neighbours are consecutive.
    fn of_row(&self, row: &[u32], alone: bool) -> u64 {
        match self {
            Self::Row(of_row) => of_row(row.len() as u64),
            Self::Runs { table, .. } if alone => table[1].saturating_mul(row.len() as u64),
            Self::Runs { table, of_run } => {
                let runs = row.chunk_by(|&u, &next| next == u.wrapping_add(1)).map(|run| run.len());
                runs.map(|length| table.get(length).copied().unwrap_or_else(|| of_run(length as u64)))
                    .fold(0, u64::saturating_add)
            }
            Self::Sources { chances, log_a_chance } => {
                row.iter().map(|&u| u64::from(chances[(u >> log_a_chance) as usize])).sum()
            }
        }
    }
}

/// Returns the features that have to be counted, because they do not follow from the offsets.
fn counters(n: usize, indices: &[u32], device: &Profile, widths: &[u32]) -> Result<Vec<Counter>, SumsError> {
    let mut widths = widths.to_vec();
    widths.sort_unstable();
    widths.dedup();
    let mut popularity = None;
    let mut counters = Vec::new();
    for feature in FEATURES {
        let widths = if feature.is_wide() { widths.iter().copied().map(Some).collect() } else { vec![None] };
        for width in widths {
            let count = match feature.counted(width.unwrap_or(0), device) {
                Counted::Vertices | Counted::Neighbours(_) => continue,
                Counted::InRow(of_row) => Count::Row(of_row),
                Counted::InRuns(of_run) => Count::Runs { table: (0..TABLE as u64).map(&of_run).collect(), of_run },
                Counted::Misses { log_rows_a_line, lines } => {
                    let popularity = match &popularity {
                        Some(popularity) => popularity,
                        None => popularity.insert(Popularity::new(n, indices)?),
                    };
                    let chances = match log_rows_a_line {
                        0 => popularity.misses(lines),
                        log => popularity.of_groups(1 << log).misses(lines),
                    };
                    Count::Sources { chances, log_a_chance: log_rows_a_line }
                }
            };
            counters.push(Counter { feature, width, count });
        }
    }
    Ok(counters)
}

/// Splits all rows into consecutive non-empty ranges of about [`CHUNK`] rows plus edges.
fn chunks(indptr: &[u64]) -> Vec<Range<usize>> {
    let n = indptr.len() - 1;
    let total = n as u64 + indptr[n];
    let mut chunks = Vec::new();
    let mut start = 0;
    for chunk in 1..=total.div_ceil(CHUNK) {
        let end = lower_bound(n, |v| v as u64 + indptr[v] >= chunk * CHUNK).max(start);
        if start < end {
            chunks.push(start..end);
            start = end;
        }
    }
    chunks
}

/// Returns the least `v <= n` with `reached(v)`, or `n` if there is none. `reached` must be monotonic.
fn lower_bound(n: usize, reached: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if reached(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// Writes running sums over the vertices of a chunk to `pieces`, one piece per counter.
fn sum_chunk(
    indptr: &[u64],
    indices: &[u32],
    counters: &[Counter],
    chunk: Range<usize>,
    pieces: &mut [&mut [u64]],
) -> Result<(), SumsError> {
    let mut sums = vec![0u64; counters.len()];
    for (i, v) in chunk.enumerate() {
        let row = usize::try_from(indptr[v]).ok().zip(usize::try_from(indptr[v + 1]).ok());
        let Some(row) = row.and_then(|(start, end)| indices.get(start..end)) else {
            return Err(SumsError::Offsets { position: v + 1, found: indptr[v + 1], edges: indices.len() });
        };
        // Without a branch per edge, so that the compiler vectorises it: most rows of most graphs have no consecutive
        // neighbours.
        let joined =
            row.iter().zip(row.get(1..).unwrap_or(&[])).map(|(&u, &next)| u32::from(next == u.wrapping_add(1)));
        let alone = joined.sum::<u32>() == 0;
        for (sum, counter) in sums.iter_mut().zip(counters) {
            *sum = sum.saturating_add(counter.count.of_row(row, alone));
        }
        for (piece, &sum) in pieces.iter_mut().zip(&sums) {
            piece[i] = sum;
        }
    }
    Ok(())
}

/// Adds to every piece of a column the total of the pieces before it.
fn add_bases(mut pieces: Vec<Vec<&mut [u64]>>) {
    let mut sums = vec![0u64; pieces.first().map_or(0, Vec::len)];
    let mut bases = Vec::with_capacity(pieces.len());
    for pieces in &pieces {
        bases.push(sums.clone());
        for (sum, piece) in sums.iter_mut().zip(pieces) {
            *sum = sum.saturating_add(piece.last().copied().unwrap_or(0));
        }
    }
    pieces.par_iter_mut().zip(bases).for_each(|(pieces, bases)| {
        for (piece, base) in pieces.iter_mut().zip(bases) {
            piece.iter_mut().for_each(|sum| *sum = sum.saturating_add(base));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    /// Returns a profile with this access width and cache size.
    fn device(access: u32, cache_bytes: u64) -> Profile {
        let access_width = NonZeroU32::new(access).expect("it is not 0");
        let h200 = Profile::named("h200").expect("it is built in");
        Profile { access_width, cache_bytes, ..h200 }
    }

    /// Counts a range's features edge by edge, straight from the definition. `chances` are each source's probabilities
    /// of a miss in the caches of rows and of pages.
    fn count(
        (indptr, indices): (&[u64], &[u32]),
        range: Range<usize>,
        (width, access): (u64, u64),
        chances: &[Vec<u8>; 2],
    ) -> Features {
        let mut counted = [0u64; 8];
        for v in range {
            counted[0] += 1;
            let mut length = 0;
            let row = &indices[indptr[v] as usize..indptr[v + 1] as usize];
            for (i, &u) in row.iter().enumerate() {
                counted[1] += 1;
                counted[7] += u64::from(i < 16);
                if width > 0 {
                    counted[5] += u64::from(chances[0][u as usize]);
                    counted[6] += u64::from(chances[1][u as usize]);
                }
                length += 1;
                if row.get(i + 1) != Some(&(u + 1)) {
                    counted[2] += 1;
                    counted[3] += (length as f64 / access as f64).ceil() as u64;
                    counted[4] += ((length * width) as f64 / access as f64).ceil() as u64;
                    length = 0;
                }
            }
        }
        counted
    }

    fn csr(rows: &[Vec<u32>]) -> (Vec<u64>, Vec<u32>) {
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for row in rows {
            let mut row = row.clone();
            row.sort_unstable();
            indices.extend(row);
            indptr.push(indices.len() as u64);
        }
        (indptr, indices)
    }

    const WIDTHS: [u32; 6] = [0, 1, 3, 17, 32, 602];

    fn check(indptr: &[u64], indices: &[u32], access: u32) -> Result<(), TestCaseError> {
        let n = indptr.len() - 1;
        let device = device(access, 9000);
        let sums = FeatureSums::new(indptr, indices, &device, &WIDTHS).expect("it is a CSR");
        let popularity = Popularity::new(n, indices).expect("all are vertices");
        let lines = |size: usize, row_bytes: f64| {
            let chances = popularity.of_groups(size).misses(9000.0 / (row_bytes * size as f64));
            (0..n).map(|u| chances[u / size]).collect::<Vec<u8>>()
        };
        for width in WIDTHS {
            let columns = sums.columns(width).expect("it was named");
            let row_bytes = 4.0 * f64::from(width);
            let chances =
                [1, 1 << ((4096.0 / row_bytes.max(1.0)).log2().max(0.0) as u32)].map(|size| lines(size, row_bytes));
            for range in [0..n, 0..n / 2, n / 2..n, n / 3..2 * n / 3, n..n] {
                let sizes = (u64::from(width), u64::from(access));
                let want = count((indptr, indices), range.clone(), sizes, &chances);
                prop_assert_eq!(columns.of(range), want);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_range_has_the_features_of_its_vertices(
            rows in proptest::collection::vec(proptest::collection::vec(0u32..60, 0..40), 60),
            access in prop_oneof![Just(1u32), Just(5), Just(16), Just(32)],
        ) {
            let (indptr, indices) = csr(&rows);
            check(&indptr, &indices, access)?;
        }
    }

    #[test]
    fn chunks_join_without_a_seam() {
        // More edges than a chunk, a hub larger than a chunk, runs longer than the table, and empty rows at both ends.
        let mut rows = vec![Vec::new(); 3];
        rows.push((0..2 * CHUNK as u32).collect());
        rows.extend((0..140_000u32).map(|v| (0..v % 11).map(|i| v % 97 + i * (1 + v % 2)).collect()));
        rows.resize(2 * CHUNK as usize, Vec::new());
        let (indptr, indices) = csr(&rows);
        assert!(chunks(&indptr).len() > 2);
        check(&indptr, &indices, 16).expect("the sums are right");
    }

    #[test]
    fn what_is_no_csr_is_named() {
        let device = device(16, 1000);
        let new = |indptr: &[u64]| FeatureSums::new(indptr, &[0, 1], &device, &[]).map(|_| ());
        assert_eq!(new(&[]), Err(SumsError::NoOffsets));
        assert_eq!(new(&[1, 2]), Err(SumsError::Offsets { position: 0, found: 1, edges: 2 }));
        assert_eq!(new(&[0, 3]), Err(SumsError::Offsets { position: 1, found: 3, edges: 2 }));
        assert_eq!(new(&[0, 2, 1, 2]), Err(SumsError::Offsets { position: 2, found: 1, edges: 2 }));
        assert_eq!(new(&[0, 7, 2]), Err(SumsError::Offsets { position: 1, found: 7, edges: 2 }));
        let source = FeatureSums::new(&[0, 2], &[0, 1], &device, &[16]).map(|_| ());
        assert_eq!(source, Err(SumsError::Source { position: 1, found: 1, vertices: 1 }));
    }

    #[test]
    fn what_the_offsets_tell_is_not_stored() {
        let sums = |cache, widths: &[u32]| {
            let sums = FeatureSums::new(&[0, 1], &[0], &device(16, cache), widths).expect("it is a CSR");
            (sums.byte_count(), sums.columns(64).map(|columns| columns.of(0..1)))
        };
        // Runs, their accesses and first neighbours; then accesses at width 41; then misses of rows and pages at widths
        // 41 and 64.
        assert_eq!(sums(0, &[]), (3 * 16, Ok([1, 1, 1, 1, 4, 255, 255, 1])));
        assert_eq!(sums(0, &[41]), (4 * 16, Ok([1, 1, 1, 1, 4, 255, 255, 1])));
        assert_eq!(sums(10, &[41, 64, 41]), (8 * 16, Ok([1, 1, 1, 1, 4, 245, 254, 1])));
        assert_eq!(sums(10, &[41]).1, Err(SumsError::Width { width: 64 }));
    }
}
