//! A store of rows that are spread over the ranks. Each rank holds the rows of a range of ids, and pulls those of others.
//!
//! A pull has two rounds of letters: ids go out, rows come back. The letter with the ids of a rank says by its length how
//! many there are, so no round is needed for counts. It also carries a note, which all ranks get.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use lapidary_kernels::Shared;
use lapidary_kernels::memory::{AlignedBytes, NoHostMemory};
use rayon::prelude::*;

use super::owners::Owners;
use super::series::{Ending, Series};
use super::{Ranks, Subject};
use crate::error::{Error, Result};

/// Rows that one task copies.
const ROWS_A_TASK: usize = 256;

/// Rows of f32 numbers, of which each rank holds those of a range of ids.
#[derive(Debug)]
pub(crate) struct RowStore {
    ranks: Ranks,
    owners: Owners,
    /// The rows of this rank.
    // Invariant: `width` numbers for each id of its range.
    own: Shared<f32>,
    width: usize,
}

/// A series of pulls, which all ranks make together: the same number of them, with the numbers 0, 1, and so on.
pub(crate) struct Pulls<'s> {
    store: &'s RowStore,
    series: Series,
}

/// The rows of one pull.
pub(crate) struct PulledRows<'s> {
    store: &'s RowStore,
    ids: Vec<u32>,
    /// For each id of another rank, the place of its row among those of that rank.
    places: Vec<u32>,
    /// The rows of each other rank that were asked for.
    of_ranks: Vec<Shared<u8>>,
    row_count: u64,
    /// The notes of all ranks, one after the other.
    pub notes: Vec<u8>,
    /// Rounds of letters: 2, or 1 if rows have no numbers.
    pub rounds: u64,
}

impl RowStore {
    /// Creates a store in which rank `r` holds the rows `offsets[r]..offsets[r + 1]`; `own` are those of this rank.
    ///
    /// With a width of 0 there are no rows, and a pull only exchanges notes.
    ///
    /// # Panics
    /// If `offsets` or `own` do not have the right length.
    pub(crate) fn new(ranks: &Ranks, offsets: Vec<usize>, own: Shared<f32>, width: usize) -> Self {
        let store = Self { ranks: ranks.clone(), owners: Owners::new(ranks, offsets), own, width };
        assert_eq!(store.own.len(), store.owners.own().len() * width, "a rank holds the rows of its range");
        store
    }

    /// Begins a series of pulls. All ranks have to begin the same series, in the same order.
    pub(crate) fn begin(&self) -> Pulls<'_> {
        Pulls { store: self, series: Series::begin(&self.ranks) }
    }

    /// Returns the distinct ids that each other rank is asked for, ascending; and for each of these ids the place of its
    /// row there, if it is of another rank.
    fn asked(&self, ids: &[u32]) -> (Vec<Vec<u32>>, Vec<u32>) {
        match self.width {
            0 => (vec![Vec::new(); self.ranks.count()], vec![0; ids.len()]),
            _ => self.owners.asked(ids),
        }
    }

    /// Returns a row of this rank.
    fn own_row(&self, id: u32) -> &[f32] {
        &self.own[(id as usize - self.owners.own().start) * self.width..][..self.width]
    }
}

impl<'s> Pulls<'s> {
    /// Pulls the rows of these ids. They may be repeated, and may be of this rank. Each row of another rank is sent once.
    /// All ranks have to call it with the same number, and with notes of the same length, in bytes.
    ///
    /// # Errors
    /// [`Error::WrongLetter`]; [`Error::OtherRank`]; [`Error::WorkersGone`] if another thread ends the series meanwhile.
    /// # Cost
    /// One letter to each other rank, with 4 bytes for each of its rows and the note; and one to each rank that asks for
    /// rows, with 4 bytes for each number. O(ids log ids) time.
    pub(crate) fn pull(&self, number: u64, ids: Vec<u32>, note: &[u8]) -> Result<PulledRows<'s>> {
        let Self { store, series } = self;
        let (ranks, width) = (&store.ranks, store.width);
        let (asked, places) = store.asked(&ids);
        for to in (0..ranks.count()).filter(|&rank| rank != ranks.rank()) {
            let ids: &[u8] = cast_slice(&asked[to]);
            series.send(to, (Subject::Ids, number), note.len() + ids.len(), [note, ids].into_iter());
        }
        let mut notes = Vec::with_capacity(ranks.count() * note.len());
        for from in 0..ranks.count() {
            if from == ranks.rank() {
                notes.extend_from_slice(note);
                continue;
            }
            let content = series.wait(from, (Subject::Ids, number))?;
            let Some((said, wanted)) = content.split_at_checked(note.len()) else {
                return Err(wrong(from, format!("it has {} bytes, fewer than a note", content.len())));
            };
            notes.extend_from_slice(said);
            let wanted = store.owners.wanted(from, wanted)?;
            if !wanted.is_empty() {
                let rows = wanted.iter().map(|&id| cast_slice(store.own_row(id)));
                series.send(from, (Subject::Pulled, number), wanted.len() * width * size_of::<f32>(), rows);
            }
        }
        let pulled = asked.iter().enumerate().map(|(from, asked)| match asked.len() * width * size_of::<f32>() {
            0 => Ok(Vec::new().into()),
            bytes => {
                let rows = series.wait(from, (Subject::Pulled, number))?;
                let why = || format!("it has {} bytes, but the rows have {bytes}", rows.len());
                if rows.len() == bytes { Ok(rows) } else { Err(wrong(from, why())) }
            }
        });
        let of_ranks = pulled.collect::<Result<_>>()?;
        let row_count = asked.iter().map(|asked| asked.len() as u64).sum();
        Ok(PulledRows { store, ids, places, of_ranks, row_count, notes, rounds: 1 + u64::from(width > 0) })
    }

    /// Returns the series, for letters of other subjects that belong to the same batches.
    pub(super) fn series(&self) -> &Series {
        &self.series
    }

    /// Returns a guard that ends the series when it is dropped: a pull that waits in another thread then ends with an
    /// error.
    pub(crate) fn ending(&self) -> Ending<'_> {
        self.series.ending()
    }
}

