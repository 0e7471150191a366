//! Importer for edge lists as text: SNAP, KONECT, or two columns of a CSV file.

use std::sync::Arc;

use super::blocks::Blocks;
use super::edge_csv::each_record;
use super::ids::{Ids, Interner, Ranks};
use super::job::{ImportJob, Loaded};
use super::numbers::Numbers;
use super::rules::select;
use super::sniff::{Header, Layout, layout};
use super::text::{Counts, EndOf, Large, Named, Small, Stop, Stopped, each_edge, shown};
use super::vertex_order::{Matched, Order};
use super::weight_column::WeightColumn;
use crate::dataset::edge_store::{Built, EdgeStore};
use crate::dataset::error::{Error, Result};
use crate::host;

/// Bits in the set of vertex numbers, one for each number up to the greatest. Numbers are kept as they are while this
/// many bits suffice, or 64 bits per edge. Larger numbers are looked up in a hash table.
const MOST_BITS: u64 = 8 * (64 << 20);
/// Edges after which it is checked that memory is left for more names.
const CHECK_EVERY: usize = 1 << 16;
/// Memory for the two new names that an edge may have, with room for the table of names to double.
const NAMES_BYTES: u64 = 1 << 10;
/// How many names a message lists.
const SOME: usize = 3;

/// The type of the ends of edges.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Small,
    Large,
    Named,
}

/// How the source is read. If a reading meets an end that it cannot represent, it starts again with another type.
#[derive(Clone, Debug)]
struct Reading {
    ends: Ends,
    /// Whether records are read by the rules of CSV, one after the other. Otherwise threads parse lines in parallel.
    csv: bool,
    layout: Layout,
    weights: WeightColumn,
    /// The line that showed that ends are names, not numbers.
    reason: Option<Stopped>,
}

/// Edges whose ends are the numbers in the file, or numbers in order of first appearance.
struct Edges {
    store: EdgeStore,
    names: Names,
    counts: Counts,
}

/// The names of the vertices in the source.
pub(super) enum Names {
    /// Numbers, kept as they are.
    Small(Ranks),
    /// Numbers, in order of first appearance.
    Large(Vec<u64>),
    Named(Vec<Arc<str>>),
}

/// How the ends of stored edges become vertices.
enum Naming {
    /// Unchanged.
    Same,
    /// One less.
    FromOne,
    /// By rank.
    Ranked(Ranks),
    /// By a table.
    Table(Vec<u32>),
    /// By rank, then by a table.
    RankedTable(Ranks, Vec<u32>),
}

/// The number of vertices, how ends become vertices, and the original names if they differ.
struct Numbering {
    vertices: usize,
    naming: Naming,
    ids: Option<Ids>,
}

