//! Random graphs to train on when there is no data: the same bytes for the same options, on any number of threads.
//!
//! All randomness comes from ChaCha8 streams, one for each fixed-size chunk of each kind of draw, so that threads may
//! take the chunks in any order.

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

/// How many vertices each split gets. They are drawn at random; the rest is in no split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SplitSizes {
    /// The Planetoid way: a few training vertices of every class, then numbers of any class.
    PerClass {
        /// Training vertices of each class; all of a class that has fewer.
        train: usize,
        /// Validation vertices.
        val: usize,
        /// Test vertices.
        test: usize,
    },
    /// Shares of all vertices.
    Fractions {
        /// For training.
        train: f64,
        /// For validation.
        val: f64,
        /// For testing.
        test: f64,
    },
}

/// What a stream of random numbers is for.
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

/// The stream of one chunk of one kind of draw.
fn stream(seed: u64, purpose: Purpose, chunk: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream((purpose as u64) << 48 | chunk);
    rng
}

fn check(ok: bool, option: &'static str, found: impl ToString, expected: &'static str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Option { option, found: found.to_string(), expected: expected.into() }) }
}

/// Refuses what is sure not to fit into the host's memory, whatever else there is.
fn check_fits(need_bytes: u64, option: &'static str, found: impl ToString) -> Result<()> {
    match host::shortage(need_bytes, host::memory_bytes()) {
        None => Ok(()),
        Some(shortage) => {
            let shortage = format!("that alone {shortage}");
            Err(Error::TooLarge { option, found: found.to_string(), shortage })
        }
    }
}

/// Refuses graphs and features that do not fit.
///
/// The bounds are low ones, since what passes them may still be too much: a vertex costs offsets, cursors, slices and
/// counts while its row is sorted; a pair its ends and an edge or two; a feature one number.
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
    // Casts of floats saturate.
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
