//! `lapidary new`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{print, say};
use crate::error::{Error, Result};

/// The program that is written. It is one of the examples, so it compiles and runs.
const MAIN: &str = include_str!("../../examples/new_program.rs");

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// Folder to write the program to; its last part is the program's name
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Folder of Lapidary's sources, to build with instead of the crate of this version from the registry
    #[arg(long, value_name = "DIR")]
    lapidary: Option<PathBuf>,
}

/// Writes a small commented program that embeds the library.
pub(super) fn run(args: &NewArgs) -> Result<()> {
    let name = name(&args.dir)?;
    let dependency = dependency(args.lapidary.as_deref())?;
    let sources = args.dir.join("src");
    if let Some(parent) = args.dir.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create the folder", parent))?;
    }
    // A folder that is there may hold somebody's work.
    fs::create_dir(&args.dir).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => wrong(&args.dir, "it is there already; name a new folder"),
        _ => Error::io("create the folder", &args.dir)(error),
    })?;
    fs::create_dir(&sources).map_err(Error::io("create the folder", &sources))?;
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n{dependency}\n"
    );
    for (file, text) in [("Cargo.toml", manifest.as_str()), ("src/main.rs", MAIN), (".gitignore", "/target\n")] {
        let path = args.dir.join(file);
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    if args.lapidary.is_none() {
        let version = env!("CARGO_PKG_VERSION");
        say(format_args!(
            "Cargo.toml asks for lapidary {version} from the registry; to build with sources, use --lapidary DIR"
        ));
    }
    let dir = args.dir.display();
    print(&format!(
        "{dir}/src/main.rs trains a network and applies it; run it with:\n  cd {dir} && cargo run --release"
    ))
}

fn wrong(dir: &Path, expected: &str) -> Error {
    Error::Value { option: "dir", value: dir.display().to_string(), expected: expected.into() }
}

/// Returns the name of the program: the last part of the folder, which has to be a name of Cargo.
fn name(dir: &Path) -> Result<&str> {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_plain) {
        true => Ok(name),
        false => {
            Err(wrong(dir, "its last part names the program: begin with a letter, and use letters, digits, - and _"))
        }
    }
}

/// Returns the line of `Cargo.toml` that names the library.
fn dependency(sources: Option<&Path>) -> Result<String> {
    // The program has no use for the command.
    let features = "default-features = false, features = [\"cuda\"]";
    let Some(sources) = sources else {
        return Ok(format!("lapidary = {{ version = \"{}\", {features} }}", env!("CARGO_PKG_VERSION")));
    };
    let sources = fs::canonicalize(sources).map_err(Error::io("find the sources", sources))?;
    if !sources.join("Cargo.toml").is_file() {
        let expected = "there is no Cargo.toml in it; name the folder of Lapidary's sources".into();
        return Err(Error::Value { option: "lapidary", value: sources.display().to_string(), expected });
    }
    Ok(format!("lapidary = {{ path = {:?}, {features} }}", sources.display().to_string()))
}
