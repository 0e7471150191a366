//! The driver: runs scripts on the workers in parallel, one worker per device.
//!
//! With several ranks, the driver of each rank has the workers of its own parts. The drivers add sums together
//! ([`Slices`]), and tell each other the reports of their parts, so every driver knows those of all parts.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::Pod;
use lapidary_kernels::sync::{Builder, JoinHandle, Receiver, Sender, bounded};
use lapidary_kernels::{HostSlot, Shared, Slot};

use super::delivery::{inbox, readers, receive};
use super::exchange::Mail;
use super::idle::IdleDevice;
use super::message::{Report, Run, ToDriver, ToWorker};
use super::told::Told;
use super::wire::report_bytes;
use super::worker::{Post, Worker};
use crate::error::{Error, Result};
use crate::lower::{Exchange, Lifetime, Lowered, Supply};
use crate::plan::Script;
use crate::ranks::{Letter, Ranks, Slices, Subject, Subscription};

/// Workers with their parts of the data, ready to run scripts.
pub(crate) struct Runtime {
    /// The lowered programs of all parts.
    lowered: Vec<Arc<Lowered>>,
    /// The parts of this rank.
    own: Range<usize>,
    /// The workers of this rank's parts.
    workers: Vec<Sender<ToWorker>>,
    reports: Receiver<ToDriver>,
    threads: Vec<JoinHandle<Option<IdleDevice>>>,
    /// For each device that adds with others, what ends its waiting for them.
    interrupters: Vec<Box<dyn Fn() + Send>>,
    /// Set when a worker failed: the others cannot continue without it.
    failed: Cell<bool>,
    /// What the parts of all ranks have told the driver, and what it has not used yet. Another rank may be one script
    /// ahead.
    told: RefCell<Told>,
    ranks: Ranks,
    session: u64,
    subscription: Option<Subscription>,
}

impl Runtime {
    /// Starts one worker per device of this rank, and gives each its part of the data.
    ///
    /// # Errors
    /// [`Error::Device`] if the host has no memory or no thread for it; [`Error::OtherRank`].
    pub(crate) fn open(
        devices: Vec<IdleDevice>,
        lowered: Vec<Lowered>,
        supply: &mut Supply<'_>,
        ranks: &Ranks,
    ) -> Result<Self> {
        let parts = lowered.len();
        let own = ranks.rank() * devices.len()..(ranks.rank() + 1) * devices.len();
        let lowered: Vec<Arc<Lowered>> = lowered.into_iter().map(Arc::new).collect();
        let exchanges = Arc::new(lowered[0].exchanges.clone());
        // Channels have space for one message per published tensor and part, plus the driver's messages. So no sender
        // ever waits.
        let told = |exchange: &Exchange| match exchange {
            // One message that rows are lent, and one that they were read.
            Exchange::Fetch { .. } => 2,
            // One that a part is there.
            Exchange::Reduce { .. } => 1,
            other => other.published().len(),
        };
        let messages: usize = exchanges.iter().map(told).sum();
        // Another rank may be one script ahead.
        let scripts = ranks.count().min(2);
        let (driver, reports) = bounded(scripts * parts * (messages + 4));
        let channels: Vec<_> = own.clone().map(|_| bounded(scripts * parts * messages + 4)).collect();
        let workers: Vec<Sender<ToWorker>> = channels.iter().map(|(sender, _)| sender.clone()).collect();
        let session = ranks.next_session();
        let interrupters = devices.iter().filter_map(|device| device.device.interrupter()).collect();
        let mut threads = Vec::new();
        for (part, (device, (_, from))) in own.clone().zip(devices.into_iter().zip(channels)) {
            let name = match parts {
                1 => device.device.name(),
                _ => format!("{} (part {part} of {parts}, from 0)", device.device.name()),
            };
            let host = starting_values(&lowered[part], supply, part, &name)?;
            let inbox = inbox(&lowered[part], supply, part);
            let post_of = |reader: usize| own.contains(&reader).then(|| workers[reader - own.start].clone());
            let readers = readers(&lowered, supply, part, (ranks, session), post_of);
            let mail = Mail::new(part, exchanges.clone(), readers, workers.clone(), driver.clone());
            let post = Post { from, driver: driver.clone(), mail, inbox };
            let worker = Worker::new(part, device, name.clone(), lowered[part].clone(), host, post);
            let driver = driver.clone();
            let thread = Builder::new().name(name.clone());
            let thread = thread.spawn(move || serve(worker, &driver));
            let failed = |source| lapidary_kernels::Error::LaneThread { source };
            threads.push(thread.map_err(|e| Error::Device {
                device: name,
                op: "starting".into(),
                source: Box::new(failed(e)),
            })?);
        }
        let subscription = (ranks.count() > 1)
            .then(|| ranks.subscribe(session, Box::new(receive(workers.clone(), own.start, driver))));
        Ok(Self {
            told: RefCell::new(Told::new(lowered.len(), ranks.count())),
            lowered,
            own,
            workers,
            reports,
            threads,
            interrupters,
            failed: Cell::new(false),
            ranks: ranks.clone(),
            session,
            subscription,
        })
    }

