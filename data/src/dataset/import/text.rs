//! Text of edges, one per line, parsed by several threads.

use std::io::Read;

use rayon::prelude::*;

use super::blocks::{Blocks, cut};
use crate::dataset::error::Result;

/// Number of characters of a line in a message.
const SHOWN: usize = 60;

/// One end of an edge, as written in a text.
pub(super) trait End<'a>: Sized + Send + Copy {
    /// Parses the two ends at the start of a line. Also returns whether more follows. `delimiter` separates names.
    fn edge(line: &'a [u8], delimiter: u8) -> std::result::Result<([Self; 2], bool), Stop>;

    /// Parses the end in a cell of a CSV file, without its quotes.
    fn cell(cell: &'a [u8]) -> std::result::Result<Self, Stop>;
}

/// Why a line is not an edge of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// An end is not a number, or needs more than 63 bits.
    Name,
    /// An end is a number that is too large for this type.
    Large,
    /// There is only one end.
    OneEnd,
    /// An end is an empty cell.
    Empty,
    /// There is a quote, so the line must be read by the rules of CSV.
    Quote,
    /// A name is not UTF-8.
    NotText,
    /// A name holds a line end.
    LineEnd,
    /// There is no finite number in the column of the weights.
    Weight,
}

pub(super) fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b',' | b';' | b'\r')
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// Returns whether a line is a comment, which starts with #, % or //. `None` for a line of only separators.
fn is_comment(line: &[u8]) -> Option<bool> {
    let text = &line[line.iter().position(|&byte| !is_blank(byte))?..];
    if is_separator(text[0]) && text.iter().all(|&byte| is_separator(byte)) {
        return None;
    }
    Some(matches!(text[0], b'#' | b'%') || text.starts_with(b"//"))
}

/// Returns the lines that are neither empty nor comments, with their numbers from 1.
pub(super) fn data_lines(text: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (1..).zip(text.split(|&byte| byte == b'\n')).filter(|(_, line)| is_comment(line) == Some(false))
}

/// Returns why a line does not start with two numbers.
#[cold]
fn no_numbers(line: &[u8]) -> Stop {
    match line {
        _ if line.contains(&b'"') => Stop::Quote,
        _ if line.iter().all(|&byte| byte.is_ascii_digit() || is_separator(byte)) => Stop::Empty,
        _ => Stop::Name,
    }
}

/// Parses the two numbers at the start of a line, separated by blanks, or by one comma or semicolon.
fn numbers(line: &[u8]) -> std::result::Result<([u64; 2], bool), Stop> {
    let mut ends = [0u64; 2];
    let mut at = 0;
    for (place, end) in ends.iter_mut().enumerate() {
        let mut parted = place == 0;
        while let Some(&byte) = line.get(at).filter(|&&byte| is_separator(byte)) {
            if !is_blank(byte) {
                if parted {
                    return Err(no_numbers(line));
                }
                parted = true;
            }
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
        if line.get(at).is_some_and(|&byte| !is_separator(byte)) || large {
            return Err(if large { Stop::Name } else { no_numbers(line) });
        }
        if start == at {
            return Err(Stop::OneEnd);
        }
    }
    let rest = &line[at..];
    let more = rest.iter().any(|&byte| !is_separator(byte));
    // A quoted cell may contain line ends, and what follows one is then not an edge.
    if more && rest.contains(&b'"') { Err(Stop::Quote) } else { Ok((ends, more)) }
}

/// Parses a whole number in a cell.
pub(super) fn number(cell: &[u8]) -> std::result::Result<u64, Stop> {
    let cell = cell.trim_ascii();
    if cell.is_empty() {
        return Err(Stop::Empty);
    }
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let longer = |number: u64, byte| number.checked_mul(10)?.checked_add(digit(byte)?);
    cell.iter().try_fold(0, longer).ok_or(Stop::Name)
}

/// A graph has at most 2^32 - 2 vertices.
fn small(number: u64) -> std::result::Result<u32, Stop> {
    u32::try_from(number).ok().filter(|&number| number < u32::MAX - 1).ok_or(Stop::Large)
}

/// Ids are written as i64.
fn large(number: u64) -> std::result::Result<u64, Stop> {
    if number > i64::MAX as u64 { Err(Stop::Name) } else { Ok(number) }
}

impl End<'_> for u32 {
    fn edge(line: &[u8], _: u8) -> std::result::Result<([Self; 2], bool), Stop> {
        let ([u, v], more) = numbers(line)?;
        Ok(([small(u)?, small(v)?], more))
    }

    fn cell(cell: &[u8]) -> std::result::Result<Self, Stop> {
        small(number(cell)?)
    }
}

impl End<'_> for u64 {
    fn edge(line: &[u8], _: u8) -> std::result::Result<([Self; 2], bool), Stop> {
        let ([u, v], more) = numbers(line)?;
        Ok(([large(u)?, large(v)?], more))
    }

    fn cell(cell: &[u8]) -> std::result::Result<Self, Stop> {
        large(number(cell)?)
    }
}

