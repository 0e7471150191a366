//! Rows of vertices that change while a run trains. Each rank holds those of a range of ids. A batch pulls the rows that it
//! reads, and pushes their gradients back to the ranks that hold them.
//!
//! Letters have the series of the pulls of a [`RowStore`](super::RowStore), and subjects of their own, so that the thread
//! that computes may exchange rows while another one prepares later batches.

use std::ops::Range;

use bytemuck::{cast_slice, pod_collect_to_vec};
use lapidary_kernels::memory::{AlignedBytes, NoHostMemory};
use rayon::prelude::*;

use super::{Pulls, Ranks, Subject};
use crate::error::Result;

/// Rows that one task copies.
const ROWS_A_TASK: usize = 256;

/// Which rank holds which learned rows.
#[derive(Clone, Debug)]
pub(crate) struct LearnedRows {
    ranks: Ranks,
    /// The first id of each rank, and the end of the last one.
    // Invariant: ascending, one more than there are ranks.
    offsets: Vec<usize>,
    width: usize,
}

/// The gradients of rows that one part has: a row for each of its ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RowTerms {
    pub ids: Vec<u32>,
    pub rows: Vec<f32>,
}

/// What an exchange of learned rows has sent to this rank, or from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crossed {
    pub rows: u64,
    pub bytes: u64,
}

impl LearnedRows {
    /// Creates the list of owners: rank `r` holds the rows `offsets[r]..offsets[r + 1]`.
    ///
    /// # Panics
    /// If `offsets` do not have the right length.
    pub(crate) fn new(ranks: &Ranks, offsets: Vec<usize>, width: usize) -> Self {
        assert!(offsets.len() == ranks.count() + 1 && offsets.is_sorted(), "there is one range of ids for each rank");
        Self { ranks: ranks.clone(), offsets, width }
    }

    fn range(&self, rank: usize) -> Range<usize> {
        self.offsets[rank]..self.offsets[rank + 1]
    }

    /// Returns where those of ascending ids are that a rank holds.
    fn of_rank(&self, ids: &[u32], rank: usize) -> Range<usize> {
        let Range { start, end } = self.range(rank);
        let below = |limit: usize| ids.partition_point(|&id| (id as usize) < limit);
        below(start)..below(end)
    }

    /// Returns the rows of these ids, one after the other, as they are now. They may be repeated. `own` are the rows of
    /// this rank. All ranks have to call it with the same number, and none may change its rows before it has returned.
    ///
    /// # Errors
    /// [`Error::OtherRank`](crate::Error::OtherRank); [`Error::WorkersGone`](crate::Error::WorkersGone).
    /// # Cost
    /// One letter to each other rank with 4 bytes for each of its rows, and one back with 4 bytes for each number. Each row
    /// is sent once. O(ids log ids) time.
    pub(crate) fn pull(
        &self,
        series: &Pulls<'_>,
        number: u64,
        ids: &[u32],
        own: &[f32],
    ) -> Result<(std::result::Result<AlignedBytes, NoHostMemory>, Crossed)> {
        let (ranks, width, me) = (&self.ranks, self.width, self.ranks.rank());
        let mut asked = ids.to_vec();
        asked.par_sort_unstable();
        asked.dedup();
        let others = || (0..ranks.count()).filter(|&rank| rank != me);
        for to in others() {
            let wanted: &[u8] = cast_slice(&asked[self.of_rank(&asked, to)]);
            series.series.send(to, (Subject::LearnedIds, number), wanted.len(), std::iter::once(wanted));
        }
        let first = self.range(me).start;
        let own_row = |id: u32| &own[(id as usize - first) * width..][..width];
        for from in others() {
            let wanted: Vec<u32> = pod_collect_to_vec(&series.series.wait(from, (Subject::LearnedIds, number))?);
            if !wanted.is_empty() {
                let rows = wanted.iter().map(|&id| cast_slice(own_row(id)));
                let bytes = wanted.len() * width * size_of::<f32>();
                series.series.send(from, (Subject::LearnedRows, number), bytes, rows);
            }
        }
        let mut of_ranks = Vec::new();
        let mut crossed = Crossed::default();
        for from in 0..ranks.count() {
            let places = self.of_rank(&asked, from);
            let rows: Vec<f32> = match from == me || places.is_empty() {
                true => Vec::new(),
                false => pod_collect_to_vec(&series.series.wait(from, (Subject::LearnedRows, number))?),
            };
            if from != me {
                crossed.rows += places.len() as u64;
                crossed.bytes += places.len() as u64 * (4 + 4 * width as u64);
            }
            of_ranks.push((places, rows));
        }
        let row = |id: u32| -> &[f32] {
            // Of several ranks with this start, only the last one has ids.
            let owner = self.offsets.partition_point(|&start| start <= id as usize) - 1;
            if owner == me {
                return own_row(id);
            }
            let (places, rows) = &of_ranks[owner];
            let place = asked[places.clone()].partition_point(|&other| other < id);
            &rows[place * width..][..width]
        };
        Ok((taken(ids, width, row), crossed))
    }

