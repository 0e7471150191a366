//! A text of edges: SNAP's, KONECT's, or a CSV's first two columns.

use std::sync::Arc;

use super::ids::{Ids, Interner, Ranks};
use super::job::{Job, Loaded};
use super::numbers::Numbers;
use super::text::{Blocks, EndOf, Large, Named, Small, Stop, Stopped, each_edge};
use crate::dataset::edge_store::EdgeStore;
use crate::dataset::error::{Error, Result};

/// Numbers are kept as they are, with a bit for each below the greatest, while these many bytes of bits suffice, or while
/// there is a bit of an edge's own bytes for each. Past that they are looked up in a table.
const MOST_BITS: u64 = 8 * (64 << 20);

/// How ends are read. A reading that meets what it cannot take is begun anew as another.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    Small { header: u64 },
    Large { header: u64 },
    Named,
}

/// Edges under the numbers that the file gives or the order of appearance gives.
struct Edges {
    store: EdgeStore,
    names: Names,
    with_more: u64,
}

enum Names {
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
}

/// Reads edges `u -> v`, one a line; what else a line holds is left out and counted.
///
/// Numbers are vertices as they are if they are 0, 1, ... without a gap, or if the features or labels have a row for each; else
/// they are numbered in ascending order. Anything else is a name, numbered as it appears.
pub(super) fn load(job: &Job<'_>) -> Result<Loaded> {
    let mut reading = Reading::Small { header: 0 };
    let edges = loop {
        match read(job, reading)? {
            Ok(edges) => break edges,
            Err(stopped) => reading = next_reading(job, reading, stopped)?,
        }
    };
    let mut notes = Vec::new();
    if matches!(reading, Reading::Small { header: 1.. } | Reading::Large { header: 1.. }) {
        notes.push("the first line was taken for a header".into());
    }
    let edges_listed = edges.store.len();
    if edges_listed == 0 {
        return Err(job.wrong("holds no edges"));
    }
    let (vertices, naming, ids) = name(edges.names, rows(job)?, job, &mut notes)?;
    let (symmetrise, keep) = (job.rules.symmetrise, job.rules.keep);
    let store = edges.store;
    let (graph, seen) = match &naming {
        Naming::Same => store.finish(vertices, symmetrise, keep, |id| id),
        Naming::FromOne => store.finish(vertices, symmetrise, keep, |id| id - 1),
        Naming::Ranked(ranks) => store.finish(vertices, symmetrise, keep, |id| ranks.rank(id)),
        Naming::Table(table) => store.finish(vertices, symmetrise, keep, |id| table[id as usize]),
    }?;
    let mut parts = job.parts(graph);
    // A name like graph.txt.gz has two endings.
    for ending in [".txt", ".csv", ".tsv", ".edges"] {
        parts.name = parts.name.strip_suffix(ending).map_or(parts.name.clone(), str::to_string);
    }
    parts.directed = symmetrise.then_some(false);
    job.add_arrays(&mut parts)?;
    Ok(Loaded { ids, values_dropped: edges.with_more, notes, ..Loaded::new(parts, edges_listed, seen, symmetrise) })
}

/// How to begin anew.
fn next_reading(job: &Job<'_>, reading: Reading, stopped: Stopped) -> Result<Reading> {
    let line = stopped.line;
    match (stopped.stop, reading) {
        (Stop::OneEnd, _) => Err(job.wrong(format!("line {line} has one column, expected the two ends of an edge"))),
        (Stop::NotText, _) => Err(job.wrong(format!("line {line} is not UTF-8; an end is a number or a name"))),
        // Column titles, if what follows are numbers.
        (Stop::Name, Reading::Small { header: 0 }) if stopped.first => Ok(Reading::Small { header: line }),
        (Stop::Large, Reading::Small { header }) => Ok(Reading::Large { header }),
        _ => Ok(Reading::Named),
    }
}

