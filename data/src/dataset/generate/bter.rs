//! Block two-level Erdős–Rényi (BTER): generates a graph with the degrees and the clustering by degree of another
//! graph, at any size.
//!
//! Vertices are sorted by degree and cut into *blocks*: a block is the next `d + 1` vertices, where `d` is the degree
//! of the first of them. Within a block, every pair is an edge with probability `cbrt(c_d)`, so a pair of neighbours
//! there is closed with probability `c_d`. The rest of a vertex's degree are its *excess* edges, which connect any
//! vertices, with a probability proportional to the excess of both ends (Chung & Lu).
//!
//! There are two differences from the paper:
//! - A vertex of degree 1 gets exactly one edge, either to another vertex of degree 1 or to one of the rest, in the
//!   proportion of Chung & Lu. The paper draws the ends of ten times as many of them, and drops those without an edge.
//!   So the number of vertices here is exactly the requested one.
//! - Where pairs would be drawn more than once, weights are raised to compensate. So hubs reach their degrees in a
//!   small graph too.

use rand::Rng;
use rand::seq::SliceRandom;
use rayon::prelude::*;

use super::profile::DegreeProfile;
use super::rmat::with_random_columns;
use super::sampler::Sampler;
use super::{Purpose, SplitSizes, check, check_fits, check_sizes, check_split, saturation, stream};
use crate::dataset::Dataset;
use crate::dataset::edge_store::EdgeStore;
use crate::dataset::error::Result;
use crate::dataset::rows::Keep;
use crate::graph::MAX_VERTICES;

/// Expected edges of one random stream.
const CHUNK: u64 = 1 << 16;
/// Number of chunks generated before they are stored.
const WAVE: usize = 64;

/// Options of [`bter`].
#[derive(Clone, Debug, PartialEq)]
pub struct BterOptions {
    /// Name of the dataset.
    pub name: String,
    /// The target degrees and clustering; see [`DegreeProfile::scaled`] for more vertices.
    pub profile: DegreeProfile,
    /// Number of features; 0 for none.
    pub feature_width: usize,
    /// Number of classes, drawn independently of the edges; 0 for no labels and no splits.
    pub classes: usize,
    /// Standard deviation of the class centroids. The noise around them has a standard deviation of 1.
    pub signal: f64,
    /// Number of vertices in each split.
    pub split: SplitSizes,
    /// Seed: the same seed gives the same bytes.
    pub seed: u64,
}

impl BterOptions {
    /// Returns options for a graph like `profile`, without features and labels.
    pub fn new(profile: DegreeProfile) -> Self {
        Self {
            name: "bter".into(),
            profile,
            feature_width: 0,
            classes: 0,
            signal: 0.25,
            split: SplitSizes::Fractions { train: 0.6, val: 0.2, test: 0.2 },
            seed: 1,
        }
    }

    fn check(&self) -> Result<()> {
        let vertices = self.profile.vertices();
        check(vertices <= MAX_VERTICES as u64, "the number of vertices", vertices, "at most 2^32 - 2")?;
        check(self.classes as u64 <= vertices, "classes", self.classes, "at most one per vertex")?;
        let signal = self.signal.is_finite() && self.signal >= 0.0;
        check(signal, "signal", self.signal, "a finite number, not negative")?;
        check_split(&self.split)?;
        let edges = self.profile.edges();
        check_fits(edges.saturating_mul(4), "the sum of degrees", edges)?;
        check_sizes(vertices as usize, ("the degrees", 0.0), 0.0, 0, self.feature_width)
    }
}

