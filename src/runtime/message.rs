//! What the driver and the workers say to each other.

use std::sync::Arc;

use lapidary_kernels::{HostSlot, Lent, Slot};

use super::trace::Span;
use crate::error::Error;
use crate::plan::Script;

/// To a worker.
pub(super) enum ToWorker {
    /// Do this, and report.
    Run(Run),
    /// Rows that another part packed: `(exchange, part, tile, rows)`.
    Rows(usize, usize, usize, HostSlot),
    /// Rows that another part packed, to be read where they lie: `(exchange, part, rows)`.
    Lent(usize, usize, Lent),
    /// Another part has read what this one lent for an exchange.
    Read(usize),
    /// The sum over all parts of what each published.
    Sum(usize, HostSlot),
    /// Overwrite a tensor that lasts.
    Write(Slot, HostSlot),
    /// Copy a tensor that lasts, or was published, and hand it over.
    Show(Slot),
    /// Another worker failed: stop what you are doing.
    Abort,
}

/// One script to be run.
#[derive(Clone)]
pub(super) struct Run {
    pub script: Arc<Script>,
    /// Small tensors to be handed over when they are made: losses, counts.
    pub metrics: Arc<Vec<Slot>>,
    /// Values that the host sets first, without counting them: the clock, the learning rate.
    pub controls: Vec<(Slot, HostSlot)>,
    /// Whether to note when each action ran.
    pub traced: bool,
}

/// To the driver.
pub(super) enum ToDriver {
    /// A term of a sum over all parts: `(exchange, part, term)`.
    Term(usize, usize, HostSlot),
    /// A script is done.
    Done(usize, Report),
    /// What was read.
    Contents(HostSlot),
    /// A value was written.
    Written,
    /// It went wrong. The worker is of no use any more.
    Failed(Error),
    /// It stopped because it was told to.
    Aborted,
}

/// What a worker measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// Copied by the script, to the device and to the host, beside what it starts with.
    pub bytes: [u64; 2],
    /// Copied by the script from other devices.
    pub bytes_between: u64,
    /// The most that the device has held so far.
    pub peak_bytes: u64,
    /// Of the training part and of the evaluation.
    pub seconds: [f64; 2],
    /// By metric.
    pub metrics: Vec<HostSlot>,
    /// When each action ran, if that was asked for.
    pub spans: Vec<Span>,
}
