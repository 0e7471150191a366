//! Output: JSON lines for programs, tables and progress bars for people.

use std::io::{BufWriter, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::error::{Error, Result};

/// The name of standard output in errors.
const STANDARD_OUTPUT: &str = "<standard output>";

fn unwritable(source: std::io::Error) -> Error {
    Error::Io { action: "write to", path: STANDARD_OUTPUT.into(), source }
}

/// Prints one JSON line on standard output and flushes it, so that a reader sees it while the program continues.
///
/// # Errors
/// [`Error::Io`] when standard output is closed.
pub(super) fn json_line(value: &impl Serialize) -> Result<()> {
    // The line of a plan can have gigabytes, so it is not built in memory.
    let mut stdout = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let line = serde_json::to_writer(&mut stdout, value).map_err(std::io::Error::from);
    let written = line.and_then(|()| writeln!(stdout)).and_then(|()| stdout.flush());
    written.map_err(unwritable)
}

/// Whether writing failed because the reader closed the pipe of standard output.
pub(super) fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Io { path, source, .. }
        if path.as_os_str() == STANDARD_OUTPUT && source.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Ignores that the reader closed the pipe of standard output.
///
/// # Errors
/// Any other error of `printed`.
pub(super) fn or_closed(printed: Result<()>) -> Result<()> {
    printed.or_else(|error| if is_closed(&error) { Ok(()) } else { Err(error) })
}

/// Prints text and a line end on standard output.
///
/// # Errors
/// [`Error::Io`] when standard output is closed.
pub(super) fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(unwritable)
}

/// Prints a line on standard error. A closed standard error is ignored.
pub(super) fn say(text: impl std::fmt::Display) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Formats an aligned table of names and values.
pub(super) fn facts(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([*name, value.as_str()]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Returns a table that has a header and no rows.
pub(super) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header);
    table
}

/// Formats a table. All columns but the first are aligned to the right.
pub(super) fn align(mut table: Table) -> String {
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Returns a progress bar for `length` steps on standard error. It is hidden if standard error is not a terminal.
pub(super) fn bar(length: u64, hidden: bool) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if hidden || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}  {msg}  {eta}");
    bar.set_style(style.expect("the template is a constant"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Returns a progress bar for bytes that are read, with their rate, on standard error. It is hidden if standard error
/// is not a terminal.
pub(super) fn byte_bar(prefix: String, hidden: bool) -> ProgressBar {
    let bar = bar(0, hidden).with_prefix(prefix);
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}");
    bar.set_style(style.expect("the template is a constant"));
    bar
}

/// Returns a spinner on standard error, for work of unknown length. It is hidden if standard error is not a terminal.
pub(super) fn spinner(message: String, hidden: bool) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    if hidden || !std::io::stderr().is_terminal() {
        spinner.set_draw_target(ProgressDrawTarget::hidden());
    }
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// Formats a share as a percentage, or `None` as a dash.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |s| format!("{:.2} %", 100.0 * s))
}

/// Formats seconds in us, ms or s.
pub(super) fn seconds(s: f64) -> String {
    if s < 1e-3 {
        format!("{:.1} us", s * 1e6)
    } else if s < 1.0 {
        format!("{:.2} ms", s * 1e3)
    } else {
        format!("{s:.2} s")
    }
}

/// Formats a count with a comma between groups of three digits.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
