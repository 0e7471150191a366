//! A table of vertices: a CSV or TSV file with titles, in which each row names its vertex.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::blocks::{Blocks, Records};
use super::edge_list::some;
use super::ids::Interner;
use super::job::ImportJob;
use super::sniff::delimiter;
use super::text::shown;
use crate::dataset::build::{Parts, RawFeatures, RawLabels};
use crate::dataset::error::{Error, Result};
use crate::dataset::split::{Members, NAMES};
use crate::host;

/// Number of rows between checks of the memory.
const CHECK_EVERY: usize = 1 << 12;

/// What the columns of a table of vertices are. By default the titles decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableColumns<'a> {
    /// The title of the column of vertex names. The default is the first column.
    pub key: Option<&'a str>,
    /// The title of the column of classes. The default is `label`, if there is one.
    pub label: Option<&'a str>,
    /// The titles of the feature columns. The default is all other columns that hold numbers.
    pub features: Option<&'a [String]>,
}

/// The use of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Key,
    Label,
    /// The name of the vertex's split: `train`, `val` or `test`.
    Split,
    /// 0 or 1: whether the vertex is in this split.
    Member(usize),
    Feature,
    /// A feature if it holds numbers.
    Rest,
    Unused,
}

/// A column that is, or might be, a feature.
#[derive(Default)]
struct Column {
    /// The numbers; NaN if a cell is not a number.
    numbers: Vec<f32>,
    /// Number of empty cells, and the line of the first.
    empty: (usize, u64),
    /// Number of cells with text that is not a number, and the line and text of the first.
    text: (usize, u64, String),
}

/// Rows of features, classes and splits.
pub(super) struct VertexTable {
    file: String,
    titles: Vec<String>,
    /// The data of each column; `None` for columns that cannot be features.
    columns: Vec<Option<Column>>,
    /// The columns that are features.
    features: Vec<usize>,
    /// The class of each row (-1 for none), the number of classes, and their names unless those are 0, 1, ....
    labels: Option<(Vec<i64>, usize, Option<Vec<String>>)>,
    splits: [Option<Vec<bool>>; 3],
}

impl VertexTable {
    /// Reads a table.
    ///
    /// # Returns
    /// The names of the vertices, the line of each, and the table.
    /// # Errors
    /// Rows with a different number of cells than titles; requested titles that are missing or occur twice; cells that
    /// do not fit their column.
    pub(super) fn read(job: &ImportJob<'_>, path: &Path) -> Result<(Vec<Arc<str>>, Vec<u64>, Self)> {
        let file = path.display().to_string();
        let needed = "it was named for the table of the vertices";
        let start = Blocks::new(job.meter.open_text(path, needed)?, file.clone()).next()?.unwrap_or_default();
        let first = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let delimiter = match delimiter(first) {
            b' ' => b',',
            other => other,
        };
        let (text, unbroken) = Records::new(job.meter.open_text(path, needed)?);
        let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(text);
        let reading = Reading { file: &file, options: &job.options.columns };
        let titles = reader.byte_headers().map_err(|e| reading.failed(&e))?;
        let titles: Vec<String> =
            titles.iter().map(|title| String::from_utf8_lossy(title).trim().to_string()).collect();
        let roles = reading.roles(&titles)?;
        let mut rows = Rows::new(&reading, &titles, &roles);
        let mut record = csv::ByteRecord::new();
        while reader.read_byte_record(&mut record).map_err(|e| reading.failed(&e))? {
            unbroken.set(0);
            rows.add(&record)?;
        }
        rows.finish()
    }

    /// Adds the given rows to a dataset, in this order.
    ///
    /// # Returns
    /// Notes on what was used and what was not.
    pub(super) fn fill(self, parts: &mut Parts, rows: &[u32]) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        let width = self.features.len();
        if width > 0 {
            let need = (rows.len() as u64).saturating_mul(4 * width as u64);
            if let Some(shortage) = host::lack(need, host::free_bytes()) {
                return Err(Error::Import {
                    file: self.file,
                    why: format!("has {width} features per row: that {shortage}"),
                });
            }
            let columns: Vec<&[f32]> =
                self.features.iter().filter_map(|&at| self.columns[at].as_ref()).map(|c| &c.numbers[..]).collect();
            let row = |&row: &u32| columns.iter().map(move |column| column[row as usize]);
            let data: Vec<f32> = rows.iter().flat_map(row).collect();
            parts.features = Some(RawFeatures::Dense { data: data.into(), rows: rows.len(), width });
            let titles: Vec<&str> = self.features.iter().map(|&at| self.titles[at].as_str()).collect();
            notes.push(format!("{width} columns are features: {}", some(&titles)));
        }
        for (column, title) in self.columns.iter().zip(&self.titles) {
            let Some(Column { text: (text, line, found), numbers, .. }) = column else { continue };
            if *text > 0 {
                let (all, title) = (numbers.len(), shown(title.as_bytes()));
                notes.push(format!(
                    "column `{title}` was left out: {text} of {all} rows hold text (line {line}: `{found}`)"
                ));
            }
        }
        if let Some((labels, classes, names)) = self.labels {
            let labels: Vec<i64> = rows.iter().map(|&row| labels[row as usize]).collect();
            parts.labels = Some(RawLabels::Class(labels.into()));
            parts.classes = Some(classes);
            notes.push(match &names {
                Some(names) => format!("{classes} classes by name: {}", some(names)),
                None => format!("{classes} classes by number"),
            });
            parts.class_names = names;
        }
        for (to, members) in parts.splits.iter_mut().zip(self.splits) {
            *to = members.map(|members| Members::Mask(rows.iter().map(|&row| members[row as usize]).collect()));
        }
        Ok(notes)
    }
}

