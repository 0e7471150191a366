//! Reports errors: replaces the library's option names by flags, and chooses the exit code.

use std::error::Error as StdError;
use std::process::ExitCode;

use super::bus_error;
use super::output::{is_closed, one_line, say_anyway};
use crate::dataset;
use crate::error::Error;
use crate::model::ModelError;
use crate::program::ProgramError;
use crate::ranks::Ranks;

/// The command failed.
pub(super) const FAILED: u8 = 1;

/// The command line is wrong. clap exits with the same code.
const USAGE: u8 = 2;

/// Nothing that was requested fits into memory.
pub(super) const DOES_NOT_FIT: u8 = 3;

/// A check passed as far as it went, but left something out.
pub(super) const INCOMPLETE: u8 = 3;

/// Reports an error, and returns the exit code of the process.
///
/// If the reader closes the pipe of standard output, it needs no more output. That is a success, and nothing is
/// printed.
pub(super) fn end(error: &Error) -> ExitCode {
    if is_closed(error) {
        return ExitCode::SUCCESS;
    }
    report(error);
    ExitCode::from(code(error))
}

/// Reports the error of one of several ranks, unless another one has `reported` it, and returns the exit code.
pub(super) fn end_rank(error: &Error, ranks: &Ranks, reported: bool) -> ExitCode {
    if !reported {
        say_anyway(format_args!("rank {} of {} on {}:", ranks.rank(), ranks.count(), ranks.host()));
        report(error);
    }
    ExitCode::from(code(error))
}

/// Prints one `error:` line, then its causes, unless the process is ending by SIGBUS and has said so.
pub(super) fn report(error: &Error) {
    if !bus_error::is_explained() {
        report_as("error", error);
    }
}

/// Prints one `warning:` line, then its causes, for an error that the command survives.
pub(super) fn warn(error: &Error) {
    report_as("warning", error);
}

fn report_as(what: &str, error: &Error) {
    say_anyway(format_args!("{what}: {}", in_flags(error)));
    let (mut cause, mut said) = (error.source(), String::new());
    while let Some(reason) = cause {
        let text = in_flags(reason);
        // Some errors only repeat their cause.
        if text != said {
            say_anyway(format_args!("  caused by: {text}"));
        }
        (cause, said) = (reason.source(), text);
    }
}

/// Returns an error and its causes as one line.
pub(super) fn in_one_line(error: &Error) -> String {
    let (mut line, mut cause) = (in_flags(error), error.source());
    while let Some(reason) = cause {
        let text = in_flags(reason);
        // Some errors only repeat their cause.
        if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
        cause = reason.source();
    }
    line
}

fn code(error: &Error) -> u8 {
    match error {
        Error::Value { .. } | Error::NotForModel { .. } | Error::Passes(_) => USAGE,
        Error::Dataset(dataset::Error::Option { .. } | dataset::Error::Builtin { .. }) => USAGE,
        Error::Model(
            ModelError::Unknown { .. }
            | ModelError::UnknownNorm { .. }
            | ModelError::NormNotTaken { .. }
            | ModelError::NoHeads
            | ModelError::Heads { .. }
            | ModelError::Slope { .. }
            | ModelError::DropoutRate { .. }
            | ModelError::Program(ProgramError::Levels { .. }),
        ) => USAGE,
        Error::DoesNotFit { .. } => DOES_NOT_FIT,
        Error::Dataset(dataset::Error::TooLarge { .. } | dataset::Error::HostMemory(_)) => DOES_NOT_FIT,
        _ => FAILED,
    }
}

/// Returns the message of an error with flags in place of option names. If the message names no option, the flags to
/// change are added in parentheses.
pub(super) fn in_flags(error: &(dyn StdError + 'static)) -> String {
    let mut text = one_line(&options_as_flags(&error.to_string())).into_owned();
    if let Some(flags) = flags_of(error) {
        text += &format!(" ({flags})");
    }
    text
}

/// Replaces option names by flags: "option `device_memory`" becomes "--device-memory".
pub(super) fn options_as_flags(text: &str) -> String {
    const OPTION: &str = "option `";
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.".contains(&b));
    let mut pieces = text.split(OPTION);
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once('`') {
            Some((name, rest)) if is_name(name) => shown.extend([&flag(name), rest]),
            _ => shown.extend([OPTION, piece]),
        }
    }
    shown
}

