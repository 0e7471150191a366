//! Reports to look at: one page of HTML that needs no other file, or Markdown.

mod bands;
mod bars;
mod chart;
mod html;
mod markdown;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::output::OutputFile;

pub(super) use bands::{Band, Bands};
pub(super) use bars::{Bars, Row};
pub(super) use chart::{Axis, Chart, Line};
pub(super) use html::page;
pub(super) use markdown::text;

/// A report, from top to bottom.
pub(super) struct Page {
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
}

/// A piece of a report.
pub(super) enum Block {
    Heading(String),
    Paragraph(String),
    List(Vec<String>),
    /// A command or a file, as it is typed.
    Code(String),
    Table {
        header: Vec<String>,
        rows: Vec<Vec<String>>,
    },
    /// A picture. Its numbers are in a table beside it.
    Chart(Chart),
    /// A picture of what is stacked, step by step. The largest numbers are in a table beside it.
    Bands(Bands),
    /// A picture of bars. Its numbers are in it.
    Bars(Bars),
    /// A verdict in a word, and what it means.
    Verdict {
        tone: Tone,
        word: &'static str,
        sentence: &'static str,
    },
}

/// Whether something is right.
#[derive(Clone, Copy)]
pub(super) enum Tone {
    Good,
    Bad,
    Unsure,
}

impl Block {
    pub(super) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> Self {
        let rows = rows.into_iter().map(Vec::from).collect();
        Self::Table { header: header.map(str::to_owned).to_vec(), rows }
    }

    /// A table of names and values.
    pub(super) fn facts(rows: &[(impl AsRef<str>, String)]) -> Self {
        let rows = rows.iter().map(|(name, value)| [name.as_ref().trim().to_owned(), value.clone()]);
        Self::table(["what", "value"], rows.collect())
    }

    /// How this command was called.
    pub(super) fn command() -> Self {
        let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
        Self::Code(std::iter::once("lapidary".to_owned()).chain(words).collect::<Vec<_>>().join(" "))
    }
}

/// Quotes a word for a shell, if it needs to be.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A page that is written when its command ends.
pub(super) struct PageFile {
    file: OutputFile,
    path: PathBuf,
}

impl PageFile {
    /// Opens the file, so that one that cannot be written is an error before the work.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn create(path: &Path) -> Result<Self> {
        Ok(Self { file: OutputFile::create(path).map_err(unwritten(path))?, path: path.into() })
    }

    /// Writes the page.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn write(mut self, page: &Page) -> Result<()> {
        let written = self.file.write_all(html::page(page).as_bytes()).and_then(|()| self.file.finish());
        written.map_err(unwritten(&self.path))
    }
}

fn unwritten(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    Error::io("write the report", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        let cases = [("--lr", "--lr"), ("a b", "'a b'"), ("", "''"), ("it's", "'it'\\''s'"), ("$HOME", "'$HOME'")];
        for (word, want) in cases {
            assert_eq!(quoted(word), want);
        }
    }
}