/// A table while it is read.
struct Reading<'a> {
    file: &'a str,
    options: &'a TableColumns<'a>,
}

impl Reading<'_> {
    fn wrong(&self, why: String) -> Error {
        Error::Import { file: self.file.into(), why }
    }

    fn failed(&self, error: &csv::Error) -> Error {
        self.wrong(match error.kind() {
            csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
                let line = pos.as_ref().map_or(0, csv::Position::line);
                format!("line {line} has {len} cells, but there are {expected_len} titles")
            }
            _ => format!("cannot be read to its end: {error}"),
        })
    }

    /// Returns the use of each column.
    fn roles(&self, titles: &[String]) -> Result<Vec<Role>> {
        if titles.is_empty() {
            return Err(self.wrong("is empty, expected a line of titles and a row for each vertex".into()));
        }
        let column = |title: &str, option: &str| {
            let mut found = (0..titles.len()).filter(|&at| titles[at] == title);
            match (found.next(), found.next()) {
                (Some(at), None) => Ok(at),
                (Some(_), Some(_)) => Err(self.wrong(format!("has two columns `{}`", shown(title.as_bytes())))),
                (None, _) => {
                    let all = some(titles);
                    Err(self.wrong(format!(
                        "has no column `{}` (option `{option}`); it has {all}",
                        shown(title.as_bytes())
                    )))
                }
            }
        };
        let mut roles: Vec<Role> = titles.iter().map(|title| by_title(title)).collect();
        if let Some(features) = self.options.features {
            roles.iter_mut().filter(|role| **role == Role::Rest).for_each(|role| *role = Role::Unused);
            for title in features {
                roles[column(title, "columns.features")?] = Role::Feature;
            }
        }
        if let Some(title) = self.options.label {
            roles.iter_mut().filter(|role| **role == Role::Label).for_each(|role| *role = Role::Rest);
            roles[column(title, "columns.label")?] = Role::Label;
        }
        let key = self.options.key.map_or(Ok(0), |title| column(title, "columns.key"))?;
        roles[key] = Role::Key;
        for (at, role) in roles.iter().enumerate() {
            let again = roles[..at].iter().position(|other| other == role);
            if let (Role::Label | Role::Split | Role::Member(_), Some(first)) = (role, again) {
                let [first, again] = [first, at].map(|at| shown(titles[at].as_bytes()));
                return Err(self.wrong(format!("has columns `{first}` and `{again}` for the same thing; remove one")));
            }
        }
        let members = roles.iter().any(|role| matches!(role, Role::Member(_)));
        if members && roles.contains(&Role::Split) {
            return Err(
                self.wrong("has a column `split` and columns for single splits; remove one or the other".into())
            );
        }
        Ok(roles)
    }
}

/// Returns the use of a column with this title, unless the options say otherwise.
fn by_title(title: &str) -> Role {
    match title.to_lowercase().as_str() {
        "label" => Role::Label,
        "split" => Role::Split,
        "train" | "train_mask" => Role::Member(0),
        "val" | "valid" | "val_mask" | "valid_mask" => Role::Member(1),
        "test" | "test_mask" => Role::Member(2),
        _ => Role::Rest,
    }
}

/// The rows read so far.
struct Rows<'a> {
    reading: &'a Reading<'a>,
    titles: &'a [String],
    roles: &'a [Role],
    keys: Vec<Arc<str>>,
    lines: Vec<u64>,
    columns: Vec<Option<Column>>,
    /// The index of each row's class name; `None` for no class.
    labels: Vec<Option<u32>>,
    classes: Interner<Arc<str>>,
    splits: [Option<Vec<bool>>; 3],
}

