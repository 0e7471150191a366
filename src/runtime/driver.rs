//! The driver: runs scripts on the workers in parallel, one worker per device.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytemuck::Pod;
use lapidary_kernels::sync::{Builder, JoinHandle, Receiver, Sender, bounded};
use lapidary_kernels::{Device, HostSlot, Slot};

use super::exchange::{Expected, Halo, Inbox, Mail};
use super::message::{Report, Run, ToDriver, ToWorker};
use super::worker::{Post, Worker};
use crate::error::{Error, Result};
use crate::lower::{Exchange, Lifetime, Lowered, Routes, Source, Supply};
use crate::plan::Script;

/// Workers with their parts of the data, ready to run scripts.
pub(crate) struct Runtime {
    lowered: Vec<Arc<Lowered>>,
    workers: Vec<Sender<ToWorker>>,
    reports: Receiver<ToDriver>,
    threads: Vec<JoinHandle<()>>,
    /// Set when a worker failed: the others cannot continue without it.
    failed: Cell<bool>,
}

impl Runtime {
    /// Starts one worker per device and gives each its part of the data.
    ///
    /// # Errors
    /// [`Error::Device`] if the host has no memory or no thread for it.
    pub(crate) fn open(devices: Vec<Box<dyn Device>>, lowered: Vec<Lowered>, supply: &mut Supply<'_>) -> Result<Self> {
        let parts = devices.len();
        let lowered: Vec<Arc<Lowered>> = lowered.into_iter().map(Arc::new).collect();
        let exchanges = Arc::new(lowered[0].exchanges.clone());
        // Channels have space for one message per published tensor and part, plus the driver's messages. So no sender
        // ever waits.
        let told = |exchange: &Exchange| match exchange {
            // One message that rows are lent, and one that they were read.
            Exchange::Fetch { .. } => 2,
            other => other.published().len(),
        };
        let messages: usize = exchanges.iter().map(told).sum();
        let (driver, reports) = bounded(parts * (messages + 4));
        let channels: Vec<_> = (0..parts).map(|_| bounded(parts * messages + 4)).collect();
        let workers: Vec<Sender<ToWorker>> = channels.iter().map(|(sender, _)| sender.clone()).collect();
        let mut threads = Vec::new();
        for (part, (device, (_, from))) in devices.into_iter().zip(channels).enumerate() {
            let name = match parts {
                1 => device.name(),
                _ => format!("{} (part {part} of {parts}, from 0)", device.name()),
            };
            let host = starting_values(&lowered[part], supply, part, &name)?;
            let (inbox, readers) = halves(&lowered[part], supply, part);
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
        Ok(Self { lowered, workers, reports, threads, failed: Cell::new(false) })
    }

    /// Runs a script on each worker, and returns their reports when all are done.
    ///
    /// # Errors
    /// The error of the first worker that fails, at once; the others are told to stop.
    pub(crate) fn run(&self, scripts: &[Arc<Script>], run: impl Fn(Arc<Script>) -> Run) -> Result<Vec<Report>> {
        for (part, script) in scripts.iter().enumerate() {
            self.tell(part, ToWorker::Run(run(script.clone())))?;
        }
        let mut reports: Vec<Option<Report>> = vec![None; self.workers.len()];
        let mut terms: BTreeMap<usize, Vec<Option<HostSlot>>> = BTreeMap::new();
        while reports.iter().any(Option::is_none) {
            match self.hear()? {
                ToDriver::Done(part, report) => reports[part] = Some(report),
                ToDriver::Term(exchange, part, term) => {
                    let terms = terms.entry(exchange).or_insert_with(|| vec![None; self.workers.len()]);
                    terms[part] = Some(term);
                    if let Some(terms) = terms.iter().cloned().collect::<Option<Vec<_>>>() {
                        self.send_sum(exchange, &terms)?;
                    }
                }
                ToDriver::Contents(_) | ToDriver::Written | ToDriver::Aborted | ToDriver::Failed(_) => {
                    unreachable!("workers that run a script say how it goes, and a failure is an error")
                }
            }
        }
        Ok(reports.into_iter().flatten().collect())
    }

    /// Overwrites a persistent tensor on every worker.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write<T: Pod>(&self, slot: Slot, values: &[T]) -> Result<()> {
        let values = host_slot(values)?;
        for part in 0..self.workers.len() {
            self.tell(part, ToWorker::Write(slot, values.clone()))?;
        }
        for _ in 0..self.workers.len() {
            match self.hear()? {
                ToDriver::Written => {}
                _ => unreachable!("workers answer what they were asked"),
            }
        }
        Ok(())
    }