/// Reads edges `u -> v`, one per line, with the weights in a further column, if there are any. Other columns are dropped
/// and counted.
///
/// With a table or `vertex_order`, vertices are numbered in its order. Without, numbers stay as they are if they are
/// 0, 1, ... without a gap, or if the features or labels have one row for each; other numbers are ranked in ascending
/// order. Anything else is a name; names are numbered in order of first appearance.
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let order = Order::read(job)?;
    let mut reading = Reading::new(job, layout(job)?)?;
    let edges = loop {
        match read(job, &reading)? {
            Ok(edges) => break edges,
            Err(stopped) => reading = reading.next(job, stopped)?,
        }
    };
    let edges_listed = edges.store.len();
    if edges_listed == 0 {
        return Err(job.wrong("holds no edges"));
    }
    let mut notes = reading.notes(&edges.counts);
    let mut ordered = match order {
        Some(order) => Some((order.matched(&edges.names, job)?, order)),
        None => None,
    };
    let numbering = match &mut ordered {
        Some((matched, order)) => number_by(edges.names, matched, order),
        None => {
            refuse_arrays_beside_names(job, &edges.names)?;
            number(edges.names, rows(job)?, job)?
        }
    };
    let rowless = ordered.as_ref().map_or(0, |(matched, _)| matched.rowless);
    let Numbering { vertices, naming, ids } = numbering;
    let symmetrise = job.rules.symmetrise;
    let (store, all) = (edges.store, vertices + rowless);
    let Built { graph, weights, seen } = match &naming {
        Naming::Same => job.finish(store, all, symmetrise, |id| id),
        Naming::FromOne => job.finish(store, all, symmetrise, |id| id - 1),
        Naming::Ranked(ranks) => job.finish(store, all, symmetrise, |id| ranks.rank(id)),
        Naming::Table(table) => job.finish(store, all, symmetrise, |id| table[id as usize]),
        Naming::RankedTable(ranks, table) => job.finish(store, all, symmetrise, |id| table[ranks.rank(id) as usize]),
    }?;
    let mut parts = job.weighted_parts(graph, weights);
    // A name such as graph.txt.gz has two extensions.
    for ending in [".txt", ".csv", ".tsv", ".edges"] {
        parts.name = parts.name.strip_suffix(ending).map_or(parts.name.clone(), str::to_string);
    }
    parts.directed = symmetrise.then_some(false);
    if let Some((Matched { rowless: 1.., rowless_names, .. }, _)) = &ordered {
        let before = parts.graph.edge_count();
        let kept: Vec<bool> = (0..all).map(|v| v < vertices).collect();
        select(&mut parts, &kept)?;
        let edges = before - parts.graph.edge_count();
        let names = some(rowless_names);
        notes.push(format!("{rowless} vertices without a row were dropped, with {edges} edges: {names}"));
    }
    let table = ordered.and_then(|(matched, order)| {
        notes.extend(matched.notes);
        Some((order.table?, matched.rows))
    });
    match table {
        Some((table, rows)) => notes.extend(table.fill(&mut parts, &rows)?),
        None => job.add_arrays(&mut parts)?,
    }
    notes.extend(rule(ids.as_ref(), vertices, job));
    Ok(Loaded {
        ids,
        weights_from: reading.weights.source,
        values_dropped: edges.counts.with_more,
        comments: edges.counts.comments,
        notes,
        ..Loaded::new(parts, edges_listed, seen, symmetrise)
    })
}

impl Reading {
    fn new(job: &ImportJob<'_>, layout: Layout) -> Result<Self> {
        let weights = WeightColumn::of(job, &layout)?;
        Ok(Self { ends: Ends::Small, csv: layout.ends != [0, 1], layout, weights, reason: None })
    }

    /// Returns the reading to try next.
    fn next(mut self, job: &ImportJob<'_>, stopped: Stopped) -> Result<Self> {
        let Stopped { line, text, stop } = &stopped;
        let wrong = |what: &str| Err(job.wrong(format!("line {line} {what}: `{text}`")));
        match stop {
            Stop::OneEnd => return wrong("has one column, expected the two ends of an edge"),
            Stop::Empty => return wrong("has an empty cell, expected the two ends of an edge"),
            Stop::NotText => return wrong("is not UTF-8; an end is a number or a name"),
            Stop::Weight => {
                let column = self.weights.source.as_deref().unwrap_or("a column");
                return wrong(&format!(
                    "has no finite number in {column}; set option `edge_weights` to drop to import it without weights"
                ));
            }
            Stop::LineEnd => {
                return wrong(
                    "begins a name that holds a line end; is a quote left open, or does a name need mending?",
                );
            }
            Stop::Quote => self.csv = true,
            Stop::Large => self.ends = Ends::Large,
            Stop::Name => {
                self.ends = Ends::Named;
                // If ends are names, a line of names above numbers was an edge, not a header.
                if let Some(Header { certain: false, titles, .. }) = &self.layout.header {
                    self.layout.doubtful = Some(titles[..2].join(" -> "));
                    self.layout.header = None;
                    self.weights = WeightColumn::of(job, &self.layout)?;
                }
                self.reason = Some(stopped);
            }
        }
        Ok(self)
    }

