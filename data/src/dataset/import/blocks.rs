//! Reads text in blocks of whole lines, whatever the line ending.

use std::cell::Cell;
use std::io::Read;
use std::rc::Rc;

use crate::dataset::error::{Error, Result};

/// Bytes read at a time. A longer line is refused.
pub(super) const BLOCK_BYTES: usize = 8 << 20;
/// The smallest piece of text that is worth a thread.
const PIECE_BYTES: usize = 1 << 16;
/// The mark that some programs write before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A reader of whole lines, one block at a time. A line ends with `\n`, `\r\n` or `\r`. A byte order mark is skipped.
pub(super) struct Blocks<R> {
    from: R,
    /// The start of a line whose end has not been read yet.
    rest: Vec<u8>,
    returned: Option<Vec<u8>>,
    started: bool,
    done: bool,
    file: String,
}

impl<R: Read> Blocks<R> {
    /// Reads the lines of `from`; `file` names it in errors.
    pub(super) fn new(from: R, file: String) -> Self {
        Self { from, rest: Vec::new(), returned: None, started: false, done: false, file }
    }

    /// Gives back lines, which the next call of [`Blocks::next`] returns.
    pub(super) fn put_back(&mut self, lines: Vec<u8>) {
        self.returned = Some(lines);
    }

    /// Returns the next lines without the last line ending, or `None` at the end. Within them, each line ends with `\n`
    /// or `\r\n`.
    ///
    /// # Errors
    /// A source that cannot be read, a line of more than [`BLOCK_BYTES`], or text in UTF-16.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(lines) = self.returned.take() {
            return Ok(Some(lines));
        }
        if self.done {
            return Ok(None);
        }
        let have = self.rest.len();
        let mut block = std::mem::take(&mut self.rest);
        let room = BLOCK_BYTES - have;
        if self.started {
            // The first block was full. Most files have no second one, and are much smaller than a block.
            block.reserve_exact(room);
        }
        let read = self.from.by_ref().take(room as u64).read_to_end(&mut block);
        read.map_err(|e| self.wrong(format!("cannot be read to its end: {e}")))?;
        self.done = block.len() < BLOCK_BYTES;
        if !self.started {
            self.started = true;
            if block.starts_with(b"\xff\xfe") || block.starts_with(b"\xfe\xff") {
                return Err(self.wrong("is UTF-16 text; save it as UTF-8".into()));
            }
            if block.starts_with(BYTE_ORDER_MARK) {
                block.drain(..BYTE_ORDER_MARK.len());
            }
        }
        // The `\n` of a `\r\n` may be in this block and its `\r` in the one before.
        end_lines(&mut block, have.saturating_sub(1), self.done);
        if self.done {
            return Ok(Some(block));
        }
        match memchr::memrchr(b'\n', &block) {
            Some(end) => {
                self.rest = block[end + 1..].to_vec();
                block.truncate(end);
                Ok(Some(block))
            }
            None => Err(self.wrong(format!("has a line of more than {} MiB", BLOCK_BYTES >> 20))),
        }
    }

    fn wrong(&self, why: String) -> Error {
        Error::Import { file: self.file.clone(), why }
    }
}

/// Replaces each `\r` that is not followed by `\n` with `\n`, from byte `start` on. The last byte is left alone unless
/// the text ends there.
fn end_lines(block: &mut [u8], start: usize, ends: bool) {
    let mut at = start.min(block.len());
    while let Some(found) = memchr::memchr(b'\r', &block[at..]) {
        at += found;
        match block.get(at + 1) {
            Some(b'\n') => {}
            None if !ends => {}
            _ => block[at] = b'\n',
        }
        at += 1;
    }
}

/// A text whose records are read by the `csv` crate, which would hold a record without end: one whose quote is never
/// closed.
pub(super) struct Records<R> {
    text: R,
    /// Bytes read since the last record.
    unbroken: Rc<Cell<usize>>,
}

impl<R> Records<R> {
    /// Returns the text, and the counter that its reader sets to 0 after each record.
    pub(super) fn new(text: R) -> (Self, Rc<Cell<usize>>) {
        let unbroken = Rc::new(Cell::new(0));
        (Self { text, unbroken: unbroken.clone() }, unbroken)
    }
}

impl<R: Read> Read for Records<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.unbroken.get() > BLOCK_BYTES {
            let why = format!("a record has more than {} MiB; is a quote left open?", BLOCK_BYTES >> 20);
            return Err(std::io::Error::other(why));
        }
        let bytes = self.text.read(buffer)?;
        self.unbroken.set(self.unbroken.get() + bytes);
        Ok(bytes)
    }
}

/// Cuts a block of lines into pieces for threads.
pub(super) fn cut(block: &[u8]) -> Vec<&[u8]> {
    let len = block.len().div_ceil(4 * rayon::current_num_threads()).max(PIECE_BYTES);
    let mut pieces = Vec::new();
    let mut rest = block;
    while rest.len() > len {
        let Some(end) = memchr::memchr(b'\n', &rest[len..]).map(|at| len + at) else { break };
        pieces.push(&rest[..end]);
        rest = &rest[end + 1..];
    }
    pieces.push(rest);
    pieces
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<String> {
        let mut blocks = Blocks::new(text, "text".into());
        let mut all = Vec::new();
        while let Some(block) = blocks.next().unwrap() {
            all.extend(block.split(|&b| b == b'\n').map(|line| String::from_utf8_lossy(line).trim_end().to_string()));
        }
        all
    }

    #[test]
    fn every_way_to_end_a_line_is_known_and_a_byte_order_mark_is_not_text() {
        for text in ["a\nb\nc", "a\r\nb\r\nc", "a\rb\rc", "\u{feff}a\rb\r\nc", "\u{feff}a\nb\rc"] {
            assert_eq!(lines(text.as_bytes()), ["a", "b", "c"], "{text:?}");
        }
        assert_eq!(lines(b"a\r"), ["a", ""]);
        assert_eq!(lines(b""), [""]);
        assert_eq!(lines(BYTE_ORDER_MARK), [""]);
    }

    #[test]
    fn a_line_end_between_two_blocks_is_one_line_end() {
        // `\r` is the last byte of the first block, and `\n` the first of the next.
        for (end, count) in [(&b"\r\n"[..], 2), (b"\r", 2)] {
            let mut text = b"ab\n".to_vec();
            text.resize(BLOCK_BYTES - 1, b'x');
            text.extend(end);
            text.extend(b"last");
            let all = lines(&text);
            assert_eq!((all.len(), all[count].as_str()), (3, "last"), "{end:?}");
        }
    }

    #[test]
    fn utf_16_is_refused_by_name() {
        let error = Blocks::new(&b"\xff\xfe1\x00"[..], "text".into()).next().unwrap_err();
        assert!(error.to_string().contains("UTF-16"), "{error}");
    }

    #[test]
    fn a_quote_that_is_never_closed_is_not_held() {
        let (text, unbroken) = Records::new(std::io::Cursor::new(b"a,b\n1,2\n\"").chain(std::io::repeat(b'7')));
        let mut reader = csv::ReaderBuilder::new().from_reader(text);
        let mut record = csv::ByteRecord::new();
        assert!(reader.read_byte_record(&mut record).unwrap());
        unbroken.set(0);
        let error = reader.read_byte_record(&mut record).unwrap_err();
        assert!(error.to_string().contains("is a quote left open"), "{error}");
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let error = Blocks::new(std::io::repeat(b'7'), "text".into()).next().unwrap_err();
        assert!(error.to_string().contains("a line of more than 8 MiB"), "{error}");
    }
}