    /// Gives the gradients of rows to the ranks that hold the rows. `terms` are those of the parts of this rank, in their
    /// order. Returns those of the rows that this rank holds, of the parts of all ranks, in the order of the parts. All
    /// ranks have to call it with the same number, and with as many parts.
    ///
    /// # Errors
    /// As [`LearnedRows::pull`].
    /// # Cost
    /// One letter to each other rank: 4 bytes for each part, for each id and for each number. A row that several parts of a
    /// rank have is sent several times, so that the owner can add in the order of the parts.
    pub(crate) fn push(&self, series: &Pulls<'_>, number: u64, terms: &[RowTerms]) -> Result<(Vec<RowTerms>, Crossed)> {
        let (ranks, me) = (&self.ranks, self.ranks.rank());
        let mut crossed = Crossed::default();
        for to in (0..ranks.count()).filter(|&rank| rank != me) {
            let of_rank: Vec<RowTerms> = terms.iter().map(|terms| self.held_by(to, terms)).collect();
            let counts: Vec<u32> = of_rank.iter().map(|terms| terms.ids.len() as u32).collect();
            let pieces: Vec<&[u8]> = std::iter::once(cast_slice(&counts))
                .chain(of_rank.iter().flat_map(|terms| [cast_slice(&terms.ids), cast_slice(&terms.rows)]))
                .collect();
            let bytes = pieces.iter().map(|piece| piece.len()).sum();
            series.series.send(to, (Subject::LearnedTerms, number), bytes, pieces.into_iter());
            crossed.rows += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
            crossed.bytes += bytes as u64;
        }
        let mut all = Vec::new();
        for from in 0..ranks.count() {
            if from == me {
                all.extend(terms.iter().map(|terms| self.held_by(me, terms)));
                continue;
            }
            let content = series.series.wait(from, (Subject::LearnedTerms, number))?;
            let (counts, mut rest) = content.split_at(terms.len() * size_of::<u32>());
            for count in pod_collect_to_vec::<u8, u32>(counts) {
                let (ids, after) = rest.split_at(count as usize * size_of::<u32>());
                let (rows, after) = after.split_at(count as usize * self.width * size_of::<f32>());
                all.push(RowTerms { ids: pod_collect_to_vec(ids), rows: pod_collect_to_vec(rows) });
                rest = after;
            }
        }
        Ok((all, crossed))
    }

    /// Returns the terms of the rows that a rank holds, in their order.
    fn held_by(&self, rank: usize, terms: &RowTerms) -> RowTerms {
        let range = self.range(rank);
        let mut held = RowTerms::default();
        for (&id, row) in terms.ids.iter().zip(terms.rows.chunks_exact(self.width)) {
            if range.contains(&(id as usize)) {
                held.ids.push(id);
                held.rows.extend_from_slice(row);
            }
        }
        held
    }
}

/// Copies a row for each id.
pub(crate) fn taken<'r>(
    ids: &[u32],
    width: usize,
    row: impl Fn(u32) -> &'r [f32] + Sync,
) -> std::result::Result<AlignedBytes, NoHostMemory> {
    let mut rows = AlignedBytes::zeroed(ids.len() * width * size_of::<f32>())?;
    let tasks = rows.as_mut_slice::<f32>().par_chunks_mut(ROWS_A_TASK * width).zip(ids.par_chunks(ROWS_A_TASK));
    tasks.for_each(|(to, ids)| to.chunks_exact_mut(width).zip(ids).for_each(|(to, &id)| to.copy_from_slice(row(id))));
    Ok(rows)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ranks::RowStore;

    const WIDTH: usize = 3;

    #[test]
    fn rows_are_those_of_their_owners_and_terms_come_in_the_order_of_the_parts() {
        for offsets in [&[0, 20][..], &[0, 7, 20], &[0, 0, 9, 9, 20], &[0, 20, 20]] {
            let (count, n) = (offsets.len() - 1, *offsets.last().unwrap());
            let row = |id: u32, turn: u64| [0, 1, 2].map(|column| (id * 10 + column) as f32 + 1000.0 * turn as f32);
            let ids = |part: usize, turn: u64| -> Vec<u32> {
                (0..(part + turn as usize) % 4 * 5).map(|i| ((i * 7 + part * 5) % n) as u32).collect()
            };
            let term = |part: usize, turn: u64| {
                let ids = ids(part, turn);
                let rows = ids.iter().flat_map(|&id| [0, 1, 2].map(|c| (part * 100 + c) as f32 + id as f32)).collect();
                RowTerms { ids, rows }
            };
            std::thread::scope(|scope| {
                for ranks in Ranks::threads(count) {
                    scope.spawn(move || {
                        let me = ranks.rank();
                        let store = RowStore::new(&ranks, offsets.to_vec(), Vec::new().into(), 0);
                        let learned = LearnedRows::new(&ranks, offsets.to_vec(), WIDTH);
                        let series = store.begin();
                        for turn in 0..6 {
                            // The rows of each turn are others, as after an update.
                            let own: Vec<f32> =
                                (offsets[me]..offsets[me + 1]).flat_map(|id| row(id as u32, turn)).collect();
                            let both: Vec<u32> = [ids(2 * me, turn), ids(2 * me + 1, turn)].concat();
                            let (rows, crossed) = learned.pull(&series, turn, &both, &own).unwrap();
                            let want: Vec<f32> = both.iter().flat_map(|&id| row(id, turn)).collect();
                            assert_eq!(rows.unwrap().as_slice::<f32>(), want);
                            let is_own = |id: &u32| (offsets[me]..offsets[me + 1]).contains(&(*id as usize));
                            let distinct: std::collections::BTreeSet<u32> = both.into_iter().collect();
                            let asked = distinct.iter().filter(|id| !is_own(id)).count() as u64;
                            assert_eq!(crossed, Crossed { rows: asked, bytes: asked * 16 });
                            let terms = [term(2 * me, turn), term(2 * me + 1, turn)];
                            let (got, _) = learned.push(&series, turn, &terms).unwrap();
                            let want = (0..2 * count).map(|part| learned.held_by(me, &term(part, turn)));
                            assert_eq!(got, want.collect::<Vec<_>>());
                        }
                    });
                }
            });
        }
    }
}