/// Returns the flag for an option of the library.
fn flag(option: &str) -> String {
    match option {
        "columns.key" => "--key".into(),
        "columns.label" => "--label-column".into(),
        "columns.features" => "--feature-columns".into(),
        "feature_width" => "--features".into(),
        "mean_degree" => "--degree".into(),
        // The argument of `new`.
        "dir" => "DIR".into(),
        _ => format!("--{}", option.replace('_', "-")),
    }
}

/// Returns the flags to change, for errors that name no option.
fn flags_of(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    // The source of another error is in a box.
    let of_device = error.downcast_ref().or_else(|| error.downcast_ref::<Box<_>>().map(|boxed| &**boxed));
    match of_device {
        // Errors of the driver and of cuBLAS if the memory of the device is full.
        Some(lapidary_kernels::Error::Cuda { name, .. }) => {
            return ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"]
                .contains(&name.as_str())
                .then_some("--device-memory");
        }
        Some(lapidary_kernels::Error::Threads { .. } | lapidary_kernels::Error::LaneThread { .. }) => {
            return Some("--threads, RAYON_NUM_THREADS; the limits are `ulimit -u` and `ulimit -v`");
        }
        Some(lapidary_kernels::Error::NoPeers) => return Some("--exchange host"),
        _ => {}
    }
    match error.downcast_ref::<Error>()? {
        Error::DoesNotFit { .. } => {
            Some("--device-memory, or --hidden of `train`; with mini-batches, --batch or --device-cache")
        }
        Error::Diverged { .. } => Some("--lr"),
        Error::CheckpointInTheWay { .. } => Some("--resume"),
        Error::Damaged { .. } => Some("--weights of `infer`"),
        Error::Passes(_) => Some("--passes"),
        Error::PartitionFile { .. } | Error::Parts { .. } => Some("--partition"),
        Error::Model(ModelError::Unknown { .. }) => Some("--model"),
        Error::Model(ModelError::UnknownNorm { .. } | ModelError::NormNotTaken { .. }) => Some("--norm"),
        Error::Model(ModelError::DropoutRate { .. }) => Some("--dropout, --input-dropout, --attention-dropout"),
        Error::Model(ModelError::NoHeads | ModelError::Heads { .. }) => Some("--heads, --hidden"),
        Error::Model(ModelError::Slope { .. }) => Some("--negative-slope"),
        Error::Dataset(dataset::Error::Builtin { .. }) => Some("--data"),
        Error::Dataset(dataset::Error::NotBuilt { feature: "metis", .. }) => {
            Some("cargo install --path . --features metis")
        }
        Error::Dataset(dataset::Error::NotBuilt { feature: "hypergraph", .. }) => {
            Some("cargo install --path . --features hypergraph")
        }
        Error::Dataset(dataset::Error::Option { option, .. } | dataset::Error::NotForThisData { option, .. }) => {
            match *option {
                "the random split" => Some("--split"),
                "the scale" => Some("--scale"),
                "the degree profile" => Some("--degrees"),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_other_quoted_text_stays() {
        for (text, want) in [
            ("option `device_memory` cannot be `x`: write bytes", "--device-memory cannot be `x`: write bytes"),
            (
                "no column `a` (option `columns.label`); set option `header`",
                "no column `a` (--label-column); set --header",
            ),
            ("an option `Not A Name` and option `", "an option `Not A Name` and option `"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(options_as_flags(text), want);
        }
    }

    #[test]
    fn an_error_names_the_flag_to_change() {
        let error = Error::DoesNotFit { device: "cpu".into(), need_bytes: 101, have_bytes: 100 };
        assert!(in_flags(&error).contains("(--device-memory, or --hidden"), "{}", in_flags(&error));
        let (call, name) = ("cuMemAllocAsync", "CUDA_ERROR_OUT_OF_MEMORY".into());
        let source = lapidary_kernels::Error::Cuda { call, name, advice: "give the device less" };
        let error = Error::Device { device: "cuda:0".into(), op: "starting".into(), source: Box::new(source) };
        let cause = in_flags(error.source().expect("the device's error"));
        assert!(cause.ends_with("give the device less (--device-memory)"), "{cause}");
    }
}
