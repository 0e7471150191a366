//! Rows of vertices that change while a run trains. Each rank holds those of a range of ids. A batch pulls the rows that it
//! reads, and pushes their gradients back to the ranks that hold them.
//!
//! Letters have the series of the pulls of a [`RowStore`](super::RowStore), and subjects of their own, so that the thread
//! that computes may exchange rows while another one prepares later batches.

use bytemuck::{cast_slice, pod_collect_to_vec};
use lapidary_kernels::memory::{AlignedBytes, NoHostMemory};
use rayon::prelude::*;

use super::owners::Owners;
use super::{Pulls, Ranks, Subject};
use crate::error::{Error, Result};

/// Rows that one task copies.
const ROWS_A_TASK: usize = 256;

/// Which rank holds which learned rows.
#[derive(Debug)]
pub(crate) struct LearnedRows {
    owners: Owners,
    // Invariant: not 0.
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
    /// If `offsets` do not have the right length, or are not in order; if `width` is 0.
    pub(crate) fn new(ranks: &Ranks, offsets: Vec<usize>, width: usize) -> Self {
        assert!(width > 0, "a learned row has numbers");
        Self { owners: Owners::new(ranks, offsets), width }
    }

    /// Returns the rows of these ids, one after the other, as they are now. They may be repeated. `own` are the rows of
    /// this rank. All ranks have to call it with the same number, and none may change its rows before it has returned.
    ///
    /// # Errors
    /// [`Error::WrongLetter`]; [`Error::OtherRank`]; [`Error::WorkersGone`] if another thread ends the series meanwhile.
    /// # Cost
    /// One letter to each other rank with 4 bytes for each of its rows, and one back with 4 bytes for each number. Each row
    /// is sent once. O(ids log ids) time.
    pub(crate) fn pull(
        &self,
        pulls: &Pulls<'_>,
        number: u64,
        ids: &[u32],
        own: &[f32],
    ) -> Result<(std::result::Result<AlignedBytes, NoHostMemory>, Crossed)> {
        let (owners, width, series) = (&self.owners, self.width, pulls.series());
        let (asked, places) = owners.asked(ids);
        for to in self.others() {
            let wanted: &[u8] = cast_slice(&asked[to]);
            series.send(to, (Subject::LearnedIds, number), wanted.len(), std::iter::once(wanted));
        }
        let first = owners.own().start;
        let own_row = |id: u32| &own[(id as usize - first) * width..][..width];
        for from in self.others() {
            let content = series.wait(from, (Subject::LearnedIds, number))?;
            let wanted = self.wanted(&content).map_err(|why| wrong(from, why))?;
            if !wanted.is_empty() {
                let rows = wanted.iter().map(|&id| cast_slice(own_row(id)));
                let bytes = wanted.len() * width * size_of::<f32>();
                series.send(from, (Subject::LearnedRows, number), bytes, rows);
            }
        }
        let mut of_ranks: Vec<Vec<f32>> = vec![Vec::new(); owners.count()];
        let mut crossed = Crossed::default();
        for from in self.others().filter(|&rank| !asked[rank].is_empty()) {
            let content = series.wait(from, (Subject::LearnedRows, number))?;
            let count = asked[from].len();
            of_ranks[from] = self.answer(count, &content).map_err(|why| wrong(from, why))?;
            crossed.rows += count as u64;
            crossed.bytes += (size_of::<u32>() * count + content.len()) as u64;
        }
        let row = |at: usize| -> &[f32] {
            let owner = owners.owner(ids[at]);
            match owner == owners.rank() {
                true => own_row(ids[at]),
                false => &of_ranks[owner][places[at] as usize * width..][..width],
            }
        };
        Ok((copied(ids.len(), width, row), crossed))
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
    pub(crate) fn push(&self, pulls: &Pulls<'_>, number: u64, terms: &[RowTerms]) -> Result<(Vec<RowTerms>, Crossed)> {
        let series = pulls.series();
        let mut crossed = Crossed::default();
        for to in self.others() {
            let of_rank: Vec<RowTerms> = terms.iter().map(|terms| self.held_by(to, terms)).collect();
            let counts: Vec<u32> = of_rank.iter().map(|terms| terms.ids.len() as u32).collect();
            let pieces: Vec<&[u8]> = std::iter::once(cast_slice(&counts))
                .chain(of_rank.iter().flat_map(|terms| [cast_slice(&terms.ids), cast_slice(&terms.rows)]))
                .collect();
            let bytes = pieces.iter().map(|piece| piece.len()).sum();
            series.send(to, (Subject::LearnedTerms, number), bytes, pieces.into_iter());
            crossed.rows += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
            crossed.bytes += bytes as u64;
        }
        let mut all = Vec::new();
        for from in 0..self.owners.count() {
            if from == self.owners.rank() {
                all.extend(terms.iter().map(|terms| self.held_by(from, terms)));
                continue;
            }
            let content = series.wait(from, (Subject::LearnedTerms, number))?;
            all.extend(self.terms(terms.len(), &content).map_err(|why| wrong(from, why))?);
        }
        Ok((all, crossed))
    }

    /// Returns the other ranks.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.owners.rank();
        (0..self.owners.count()).filter(move |&other| other != rank)
    }

