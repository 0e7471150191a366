//! The driver: runs scripts on the workers in parallel, one worker per device.
//!
//! With several ranks, the driver of each rank has the workers of its own parts. The drivers add sums together
//! ([`Slices`]), and tell each other the reports of their parts, so every driver knows those of all parts.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::Pod;
use lapidary_kernels::sync::{Builder, JoinHandle, Receiver, Sender, bounded};
use lapidary_kernels::{Device, HostSlot, Shared, Slot};

use super::exchange::{Expected, Halo, Inbox, Mail, Reader, Route};
use super::message::{Report, Run, ToDriver, ToWorker};
use super::wire::{report_bytes, report_of};
use super::worker::{Post, Worker};
use crate::error::{Error, Result};
use crate::lower::{Exchange, Lifetime, Lowered, Routes, Source, Supply};
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
    threads: Vec<JoinHandle<()>>,
    /// Set when a worker failed: the others cannot continue without it.
    failed: Cell<bool>,
    /// What the parts of all ranks have told the driver, and what it has not used yet. Another rank may be one script
    /// ahead.
    told: RefCell<Told>,
    ranks: Ranks,
    session: u64,
    subscription: Option<Subscription>,
}

/// What parts and ranks have told the driver.
struct Told {
    /// The terms of each sum, or the slices that this rank adds, by part.
    terms: Queues<HostSlot>,
    /// The slices of each sum, by the rank that added them.
    sums: Queues<HostSlot>,
    /// The reports of scripts, by part.
    reports: Vec<VecDeque<Report>>,
}

/// For each exchange, a queue of each part or rank.
type Queues<T> = BTreeMap<usize, Vec<VecDeque<T>>>;

