//! What the experiments share.

use std::str::FromStr;

/// The words after the name of a program, of the form `--flag value`.
#[derive(Clone, Debug)]
pub struct Flags(Vec<String>);

impl Flags {
    /// Returns the flags of this program.
    pub fn of_program() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    /// Whether a flag is there.
    pub fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|word| word == flag)
    }

    /// Returns the word after a flag.
    pub fn text(&self, flag: &str) -> Option<&str> {
        let at = self.0.iter().position(|word| word == flag)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// Returns the number after a flag, or `default`.
    ///
    /// # Errors
    /// If the word is no such number.
    pub fn number<T: FromStr>(&self, flag: &str, default: T) -> Result<T, T::Err> {
        self.text(flag).map_or(Ok(default), str::parse)
    }
}
