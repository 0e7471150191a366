//! Tables of numbers as text: one row per line, cells separated by commas or blanks.

use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use rayon::prelude::*;

use super::blocks::{Blocks, cut};
use super::source::Meter;
use super::text::is_separator;
use crate::dataset::build::{RawFeatures, RawLabels};
use crate::dataset::error::{Error, Result};
use crate::dataset::labels::MAX_CLASSES;
use crate::host;

/// A matrix of numbers in row-major order.
pub(super) struct Table<T> {
    pub cells: Vec<T>,
    pub rows: usize,
    pub width: usize,
}

/// The content of some lines.
struct Piece<T> {
    cells: Vec<T>,
    /// Number of lines with cells; each has `width` cells.
    rows: usize,
    width: usize,
    lines: usize,
    /// The line within the piece, and what is wrong with it.
    wrong: Option<(usize, String)>,
    /// The first empty line. Only empty lines may follow it.
    empty: Option<usize>,
}

fn parse<T: FromStr>(text: &[u8]) -> Piece<T> {
    let mut piece = Piece { cells: Vec::new(), rows: 0, width: 0, lines: 0, wrong: None, empty: None };
    for line in text.split(|&byte| byte == b'\n') {
        piece.lines += 1;
        let before = piece.cells.len();
        let Err(why) = parse_line(line, &mut piece.cells) else {
            let width = piece.cells.len() - before;
            match (width, piece.empty) {
                (0, None) => piece.empty = Some(piece.lines),
                (0, Some(_)) => {}
                (_, Some(_)) => {}
                _ if piece.rows == 0 => piece.width = width,
                _ if piece.width != width => {
                    let why = format!("has {width} numbers, the lines before it have {}", piece.width);
                    piece.wrong = Some((piece.lines, why));
                    return piece;
                }
                _ => {}
            }
            if width > 0 {
                if let Some(empty) = piece.empty {
                    piece.wrong = Some((empty, "is empty, but others follow; expected one row per line".into()));
                    return piece;
                }
                piece.rows += 1;
            }
            continue;
        };
        piece.wrong = Some((piece.lines, why));
        return piece;
    }
    piece
}

/// Appends the numbers of a line. A cell without a number, as in `1,,2`, is an error.
fn parse_line<T: FromStr>(line: &[u8], cells: &mut Vec<T>) -> std::result::Result<(), String> {
    let line = std::str::from_utf8(line).map_err(|_| "is not text".to_string())?.trim();
    if line.is_empty() {
        return Ok(());
    }
    let mut cell = |word: &str, column: usize| match word.trim().parse() {
        Ok(number) => {
            cells.push(number);
            Ok(())
        }
        Err(_) => Err(format!("has `{word:.40}` in column {column}, expected a number")),
    };
    if line.contains(',') {
        line.split(',').enumerate().try_for_each(|(column, word)| cell(word, column))
    } else {
        line.split(|c: char| c.is_ascii() && is_separator(c as u8))
            .filter(|word| !word.is_empty())
            .enumerate()
            .try_for_each(|(column, word)| cell(word, column))
    }
}

impl<T: FromStr + Send + Copy> Table<T> {
    /// Reads a text of at most `most_rows` rows, compressed or not.
    ///
    /// # Errors
    /// A cell that is not a number; rows of different widths; more rows than `most_rows`, or more than the host's
    /// memory.
    pub(super) fn read(meter: &Meter<'_>, path: &Path, needed: &'static str, most_rows: usize) -> Result<Self> {
        let text = meter.open_text(path, needed)?;
        let file = path.display().to_string();
        Self::parse(Blocks::new(text, file.clone()), &file, most_rows)
    }

