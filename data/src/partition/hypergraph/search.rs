//! The search for the number of mini-batches whose nets give the best parts.

use std::ops::Range;

use crate::dataset::{Error, Result};
use crate::partition::batches::run;
use crate::partition::{Assignment, BatchDraws, Estimate};
use crate::sample::SampleError;

use super::pins::Pins;
use super::{Source, Stochastic, Trial};

/// The number of batches whose nets are added first.
const FIRST: usize = 8;

/// The number of batches on which hypergraphs are compared.
const HELD_OUT: usize = 64;

/// Doubles the number of batches as long as parts fetch fewer rows for batches held out than with half as many batches.
/// `partition` partitions a hypergraph that begins with the nets of the graph. `metis` are parts to compare with.
///
/// # Errors
/// Those of `partition`; [`Error::Batch`]; [`Error::NotForThisData`] if the first batches have too many pins.
pub(super) fn search(
    draws: &BatchDraws<'_>,
    of_graph: Pins,
    metis: Option<Assignment>,
    most_pins: u64,
    seed: u64,
    mut partition: impl FnMut(&Pins) -> Result<Assignment>,
) -> Result<Stochastic> {
    if draws.seeds.is_empty() {
        let (found, expected) = ("empty".into(), "at least one labelled vertex of the training split".into());
        return Err(Error::NotForThisData { option: "seeds", found, expected });
    }
    let [nets_run, held_out_run] = [0, 1].map(|purpose| run(seed, purpose));
    let tried = |source, pins: usize, assignment: &Assignment| -> std::result::Result<Trial, SampleError> {
        let rows = |run, count| Ok(Estimate::of(&draws.fetched_rows(assignment, run, count)?));
        let own = match source {
            Source::Batches(batches) => Some(rows(nets_run, batches)?),
            Source::Graph | Source::Metis => None,
        };
        Ok(Trial { source, pins: pins as u64, own, held_out: rows(held_out_run, HELD_OUT)? })
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
    let trials = vec![tried(Source::Graph, nets.pins.len(), &assignment)?];
    let mut found = Stochastic { trials, assignment, best: 0, is_limited: false };
    if let Some(assignment) = metis {
        found.add(tried(Source::Metis, 0, &assignment)?, assignment);
    }
    nets.extend(&first);
    let (mut batches, mut fewest) = (FIRST, f64::INFINITY);
    loop {
        let assignment = partition(&nets)?;
        let trial = tried(Source::Batches(batches), nets.pins.len(), &assignment)?;
        found.add(trial, assignment);
        // The first batches may be too few to be better than the graph alone.
        if trial.held_out.mean >= fewest {
            return Ok(found);
        }
        fewest = trial.held_out.mean;
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

impl Stochastic {
    /// Adds a trial, and keeps its parts if they are better than the best.
    fn add(&mut self, trial: Trial, assignment: Assignment) {
        if trial.held_out.mean < self.trials[self.best].held_out.mean {
            (self.assignment, self.best) = (assignment, self.trials.len());
        }
        self.trials.push(trial);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::{NonZeroU32, NonZeroUsize};

    use super::*;
    use crate::graph::Graph;
    use crate::partition::hypergraph::Nets;
    use crate::sample::NeighborSampler;

    /// A ring of 64 vertices, each of which reads the next four.
    fn ring() -> Graph {
        let edges: Vec<(u32, u32)> = (0..64).flat_map(|v| (1..=4).map(move |i| ((v + i) % 64, v))).collect();
        Graph::from_edges(64, &edges).unwrap()
    }

    /// Searches with given parts, one after the other, instead of those of a partitioner. `parts[i]` is the number of
    /// runs of consecutive vertices that are alternately in one of two parts. Returns the pins of all hypergraphs, too.
    fn searched(parts: &[u32], metis: Option<u32>, most_pins: u64) -> Result<(Stochastic, Vec<usize>)> {
        let (graph, sampler) = (ring(), NeighborSampler::new("2,2".parse().unwrap()));
        let seeds: Vec<u32> = (0..64).collect();
        let draws = BatchDraws { graph: &graph, sampler: &sampler, seeds: &seeds, size: NonZeroUsize::new(8).unwrap() };
        let (mut pins, mut parts) = (Vec::new(), parts.iter());
        let parts_of = |runs: u32| {
            Assignment::new((0..64).map(|v| v * runs / 64 % 2).collect(), NonZeroU32::new(2).unwrap()).unwrap()
        };
        let of_graph = Pins::of(&graph, Nets::Forward).unwrap();
        let found = search(&draws, of_graph, metis.map(parts_of), most_pins, 1, |nets| {
            pins.push(nets.pins.len());
            Ok(parts_of(*parts.next().expect("the search ends before")))
        })?;
        Ok((found, pins))
    }

    #[test]
    fn the_number_of_batches_doubles_while_parts_improve() {
        // More runs are worse parts. The third number of batches is no better than the second.
        let (found, pins) = searched(&[16, 32, 8, 8], None, u64::MAX).unwrap();
        let batches = [8, 16, 32].map(Source::Batches);
        assert_eq!(found.trials[1..].iter().map(|trial| trial.source).collect::<Vec<_>>(), batches);
        assert_eq!(found.trials[0].source, Source::Graph);
        assert_eq!((found.best, found.is_limited), (2, false));
        assert_eq!(found.trials.iter().map(|trial| trial.pins as usize).collect::<Vec<_>>(), pins);
        assert!(pins.is_sorted() && pins[0] == 64 * 5, "{pins:?}");
        assert_eq!(found.assignment.part_of()[7..9], [0, 1]);
        assert!(found.trials[0].own.is_none() && found.trials[1].own.is_some());
    }

    #[test]
    fn the_graph_alone_is_kept_if_it_is_the_best() {
        let (found, _) = searched(&[2, 16, 8, 8], Some(4), u64::MAX).unwrap();
        assert_eq!((found.best, found.trials.len()), (0, 5));
        assert_eq!(found.assignment.part_of()[31..33], [0, 1]);
        for trial in &found.trials {
            assert!(found.trials[found.best].held_out.mean <= trial.held_out.mean);
        }
    }

    #[test]
    fn parts_of_metis_are_kept_if_they_are_the_best() {
        let (found, _) = searched(&[4, 16, 8, 8], Some(2), u64::MAX).unwrap();
        assert_eq!((found.best, found.trials[1].source, found.trials[1].pins), (1, Source::Metis, 0));
        assert_eq!(found.assignment.part_of()[31..33], [0, 1]);
    }

    #[test]
    fn pins_are_limited() {
        let (found, pins) = searched(&[16, 8, 4, 4], None, u64::MAX).unwrap();
        assert!(!found.is_limited);
        let (limited, fewer) = searched(&[16, 8], None, pins[1] as u64).unwrap();
        assert_eq!((limited.is_limited, limited.best, &fewer[..]), (true, 1, &pins[..2]));
        for most in [0, 64 * 5, pins[1] as u64 - 1] {
            let error = searched(&[], None, most).unwrap_err();
            assert!(matches!(error, Error::NotForThisData { option: "most_pins", .. }), "{error}");
        }
    }

    #[test]
    fn no_seeds_and_wrong_seeds_are_errors() {
        let (graph, sampler) = (ring(), NeighborSampler::new("2".parse().unwrap()));
        for (seeds, wanted) in [(&[][..], "option `seeds` is empty"), (&[64][..], "cannot draw a mini-batch")] {
            let draws = BatchDraws { graph: &graph, sampler: &sampler, seeds, size: NonZeroUsize::new(8).unwrap() };
            let nets = Pins::of(&graph, Nets::Forward).unwrap();
            let error = search(&draws, nets, None, 1000, 1, |_| unreachable!("there are no batches")).unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
}
