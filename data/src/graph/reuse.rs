//! Reuse: how often a gather finds a source's row in a cache.
//!
//! The reuse distance of a read is the number of other sources that are read between it and the last read of the same
//! source. A cache that evicts the least recently used row has the row if it holds more rows than that. So the
//! distances of all reads give the misses of every cache and every width of rows. They depend on which sources are
//! popular and on the order of the vertices. It is enough to look at some of the sources: those whose hashed number is
//! small.
//!
//! # Source
//! Mattson, Gecsei, Slutz & Traiger, "Evaluation techniques for storage hierarchies" (1970); the sample: Waldspurger,
//! Park, Garthwaite & Ahmad, "Efficient MRC construction with SHARDS" (FAST 2015), section 3.

use rayon::prelude::*;

/// Buckets of distances per factor of 2.
const PER_OCTAVE: usize = 4;

/// Number of buckets: from all sources down to 2^-32 of them.
const BUCKETS: usize = 32 * PER_OCTAVE;

/// Reads of sampled sources to look at, about.
const READS: u64 = 1 << 19;

/// The share of a gather's reads that miss a cache, by the share of the sources that the cache holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Reuse {
    /// `misses[i]`: share of the reads that miss a cache of the share `2^(-i / PER_OCTAVE)` of the sources.
    misses: Vec<f64>,
}

impl Reuse {
    /// Reads that are independent of each other: a cache that holds a share of the sources serves that share of them.
    pub fn random() -> Self {
        Self { misses: (0..=BUCKETS).map(|bucket| 1.0 - share(bucket)).collect() }
    }

    /// Looks at the reads of a gather that goes through `indices` in order. Each is below `sources`.
    ///
    /// # Cost
    /// One parallel pass over the indices, and O(r log r) for the r reads of the sampled sources, about half a million; 24 r
    /// bytes.
    pub fn of(indices: &[u32], sources: usize) -> Self {
        let rate = (READS as f64 / indices.len().max(1) as f64).min(1.0);
        // A number below 2^32 that is sampled if it is below the limit.
        let limit = (rate * 2f64.powi(32)) as u64;
        let is_sampled = |&u: &u32| u64::from(hash(u)) < limit;
        let reads: Vec<u32> =
            indices.par_chunks(1 << 16).flat_map_iter(|chunk| chunk.iter().copied().filter(is_sampled)).collect();
        let sampled = (0..sources as u64).into_par_iter().filter(|&u| is_sampled(&(u as u32))).count();
        if reads.is_empty() {
            return Self::random();
        }
        let mut latest = vec![0u32; sources];
        let mut places = Places::new(reads.len());
        let mut counts = vec![0u64; BUCKETS + 1];
        for (now, &u) in (1u32..).zip(&reads) {
            let before = std::mem::replace(&mut latest[u as usize], now);
            // The first read of a source finds its row only if the cache holds all rows.
            let distance = match before {
                0 => sampled,
                _ => places.after(before) + 1,
            };
            counts[bucket(distance as f64 / sampled as f64)] += 1;
            places.set(now, before);
        }
        // A cache of the share of bucket i misses what is farther away.
        let mut farther = 0;
        let miss = |&count: &u64| {
            let misses = farther as f64 / reads.len() as f64;
            farther += count;
            misses
        };
        Self { misses: counts.iter().map(miss).collect() }
    }

    /// Returns the share of the reads that miss a cache which holds this share of the sources.
    pub fn misses(&self, share: f64) -> f64 {
        if share >= 1.0 {
            return 0.0;
        }
        let place = (-share.max(0.0).log2() * PER_OCTAVE as f64).min(BUCKETS as f64);
        let (below, part) = (place as usize, place.fract());
        let next = (below + 1).min(BUCKETS);
        self.misses[below] * (1.0 - part) + self.misses[next] * part
    }
}

/// Returns the largest share of a bucket.
fn share(bucket: usize) -> f64 {
    2f64.powf(-(bucket as f64) / PER_OCTAVE as f64)
}

