//! The column of an edge list that holds weights.

use super::job::ImportJob;
use super::sniff::{Layout, is_like_a_number, weight_of};
use super::text::shown;
use super::weights::EdgeWeights;
use crate::dataset::error::Result;

/// The column that holds weights, if there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightColumn {
    /// The column, from 0.
    pub column: Option<usize>,
    /// What was left out and how to keep it.
    pub note: Option<String>,
    /// Where the weights are from, for the report.
    pub source: Option<String>,
}

impl WeightColumn {
    /// Chooses the column by the option, the titles and the first line.
    ///
    /// # Errors
    /// A column that does not exist; `keep` where there is no column of numbers, or where there are several.
    pub(super) fn of(job: &ImportJob<'_>, layout: &Layout) -> Result<Self> {
        let choice = job.options.edge_weights;
        let titles = layout.header.as_ref().map_or(&[][..], |header| &header.titles);
        let titled = weight_of(titles, layout.ends);
        let others = (0..layout.first.len()).filter(|column| !layout.ends.contains(column));
        let numeric: Vec<usize> = others.clone().filter(|&column| is_like_a_number(&layout.first[column])).collect();
        let called = |column: usize| match titles.get(column) {
            Some(title) if !title.is_empty() => format!("column {} (`{}`)", column + 1, shown(title.as_bytes())),
            _ => format!("column {}", column + 1),
        };
        let listed = |columns: &[usize]| columns.iter().map(|&column| called(column)).collect::<Vec<_>>().join(", ");
        let kept = |column| Ok(Self { column: Some(column), note: None, source: Some(called(column)) });
        let expected = || match numeric[..] {
            [] => "nothing or `drop`: the edges have no column of numbers beside their ends".to_string(),
            _ => format!("one of {}", listed(&numeric)),
        };
        match (choice, titled, &numeric[..]) {
            (EdgeWeights::Drop, ..) => Ok(Self::default()),
            (EdgeWeights::Column(name), ..) => {
                let by_title = titles.iter().position(|title| title == name);
                let column = by_title.or(choice.number()).filter(|column| !layout.ends.contains(column));
                let column = column.filter(|&column| column < layout.first.len().max(titles.len()));
                column.map_or_else(|| Err(choice.refused(expected())), kept)
            }
            (_, Some(column), _) | (EdgeWeights::Keep, None, &[column]) => kept(column),
            (EdgeWeights::Keep, ..) => Err(choice.refused(expected())),
            (EdgeWeights::Guess, None, []) => Ok(Self::default()),
            (EdgeWeights::Guess, None, some) => {
                let (columns, first) = (listed(some), some[0] + 1);
                let note = format!(
                    "{columns} was left out, since its meaning is unknown; set option `edge_weights` to {first} to keep \
                     column {first} as weights"
                );
                Ok(Self { note: Some(note), ..Self::default() })
            }
        }
    }
}