    /// Returns the terms of the rows that a rank holds, in their order.
    fn held_by(&self, rank: usize, terms: &RowTerms) -> RowTerms {
        let mut held = RowTerms::default();
        for (&id, row) in terms.ids.iter().zip(terms.rows.chunks_exact(self.width)) {
            if self.owners.owner(id) == rank {
                held.ids.push(id);
                held.rows.extend_from_slice(row);
            }
        }
        held
    }

    /// Reads ids of rows that this rank holds.
    fn wanted(&self, content: &[u8]) -> std::result::Result<Vec<u32>, String> {
        if !content.len().is_multiple_of(size_of::<u32>()) {
            return Err(format!("{} bytes are no list of vertices", content.len()));
        }
        let (ids, own): (Vec<u32>, _) = (pod_collect_to_vec(content), self.owners.own());
        match ids.iter().find(|&&id| !own.contains(&(id as usize))) {
            Some(id) => Err(format!("it is about the row of vertex {id}, which is not of this rank")),
            None => Ok(ids),
        }
    }

    /// Reads this number of rows.
    fn answer(&self, rows: usize, content: &[u8]) -> std::result::Result<Vec<f32>, String> {
        let bytes = rows * self.width * size_of::<f32>();
        match content.len() == bytes {
            true => Ok(pod_collect_to_vec(content)),
            false => Err(format!("{} bytes of rows came, not {bytes}", content.len())),
        }
    }

    /// Reads the gradients of the parts of another rank: how many rows each part has; then, by part, ids and rows.
    fn terms(&self, parts: usize, content: &[u8]) -> std::result::Result<Vec<RowTerms>, String> {
        let length = || format!("{} bytes are not the gradients of the rows that it names", content.len());
        let (counts, mut rest) = content.split_at_checked(parts * size_of::<u32>()).ok_or_else(length)?;
        let mut of_parts = Vec::with_capacity(parts);
        for count in pod_collect_to_vec::<u8, u32>(counts) {
            let row_count = count as usize;
            let (ids, after) = rest.split_at_checked(row_count * size_of::<u32>()).ok_or_else(length)?;
            let row_bytes = row_count.checked_mul(self.width * size_of::<f32>()).ok_or_else(length)?;
            let (rows, after) = after.split_at_checked(row_bytes).ok_or_else(length)?;
            of_parts.push(RowTerms { ids: self.wanted(ids)?, rows: pod_collect_to_vec(rows) });
            rest = after;
        }
        if rest.is_empty() { Ok(of_parts) } else { Err(length()) }
    }
}

fn wrong(rank: usize, why: String) -> Error {
    Error::WrongLetter { rank, why }
}