impl<'a> End<'a> for &'a str {
    fn edge(line: &'a [u8], delimiter: u8) -> std::result::Result<([Self; 2], bool), Stop> {
        if line.contains(&b'"') {
            return Err(Stop::Quote);
        }
        let mut cells = cells(line, delimiter);
        match (cells.next(), cells.next()) {
            (Some(u), Some(v)) => {
                Ok(([Self::cell(u)?, Self::cell(v)?], cells.any(|cell| !cell.trim_ascii().is_empty())))
            }
            _ => Err(Stop::OneEnd),
        }
    }

    fn cell(cell: &'a [u8]) -> std::result::Result<Self, Stop> {
        let name = std::str::from_utf8(cell).map_err(|_| Stop::NotText)?.trim();
        match name {
            "" => Err(Stop::Empty),
            _ if name.contains(['\n', '\r']) => Err(Stop::LineEnd),
            _ => Ok(name),
        }
    }
}

/// Splits a line without quotes into cells. A run of blanks counts as one delimiter.
pub(super) fn cells(line: &[u8], delimiter: u8) -> impl Iterator<Item = &[u8]> {
    let runs = delimiter == b' ';
    let parts = move |&byte: &u8| if runs { is_blank(byte) } else { byte == delimiter };
    line.split(parts).filter(move |cell| !runs || !cell.is_empty())
}

/// Counts from reading edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Number of lines with more columns than are read.
    pub with_more: u64,
    /// Number of lines that start with #, % or //.
    pub comments: u64,
    /// Number of line ends within quoted cells.
    pub quoted_line_ends: u64,
}

/// The content of some lines.
struct Piece<'a, T> {
    edges: Vec<[T; 2]>,
    /// The weight of each edge, if weights are read.
    weights: Vec<f32>,
    counts: Counts,
    /// Number of lines, edges or not.
    lines: u64,
    /// Where parsing stopped: the line within the piece, its text, and the reason.
    stopped: Option<(u64, &'a [u8], Stop)>,
}

/// Parses the weight in a cell, which must be finite.
pub(super) fn weight(cell: &[u8]) -> std::result::Result<f32, Stop> {
    let number = std::str::from_utf8(cell).ok().and_then(|cell| cell.trim().parse::<f32>().ok());
    number.filter(|number| number.is_finite()).ok_or(Stop::Weight)
}

/// Parses the weight in a column of a line without quotes. Also returns whether there are other cells beside it and the
/// two ends.
fn weight_in(line: &[u8], delimiter: u8, column: usize) -> std::result::Result<(f32, bool), Stop> {
    let mut found = Err(Stop::Weight);
    let mut filled = 0;
    for (at, cell) in cells(line, delimiter).enumerate() {
        filled += usize::from(!cell.trim_ascii().is_empty());
        if at == column {
            found = weight(cell);
        }
    }
    found.map(|weight| (weight, filled > 3))
}

/// Parses lines up to the first that is not an edge, with the weights in column `weights`, if there is one.
fn parse<'a, T: End<'a>>(text: &'a [u8], delimiter: u8, weights: Option<usize>) -> Piece<'a, T> {
    let edges = Vec::with_capacity(text.len() / 12);
    let mut piece = Piece { edges, weights: Vec::new(), counts: Counts::default(), lines: 0, stopped: None };
    for line in text.split(|&byte| byte == b'\n') {
        piece.lines += 1;
        match is_comment(line) {
            None => continue,
            Some(true) => {
                piece.counts.comments += 1;
                continue;
            }
            Some(false) => {}
        }
        let read = T::edge(line, delimiter).and_then(|(edge, more)| {
            let Some(column) = weights else { return Ok((edge, more)) };
            let (weight, more) = weight_in(line, delimiter, column)?;
            piece.weights.push(weight);
            Ok((edge, more))
        });
        match read {
            Ok((edge, more)) => {
                piece.edges.push(edge);
                piece.counts.with_more += u64::from(more);
            }
            Err(stop) => {
                piece.stopped = Some((piece.lines, line, stop));
                break;
            }
        }
    }
    piece
}

/// Where the reading of edges stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stopped {
    /// Line number, from 1.
    pub line: u64,
    /// Text of the line, as shown in messages.
    pub text: String,
    pub stop: Stop,
}

impl Stopped {
    pub(super) fn new(line: u64, text: &[u8], stop: Stop) -> Self {
        Self { line, text: shown(text), stop }
    }
}

/// Returns the start of a line, safe to print.
pub(super) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.trim();
    let short: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() { format!("{short}...") } else { short }
}