fn wrong(rank: usize, why: String) -> Error {
    Error::WrongLetter { rank, why }
}

impl PulledRows<'_> {
    /// Returns the number of rows that came from other ranks.
    pub(crate) fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Returns the bytes of these rows, and of their ids.
    pub(crate) fn bytes(&self) -> u64 {
        self.row_count * (4 + 4 * self.store.width as u64)
    }

    /// Returns a matrix with the rows of some of the ids that were given to the pull, in their order.
    ///
    /// # Errors
    /// [`NoHostMemory`].
    /// # Cost
    /// O(width + log ranks) for each row.
    pub(crate) fn matrix(&self, ids: Range<usize>) -> std::result::Result<AlignedBytes, NoHostMemory> {
        let width = self.store.width;
        let mut rows = AlignedBytes::zeroed(ids.len() * width * size_of::<f32>())?;
        if width > 0 {
            let tasks = rows
                .as_mut_slice::<f32>()
                .par_chunks_mut(ROWS_A_TASK * width)
                .zip(ids.into_par_iter().step_by(ROWS_A_TASK));
            tasks.for_each(|(to, first)| {
                to.chunks_exact_mut(width).zip(first..).for_each(|(to, at)| self.copy(at, to));
            });
        }
        Ok(rows)
    }

    /// Copies the row of the id at a place of the pull.
    fn copy(&self, at: usize, to: &mut [f32]) {
        let (store, id) = (self.store, self.ids[at]);
        let owner = store.owners.owner(id);
        if owner == store.ranks.rank() {
            return to.copy_from_slice(store.own_row(id));
        }
        let row_bytes = store.width * size_of::<f32>();
        let start = self.places[at] as usize * row_bytes;
        cast_slice_mut(to).copy_from_slice(&self.of_ranks[owner][start..start + row_bytes]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ranks::{Letter, Sent};

    const WIDTH: usize = 3;

    fn row(id: u32) -> [f32; WIDTH] {
        [0, 1, 2].map(|column| (id * 10 + column) as f32)
    }

    fn store(ranks: &Ranks, offsets: &[usize]) -> RowStore {
        let own: Vec<f32> = (offsets[ranks.rank()]..offsets[ranks.rank() + 1]).flat_map(|id| row(id as u32)).collect();
        RowStore::new(ranks, offsets.to_vec(), own.into(), WIDTH)
    }

    /// Runs `work` on each rank, and returns the results by rank.
    fn on_ranks<T: Send>(count: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let ranks = Ranks::threads(count).into_iter();
            let threads: Vec<_> = ranks.map(|ranks| scope.spawn(move || work(ranks))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// The ids that a rank asks for: repeated, own ones, and none in some pulls.
    fn wanted(rank: usize, pull: u64, count: usize) -> Vec<u32> {
        let draw = |i: usize| ((i * 7 + rank * 5 + pull as usize * 3) % count) as u32;
        (0..(rank + pull as usize) % 4 * 6).map(draw).collect()
    }

    fn assert_rows(pulled: &PulledRows<'_>, ids: &[u32]) {
        for places in [0..ids.len(), ids.len() / 3..ids.len()] {
            let want: Vec<f32> = ids[places.clone()].iter().flat_map(|&id| row(id)).collect();
            assert_eq!(pulled.matrix(places).unwrap().as_slice::<f32>(), want);
        }
    }

    #[test]
    fn each_rank_gets_the_rows_and_notes_and_each_row_is_sent_once() {
        // Ranks without rows are the first, the last, and between others.
        for offsets in [&[0, 20][..], &[0, 7, 20], &[0, 0, 9, 9, 20], &[0, 20, 20], &[0, 0, 0]] {
            let (count, n) = (offsets.len() - 1, *offsets.last().unwrap());
            let owner = |id: usize| (0..count).find(|&rank| (offsets[rank]..offsets[rank + 1]).contains(&id)).unwrap();
            let pulls = if n == 0 { 0 } else { 9 };
            let all_sent = on_ranks(count, |ranks| {
                let (store, rank) = (store(&ranks, offsets), ranks.rank());
                let series = store.begin();
                for pull in 0..pulls {
                    let ids = wanted(rank, pull, n);
                    let pulled = series.pull(pull, ids.clone(), &[rank as u8, pull as u8]).unwrap();
                    assert_rows(&pulled, &ids);
                    let notes: Vec<u8> = (0..count as u8).flat_map(|rank| [rank, pull as u8]).collect();
                    assert_eq!((pulled.notes, pulled.rounds), (notes, 2));
                }
                ranks.sent()
            });
            // What is sent, counted one by one: a letter and a note to each other rank, ids there, and rows back.
            let mut want = vec![vec![Sent::default(); count]; count];
            let mut send = |from: usize, to: usize, bytes: usize| {
                want[from][to].messages += 1;
                want[from][to].bytes += (size_of::<Letter>() + bytes) as u64;
            };
            for (pull, rank) in (0..pulls).flat_map(|pull| (0..count).map(move |rank| (pull, rank))) {
                let ids: std::collections::BTreeSet<u32> = wanted(rank, pull, n).into_iter().collect();
                for to in (0..count).filter(|&to| to != rank) {
                    let asked = ids.iter().filter(|id| owner(**id as usize) == to).count();
                    send(rank, to, 2 + 4 * asked);
                    if asked > 0 {
                        send(to, rank, 4 * WIDTH * asked);
                    }
                }
            }
            assert_eq!(all_sent, want, "{offsets:?}");
        }
    }

    #[test]
    fn rows_without_numbers_need_one_round() {
        on_ranks(3, |ranks| {
            let store = RowStore::new(&ranks, vec![0, 2, 4, 9], Vec::new().into(), 0);
            let series = store.begin();
            let pulled = series.pull(0, vec![1, 3, 8], &[ranks.rank() as u8]).unwrap();
            assert_eq!((pulled.rounds, pulled.row_count(), pulled.bytes()), (1, 0, 0));
            assert!(pulled.notes == [0, 1, 2] && pulled.matrix(0..3).unwrap().is_empty());
        });
    }

    #[test]
    fn letters_of_a_series_that_ended_early_are_not_those_of_the_next() {
        on_ranks(2, |ranks| {
            let store = store(&ranks, &[0, 5, 10]);
            let other = 5 - 5 * ranks.rank() as u32;
            for round in 0..50 {
                {
                    let series = store.begin();
                    let _ending = series.ending();
                    let pulled = series.pull(0, vec![other], &[round]).unwrap();
                    assert_rows(&pulled, &[other]);
                    if ranks.is_first() {
                        // The other rank does not take part, and may be in the next series already.
                        std::thread::scope(|scope| {
                            let waiting = scope.spawn(|| series.pull(1, vec![other + 1], &[99]).map(drop));
                            drop(series.ending());
                            assert!(matches!(waiting.join().unwrap(), Err(Error::WorkersGone)));
                        });
                    }
                }
                let series = store.begin();
                let pulled = series.pull(0, vec![other + 2], &[100 + round]).unwrap();
                assert_rows(&pulled, &[other + 2]);
                assert_eq!(pulled.notes, [100 + round; 2]);
            }
        });
    }

    #[test]
    fn a_rank_that_fails_wakes_those_that_wait_for_its_rows() {
        on_ranks(3, |ranks| {
            let store = store(&ranks, &[0, 2, 4, 9]);
            let series = store.begin();
            let first = series.pull(0, vec![0, 3, 8], &[]).map(drop);
            if ranks.rank() == 1 {
                first.unwrap();
                ranks.fail(&Error::Alone);
                return;
            }
            // The failure may be told before the letters of the third rank arrive.
            let failed = first.and_then(|()| series.pull(1, vec![3], &[]).map(drop));
            assert!(matches!(failed, Err(Error::OtherRank { rank: 1, .. })), "{failed:?}");
        });
    }

    #[test]
    fn wrong_letters_are_errors() {
        // The other rank asks for a row that this one does not have, says too little, or sends no whole row.
        let sent = [
            (Subject::Ids, &[1, 2, 7, 0, 0, 0][..], "vertex 7"),
            (Subject::Ids, &[1, 2, 1, 0, 0], "no list"),
            (Subject::Ids, &[1], "fewer than a note"),
            (Subject::Pulled, &[0; 11], "the rows have 12"),
        ];
        for (subject, content, why) in sent {
            on_ranks(2, |ranks| {
                let store = store(&ranks, &[0, 5, 10]);
                let series = store.begin();
                if ranks.is_first() {
                    let error = series.pull(0, vec![6], &[1, 2]).map(drop).unwrap_err();
                    assert!(matches!(&error, Error::WrongLetter { rank: 1, .. }), "{error}");
                    assert!(error.to_string().contains(why), "{error}");
                } else {
                    if subject == Subject::Pulled {
                        series.series.send(0, (Subject::Ids, 0), 2, std::iter::once(&[1, 2][..]));
                    }
                    series.series.send(0, (subject, 0), content.len(), std::iter::once(content));
                }
            });
        }
    }
}