/// Generates a graph with the degrees and the clustering of a profile, and with shuffled ids. It is simple and
/// symmetric.
///
/// Degrees are met in expectation, except that an edge of a block may be drawn again as an excess edge.
///
/// # Errors
/// [`Error::Option`](crate::dataset::Error::Option), [`Error::TooLarge`](crate::dataset::Error::TooLarge); a temporary file that cannot be written.
/// # Cost
/// O(vertices * width + edges). Memory is that of the result plus about 40 bytes per vertex; edges are kept in a
/// temporary file meanwhile.
/// # Source
/// Kolda, Pinar, Plantenga & Seshadhri 2014, "A scalable generative graph model with community structure".
pub fn bter(options: &BterOptions) -> Result<Dataset> {
    options.check()?;
    let seed = options.seed;
    let n = options.profile.vertices() as usize;
    let mut names: Vec<u32> = (0..n as u32).collect();
    names.shuffle(&mut stream(seed, Purpose::Names, 0));
    let mut store = EdgeStore::new(None);
    let mut line = Line::new(&options.profile);
    line.edges_in_blocks(seed, &mut store)?;
    line.excess_edges(seed, &mut store)?;
    drop(line);
    let keep = Keep { duplicates: false, self_loops: false };
    let (graph, _) = store.finish(n, true, keep, |v| names[v as usize])?;
    drop(names);
    let source = format!("generated (BTER, seed {seed})");
    let (width, classes) = (options.feature_width, options.classes);
    with_random_columns(
        graph,
        false,
        options.name.clone(),
        source,
        (width, classes, options.signal, &options.split, seed),
    )
}

/// A block of consecutive vertices.
#[derive(Clone, Copy)]
struct Block {
    start: u32,
    len: u32,
    /// Probability that a pair is an edge.
    density: f64,
}

/// All vertices by degree, and their blocks.
struct Line {
    /// Vertices of degree 0 come first, then `ones` vertices of degree 1, then the blocks.
    zeros: u32,
    ones: u32,
    blocks: Vec<Block>,
    /// For each vertex in a block, the part of its degree outside the block.
    excess: Vec<f64>,
}

/// Pairs of one block with numbers from `lo` up to, but not including, `hi`.
struct Stretch {
    block: Block,
    lo: u64,
    hi: u64,
}

impl Line {
    fn new(profile: &DegreeProfile) -> Self {
        let count =
            |degree| profile.rows().iter().find(|row| row.degree == degree).map_or(0, |row| row.vertices as u32);
        let (zeros, ones) = (count(0), count(1));
        let mut degrees = profile
            .rows()
            .iter()
            .filter(|row| row.degree > 1)
            .flat_map(|row| std::iter::repeat_n((row.degree, row.clustering), row.vertices as usize))
            .peekable();
        let (mut blocks, mut excess) = (Vec::new(), Vec::new());
        let mut start = zeros + ones;
        while let Some(&(least, clustering)) = degrees.peek() {
            let in_block: Vec<u64> = degrees.by_ref().take(least as usize + 1).map(|(degree, _)| degree).collect();
            let len = in_block.len() as u32;
            let density = clustering.cbrt();
            let within = density * f64::from(len - 1);
            excess.extend(in_block.iter().map(|&degree| degree as f64 - within));
            blocks.push(Block { start, len, density });
            start += len;
        }
        Self { zeros, ones, blocks, excess }
    }

    /// Draws the edges within blocks. It draws the gaps between edges instead of testing every pair.
    fn edges_in_blocks(&self, seed: u64, store: &mut EdgeStore) -> Result<()> {
        let mut chunks: Vec<Vec<Stretch>> = vec![Vec::new()];
        let mut expected = 0.0;
        for &block in self.blocks.iter().filter(|block| block.density > 0.0) {
            let pairs = u64::from(block.len) * u64::from(block.len - 1) / 2;
            // A stretch has about as many edges as a chunk should have.
            let len = ((CHUNK as f64 / block.density) as u64).max(1);
            let mut lo = 0;
            while lo < pairs {
                let hi = pairs.min(lo + len);
                expected += (hi - lo) as f64 * block.density;
                if let Some(chunk) = chunks.last_mut() {
                    chunk.push(Stretch { block, lo, hi });
                }
                if expected >= CHUNK as f64 {
                    chunks.push(Vec::new());
                    expected = 0.0;
                }
                lo = hi;
            }
        }
        in_waves(chunks.len(), store, |chunk| {
            let mut rng = stream(seed, Purpose::Blocks, chunk as u64);
            let mut edges = Vec::new();
            chunks[chunk].iter().for_each(|stretch| stretch.draw(&mut rng, &mut edges));
            edges
        })
    }

