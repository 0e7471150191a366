//! Matches the rows of a table or of arrays with the vertices of an edge list.

use std::collections::HashMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use super::blocks::Blocks;
use super::edge_list::{Names, some};
use super::job::ImportJob;
use super::text::{self, shown};
use super::vertex_table::VertexTable;
use crate::dataset::error::{Error, Result};
use crate::graph::MAX_VERTICES;
use crate::host;

/// One more than the number of names in a message, to detect that there are more.
const SHOWN: usize = 4;

/// What happens to vertices without a row, and to rows whose vertex has no edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// Both are errors, which count and name them.
    #[default]
    Refuse,
    /// Both are dropped; the vertices are dropped with their edges.
    Drop,
    /// Such rows become vertices without edges. A vertex without a row is an error.
    Keep,
}

impl FromStr for Missing {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "error" => Ok(Self::Refuse),
            "drop" => Ok(Self::Drop),
            "keep" => Ok(Self::Keep),
            other => {
                let (option, expected) = ("the treatment of missing vertices", "`error`, `drop` or `keep`".into());
                Err(Error::Option { option, found: format!("`{other:.40}`"), expected })
            }
        }
    }
}

/// The most memory that a byte of a text of names can take: a name of one letter and its line end become an allocation,
/// a pointer and the number of the line, in lists that double.
const NAME_BYTES: u64 = 48;

/// The vertices in the order of their rows.
pub(super) struct Order {
    file: String,
    pub keys: Vec<Arc<str>>,
    /// The line number of each key.
    lines: Vec<u64>,
    missing: Missing,
    /// The table that contains the keys, or `None` for a list of names.
    pub table: Option<VertexTable>,
}

/// The result of matching vertices with rows.
pub(super) struct Matched {
    /// The new number of each vertex, with vertices in numeric order or in order of appearance. Vertices without a row
    /// come last.
    pub table: Vec<u32>,
    /// The row of each new number.
    pub rows: Vec<u32>,
    /// Number of vertices without a row.
    pub rowless: usize,
    /// Some of their names.
    pub rowless_names: Vec<String>,
    pub notes: Vec<String>,
}

impl Order {
    /// Reads the table or the list that the options name.
    ///
    /// # Errors
    /// A file that cannot be read, or a name that occurs twice.
    pub(super) fn read(job: &ImportJob<'_>) -> Result<Option<Self>> {
        let missing = job.options.missing;
        let (file, keys, lines, table) = match (job.options.vertices, job.options.vertex_order) {
            (Some(path), _) => {
                let (keys, lines, table) = VertexTable::read(job, path)?;
                (path, keys, lines, Some(table))
            }
            (None, Some(path)) => {
                let (keys, lines) = read_names(job, path)?;
                (path, keys, lines, None)
            }
            (None, None) => return Ok(None),
        };
        let order = Self { file: file.display().to_string(), keys, lines, missing, table };
        Ok(Some(order))
    }

    fn wrong(&self, why: String) -> Error {
        Error::Import { file: self.file.clone(), why }
    }

    /// Finds the row of each vertex.
    ///
    /// # Errors
    /// Vertices without a row and rows without a vertex, unless [`Missing`] allows them.
    pub(super) fn matched(&self, names: &Names, job: &ImportJob<'_>) -> Result<Matched> {
        let row_of = self.rows_of(names)?;
        let mut new_number = vec![u32::MAX; self.keys.len()];
        row_of.iter().filter(|&&row| row != u32::MAX).for_each(|&row| new_number[row as usize] = 0);
        let unused: Vec<u32> = (0..).zip(&new_number).filter(|(_, n)| **n == u32::MAX).map(|(row, _)| row).collect();
        let rowless: Vec<usize> = (0..row_of.len()).filter(|&v| row_of[v] == u32::MAX).collect();
        let rowless_names: Vec<String> = match rowless.is_empty() {
            true => Vec::new(),
            false => rowless.iter().take(SHOWN).map(|&v| name_of(names, v)).collect(),
        };
        // Arrays have one row for each name of the list, with or without edges.
        let keeps = self.missing == Missing::Keep || self.table.is_none();
        let refused = match self.missing {
            Missing::Drop => false,
            _ => !rowless.is_empty() || (!keeps && !unused.is_empty()),
        };
        if refused {
            let why = self.mismatch(job, (&rowless_names, rowless.len()), if keeps { &[] } else { &unused });
            // Names are in order of appearance: the first two are those of the first line.
            let are_titles =
                matches!(names, Names::Named(_)) && job.options.header.is_none() && rowless.starts_with(&[0, 1]);
            let edges = job.source.display();
            let titles = match are_titles {
                true => format!("; if the first line of {edges} holds column titles, set option `header` to yes"),
                false => String::new(),
            };
            return Err(self.wrong(format!("{why}{titles}")));
        }
        let mut rows = Vec::with_capacity(self.keys.len());
        for (row, number) in (0..).zip(&mut new_number) {
            if keeps || *number == 0 {
                *number = rows.len() as u32;
                rows.push(row);
            }
        }
        let mut next = rows.len() as u32;
        let number = |&row: &u32| match row {
            u32::MAX => {
                next += 1;
                next - 1
            }
            row => new_number[row as usize],
        };
        let table = row_of.iter().map(number).collect();
        let mut notes = Vec::new();
        if !unused.is_empty() {
            let (count, what) = (unused.len(), if keeps { "kept as vertices without edges" } else { "dropped" });
            notes.push(format!("{count} rows whose vertex has no edge were {what}: {}", self.some_rows(&unused)));
        }
        Ok(Matched { table, rows, rowless: rowless.len(), rowless_names, notes })
    }

