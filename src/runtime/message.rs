//! The messages between the driver and the workers.

use std::sync::Arc;

use lapidary_kernels::{HostSlot, Lent, Slot};
use serde::{Deserialize, Serialize};

use super::trace::Span;
use crate::error::{Error, NotFinite};
use crate::lower::Lowered;
use crate::plan::Script;

/// A message to a worker.
pub(super) enum ToWorker {
    /// Run a script, and report.
    Run(Run),
    /// Rows that another part packed: `(exchange, part, tile, rows)`.
    Rows(usize, usize, usize, HostSlot),
    /// Rows that another part packed and lends in its device memory: `(exchange, part, rows)`.
    Lent(usize, usize, Lent),
    /// Another part has passed its point of an exchange: it has read what this one lent, or it adds its term next.
    Passed(usize),
    /// The sum over all parts of an exchange.
    Sum(usize, HostSlot),
    /// Overwrite a persistent tensor.
    Write(Slot, HostSlot),
    /// Copy a persistent or published tensor to the driver.
    Show(Slot),
    /// Another worker failed: stop.
    Abort,
    /// The session has ended: free all memory, and return the device.
    End,
}

/// One run of a script.
#[derive(Clone)]
pub(super) struct Run {
    pub script: Arc<Script>,
    /// Small tensors to report when they are computed, such as losses and counts.
    pub metrics: Arc<Vec<Slot>>,
    /// Values that the host sets first and that are not counted as copies, such as the clock and the learning rate.
    pub controls: Vec<(Slot, HostSlot)>,
    /// What this rank says to the others with its reports.
    pub note: Note,
    /// The programs with the sizes of a mini-batch, if the script is for one.
    pub lowered: Option<Arc<Lowered>>,
    /// Whether to record when each action ran.
    pub traced: bool,
    /// Whether to look for the first number that is not finite. Each call is then waited for, and what it made is
    /// copied to the host.
    pub checked: bool,
}

/// A message to the driver.
pub(super) enum ToDriver {
    /// A term of a sum over all parts, of another rank the slice that this one adds: `(exchange, part, term)`.
    Term(usize, usize, HostSlot),
    /// The slice of a sum that another rank has added: `(exchange, rank, slice)`.
    Sum(usize, usize, HostSlot),
    /// A script has finished.
    Done(usize, Report),
    /// The contents of a tensor that was read.
    Contents(HostSlot),
    /// A tensor was written.
    Written,
    /// The worker failed, and has stopped.
    Failed(Error),
    /// The worker stopped because it was told to.
    Aborted,
}

/// What a rank says to the others with the reports of its parts, so that no round of its own is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// The number of a signal that asks the rank to end; 0 if there was none.
    pub signal: usize,
    /// Whether a snapshot of the state is due.
    pub snapshot: bool,
}

/// The measurements of one run of a script on one part.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// Bytes copied by the script to the device and to the host, without what it starts with.
    pub bytes: [u64; 2],
    /// Bytes copied by the script from other devices.
    pub bytes_between: u64,
    /// The same three numbers as the script says them: to the device, to the host, from other devices.
    pub planned_bytes: [u64; 3],
    /// Peak memory of the device so far, in bytes.
    pub peak_bytes: u64,
    /// Seconds of the training part and of the evaluation.
    pub seconds: [f64; 2],
    /// The values of the metrics.
    pub metrics: Vec<HostSlot>,
    /// When each action ran, if requested.
    pub spans: Vec<Span>,
    /// The first number that is not finite, if requested.
    pub not_finite: Option<NotFinite>,
    /// What the rank of the part says.
    pub note: Note,
}
