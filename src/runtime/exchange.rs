//! Exchanges between parts. Packed rows go to the workers that read them: copied through host memory, lent in device
//! memory, or sent to another rank. Terms of sums go to the driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_kernels::sync::Sender;
use lapidary_kernels::{HostSlot, Lent, Slot};

use super::message::{ToDriver, ToWorker};
use crate::lower::{Exchange, Source};
use crate::ranks::{Letter, Ranks};

/// The sending side of a worker.
pub(super) struct Mail {
    part: usize,
    exchanges: Arc<Vec<Exchange>>,
    /// For each published tensor, its exchange and its tile index.
    by_published: BTreeMap<Slot, (usize, usize)>,
    /// For each tensor that is fetched or added from device to device, its exchange.
    by_fetched: BTreeMap<Slot, usize>,
    /// For each exchange, the parts that read this part's rows.
    readers: Vec<Vec<Reader>>,
    /// The workers of this rank, whose devices exchange rows and sums with each other.
    workers: Vec<Sender<ToWorker>>,
    driver: Sender<ToDriver>,
}

/// A part that reads another part's rows.
pub(super) enum Reader {
    /// A worker of this rank, which takes its rows from the pack.
    Here(Sender<ToWorker>),
    /// A part of another rank. It is sent only the rows that it reads.
    Elsewhere(Route),
}

/// The rows of a part that a part of another rank reads.
pub(super) struct Route {
    pub ranks: Ranks,
    /// The rank of the reader.
    pub rank: usize,
    /// The head of the letter, without the tile.
    pub letter: Letter,
    /// For each tile, the rows of its pack that are read.
    pub rows: Vec<Vec<u32>>,
    /// Bytes per row.
    pub row_bytes: usize,
}

impl Route {
    /// Sends the rows of a tile's pack that are read.
    fn send(&self, tile: usize, pack: &HostSlot) {
        let letter = Letter { tile: tile as u64, ..self.letter };
        let rows = &self.rows[tile];
        pack.read(|pack| {
            let row = |&row: &u32| &pack[row as usize * self.row_bytes..][..self.row_bytes];
            self.ranks.send(self.rank, &letter, rows.len() * self.row_bytes, rows.iter().map(row));
        });
    }
}

impl Mail {
    pub(super) fn new(
        part: usize,
        exchanges: Arc<Vec<Exchange>>,
        readers: Vec<Vec<Reader>>,
        workers: Vec<Sender<ToWorker>>,
        driver: Sender<ToDriver>,
    ) -> Self {
        let by_published = places(exchanges.iter().map(Exchange::published));
        let fetched = exchanges.iter().enumerate().filter_map(|(i, exchange)| match exchange {
            Exchange::Fetch { halo: made, .. } | Exchange::Reduce { sum: made, .. } => Some((*made, i)),
            Exchange::Halo { .. } | Exchange::Sum { .. } => None,
        });
        let by_fetched = fetched.collect();
        Self { part, exchanges, by_published, by_fetched, readers, workers, driver }
    }

    /// Returns the exchange that fetches a tensor from other devices, or adds it with them.
    pub(super) fn fetched_by(&self, slot: Slot) -> usize {
        *self.by_fetched.get(&slot).expect("what devices exchange is part of an exchange")
    }

    /// Returns the number of parts that read this part's rows.
    pub(super) fn reader_count(&self, exchange: usize) -> usize {
        self.readers[exchange].len()
    }

    /// Lends rows to the parts that read them.
    pub(super) fn lend(&self, exchange: usize, rows: &Lent) {
        for reader in &self.readers[exchange] {
            match reader {
                Reader::Here(worker) => drop(worker.send(ToWorker::Lent(exchange, self.part, rows.clone()))),
                Reader::Elsewhere(_) => unreachable!("no rank reads another one's devices"),
            }
        }
    }

