//! A section of the check: its rows, what is wrong with them, and what was left out.

use std::time::Instant;

use bytesize::ByteSize;
use indicatif::ProgressBar;
use lapidary_kernels::cuda;
use serde_json::{Map, Value, json};

use super::Scope;
use super::budget::Budget;
use crate::cli::{failure, output};
use crate::error::Result;

/// The result of one row.
pub(super) enum Row {
    /// Facts as a JSON object, and what is wrong with them.
    Done { facts: Value, wrong: Vec<String> },
    /// It cannot be checked on this GPU, for this reason.
    NotHere(String),
    /// It was not checked, for this reason, but it could be.
    LeftOut(String),
}

impl Row {
    pub(super) fn new(facts: Value) -> Self {
        Self::Done { facts, wrong: Vec::new() }
    }

    /// Adds what is wrong, unless `right`.
    pub(super) fn expect(mut self, right: bool, otherwise: impl FnOnce() -> String) -> Self {
        if let Self::Done { wrong, .. } = &mut self {
            wrong.extend((!right).then(otherwise));
        }
        self
    }
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) name: String,
    pub(super) why: String,
    /// What to do next.
    pub(super) next: String,
}

/// The rows of a section so far.
pub(super) struct Section<'s> {
    scope: &'s Scope,
    name: &'static str,
    next: &'static str,
    budget: Option<Budget>,
    bar: ProgressBar,
    start: Instant,
    is_lost: bool,
    rows: Vec<Value>,
    findings: Vec<Finding>,
    /// Names and reasons.
    left_out: Vec<[String; 2]>,
    not_here: Vec<[String; 2]>,
}

/// A finished section.
pub(super) struct Finished {
    pub(super) name: &'static str,
    pub(super) rows: Vec<Value>,
    pub(super) findings: Vec<Finding>,
    pub(super) left_out: Vec<[String; 2]>,
    pub(super) not_here: Vec<[String; 2]>,
    pub(super) seconds: f64,
}

impl<'s> Section<'s> {
    /// Starts a section of about `length` rows. `next` says what to do if the row NAME is wrong. With a budget, no row starts
    /// after its end.
    pub(super) fn new(
        scope: &'s Scope,
        name: &'static str,
        length: usize,
        next: &'static str,
        budget: Option<Budget>,
    ) -> Self {
        let bar = output::bar(length as u64, false).with_prefix(format!("{name:12}"));
        let (start, is_lost) = (Instant::now(), scope.is_lost());
        let (rows, findings, left_out, not_here) = Default::default();
        Self { scope, name, next, budget, bar, start, is_lost, rows, findings, left_out, not_here }
    }

    /// Returns why a row does not start: it was not asked for, the GPU is lost, or there is no time.
    fn excuse(&self, name: &str) -> Option<&'static str> {
        let is_spent = self.budget.is_some_and(|budget| budget.is_spent());
        match (self.scope.selects(self.name, name), self.is_lost) {
            (false, _) => Some("--only names others"),
            (_, true) => Some("the GPU stopped working before"),
            _ => is_spent.then_some("no time was left"),
        }
    }

    /// Checks or measures a row. A row that fails is a finding, and the next rows still run.
    pub(super) fn row(&mut self, name: &str, work: impl FnOnce() -> Result<Row>) {
        self.bar.set_message(name.to_owned());
        match self.excuse(name) {
            Some(why) => self.leave_out(name, why),
            None => match work() {
                Ok(row) => self.add(name, row),
                Err(error) => {
                    let why = failure::in_one_line(&error);
                    self.add(name, Row::Done { facts: json!({}), wrong: vec![why] });
                }
            },
        }
    }

    /// Adds the result of a row.
    pub(super) fn add(&mut self, name: &str, row: Row) {
        self.bar.inc(1);
        match row {
            Row::Done { facts, wrong } => {
                let head = json!({ "name": name, "ok": wrong.is_empty(), "wrong": wrong });
                self.rows.push(joined(head, facts));
                let next = self.next.replace("NAME", name);
                let finding = |why| Finding { name: format!("{}: {name}", self.name), why, next: next.clone() };
                self.findings.extend(wrong.into_iter().map(finding));
                self.is_lost |= self.rows.last().is_some_and(|row| row["ok"] == false) && self.scope.is_lost();
            }
            Row::NotHere(why) => self.not_here.push([name.into(), why]),
            Row::LeftOut(why) => self.leave_out(name, &why),
        }
    }

    pub(super) fn leave_out(&mut self, name: &str, why: &str) {
        self.left_out.push([name.into(), why.into()]);
    }

    /// Whether the row `name` would start.
    pub(super) fn starts(&self, name: &str) -> bool {
        self.excuse(name).is_none()
    }

    /// Whether the GPU answers no more.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    pub(super) fn finish(self) -> Finished {
        self.bar.finish_and_clear();
        let Self { name, rows, findings, left_out, not_here, start, .. } = self;
        Finished { name, rows, findings, left_out, not_here, seconds: start.elapsed().as_secs_f64() }
    }
}

impl Finished {
    /// Returns the section as JSON.
    pub(super) fn to_json(&self) -> Value {
        let named = |pairs: &[[String; 2]]| -> Vec<Value> {
            pairs.iter().map(|[name, why]| json!({ "name": name, "why": why })).collect()
        };
        json!({
            "rows": self.rows, "left_out": named(&self.left_out), "not_on_this_gpu": named(&self.not_here),
            "seconds": self.seconds,
        })
    }

    /// Returns the number of rows that were checked and are right.
    pub(super) fn passed(&self) -> usize {
        self.rows.iter().filter(|row| row["ok"] == true).count()
    }
}

/// Returns why a row that needs `need_bytes` of a GPU's memory cannot run, if so.
pub(super) fn lacks_memory(gpu: u32, need_bytes: u64) -> Option<Row> {
    let counts = cuda::counts(gpu).ok()?;
    let [need, free, total] = [need_bytes, counts.free_bytes, counts.total_bytes].map(ByteSize::b);
    // A part of a GPU's memory is the driver's.
    if total.0 / 16 * 15 < need.0 {
        return Some(Row::NotHere(format!("it needs {need} of the GPU's memory, which has {total}")));
    }
    (free.0 < need.0).then(|| Row::LeftOut(format!("it needs {need} of the GPU's memory, of which {free} are free")))
}

/// Merges two JSON objects.
pub(super) fn joined(first: Value, second: Value) -> Value {
    let fields = |value: Value| match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let mut all = fields(first);
    all.extend(fields(second));
    Value::Object(all)
}

/// Returns the median, the minimum and the maximum; NaN if there are no values.
pub(super) fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    [at(values.len() / 2), at(0), at(values.len().saturating_sub(1))]
}