impl<'a> Rows<'a> {
    fn new(reading: &'a Reading<'a>, titles: &'a [String], roles: &'a [Role]) -> Self {
        let column = |role: &Role| matches!(role, Role::Feature | Role::Rest).then(Column::default);
        let is_split = |which| roles.iter().any(|&role| role == Role::Split || role == Role::Member(which));
        Self {
            reading,
            titles,
            roles,
            keys: Vec::new(),
            lines: Vec::new(),
            columns: roles.iter().map(column).collect(),
            labels: Vec::new(),
            classes: Interner::new(),
            splits: [0, 1, 2].map(|which| is_split(which).then(Vec::new)),
        }
    }

    fn add(&mut self, record: &csv::ByteRecord) -> Result<()> {
        if self.keys.len().is_multiple_of(CHECK_EVERY) {
            let need = (self.keys.len() + CHECK_EVERY) as u64 * 4 * self.titles.len() as u64;
            if let Some(shortage) = host::lack(need, host::free_bytes()) {
                return Err(self.reading.wrong(format!("has more than {} rows: that {shortage}", self.keys.len())));
            }
        }
        let line = record.position().map_or(0, csv::Position::line);
        for (at, cell) in record.iter().enumerate() {
            let cell = cell.trim_ascii();
            match self.roles[at] {
                Role::Unused => {}
                Role::Key => {
                    let name = self.text(cell, line)?;
                    if name.is_empty() {
                        return Err(self
                            .reading
                            .wrong(format!("line {line} has no name in the column of the vertices")));
                    }
                    if name.contains(['\n', '\r']) {
                        return Err(self.reading.wrong(format!(
                            "line {line} has a name with a line break, and names are kept one a line"
                        )));
                    }
                    self.keys.push(name.into());
                    self.lines.push(line);
                }
                Role::Label => {
                    let name = self.text(cell, line)?;
                    let none = name.is_empty() || name.eq_ignore_ascii_case("nan");
                    let number = if none { None } else { self.classes.number::<str>(name) };
                    self.labels.push(number);
                }
                Role::Split => self.split(cell, line)?,
                Role::Member(which) => {
                    let is_in = match cell.to_ascii_lowercase().as_slice() {
                        b"1" | b"true" | b"1.0" => true,
                        b"0" | b"false" | b"0.0" | b"" => false,
                        _ => return Err(self.bad_cell(at, cell, line, "0 or 1")),
                    };
                    self.splits[which].get_or_insert_default().push(is_in);
                }
                Role::Feature | Role::Rest => {
                    if let Some(column) = &mut self.columns[at] {
                        column.add(cell, line);
                    }
                }
            }
        }
        Ok(())
    }

    fn text<'c>(&self, cell: &'c [u8], line: u64) -> Result<&'c str> {
        std::str::from_utf8(cell).map(str::trim).map_err(|_| self.reading.wrong(format!("line {line} is not UTF-8")))
    }

    fn bad_cell(&self, at: usize, cell: &[u8], line: u64, expected: &str) -> Error {
        let (title, found) = (shown(self.titles[at].as_bytes()), shown(cell));
        self.reading.wrong(format!("line {line} has `{found}` in column `{title}`, expected {expected}"))
    }

    fn split(&mut self, cell: &[u8], line: u64) -> Result<()> {
        let which = match cell.to_ascii_lowercase().as_slice() {
            b"train" | b"training" => Some(0),
            b"val" | b"valid" | b"validation" => Some(1),
            b"test" | b"testing" => Some(2),
            b"" | b"none" | b"-" => None,
            _ => {
                let at = self.roles.iter().position(|&role| role == Role::Split).unwrap_or_default();
                return Err(self.bad_cell(at, cell, line, "train, val, test or nothing"));
            }
        };
        for (split, members) in self.splits.iter_mut().enumerate() {
            members.get_or_insert_default().push(which == Some(split));
        }
        Ok(())
    }

    fn finish(self) -> Result<(Vec<Arc<str>>, Vec<u64>, VertexTable)> {
        let mut features = Vec::new();
        for (at, column) in self.columns.iter().enumerate() {
            let Some(column) = column else { continue };
            let certain = self.roles[at] == Role::Feature;
            if column.is_feature(certain).map_err(|why| {
                let title = shown(self.titles[at].as_bytes());
                self.reading.wrong(format!("column `{title}` {why}"))
            })? {
                features.push(at);
            }
        }
        let labels = self.roles.contains(&Role::Label).then(|| classes(&self.labels, &self.classes.keys));
        let mut splits = self.splits;
        // Drops splits without members.
        for (members, _) in splits.iter_mut().zip(NAMES) {
            if members.as_ref().is_some_and(|members| !members.contains(&true)) {
                *members = None;
            }
        }
        let (file, titles) = (self.reading.file.into(), self.titles.to_vec());
        let table = VertexTable { file, titles, columns: self.columns, features, labels, splits };
        Ok((self.keys, self.lines, table))
    }
}

