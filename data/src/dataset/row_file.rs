//! Reads single rows of a file that is larger than memory.
//!
//! Reads go past the system's cache of pages, where the file system allows that: a row is far smaller than a page, so
//! pages would fill memory with rows that nobody asked for. The caller keeps the rows that it needs often.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use super::error::{Error, Result};
use crate::plain_file;

/// Unit of reads, and their alignment. Disks read no less.
const PAGE: u64 = 4096;

/// The longest read. Longer ones are no faster.
const MOST_BYTES: u64 = 256 << 10;

/// The most reads that one thread takes at a time. Together they have at most [`MOST_BYTES`], unless a single one is
/// longer: rows that have been read wait for the caller in memory that no plan counts.
const READS_A_TASK: usize = 16;

/// Reads that are under way at once. A disk needs some tens of them to be as fast as it can be.
const THREADS: usize = 32;

/// A matrix in a file, whose rows are read one by one.
#[derive(Debug)]
pub struct RowFile {
    file: File,
    path: PathBuf,
    /// Where the rows begin, in bytes.
    first: u64,
    row_bytes: u64,
    rows: u64,
}

/// One read: whole pages, which hold some of the rows that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    /// Places of the rows in the list.
    rows: Range<usize>,
    bytes: Range<u64>,
}

impl RowFile {
    /// Opens a file with `rows` rows of `row_bytes`, which begin at byte `first`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn open(path: &Path, first: u64, rows: u64, row_bytes: u64) -> Result<Self> {
        let file = plain_file::open_uncached(path).map_err(Error::io("open", path))?;
        Ok(Self { file, path: path.into(), first, row_bytes, rows })
    }

    /// Returns the bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Returns the bytes that [`RowFile::read`] reads for these rows, which ascend.
    ///
    /// # Cost
    /// O(rows).
    pub fn bytes_for(&self, rows: &[u32]) -> u64 {
        self.reads(rows).iter().map(|read| read.bytes.end - read.bytes.start).sum()
    }

    /// Reads rows, whose numbers ascend, and calls `take` with the place of each in the list and its bytes, in any
    /// order. Returns the number of bytes that were read.
    ///
    /// # Errors
    /// [`Error::Io`], also if the file has become shorter.
    /// # Panics
    /// If there is no such row.
    /// # Cost
    /// O(rows), and a read of one or more pages for each row that shares no page with another one.
    pub fn read(&self, rows: &[u32], mut take: impl FnMut(usize, &[u8])) -> Result<u64> {
        assert!(rows.last().is_none_or(|&row| u64::from(row) < self.rows), "the rows are of this file");
        let reads = self.reads(rows);
        let tasks = tasks(&reads);
        let next = AtomicUsize::new(0);
        let row_bytes = self.row_bytes as usize;
        std::thread::scope(|scope| {
            let (done, arrived) = sync_channel(2 * THREADS);
            for _ in 0..THREADS.min(tasks.len()) {
                let (done, next, tasks) = (done.clone(), &next, &tasks);
                scope.spawn(move || self.work(rows, tasks, next, &done));
            }
            drop(done);
            let mut bytes = 0;
            // After an error, the other threads find that nobody listens.
            for task in arrived {
                let (first, contents, read) = task.map_err(Error::io("read rows of", &self.path))?;
                bytes += read;
                contents.chunks_exact(row_bytes).zip(first..).for_each(|(row, place)| take(place, row));
            }
            Ok(bytes)
        })
    }

    /// Takes tasks until there are no more: reads, and passes on the place of the first row, the rows, and the number of
    /// bytes that were read.
    fn work(
        &self,
        rows: &[u32],
        tasks: &[&[Read]],
        next: &AtomicUsize,
        done: &SyncSender<io::Result<(usize, Vec<u8>, u64)>>,
    ) {
        let mut pages = Pages::default();
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let places = task.first().map_or(0, |read| read.rows.start)..task.last().map_or(0, |read| read.rows.end);
            let mut contents = Vec::with_capacity(places.len() * self.row_bytes as usize);
            let mut read_bytes = 0;
            let read_all = task.iter().try_for_each(|read| {
                let needed = self.end_of(rows[read.rows.end - 1]) - read.bytes.start;
                let bytes = pages.read(&self.file, &read.bytes, needed as usize)?;
                read_bytes += read.bytes.end - read.bytes.start;
                for &row in &rows[read.rows.clone()] {
                    let start = (self.start_of(row) - read.bytes.start) as usize;
                    contents.extend_from_slice(&bytes[start..start + self.row_bytes as usize]);
                }
                Ok(())
            });
            let failed = read_all.is_err();
            if done.send(read_all.map(|()| (places.start, contents, read_bytes))).is_err() || failed {
                return;
            }
        }
    }

    fn start_of(&self, row: u32) -> u64 {
        self.first + u64::from(row) * self.row_bytes
    }

    fn end_of(&self, row: u32) -> u64 {
        self.start_of(row) + self.row_bytes
    }

    /// Returns the reads for some rows. Rows whose pages touch share a read, up to [`MOST_BYTES`]. If a row lies across the
    /// end of such a read, the next one begins with a page that this one has as well.
    fn reads(&self, rows: &[u32]) -> Vec<Read> {
        let mut reads: Vec<Read> = Vec::new();
        for (place, &row) in rows.iter().enumerate() {
            let bytes = self.start_of(row) / PAGE * PAGE..self.end_of(row).next_multiple_of(PAGE);
            match reads.last_mut() {
                Some(last) if bytes.start <= last.bytes.end && bytes.end - last.bytes.start <= MOST_BYTES => {
                    last.bytes.end = bytes.end.max(last.bytes.end);
                    last.rows.end = place + 1;
                }
                _ => reads.push(Read { rows: place..place + 1, bytes }),
            }
        }
        reads
    }
}

