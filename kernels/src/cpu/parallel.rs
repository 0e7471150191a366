//! Splitting work into tasks. Splits that decide the order of a sum depend on sizes alone, never on the number of
//! threads.

use std::ops::Range;

use parking_lot::Mutex;

use crate::team;
pub(super) use crate::team::for_each;

/// Elements per task of an elementwise kernel: three arrays of this size fit the second-level cache.
pub(super) const CHUNK: usize = 1 << 14;

/// Returns the number of rows in one part of a sum.
pub(super) fn rows_of_part(classes: usize) -> usize {
    (CHUNK / classes.max(1)).max(16)
}

/// Tasks per thread. Several are needed so that one slow task does not keep the other threads waiting.
const TASKS_PER_THREAD: usize = 8;

/// Most shares of chunks per thread.
const TURNS_OF_THREAD: usize = 32;

/// Does [`for_each`] for tasks that may fail. After a failure, tasks that have not begun are skipped.
///
/// # Errors
/// The error of one of the failed tasks.
pub(super) fn try_for_each<T: Send, E: Send>(
    tasks: impl ExactSizeIterator<Item = T>,
    f: impl Fn(T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let failed = Mutex::new(None);
    for_each(tasks, |task| {
        if failed.lock().is_some() {
            return;
        }
        if let Err(error) = f(task) {
            *failed.lock() = Some(error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Calls `f(first, part)` for consecutive parts of `out` of at most `chunk` elements. `first` is the index of the
/// part's first element.
pub(super) fn for_chunks<T: Send>(out: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let chunk = chunk.max(1);
    let turns = TURNS_OF_THREAD * team::threads();
    let share = out.len().div_ceil(chunk).div_ceil(turns).max(1) * chunk;
    for_each(out.chunks_mut(share).enumerate(), |(i, part)| {
        for (j, part) in part.chunks_mut(chunk).enumerate() {
            f(i * share + j * chunk, part);
        }
    });
}

/// Calls `f(first_row, rows)` for consecutive rows of a row-major matrix with `cols` columns.
pub(super) fn for_rows<T: Send>(out: &mut [T], cols: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let cols = cols.max(1);
    let rows = (CHUNK / cols).max(1);
    for_chunks(out, rows * cols, |first, part| f(first / cols, part));
}

/// Splits `0..n` into ranges of length `chunk` and returns one value per range, in order.
pub(super) fn map_chunks<R: Send>(n: usize, chunk: usize, f: impl Fn(Range<usize>) -> R + Sync) -> Vec<R> {
    let chunk = chunk.max(1);
    let range = |i: usize| i * chunk..((i + 1) * chunk).min(n);
    let mut values: Vec<Option<R>> = (0..n.div_ceil(chunk)).map(|_| None).collect();
    for_each(values.iter_mut().enumerate(), |(i, value)| *value = Some(f(range(i))));
    values.into_iter().flatten().collect()
}

/// Returns how many tasks to split `work` units into, when a task should have at least `least` units.
pub(super) fn task_count(work: usize, least: usize) -> usize {
    (work / least.max(1)).clamp(1, TASKS_PER_THREAD * team::threads())
}

/// Splits the rows of a block into consecutive ranges of nearly equal edges + rows.
///
/// # Returns
/// At most `parts` non-empty ranges that cover `0..n` in order. Rows are not split; a row with very many edges can be a
/// range of its own.
pub(super) fn balanced_rows(indptr: &[u64], parts: usize) -> Vec<Range<usize>> {
    let n = indptr.len().saturating_sub(1);
    let Some(&edges) = indptr.last() else { return Vec::new() };
    let total = u128::from(edges) + n as u128;
    let mut ranges = Vec::with_capacity(parts);
    let mut low = 0;
    for part in 1..=parts {
        let target = total * part as u128 / parts as u128;
        let high = if part == parts { n } else { first_at_least(indptr, target).clamp(low, n) };
        if low < high {
            ranges.push(low..high);
            low = high;
        }
    }
    ranges
}

/// Returns the first `v` with `indptr[v] + v >= target`.
fn first_at_least(indptr: &[u64], target: u128) -> usize {
    let (mut low, mut high) = (0, indptr.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if u128::from(indptr[middle]) + (middle as u128) < target { low = middle + 1 } else { high = middle }
    }
    low
}

/// Splits `out` at the given ends. The ends must not decrease. Ends past the slice are cut off.
pub(super) fn split_at_ends<T>(mut out: &mut [T], ends: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    let mut parts = Vec::new();
    let mut start = 0;
    for end in ends {
        let len = end.saturating_sub(start).min(out.len());
        let (part, rest) = out.split_at_mut(len);
        parts.push(part);
        out = rest;
        start = end.max(start);
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::team::Team;

    #[test]
    fn chunks_cover_all_in_order_in_a_team_of_any_size_and_in_none() {
        let all = |count: usize| {
            let mut cells = vec![0; count];
            for_chunks(&mut cells, 3, |first, part| {
                part.iter_mut().enumerate().for_each(|(i, cell)| *cell += first + i);
            });
            assert_eq!(cells, (0..count).collect::<Vec<_>>());
            assert_eq!(map_chunks(count, 3, |range| range).into_iter().flatten().collect::<Vec<_>>(), cells);
        };
        for threads in [1, 2, 5] {
            let team = Arc::new(Team::new(threads, team::ALONE).expect("the host has threads"));
            team.install(|| [0, 1, 2, 7, 1000].into_iter().for_each(all));
        }
        [0, 1, 2, 7, 1000].into_iter().for_each(all);
    }

    #[test]
    fn a_failure_is_told_and_ends_what_has_not_begun() {
        assert_eq!(try_for_each(0..100, |_| Ok::<_, usize>(())), Ok(()));
        assert_eq!(try_for_each(0..100, |i| if i == 40 { Err(i) } else { Ok(()) }), Err(40));
        let one = Arc::new(Team::new(1, team::ALONE).expect("no thread is needed"));
        let begun = std::sync::atomic::AtomicUsize::new(0);
        let third = |i: usize| {
            begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if i == 2 { Err(i) } else { Ok(()) }
        };
        assert_eq!(one.install(|| try_for_each(0..100, third)), Err(2));
        assert_eq!(begun.into_inner(), 3);
    }

    #[test]
    fn balanced_rows_visit_every_row_once() {
        let blocks: [&[u64]; 6] = [&[], &[0], &[0, 0], &[0, 9, 9, 9], &[0, 0, 0, 9], &[0, 1, 2, 3, 4, 5, 6, 7]];
        for indptr in blocks {
            for parts in 1..6 {
                let ranges = balanced_rows(indptr, parts);
                let rows: Vec<usize> = ranges.iter().cloned().flatten().collect();
                assert_eq!(rows, (0..indptr.len().saturating_sub(1)).collect::<Vec<_>>());
                assert!(ranges.len() <= parts && ranges.iter().all(|r| !r.is_empty()));
            }
        }
    }

    #[test]
    fn balanced_rows_are_balanced() {
        let indptr: Vec<u64> = (0..=1000).map(|v| v * 3).collect();
        for range in balanced_rows(&indptr, 8) {
            assert!((124..=126).contains(&range.len()), "{range:?}");
        }
    }

    #[test]
    fn split_at_ends_never_panics_on_falling_ends() {
        let mut values = [1, 2, 3, 4];
        let parts = split_at_ends(&mut values, [3, 1, 9].into_iter());
        assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [3, 0, 1]);
    }
}
