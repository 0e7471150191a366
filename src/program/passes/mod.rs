//! Passes: each rewrites a program into one with the same results that does less.

pub mod fuse;
pub mod order;
pub mod prune;
pub mod reuse;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A pass that can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Linear-first, gather-first or hoisted, whichever moves fewer bytes.
    Order,
    /// No operation whose results nobody reads.
    Prune,
    /// What dropout leaves of a ReLU's output is its mask too.
    Reuse,
    /// What works row by row rides on the operation before it.
    Fuse,
}

/// The passes that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passes {
    /// [`Pass::Order`].
    pub order: bool,
    /// [`Pass::Prune`].
    pub prune: bool,
    /// [`Pass::Reuse`]. Runs from before there was such a pass did without.
    #[serde(default)]
    pub reuse: bool,
    /// [`Pass::Fuse`]. Runs from before there was such a pass did without.
    #[serde(default)]
    pub fuse: bool,
}

impl Passes {
    /// Every pass that is built.
    pub const ALL: Self = Self { order: true, prune: true, reuse: true, fuse: true };
    /// None: one kernel an operation, as the layers were written.
    pub const NONE: Self = Self { order: false, prune: false, reuse: false, fuse: false };
}

impl Default for Passes {
    fn default() -> Self {
        Self::ALL
    }
}

/// Why a list of passes was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassesError {
    /// No pass has this name.
    #[error("there is no pass `{0}`; write all, none, or a list of order, prune, reuse and fuse")]
    Unknown(String),
}

impl fmt::Display for Passes {
    /// `all`, `none`, or names separated by commas, as [`FromStr`] reads them.
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

    /// `all`, `none`, or names separated by commas.
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
