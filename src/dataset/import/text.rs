//! Text of edges, a line each, read in blocks of whole lines that threads parse side by side.

use std::io::Read;

use rayon::prelude::*;

use super::source::read_full;
use crate::dataset::error::{Error, Result};

/// Bytes that are read at a time. A longer line is no edge.
const BLOCK_BYTES: usize = 8 << 20;
/// The least that is worth a thread.
const PIECE_BYTES: usize = 1 << 16;

/// One end of an edge as it stands in a text.
pub(super) trait End<'a>: Sized + Send + Copy {
    /// The two ends that a line starts with, and whether more follows.
    fn edge(line: &'a [u8]) -> std::result::Result<([Self; 2], bool), Stop>;
}

/// Why a line is not an edge of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// An end is no number.
    Name,
    /// An end is a number that is too large.
    Large,
    /// There is only one.
    OneEnd,
    /// A name is not UTF-8.
    NotText,
}

pub(super) fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b',' | b';' | b'\r')
}

/// The numbers that a line starts with.
fn numbers(line: &[u8]) -> std::result::Result<([u64; 2], bool), Stop> {
    let mut ends = [0u64; 2];
    let mut at = 0;
    for end in &mut ends {
        while at < line.len() && is_separator(line[at]) {
            at += 1;
        }
        let start = at;
        let mut large = false;
        while let Some(digit) = line.get(at).filter(|byte| byte.is_ascii_digit()) {
            let longer = end.checked_mul(10).and_then(|ten| ten.checked_add(u64::from(digit - b'0')));
            large |= longer.is_none();
            *end = longer.unwrap_or(0);
            at += 1;
        }
        if line.get(at).is_some_and(|&byte| !is_separator(byte)) {
            return Err(Stop::Name);
        }
        if start == at {
            return Err(Stop::OneEnd);
        }
        if large {
            return Err(Stop::Name);
        }
    }
    let more = line[at..].iter().any(|&byte| !is_separator(byte));
    Ok((ends, more))
}

impl End<'_> for u32 {
    fn edge(line: &[u8]) -> std::result::Result<([Self; 2], bool), Stop> {
        let ([u, v], more) = numbers(line)?;
        // A graph has at most 2^32 - 2 vertices.
        let small = |x: u64| u32::try_from(x).ok().filter(|&x| x < u32::MAX - 1).ok_or(Stop::Large);
        Ok(([small(u)?, small(v)?], more))
    }
}

impl End<'_> for u64 {
    fn edge(line: &[u8]) -> std::result::Result<([Self; 2], bool), Stop> {
        let (ends, more) = numbers(line)?;
        // They are written as i64.
        if ends.iter().any(|&x| x > i64::MAX as u64) { Err(Stop::Name) } else { Ok((ends, more)) }
    }
}

impl<'a> End<'a> for &'a str {
    /// Names are told apart by tabs if there is one in the line, else by commas or semicolons, else by blanks.
    fn edge(line: &'a [u8]) -> std::result::Result<([Self; 2], bool), Stop> {
        let line = std::str::from_utf8(line).map_err(|_| Stop::NotText)?;
        let separators: &[char] = [&['\t'][..], &[',', ';']].into_iter().find(|s| line.contains(*s)).unwrap_or(&[' ']);
        let mut names = line.split(separators).map(str::trim).filter(|name| !name.is_empty());
        match (names.next(), names.next()) {
            (Some(u), Some(v)) => Ok(([u, v], names.next().is_some())),
            _ => Err(Stop::OneEnd),
        }
    }
}

/// What a stretch of lines holds.
pub(super) struct Piece<T> {
    pub edges: Vec<[T; 2]>,
    /// Lines with more than two columns.
    pub with_more: u64,
    /// Lines, edges or not.
    lines: u64,
    /// Where it stopped: the line within the piece.
    stopped: Option<(u64, Stop)>,
}