impl Column {
    fn add(&mut self, cell: &[u8], line: u64) {
        let number = std::str::from_utf8(cell).ok().and_then(|cell| cell.parse::<f64>().ok()).map(|x| x as f32);
        if cell.is_empty() || number.is_some_and(f32::is_nan) {
            self.empty.0 += 1;
            self.empty.1 = if self.empty.0 == 1 { line } else { self.empty.1 };
        } else if number.is_none_or(|x| !x.is_finite()) {
            self.text.0 += 1;
            if self.text.0 == 1 {
                (self.text.1, self.text.2) = (line, shown(cell));
            }
        }
        self.numbers.push(number.unwrap_or(f32::NAN));
    }

    /// Returns whether the column is a feature. If most rows are numbers but some are not, returns what is wrong.
    fn is_feature(&self, certain: bool) -> std::result::Result<bool, String> {
        let (rows, (empty, empty_line), (text, text_line, found)) = (self.numbers.len(), self.empty, &self.text);
        let numbers = rows - empty - text;
        let way_out = "mend it, or say which columns are features as option `columns.features`";
        if *text > 0 && (certain || numbers > *text) {
            return Err(format!(
                "holds numbers in {numbers} of {rows} rows, but line {text_line} has `{found}`; {way_out}"
            ));
        }
        if empty > 0 && *text == 0 && (certain || numbers > 0) {
            return Err(format!("has no number in {empty} of {rows} rows, as in line {empty_line}; {way_out}"));
        }
        Ok(numbers == rows && rows > 0)
    }
}

/// Returns the class of each row, the number of classes and their names. Names that are the numbers 0, 1, ... are the
/// classes, and -1 means none. Other names are sorted by number if all are numbers, otherwise alphabetically.
fn classes(labels: &[Option<u32>], names: &[Arc<str>]) -> (Vec<i64>, usize, Option<Vec<String>>) {
    let numbers: Option<Vec<i64>> = names.iter().map(|name| name.parse::<i64>().ok()).collect();
    // Maps a position in `names` to a class.
    let class_of = |order: Vec<usize>| {
        let ranks: BTreeMap<usize, i64> = order.into_iter().zip(0..).collect();
        move |place: usize| ranks.get(&place).copied().unwrap_or(-1)
    };
    let mut order: Vec<usize> = (0..names.len()).collect();
    match &numbers {
        Some(numbers) => {
            order.retain(|&place| numbers[place] != -1);
            order.sort_by_key(|&place| numbers[place]);
        }
        None => order.sort_by_key(|&place| &names[place]),
    }
    let plain = numbers.is_some_and(|numbers| order.iter().map(|&place| numbers[place]).eq(0..order.len() as i64));
    let called = (!plain).then(|| order.iter().map(|&place| names[place].to_string()).collect());
    let (count, class) = (order.len(), class_of(order));
    (labels.iter().map(|label| label.map_or(-1, |place| class(place as usize))).collect(), count, called)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes_of(labels: &[&str]) -> (Vec<i64>, usize, Option<Vec<String>>) {
        let mut names = Interner::<Arc<str>>::new();
        let labels: Vec<Option<u32>> = labels.iter().map(|label| names.number::<str>(label)).collect();
        classes(&labels, &names.keys)
    }

    #[test]
    fn classes_are_numbers_as_they_are_or_names_in_order() {
        assert_eq!(classes_of(&["2", "0", "1", "-1"]), (vec![2, 0, 1, -1], 3, None));
        let years = Some(["5", "1999", "2010"].map(String::from).to_vec());
        assert_eq!(classes_of(&["2010", "1999", "-1", "5"]), (vec![2, 1, -1, 0], 3, years));
        let names = Some(["1", "art", "tea"].map(String::from).to_vec());
        assert_eq!(classes_of(&["tea", "art", "1", "tea"]), (vec![2, 1, 0, 2], 3, names));
        assert_eq!(classes_of(&[]), (vec![], 0, None));
    }

    #[test]
    fn a_column_is_a_feature_if_every_row_has_a_number() {
        let feature = |cells: &[&str], certain| {
            let mut column = Column::default();
            (2..).zip(cells).for_each(|(line, cell)| column.add(cell.as_bytes(), line));
            column.is_feature(certain)
        };
        assert_eq!(feature(&["1", "-2.5e3", "0"], false), Ok(true));
        assert_eq!(feature(&["Rome", "Oslo", "3"], false), Ok(false));
        assert_eq!(feature(&["", ""], false), Ok(false));
        assert!(feature(&["1", "2", "1.o3"], false).is_err_and(|why| why.contains("2 of 3") && why.contains("line 4")));
        assert!(feature(&["1", "", "3"], false).is_err_and(|why| why.contains("1 of 3") && why.contains("line 3")));
        assert!(feature(&["1", "nan"], false).is_err());
        assert!(feature(&["1", "inf"], true).is_err());
        assert!(feature(&["Rome", "3"], true).is_err());
    }
}