/// Passes all edges of a text, except those in its first `skip` lines, to `take` in order, with the weights in column
/// `weights`, if there is one. Reading and parsing overlap.
///
/// # Returns
/// The counts, or the line that was not an edge of this type.
pub(super) fn each_edge<R: Read + Send, T: for<'a> EndOf<'a>>(
    mut blocks: Blocks<R>,
    mut skip: u64,
    (delimiter, weights): (u8, Option<usize>),
    mut take: impl for<'a> FnMut(&[[<T as EndOf<'a>>::End; 2]], &[f32]) -> Result<()>,
) -> Result<std::result::Result<Counts, Stopped>> {
    let (mut lines, mut counts) = (0, Counts::default());
    let mut next = blocks.next()?;
    while let Some(mut block) = next {
        if skip > 0 && lines == 0 {
            skip_lines(&mut block, skip);
            skip = 0;
        }
        let parse = |piece| parse::<<T as EndOf<'_>>::End>(piece, delimiter, weights);
        let (pieces, following) =
            rayon::join(|| cut(&block).into_par_iter().map(parse).collect::<Vec<_>>(), || blocks.next());
        for piece in pieces {
            take(&piece.edges, &piece.weights)?;
            if let Some((line, text, stop)) = piece.stopped {
                return Ok(Err(Stopped::new(lines + line, text, stop)));
            }
            counts.with_more += piece.counts.with_more;
            counts.comments += piece.counts.comments;
            lines += piece.lines;
        }
        next = following?;
    }
    Ok(Ok(counts))
}

/// Replaces the first `count` lines with blanks.
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

/// A type of ends, for any lifetime of the block that they borrow from.
pub(super) trait EndOf<'a> {
    type End: End<'a>;
}

/// Numbers below 2^32 - 2.
pub(super) struct Small;
/// Numbers below 2^63.
pub(super) struct Large;
/// Names.
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
    use super::super::blocks::BLOCK_BYTES;
    use super::*;

    type Read<T> = std::result::Result<(Vec<[T; 2]>, Counts), Stopped>;

    fn small(text: &[u8], skip: u64) -> Read<u32> {
        let mut all = Vec::new();
        let read = each_edge::<_, Small>(Blocks::new(text, "text".into()), skip, (b' ', None), |edges, _| {
            all.extend_from_slice(edges);
            Ok(())
        });
        read.unwrap().map(|counts| (all, counts))
    }

    #[test]
    fn lines_may_be_separated_and_ended_in_many_ways() {
        let text = b"# from to\r\n0\t1\r\n 2 , 3 \n\n% no edge\n4;5;0.25\n// no edge\n6   7  8 9";
        let counts = Counts { with_more: 2, comments: 3, ..Counts::default() };
        assert_eq!(small(text, 0), Ok((vec![[0, 1], [2, 3], [4, 5], [6, 7]], counts)));
        assert_eq!(small(b"", 0), Ok((vec![], Counts::default())));
        assert_eq!(small(b"from,to\n1,2\n", 1), Ok((vec![[1, 2]], Counts::default())));
        assert_eq!(small(b"1,2,,\n", 0), Ok((vec![[1, 2]], Counts::default())));
    }

    #[test]
    fn the_line_of_what_is_no_edge_is_known() {
        let stopped = |text: &[u8]| small(text, 0).unwrap_err();
        assert_eq!(stopped(b"#\n0 1\n2\n"), Stopped { line: 3, text: "2".into(), stop: Stop::OneEnd });
        assert_eq!(stopped(b"\na\x1b b\n"), Stopped { line: 2, text: "a\\u{1b} b".into(), stop: Stop::Name });
        for (text, stop) in [
            ("1 -2", Stop::Name),
            ("1.5 2", Stop::Name),
            ("1 4294967294", Stop::Large),
            ("1 99999999999999999999999", Stop::Name),
            ("1,,2", Stop::Empty),
            (",1,2", Stop::Empty),
            ("1 ; , 2", Stop::Empty),
            ("\"1\",2", Stop::Quote),
            ("1,2,\"a", Stop::Quote),
        ] {
            assert_eq!(stopped(text.as_bytes()).stop, stop, "{text}");
        }
        // The same across several pieces and blocks.
        let mut text = b"10 20\n".repeat(3_000_000);
        text.extend(b"1 x\n");
        text.extend(b"10 20\n".repeat(100));
        assert_eq!(stopped(&text), Stopped { line: 3_000_001, text: "1 x".into(), stop: Stop::Name });
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
    fn names_stand_between_the_delimiters_of_the_file() {
        let edge = |line: &'static str, delimiter| <&str>::edge(line.as_bytes(), delimiter);
        assert_eq!(edge("New York\tLos Angeles\t3", b'\t'), Ok((["New York", "Los Angeles"], true)));
        assert_eq!(edge("a b,c d\r", b','), Ok((["a b", "c d"], false)));
        assert_eq!(edge("  a   b  ", b' '), Ok((["a", "b"], false)));
        assert_eq!(edge("Smith,J Doe,A", b' '), Ok((["Smith,J", "Doe,A"], false)));
        assert_eq!(edge("alone", b','), Err(Stop::OneEnd));
        assert_eq!(edge("a,,b", b','), Err(Stop::Empty));
        assert_eq!(edge("a,\"b\"", b','), Err(Stop::Quote));
        assert_eq!(<&str>::edge(b"\xff a", b' '), Err(Stop::NotText));
    }
}
