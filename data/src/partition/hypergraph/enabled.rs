//! Calls Mt-KaHyPar.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use mt_kahypar::{Context, Hypergraph, Preset, initialize};
use rayon::prelude::*;

use super::balance::{check, weights};
use super::pins::{MOST, Pins, small};
use super::search::search;
use super::{Nets, Stochastic};
use crate::dataset::{Error, Result};
use crate::graph::Graph;
use crate::partition::metis::{self, Objective};
use crate::partition::{Assignment, BatchDraws, VertexWeight};

/// How much heavier than the mean a part may be, as a share: what METIS allows.
const MOST_HEAVIER: f64 = 0.03;

/// Mt-KaHyPar has one seed per process, so only one thread may call it.
static ALONE: Mutex<()> = Mutex::new(());

/// Always `Ok`: this build has a hypergraph partitioner.
pub fn check_built() -> Result<()> {
    Ok(())
}

/// Partitions the vertices so that the rows sent between parts are few, and parts have about the same weight: 3 % more than
/// the mean is allowed. The same seed gives the same parts, on any number of threads.
///
/// # Errors
/// [`Error::NotForThisData`] for a graph with more vertices, pins or weight than 32-bit numbers can count. Pins are the
/// pairs of a vertex and one that it reads, and the vertices. [`Error::Partitioner`] if Mt-KaHyPar fails, or gives up the
/// balance; [`Error::NotBuilt`] without the feature `hypergraph`.
/// # Cost
/// That of Mt-KaHyPar, on as many threads as rayon has. The nets take 8 bytes per pin; Mt-KaHyPar takes several times that,
/// and some bits per net and part.
/// # Source
/// Catalyurek & Aykanat, Hypergraph-partitioning-based decomposition for parallel sparse-matrix vector multiplication, 1999.
/// The partitioner: Gottesbüren, Heuer, Maas, Sanders & Schlag, Scalable High-Quality Hypergraph Partitioning, 2024.
pub fn assign(graph: &Graph, count: NonZeroU32, nets: Nets, weight: VertexWeight<'_>, seed: u64) -> Result<Assignment> {
    match trivial(graph, count) {
        Some(assignment) => Ok(assignment),
        None => Ok(counted(graph, count, nets, weight, seed)?.0),
    }
}

/// Returns one part, or a part for each vertex, if there are as few or as many.
fn trivial(graph: &Graph, count: NonZeroU32) -> Option<Assignment> {
    let n = graph.vertex_count();
    let part_of = match count.get() as usize {
        1 => vec![0; n],
        count if count >= n => (0..n as u32).collect(),
        _ => return None,
    };
    Some(Assignment { part_of, count })
}

/// Partitions the vertices so that parts fetch few rows for mini-batches, if each part draws the blocks around the seeds
/// that it owns.
///
/// The hypergraph has the nets of the graph, and those of mini-batches: for each drawn block, a source and the rows that
/// drew it. It begins without batches, then has 8, 16, and so on. The number doubles as long as parts fetch fewer rows for
/// 64 other batches. The best parts on these batches are returned, so they are never worse there than those of
/// [`assign`]. With the feature `metis`, they are also no worse than those of METIS. The same seed gives the same parts,
/// on any number of threads.
///
/// # Errors
/// Those of [`assign`] and of METIS; [`Error::Batch`]; [`Error::NotForThisData`] if there are no seeds, or if the graph and 8 batches
/// have more than `most_pins` pins.
/// # Cost
/// That of [`assign`] for each number of batches. A batch has a pin per drawn edge, and one per vertex and layer. The nets
/// take 8 bytes per pin; Mt-KaHyPar takes several times that.
/// # Source
/// Demirci et al., Scalable Graph Convolutional Network Training on Distributed-Memory Systems, VLDB 2023, section 4.
/// There, the number of batches follows from a bound, and the nets of the graph are left out.
pub fn stochastic(
    draws: &BatchDraws<'_>,
    count: NonZeroU32,
    weight: VertexWeight<'_>,
    seed: u64,
    most_pins: u64,
) -> Result<Stochastic> {
    let nets = Pins::of(draws.graph, Nets::Forward)?;
    let metis = match metis::assign(draws.graph, count, Objective::Cut, &[weight], seed) {
        // A build without METIS, or a graph that is too large for it.
        Err(Error::NotBuilt { .. } | Error::NotForThisData { .. }) => None,
        assignment => Some(assignment?),
    };
    search(draws, nets, metis, most_pins.min(MOST), seed, |nets| match trivial(draws.graph, count) {
        Some(assignment) => Ok(assignment),
        None => Ok(solved(draws.graph, count, nets, weight, seed)?.0),
    })
}

