//! The layout of parts: what is chosen, before lowering, so that a program fits the devices and moves few rows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Cut, Sizes};
use crate::error::{Error, Result};

/// How rows move from part to part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ExchangePath {
    /// Through host memory.
    #[default]
    Host,
    /// From device to device, the whole halo at once. Parts have one tile.
    Peer,
    /// From device to device, the rows of one part at a time, so that a device never holds the whole halo. Parts have
    /// one tile.
    Staged,
}

impl ExchangePath {
    /// Returns the name that the command uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Peer => "peer",
            Self::Staged => "staged",
        }
    }
}

/// How the steps of a tiled part go through its tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TileOrder {
    /// From the first tile to the last.
    #[default]
    Ascending,
    /// Also from the last to the first, where no step needs what one of an earlier tile made. The bits are the same.
    Serpentine,
}

/// Which rows move between parts in the backward pass over a directed graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackwardMode {
    /// [`BackwardMode::Fold`] if that moves fewer rows, else [`BackwardMode::Pull`].
    #[default]
    Auto,
    /// A part reads the rows that its vertices send edges to.
    Pull,
    /// A part sends sums of its rows to the owners of the rows that it read forward. Sums of a gather are then added in
    /// another order, so the last bits differ. Attention, bf16 rows and parts with several tiles pull all the same.
    Fold,
}

impl BackwardMode {
    /// Returns the name that the command uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pull => "pull",
            Self::Fold => "fold",
        }
    }

    /// Whether parts of these sizes fold.
    ///
    /// The rows of all parts count, so that all decide alike.
    pub(super) fn folds(self, parts: &[Sizes]) -> bool {
        let rows = |cut: fn(&Sizes) -> Cut| parts.iter().map(|part| cut(part).halo).sum::<u64>();
        let directed = parts.iter().all(|part| part.parts > 1 && !part.symmetric);
        directed
            && match self {
                Self::Auto => rows(|part| part.forward) < rows(|part| part.backward),
                Self::Pull => false,
                Self::Fold => true,
            }
    }
}

impl fmt::Display for BackwardMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BackwardMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = [Self::Auto, Self::Pull, Self::Fold].into_iter().find(|mode| mode.name() == text);
        let expected = || "write auto, pull or fold".into();
        found.ok_or_else(|| Error::Value { option: "backward", value: text.into(), expected: expected() })
    }
}

/// How parts are lowered: what is chosen so that a program fits the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layout {
    /// Number of tiles of each part.
    pub tiles: usize,
    /// With several tiles, the memory for gathers: how many tiles of sources a call reads, and how many tiles of rows are
    /// summed side by side, is chosen so that they fit.
    pub gather_bytes: u64,
    /// How rows move between parts. With several tiles, it is [`ExchangePath::Host`].
    pub path: ExchangePath,
    /// Which rows move backward. With several tiles, it is [`BackwardMode::Pull`].
    pub backward: BackwardMode,
    /// How steps go through the tiles.
    pub order: TileOrder,
}

impl From<usize> for Layout {
    /// Creates a layout with this number of tiles, whose rows move through the host, and are pulled. A gather reads all
    /// sources in one call.
    fn from(tiles: usize) -> Self {
        let (path, backward) = (ExchangePath::Host, BackwardMode::Pull);
        Self { tiles, gather_bytes: u64::MAX, path, backward, order: TileOrder::Ascending }
    }
}
