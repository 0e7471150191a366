//! The page of `lapidary train --report`: the run as pictures and tables.

use super::args::TrainArgs;
use super::report::{COPY_COLUMNS, DEVICE_COLUMNS, Done, Progress, device_rows, result_rows};
use crate::cli::compared_times::{COLUMNS, Sum};
use crate::cli::metrics::Measured;
use crate::cli::output::percent;
use crate::cli::page::{Axis, Bars, Block, Chart, Line, Page, Row};
use crate::dataset::Dataset;
use crate::model::{LabelKind, Model};
use crate::train::Trainer;

/// The most points of a line, and the most epochs of the table.
const MOST_POINTS: usize = 2000;
const MOST_ROWS: usize = 50;

/// What is in place of the times of kernels.
const NOT_MEASURED: &str = "The kernels of this run were not timed. They are in runs of one process and at least three \
                            epochs, if the speed of the devices was measured before: run lapidary profile once, or add \
                            --explain.";

/// The most rows of a picture of bars.
const MOST_BARS: usize = 16;

/// Returns the page without what `--metric` asks for.
pub(super) fn page(args: &TrainArgs, (model, data): (&Model, &Dataset), trainer: &Trainer, done: &Done) -> Page {
    let mut blocks = vec![Block::facts(&result_rows(args, data, trainer, done))];
    blocks.push(Block::Heading("Loss".into()));
    let x = || Axis { label: "epoch".into(), is_log: false };
    let line = |name: &str, y: &dyn Fn(&Progress) -> Option<f64>| {
        let points: Vec<_> = done.history.iter().filter_map(|at| Some((at.epoch as f64, y(at)?))).collect();
        Line { name: name.into(), points: thinned(&points, MOST_POINTS) }
    };
    let best = trainer.best();
    blocks.push(Block::Chart(Chart {
        title: "Loss of each epoch".into(),
        x: x(),
        y: Axis { label: "loss".into(), is_log: false },
        lines: vec![line("training", &|at| Some(at.loss))],
        mark: None,
    }));
    let score = match trainer.label_kind() {
        LabelKind::Class => "accuracy",
        LabelKind::Multi => "micro-F1",
    };
    if done.history.iter().any(|at| at.val.is_some()) {
        blocks.push(Block::Heading("Validation".into()));
        blocks.push(Block::Chart(Chart {
            title: format!("Validation {score} of each epoch"),
            x: x(),
            y: Axis { label: format!("{score}, %"), is_log: false },
            lines: vec![line("validation", &|at| Some(at.val? * 100.0))],
            mark: best.map(|best| (best.epoch as f64, format!("best: {}", percent(best.val_accuracy)))),
        }));
    }
    blocks.push(Block::Heading("Devices".into()));
    blocks.push(Block::table(DEVICE_COLUMNS, device_rows(trainer)));
    blocks.push(Block::table(COPY_COLUMNS, done.copies()));
    blocks.extend(predicted_beside_measured(args, done));
    blocks.push(Block::Heading("Epochs".into()));
    let rows = thinned(&done.history.iter().collect::<Vec<_>>(), MOST_ROWS);
    let rows = rows.into_iter().map(|at| [at.epoch.to_string(), format!("{:.6}", at.loss), percent(at.val)]);
    blocks.push(Block::table(["epoch", "loss", &format!("validation {score}")], rows.collect()));
    let title = format!("Training: {} on {}", args.model.named(model), data.name());
    Page { title, blocks }
}

/// Adds what was measured, with the weights of which epoch, and how to run this again.
pub(super) fn finish(mut page: Page, measured: Option<&(Option<u64>, Measured)>) -> Page {
    if let Some((epoch, measured)) = measured {
        let of_epoch = epoch.map_or_else(String::new, |epoch| format!(", epoch {epoch}"));
        page.blocks.push(Block::Heading(format!("Metrics of the test vertices{of_epoch}")));
        page.blocks.extend(measured.blocks());
    }
    page.blocks.push(Block::Heading("Again".into()));
    page.blocks.push(Block::command());
    page
}

/// Returns the times of kernels, and of parts if there are several. On mini-batches there are none.
fn predicted_beside_measured(args: &TrainArgs, done: &Done) -> Vec<Block> {
    if args.batches.batch.is_some() {
        return Vec::new();
    }
    let mut blocks = vec![Block::Heading("Predicted beside measured".into())];
    let Some(compared) = &done.compared else {
        blocks.push(Block::Paragraph(NOT_MEASURED.into()));
        return blocks;
    };
    blocks.push(Block::Paragraph(if compared.is_known() {
        "Seconds of kernels and copies in an epoch, with its evaluation if it has one. Predictions are those of lapidary plan, from times \
         that were measured before this run."
            .into()
    } else {
        "Seconds of kernels and copies in an epoch, with its evaluation if it has one. The times of some kernels were not known before this \
         run: lapidary profile measures them once, and every training adds to them."
            .into()
    }));
    blocks.push(Block::Bars(bars(
        "Seconds of each kernel in an epoch",
        compared.kernels.iter().map(|(name, sum)| (name.clone(), sum)),
    )));
    blocks.push(Block::table(COLUMNS, compared.rows()));
    if compared.parts.len() > 1 {
        let parts = compared.parts.iter().enumerate().map(|(part, sum)| (format!("part {part}"), sum));
        blocks.push(Block::Paragraph("The same calls, by part. Waiting for other parts is left out.".into()));
        blocks.push(Block::Bars(bars("Seconds of each part in an epoch", parts)));
    }
    blocks
}

/// Returns a picture of the slowest of these calls.
fn bars<'a>(title: &str, sums: impl Iterator<Item = (String, &'a Sum)>) -> Bars {
    let row = |(name, sum): (String, &Sum)| Row::of_seconds(name, &[sum.predicted_s, Some(sum.measured_s)]);
    let rows = sums.take(MOST_BARS).map(row).collect();
    Bars { title: title.into(), series: vec!["predicted".into(), "measured".into()], rows }
}

/// Returns at most about `most` of the rows, evenly, with the last one.
fn thinned<T: Copy>(rows: &[T], most: usize) -> Vec<T> {
    let step = rows.len().div_ceil(most).max(1);
    let mut kept: Vec<T> = rows.iter().rev().step_by(step).copied().collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::thinned;

    #[test]
    fn the_last_row_stays() {
        assert_eq!(thinned(&[1, 2, 3], 5), [1, 2, 3]);
        assert_eq!(thinned(&(1..=10).collect::<Vec<_>>(), 4), [1, 4, 7, 10]);
        assert!(thinned::<u8>(&[], 4).is_empty());
    }
}
