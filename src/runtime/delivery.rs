//! Who is sent the rows of a part, what a part is sent, and where letters of other ranks go.

use std::sync::Arc;

use lapidary_kernels::sync::Sender;
use lapidary_kernels::{HostSlot, Shared};

use super::exchange::{Expected, Halo, Inbox, Reader, Route};
use super::message::{ToDriver, ToWorker};
use super::wire::report_of;
use crate::error::Result;
use crate::lower::{Exchange, Lowered, Routes, Source, Supply};
use crate::ranks::{Letter, Ranks, Subject};

/// Returns what a part expects of each exchange.
pub(super) fn inbox(lowered: &Lowered, supply: &mut Supply<'_>, part: usize) -> Inbox {
    let expected = lowered.exchanges.iter().map(|exchange| match exchange {
        Exchange::Sum { .. } => Expected::Sum(None),
        Exchange::Reduce { .. } => Expected::Nothing,
        Exchange::Halo { packed, halo, crossing, width, float } => {
            let sources = supply.routes(*crossing).sources[part].clone();
            let tile_bytes = halo.iter().map(|&slot| lowered.tensor(slot).bytes as usize).collect();
            Expected::Halo(Halo::new(sources, packed.len(), tile_bytes, float.byte_count() * width))
        }
        Exchange::Fetch { crossing, owner, .. } => {
            let sources = supply.routes(*crossing).sources[part].iter();
            let sources = sources.filter(|source| owner.is_none_or(|owner| source.part == owner));
            Expected::Fetch(sources.map(|source| (source.part, source.rows.len(), None)).collect())
        }
    });
    Inbox::new(&lowered.exchanges, expected.collect())
}

/// Returns, for each exchange, who reads the rows of `part`. `post_of` returns the sender of a worker of this rank.
pub(super) fn readers(
    lowered: &[Arc<Lowered>],
    supply: &mut Supply<'_>,
    part: usize,
    (ranks, session): (&Ranks, u64),
    post_of: impl Fn(usize) -> Option<Sender<ToWorker>>,
) -> Vec<Vec<Reader>> {
    let devices = lowered.len() / ranks.count();
    let of_exchange = |(number, exchange): (usize, &Exchange)| {
        let (crossing, packs, row_bytes) = match exchange {
            Exchange::Sum { .. } | Exchange::Reduce { .. } => return Vec::new(),
            Exchange::Fetch { owner: Some(owner), .. } if *owner != part => return Vec::new(),
            Exchange::Halo { packed, crossing, width, float, .. } => {
                (*crossing, &packed[..], float.byte_count() * width)
            }
            Exchange::Fetch { crossing, .. } => (*crossing, &[][..], 0),
        };
        let pack_rows = packs.iter().map(|&slot| lowered[part].tensor(slot).bytes as usize / row_bytes.max(1));
        let pack_rows: Vec<usize> = pack_rows.collect();
        let readers =
            rows_read(supply.routes(crossing), part).into_iter().map(|(reader, rows)| match post_of(reader) {
                Some(worker) => Reader::Here(worker),
                None => {
                    let head = Letter::new(Subject::Rows, session);
                    let letter = Letter { exchange: number as u64, part: part as u64, to: reader as u64, ..head };
                    let rows = by_tile(rows, &pack_rows);
                    Reader::Elsewhere(Route { ranks: ranks.clone(), rank: reader / devices, letter, rows, row_bytes })
                }
            });
        readers.collect()
    };
    lowered[part].exchanges.iter().enumerate().map(of_exchange).collect()
}

/// Returns the parts that read rows of `part`, each with the rows of the pack that it reads.
fn rows_read(routes: &Routes, part: usize) -> Vec<(usize, &[u32])> {
    let of_part = |sources: &'_ [Source]| sources.iter().position(|source| source.part == part);
    let readers = routes.sources.iter().enumerate();
    readers.filter_map(|(reader, sources)| Some((reader, &sources[of_part(sources)?].rows[..]))).collect()
}

/// Splits ascending rows of a pack by the tiles of the pack, and numbers them from the first row of their tile.
fn by_tile(mut rows: &[u32], tiles: &[usize]) -> Vec<Vec<u32>> {
    let mut first = 0;
    let of_tile = |&count: &usize| {
        let (here, rest) = rows.split_at(rows.partition_point(|&row| (row as usize) < first + count));
        let numbered = here.iter().map(|row| row - first as u32).collect();
        (rows, first) = (rest, first + count);
        numbered
    };
    tiles.iter().map(of_tile).collect()
}

/// Returns a function that gives the letters of other ranks to the workers and to the driver. `first` is the first part
/// of this rank. Who has stopped needs no letters.
pub(super) fn receive(
    workers: Vec<Sender<ToWorker>>,
    first: usize,
    driver: Sender<ToDriver>,
) -> impl FnMut(Result<(Letter, Shared<u8>)>) + Send {
    move |received| {
        let (letter, content) = match received {
            Ok(letter) => letter,
            Err(error) => return drop(driver.send(ToDriver::Failed(error))),
        };
        let [exchange, part, to, tile] =
            [letter.exchange, letter.part, letter.to, letter.tile].map(|number| number as usize);
        let message = match letter.subject() {
            Some(Subject::Rows) => {
                if let Some(worker) = workers.get(to.wrapping_sub(first)) {
                    drop(worker.send(ToWorker::Rows(exchange, part, tile, HostSlot::Constant(content))));
                }
                return;
            }
            Some(Subject::Term) => ToDriver::Term(exchange, part, HostSlot::Constant(content)),
            Some(Subject::Sum) => ToDriver::Sum(exchange, part, HostSlot::Constant(content)),
            Some(Subject::Report) => match report_of(&content) {
                Ok(report) => ToDriver::Done(part, report),
                Err(error) => ToDriver::Failed(error),
            },
            _ => return,
        };
        drop(driver.send(message));
    }
}