/// Parses lines until the first that is no edge. Empty lines and those that start with #, % or // are passed over.
fn parse<'a, T: End<'a>>(text: &'a [u8]) -> Piece<T> {
    let mut piece = Piece { edges: Vec::with_capacity(text.len() / 12), with_more: 0, lines: 0, stopped: None };
    for line in text.split(|&byte| byte == b'\n') {
        piece.lines += 1;
        let Some(first) = line.iter().position(|&byte| !is_separator(byte)) else { continue };
        if matches!(line[first], b'#' | b'%') || line[first..].starts_with(b"//") {
            continue;
        }
        match T::edge(line) {
            Ok((edge, more)) => {
                piece.edges.push(edge);
                piece.with_more += u64::from(more);
            }
            Err(stop) => {
                piece.stopped = Some((piece.lines, stop));
                break;
            }
        }
    }
    piece
}

/// Whole lines, a block at a time.
pub(super) struct Blocks<R> {
    from: R,
    rest: Vec<u8>,
    returned: Option<Vec<u8>>,
    done: bool,
    file: String,
}

impl<R: Read> Blocks<R> {
    /// The lines of `from`; `file` names it in errors.
    pub(super) fn new(from: R, file: String) -> Self {
        Self { from, rest: Vec::new(), returned: None, done: false, file }
    }

    /// Gives back lines that were the whole of the last block's end.
    pub(super) fn put_back(&mut self, lines: Vec<u8>) {
        self.returned = Some(lines);
    }

    /// The next lines, without the last line end; `None` when there are no more.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(lines) = self.returned.take() {
            return Ok(Some(lines));
        }
        if self.done {
            return Ok(None);
        }
        let have = self.rest.len();
        let mut block = std::mem::take(&mut self.rest);
        block.resize(BLOCK_BYTES, 0);
        let bytes = read_full(&mut self.from, &mut block[have..])
            .map_err(|e| Error::Import { file: self.file.clone(), why: format!("cannot be read to its end: {e}") })?;
        block.truncate(have + bytes);
        if block.len() < BLOCK_BYTES {
            self.done = true;
            return Ok(Some(block));
        }
        match block.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => {
                self.rest = block[end + 1..].to_vec();
                block.truncate(end);
                Ok(Some(block))
            }
            None => {
                let why = format!("has a line of more than {} MiB, expected an edge a line", BLOCK_BYTES >> 20);
                Err(Error::Import { file: self.file.clone(), why })
            }
        }
    }
}

/// Cuts lines into pieces for threads.
pub(super) fn cut(block: &[u8]) -> Vec<&[u8]> {
    let len = block.len().div_ceil(4 * rayon::current_num_threads()).max(PIECE_BYTES);
    let mut pieces = Vec::new();
    let mut rest = block;
    while rest.len() > len {
        let Some(end) = rest[len..].iter().position(|&byte| byte == b'\n').map(|at| len + at) else { break };
        pieces.push(&rest[..end]);
        rest = &rest[end + 1..];
    }
    pieces.push(rest);
    pieces
}

/// Where the reading of edges stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped {
    /// Counts from 1.
    pub line: u64,
    pub stop: Stop,
    /// Whether no edge came before it.
    pub first: bool,
}

/// Gives all edges of a text to `take`, in order. Reading and parsing go side by side.
///
/// # Returns
/// How many lines had more than two columns; or where a line was not an edge of this type.
pub(super) fn each_edge<R: Read + Send, T: for<'a> EndOf<'a>>(
    mut blocks: Blocks<R>,
    mut skip: u64,
    mut take: impl for<'a> FnMut(&[[<T as EndOf<'a>>::End; 2]]) -> Result<()>,
) -> Result<std::result::Result<u64, Stopped>> {
    let (mut lines, mut with_more, mut first) = (0, 0, true);
    let mut next = blocks.next()?;
    while let Some(mut block) = next {
        // A header is made a comment.
        if skip > 0 && lines == 0 {
            skip_lines(&mut block, skip);
            skip = 0;
        }
        let (pieces, following) = rayon::join(
            || cut(&block).into_par_iter().map(parse::<<T as EndOf<'_>>::End>).collect::<Vec<_>>(),
            || blocks.next(),
        );
        for piece in pieces {
            take(&piece.edges)?;
            first &= piece.edges.is_empty();
            if let Some((line, stop)) = piece.stopped {
                return Ok(Err(Stopped { line: lines + line, stop, first }));
            }
            with_more += piece.with_more;
            lines += piece.lines;
        }
        next = following?;
    }
    Ok(Ok(with_more))
}

/// Turns the first `count` lines into blanks.
fn skip_lines(block: &mut [u8], count: u64) {
    let mut lines = 0;
    for byte in block {
        if *byte == b'\n' {
            lines += 1;
            if lines == count {
                return;
            }
        } else {
            *byte = b' ';
        }
    }
}

/// A type of ends, whatever the block that they are in.
pub(super) trait EndOf<'a> {
    type End: End<'a>;
}

