//! The command `lapidary`: see `lapidary --help`.

use std::process::ExitCode;

/// Ends the process with an error when memory runs out.
#[global_allocator]
static ALLOCATOR: lapidary::cli::Allocator = lapidary::cli::Allocator;

fn main() -> ExitCode {
    lapidary::cli::run()
}
