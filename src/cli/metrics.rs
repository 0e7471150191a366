//! What `--metric` of `infer` and `train` measures and shows.

use clap::{Args, ValueEnum};
use ndarray::{Array2, ArrayView1, ArrayView2};
use serde_json::{Value, json};

use super::output::{align, count, one_line, percent, print, table};
use super::page::Block;
use crate::dataset::{Dataset, TEST};
use crate::error::Result;
use crate::infer::{Predictor, SplitPredictions};

/// The most classes whose confusion is shown as a table.
const MOST_CLASSES: usize = 20;

#[derive(Debug, Args)]
pub(super) struct MetricArgs {
    /// Metrics beside the accuracy, on the test vertices: macro-f1, roc-auc, confusion (as scikit-learn defines them); after a
    /// training, those of its best epoch
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    pub metric: Vec<Metric>,
}

/// A metric on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Metric {
    MacroF1,
    RocAuc,
    Confusion,
}

/// The header and the rows of a confusion matrix, or why it is not shown.
type ShownConfusion = std::result::Result<(Vec<String>, Vec<Vec<String>>), String>;

/// The metrics of the test vertices that were asked for.
#[derive(Debug)]
pub(super) struct Measured {
    asked: Vec<Metric>,
    classes: Vec<String>,
    macro_f1: Option<f64>,
    roc_auc: Option<f64>,
    confusion: Option<Array2<u64>>,
}

impl Measured {
    /// Measures the predictions `logits` for the test vertices of `data`.
    pub(super) fn of<'a>(
        asked: &[Metric],
        data: &'a Dataset,
        predictor: &Predictor,
        logits: ArrayView2<'a, f32>,
    ) -> Self {
        let test = (!asked.is_empty()).then(|| SplitPredictions::new(logits, data, TEST)).flatten();
        let is_asked = |metric| test.as_ref().filter(|_| asked.contains(&metric));
        Self {
            asked: asked.to_vec(),
            classes: predictor.classes_for(data).named(logits.ncols()),
            macro_f1: is_asked(Metric::MacroF1).map(SplitPredictions::macro_f1),
            roc_auc: is_asked(Metric::RocAuc).and_then(SplitPredictions::roc_auc),
            confusion: is_asked(Metric::Confusion).and_then(SplitPredictions::confusion),
        }
    }

    /// Adds the metrics to a JSON line; one that is not defined is null.
    pub(super) fn add_to(&self, line: &mut Value) {
        for metric in &self.asked {
            let (name, value) = match metric {
                Metric::MacroF1 => ("test_macro_f1", json!(self.macro_f1)),
                Metric::RocAuc => ("test_roc_auc", json!(self.roc_auc)),
                Metric::Confusion => {
                    let rows = |counts: &Array2<u64>| counts.rows().into_iter().map(|row| row.to_vec()).collect();
                    ("test_confusion", json!(self.confusion.as_ref().map::<Vec<_>, _>(rows)))
                }
            };
            line[name] = value;
        }
    }

    /// Returns the rows of a table of facts.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let row = |metric: &Metric| match metric {
            Metric::MacroF1 => Some(("  test macro-F1", percent(self.macro_f1))),
            Metric::RocAuc => Some(("  test ROC-AUC", percent(self.roc_auc))),
            Metric::Confusion => None,
        };
        self.asked.iter().filter_map(row).collect()
    }

    /// Returns the metrics as pieces of a page.
    pub(super) fn blocks(&self) -> Vec<Block> {
        let rows = self.rows();
        let facts = (!rows.is_empty()).then(|| Block::facts(&rows));
        let confusion = self.shown_confusion().map(|shown| match shown {
            Ok((header, rows)) => Block::Table { header, rows },
            Err(why) => Block::Paragraph(why),
        });
        facts.into_iter().chain(confusion).collect()
    }

    /// Prints the confusion matrix below a table of facts, if it was asked for.
    ///
    /// # Errors
    /// [`Error::Io`](crate::error::Error::Io) when standard output is closed.
    pub(super) fn print_confusion(&self) -> Result<()> {
        let shown = self.shown_confusion().map(|shown| match shown {
            Ok((header, rows)) => {
                let mut shown = table(header);
                shown.add_rows(rows);
                align(shown)
            }
            Err(why) => why,
        });
        shown.map_or(Ok(()), |shown| print(&format!("\n{shown}")))
    }

    /// Returns the confusion matrix, if it was asked for.
    fn shown_confusion(&self) -> Option<ShownConfusion> {
        if !self.asked.contains(&Metric::Confusion) {
            return None;
        }
        let Some(counts) = &self.confusion else {
            return Some(Err("No confusion matrix: it needs test vertices with one class each.".into()));
        };
        if counts.nrows() > MOST_CLASSES {
            return Some(Err(format!("The confusion matrix has {} classes: --json shows it.", counts.nrows())));
        }
        let names = || self.classes.iter().map(|name| one_line(name).into_owned());
        let header = ["test class \\ predicted".to_owned()].into_iter().chain(names()).collect();
        let row = |(name, row): (String, ArrayView1<'_, u64>)| {
            [name].into_iter().chain(row.iter().map(|&n| count(n))).collect()
        };
        Some(Ok((header, names().zip(counts.rows()).map(row).collect())))
    }
}
