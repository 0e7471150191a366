//! `lapidary completions` and `lapidary man`.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::output::print;
use crate::error::{Error, Result};

/// How to install the completions of a shell.
const COMPLETIONS: &str = "\
Examples:
  lapidary completions bash > ~/.local/share/bash-completion/completions/lapidary
  lapidary completions zsh > ~/.zfunc/_lapidary     # with fpath+=~/.zfunc before compinit
  lapidary completions fish > ~/.config/fish/completions/lapidary.fish";

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub(super) struct CompletionsArgs {
    /// Shell: bash, zsh, fish, elvish or powershell
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

/// Prints the script that completes verbs and flags in a shell.
pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "lapidary", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Folder to write the pages to, such as ~/.local/share/man/man1
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes a man page for the command and for each verb.
pub(super) fn man(args: &ManArgs, command: Command) -> Result<()> {
    let written = std::fs::create_dir_all(&args.out).and_then(|()| clap_mangen::generate_to(command, &args.out));
    written.map_err(Error::io("write the man pages", &args.out))?;
    let (folder, page) = (args.out.display(), args.out.join("lapidary.1"));
    print(&format!("The man pages are in {folder}; read one with: man -l {}", page.display()))
}
