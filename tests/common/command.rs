//! Runs the command.

use std::process::{Command, Output};

/// The path of the command.
pub const LAPIDARY: &str = env!("CARGO_BIN_EXE_lapidary");

/// Runs the command. Returns its exit code, its output and its errors.
pub fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(LAPIDARY).args(args).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Runs the command and returns its output.
///
/// # Panics
/// If the exit code is not 0.
#[track_caller]
pub fn succeeds(args: &[&str]) -> String {
    let (code, stdout, stderr) = run(args);
    assert_eq!(code, Some(0), "{args:?}: {stderr}");
    stdout
}