/// Copies a row for each id.
pub(crate) fn taken<'r>(
    ids: &[u32],
    width: usize,
    row: impl Fn(u32) -> &'r [f32] + Sync,
) -> std::result::Result<AlignedBytes, NoHostMemory> {
    copied(ids.len(), width, |at| row(ids[at]))
}

/// Copies the rows `0..count`.
fn copied<'r>(
    count: usize,
    width: usize,
    row: impl Fn(usize) -> &'r [f32] + Sync,
) -> std::result::Result<AlignedBytes, NoHostMemory> {
    let mut rows = AlignedBytes::zeroed(count * width * size_of::<f32>())?;
    let tasks = rows.as_mut_slice::<f32>().par_chunks_mut(ROWS_A_TASK * width).enumerate();
    tasks.for_each(|(task, to)| {
        to.chunks_exact_mut(width).zip(task * ROWS_A_TASK..).for_each(|(to, at)| to.copy_from_slice(row(at)));
    });
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

    #[test]
    fn letters_of_another_length_or_about_rows_of_others_are_refused() {
        let ranks = Ranks::threads(2);
        let learned = LearnedRows::new(&ranks[0], vec![0, 10, 20], WIDTH);
        let bytes = |numbers: &[u32]| -> Vec<u8> { cast_slice(numbers).to_vec() };
        let refused = |read: std::result::Result<(), String>, want: &str| {
            let why = read.unwrap_err();
            assert!(why.contains(want), "{why}, not {want}");
        };
        assert_eq!(learned.wanted(&bytes(&[9, 0])), Ok(vec![9, 0]));
        refused(learned.wanted(&[0; 5]).map(drop), "5 bytes are no list of vertices");
        refused(learned.wanted(&bytes(&[1, 10])).map(drop), "vertex 10, which is not of this rank");
        assert_eq!(learned.answer(2, &[0; 24]), Ok(vec![0.0; 6]));
        refused(learned.answer(2, &[0; 20]).map(drop), "20 bytes of rows came, not 24");
        // Two parts: no row, and one.
        let whole = bytes(&[0, 1, 7, 0, 0, 0]);
        let term = RowTerms { ids: vec![7], rows: vec![0.0; WIDTH] };
        assert_eq!(learned.terms(2, &whole), Ok(vec![RowTerms::default(), term]));
        for length in 0..whole.len() {
            refused(learned.terms(2, &whole[..length]).map(drop), "are not the gradients");
        }
        refused(learned.terms(2, &[&whole[..], &[0]].concat()).map(drop), "are not the gradients");
        refused(learned.terms(2, &bytes(&[0, u32::MAX, 7, 0, 0, 0])).map(drop), "are not the gradients");
        refused(learned.terms(2, &bytes(&[0, 1, 17, 0, 0, 0])).map(drop), "vertex 17, which is not of this rank");
    }

    #[test]
    fn a_wrong_letter_names_the_rank_that_sent_it() {
        std::thread::scope(|scope| {
            for ranks in Ranks::threads(2) {
                scope.spawn(move || {
                    let store = RowStore::new(&ranks, vec![0, 4, 8], Vec::new().into(), 0);
                    let learned = LearnedRows::new(&ranks, vec![0, 4, 8], WIDTH);
                    let pulls = store.begin();
                    if ranks.rank() == 1 {
                        for subject in [Subject::LearnedIds, Subject::LearnedTerms] {
                            pulls.series().send(0, (subject, 0), 3, std::iter::once(&[0u8; 3][..]));
                        }
                        return;
                    }
                    let pulled = learned.pull(&pulls, 0, &[], &[0.0; 4 * WIDTH]).map(drop);
                    let pushed = learned.push(&pulls, 0, &[RowTerms::default()]).map(drop);
                    for error in [pulled, pushed] {
                        assert!(matches!(error, Err(Error::WrongLetter { rank: 1, .. })), "{error:?}");
                    }
                });
            }
        });
    }
}
