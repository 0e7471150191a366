//! Calls METIS.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use metis::option::{ObjType, Seed};
use rayon::prelude::*;

use super::Objective;
use crate::dataset::{Error, Result};
use crate::graph::{Graph, prefix_sum, rows_mut};
use crate::partition::{Assignment, VertexWeight, merged};

/// The largest number that METIS counts to.
const MOST: u64 = i32::MAX as u64;

/// METIS draws from the random numbers of the C library and replaces handlers of signals, so only one thread may call it.
static ALONE: Mutex<()> = Mutex::new(());

/// Partitions the graph so that the objective is small and parts have about the same weight: METIS allows 3 % more than the
/// mean. With several weights, parts have about the same of each. The same seed gives the same parts.
///
/// # Errors
/// [`Error::NotForThisData`] for a graph with more vertices, edges or weight than METIS's 32-bit numbers can count;
/// [`Error::Partitioner`] if METIS fails: memory runs out, or SIGTERM ends it; [`Error::NotBuilt`] without the feature
/// `metis`.
/// # Cost
/// That of METIS, on one thread. The undirected graph takes 4 bytes per vertex and direction of an edge; METIS takes several
/// times that. A directed graph is also transposed.
/// # Source
/// Karypis & Kumar, Multilevel k-way Partitioning Scheme for Irregular Graphs, 1998.
pub fn assign(
    graph: &Graph,
    count: NonZeroU32,
    objective: Objective,
    weights: &[VertexWeight<'_>],
    seed: u64,
) -> Result<Assignment> {
    let n = graph.vertex_count();
    // METIS cannot handle one part, or a part for each vertex.
    if count.get() as usize >= n {
        let part_of = (0..n as u32).collect();
        return Ok(Assignment { part_of, count });
    }
    let parts = small("parts", u64::from(count.get()))?;
    let constraints = small("weights", weights.len().max(1) as u64)?;
    let weights = self::weights(graph, count, weights)?;
    let (offsets, neighbours) = undirected(graph)?;
    let failed = |error: metis::Error| Error::Partitioner { name: "METIS", why: reason(&error).into() };
    let problem = metis::Graph::new(constraints, parts, &offsets, &neighbours).map_err(|error| failed(error.into()))?;
    let problem = match weights.as_deref() {
        Some(weights) => problem.set_vwgt(weights),
        None => problem,
    };
    let problem = problem.set_option(match objective {
        Objective::Cut => ObjType::Cut,
        Objective::Volume => ObjType::Vol,
    });
    let mut part_of = vec![0i32; n];
    {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        problem.set_option(Seed((seed % MOST) as i32)).part_kway(&mut part_of).map_err(failed)?;
    }
    let part_of = part_of.into_par_iter().map(|part| part as u32).collect();
    let bad = || Error::Partitioner { name: "METIS", why: "it returned a part that does not exist".into() };
    Assignment::new(part_of, count).ok_or_else(bad)
}

/// Returns why METIS ended without parts.
fn reason(error: &metis::Error) -> &'static str {
    match error {
        metis::Error::Input => "it refuses the graph",
        metis::Error::Memory => "memory is full",
        metis::Error::Other => "it was ended by a signal, or by a fault of its own",
    }
}

/// Returns a number as METIS takes it.
fn small(what: &'static str, number: u64) -> Result<i32> {
    i32::try_from(number).map_err(|_| Error::NotForThisData {
        option: "by",
        found: "METIS".into(),
        expected: format!("another way: METIS counts to {MOST}, but this graph gives it {number} {what}").into(),
    })
}

/// Returns the weights of each vertex, `[n, weights]`, or `None` if all weigh the same.
///
/// A vertex weighs at least 1, so that isolated ones are distributed too. It weighs at most the mean of a part: one that is
/// heavier fills a part by itself in any case, and METIS fails to split what is left if it knows the true weight.
fn weights(graph: &Graph, count: NonZeroU32, weights: &[VertexWeight<'_>]) -> Result<Option<Vec<i32>>> {
    if let [] | [VertexWeight::Rows] = weights {
        return Ok(None);
    }
    let mut all = vec![0i32; graph.vertex_count() * weights.len()];
    for (column, weight) in weights.iter().enumerate() {
        let of = weight.positive(graph);
        let total: u64 = (0..graph.vertex_count()).into_par_iter().map(&of).sum();
        small("of weight", total)?;
        let mean = total.div_ceil(u64::from(count.get()));
        all.par_chunks_mut(weights.len()).enumerate().for_each(|(v, row)| row[column] = of(v).min(mean) as i32);
    }
    Ok(Some(all))
}

/// Returns the offsets and neighbours of the undirected graph.
fn undirected(graph: &Graph) -> Result<(Vec<i32>, Vec<i32>)> {
    let n = graph.vertex_count();
    small("vertices", n as u64 + 1)?;
    let reverse = (!graph.is_symmetric()).then(|| graph.transpose_without_permutation());
    let neighbours = |v: usize| {
        let others = reverse.as_ref().map_or(&[][..], |reverse| reverse.sources(v));
        merged(graph.sources(v), others).filter(move |&u| u as usize != v)
    };
    let mut offsets = vec![0u64; n + 1];
    offsets[1..].par_iter_mut().enumerate().for_each(|(v, degree)| *degree = neighbours(v).count() as u64);
    prefix_sum(&mut offsets);
    small("directions of edges", offsets[n])?;
    let mut all = vec![0i32; offsets[n] as usize];
    rows_mut(&offsets, &mut all).into_par_iter().enumerate().for_each(|(v, row)| {
        row.iter_mut().zip(neighbours(v)).for_each(|(to, u)| *to = u as i32);
    });
    Ok((offsets.into_par_iter().map(|offset| offset as i32).collect(), all))
}
