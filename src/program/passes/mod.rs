//! Passes: each rewrites a program into one that computes the same results with less work.

pub mod columns;
pub mod fuse;
pub mod order;
pub mod pieces;
pub mod prune;
pub mod recompute;
pub mod reuse;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A pass that can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Linear-first, gather-first or hoisted, whichever moves fewer bytes.
    Order,
    /// Removes operations whose results are not used.
    Prune,
    /// Uses a ReLU's output after dropout as the mask of the ReLU, too.
    Reuse,
    /// Merges row steps into the operation before them.
    Fuse,
}

/// The passes that are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passes {
    /// [`Pass::Order`].
    pub order: bool,
    /// [`Pass::Prune`].
    pub prune: bool,
    /// [`Pass::Reuse`]. Off for runs recorded before this pass existed.
    #[serde(default)]
    pub reuse: bool,
    /// [`Pass::Fuse`]. Off for runs recorded before this pass existed.
    #[serde(default)]
    pub fuse: bool,
}

impl Passes {
    /// All passes.
    pub const ALL: Self = Self { order: true, prune: true, reuse: true, fuse: true };
    /// No pass: one kernel per operation, as the layers were written.
    pub const NONE: Self = Self { order: false, prune: false, reuse: false, fuse: false };
}

impl Default for Passes {
    fn default() -> Self {
        Self::ALL
    }
}

/// Why a list of passes is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassesError {
    /// No pass has this name.
    #[error("there is no pass `{0}`; write all, none, or a list of order, prune, reuse and fuse")]
    Unknown(String),
}

impl fmt::Display for Passes {
    /// Writes `all`, `none`, or names separated by commas, in the format that [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL || *self == Self::NONE {
            return f.pad(if *self == Self::ALL { "all" } else { "none" });
        }
        let each = [(self.order, "order"), (self.prune, "prune"), (self.reuse, "reuse"), (self.fuse, "fuse")];
        let names: Vec<&str> = each.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
        f.pad(&names.join(","))
    }
}

impl FromStr for Passes {
    type Err = PassesError;

    /// Parses `all`, `none`, or names separated by commas.
    fn from_str(text: &str) -> Result<Self, PassesError> {
        let mut passes = Self::NONE;
        for name in text.split(',').map(str::trim) {
            match name {
                "all" if text == "all" => return Ok(Self::ALL),
                "none" if text == "none" => return Ok(Self::NONE),
                "order" => passes.order = true,
                "prune" => passes.prune = true,
                "fuse" => passes.fuse = true,
                "reuse" => passes.reuse = true,
                _ => return Err(PassesError::Unknown(name.into())),
            }
        }
        Ok(passes)
    }
}
