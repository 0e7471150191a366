//! Gathering: collects what a batch gives to its programs: features, labels and blocks.

use std::ops::Range;

use lapidary_kernels::{HostSlot, Slot};

use super::{Drawing, failed};
use crate::error::Result;
use crate::lower::{Batch, BatchSupply, Contents, Gathered};
use crate::program::LevelSizes;
use crate::ranks::{EdgePulls, PulledRows, Pulls};
use crate::runtime::{BatchShare, SharedBatch};
use crate::sample::MiniBatch;

/// What batches are made from.
pub(crate) struct Sources<'a> {
    pub supply: &'a BatchSupply,
    /// What a batch gives, and where: see [`Session::batch_contents`](crate::runtime::Session::batch_contents).
    pub contents: &'a [(Slot, Contents)],
    /// With several ranks, the features of all.
    pub pulls: Option<&'a Pulls<'a>>,
    /// The edges that other ranks draw, if each has those of its own vertices.
    pub edges: Option<&'a EdgePulls>,
}

impl Sources<'_> {
    /// Returns what a share of a batch gives to a part. The features of its vertices may be among rows that were pulled.
    fn values(
        &self,
        drawn: &MiniBatch,
        pulled: Option<(&PulledRows<'_>, Range<usize>)>,
    ) -> Gathered<Vec<(Slot, HostSlot)>> {
        let mut batch = Batch::new(self.supply, drawn);
        if let Some((pulled, places)) = pulled {
            batch = batch.with_features(pulled.matrix(places)?);
        }
        self.contents.iter().map(|(slot, contents)| Ok((*slot, batch.get(contents)?))).collect()
    }
}

/// What this rank fetched from other ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fetched {
    pub rounds: u64,
    pub rows: u64,
    pub bytes: u64,
    pub edges: u64,
    pub edge_bytes: u64,
}

impl Fetched {
    pub(super) fn add(&mut self, more: Self) {
        self.rounds += more.rounds;
        self.rows += more.rows;
        self.bytes += more.bytes;
        self.edges += more.edges;
        self.edge_bytes += more.edge_bytes;
    }

    fn of(pulled: &PulledRows<'_>) -> Self {
        Self { rounds: pulled.rounds, rows: pulled.row_count(), bytes: pulled.bytes(), ..Self::default() }
    }
}

impl Drawing {
    /// Returns what a batch gives to this rank's parts of a session, and what was fetched from other ranks for it. All
    /// ranks have to call it, if there is a store.
    ///
    /// # Errors
    /// [`Error::Batch`]; [`Error::OtherRank`].
    pub(crate) fn give(
        &self,
        from: &Sources<'_>,
        number: usize,
        drawn: &[MiniBatch],
    ) -> Result<(SharedBatch, Fetched)> {
        let mut own_sizes: Vec<LevelSizes> = drawn.iter().map(|drawn| self.sizes(drawn)).collect();
        // The loss is a mean over all seeds of the batch, which other ranks have a share of.
        own_sizes.iter_mut().for_each(|sizes| sizes.labelled = self.places(number).len() as u64);
        let pulled = match from.pulls {
            Some(pulls) => {
                let vertices = drawn.iter().flat_map(|drawn| self.copied(drawn)).collect();
                Some(pulls.pull(number as u64, vertices, bytemuck::cast_slice(&own_sizes))?)
            }
            None => None,
        };
        let mut first = 0;
        let share = |(drawn, sizes): (&MiniBatch, &LevelSizes)| {
            let rows = if self.inputs.kept.is_some() { sizes.copied } else { sizes.rows(0) } as usize;
            let pulled = pulled.as_ref().map(|pulled| (pulled, first..first + rows));
            first += rows;
            let values = from.values(drawn, pulled).map_err(|source| failed("gathering", number, source))?;
            Ok(BatchShare { sizes: *sizes, vertices: drawn.vertices.clone(), values })
        };
        let own = drawn.iter().zip(&own_sizes).map(share).collect::<Result<_>>()?;
        let fetched = pulled.as_ref().map(Fetched::of).unwrap_or_default();
        let sizes = pulled.map_or(own_sizes, |pulled| bytemuck::pod_collect_to_vec(&pulled.notes));
        Ok((SharedBatch { own, sizes }, fetched))
    }
}