impl Runtime {
    /// Starts one worker per device of this rank, and gives each its part of the data.
    ///
    /// # Errors
    /// [`Error::Device`] if the host has no memory or no thread for it; [`Error::OtherRank`].
    pub(crate) fn open(
        devices: Vec<Box<dyn Device>>,
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
            other => other.published().len(),
        };
        let messages: usize = exchanges.iter().map(told).sum();
        // Another rank may be one script ahead.
        let scripts = ranks.count().min(2);
        let (driver, reports) = bounded(scripts * parts * (messages + 4));
        let channels: Vec<_> = own.clone().map(|_| bounded(scripts * parts * messages + 4)).collect();
        let workers: Vec<Sender<ToWorker>> = channels.iter().map(|(sender, _)| sender.clone()).collect();
        let session = ranks.next_session();
        let mut threads = Vec::new();
        for (part, (device, (_, from))) in own.clone().zip(devices.into_iter().zip(channels)) {
            let name = match parts {
                1 => device.name(),
                _ => format!("{} (part {part} of {parts}, from 0)", device.name()),
            };
            let host = starting_values(&lowered[part], supply, part, &name)?;
            let inbox = inbox(&lowered[part], supply, part, &own);
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
            told: RefCell::new(Told {
                terms: BTreeMap::new(),
                sums: BTreeMap::new(),
                reports: vec![VecDeque::new(); lowered.len()],
            }),
            lowered,
            own,
            workers,
            reports,
            threads,
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
    pub(crate) fn run(&self, scripts: &[Arc<Script>], run: impl Fn(Arc<Script>) -> Run) -> Result<Vec<Report>> {
        let began = Instant::now();
        for part in self.own.clone() {
            self.tell(part, ToWorker::Run(run(scripts[part].clone())))?;
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
                    self.note(ToDriver::Done(part, report));
                }
                ToDriver::Term(exchange, part, term) if self.ranks.count() > 1 && self.own.contains(&part) => {
                    self.share_term(exchange, part, &term);
                }
                other => self.note(other),
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
        self.note(ToDriver::Term(exchange, part, HostSlot::constant(&own)));
    }

    /// Keeps what a part has told the driver until it is used.
    fn note(&self, heard: ToDriver) {
        let mut told = self.told.borrow_mut();
        match heard {
            ToDriver::Done(part, report) => told.reports[part].push_back(report),
            ToDriver::Term(exchange, part, term) => {
                let parts = self.lowered.len();
                told.terms.entry(exchange).or_insert_with(|| vec![VecDeque::new(); parts])[part].push_back(term);
            }
            ToDriver::Sum(exchange, rank, slice) => {
                let ranks = self.ranks.count();
                told.sums.entry(exchange).or_insert_with(|| vec![VecDeque::new(); ranks])[rank].push_back(slice);
            }
            ToDriver::Contents(_) | ToDriver::Written | ToDriver::Aborted | ToDriver::Failed(_) => {
                unreachable!("a worker answers when it is asked, and a failure is an error")
            }
        }
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
                other => self.note(other),
            }
        }
        Ok(())
    }

    /// Reads a persistent or published tensor of one of this rank's parts.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read<T: Pod>(&self, part: usize, slot: Slot) -> Result<Vec<T>> {
        self.tell(part, ToWorker::Show(slot))?;
        loop {
            match self.hear()? {
                ToDriver::Contents(contents) => return Ok(contents.to_vec()),
                other => self.note(other),
            }
        }
    }

    /// Returns the parts of this rank.
    pub(crate) fn own_parts(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Returns the lowered programs of each part.
    pub(crate) fn lowered(&self) -> &[Arc<Lowered>] {
        &self.lowered
    }

    /// Adds the terms that have arrived, in the order of the parts, and sends the sums that are complete.
    fn send_sums(&self) -> Result<()> {
        loop {
            // The borrow ends here: sending may note what is told meanwhile.
            let ready = take(&mut self.told.borrow_mut().terms);
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
            self.note(ToDriver::Sum(exchange, rank, host_slot(&sum)?));
        }
        loop {
            let ready = take(&mut self.told.borrow_mut().sums);
            let Some((exchange, slices)) = ready else { return Ok(()) };
            self.send_sum(exchange, &slices.iter().flat_map(HostSlot::to_vec::<f32>).collect::<Vec<f32>>())?;
        }
    }

    /// Returns how the ranks add the sum of an exchange.
    fn slices(&self, exchange: usize) -> Slices {
        let len = match &self.lowered[0].exchanges[exchange] {
            Exchange::Sum { sum, .. } => self.lowered[0].tensor(*sum).bytes as usize / size_of::<f32>(),
            Exchange::Halo { .. } | Exchange::Fetch { .. } => 0,
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
                self.note(heard);
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
        self.subscription = None;
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

/// Returns what a part expects of each exchange. `own` are the parts of its rank: from others, it is sent only the rows
/// that it reads.
fn inbox(lowered: &Lowered, supply: &mut Supply<'_>, part: usize, own: &Range<usize>) -> Inbox {
    let expected = lowered.exchanges.iter().map(|exchange| match exchange {
        Exchange::Sum { .. } => Expected::Sum(None),
        Exchange::Halo { packed, halo, block, width, float } => {
            let sources = supply.routes(*block).sources[part].iter().map(|source| match own.contains(&source.part) {
                true => source.clone(),
                false => Source { part: source.part, rows: (0..source.rows.len() as u32).collect() },
            });
            let tile_bytes = halo.iter().map(|&slot| lowered.tensor(slot).bytes as usize).collect();
            Expected::Halo(Halo::new(sources.collect(), packed.len(), tile_bytes, float.byte_count() * width))
        }
        Exchange::Fetch { block, .. } => {
            let sources = supply.routes(*block).sources[part].iter();
            Expected::Fetch(sources.map(|source| (source.part, source.rows.len(), None)).collect())
        }
    });
    Inbox::new(&lowered.exchanges, expected.collect())
}

/// Returns, for each exchange, who reads the rows of `part`. `post_of` returns the sender of a worker of this rank.
fn readers(
    lowered: &[Arc<Lowered>],
    supply: &mut Supply<'_>,
    part: usize,
    (ranks, session): (&Ranks, u64),
    post_of: impl Fn(usize) -> Option<Sender<ToWorker>>,
) -> Vec<Vec<Reader>> {
    let devices = lowered.len() / ranks.count();
    let of_exchange = |(number, exchange): (usize, &Exchange)| {
        let (block, packs, row_bytes) = match exchange {
            Exchange::Sum { .. } => return Vec::new(),
            Exchange::Halo { packed, block, width, float, .. } => (*block, &packed[..], float.byte_count() * width),
            Exchange::Fetch { block, .. } => (*block, &[][..], 0),
        };
        let pack_rows = packs.iter().map(|&slot| lowered[part].tensor(slot).bytes as usize / row_bytes.max(1));
        let pack_rows: Vec<usize> = pack_rows.collect();
        let readers = rows_read(supply.routes(block), part).into_iter().map(|(reader, rows)| match post_of(reader) {
            Some(worker) => Reader::Here(worker),
            None => {
                let head = Letter::new(Subject::Rows, session);
                let letter = Letter { exchange: number as u64, part: part as u64, to: reader as u64, ..head };
                let rows = by_tile(rows, &pack_rows);
                Reader::Elsewhere(Route { ranks: ranks.clone(), rank: reader / devices, letter, rows, row_bytes })
            }
        });
        readers.collect()
    };
    lowered[part].exchanges.iter().enumerate().map(of_exchange).collect()
}

/// Returns the parts that read rows of `part`, each with the rows of the pack that it reads.
fn rows_read(routes: &Routes, part: usize) -> Vec<(usize, &[u32])> {
    let of_part = |sources: &'_ [Source]| sources.iter().position(|source| source.part == part);
    let readers = routes.sources.iter().enumerate();
    readers.filter_map(|(reader, sources)| Some((reader, &sources[of_part(sources)?].rows[..]))).collect()
}

/// Splits ascending rows of a pack by the tiles of the pack, and numbers them from the first row of their tile.
fn by_tile(mut rows: &[u32], tiles: &[usize]) -> Vec<Vec<u32>> {
    let mut first = 0;
    let of_tile = |&count: &usize| {
        let (here, rest) = rows.split_at(rows.partition_point(|&row| (row as usize) < first + count));
        let numbered = here.iter().map(|row| row - first as u32).collect();
        (rows, first) = (rest, first + count);
        numbered
    };
    tiles.iter().map(of_tile).collect()
}

/// Returns a function that gives the letters of other ranks to the workers and to the driver. `first` is the first part
/// of this rank. Who has stopped needs no letters.
fn receive(
    workers: Vec<Sender<ToWorker>>,
    first: usize,
    driver: Sender<ToDriver>,
) -> impl FnMut(Result<(Letter, Shared<u8>)>) + Send {
    move |received| {
        let (letter, content) = match received {
            Ok(letter) => letter,
            Err(error) => return drop(driver.send(ToDriver::Failed(error))),
        };
        let [exchange, part, to, tile] =
            [letter.exchange, letter.part, letter.to, letter.tile].map(|number| number as usize);
        let message = match letter.subject() {
            Some(Subject::Rows) => {
                if let Some(worker) = workers.get(to.wrapping_sub(first)) {
                    drop(worker.send(ToWorker::Rows(exchange, part, tile, HostSlot::Constant(content))));
                }
                return;
            }
            Some(Subject::Term) => ToDriver::Term(exchange, part, HostSlot::Constant(content)),
            Some(Subject::Sum) => ToDriver::Sum(exchange, part, HostSlot::Constant(content)),
            Some(Subject::Report) => match report_of(&content) {
                Ok(report) => ToDriver::Done(part, report),
                Err(error) => ToDriver::Failed(error),
            },
            _ => return,
        };
        drop(driver.send(message));
    }
}

impl Told {
    /// Returns a report of every part, once all are there.
    fn take_reports(&mut self) -> Option<Vec<Report>> {
        let all = self.reports.iter().all(|reports| !reports.is_empty());
        all.then(|| self.reports.iter_mut().filter_map(VecDeque::pop_front).collect())
    }
}

/// Returns the first of each queue of an exchange whose queues all have one.
fn take<T>(queues: &mut Queues<T>) -> Option<(usize, Vec<T>)> {
    let (&exchange, queues) = queues.iter_mut().find(|(_, queues)| queues.iter().all(|queue| !queue.is_empty()))?;
    Some((exchange, queues.iter_mut().filter_map(VecDeque::pop_front).collect()))
}

fn host_slot<T: Pod>(values: &[T]) -> Result<HostSlot> {
    let failed =
        |source| Error::Device { device: "host".into(), op: "making room for values".into(), source: Box::new(source) };
    HostSlot::staged(values).map_err(failed)
}