    /// Returns notes about what was guessed and skipped.
    fn notes(&self, counts: &Counts) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(Header { line, titles, .. }) = &self.layout.header {
            notes.push(format!("line {line} was read as column titles: {}", some(titles)));
        }
        if self.layout.ends != [0, 1]
            && let Some(Header { titles, .. }) = &self.layout.header
        {
            let [source, target] = self.layout.ends.map(|column| shown(titles[column].as_bytes()));
            notes.push(format!("edges go from column `{source}` to column `{target}`"));
        }
        if self.ends == Ends::Named {
            if let Some(Stopped { line, text, .. }) = &self.reason {
                notes.push(format!("vertices are names, not numbers: line {line} is `{text}`"));
            }
            if let Some(edge) = &self.layout.doubtful {
                let edge = shown(edge.as_bytes());
                notes.push(format!(
                    "the first line was read as the edge {edge}; set option `header` to yes if it holds column titles"
                ));
            }
        }
        notes.extend(self.weights.note.clone().filter(|_| counts.with_more > 0));
        if counts.quoted_line_ends > 0 {
            let lines = counts.quoted_line_ends;
            notes.push(format!("{lines} line ends stand within quoted cells, which were left out"));
        }
        notes
    }
}

/// Reads the file once.
fn read(job: &ImportJob<'_>, reading: &Reading) -> Result<std::result::Result<Edges, Stopped>> {
    let mut store = job.store_with(reading.weights.column.is_some());
    let (read, names) = match reading.ends {
        Ends::Small => {
            let mut seen = Ranks::default();
            // Set if the greatest number is far above the number of edges: a hash table is then smaller.
            let mut sparse = false;
            let read = each::<Small>(job, reading, |edges, weights| {
                let most = MOST_BITS.max(64 * (store.len() + edges.len() as u64));
                let greatest = edges.iter().flatten().max().copied().unwrap_or(0);
                sparse |= u64::from(greatest) >= most;
                if !sparse {
                    edges.iter().flatten().for_each(|&id| seen.insert(id));
                    store.extend(edges)?;
                    store.extend_weights(weights)?;
                }
                Ok(())
            })?;
            if sparse && read.is_ok() {
                return Ok(Err(Stopped::new(0, b"", Stop::Large)));
            }
            (read, Names::Small(seen))
        }
        Ends::Large => {
            let mut ids = Interner::<Number>::new();
            let read = by_appearance::<Large>(job, reading, &mut store, |&id| ids.number(&id))?;
            (read, Names::Large(ids.keys.into_iter().map(|id| id.0).collect()))
        }
        Ends::Named => {
            let mut names = Interner::<Arc<str>>::new();
            let read = by_appearance::<Named>(job, reading, &mut store, |name| names.number::<str>(name))?;
            (read, Names::Named(names.keys))
        }
    };
    Ok(read.map(|counts| Edges { store, names, counts }))
}

/// Passes all edges to `take`, read by the layout.
fn each<T: for<'a> EndOf<'a>>(
    job: &ImportJob<'_>,
    reading: &Reading,
    take: impl for<'a> FnMut(&[[<T as EndOf<'a>>::End; 2]], &[f32]) -> Result<()>,
) -> Result<std::result::Result<Counts, Stopped>> {
    let text = job.meter.open_text(job.source, "it is the list of edges to import")?;
    let (file, layout) = (job.source.display().to_string(), &reading.layout);
    if reading.csv {
        return each_record::<T>(text, &file, layout, reading.weights.column, take);
    }
    let header = layout.header.as_ref().map_or(0, |header| header.line);
    each_edge::<_, T>(Blocks::new(text, file), header, (layout.delimiter, reading.weights.column), take)
}

/// A number as a key of [`Interner`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Number(u64);

