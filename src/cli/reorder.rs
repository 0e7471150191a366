//! The flag `--reorder`: the order of the vertices while a verb runs.

use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::output::{facts, json_line, say, seconds};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::graph::VertexOrder;
use crate::plan::{KeptByNumber, Reorder, RunGathers};
use crate::ranks::Ranks;

#[derive(Debug, Args)]
#[command(next_help_heading = "Devices")]
pub(super) struct ReorderArgs {
    /// Order of the vertices in memory, so that gathers use caches:
    ///   none: the dataset's own order
    ///   degree: by descending in-degree
    ///   rcm: reverse Cuthill-McKee, neighbours near each other
    ///   metis: parts that fit into a core's cache
    ///   auto: the one that is predicted to save time, if any
    /// Files keep the dataset's order. While the vertices are moved,
    /// memory holds the dataset twice
    #[arg(long, value_name = "ORDER", default_value = "none", verbatim_doc_comment)]
    reorder: String,
}

impl ReorderArgs {
    /// Parses the flag, and checks that it goes with what the run keeps.
    ///
    /// # Errors
    /// [`Error::Value`] for an unknown word, and those of [`Reorder::check`].
    pub(super) fn check(&self, kept: KeptByNumber) -> Result<Reorder> {
        let reorder: Reorder = self.reorder.parse()?;
        reorder.check(kept).map(|()| reorder)
    }

    /// Returns the error of a value that does not go with another flag.
    pub(super) fn wrong(&self, expected: &str) -> Error {
        Error::Value { option: "reorder", value: self.reorder.clone(), expected: expected.into() }
    }
}

/// Brings the vertices of a dataset into an order, and says which. With several ranks, all of them have to call it, and the
/// first one chooses.
///
/// # Errors
/// Those of [`Reorder::choose`] and [`Dataset::in_order`].
pub(super) fn reordered(
    reorder: Reorder,
    data: Dataset,
    gathers: &RunGathers,
    ranks: &Ranks,
    as_json: bool,
) -> Result<Dataset> {
    if reorder == Reorder::default() {
        return Ok(data);
    }
    let start = Instant::now();
    // Caches of ranks may differ, and so what `auto` chooses.
    let mut own = None;
    let order = ranks.first(|| {
        let chosen = reorder.choose(&data, gathers)?;
        Ok(own.insert(chosen).order)
    })?;
    let chosen = own.map_or_else(|| Reorder::To(order).choose(&data, gathers), Ok)?;
    let why = chosen.why.clone();
    let data = chosen.apply(data)?;
    let took = start.elapsed().as_secs_f64();
    if as_json {
        json_line(&json!({"event": "reorder", "reorder": order, "why": why, "seconds": took}))?;
    } else {
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        say(facts(&[("vertex order", format!("{order}{why}, in {}", seconds(took)))]));
    }
    Ok(data)
}

/// Returns the row of a summary that names the order, unless it is the dataset's own.
pub(super) fn row(data: &Dataset) -> Option<(&'static str, String)> {
    (data.order() != VertexOrder::Own).then(|| ("vertex order", data.order().to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::Model;

    #[test]
    fn all_ranks_take_the_order_that_the_first_one_chooses() {
        let model = Model::gcn(&[4, 4, 2]);
        let work = |ranks: Ranks| {
            let data = Dataset::builtin("karate").unwrap();
            // The others would choose nothing.
            let word = if ranks.is_first() { Reorder::To(VertexOrder::Degree) } else { Reorder::Auto };
            let gathers = RunGathers::of_training(&model, "cpu", 1);
            let data = reordered(word, data, &gathers, &ranks, true).unwrap();
            ranks.agree_on(&data).unwrap();
            data.order()
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = Ranks::threads(2).into_iter().map(|ranks| scope.spawn(|| work(ranks))).collect();
            ranks.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap(), VertexOrder::Degree));
        });
    }
}
