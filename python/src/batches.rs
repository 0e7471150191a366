//! The settings of mini-batches.

use std::fmt::Display;
use std::str::FromStr;

use lapidary::sample::{Fanouts, NeighborSampler};
use lapidary::{Batches, Dataset, Result, SamplerOptions, TrainerBuilder, parse_option};
use pyo3::prelude::*;

/// How mini-batches are drawn; without a size, none are.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct BatchSettings {
    pub(crate) batch: Option<usize>,
    fanout: Option<String>,
    sampler: String,
    replace: bool,
    by_weight: bool,
    seeds: String,
    look_ahead: usize,
    pub(crate) embedding: Option<usize>,
    pub(crate) feature_cache: Option<String>,
    device_cache: Option<String>,
    eval_fanout: Option<String>,
}

impl BatchSettings {
    /// Returns the number of columns that the model reads: those of the learned rows, or those of the features.
    pub(crate) fn input_width(&self, data: &Dataset) -> usize {
        self.embedding.unwrap_or_else(|| data.feature_width())
    }

    /// Adds the mini-batches to a trainer.
    ///
    /// # Errors
    /// Those of [`SamplerOptions::batches`], and of texts that cannot be parsed.
    pub(crate) fn add_to<'a>(&self, mut builder: TrainerBuilder<'a>, data: &Dataset) -> Result<TrainerBuilder<'a>> {
        if let Some(batches) = self.batches(data)? {
            builder = builder.batches(batches);
        }
        Ok(match self.embedding {
            Some(width) => builder.embedding(width),
            None => builder,
        })
    }

    /// Returns the mini-batches that were asked for, if any were.
    ///
    /// # Errors
    /// As [`BatchSettings::add_to`].
    pub(crate) fn batches(&self, data: &Dataset) -> Result<Option<Batches>> {
        let (Some(size), Some(fanouts)) = (self.batch, parsed::<Fanouts>("fanout", &self.fanout)?) else {
            return Ok(None);
        };
        let Self { replace, by_weight, .. } = *self;
        let sampler = SamplerOptions { name: self.sampler.clone(), fanouts, replace, by_weight };
        let shares = parse_option("seeds", &self.seeds)?;
        let mut batches = sampler.batches(size, data)?.look_ahead(self.look_ahead).seeds(shares);
        if let Some(cache) = parsed("feature_cache", &self.feature_cache)? {
            batches = batches.feature_cache(cache);
        }
        if let Some(cache) = parsed("device_cache", &self.device_cache)? {
            batches = batches.device_cache(cache);
        }
        if let Some(fanouts) = parsed("eval_fanout", &self.eval_fanout)? {
            batches = batches.evaluation(NeighborSampler::new(fanouts));
        }
        Ok(Some(batches))
    }
}

/// Parses the value of an option, if it has one.
fn parsed<T: FromStr<Err: Display>>(option: &'static str, text: &Option<String>) -> Result<Option<T>> {
    text.as_ref().map(|text| parse_option(option, text)).transpose()
}
