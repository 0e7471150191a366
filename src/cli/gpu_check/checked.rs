//! The check as it goes on: its sections, and what is written and printed of them.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::budget::Budget;
use super::preflight::Preflight;
use super::report;
use super::section::{Finding, Finished};
use super::shapes::Graphs;
use super::speed::Peers;
use super::verdict::Verdict;
use super::{Scope, Size, correctness, goals, speed};
use crate::cli::output::{self, align, print, say};
use crate::cli::page::{self, Block};
use crate::error::{Error, Result};
use crate::output::OutputFile;

/// All that is known so far.
pub(super) struct Checked {
    pub(super) scope: Scope,
    pub(super) date: String,
    pub(super) preflight: Preflight,
    correctness: Vec<Finished>,
    speed: Vec<Finished>,
    start: Instant,
    pub(super) time: Duration,
    /// Whether all sections have ended. Before, the verdict is not a pass.
    is_done: bool,
}

impl Checked {
    pub(super) fn new(scope: Scope, date: String, preflight: Preflight, start: Instant) -> Self {
        Self { scope, date, preflight, correctness: vec![], speed: vec![], start, time: Duration::ZERO, is_done: false }
    }

    /// Checks everything that can be wrong, however long it takes.
    pub(super) fn check_correctness(&mut self, graphs: &Graphs, folder: &Path) -> Result<()> {
        lapidary_battery::common::select_gpu(self.scope.gpu);
        if self.scope.size == Size::Tiny {
            lapidary_battery::common::select_few_shapes();
        }
        let scope = self.scope.clone();
        let sections: [&dyn Fn() -> Result<Finished>; 5] = [
            &|| Ok(correctness::every_call(&scope)),
            &|| correctness::against_the_cpu(&scope),
            &|| Ok(correctness::published(&scope, graphs)),
            &|| Ok(correctness::against_the_driver(&scope, graphs)),
            &|| Ok(correctness::many_cells(&scope)),
        ];
        for section in sections {
            let finished = section()?;
            self.tell(&finished);
            self.correctness.push(finished);
            self.write_results(folder)?;
        }
        Ok(())
    }

    /// Measures in what is left of `seconds`. Each section has a share of it; what one does not use goes to the next.
    pub(super) fn measure_speed(&mut self, seconds: f64, graphs: &Graphs, peers: &Peers, folder: &Path) -> Result<()> {
        let scope = self.scope.clone();
        let peers_share = if matches!(peers, Peers::Found { .. }) { 0.25 } else { 0.0 };
        let sections: [(f64, &dyn Fn(Budget) -> Finished); 8] = [
            (0.06, &|budget| speed::device(&scope, budget)),
            (0.30, &|budget| speed::epochs(&scope, graphs, budget)),
            (0.14, &|budget| speed::gathers(&scope, graphs, budget)),
            (0.04, &|budget| speed::products(&scope, budget)),
            (0.06, &|budget| speed::bf16(&scope, graphs, budget)),
            (peers_share, &|budget| speed::others(&scope, graphs, peers, budget)),
            (0.20, &|budget| speed::capacity(&scope, graphs, budget)),
            (0.10, &|budget| speed::splits(&scope, budget)),
        ];
        let left_s = seconds - self.start.elapsed().as_secs_f64();
        for ((_, section), budget) in sections.iter().zip(Budget::shares(left_s, &sections.map(|(share, _)| share))) {
            let finished = section(budget);
            self.tell(&finished);
            self.speed.push(finished);
            self.write_results(folder)?;
        }
        Ok(())
    }

    /// Says what a section found.
    fn tell(&self, section: &Finished) {
        let count = |count: usize, what: &str| (count > 0).then(|| format!("{count} {what}"));
        let counts = [
            count(section.passed(), "right"),
            count(section.rows.len() - section.passed(), "WRONG"),
            count(section.left_out.len(), "left out"),
            count(section.not_here.len(), "not on this machine"),
        ];
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        say(format_args!("{:12} {} ({})", section.name, counts.join(", "), output::seconds(section.seconds)));
        section.findings.iter().for_each(|finding| say(format_args!("  wrong: {}: {}", finding.name, finding.why)));
    }

