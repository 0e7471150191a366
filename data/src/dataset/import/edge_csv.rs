//! Reads edges from a CSV file with quoted cells, record by record, by the rules of the `csv` crate (RFC 4180).

use std::cell::Cell;
use std::io::Read;
use std::rc::Rc;

use super::blocks::Records;
use super::sniff::Layout;
use super::text::{Counts, End, EndOf, Stop, Stopped, weight};
use crate::dataset::error::{Error, Result};

/// Passes all edges of a CSV text to `take` in order, with the weights in column `weights`, as [`super::text::each_edge`] does.
pub(super) fn each_record<T: for<'a> EndOf<'a>>(
    text: impl Read,
    file: &str,
    layout: &Layout,
    weights: Option<usize>,
    mut take: impl for<'a> FnMut(&[[<T as EndOf<'a>>::End; 2]], &[f32]) -> Result<()>,
) -> Result<std::result::Result<Counts, Stopped>> {
    let comments = Rc::new(Cell::new(0));
    let text = CountComments { text, at_start: true, count: comments.clone() };
    let (text, unbroken) = Records::new(text);
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .delimiter(layout.delimiter)
        .from_reader(text);
    let wrong = |why: String| Error::Import { file: file.into(), why };
    let header = layout.header.as_ref().map_or(0, |header| header.line);
    let (mut counts, mut started) = (Counts::default(), layout.header.is_some());
    let mut record = csv::ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|e| wrong(format!("cannot be read to its end: {e}")))? {
        unbroken.set(0);
        let line = record.position().map_or(0, csv::Position::line);
        if line <= header || record.iter().all(|cell| cell.trim_ascii().is_empty()) {
            continue;
        }
        // Such comments occur only above the titles and the edges. Further down, a cell may be a quoted `%`.
        if !started && record.get(0).is_some_and(|cell| cell.starts_with(b"%") || cell.starts_with(b"//")) {
            counts.comments += 1;
            continue;
        }
        started = true;
        // A run of blanks is one delimiter here, but several delimiters to the crate.
        let runs = layout.delimiter == b' ';
        let cells: Vec<&[u8]> = record.iter().filter(|cell| !runs || !cell.is_empty()).collect();
        let stopped = |stop| Ok(Err(Stopped::new(line, &cells.join(&layout.delimiter), stop)));
        let [Some(u), Some(v)] = layout.ends.map(|column| cells.get(column)) else { return stopped(Stop::OneEnd) };
        let edge = match (End::cell(u), End::cell(v)) {
            (Ok(u), Ok(v)) => [u, v],
            (Err(stop), _) | (_, Err(stop)) => return stopped(stop),
        };
        match weights.map(|column| weight(cells.get(column).copied().unwrap_or_default())) {
            None => take(&[edge], &[])?,
            Some(Ok(weight)) => take(&[edge], &[weight])?,
            Some(Err(stop)) => return stopped(stop),
        }
        let is_read = |column: &usize| layout.ends.contains(column) || weights == Some(*column);
        let others = (0..).zip(&cells).filter(|(column, _)| !is_read(column));
        counts.with_more += u64::from(others.clone().any(|(_, cell)| !cell.trim_ascii().is_empty()));
        counts.quoted_line_ends +=
            others.map(|(_, cell)| cell.iter().filter(|&&b| b == b'\n').count() as u64).sum::<u64>();
    }
    counts.comments += comments.get();
    Ok(Ok(counts))
}

/// Counts the lines that start with #, which the crate skips silently.
struct CountComments<R> {
    text: R,
    at_start: bool,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountComments<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.text.read(buffer)?;
        for &byte in &buffer[..bytes] {
            if self.at_start && byte == b'#' {
                self.count.set(self.count.get() + 1);
            }
            self.at_start = matches!(byte, b'\n' | b'\r');
        }
        Ok(bytes)
    }
}
