//! Every call on the GPU against the `f64` reference.

use lapidary_battery::{CHECKS, Check, Failure, MANY_CELLS, MANY_CELLS_BYTES};
use serde_json::json;

use super::super::section::{Finished, Row, Section, lacks_memory};
use super::super::{Scope, Size};

const NEXT: &str = "Run the check again, alone: `lapidary gpu-check --only 'NAME'`. If it fails again, it is a bug of a \
    kernel: report it with results.json. If another one fails, the GPU may be faulty: look at `nvidia-smi -q -d ECC`.";

/// Runs all checks of a device.
pub(in super::super) fn every_call(scope: &Scope) -> Finished {
    let checks: Vec<Check> = CHECKS.iter().filter(|check| check.on_gpu).copied().collect();
    let mut section = Section::new(scope, "calls", checks.len(), NEXT, None);
    let (chosen, others): (Vec<Check>, Vec<Check>) = checks.into_iter().partition(|check| section.starts(check.name));
    others.iter().for_each(|check| section.row(check.name, || Ok(Row::new(json!({})))));
    run(&mut section, &chosen);
    section.finish()
}

/// Runs the check over a matrix of more than 2^31 cells, if there is the memory.
pub(in super::super) fn many_cells(scope: &Scope) -> Finished {
    let mut section = Section::new(scope, "2^31 cells", 1, NEXT, None);
    let name = MANY_CELLS.name;
    let lacks = match scope.size {
        Size::Tiny => Some(Row::NotHere("--size tiny has no large matrix".into())),
        Size::Published => lacks_memory(scope.gpu, MANY_CELLS_BYTES),
    };
    match lacks {
        _ if !section.starts(name) => section.row(name, || Ok(Row::new(json!({})))),
        Some(row) => section.add(name, row),
        None => run(&mut section, &[MANY_CELLS]),
    }
    section.finish()
}

fn run(section: &mut Section<'_>, checks: &[Check]) {
    let mut left: Vec<&str> = checks.iter().map(|check| check.name).rev().collect();
    lapidary_battery::run(checks, |check, time, failure| {
        left.pop();
        let row = Row::new(json!({ "seconds": time.as_secs_f64() }));
        section.add(check.name, failure.into_iter().fold(row, |row, failure| row.expect(false, || said(&failure))));
        !section.is_lost()
    });
    while let Some(name) = left.pop() {
        section.row(name, || Ok(Row::LeftOut("the GPU stopped working before".into())));
    }
}

fn said(failure: &Failure) -> String {
    format!("{} ({})", failure.message, failure.place)
}
