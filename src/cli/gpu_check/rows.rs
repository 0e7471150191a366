//! The results of a part, row by row.

use serde_json::{Map, Value, json};

use super::budget::Budget;
use crate::error::Result;

/// Measured rows, and the names of rows for which there was no time.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Value>,
    left_out: Vec<String>,
}

impl Rows {
    /// Measures a row if there is time. A row that fails records its error, and the next rows are still measured.
    pub(super) fn measure(&mut self, budget: Budget, name: &str, row: impl FnOnce() -> Result<Value>) {
        if budget.is_spent() {
            return self.leave_out(name);
        }
        match row() {
            Ok(row) => self.rows.push(row),
            Err(error) => {
                super::super::failure::report(&error);
                self.rows.push(json!({ "row": name, "error": error.to_string(), "ok": false }));
            }
        }
    }

    /// Records that there is no time for a row.
    pub(super) fn leave_out(&mut self, name: &str) {
        self.left_out.push(name.to_owned());
    }

    /// Returns whether a row of the part failed.
    pub(super) fn has_failed(part: &Value) -> bool {
        part["rows"].as_array().is_some_and(|rows| rows.iter().any(|row| row["ok"] == false))
    }

    /// Whether there was no time for something.
    pub(super) fn is_incomplete(part: &Value) -> bool {
        part["left_out"].as_array().is_some_and(|names| !names.is_empty())
    }

    pub(super) fn into_json(self) -> Value {
        json!({ "rows": self.rows, "left_out": self.left_out })
    }
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
