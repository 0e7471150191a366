//! The verdict: what the check says of the GPU in one word.

use std::process::ExitCode;

use super::section::Finished;
use crate::cli::failure;

/// Goals that are not met are no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Everything was checked and measured, and is right.
    Pass,
    /// Something is wrong.
    Fail,
    /// Nothing is wrong, but something was left out.
    Incomplete,
}

impl Verdict {
    pub(super) fn of<'f>(sections: impl Iterator<Item = &'f Finished> + Clone) -> Self {
        if sections.clone().any(|section| !section.findings.is_empty()) {
            return Self::Fail;
        }
        let is_whole = sections.clone().all(|section| section.left_out.is_empty());
        // Nothing proves nothing.
        if is_whole && sections.map(Finished::passed).sum::<usize>() > 0 { Self::Pass } else { Self::Incomplete }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Incomplete => "INCOMPLETE",
        }
    }

    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::Pass => "Everything was checked, and everything is right.",
            Self::Fail => "Something is wrong. The report says what to do next.",
            Self::Incomplete => "What was checked is right, but something was left out.",
        }
    }

    pub(super) fn exit_code(self) -> ExitCode {
        match self {
            Self::Pass => ExitCode::SUCCESS,
            Self::Fail => ExitCode::from(failure::FAILED),
            Self::Incomplete => ExitCode::from(failure::INCOMPLETE),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::gpu_check::section::Finding;

    fn section(rows: usize, findings: usize, left_out: usize) -> Finished {
        let finding = Finding { name: "a".into(), why: "b".into(), next: "c".into() };
        Finished {
            name: "calls",
            rows: vec![json!({ "ok": true }); rows],
            findings: vec![finding; findings],
            left_out: vec![["a".into(), "b".into()]; left_out],
            not_here: vec![["a".into(), "b".into()]],
            seconds: 1.0,
        }
    }

    #[test]
    fn a_check_that_verified_nothing_or_left_something_out_does_not_pass() {
        let verdict = |sections: &[Finished]| Verdict::of(sections.iter());
        assert_eq!(verdict(&[section(3, 0, 0), section(0, 0, 0)]), Verdict::Pass);
        assert_eq!(verdict(&[section(3, 0, 0), section(3, 0, 1)]), Verdict::Incomplete);
        assert_eq!(verdict(&[section(3, 1, 0), section(3, 0, 1)]), Verdict::Fail);
        assert_eq!(verdict(&[section(0, 0, 0)]), Verdict::Incomplete);
        assert_eq!(verdict(&[]), Verdict::Incomplete);
    }
}