    fn parse<R: Read + Send>(mut blocks: Blocks<R>, file: &str, most_rows: usize) -> Result<Self> {
        let wrong = |why: String| Error::Import { file: file.into(), why };
        let mut table = Self { cells: Vec::new(), rows: 0, width: 0 };
        let (mut lines, mut empty) = (0usize, None);
        let mut next = blocks.next()?;
        while let Some(block) = next {
            let (pieces, following) =
                rayon::join(|| cut(&block).into_par_iter().map(parse::<T>).collect::<Vec<_>>(), || blocks.next());
            for piece in pieces {
                if let (Some(line), true) = (empty, piece.rows > 0) {
                    return Err(wrong(format!("line {line} is empty, but others follow; expected one row per line")));
                }
                if piece.rows > 0 && table.rows > 0 && piece.width != table.width {
                    let (line, width) = (lines + 1, piece.width);
                    return Err(wrong(format!(
                        "line {line} has {width} numbers, the lines before it have {}",
                        table.width
                    )));
                }
                if let Some((line, why)) = piece.wrong {
                    return Err(wrong(format!("line {} {why}", lines + line)));
                }
                table.add(&piece, file, most_rows)?;
                empty = empty.or(piece.empty.map(|line| lines + line));
                lines += piece.lines;
            }
            next = following?;
        }
        Ok(table)
    }

    fn add(&mut self, piece: &Piece<T>, file: &str, most_rows: usize) -> Result<()> {
        let wrong = |why: String| Err(Error::Import { file: file.into(), why });
        if self.rows == 0 && piece.rows > 0 {
            self.width = piece.width;
            if self.width > MAX_CLASSES {
                return wrong(format!("has {} columns, expected at most {MAX_CLASSES}", self.width));
            }
            let bytes = host::product([most_rows as u64, self.width as u64, size_of::<T>() as u64]);
            if let Some(shortage) = host::lack(bytes, host::free_bytes()) {
                return wrong(format!("has {} columns, which for {most_rows} rows {shortage}", self.width));
            }
            self.cells.reserve_exact(most_rows * self.width);
        }
        self.rows += piece.rows;
        if self.rows > most_rows {
            return wrong(format!("has more than the {most_rows} rows that belong there"));
        }
        self.cells.extend_from_slice(&piece.cells);
        Ok(())
    }

    /// Checks that there are `rows` rows.
    pub(super) fn expect_rows(self, path: &Path, rows: usize, why: &str) -> Result<Self> {
        if self.rows == rows {
            return Ok(self);
        }
        let why = format!("has {} rows, expected {rows} ({why})", self.rows);
        Err(Error::Import { file: path.display().to_string(), why })
    }
}

/// Returns the number of columns of a text of numbers: that of its first line.
pub(super) fn width(meter: &Meter<'_>, path: &Path) -> Result<usize> {
    let text = meter.open_text(path, "it has the weights of the edges")?;
    let block = Blocks::new(text, path.display().to_string()).next()?.unwrap_or_default();
    let line = block.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut cells = Vec::<f32>::new();
    parse_line(line, &mut cells)
        .map_err(|why| Error::Import { file: path.display().to_string(), why: format!("line 1 {why}") })?;
    if cells.is_empty() {
        return Err(Error::Import { file: path.display().to_string(), why: "starts without a row of numbers".into() });
    }
    Ok(cells.len())
}

/// Passes one column of a text of finite numbers to `take`, in order, block by block. `column` is its position and the
/// number of columns; there are as many rows as `edges`.
///
/// # Errors
/// A line with another number of columns, or with a number that is not finite; another number of rows.
pub(super) fn column(
    meter: &Meter<'_>,
    path: &Path,
    (column, columns): (usize, usize),
    edges: u64,
    mut take: impl FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let file = path.display().to_string();
    let wrong = |why: String| Error::Import { file: file.clone(), why };
    let mut blocks = Blocks::new(meter.open_text(path, "it has the weights of the edges")?, file.clone());
    let (mut lines, mut rows, mut empty) = (0u64, 0u64, None);
    let (mut cells, mut values) = (Vec::<f32>::new(), Vec::new());
    while let Some(block) = blocks.next()? {
        values.clear();
        for line in block.split(|&byte| byte == b'\n') {
            lines += 1;
            cells.clear();
            parse_line(line, &mut cells).map_err(|why| wrong(format!("line {lines} {why}")))?;
            match (cells.len(), empty) {
                (0, _) => empty = empty.or(Some(lines)),
                (_, Some(empty)) => {
                    return Err(wrong(format!("line {empty} is empty, but others follow; expected one row per line")));
                }
                (found, None) if found != columns => {
                    return Err(wrong(format!("line {lines} has {found} numbers, the lines before it have {columns}")));
                }
                _ if !cells[column].is_finite() => {
                    return Err(wrong(format!(
                        "line {lines} has the weight {}; every weight must be finite",
                        cells[column]
                    )));
                }
                _ => values.push(cells[column]),
            }
        }
        rows += values.len() as u64;
        if rows > edges {
            break;
        }
        take(&values)?;
    }
    if rows == edges {
        return Ok(());
    }
    let rows = if rows > edges { format!("more than {edges}") } else { rows.to_string() };
    Err(wrong(format!("has {rows} rows, expected {edges} (one per edge)")))
}