/// One reading of the file.
fn read(job: &Job<'_>, reading: Reading) -> Result<std::result::Result<Edges, Stopped>> {
    let text = job.meter.open_text(job.source, "it is the list of edges to import")?;
    let blocks = Blocks::new(text, job.source.display().to_string());
    let mut store = job.store();
    let (read, names) = match reading {
        Reading::Small { header } => {
            let mut seen = Ranks::default();
            // The greatest number is far above what there are edges for: a table is smaller.
            let mut sparse = false;
            let read = each_edge::<_, Small>(blocks, header, |edges| {
                let most = MOST_BITS.max(64 * (store.len() + edges.len() as u64));
                let greatest = edges.iter().flatten().max().copied().unwrap_or(0);
                sparse |= u64::from(greatest) >= most;
                if !sparse {
                    edges.iter().flatten().for_each(|&id| seen.insert(id));
                    store.extend(edges)?;
                }
                Ok(())
            })?;
            if sparse {
                return Ok(Err(Stopped { line: 0, stop: Stop::Large, first: false }));
            }
            (read, Names::Small(seen))
        }
        Reading::Large { header } => {
            let mut ids = Interner::<Number>::new();
            let read = by_appearance::<Large>(job, blocks, header, &mut store, |&id| ids.number(&id))?;
            (read, Names::Large(ids.keys.into_iter().map(|id| id.0).collect()))
        }
        Reading::Named => {
            let mut names = Interner::<Arc<str>>::new();
            let read = by_appearance::<Named>(job, blocks, 0, &mut store, |name| names.number::<str>(name))?;
            (read, Names::Named(names.keys))
        }
    };
    Ok(read.map(|with_more| Edges { store, names, with_more }))
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
    job: &Job<'_>,
    blocks: Blocks<Box<dyn std::io::Read + Send + '_>>,
    header: u64,
    store: &mut EdgeStore,
    mut number: impl for<'a> FnMut(&<T as EndOf<'a>>::End) -> Option<u32>,
) -> Result<std::result::Result<u64, Stopped>> {
    let mut block = Vec::new();
    each_edge::<_, T>(blocks, header, |edges| {
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

/// How many vertices there have to be: rows of the first array that was named.
fn rows(job: &Job<'_>) -> Result<Option<(usize, String)>> {
    let Some(path) = job.options.features.or(job.options.labels) else { return Ok(None) };
    let numbers = Numbers::open(&job.meter, path, "it was named for the features or labels")?;
    let rows = numbers.shape.first().copied().unwrap_or(0);
    Ok(Some((rows, numbers.place)))
}

/// The number of vertices, their numbers, and what they were called if that is something else.
fn name(
    names: Names,
    rows: Option<(usize, String)>,
    job: &Job<'_>,
    notes: &mut Vec<String>,
) -> Result<(usize, Naming, Option<Ids>)> {
    let (vertices, naming, ids) = match names {
        Names::Small(ranks) => return name_small(ranks, rows, notes),
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
        _ => Ok((vertices, naming, Some(ids))),
    }
}

fn name_small(
    mut ranks: Ranks,
    rows: Option<(usize, String)>,
    notes: &mut Vec<String>,
) -> Result<(usize, Naming, Option<Ids>)> {
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
        return Ok((vertices, Naming::Same, None));
    }
    if from_one && greatest == vertices {
        notes.push("the numbers of vertices count from 1".into());
        return Ok((vertices, Naming::FromOne, Some(all(1, vertices))));
    }
    if distinct == vertices {
        notes.push(format!("the {distinct} numbers of vertices have gaps and were closed up in ascending order"));
        let ids = Ids::Numbers(ranks.iter().collect());
        return Ok((vertices, Naming::Ranked(ranks), Some(ids)));
    }
    let (rows, file) = rows.unwrap_or_default();
    let why = format!(
        "has {rows} rows, but the edges name {distinct} vertices up to {greatest}; expected a row for each of 0 to \
         {greatest}, or for each that is named"
    );
    Err(Error::Import { file, why })
}
