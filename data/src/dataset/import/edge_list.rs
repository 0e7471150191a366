//! A text of edges: SNAP's, KONECT's, or two columns of a CSV file.

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
use crate::dataset::edge_store::EdgeStore;
use crate::dataset::error::{Error, Result};

/// Numbers are kept as they are, with a bit for each below the greatest, while these many bytes of bits suffice, or while
/// there is a bit of an edge's own bytes for each. Past that they are looked up in a table.
const MOST_BITS: u64 = 8 * (64 << 20);
/// How many names a message lists.
const SOME: usize = 3;

/// What the ends of edges are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Small,
    Large,
    Named,
}

/// How the source is read. A reading that meets what it cannot take is begun anew as another.
#[derive(Clone, Debug)]
struct Reading {
    ends: Ends,
    /// By the rules of CSV, one record after the other; else line by line in threads.
    csv: bool,
    layout: Layout,
    /// Why ends are names and not numbers.
    reason: Option<Stopped>,
}

/// Edges under the numbers that the file gives or the order of appearance gives.
struct Edges {
    store: EdgeStore,
    names: Names,
    counts: Counts,
}

/// What vertices are called in the source.
pub(super) enum Names {
    /// The file's own numbers.
    Small(Ranks),
    /// By order of appearance.
    Large(Vec<u64>),
    Named(Vec<Arc<str>>),
}

/// What a vertex is called where edges are drawn from.
enum Naming {
    /// As in the file.
    Same,
    /// One less than in the file.
    FromOne,
    /// By rank.
    Ranked(Ranks),
    /// By a table.
    Table(Vec<u32>),
    /// By rank, and then by a table.
    RankedTable(Ranks, Vec<u32>),
}

/// Which vertex is which: their number, and what they were called if that is something else.
struct Numbering {
    vertices: usize,
    naming: Naming,
    ids: Option<Ids>,
}

/// Reads edges `u -> v`, one a line; what else a line holds is left out and counted.
///
/// Vertices are numbered in the order of a table or of `vertex_order` where there is one. Without it numbers are vertices as they
/// are if they are 0, 1, ... without a gap, or if the features or labels have a row for each; else they are numbered in ascending
/// order. Anything else is a name, numbered as it appears.
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let order = Order::read(job)?;
    let mut reading = Reading::new(layout(job)?);
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
    let (symmetrise, keep) = (job.rules.symmetrise, job.rules.keep);
    let (store, all) = (edges.store, vertices + rowless);
    let (graph, seen) = match &naming {
        Naming::Same => store.finish(all, symmetrise, keep, |id| id),
        Naming::FromOne => store.finish(all, symmetrise, keep, |id| id - 1),
        Naming::Ranked(ranks) => store.finish(all, symmetrise, keep, |id| ranks.rank(id)),
        Naming::Table(table) => store.finish(all, symmetrise, keep, |id| table[id as usize]),
        Naming::RankedTable(ranks, table) => store.finish(all, symmetrise, keep, |id| table[ranks.rank(id) as usize]),
    }?;
    let mut parts = job.parts(graph);
    // A name like graph.txt.gz has two endings.
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
        values_dropped: edges.counts.with_more,
        comments: edges.counts.comments,
        notes,
        ..Loaded::new(parts, edges_listed, seen, symmetrise)
    })
}

impl Reading {
    fn new(layout: Layout) -> Self {
        Self { ends: Ends::Small, csv: layout.ends != [0, 1], layout, reason: None }
    }

    /// How to begin anew.
    fn next(mut self, job: &ImportJob<'_>, stopped: Stopped) -> Result<Self> {
        let Stopped { line, text, stop } = &stopped;
        let wrong = |what: &str| Err(job.wrong(format!("line {line} {what}: `{text}`")));
        match stop {
            Stop::OneEnd => return wrong("has one column, expected the two ends of an edge"),
            Stop::Empty => return wrong("has an empty cell, expected the two ends of an edge"),
            Stop::NotText => return wrong("is not UTF-8; an end is a number or a name"),
            Stop::LineEnd => {
                return wrong(
                    "begins a name that holds a line end; is a quote left open, or does a name need mending?",
                );
            }
            Stop::Quote => self.csv = true,
            Stop::Large => self.ends = Ends::Large,
            Stop::Name => {
                self.ends = Ends::Named;
                // Where ends are names, a line of names above numbers was an edge.
                if let Some(Header { certain: false, titles, .. }) = &self.layout.header {
                    self.layout.doubtful = Some(titles[..2].join(" -> "));
                    self.layout.header = None;
                }
                self.reason = Some(stopped);
            }
        }
        Ok(self)
    }