impl From<&u64> for Number {
    fn from(number: &u64) -> Self {
        Self(*number)
    }
}

impl std::borrow::Borrow<u64> for Number {
    fn borrow(&self) -> &u64 {
        &self.0
    }
}

/// Stores edges under the numbers that `number` assigns to their ends.
fn by_appearance<T: for<'a> EndOf<'a>>(
    job: &ImportJob<'_>,
    reading: &Reading,
    store: &mut EdgeStore,
    mut number: impl for<'a> FnMut(&<T as EndOf<'a>>::End) -> Option<u32>,
) -> Result<std::result::Result<Counts, Stopped>> {
    let mut block = Vec::new();
    let mut unchecked = 0;
    each::<T>(job, reading, |edges, weights| {
        unchecked += edges.len();
        if unchecked >= CHECK_EVERY {
            unchecked = 0;
            if let Some(lack) = host::lack(CHECK_EVERY as u64 * NAMES_BYTES, host::free_bytes()) {
                return Err(job.wrong(format!("has more than {} edges: to read on {lack}", store.len())));
            }
        }
        block.clear();
        for [u, v] in edges {
            let (Some(u), Some(v)) = (number(u), number(v)) else {
                return Err(job.wrong("has more than 2^32 - 2 vertices"));
            };
            block.push([u, v]);
        }
        store.extend(&block)?;
        store.extend_weights(weights)
    })
}

/// Refuses array files if vertices have names: nothing says which row belongs to which vertex.
fn refuse_arrays_beside_names(job: &ImportJob<'_>, names: &Names) -> Result<()> {
    let Some((array, _)) = job.options.array() else { return Ok(()) };
    match names {
        Names::Named(_) => Err(job.wrong(format!(
            "names its vertices, so nothing says which of them a row of option `{array}` belongs to; give a file with a name a \
             line as option `vertex_order`, or a table as option `vertices`"
        ))),
        _ => Ok(()),
    }
}

/// Returns the number of rows of the first array file, which is the number of vertices.
fn rows(job: &ImportJob<'_>) -> Result<Option<(usize, String)>> {
    let Some(path) = job.options.features.or(job.options.labels) else { return Ok(None) };
    let numbers = Numbers::open(&job.meter, path, "it was named for the features or labels")?;
    let rows = numbers.shape.first().copied().unwrap_or(0);
    Ok(Some((rows, numbers.place)))
}

/// Numbers matched vertices in the order of their rows, and vertices without a row after them.
fn number_by(names: Names, matched: &mut Matched, order: &Order) -> Numbering {
    let vertices = matched.rows.len();
    let keys: Vec<&Arc<str>> = matched.rows.iter().map(|&row| &order.keys[row as usize]).collect();
    let names_of = |keys: &[&Arc<str>]| Ids::Names(keys.iter().map(|&key| key.clone()).collect());
    // A row of a vertex without edges may hold any name.
    let numbers = |keys: &[&Arc<str>]| match keys.iter().map(|key| key.parse().ok()).collect::<Option<Vec<u64>>>() {
        Some(ids) => (!ids.iter().copied().eq(0..ids.len() as u64)).then_some(Ids::Numbers(ids)),
        None => Some(names_of(keys)),
    };
    let table = std::mem::take(&mut matched.table);
    let (naming, ids) = match names {
        Names::Small(mut ranks) => {
            ranks.count();
            (Naming::RankedTable(ranks, table), numbers(&keys))
        }
        Names::Large(_) => (Naming::Table(table), numbers(&keys)),
        Names::Named(_) => (Naming::Table(table), Some(names_of(&keys))),
    };
    Numbering { vertices, naming, ids }
}

