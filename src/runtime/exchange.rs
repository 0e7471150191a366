//! What parts tell each other, staged in host memory: packed rows go to the workers that read them, terms of sums to the driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::Sender;
use lapidary_kernels::{HostSlot, Slot};

use super::message::{ToDriver, ToWorker};
use crate::lower::{Exchange, Source};

/// A worker's way to the others.
pub(super) struct Mail {
    part: usize,
    exchanges: Arc<Vec<Exchange>>,
    by_published: BTreeMap<Slot, usize>,
    /// By exchange, the parts that read this part's rows.
    readers: Vec<Vec<usize>>,
    peers: Vec<Sender<ToWorker>>,
    driver: Sender<ToDriver>,
}

impl Mail {
    pub(super) fn new(
        part: usize,
        exchanges: Arc<Vec<Exchange>>,
        readers: Vec<Vec<usize>>,
        peers: Vec<Sender<ToWorker>>,
        driver: Sender<ToDriver>,
    ) -> Self {
        let by_published = exchanges.iter().enumerate().map(|(i, exchange)| (exchange.published(), i)).collect();
        Self { part, exchanges, by_published, readers, peers, driver }
    }

    /// The exchange that a tensor is published for.
    pub(super) fn exchange_of(&self, slot: Slot) -> Option<usize> {
        self.by_published.get(&slot).copied()
    }

    /// Hands published rows to those who read them. Whoever is gone needs none.
    pub(super) fn send(&self, exchange: usize, rows: &HostSlot) {
        match self.exchanges[exchange] {
            Exchange::Sum { .. } => drop(self.driver.send(ToDriver::Term(exchange, self.part, rows.clone()))),
            Exchange::Halo { .. } => {
                for &reader in &self.readers[exchange] {
                    drop(self.peers[reader].send(ToWorker::Rows(exchange, self.part, rows.clone())));
                }
            }
        }
    }
}

/// What a worker was sent and has not used yet.
pub(super) struct Inbox {
    by_received: BTreeMap<Slot, usize>,
    expected: Vec<Expected>,
}

/// What one exchange brings to this part.
pub(super) enum Expected {
    /// Rows of a halo.
    Halo {
        /// Whose rows, in the halo's order.
        sources: Arc<Vec<Source>>,
        /// By source.
        packed: Vec<Option<HostSlot>>,
        /// Bytes a row.
        row_bytes: usize,
        /// Where the halo is put together.
        halo: Option<HostSlot>,
    },
    /// A sum.
    Sum(Option<HostSlot>),
}

impl Expected {
    pub(super) fn halo(sources: Arc<Vec<Source>>, row_bytes: usize) -> Self {
        Self::Halo { packed: vec![None; sources.len()], sources, row_bytes, halo: None }
    }
}

impl Inbox {
    pub(super) fn new(exchanges: &[Exchange], expected: Vec<Expected>) -> Self {
        let by_received = exchanges.iter().enumerate().map(|(i, exchange)| (exchange.received(), i)).collect();
        Self { by_received, expected }
    }

    pub(super) fn put_rows(&mut self, exchange: usize, part: usize, rows: HostSlot) {
        if let Expected::Halo { sources, packed, .. } = &mut self.expected[exchange]
            && let Some(place) = sources.iter().position(|source| source.part == part)
        {
            packed[place] = Some(rows);
        }
    }

    pub(super) fn put_sum(&mut self, exchange: usize, sum: HostSlot) {
        if let Expected::Sum(expected) = &mut self.expected[exchange] {
            *expected = Some(sum);
        }
    }

    /// A received tensor, once all of it is here; it is then forgotten.
    ///
    /// # Errors
    /// When the host has no memory for it.
    pub(super) fn take(&mut self, slot: Slot) -> lapidary_kernels::Result<Option<HostSlot>> {
        let expected = self.by_received.get(&slot).map(|&exchange| &mut self.expected[exchange]);
        match expected.expect("a received tensor is part of an exchange") {
            Expected::Sum(sum) => Ok(sum.take()),
            Expected::Halo { sources, packed, row_bytes, halo } => {
                if packed.iter().any(Option::is_none) {
                    return Ok(None);
                }
                let packed: Vec<HostSlot> = packed.iter_mut().filter_map(Option::take).collect();
                if let ([source], [rows]) = (&sources[..], &packed[..])
                    && source.rows.len() * *row_bytes == rows.len()
                {
                    return Ok(Some(rows.clone())); // all that the only owner packed, as it is
                }
                let bytes = sources.iter().map(|source| source.rows.len()).sum::<usize>() * *row_bytes;
                let together = match halo.take() {
                    Some(halo) => halo,
                    None => HostSlot::staging(bytes)?,
                };
                put_together(sources, &packed, *row_bytes, &together)?;
                *halo = Some(together.clone());
                Ok(Some(together))
            }
        }
    }
}

/// Copies each source's rows behind those of the one before.
fn put_together(
    sources: &[Source],
    packed: &[HostSlot],
    row_bytes: usize,
    halo: &HostSlot,
) -> lapidary_kernels::Result<()> {
    halo.write(|mut halo| {
        for (source, packed) in sources.iter().zip(packed) {
            packed.read(|packed| {
                let (rows, rest) = std::mem::take(&mut halo).split_at_mut(source.rows.len() * row_bytes);
                for (to, &from) in rows.chunks_exact_mut(row_bytes.max(1)).zip(&source.rows) {
                    to.copy_from_slice(&packed[from as usize * row_bytes..][..row_bytes]);
                }
                halo = rest;
            });
        }
    })
}
