//! Guesses the layout of a text of edges: the delimiter, whether the first line holds titles, and which two columns are
//! the ends of an edge.

use super::blocks::Blocks;
use super::job::ImportJob;
use super::text::{cells, data_lines, is_separator};
use crate::dataset::error::{Error, Result};

/// A header: the first line that is not a comment, if it holds titles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Line number, from 1.
    pub line: u64,
    pub titles: Vec<String>,
    /// Whether it is certainly a header: it was requested, or its titles are those of edges. Otherwise it was guessed
    /// because numbers follow.
    pub certain: bool,
}

/// The layout of a text of edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The delimiter of names. A blank stands for a run of blanks.
    pub delimiter: u8,
    pub header: Option<Header>,
    /// The columns of the source and the destination, from 0.
    pub ends: [usize; 2],
    /// The cells of the first line that is not a header.
    pub first: Vec<String>,
    /// The first edge, if it might be a header.
    pub doubtful: Option<String>,
}

/// Guesses the layout from the start of the source.
///
/// # Errors
/// Those of reading the source; titles that are there and said not to be.
pub(super) fn layout(job: &ImportJob<'_>) -> Result<Layout> {
    let text = job.meter.open_text(job.source, "it is the list of edges to import")?;
    let header = match (text.titled_by(), job.options.header) {
        (Some(kind), Some(false)) => {
            let expected = format!("yes: {kind} has titles").into();
            return Err(Error::NotForThisData { option: "header", found: "no".into(), expected });
        }
        (Some(_), _) => Some(true),
        (None, asked) => asked,
    };
    let block = Blocks::new(text, job.source.display().to_string()).next()?.unwrap_or_default();
    let layout = layout_of(&block, header);
    match &layout.header {
        Some(header) if header.certain && count(&layout.first) > count(&header.titles) => Err(job.wrong(format!(
            "line {} has {} titles, but the next one {} cells, so it is not known which title is of which cell; write the file \
             without the names of rows, or with a title for them",
            header.line,
            count(&header.titles),
            count(&layout.first)
        ))),
        _ => Ok(layout),
    }
}

/// Returns the number of cells up to the last one that is not empty.
fn count(cells: &[String]) -> usize {
    cells.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1)
}

fn layout_of(text: &[u8], header: Option<bool>) -> Layout {
    let mut lines = data_lines(text);
    let Some((line, first)) = lines.next() else {
        return Layout { delimiter: b' ', header: None, ends: [0, 1], first: Vec::new(), doubtful: None };
    };
    let second = lines.next().map(|(_, line)| line);
    let delimiter = delimiter(second.filter(|line| starts_with_numbers(line)).unwrap_or(first));
    let titles = split(first, delimiter);
    let ends = ends_of(&titles);
    let numbers_follow = second.is_some_and(starts_with_numbers);
    let untitled = titles.iter().take(2).any(|cell| cell.is_empty() || is_like_a_number(cell));
    let (is_header, certain) = match header {
        Some(asked) => (asked, true),
        None if ends.is_some() => (true, true),
        None if is_titled_weight(&titles, second, delimiter) && !untitled => (true, true),
        None => (numbers_follow && !untitled && titles.len() > 1, false),
    };
    if !is_header {
        let doubtful = (header.is_none() && !untitled).then(|| titles[..titles.len().min(2)].join(" -> "));
        return Layout { delimiter, header: None, ends: [0, 1], first: titles, doubtful };
    }
    let header = Some(Header { line, titles, certain });
    let first = second.map_or_else(Vec::new, |line| split(line, delimiter));
    Layout { delimiter, header, ends: ends.unwrap_or([0, 1]), first, doubtful: None }
}

/// Returns the cells of a line, without surrounding quotes and blanks.
fn split(line: &[u8], delimiter: u8) -> Vec<String> {
    if !line.contains(&b'"') {
        return cells(line, delimiter).map(|cell| String::from_utf8_lossy(cell).trim().to_string()).collect();
    }
    let mut reader = csv::ReaderBuilder::new().has_headers(false).delimiter(delimiter).from_reader(line);
    let mut record = csv::ByteRecord::new();
    // A line that is not CSV has no cells; reading the edges will report why.
    if !reader.read_byte_record(&mut record).unwrap_or(false) {
        return Vec::new();
    }
    record.iter().map(|cell| String::from_utf8_lossy(cell).trim().to_string()).collect()
}

/// Returns the delimiter of a line. If it starts with two numbers, this is what separates them: a tab only if it is one, and
/// the second number ends with one too. For names it is a tab, comma, semicolon or blank, in this order of preference.
pub(super) fn delimiter(line: &[u8]) -> u8 {
    if starts_with_numbers(line) {
        let past_digits = |text: &[u8]| text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
        let line = line.trim_ascii();
        let rest = &line[past_digits(line)..];
        let (between, second) = rest.split_at(rest.iter().position(u8::is_ascii_digit).unwrap_or(rest.len()));
        let is_tabbed = between == b"\t" && matches!(second.get(past_digits(second)), None | Some(b'\t'));
        let other = if is_tabbed { b'\t' } else { b' ' };
        return between.iter().copied().find(|byte| matches!(byte, b',' | b';')).unwrap_or(other);
    }
    // A delimiter within quotes is text.
    let mut quoted = false;
    let outside = |byte: &&u8| {
        quoted ^= **byte == b'"';
        !quoted
    };
    let bare: Vec<u8> = line.iter().filter(outside).copied().collect();
    [b'\t', b',', b';'].into_iter().find(|byte| bare.trim_ascii().contains(byte)).unwrap_or(b' ')
}