/// Returns the bucket of a share above 0: the last one whose share is not less.
fn bucket(share: f64) -> usize {
    ((-share.log2() * PER_OCTAVE as f64).max(0.0) as usize).min(BUCKETS)
}

/// Spreads the numbers of sources over all numbers, so that a share of the hashes is a random share of the sources.
///
/// # Source
/// The last step of MurmurHash3 (Appleby 2011).
fn hash(u: u32) -> u32 {
    let mixed = (u ^ (u >> 16)).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}

/// The places in the sequence of reads at which a source was read for the last time: sums over prefixes in a binary
/// indexed tree (Fenwick 1994).
struct Places {
    sums: Vec<u32>,
    total: u32,
}

impl Places {
    fn new(count: usize) -> Self {
        Self { sums: vec![0; count + 1], total: 0 }
    }

    /// Moves a source from `before` to `now`; 0 is no place.
    fn set(&mut self, now: u32, before: u32) {
        self.add(now, 1);
        match before {
            0 => self.total += 1,
            _ => self.add(before, u32::MAX),
        }
    }

    fn add(&mut self, place: u32, by: u32) {
        let mut place = place as usize;
        while place < self.sums.len() {
            self.sums[place] = self.sums[place].wrapping_add(by);
            place += place & place.wrapping_neg();
        }
    }

    /// Returns the number of sources whose place is after this one.
    fn after(&self, place: u32) -> usize {
        let (mut place, mut before) = (place as usize, 0u32);
        while place > 0 {
            before = before.wrapping_add(self.sums[place]);
            place &= place - 1;
        }
        (self.total - before) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the misses of a cache of `rows` rows, by simulation.
    fn simulated(indices: &[u32], rows: usize) -> f64 {
        let (mut cache, mut misses) = (Vec::new(), 0);
        for &u in indices {
            match cache.iter().position(|&cached| cached == u) {
                Some(place) => drop(cache.remove(place)),
                None => misses += 1,
            }
            cache.push(u);
            if cache.len() > rows {
                cache.remove(0);
            }
        }
        f64::from(misses) / indices.len() as f64
    }

    #[test]
    fn misses_are_those_of_a_simulated_cache() {
        const SOURCES: usize = 256;
        let near: Vec<u32> = (0..20_000u32).map(|i| (i / 40 + hash(i) % 32) % SOURCES as u32).collect();
        let skewed: Vec<u32> =
            (0..20_000u32).map(|i| (hash(i) % 16) * (hash(i + 99_999) % 16) % SOURCES as u32).collect();
        for (name, indices) in [("near", near), ("skewed", skewed)] {
            let reuse = Reuse::of(&indices, SOURCES);
            for rows in [8, 16, 32, 64, 128] {
                let (want, got) = (simulated(&indices, rows), reuse.misses(rows as f64 / SOURCES as f64));
                assert!((got - want).abs() < 0.02, "{name}, {rows} rows: {got}, simulated {want}");
            }
        }
    }

    #[test]
    fn a_sample_is_enough() {
        const SOURCES: usize = 50_000;
        let indices: Vec<u32> = (0..4_000_000u32).map(|i| hash(i) % SOURCES as u32).collect();
        let reuse = Reuse::of(&indices, SOURCES);
        for share in [0.01, 0.1, 0.5, 0.9] {
            let (got, want) = (reuse.misses(share), Reuse::random().misses(share));
            assert!((got - want).abs() < 0.03, "{share}: {got} is not {want}");
        }
    }

    #[test]
    fn the_ends() {
        assert_eq!(Reuse::random().misses(0.0), 1.0 - share(BUCKETS));
        for reuse in [Reuse::random(), Reuse::of(&[], 0), Reuse::of(&[0, 0, 0], 1), Reuse::of(&[3, 3], 9)] {
            assert_eq!(reuse.misses(1.0), 0.0);
            assert!((0.0..=1.0).contains(&reuse.misses(1e-30)), "{reuse:?}");
        }
    }
}
