//! `lapidary data`.

use clap::Subcommand;

use crate::error::Result;

#[derive(Debug, Subcommand)]
pub(super) enum DataVerb {
    /// Say what a data set holds
    Info,
}

pub(super) fn run(_verb: &DataVerb) -> Result<()> {
    Ok(())
}