    pub(super) fn sections(&self) -> impl Iterator<Item = &Finished> + Clone {
        self.correctness.iter().chain(&self.speed)
    }

    /// Returns the rows of a section of speed.
    pub(super) fn rows(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.speed.iter().filter(move |section| section.name == name).flat_map(|section| &section.rows)
    }

    pub(super) fn verdict(&self) -> Verdict {
        match Verdict::of(self.sections()) {
            Verdict::Pass if !self.is_done => Verdict::Incomplete,
            verdict => verdict,
        }
    }

    pub(super) fn figures(&self) -> Map<String, Value> {
        goals::figures(&by_name(&self.speed))
    }

    pub(super) fn goals(&self) -> Vec<goals::Goal> {
        goals::goals(&self.figures(), self.scope.size)
    }

    /// Writes the results so far, so that a later crash does not lose them.
    fn write_results(&mut self, folder: &Path) -> Result<()> {
        self.time = self.start.elapsed();
        let finding = |finding: &Finding| json!({ "name": finding.name, "why": finding.why, "next": finding.next });
        let results = json!({
            "verdict": self.verdict().word(), "date": self.date, "version": env!("CARGO_PKG_VERSION"),
            "gpu": { "name": self.preflight.gpu.name, "bytes": self.preflight.gpu.total_bytes },
            "size": self.scope.size.name(), "only": self.scope.only, "seconds": self.time.as_secs_f64(),
            "machine": self.preflight.facts,
            "notes": self.preflight.notes,
            "findings": self.sections().flat_map(|section| &section.findings).map(finding).collect::<Vec<_>>(),
            "figures": self.figures(),
            "goals": self.goals().iter().map(goals::Goal::to_json).collect::<Vec<_>>(),
            "correctness": by_name(&self.correctness), "speed": by_name(&self.speed),
        });
        let text = serde_json::to_string_pretty(&results).expect("results are plain data");
        write(folder, "results.json", &text)
    }

    pub(super) fn write_report(&mut self, folder: &Path) -> Result<()> {
        self.is_done = true;
        self.write_results(folder)?;
        let report = report::report(self);
        write(folder, "report.md", &page::text(&report))?;
        write(folder, "report.html", &page::page(&report))
    }

    /// Prints the sections, the epochs, what is wrong, and the verdict.
    pub(super) fn print(&self, folder: &Path) -> Result<()> {
        let tables = std::iter::once(report::overview(self))
            .chain(report::speed(self).into_iter().map(|(_, table)| table).take(3));
        for block in tables {
            if let Block::Table { header, rows } = block {
                let mut table = comfy_table::Table::new();
                table.load_preset(comfy_table::presets::NOTHING).set_header(header);
                for row in rows {
                    table.add_row(row);
                }
                print(&align(table))?;
                print("")?;
            }
        }
        for finding in self.sections().flat_map(|section| &section.findings) {
            print(&format!("{}\n  {}\n  {}\n", finding.name, finding.why, finding.next))?;
        }
        let missed: Vec<String> =
            self.goals().into_iter().filter(|goal| goal.is_met() == Some(false)).map(|goal| goal.figure).collect();
        if !missed.is_empty() {
            print(&format!("goals not met: {}", missed.join(", ")))?;
        }
        let verdict = self.verdict();
        print(&format!("{}: {}", verdict.word(), verdict.sentence()))?;
        print(&format!("the report is {}", folder.join("report.html").display()))
    }
}

/// Returns sections as a JSON object.
fn by_name(sections: &[Finished]) -> Value {
    Value::Object(sections.iter().map(|section| (section.name.to_owned(), section.to_json())).collect())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    OutputFile::write(&path, text.as_bytes()).map_err(Error::io("write", &path))
}
