//! The command `lapidary`: see `lapidary --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lapidary::cli::run()
}
