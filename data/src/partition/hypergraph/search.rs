//! The search for the number of mini-batches whose nets give the best parts.

use std::ops::Range;

use crate::dataset::{Error, Result};
use crate::partition::batches::run;
use crate::partition::{Assignment, BatchDraws, Estimate};
use crate::sample::SampleError;

use super::pins::Pins;
use super::{Stochastic, Trial};

/// The number of batches whose nets are added first.
const FIRST: usize = 8;

/// The number of batches on which hypergraphs are compared.
const HELD_OUT: usize = 64;

/// Doubles the number of batches as long as parts fetch fewer rows for batches held out than with half as many batches.
/// `partition` partitions a hypergraph that begins with the nets of the graph.
///
/// # Errors
/// Those of `partition`; [`Error::Batch`]; [`Error::NotForThisData`] if the first batches have too many pins.
pub(super) fn search(
    draws: &BatchDraws<'_>,
    of_graph: Pins,
    most_pins: u64,
    seed: u64,
    mut partition: impl FnMut(&Pins) -> Result<Assignment>,
) -> Result<Stochastic> {
    if draws.seeds.is_empty() {
        let (found, expected) = ("empty".into(), "at least one labelled vertex of the training split".into());
        return Err(Error::NotForThisData { option: "seeds", found, expected });
    }
    let [nets_run, held_out_run] = [0, 1].map(|purpose| run(seed, purpose));
    let tried = |batches: usize, pins: &Pins, assignment: &Assignment| -> std::result::Result<Trial, SampleError> {
        let rows = |run, count| Ok(Estimate::of(&draws.fetched_rows(assignment, run, count)?));
        let own = if batches == 0 { None } else { Some(rows(nets_run, batches)?) };
        Ok(Trial { batches, pins: pins.pins.len() as u64, own, held_out: rows(held_out_run, HELD_OUT)? })
    };
    let room = |pins: &Pins| (most_pins as usize).checked_sub(pins.pins.len());
    let first = match room(&of_graph) {
        Some(room) => drawn_nets(draws, nets_run, 0..FIRST, room)?,
        None => None,
    };
    let few = || Error::NotForThisData {
        option: "most_pins",
        found: most_pins.to_string(),
        expected: format!("more: the graph and {FIRST} batches have more pins").into(),
    };
    let (first, mut nets) = (first.ok_or_else(few)?, of_graph);
    let assignment = partition(&nets)?;
    let mut found = Stochastic { trials: vec![tried(0, &nets, &assignment)?], assignment, best: 0, is_limited: false };
    nets.extend(&first);
    let mut batches = FIRST;
    loop {
        let assignment = partition(&nets)?;
        let trial = tried(batches, &nets, &assignment)?;
        if trial.held_out.mean < found.trials[found.best].held_out.mean {
            (found.assignment, found.best) = (assignment, found.trials.len());
        }
        // Fewer rows than with the graph alone are not asked of the first batches: they may be too few.
        let before = found.trials.last().filter(|before| before.batches > 0).copied();
        found.trials.push(trial);
        if before.is_some_and(|before| trial.held_out.mean >= before.held_out.mean) {
            return Ok(found);
        }
        let more = match room(&nets) {
            Some(room) => drawn_nets(draws, nets_run, batches..2 * batches, room)?,
            None => None,
        };
        let Some(more) = more else {
            found.is_limited = true;
            return Ok(found);
        };
        nets.extend(&more);
        batches *= 2;
    }
}

/// Returns the nets of some batches of a run; `None` if they have more than `most` pins.
fn drawn_nets(draws: &BatchDraws<'_>, run: u64, batches: Range<usize>, most: usize) -> Result<Option<Pins>> {
    let mut nets = Pins { offsets: vec![0], pins: Vec::new() };
    for first in batches.clone().step_by(FIRST) {
        // A few batches at a time, since they take more memory than their nets.
        let next = first..batches.end.min(first + FIRST);
        let drawn =
            draws.each(run, next, |seeds, key, scratch| draws.sampler.sample(draws.graph, seeds, key, scratch))?;
        drawn.iter().for_each(|batch| nets.add_batch(batch));
        if nets.pins.len() > most {
            return Ok(None);
        }
    }
    Ok(Some(nets))
}