/// Numbers vertices by the rules of [`load`].
fn number(names: Names, rows: Option<(usize, String)>, job: &ImportJob<'_>) -> Result<Numbering> {
    let (vertices, naming, ids) = match names {
        Names::Small(ranks) => return number_small(ranks, rows),
        Names::Large(ids) => {
            let mut order: Vec<u32> = (0..ids.len() as u32).collect();
            order.sort_unstable_by_key(|&at| ids[at as usize]);
            let mut table = vec![0u32; ids.len()];
            for (rank, &at) in order.iter().enumerate() {
                table[at as usize] = rank as u32;
            }
            let sorted = order.iter().map(|&at| ids[at as usize]).collect();
            (ids.len(), Naming::Table(table), Ids::Numbers(sorted))
        }
        Names::Named(names) => (names.len(), Naming::Same, Ids::Names(names)),
    };
    match rows {
        Some((rows, file)) if rows != vertices => {
            let why = format!("has {rows} rows, but {} names {vertices} vertices", job.source.display());
            Err(Error::Import { file, why })
        }
        _ => Ok(Numbering { vertices, naming, ids: Some(ids) }),
    }
}

fn number_small(mut ranks: Ranks, rows: Option<(usize, String)>) -> Result<Numbering> {
    let distinct = ranks.count();
    let greatest = ranks.max().unwrap_or(0) as usize;
    let from_one = !ranks.contains(0);
    let all = |first: usize, vertices: usize| Ids::Numbers((first as u64..(first + vertices) as u64).collect());
    let vertices = match &rows {
        // Without gaps, the numbering is unambiguous.
        None if distinct == greatest + 1 => greatest + 1,
        None if from_one && distinct == greatest => greatest,
        None => distinct,
        Some((rows, _)) => *rows,
    };
    if greatest < vertices {
        return Ok(Numbering { vertices, naming: Naming::Same, ids: None });
    }
    if from_one && greatest == vertices {
        return Ok(Numbering { vertices, naming: Naming::FromOne, ids: Some(all(1, vertices)) });
    }
    if distinct == vertices {
        let ids = Some(Ids::Numbers(ranks.iter().collect()));
        return Ok(Numbering { vertices, naming: Naming::Ranked(ranks), ids });
    }
    let (rows, file) = rows.unwrap_or_default();
    let why = format!(
        "has {rows} rows, but the edges name {distinct} vertices up to {greatest}; expected a row for each of 0 to \
         {greatest}, or for each that is named"
    );
    Err(Error::Import { file, why })
}

/// Returns a note on which vertex each row belongs to, if vertices are numbers.
fn rule(ids: Option<&Ids>, vertices: usize, job: &ImportJob<'_>) -> Option<String> {
    let numbers = match ids {
        Some(Ids::Names(_)) => return None,
        Some(Ids::Numbers(numbers)) => Some(numbers),
        None => None,
    };
    let ordered = job.options.vertices.is_some() || job.options.vertex_order.is_some();
    let id = |row: usize| numbers.map_or(row as u64, |ids| ids[row]);
    let how = match numbers {
        _ if ordered => "as listed",
        None => "ids are rows",
        Some(ids) if ids.iter().copied().eq(1..=ids.len() as u64) => "ids count from 1",
        Some(_) => "ids have gaps, ascending",
    };
    let matches = |rows: std::ops::Range<usize>| rows.map(|row| format!("{row} = id {}", id(row))).collect::<Vec<_>>();
    let shown = match vertices {
        0..=6 => matches(0..vertices).join(", "),
        _ => format!("{}, ..., {}", matches(0..SOME).join(", "), matches(vertices - SOME..vertices).join(", ")),
    };
    Some(format!("row of each vertex ({how}): {shown}"))
}

/// Returns the first few of many names, for messages.
pub(super) fn some<T: AsRef<str>>(all: &[T]) -> String {
    let mut shown: Vec<String> =
        all.iter().take(SOME).map(|one| format!("`{}`", shown(one.as_ref().as_bytes()))).collect();
    if all.len() > SOME {
        shown.push("...".into());
    }
    shown.join(", ")
}