    /// Returns the other parts, which add their terms of a sum with this one.
    pub(super) fn others(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|&part| part != self.part).collect()
    }

    /// Tells other parts that this one has come so far in an exchange: see [`ToWorker::Passed`].
    pub(super) fn tell_passed(&self, exchange: usize, parts: &[usize]) {
        for &part in parts {
            drop(self.workers[part].send(ToWorker::Passed(exchange)));
        }
    }

    /// Returns the exchange and the tile index of a published tensor.
    pub(super) fn place_of(&self, slot: Slot) -> Option<(usize, usize)> {
        self.by_published.get(&slot).copied()
    }

    /// Sends published rows to the parts that read them. A receiver that has stopped is ignored.
    pub(super) fn send(&self, (exchange, tile): (usize, usize), rows: &HostSlot) {
        match self.exchanges[exchange] {
            Exchange::Fetch { .. } | Exchange::Reduce { .. } => unreachable!("what devices exchange is not published"),
            Exchange::Sum { .. } => drop(self.driver.send(ToDriver::Term(exchange, self.part, rows.clone()))),
            Exchange::Halo { .. } => {
                for reader in &self.readers[exchange] {
                    match reader {
                        Reader::Here(worker) => {
                            drop(worker.send(ToWorker::Rows(exchange, self.part, tile, rows.clone())))
                        }
                        Reader::Elsewhere(route) => route.send(tile, rows),
                    }
                }
            }
        }
    }
}

/// Returns for each slot the index of its list and its position there.
fn places<'a>(lists: impl Iterator<Item = &'a [Slot]>) -> BTreeMap<Slot, (usize, usize)> {
    let places =
        lists.enumerate().flat_map(|(i, slots)| slots.iter().enumerate().map(move |(j, &slot)| (slot, (i, j))));
    places.collect()
}

/// The receiving side of a worker: what it was sent and has not used yet.
pub(super) struct Inbox {
    /// For each received tensor, its exchange and its tile index.
    by_received: BTreeMap<Slot, (usize, usize)>,
    expected: Vec<Expected>,
    /// For each exchange, how many parts have passed their point of it: see [`ToWorker::Passed`].
    passed: Vec<usize>,
}

/// Rows lent by other parts, with the number of rows of each: the input of a fetch.
pub(super) type Rows = Vec<(Lent, usize)>;

/// What one exchange brings to this part.
pub(super) enum Expected {
    /// The rows of a halo, through the host.
    Halo(Halo),
    /// The rows of a halo, to be fetched: for each owner its part, the number of rows and, once lent, the rows.
    Fetch(Vec<(usize, usize, Option<Lent>)>),
    /// A sum over all parts.
    Sum(Option<HostSlot>),
    /// Nothing: the devices add.
    Nothing,
}

/// The halo of one part. Its tiles are assembled once all packed rows have arrived.
pub(super) struct Halo {
    /// The rows of each owner, in halo order.
    sources: Vec<Source>,
    /// For each owner, what each of its tiles packed.
    packed: Vec<Vec<Option<HostSlot>>>,
    /// Bytes per row.
    row_bytes: usize,
    /// Buffers in which the tiles are assembled.
    tiles: Vec<Option<HostSlot>>,
    tile_bytes: Vec<usize>,
    /// Tiles taken since all rows arrived.
    taken: usize,
}

impl Halo {
    pub(super) fn new(sources: Vec<Source>, packs: usize, tile_bytes: Vec<usize>, row_bytes: usize) -> Self {
        let packed = vec![vec![None; packs]; sources.len()];
        Self { packed, sources, row_bytes, tiles: vec![None; tile_bytes.len()], tile_bytes, taken: 0 }
    }

    /// Returns a tile, if all rows have arrived. Taking the last tile drops the received rows.
    fn take(&mut self, tile: usize) -> lapidary_kernels::Result<Option<HostSlot>> {
        if self.packed.iter().flatten().any(Option::is_none) {
            return Ok(None);
        }
        let taken = self.put_together(tile)?;
        self.taken += 1;
        if self.taken == self.tiles.len() {
            self.taken = 0;
            self.packed.iter_mut().flatten().for_each(|packed| *packed = None);
        }
        Ok(Some(taken))
    }

    fn put_together(&mut self, tile: usize) -> lapidary_kernels::Result<HostSlot> {
        if let ([source], [packed], [bytes]) = (&self.sources[..], &self.packed[..], &self.tile_bytes[..])
            && let [Some(rows)] = &packed[..]
            && source.rows.len() * self.row_bytes == rows.len()
            && *bytes == rows.len()
        {
            return Ok(rows.clone()); // exactly what the only owner packed: no copy needed
        }
        let together = match &self.tiles[tile] {
            Some(halo) => halo.clone(),
            None => HostSlot::staging(self.tile_bytes[tile])?,
        };
        self.tiles[tile] = Some(together.clone());
        let row_bytes = self.row_bytes.max(1);
        let first = self.tile_bytes[..tile].iter().sum::<usize>() / row_bytes;
        together.write(|bytes| {
            let wanted = first..first + bytes.len() / row_bytes;
            let mut rows = bytes.chunks_exact_mut(row_bytes);
            let mut before = 0;
            for (source, packed) in self.sources.iter().zip(&self.packed) {
                let [start, end] =
                    [wanted.start, wanted.end].map(|row| row.clamp(before, before + source.rows.len()) - before);
                before += source.rows.len();
                copy_rows(&source.rows[start..end], packed, row_bytes, rows.by_ref());
            }
        })?;
        Ok(together)
    }
}