    /// Runs its script on each worker, and returns the reports of all parts when all are done.
    ///
    /// # Errors
    /// The error of the first worker that fails, at once; the others are told to stop. [`Error::OtherRank`].
    pub(crate) fn run(&self, scripts: &[Arc<Script>], run: impl Fn(usize, Arc<Script>) -> Run) -> Result<Vec<Report>> {
        let began = Instant::now();
        for part in self.own.clone() {
            self.tell(part, ToWorker::Run(run(part, scripts[part].clone())))?;
        }
        loop {
            self.send_sums()?;
            if let Some(reports) = self.told.borrow_mut().take_reports() {
                return Ok(reports);
            }
            match self.hear()? {
                ToDriver::Done(part, report) if self.ranks.count() > 1 && self.own.contains(&part) => {
                    let letter = Letter { part: part as u64, ..Letter::new(Subject::Report, self.session) };
                    self.ranks.tell_others(&letter, &report_bytes(&report, began));
                    self.told.borrow_mut().note(ToDriver::Done(part, report));
                }
                ToDriver::Term(exchange, part, term) if self.ranks.count() > 1 && self.own.contains(&part) => {
                    self.share_term(exchange, part, &term);
                }
                other => self.told.borrow_mut().note(other),
            }
        }
    }

    /// Gives each rank what it adds of a term of this rank's part.
    fn share_term(&self, exchange: usize, part: usize, term: &HostSlot) {
        let term = term.to_vec::<f32>();
        let slices = Slices::new(self.ranks.count(), term.len());
        let letter =
            Letter { exchange: exchange as u64, part: part as u64, ..Letter::new(Subject::Term, self.session) };
        for rank in (0..self.ranks.count()).filter(|&rank| rank != self.ranks.rank()) {
            let slice: &[u8] = bytemuck::cast_slice(&term[slices.of(rank)]);
            self.ranks.send(rank, &letter, slice.len(), std::iter::once(slice));
        }
        let own = Shared::from(term).slice(slices.of(self.ranks.rank()));
        self.told.borrow_mut().note(ToDriver::Term(exchange, part, HostSlot::constant(&own)));
    }

    /// Overwrites a persistent tensor on every worker.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write<T: Pod>(&self, slot: Slot, values: &[T]) -> Result<()> {
        let values = host_slot(values)?;
        for part in self.own.clone() {
            self.tell(part, ToWorker::Write(slot, values.clone()))?;
        }
        let mut waits_for = self.workers.len();
        while waits_for > 0 {
            match self.hear()? {
                ToDriver::Written => waits_for -= 1,
                other => self.told.borrow_mut().note(other),
            }
        }
        Ok(())
    }

    /// Reads a persistent or published tensor of one of this rank's parts.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read<T: Pod>(&self, part: usize, slot: Slot) -> Result<Vec<T>> {
        Ok(self.show(part, slot)?.to_vec())
    }

    /// Returns a tensor like [`Runtime::read`], without a copy of what is on the host.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn show(&self, part: usize, slot: Slot) -> Result<HostSlot> {
        self.tell(part, ToWorker::Show(slot))?;
        loop {
            match self.hear()? {
                ToDriver::Contents(contents) => return Ok(contents),
                other => self.told.borrow_mut().note(other),
            }
        }
    }

    /// Returns the parts of this rank.
    pub(crate) fn own_parts(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Replaces the lowered programs by those for other sizes of mini-batches.
    pub(crate) fn set_lowered(&mut self, lowered: Vec<Arc<Lowered>>) {
        self.lowered = lowered;
    }

    /// Returns the lowered programs of each part.
    pub(crate) fn lowered(&self) -> &[Arc<Lowered>] {
        &self.lowered
    }

    /// Adds the terms that have arrived, in the order of the parts, and sends the sums that are complete.
    fn send_sums(&self) -> Result<()> {
        loop {
            // The borrow ends here: sending may note what is told meanwhile.
            let ready = self.told.borrow_mut().take_terms();
            let Some((exchange, terms)) = ready else { break };
            let mut sum = terms[0].to_vec::<f32>();
            for term in &terms[1..] {
                let term = term.to_vec::<f32>();
                sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
            }
            if !self.slices(exchange).is_shared() {
                self.send_sum(exchange, &sum)?;
                continue;
            }
            let (letter, rank) = (Letter::new(Subject::Sum, self.session), self.ranks.rank());
            let letter = Letter { exchange: exchange as u64, part: rank as u64, ..letter };
            self.ranks.tell_others(&letter, bytemuck::cast_slice(&sum));
            self.told.borrow_mut().note(ToDriver::Sum(exchange, rank, host_slot(&sum)?));
        }
        loop {
            let ready = self.told.borrow_mut().take_sums();
            let Some((exchange, slices)) = ready else { return Ok(()) };
            self.send_sum(exchange, &slices.iter().flat_map(HostSlot::to_vec::<f32>).collect::<Vec<f32>>())?;
        }
    }

    /// Returns how the ranks add the sum of an exchange.
    fn slices(&self, exchange: usize) -> Slices {
        let len = match &self.lowered[0].exchanges[exchange] {
            Exchange::Sum { sum, .. } => self.lowered[0].tensor(*sum).bytes as usize / size_of::<f32>(),
            Exchange::Halo { .. } | Exchange::Fetch { .. } | Exchange::Reduce { .. } => 0,
        };
        Slices::new(self.ranks.count(), len)
    }

    /// Sends a sum to every part of this rank.
    fn send_sum(&self, exchange: usize, sum: &[f32]) -> Result<()> {
        let sum = host_slot(sum)?;
        self.own.clone().try_for_each(|part| self.tell(part, ToWorker::Sum(exchange, sum.clone())))
    }

    fn tell(&self, part: usize, message: ToWorker) -> Result<()> {
        if self.failed.get() {
            return Err(Error::WorkersGone);
        }
        match self.workers[part - self.own.start].send(message) {
            Ok(()) => Ok(()),
            // The worker failed, and has reported why.
            Err(_) => loop {
                let heard = self.hear()?;
                self.told.borrow_mut().note(heard);
            },
        }
    }

    /// Receives the next message. A failure stops all workers.
    fn hear(&self) -> Result<ToDriver> {
        if self.failed.get() {
            return Err(Error::WorkersGone);
        }
        let error = match self.reports.recv() {
            Ok(ToDriver::Failed(error)) => error,
            Ok(ToDriver::Aborted) | Err(_) => Error::WorkersGone,
            Ok(other) => return Ok(other),
        };
        self.failed.set(true);
        self.interrupters.iter().for_each(|interrupt| interrupt());
        for worker in &self.workers {
            // A full channel belongs to a worker that no longer listens.
            drop(worker.try_send(ToWorker::Abort));
        }
        Err(error)
    }
}

