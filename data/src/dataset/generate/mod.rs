//! Random graph generators. The same options give the same bytes on any number of threads.
//!
//! All random numbers come from ChaCha8 streams, one per fixed-size chunk of each kind of draw. So threads may take the
//! chunks in any order.

mod bter;
mod pairs;
mod planted;
mod profile;
mod rmat;
mod sampler;
mod saturation;
mod vertices;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::error::{Error, Result};
use crate::host;

pub use bter::{BterOptions, bter};
pub use pairs::both_ways;
pub use planted::{PlantedOptions, planted};
pub use profile::{DegreeProfile, DegreeRow};
pub use rmat::{RmatOptions, rmat};

/// The number of vertices in each split. They are drawn at random; the other vertices are in no split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SplitSizes {
    /// As in Planetoid: some training vertices of every class, and validation and test vertices of any class.
    PerClass {
        /// Training vertices per class; all vertices of a class that has fewer.
        train: usize,
        /// Validation vertices.
        val: usize,
        /// Test vertices.
        test: usize,
    },
    /// Shares of all vertices.
    Fractions {
        /// Share for training.
        train: f64,
        /// Share for validation.
        val: f64,
        /// Share for testing.
        test: f64,
    },
}

/// What a stream of random numbers is used for.
#[derive(Clone, Copy)]
enum Purpose {
    Labels = 1,
    Weights,
    Edges,
    Centroids,
    Features,
    Split,
    Names,
    Blocks,
    Wedges,
}

/// Returns the stream of one chunk of one kind of draw.
fn stream(seed: u64, purpose: Purpose, chunk: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream((purpose as u64) << 48 | chunk);
    rng
}

fn check(ok: bool, option: &'static str, found: impl ToString, expected: &'static str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Option { option, found: found.to_string(), expected: expected.into() }) }
}

/// Refuses a size that cannot fit into the host's memory.
fn check_fits(need_bytes: u64, option: &'static str, found: impl ToString) -> Result<()> {
    match host::shortage(need_bytes, host::memory_bytes()) {
        None => Ok(()),
        Some(shortage) => {
            let shortage = format!("that alone {shortage}");
            Err(Error::TooLarge { option, found: found.to_string(), shortage })
        }
    }
}

/// Refuses graphs and features that cannot fit.
///
/// The bounds are lower bounds, so what passes them may still be too much. They count: per vertex, offsets, cursors,
/// slices and counts while its row is sorted; per pair, its ends and one or two edges; per feature, one number.
fn check_sizes(
    vertices: usize,
    (option, found): (&'static str, f64),
    pairs_a_vertex: f64,
    edges_a_pair: u64,
    width: usize,
) -> Result<()> {
    const VERTEX_BYTES: u64 = 32;
    let n = vertices as u64;
    check_fits(host::product([n, VERTEX_BYTES, 1]), "vertices", n)?;
    // Casts of floats to integers saturate.
    let count = (n as f64 * pairs_a_vertex) as u64;
    check_fits(host::product([count, 8 + 4 * edges_a_pair, 1]), option, found)?;
    check_fits(host::product([n, width as u64, 4]), "feature_width", width)
}

fn check_split(sizes: &SplitSizes) -> Result<()> {
    if let SplitSizes::Fractions { train, val, test } = *sizes {
        let whole = [train, val, test].iter().all(|x| (0.0..=1.0).contains(x)) && train + val + test <= 1.0 + 1e-9;
        let found = format!("{train}, {val}, {test}");
        check(whole, "split", found, "three numbers from 0 to 1 that sum to at most 1")?;
    }
    Ok(())
}