    /// What was guessed and passed over, for people.
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
        if counts.quoted_line_ends > 0 {
            let lines = counts.quoted_line_ends;
            notes.push(format!("{lines} line ends stand within quoted cells, which were left out"));
        }
        notes
    }
}

/// One reading of the file.
fn read(job: &ImportJob<'_>, reading: &Reading) -> Result<std::result::Result<Edges, Stopped>> {
    let mut store = job.store();
    let (read, names) = match reading.ends {
        Ends::Small => {
            let mut seen = Ranks::default();
            // The greatest number is far above what there are edges for: a table is smaller.
            let mut sparse = false;
            let read = each::<Small>(job, reading, |edges| {
                let most = MOST_BITS.max(64 * (store.len() + edges.len() as u64));
                let greatest = edges.iter().flatten().max().copied().unwrap_or(0);
                sparse |= u64::from(greatest) >= most;
                if !sparse {
                    edges.iter().flatten().for_each(|&id| seen.insert(id));
                    store.extend(edges)?;
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

/// Gives all edges to `take`, by the layout's rules.
fn each<T: for<'a> EndOf<'a>>(
    job: &ImportJob<'_>,
    reading: &Reading,
    take: impl for<'a> FnMut(&[[<T as EndOf<'a>>::End; 2]]) -> Result<()>,
) -> Result<std::result::Result<Counts, Stopped>> {
    let text = job.meter.open_text(job.source, "it is the list of edges to import")?;
    let (file, layout) = (job.source.display().to_string(), &reading.layout);
    if reading.csv {
        return each_record::<T>(text, &file, layout, take);
    }
    let header = layout.header.as_ref().map_or(0, |header| header.line);
    each_edge::<_, T>(Blocks::new(text, file), header, layout.delimiter, take)
}

/// A number as a key of its own.
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

/// Stores edges under the numbers that `number` gives their ends.
fn by_appearance<T: for<'a> EndOf<'a>>(
    job: &ImportJob<'_>,
    reading: &Reading,
    store: &mut EdgeStore,
    mut number: impl for<'a> FnMut(&<T as EndOf<'a>>::End) -> Option<u32>,
) -> Result<std::result::Result<Counts, Stopped>> {
    let mut block = Vec::new();
    each::<T>(job, reading, |edges| {
        block.clear();
        for [u, v] in edges {
            let (Some(u), Some(v)) = (number(u), number(v)) else {
                return Err(job.wrong("has more than 2^32 - 2 vertices"));
            };
            block.push([u, v]);
        }
        store.extend(&block)
    })
}

/// Nobody can know which row of an array is whose, where vertices have names.
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

/// How many vertices there have to be: rows of the first array that was named.
fn rows(job: &ImportJob<'_>) -> Result<Option<(usize, String)>> {
    let Some(path) = job.options.features.or(job.options.labels) else { return Ok(None) };
    let numbers = Numbers::open(&job.meter, path, "it was named for the features or labels")?;
    let rows = numbers.shape.first().copied().unwrap_or(0);
    Ok(Some((rows, numbers.place)))
}

/// Numbers vertices as the rows that they were matched with, and those without a row after them.
fn number_by(names: Names, matched: &mut Matched, order: &Order) -> Numbering {
    let vertices = matched.rows.len();
    let keys = matched.rows.iter().map(|&row| &order.keys[row as usize]);
    let numbers = |keys: &mut dyn Iterator<Item = &Arc<str>>| -> Option<Ids> {
        // Only rows that hold a number match one.
        let ids: Vec<u64> = keys.map(|key| key.parse().unwrap_or_default()).collect();
        (!ids.iter().copied().eq(0..ids.len() as u64)).then_some(Ids::Numbers(ids))
    };
    let table = std::mem::take(&mut matched.table);
    let (naming, ids) = match names {
        Names::Small(mut ranks) => {
            ranks.count();
            (Naming::RankedTable(ranks, table), numbers(&mut { keys }))
        }
        Names::Large(_) => (Naming::Table(table), numbers(&mut { keys })),
        Names::Named(_) => (Naming::Table(table), Some(Ids::Names(keys.cloned().collect()))),
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
        // Without a gap it is clear.
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

/// Which vertex each row belongs to, where vertices are numbers.
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

/// The first few of many, for messages.
pub(super) fn some<T: AsRef<str>>(all: &[T]) -> String {
    let mut shown: Vec<String> =
        all.iter().take(SOME).map(|one| format!("`{}`", shown(one.as_ref().as_bytes()))).collect();
    if all.len() > SOME {
        shown.push("...".into());
    }
    shown.join(", ")
}