impl Runtime {
    /// Ends the session. Returns the devices of this rank, without tensors; fewer if one could not free its memory.
    pub(crate) fn into_devices(mut self) -> Vec<IdleDevice> {
        self.subscription = None;
        for worker in self.workers.drain(..) {
            // A worker that failed does not listen.
            drop(worker.send(ToWorker::End));
        }
        self.threads.drain(..).filter_map(|thread| thread.join().ok().flatten()).collect()
    }

    /// Stops the workers, which frees their memory. No other method may be called afterwards.
    pub(crate) fn stop(&mut self) {
        self.failed.set(true);
        self.subscription = None;
        // Not of devices that were taken out of the session.
        if !self.workers.is_empty() {
            self.interrupters.iter().for_each(|interrupt| interrupt());
        }
        for worker in self.workers.drain(..) {
            drop(worker.try_send(ToWorker::Abort));
        }
        for thread in self.threads.drain(..) {
            // A worker's panic was already reported as its failure.
            drop(thread.join());
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// Runs a worker to its end. A panic is our bug, but it must be reported so that the others do not wait forever.
fn serve(worker: Worker, driver: &Sender<ToDriver>) -> Option<IdleDevice> {
    let name = worker.name().to_owned();
    let served = std::panic::catch_unwind(AssertUnwindSafe(|| worker.serve()));
    served.unwrap_or_else(|panic| {
        let source = lapidary_kernels::Error::Panicked { message: lapidary_kernels::panic_message(&*panic) };
        drop(driver.send(ToDriver::Failed(Error::Device {
            device: name,
            op: "the worker".into(),
            source: Box::new(source),
        })));
        None
    })
}

/// Returns what a part has on the host at the start: constants from the data, and zeros for state.
fn starting_values(
    lowered: &Lowered,
    supply: &mut Supply<'_>,
    part: usize,
    name: &str,
) -> Result<Vec<Option<HostSlot>>> {
    let values = lowered.tensors.iter().map(|tensor| match (&tensor.contents, tensor.kind) {
        (_, Lifetime::Batch) => Ok(None),
        (Some(contents), _) => Ok(Some(supply.get(part, tensor.tile, contents))),
        (None, Lifetime::State) => {
            let zeros = HostSlot::staging(tensor.bytes as usize).map(Some);
            let op = format!("making room for {}", tensor.name);
            zeros.map_err(|source| Error::Device { device: name.into(), op, source: Box::new(source) })
        }
        (None, _) => Ok(None),
    });
    values.collect()
}

fn host_slot<T: Pod>(values: &[T]) -> Result<HostSlot> {
    let failed =
        |source| Error::Device { device: "host".into(), op: "making room for values".into(), source: Box::new(source) };
    HostSlot::staged(values).map_err(failed)
}
