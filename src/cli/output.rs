//! Output: JSON lines for programs, tables and progress bars for people.

use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comfy_table::{CellAlignment, Row, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::error::{Error, Result};

/// Whether another rank of the job prints.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Makes this process print nothing but errors, since another rank prints the same.
pub(super) fn silence() {
    IS_SILENT.store(true, Ordering::Relaxed);
}

fn is_silent() -> bool {
    IS_SILENT.load(Ordering::Relaxed)
}

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
    if is_silent() {
        return Ok(());
    }
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

/// Prints text and a line end on standard output. Control characters other than line ends are escaped.
///
/// # Errors
/// [`Error::Io`] when standard output is closed.
pub(super) fn print(text: &str) -> Result<()> {
    if is_silent() {
        return Ok(());
    }
    writeln!(std::io::stdout().lock(), "{}", escaped(text, &['\n'])).map_err(unwritable)
}

/// Prints text and a line end on standard error, with the same escapes. A closed standard error is ignored.
pub(super) fn say(text: impl std::fmt::Display) {
    if !is_silent() {
        say_anyway(text);
    }
}

/// Prints like [`say`], also on a rank that prints nothing else.
pub(super) fn say_anyway(text: impl std::fmt::Display) {
    drop(writeln!(std::io::stderr().lock(), "{}", escaped(&text.to_string(), &['\n'])));
}

/// Escapes all control characters of a name or message, line ends too: a name from a file must not move the cursor,
/// colour the terminal, or look like another line.
pub(super) fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, &[])
}

/// Escapes control characters, and the marks that reverse the direction of text, except for those that are `kept`.
fn escaped<'t>(text: &'t str, kept: &[char]) -> Cow<'t, str> {
    let reverses = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_escaped = |c: char| (c.is_control() || reverses(c)) && !kept.contains(&c);
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) { shown.extend(c.escape_debug()) } else { shown.push(c) }
    }
    shown.into()
}

/// Formats an aligned table of names and values.
pub(super) fn facts(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([Cow::from(*name), one_line(value)]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Returns a table that has a header and no rows.
pub(super) fn table(header: impl Into<Row>) -> Table {
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
    if hidden || is_silent() || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}  {msg}  {eta}");
    bar.set_style(style.expect("the template is a constant"));
    tick(&bar, Duration::from_millis(200));
    bar
}

/// Redraws a bar from time to time, which takes a thread. A bar that nobody sees needs none, and without more threads a
/// bar moves only when its work does.
fn tick(bar: &ProgressBar, every: Duration) {
    let can_start = || std::thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok());
    if !bar.is_hidden() && can_start() {
        bar.enable_steady_tick(every);
    }
}

/// Returns a progress bar for bytes that are read, with their rate, on standard error. It is hidden if standard error
/// is not a terminal.
pub(super) fn byte_bar(prefix: String, hidden: bool) -> ProgressBar {
    let bar = bar(0, hidden).with_prefix(one_line(&prefix).into_owned());
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}");
    bar.set_style(style.expect("the template is a constant"));
    bar
}

/// Returns a spinner on standard error, for work of unknown length. It is hidden if standard error is not a terminal.
pub(super) fn spinner(message: String, hidden: bool) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(one_line(&message).into_owned());
    if hidden || !std::io::stderr().is_terminal() {
        spinner.set_draw_target(ProgressDrawTarget::hidden());
    }
    tick(&spinner, Duration::from_millis(100));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_in_names_do_not_reach_the_terminal() {
        for (name, want) in [
            ("cora", "cora"),
            ("Zürich 東京 naïve 🙂", "Zürich 東京 naïve 🙂"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("two\nlines\r\t", "two\\nlines\\r\\t"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\u{202e}b", "a\\u{202e}b"),
        ] {
            assert_eq!(one_line(name), want);
        }
        assert_eq!(escaped("a\nb\u{1b}", &['\n']), "a\nb\\u{1b}");
        assert!(facts(&[("name", "a\nb".into())]).ends_with("a\\nb"));
    }
}