fn starts_with_numbers(line: &[u8]) -> bool {
    let mut words = line.split(|&byte| is_separator(byte)).filter(|word| !word.is_empty());
    let mut next = || words.next().is_some_and(|word| word.iter().all(u8::is_ascii_digit));
    next() && next()
}

/// Returns whether a cell is a number rather than a title: `-0`, `1e9`, `1.5`, any number of digits.
pub(super) fn is_like_a_number(cell: &str) -> bool {
    let starts = cell.trim_start_matches(['+', '-', '.']).starts_with(|c: char| c.is_ascii_digit());
    starts && cell.parse::<f64>().is_ok()
}

/// Returns the first column whose title is that of a weight, beside the two ends.
pub(super) fn weight_of(titles: &[String], ends: [usize; 2]) -> Option<usize> {
    let is_weight = |title: &String| ["weight", "weights", "edgeweight", "w", "value"].contains(&&*plain(title));
    (0..titles.len()).find(|column| !ends.contains(column) && is_weight(&titles[*column]))
}

/// Returns whether a third column or a later one has the title of a weight above a number.
fn is_titled_weight(titles: &[String], second: Option<&[u8]>, delimiter: u8) -> bool {
    let Some((column, second)) = weight_of(titles, [0, 1]).zip(second) else { return false };
    split(second, delimiter).get(column).is_some_and(|cell| is_like_a_number(cell))
}

/// Returns the columns of the first two titles that name the ends of an edge, such as `source` and `target`.
fn ends_of(titles: &[String]) -> Option<[usize; 2]> {
    const PAIRS: [[&str; 2]; 8] = [
        ["source", "target"],
        ["source", "destination"],
        ["src", "dst"],
        ["src", "dest"],
        ["from", "to"],
        ["node1", "node2"],
        ["id1", "id2"],
        ["vertex1", "vertex2"],
    ];
    let titles: Vec<String> = titles.iter().map(|title| plain(title)).collect();
    let column = |wanted: &str| titles.iter().position(|title| title == wanted);
    PAIRS.iter().find_map(|[source, target]| Some([column(source)?, column(target)?]))
}

/// Reduces a title to lower-case letters without the kind of object: `Source_ID` becomes `source`, `FromNodeId` becomes
/// `from`.
fn plain(title: &str) -> String {
    let letters: String = title.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    let mut plain = letters.as_str();
    for kind in ["id", "name", "node", "vertex"] {
        plain = plain.strip_suffix(kind).filter(|rest| !rest.is_empty()).unwrap_or(plain);
    }
    plain.to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(text: &str) -> Layout {
        layout_of(text.as_bytes(), None)
    }

    fn is_header(text: &str) -> bool {
        of(text).header.is_some()
    }

    #[test]
    fn titles_are_told_from_edges() {
        assert!(is_header("source,target\nann,bob\n"));
        assert!(is_header("# a comment\n\nSource_ID\tTarget ID\nann\tbob\n"));
        assert!(is_header("FromNodeId ToNodeId\na b\n"));
        assert!(is_header("person,friend\n1,2\n"), "numbers follow");
        assert!(!is_header("person,friend\nann,bob\n"));
        assert_eq!(of("person,friend\nann,bob\n").doubtful.unwrap(), "person -> friend");
        for first in ["99999999999999999999 1", "-0 1", "1.5 2", "1e5 2", "+3 4", "alone"] {
            assert!(!is_header(&format!("{first}\n1 2\n")), "{first}");
        }
        assert!(!is_header("1 2\n3 4\n") && !is_header(""));
        assert!(is_header("1 2\n") != layout_of(b"1 2\n", Some(true)).header.is_some());
        assert!(layout_of(b"source,target\na,b\n", Some(false)).header.is_none());
    }

    #[test]
    fn the_columns_of_the_ends_are_found_by_their_titles() {
        assert_eq!(of(",source,target\n0,12,15\n").ends, [1, 2]);
        assert_eq!(of("\"weight\",\"target\",\"source\"\n1,a,b\n").ends, [2, 1]);
        assert_eq!(of("a,b\n1,2\n").ends, [0, 1]);
        // The first column is that of the names of rows, as pandas writes it.
        let layout = of("\tsource\ttarget\n0\t12\t15\n");
        assert_eq!((layout.ends, layout.first), ([1, 2], vec!["0".into(), "12".into(), "15".into()]));
    }

    #[test]
    fn the_delimiter_is_what_stands_between_the_ends() {
        for (line, want) in [
            ("a b", b' '),
            ("a b\tc d", b'\t'),
            ("a b,c", b','),
            ("a;b", b';'),
            ("\"a,b\";c", b';'),
            ("1 2 0,5", b' '),
            ("1, 2", b','),
            ("1\t2", b'\t'),
            ("1\t2\tNew York", b'\t'),
            ("1\t2 0.5", b' '),
            ("1 \t2", b' '),
            ("1\t\t2", b' '),
        ] {
            assert_eq!(delimiter(line.as_bytes()), want, "{line}");
        }
    }
}
