//! The log on standard error.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable with the level of the log, such as `debug`, or with levels of modules, such as `warn,lapidary::plan=debug`.
const LEVEL: &str = "LAPIDARY_LOG";

/// Logs to standard error from now on: warnings, or what the variable asks for.
pub(super) fn to_stderr() {
    let asked = std::env::var(LEVEL).ok().filter(|asked| !asked.is_empty());
    let levels = asked.as_deref().map(|asked| asked.parse::<Targets>().map_err(|error| (asked, error)));
    let (levels, wrong) = match levels {
        Some(Ok(levels)) => (levels, None),
        Some(Err(wrong)) => (Targets::new().with_default(Level::WARN), Some(wrong)),
        None => (Targets::new().with_default(Level::WARN), None),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(levels).init();
    if let Some((asked, error)) = wrong {
        tracing::warn!("{LEVEL}={asked} is not a level: {error}. Expected off, error, warn, info, debug or trace");
    }
}