/// Reads a feature matrix with one row per vertex.
pub(super) fn features(meter: &Meter<'_>, path: &Path, vertices: usize) -> Result<RawFeatures> {
    let table = Table::<f32>::read(meter, path, "it has the features", vertices)?;
    let table = table.expect_rows(path, vertices, "one per vertex")?;
    Ok(RawFeatures::Dense { data: table.cells.into(), rows: table.rows, width: table.width })
}

/// Reads labels: one class per vertex, or 0 and 1 with one column per class. `nan` and -1 mean no class.
pub(super) fn labels(meter: &Meter<'_>, path: &Path, vertices: usize) -> Result<RawLabels> {
    let table = Table::<f32>::read(meter, path, "it has the labels", vertices)?;
    let table = table.expect_rows(path, vertices, "one per vertex")?;
    let wrong = |row: usize, found: f32, expected: &str| Error::Import {
        file: path.display().to_string(),
        why: format!("row {row} has label {found}, expected {expected}"),
    };
    if table.width == 1 {
        let class = |(row, &x): (usize, &f32)| match x {
            x if x.is_nan() => Ok(-1),
            x if x.fract() == 0.0 && (-1.0..16_777_216.0).contains(&x) => Ok(x as i64),
            x => Err(wrong(row, x, "a whole number below 2^24, or nan for none")),
        };
        let classes: Vec<i64> = table.cells.iter().enumerate().map(class).collect::<Result<_>>()?;
        return Ok(RawLabels::Class(classes.into()));
    }
    let bit = |(at, &x): (usize, &f32)| match x {
        0.0 => Ok(0),
        1.0 => Ok(1),
        x => Err(wrong(at / table.width, x, "0 or 1 in each column")),
    };
    let data: Vec<u8> = table.cells.iter().enumerate().map(bit).collect::<Result<_>>()?;
    Ok(RawLabels::Multi { data: data.into(), rows: table.rows, classes: table.width })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn table(text: &[u8], most_rows: usize) -> std::result::Result<(Vec<f32>, usize, usize), String> {
        let table = Table::<f32>::parse(Blocks::new(text, "file".into()), "file", most_rows);
        table.map(|table| (table.cells, table.rows, table.width)).map_err(|e| e.to_string())
    }

    #[test]
    fn numbers_stand_between_commas_or_blanks() {
        assert_eq!(table(b"1,2.5\n-3e2, 4 \r\n\n\n", 2), Ok((vec![1.0, 2.5, -300.0, 4.0], 2, 2)));
        assert_eq!(table(b" 7  8\n", 5), Ok((vec![7.0, 8.0], 1, 2)));
        assert_eq!(table(b"", 5), Ok((vec![], 0, 0)));
        assert!(table(b"nan", 1).unwrap().0[0].is_nan());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &[u8]| table(text, 3).unwrap_err();
        assert!(error(b"1,2\n3\n").contains("line 2 has 1 numbers"));
        assert!(error(b"1,2\n\n3,4\n").contains("line 2 is empty"));
        assert!(error(b"1,2\n3,,\n").contains("line 2 has `` in column 1"));
        assert!(error(b"1\nx\n").contains("line 2 has `x` in column 0"));
        assert!(error(b"1\n2\n3\n4\n").contains("more than the 3 rows"));
        assert!(error(b"\xff\n").contains("not text"));
        // The same across several pieces.
        let mut text = b"1,2,3\n".repeat(100_000);
        text.extend(b"1,2\n");
        let error = table(&text, 1 << 20).unwrap_err();
        assert!(error.contains("line 100001 has 2 numbers"), "{error}");
    }

    #[test]
    fn a_million_columns_of_many_rows_are_refused_before_they_are_held() {
        let text = b"0,".repeat(1_000_000 - 1);
        let error = table(&[&text[..], b"0\n"].concat(), 1 << 31).unwrap_err();
        assert!(error.contains("1000000 columns") && error.contains("needs"), "{error}");
    }
}