    /// Returns the row of each vertex, or `u32::MAX`.
    fn rows_of(&self, names: &Names) -> Result<Vec<u32>> {
        if self.keys.len() > MAX_VERTICES {
            return Err(self.wrong(format!("has {} rows, expected at most {MAX_VERTICES}", self.keys.len())));
        }
        match names {
            Names::Named(names) => {
                let rows = self.index(|key| Some(key.clone()))?;
                Ok(names.iter().map(|name| rows.get(name).copied().unwrap_or(u32::MAX)).collect())
            }
            Names::Small(ranks) => {
                let rows = self.index(number)?;
                Ok(ranks.iter().map(|id| rows.get(&id).copied().unwrap_or(u32::MAX)).collect())
            }
            Names::Large(ids) => {
                let rows = self.index(number)?;
                Ok(ids.iter().map(|id| rows.get(id).copied().unwrap_or(u32::MAX)).collect())
            }
        }
    }

    /// Returns the row of each key. If vertices are numbers, keys that are not numbers match no vertex.
    fn index<K: std::hash::Hash + Eq>(&self, key: impl Fn(&Arc<str>) -> Option<K>) -> Result<HashMap<K, u32>> {
        let mut rows = HashMap::with_capacity(self.keys.len());
        for (row, text) in (0..).zip(&self.keys) {
            let Some(key) = key(text) else { continue };
            if let Some(first) = rows.insert(key, row) {
                let [first, again] = [first, row].map(|row| self.lines[row as usize]);
                let name = shown(text.as_bytes());
                return Err(self.wrong(format!("has vertex `{name}` twice, in line {first} and line {again}")));
            }
        }
        Ok(rows)
    }

    fn mismatch(&self, job: &ImportJob<'_>, (names, rowless): (&[String], usize), unused: &[u32]) -> String {
        let edges = job.source.display();
        let mut parts = Vec::new();
        if rowless > 0 {
            let (has, rows) = if rowless == 1 { ("vertex of", "has no row") } else { ("vertices of", "have no row") };
            parts.push(format!("{rowless} {has} {edges} {rows} ({})", some(names)));
        }
        if !unused.is_empty() {
            let (count, rows) = (unused.len(), self.some_rows(unused));
            let are = if count == 1 { "row is of a vertex" } else { "rows are of vertices" };
            parts.push(format!("{count} {are} without an edge ({rows})"));
        }
        let keep = if unused.is_empty() { "" } else { ", or to keep to keep the rows as vertices without edges" };
        format!("does not fit: {}; set option `missing` to drop to leave them out{keep}", parts.join(", and "))
    }

    /// Returns the names of some rows, with their lines.
    fn some_rows(&self, rows: &[u32]) -> String {
        let mut shown: Vec<String> = rows
            .iter()
            .take(SHOWN - 1)
            .map(|&row| format!("`{}` in line {}", shown(self.keys[row as usize].as_bytes()), self.lines[row as usize]))
            .collect();
        if rows.len() >= SHOWN {
            shown.push("...".into());
        }
        shown.join(", ")
    }
}

fn number(key: &Arc<str>) -> Option<u64> {
    text::number(key.as_bytes()).ok()
}

/// Returns the name of a vertex by its position.
fn name_of(names: &Names, vertex: usize) -> String {
    match names {
        Names::Small(ranks) => ranks.iter().nth(vertex).unwrap_or_default().to_string(),
        Names::Large(ids) => ids[vertex].to_string(),
        Names::Named(names) => names[vertex].to_string(),
    }
}

/// Reads one name per line.
fn read_names(job: &ImportJob<'_>, path: &Path) -> Result<(Vec<Arc<str>>, Vec<u64>)> {
    let file = path.display().to_string();
    let wrong = |why: String| Error::Import { file: file.clone(), why };
    let text = job.meter.open_text(path, "it was named for the order of the vertices")?;
    if let Some(kind) = text.titled_by() {
        return Err(wrong(format!(
            "is {kind}, expected text with one name per line; a table belongs to option `vertices`"
        )));
    }
    let mut blocks = Blocks::new(text, file.clone());
    let (mut keys, mut lines, mut line) = (Vec::new(), Vec::new(), 0);
    let mut blank = None;
    while let Some(block) = blocks.next()? {
        if let Some(lack) = host::lack(NAME_BYTES * block.len() as u64, host::free_bytes()) {
            return Err(wrong(format!("has more than {} names: to read on {lack}", keys.len())));
        }
        for name in block.split(|&byte| byte == b'\n') {
            line += 1;
            let name = std::str::from_utf8(name).map_err(|_| wrong(format!("line {line} is not UTF-8")))?.trim();
            if name.is_empty() {
                blank = blank.or(Some(line));
                continue;
            }
            // Each line is a row: skipping one would shift all following rows.
            if let Some(blank) = blank {
                return Err(wrong(format!("line {blank} is empty, but others follow; expected one name per line")));
            }
            keys.push(Arc::from(name));
            lines.push(line);
        }
    }
    Ok((keys, lines))
}
