//! The report: what was found, as Markdown and as a page.

mod tables;

use std::time::Duration;

pub(super) use tables::{overview, speed};

use super::checked::Checked;
use super::goals::{Goal, Limit};
use super::verdict::Verdict;
use crate::cli::page::{Block, Page, Tone};

/// Returns the report.
pub(super) fn report(checked: &Checked) -> Page {
    let title = format!("GPU check: {}, {}", checked.preflight.gpu.name, checked.date);
    let verdict = checked.verdict();
    let tone = match verdict {
        Verdict::Pass => Tone::Good,
        Verdict::Fail => Tone::Bad,
        Verdict::Incomplete => Tone::Unsure,
    };
    let verdict = Block::Verdict { tone, word: verdict.word(), sentence: verdict.sentence() };
    let mut blocks = vec![verdict, Block::Paragraph(how(checked))];
    findings(checked, &mut blocks);
    blocks.push(Block::Heading("Sections".into()));
    blocks.push(overview(checked));
    left_out(checked, &mut blocks);
    goals(&checked.goals(), &mut blocks);
    for (heading, table) in speed(checked) {
        blocks.push(Block::Heading(heading));
        blocks.push(table);
    }
    blocks.push(Block::Heading("The machine".into()));
    blocks.push(Block::facts(&checked.preflight.facts));
    if !checked.preflight.notes.is_empty() {
        blocks.push(Block::List(checked.preflight.notes.clone()));
    }
    Page { title, blocks }
}

fn how(checked: &Checked) -> String {
    let size = match checked.scope.size {
        super::Size::Published => "graphs of published sizes",
        super::Size::Tiny => "tiny graphs and few shapes, whose times mean nothing",
    };
    let only = match &checked.scope.only {
        Some(only) => format!("Only checks with `{only}` in their names ran. "),
        None => String::new(),
    };
    let (version, time) = (env!("CARGO_PKG_VERSION"), minutes(checked.time));
    format!("{only}lapidary {version} took {time}, over {size}. results.json has every number.")
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{} min {} s", seconds / 60, seconds % 60)
}

fn findings(checked: &Checked, blocks: &mut Vec<Block>) {
    let findings: Vec<_> = checked.sections().flat_map(|section| &section.findings).collect();
    if findings.is_empty() {
        return;
    }
    blocks.push(Block::Heading("What is wrong, and what to do next".into()));
    let rows =
        findings.iter().map(|finding| [finding.name.clone(), finding.why.clone(), finding.next.clone()]).collect();
    blocks.push(Block::table(["check", "what is wrong", "what to do next"], rows));
}

/// Lists what was left out and what cannot be on this GPU, by reason.
fn left_out(checked: &Checked, blocks: &mut Vec<Block>) {
    let lines = |pairs: &dyn Fn(&super::section::Finished) -> Vec<[String; 2]>| -> Vec<String> {
        let mut lines = Vec::new();
        for section in checked.sections() {
            let mut by_reason: Vec<(String, Vec<String>)> = Vec::new();
            for [name, why] in pairs(section) {
                match by_reason.iter_mut().find(|(reason, _)| *reason == why) {
                    Some((_, names)) => names.push(name),
                    None => by_reason.push((why, vec![name])),
                }
            }
            for (why, names) in by_reason {
                let shown = if names.len() > 3 {
                    format!("{} and {} more", names[0], names.len() - 1)
                } else {
                    names.join(", ")
                };
                lines.push(format!("{}: {shown}: {why}", section.name));
            }
        }
        lines
    };
    for (heading, lines) in [
        ("Left out", lines(&|section| section.left_out.clone())),
        ("Not on this machine", lines(&|section| section.not_here.clone())),
    ] {
        if !lines.is_empty() {
            blocks.push(Block::Heading(heading.into()));
            blocks.push(Block::List(lines));
        }
    }
}

fn goals(goals: &[Goal], blocks: &mut Vec<Block>) {
    let rows = goals.iter().map(|goal| {
        let limit = match goal.limit {
            Limit::AtMost(most) => format!("at most {most}"),
            Limit::AtLeast(least) => format!("at least {least}"),
        };
        let met = goal.is_met().map_or("not measured", |met| if met { "met" } else { "not met" });
        [goal.figure.clone(), limit, goal.measured.map_or("-".into(), |value| format!("{value:.4}")), met.into()]
    });
    blocks.push(Block::Heading("Goals".into()));
    blocks.push(Block::Paragraph("Goals are about speed. One that is not met is no failure.".into()));
    blocks.push(Block::table(["figure", "goal", "measured", ""], rows.collect()));
}