/// Partitions into fewer parts than vertices. Also returns the rows as Mt-KaHyPar counts them.
fn counted(
    graph: &Graph,
    count: NonZeroU32,
    nets: Nets,
    weight: VertexWeight<'_>,
    seed: u64,
) -> Result<(Assignment, u64)> {
    solved(graph, count, &Pins::of(graph, nets)?, weight, seed)
}

/// Partitions into fewer parts than vertices, with these nets. Also returns the sum over nets of their parts, less one.
fn solved(
    graph: &Graph,
    count: NonZeroU32,
    nets: &Pins,
    weight: VertexWeight<'_>,
    seed: u64,
) -> Result<(Assignment, u64)> {
    small("vertices", graph.vertex_count() as u64)?;
    let parts = small("parts", u64::from(count.get()))?;
    let weights = weights(graph, count, weight)?;
    let as_given: Vec<i32> = weights.par_iter().map(|&weight| weight as i32).collect();
    let failed = |error: mt_kahypar::Error| Error::Partitioner { name: "Mt-KaHyPar", why: error.message };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    initialize(rayon::current_num_threads(), false);
    let context = Context::builder()
        .preset(Preset::Deterministic)
        .k(parts)
        .epsilon(MOST_HEAVIER)
        .objective(mt_kahypar::Objective::Km1)
        .seed((seed % MOST) as usize)
        .build()
        .map_err(failed)?;
    let n = graph.vertex_count();
    let hypergraph = Hypergraph::from_adjacency(&context, n, &nets.offsets, &nets.pins, None, Some(&as_given));
    // `solved` points into the hypergraph, although its type does not borrow it: it has to be dropped first.
    let hypergraph = hypergraph.map_err(failed)?;
    let solved = hypergraph.partition().map_err(failed)?;
    let part_of = solved.extract_partition().into_par_iter().map(|part| part as u32).collect();
    let bad = || Error::Partitioner { name: "Mt-KaHyPar", why: "it returned a part that does not exist".into() };
    let assignment = Assignment::new(part_of, count).ok_or_else(bad)?;
    check(graph, &assignment, &weights)?;
    Ok((assignment, solved.km1() as u64))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::partition::Volume;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn mt_kahypar_counts_the_same_rows(
            edges in proptest::collection::vec((0u32..40, 0u32..40), 0..300),
            count in 2u32..9,
            undirected in proptest::bool::ANY,
            seed in 0u64..5,
        ) {
            // Vertices 40 to 49 are isolated; loops and repeated edges are likely.
            let reversed = edges.iter().map(|&(u, v)| (v, u)).filter(|_| undirected);
            let edges: Vec<(u32, u32)> = edges.iter().copied().chain(reversed).collect();
            let graph = Graph::from_edges(50, &edges).unwrap();
            let count = NonZeroU32::new(count).unwrap();
            for nets in [Nets::Forward, Nets::Both] {
                let (assignment, rows) = counted(&graph, count, nets, VertexWeight::Edges, seed).unwrap();
                let volume = Volume::of(&graph, &assignment);
                let pulled = if nets == Nets::Both && !graph.is_symmetric() { volume.backward_rows } else { 0 };
                prop_assert_eq!(rows, volume.halo_rows + pulled);
                prop_assert_eq!(assign(&graph, count, nets, VertexWeight::Edges, seed).unwrap(), assignment);
            }
        }
    }
}