/// Copies the ascending rows `wanted` of what an owner's tiles packed, tile by tile.
fn copy_rows<'a>(
    mut wanted: &[u32],
    packed: &[Option<HostSlot>],
    row_bytes: usize,
    mut to: impl Iterator<Item = &'a mut [u8]>,
) {
    let mut first = 0;
    for packed in packed.iter().flatten() {
        let end = first + packed.len() / row_bytes;
        let (here, rest) = wanted.split_at(wanted.partition_point(|&row| (row as usize) < end));
        packed.read(|packed| {
            for (&from, to) in here.iter().zip(to.by_ref()) {
                to.copy_from_slice(&packed[(from as usize - first) * row_bytes..][..row_bytes]);
            }
        });
        (wanted, first) = (rest, end);
    }
}

impl Inbox {
    pub(super) fn new(exchanges: &[Exchange], expected: Vec<Expected>) -> Self {
        let passed = vec![0; exchanges.len()];
        Self { by_received: places(exchanges.iter().map(Exchange::received)), expected, passed }
    }

    pub(super) fn put_lent(&mut self, exchange: usize, part: usize, rows: Lent) {
        if let Expected::Fetch(sources) = &mut self.expected[exchange]
            && let Some((.., lent)) = sources.iter_mut().find(|(owner, ..)| *owner == part)
        {
            *lent = Some(rows);
        }
    }

    pub(super) fn put_passed(&mut self, exchange: usize) {
        self.passed[exchange] += 1;
    }

    /// Returns the owners of the rows that a fetch reads.
    pub(super) fn lenders(&self, exchange: usize) -> Vec<usize> {
        match &self.expected[exchange] {
            Expected::Fetch(sources) => sources.iter().map(|(owner, ..)| *owner).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns and clears the input of a fetch, once all of it was lent.
    pub(super) fn take_lent(&mut self, exchange: usize) -> Option<Rows> {
        let Expected::Fetch(sources) = &mut self.expected[exchange] else { return Some(Vec::new()) };
        if sources.iter().any(|(.., lent)| lent.is_none()) {
            return None;
        }
        Some(sources.iter_mut().filter_map(|(_, count, lent)| Some((lent.take()?, *count))).collect())
    }

    /// Returns whether so many parts have passed their point of an exchange. If so, resets the count.
    pub(super) fn take_passed(&mut self, exchange: usize, parts: usize) -> bool {
        let all = self.passed[exchange] == parts;
        if all {
            self.passed[exchange] = 0;
        }
        all
    }

    pub(super) fn put_rows(&mut self, exchange: usize, part: usize, tile: usize, rows: HostSlot) {
        if let Expected::Halo(Halo { sources, packed, .. }) = &mut self.expected[exchange]
            && let Some(place) = sources.iter().position(|source| source.part == part)
        {
            packed[place][tile] = Some(rows);
        }
    }

    pub(super) fn put_sum(&mut self, exchange: usize, sum: HostSlot) {
        if let Expected::Sum(expected) = &mut self.expected[exchange] {
            *expected = Some(sum);
        }
    }

    /// Returns and clears a received tensor, once all of it has arrived.
    ///
    /// # Errors
    /// If the host has no memory for it.
    pub(super) fn take(&mut self, slot: Slot) -> lapidary_kernels::Result<Option<HostSlot>> {
        let &(exchange, tile) = self.by_received.get(&slot).expect("a received tensor is part of an exchange");
        match &mut self.expected[exchange] {
            Expected::Sum(sum) => Ok(sum.take()),
            Expected::Halo(halo) => halo.take(tile),
            Expected::Fetch(_) | Expected::Nothing => unreachable!("what devices exchange is not received"),
        }
    }
}