    /// Draws pairs in proportion to the excess of both ends.
    fn excess_edges(&mut self, seed: u64, store: &mut EdgeStore) -> Result<()> {
        let first = self.zeros + self.ones;
        let lacking: f64 = self.excess.iter().sum();
        let ones = f64::from(self.ones);
        // The expected share of vertices of degree 1 whose partner has degree 1 too.
        let among = if lacking > 0.0 { ones / (ones + lacking) } else { 1.0 };
        let couples = (ones * among / 2.0).round().min(f64::from(self.ones / 2)) as u32;
        let pair = |i: u32| [self.zeros + 2 * i, self.zeros + 2 * i + 1];
        for start in (0..couples).step_by(CHUNK as usize) {
            let end = couples.min(start.saturating_add(CHUNK as u32));
            store.extend(&(start..end).map(pair).collect::<Vec<_>>())?;
        }
        if lacking <= 0.0 {
            return Ok(());
        }
        let singles = u64::from(self.ones - 2 * couples);
        saturation::weights(&mut self.excess, singles as f64);
        let total: f64 = self.excess.iter().sum();
        let sampler = Sampler::new(self.excess.iter().copied());
        let draw = |rng: &mut rand_chacha::ChaCha8Rng| first + sampler.item_at(rng.random::<f64>() * total) as u32;
        let pairs = singles + ((total - singles as f64) / 2.0).round().max(0.0) as u64;
        in_waves(pairs.div_ceil(CHUNK) as usize, store, |chunk| {
            let mut rng = stream(seed, Purpose::Edges, chunk as u64);
            let range = chunk as u64 * CHUNK..pairs.min((chunk as u64 + 1) * CHUNK);
            let end = |i: u64, rng: &mut _| if i < singles { self.zeros + 2 * couples + i as u32 } else { draw(rng) };
            range.map(|i| [end(i, &mut rng), draw(&mut rng)]).collect()
        })
    }
}

/// Generates chunks in parallel and stores them in order.
fn in_waves(chunks: usize, store: &mut EdgeStore, make: impl Fn(usize) -> Vec<[u32; 2]> + Sync) -> Result<()> {
    for start in (0..chunks).step_by(WAVE) {
        let made: Vec<Vec<[u32; 2]>> = (start..chunks.min(start + WAVE)).into_par_iter().map(&make).collect();
        made.iter().try_for_each(|edges| store.extend(edges))?;
    }
    Ok(())
}

impl Stretch {
    fn draw(&self, rng: &mut impl Rng, edges: &mut Vec<[u32; 2]>) {
        let Block { start, density, .. } = self.block;
        let edge = |number: u64| {
            let (i, j) = pair(number);
            [start + j, start + i]
        };
        if density >= 1.0 {
            edges.extend((self.lo..self.hi).map(edge));
            return;
        }
        let log_rest = (-density).ln_1p();
        let mut number = self.lo;
        loop {
            // The number of pairs before the next edge has a geometric distribution. 1 - random is above 0.
            let gap = ((1.0 - rng.random::<f64>()).ln() / log_rest) as u64;
            number = number.saturating_add(gap);
            if number >= self.hi {
                return;
            }
            edges.push(edge(number));
            number += 1;
        }
    }
}

/// Returns the pair with a number: (1, 0), (2, 0), (2, 1), (3, 0), ....
fn pair(number: u64) -> (u32, u32) {
    let below = |i: u64| i * i.saturating_sub(1) / 2;
    let mut i = ((1.0 + (1.0 + 8.0 * number as f64).sqrt()) / 2.0) as u64;
    // Rounding may have moved the root across a boundary.
    while below(i) > number {
        i -= 1;
    }
    while below(i + 1) <= number {
        i += 1;
    }
    (i as u32, (number - below(i)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_numbered_without_gaps() {
        let want = (1..60u32).flat_map(|i| (0..i).map(move |j| (i, j)));
        assert!(want.enumerate().all(|(number, want)| pair(number as u64) == want));
        // The last pairs of the largest possible block.
        let n = u64::from(u32::MAX);
        assert_eq!(pair(n * (n - 1) / 2 - 1), (u32::MAX - 1, u32::MAX - 2));
        assert_eq!(pair(n * (n - 1) / 2), (u32::MAX, 0));
    }
}
