//! The log on standard error.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable with the level of the log, such as `debug`, or with levels of modules, such as `warn,lapidary::plan=debug`.
const LEVEL: &str = "LAPIDARY_LOG";

/// Logs to standard error from now on: warnings, or what the variable asks for.
pub(super) fn to_stderr() {
    let asked = std::env::var(LEVEL).unwrap_or_default();
    let levels = if asked.is_empty() { Some(warnings()) } else { levels(&asked) };
    let is_wrong = levels.is_none();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(levels.unwrap_or_else(warnings)).init();
    if is_wrong {
        tracing::warn!("{LEVEL}={asked} is not a level; expected off, error, warn, info, debug or trace");
    }
}

fn warnings() -> Targets {
    Targets::new().with_default(Level::WARN)
}

/// Reads a level, or levels of modules. `None` if it is neither.
fn levels(asked: &str) -> Option<Targets> {
    match asked.parse::<LevelFilter>() {
        Ok(level) => Some(Targets::new().with_default(level)),
        // A word alone would be the name of a module.
        Err(_) if asked.contains('=') => asked.parse().ok(),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_and_other_words_are_not() {
        let is_on = |asked: &str, level| levels(asked).map(|levels| levels.would_enable("lapidary::plan", &level));
        assert_eq!(is_on("debug", Level::DEBUG), Some(true));
        assert_eq!(is_on("WARN", Level::INFO), Some(false));
        assert_eq!(is_on("off", Level::ERROR), Some(false));
        assert_eq!(is_on("warn,lapidary::plan=debug", Level::DEBUG), Some(true));
        assert_eq!(is_on("loud", Level::ERROR), None);
        assert_eq!(is_on("lapidary=loud", Level::ERROR), None);
    }
}