/// Divides reads into those that one thread takes at a time.
fn tasks(mut reads: &[Read]) -> Vec<&[Read]> {
    let mut tasks = Vec::new();
    while !reads.is_empty() {
        let mut bytes = 0;
        let fits = |read: &&Read| {
            bytes += read.bytes.end - read.bytes.start;
            bytes <= MOST_BYTES
        };
        let (task, others) = reads.split_at(reads.iter().take(READS_A_TASK).take_while(fits).count().max(1));
        tasks.push(task);
        reads = others;
    }
    tasks
}

/// Memory that begins at a page, as reads past the system's cache need it.
#[derive(Default)]
struct Pages(Vec<u8>);

impl Pages {
    /// Reads a range of a file. At least the first `needed` bytes have to be there.
    fn read(&mut self, file: &File, range: &Range<u64>, needed: usize) -> io::Result<&[u8]> {
        let len = (range.end - range.start) as usize;
        if self.0.len() < len + PAGE as usize {
            self.0.resize(len + PAGE as usize, 0);
        }
        let aligned = self.0.as_ptr().align_offset(PAGE as usize);
        let pages = &mut self.0[aligned..aligned + len];
        let mut have = 0;
        while have < needed {
            match read_at(file, &mut pages[have..], range.start + have as u64) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has become shorter")),
                Ok(bytes) => have += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pages)
    }
}

#[cfg(unix)]
fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(windows)]
fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Writes rows whose bytes are known, behind `first` other bytes.
    fn file(first: usize, rows: usize, row_bytes: usize) -> (tempfile::NamedTempFile, RowFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; first]).unwrap();
        let contents: Vec<u8> = (0..rows * row_bytes).map(|at| byte(at / row_bytes, at % row_bytes)).collect();
        file.write_all(&contents).unwrap();
        let opened = RowFile::open(file.path(), first as u64, rows as u64, row_bytes as u64).unwrap();
        (file, opened)
    }

    fn byte(row: usize, column: usize) -> u8 {
        (row * 31 + column * 7) as u8
    }

    #[test]
    fn rows_of_any_size_are_read_wherever_they_are() {
        for (first, rows, row_bytes) in [(128, 3000, 400), (80, 2000, 4), (128, 40, 9000), (64, 12, 300_000)] {
            let (_kept, file) = file(first, rows, row_bytes);
            let every = |n: usize| (0..rows as u32).step_by(n).collect::<Vec<_>>();
            let lists = [every(1), every(7), every(97), vec![0], vec![rows as u32 - 1], vec![]];
            for list in lists {
                let mut got = vec![Vec::new(); list.len()];
                let bytes = file.read(&list, |place, row| got[place] = row.to_vec()).unwrap();
                for (row, got) in list.iter().zip(got) {
                    let want: Vec<u8> = (0..row_bytes).map(|column| byte(*row as usize, column)).collect();
                    assert!(got == want, "row {row} of {row_bytes} bytes");
                }
                assert_eq!(bytes, file.bytes_for(&list));
                assert!(bytes >= (list.len() * row_bytes) as u64);
            }
        }
    }

    #[test]
    fn rows_that_share_pages_share_a_read() {
        let (_kept, file) = file(128, 1000, 400);
        assert_eq!(file.bytes_for(&[0]), PAGE);
        assert_eq!(file.bytes_for(&[0, 1, 2]), PAGE, "the same page");
        assert_eq!(file.bytes_for(&[9]), 2 * PAGE, "a row on two pages");
        assert_eq!(file.bytes_for(&[0, 9]), 2 * PAGE);
        assert_eq!(file.bytes_for(&[0, 25]), 2 * PAGE, "two reads");
        let all: Vec<u32> = (0..1000).collect();
        assert_eq!(file.reads(&all).len(), 2, "a long read is split");
        // A row lies across the cut, so the page before it is read twice.
        assert_eq!(file.bytes_for(&all), (128 + 400_000u64).next_multiple_of(PAGE) + PAGE);
    }

    #[test]
    fn a_thread_never_holds_many_long_reads() {
        // Rows side by side; single rows, which are one page or two each; and rows that are longer than any read.
        for (rows, row_bytes, step) in [(20_000, 400, 1), (20_000, 400, 50), (12, 300_000, 1)] {
            let (_kept, file) = file(128, rows, row_bytes);
            let reads = file.reads(&(0..rows as u32).step_by(step).collect::<Vec<_>>());
            let tasks = tasks(&reads);
            assert!(tasks.concat() == reads, "every read is taken once, in order");
            for task in tasks {
                let bytes: u64 = task.iter().map(|read| read.bytes.end - read.bytes.start).sum();
                assert!(task.len() == 1 || task.len() <= READS_A_TASK && bytes <= MOST_BYTES, "{} reads", task.len());
            }
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let (kept, file) = file(128, 1000, 400);
        kept.as_file().set_len(200_000).unwrap();
        let all: Vec<u32> = (0..1000).collect();
        let error = file.read(&all, |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("cannot read rows of"), "{error}");
        assert!(std::error::Error::source(&error).is_some_and(|why| why.to_string() == "it has become shorter"));
        assert!(file.read(&[0, 400], |_, _| {}).is_ok(), "rows before the end are there");
    }
}