    /// Reads a persistent or published tensor of one part.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read<T: Pod>(&self, part: usize, slot: Slot) -> Result<Vec<T>> {
        self.tell(part, ToWorker::Show(slot))?;
        match self.hear()? {
            ToDriver::Contents(contents) => Ok(contents.to_vec()),
            _ => unreachable!("workers answer what they were asked"),
        }
    }

    /// Returns the lowered programs of each part.
    pub(crate) fn lowered(&self) -> &[Arc<Lowered>] {
        &self.lowered
    }

    /// Sends the sum of the terms of all parts to every part. Terms are added in part order.
    fn send_sum(&self, exchange: usize, terms: &[HostSlot]) -> Result<()> {
        let mut sum = terms[0].to_vec::<f32>();
        for term in &terms[1..] {
            let term = term.to_vec::<f32>();
            sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
        }
        let sum = host_slot(&sum)?;
        (0..self.workers.len()).try_for_each(|part| self.tell(part, ToWorker::Sum(exchange, sum.clone())))
    }

    fn tell(&self, part: usize, message: ToWorker) -> Result<()> {
        if self.failed.get() {
            return Err(Error::WorkersGone);
        }
        match self.workers[part].send(message) {
            Ok(()) => Ok(()),
            // The worker failed, and has reported why.
            Err(_) => loop {
                self.hear()?;
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
        for worker in &self.workers {
            // A full channel belongs to a worker that no longer listens.
            drop(worker.try_send(ToWorker::Abort));
        }
        Err(error)
    }
}

impl Runtime {
    /// Stops the workers, which frees their memory. No other method may be called afterwards.
    pub(crate) fn stop(&mut self) {
        self.failed.set(true);
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
fn serve(worker: Worker, driver: &Sender<ToDriver>) {
    let name = worker.name().to_owned();
    if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| worker.serve())) {
        let source = lapidary_kernels::Error::Panicked { message: lapidary_kernels::panic_message(&*panic) };
        drop(driver.send(ToDriver::Failed(Error::Device {
            device: name,
            op: "the worker".into(),
            source: Box::new(source),
        })));
    }
}

/// Returns what a part has on the host at the start: constants from the data, and zeros for state.
fn starting_values(
    lowered: &Lowered,
    supply: &mut Supply<'_>,
    part: usize,
    name: &str,
) -> Result<Vec<Option<HostSlot>>> {
    let values = lowered.tensors.iter().map(|tensor| match (&tensor.contents, tensor.kind) {
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

/// Returns what a part expects of each exchange, and for each exchange the parts that read its rows.
fn halves(lowered: &Lowered, supply: &mut Supply<'_>, part: usize) -> (Inbox, Vec<Vec<usize>>) {
    let (mut expected, mut readers) = (Vec::new(), Vec::new());
    for exchange in &lowered.exchanges {
        match exchange {
            Exchange::Sum { .. } => {
                expected.push(Expected::Sum(None));
                readers.push(Vec::new());
            }
            Exchange::Halo { packed, halo, block, width, float } => {
                let routes = supply.routes(*block);
                let sources = routes.sources[part].clone();
                let tile_bytes = halo.iter().map(|&slot| lowered.tensor(slot).bytes as usize).collect();
                expected.push(Expected::Halo(Halo::new(sources, packed.len(), tile_bytes, float.byte_count() * width)));
                readers.push(readers_of(routes, part));
            }
            Exchange::Fetch { block, .. } => {
                let routes = supply.routes(*block);
                let sources = routes.sources[part].iter().map(|source| (source.part, source.rows.len(), None));
                expected.push(Expected::Fetch(sources.collect()));
                readers.push(readers_of(routes, part));
            }
        }
    }
    (Inbox::new(&lowered.exchanges, expected), readers)
}

/// Returns the parts that read rows of `part`.
fn readers_of(routes: &Routes, part: usize) -> Vec<usize> {
    let reads = |sources: &[Source]| sources.iter().any(|source| source.part == part);
    (0..routes.sources.len()).filter(|&reader| reads(&routes.sources[reader])).collect()
}

fn host_slot<T: Pod>(values: &[T]) -> Result<HostSlot> {
    let failed =
        |source| Error::Device { device: "host".into(), op: "making room for values".into(), source: Box::new(source) };
    HostSlot::staged(values).map_err(failed)
}