/// Ends below 2^32 - 2.
pub(super) struct Small;
/// Ends below 2^63.
pub(super) struct Large;
/// Ends of any kind.
pub(super) struct Named;

impl EndOf<'_> for Small {
    type End = u32;
}
impl EndOf<'_> for Large {
    type End = u64;
}
impl<'a> EndOf<'a> for Named {
    type End = &'a str;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    type Read<T> = std::result::Result<(Vec<[T; 2]>, u64), Stopped>;

    fn small(text: &[u8], skip: u64) -> Read<u32> {
        let mut all = Vec::new();
        let read = each_edge::<_, Small>(Blocks::new(text, "text".into()), skip, |edges| {
            all.extend_from_slice(edges);
            Ok(())
        });
        read.unwrap().map(|more| (all, more))
    }

    #[test]
    fn lines_may_be_separated_and_ended_in_many_ways() {
        let text = b"# from to\r\n0\t1\r\n 2 , 3 \n\n% no edge\n4;5;0.25\n// no edge\n6   7  8 9";
        assert_eq!(small(text, 0), Ok((vec![[0, 1], [2, 3], [4, 5], [6, 7]], 2)));
        assert_eq!(small(b"", 0), Ok((vec![], 0)));
        assert_eq!(small(b"from,to\n1,2\n", 1), Ok((vec![[1, 2]], 0)));
    }

    #[test]
    fn the_line_of_what_is_no_edge_is_known() {
        let stopped = |text: &[u8]| small(text, 0).unwrap_err();
        assert_eq!(stopped(b"#\n0 1\n2\n"), Stopped { line: 3, stop: Stop::OneEnd, first: false });
        assert_eq!(stopped(b"\na b\n"), Stopped { line: 2, stop: Stop::Name, first: true });
        assert_eq!(stopped(b"1 -2").stop, Stop::Name);
        assert_eq!(stopped(b"1.5 2").stop, Stop::Name);
        assert_eq!(stopped(b"1 4294967294").stop, Stop::Large);
        assert_eq!(stopped(b"1 99999999999999999999999").stop, Stop::Name);
        // Of many pieces and blocks.
        let mut text = b"10 20\n".repeat(3_000_000);
        text.extend(b"1 x\n");
        text.extend(b"10 20\n".repeat(100));
        assert_eq!(stopped(&text), Stopped { line: 3_000_001, stop: Stop::Name, first: false });
    }

    #[test]
    fn blocks_and_pieces_lose_no_line() {
        let mut text = Vec::new();
        let want: Vec<[u32; 2]> =
            (0..1_500_000u32).map(|i| [i, i.wrapping_mul(2_654_435_761) % 4_000_000_000]).collect();
        for [u, v] in &want {
            text.extend(format!("{u} {v}\n").bytes());
        }
        assert!(text.len() > 2 * BLOCK_BYTES);
        let (got, _) = small(&text, 0).unwrap();
        assert!(got == want);
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let endless = std::io::repeat(b'7');
        let error = each_edge::<_, Small>(Blocks::new(endless, "text".into()), 0, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("a line of more than 8 MiB"), "{error}");
    }

    #[test]
    fn names_may_have_blanks_where_tabs_part_them() {
        let edge = |line: &'static str| <&str>::edge(line.as_bytes());
        assert_eq!(edge("New York\tLos Angeles\t3"), Ok((["New York", "Los Angeles"], true)));
        assert_eq!(edge("a b,c d\r"), Ok((["a b", "c d"], false)));
        assert_eq!(edge("  a   b  "), Ok((["a", "b"], false)));
        assert_eq!(edge("alone"), Err(Stop::OneEnd));
        assert_eq!(<&str>::edge(b"\xff a"), Err(Stop::NotText));
    }
}
