//! A worker: interprets a script for one part on one device.
//!
//! The worker runs ahead of its device. It queues copies and kernels on lanes, each after the events that it needs, and
//! waits only for rows of other parts and for memory. An evicted tensor keeps its memory until its last use has
//! finished (`room.rs`), so the device never holds more than the plan says. Loads that a later call reads are queued
//! behind the call of their step, so copies overlap with kernels where the plan leaves memory for it.

mod room;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use half::bf16;
use lapidary_kernels::sync::{Receiver, Sender};
use lapidary_kernels::{Call, Device, Event, HostSlot, Lane, Mat, Slot, StorageType};

use super::exchange::{Inbox, Mail};
use super::idle::{IdleDevice, staging};
use super::message::{Report, Run, ToDriver, ToWorker};
use super::trace::Labels;
use crate::error::{Error, NotFinite};
use crate::lower::{Lifetime, Lowered};
use crate::plan::{Script, lasts};

/// Why a worker stops.
enum Stop {
    Failed(Box<Error>),
    Aborted,
}

type Stoppable<T> = Result<T, Stop>;

/// A tensor on the device.
#[derive(Clone, Copy)]
struct Resident {
    /// When its contents are complete.
    ready: Event,
    /// The last kernel and the last copy to the host that read it.
    read: [Event; 2],
}

/// A tensor on the host.
#[derive(Clone)]
struct HostCopy {
    slot: HostSlot,
    /// When its contents are complete.
    ready: Event,
}

/// News for other workers, to be sent after an event.
struct Unsent {
    after: Event,
    news: News,
}

/// News for other workers.
enum News {
    /// Rows or a term are on the host. The pair is the exchange and the tile index.
    Published((usize, usize), HostSlot),
    /// Rows are packed for an exchange, and can be read in device memory.
    Packed(usize, Slot),
    /// The rows that others lent for an exchange were read.
    Read(usize),
}

/// The channels of a worker.
pub(super) struct Post {
    pub from: Receiver<ToWorker>,
    pub driver: Sender<ToDriver>,
    pub mail: Mail,
    pub inbox: Inbox,
}

pub(super) struct Worker {
    part: usize,
    device: Box<dyn Device>,
    /// Name of the device and part, for errors.
    name: String,
    lowered: Arc<Lowered>,
    resident: Vec<Option<Resident>>,
    host: Vec<Option<HostCopy>>,
    /// Buffers for copies to the host, reused in each epoch.
    staging: Vec<Option<HostSlot>>,
    /// Such buffers that no tensor has yet, from the session before.
    spare: Vec<HostSlot>,
    /// Evicted tensors that may still be in use, in the order of their evictions.
    leaving: VecDeque<(Slot, [Event; 3])>,
    /// Tensors that are to be loaded for later calls, in the order of the script.
    ahead: VecDeque<Slot>,
    /// The most bytes that the current script may hold on the device.
    limit_bytes: u64,
    unsent: VecDeque<Unsent>,
    /// Tensors that others may be reading, with their exchange. They stay until they were read.
    lent: BTreeMap<Slot, usize>,
    /// The newest event of each lane.
    newest: [Event; 3],
    /// Whether the device collects calls in a batch.
    batched: bool,
    labels: Labels,
    post: Post,
}

impl Worker {
    /// Creates a worker on `device`. `host` is what its part has on the host at the start, by slot.
    pub(super) fn new(
        part: usize,
        IdleDevice { device, staging: spare }: IdleDevice,
        name: String,
        lowered: Arc<Lowered>,
        host: Vec<Option<HostSlot>>,
        post: Post,
    ) -> Self {
        let count = lowered.tensors.len();
        let here = |slot: HostSlot| HostCopy { slot, ready: Event::DONE };
        Self {
            part,
            device,
            name,
            lowered,
            resident: vec![None; count],
            host: host.into_iter().map(|slot| slot.map(here)).collect(),
            staging: vec![None; count],
            spare,
            leaving: VecDeque::new(),
            ahead: VecDeque::new(),
            limit_bytes: u64::MAX,
            unsent: VecDeque::new(),
            lent: BTreeMap::new(),
            newest: [Event::DONE; 3],
            batched: false,
            labels: Labels::default(),
            post,
        }
    }

    /// Returns the name of its device and part, for errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Handles messages until the driver is gone, or asks for the device. Returns it then.
    pub(super) fn serve(mut self) -> Option<IdleDevice> {
        while let Ok(message) = self.post.from.recv() {
            let done = match message {
                ToWorker::Run(run) => self.run(&run).map(|report| ToDriver::Done(self.part, report)),
                ToWorker::Write(slot, values) => self.write(slot, values).map(|()| ToDriver::Written),
                ToWorker::Show(slot) => self.read(slot).map(ToDriver::Contents),
                ToWorker::End => return self.into_idle().ok(),
                other => match self.receive(other) {
                    Ok(()) => continue,
                    Err(stop) => Err(stop),
                },
            };
            let (message, goes_on) = match done {
                Ok(message) => (message, true),
                Err(Stop::Failed(error)) => (ToDriver::Failed(*error), false),
                Err(Stop::Aborted) => (ToDriver::Aborted, false),
            };
            // If the driver is gone, nobody waits for the answer.
            if self.post.driver.send(message).is_err() || !goes_on {
                return None;
            }
        }
        None
    }

    /// Frees all tensors, and returns the device.
    fn into_idle(mut self) -> Stoppable<IdleDevice> {
        self.residents().into_iter().for_each(|slot| self.evict(slot));
        self.free_all()?;
        let staging = self.staging.into_iter().flatten().collect();
        Ok(IdleDevice { device: self.device, staging })
    }

    fn run(&mut self, run: &Run) -> Stoppable<Report> {
        let script = &*run.script;
        if let Some(lowered) = &run.lowered {
            self.lowered = lowered.clone();
        }
        self.device.record(run.traced);
        self.labels.start(run.traced);
        // Received rows were kept so that they could be read. They are stale now.
        for (host, tensor) in self.host.iter_mut().zip(&self.lowered.tensors) {
            if tensor.kind == Lifetime::Received {
                *host = None;
            }
        }
        self.enter(script)?;
        for (slot, values) in &run.controls {
            self.write(*slot, values.clone())?;
        }
        self.settle()?;
        let entered = (self.device.copied_bytes(), self.device.fetched_bytes());
        let mut clocks = vec![Instant::now()];
        let mut metrics: Vec<Option<HostSlot>> = vec![None; run.metrics.len()];
        // An epoch without copies is the same every time, so it is run as a batch.
        let is_alone = script.copies_nothing() && !run.checked;
        let mut not_finite = None;
        if is_alone {
            self.begin_batch()?;
        }
        for (i, action) in script.actions.iter().enumerate() {
            if script.evaluates_from == Some(i) {
                self.settle()?;
                clocks.push(Instant::now());
                if is_alone {
                    self.begin_batch()?;
                }
            }
            self.around([&action.store, &action.evict, &action.load])?;
            self.compute(&action.name, &action.call)?;
            if run.checked && not_finite.is_none() {
                not_finite = self.first_not_finite(i, &action.name, &action.call)?;
            }
            action.publish.iter().try_for_each(|&slot| self.publish(slot))?;
            self.ahead.extend(&action.ahead);
            self.load_ahead()?;
            let made = |slot: Slot| action.call.writes().any(|made| made == slot);
            for (metric, slot) in metrics.iter_mut().zip(run.metrics.iter()).filter(|(_, slot)| made(**slot)) {
                *metric = Some(self.copy_small(*slot)?);
            }
        }
        self.load_now(self.ahead.clone().into_iter())?;
        let [store, evict, load] = &script.finish;
        self.around([store, evict, load])?;
        self.settle()?;
        clocks.push(Instant::now());
        let after = (self.device.copied_bytes(), self.device.fetched_bytes());
        self.end(script)?;
        let seconds = |i: usize| clocks.get(i + 1).map_or(0.0, |end| (*end - clocks[i]).as_secs_f64());
        Ok(Report {
            bytes: [after.0[0] - entered.0[0], after.0[1] - entered.0[1]],
            bytes_between: after.1 - entered.1,
            planned_bytes: [script.bytes_to_device, script.bytes_to_host, script.bytes_between_devices],
            peak_bytes: self.device.peak_bytes(),
            seconds: [seconds(0), seconds(1)],
            metrics: metrics.into_iter().map(|metric| metric.expect("a metric is made by its sequence")).collect(),
            spans: self.labels.name(self.device.take_spans()),
            not_finite,
            note: run.note,
        })
    }

    /// Makes the device hold exactly what the script starts with.
    fn enter(&mut self, script: &Script) -> Stoppable<()> {
        self.limit_bytes = script.peak_bytes;
        for slot in self.residents() {
            if !script.start.contains(&slot) {
                if self.host[slot.0 as usize].is_none() {
                    self.store(slot)?;
                }
                self.evict(slot);
            }
        }
        self.free_all()?;
        for &slot in &script.start {
            if self.resident[slot.0 as usize].is_none() {
                self.load(slot)?;
            }
        }
        Ok(())
    }

    /// Stores, then evicts, then loads.
    fn around(&mut self, [store, evict, load]: [&[Slot]; 3]) -> Stoppable<()> {
        store.iter().try_for_each(|&slot| self.store(slot))?;
        evict.iter().for_each(|&slot| self.evict(slot));
        load.iter().try_for_each(|&slot| self.load(slot))
    }

    fn compute(&mut self, name: &str, call: &Call) -> Stoppable<()> {
        self.load_now(call.reads())?;
        if call.fetches() {
            return self.fetch(name, call.inputs[0].slot, call.inputs[1].slot, call.out());
        }
        self.make_room_for_outputs(call)?;
        let mut after = Vec::with_capacity(8);
        for slot in call.reads() {
            after.push(self.held(slot)?.ready);
        }
        let done = if call.reduces() {
            self.wait_for_others(call.out().slot)?;
            self.device.all_reduce(call.inputs[0], call.out(), &after)
        } else {
            self.device.launch(Lane::Compute, call, &after)
        };
        let done = self.on(name, done)?;
        self.note(done, Lane::Compute, name, 0);
        for slot in call.reads() {
            self.held(slot)?.read[0] = done;
        }
        for slot in call.writes() {
            self.resident[slot.0 as usize] = Some(Resident { ready: done, read: [Event::DONE; 2] });
        }
        Ok(())
    }

    /// Waits until all parts are about to add their terms of a sum. So a part that failed before does not leave devices
    /// waiting for it.
    fn wait_for_others(&mut self, sum: Slot) -> Stoppable<()> {
        let exchange = self.post.mail.fetched_by(sum);
        let others = self.post.mail.others();
        self.post.mail.tell_passed(exchange, &others);
        self.hear_until(|worker| Ok(worker.post.inbox.take_passed(exchange, others.len()).then_some(())))
    }

    /// Looks for a number that is not finite in what call number `step` made. Fetched rows were looked at where they were
    /// made.
    fn first_not_finite(&mut self, step: usize, op: &str, call: &Call) -> Stoppable<Option<NotFinite>> {
        if call.fetches() {
            return Ok(None);
        }
        for made in &call.outputs {
            let Some(float) = made.dtype.float() else { continue };
            let copy = self.copy_small(made.slot)?;
            let copied = self.device.wait(self.newest[2]);
            self.on("waiting for a copy", copied)?;
            let found = match float {
                StorageType::F32 => copy.to_vec::<f32>().into_iter().enumerate().find(|(_, x)| !x.is_finite()),
                StorageType::Bf16 => {
                    let numbers = copy.to_vec::<bf16>().into_iter().map(f32::from);
                    numbers.enumerate().find(|(_, x)| !x.is_finite())
                }
            };
            if let Some((at, value)) = found {
                let cols = made.cols.max(1);
                return Ok(Some(NotFinite {
                    op: op.into(),
                    tensor: self.tensor_name(made.slot).into(),
                    value,
                    row: at / cols,
                    column: at % cols,
                    step,
                    part: self.part,
                }));
            }
        }
        Ok(None)
    }

    /// Lends this part's rows, and copies those of others once all of them are lent.
    fn fetch(&mut self, name: &str, packed: Slot, rows: Slot, out: Mat) -> Stoppable<()> {
        let exchange = self.post.mail.fetched_by(out.slot);
        self.make_room(out.slot)?;
        let after = self.held(packed)?.ready;
        if self.post.mail.reader_count(exchange) > 0 {
            self.lent.insert(packed, exchange);
            self.unsent.push_back(Unsent { after, news: News::Packed(exchange, packed) });
        }
        let from = self.hear_until(|worker| Ok(worker.post.inbox.take_lent(exchange)))?;
        let ready = self.held(rows)?.ready;
        let mut fetched = Event::DONE;
        if !from.is_empty() {
            let queued = self.device.fetch(Lane::CopyIn, rows, out, &from, &[ready]);
            fetched = self.on(name, queued)?;
            self.note_copy(fetched, Lane::CopyIn, out.slot);
            self.held(rows)?.read[1] = fetched; // `rows` is a constant, which is never copied to the host
            self.unsent.push_back(Unsent { after: fetched, news: News::Read(exchange) });
        }
        self.resident[out.slot.0 as usize] = Some(Resident { ready: fetched, read: [Event::DONE; 2] });
        Ok(())
    }

    fn store(&mut self, slot: Slot) -> Stoppable<()> {
        let host = self.staging(slot)?;
        let ready = self.held(slot)?.ready;
        let copied = self.device.copy_out(Lane::CopyOut, slot, &host, &[ready]);
        let copied = self.on(&format!("storing {}", self.tensor_name(slot)), copied)?;
        self.note_copy(copied, Lane::CopyOut, slot);
        self.held(slot)?.read[1] = copied;
        self.host[slot.0 as usize] = Some(HostCopy { slot: host, ready: copied });
        Ok(())
    }

    /// Stores a tensor that was just computed. It is sent to the others once it is on the host.
    fn publish(&mut self, slot: Slot) -> Stoppable<()> {
        let index = slot.0 as usize;
        // A constant is made once and need not be copied if the device uses host memory. Tensors that are made in each
        // epoch have a buffer that is reused.
        let once = self.lowered.tensors[index].kind == Lifetime::Constant;
        let shared = if once { self.on("publishing", self.device.share(slot))? } else { None };
        match shared {
            Some(slot) => self.host[index] = Some(HostCopy { slot, ready: Event::DONE }),
            None => self.store(slot)?,
        }
        let HostCopy { slot: rows, ready: copied } = self.host[index].clone().expect("what was stored is on the host");
        if let Some(place) = self.post.mail.place_of(slot) {
            self.unsent.push_back(Unsent { after: copied, news: News::Published(place, rows) });
        }
        Ok(())
    }

    fn evict(&mut self, slot: Slot) {
        if let Some(Resident { ready, read: [computed, copied] }) = self.resident[slot.0 as usize].take() {
            self.leaving.push_back((slot, [ready, computed, copied]));
        }
    }

    fn load(&mut self, slot: Slot) -> Stoppable<()> {
        let index = slot.0 as usize;
        if self.host[index].is_none() && self.lowered.tensors[index].kind == Lifetime::Received {
            self.hear_until(|worker| Ok(worker.take_received(slot)?.then_some(())))?;
        }
        let Some(HostCopy { slot: host, ready }) = self.host[index].clone() else {
            let why = lapidary_kernels::Error::EmptySlot { slot };
            return self.on(&format!("loading {}, which is not on the host", self.tensor_name(slot)), Err(why));
        };
        self.make_room(slot)?;
        let copied = self.device.copy_in(Lane::CopyIn, slot, &host, &[ready]);
        let copied = self.on(&format!("loading {}", self.tensor_name(slot)), copied)?;
        self.note_copy(copied, Lane::CopyIn, slot);
        self.resident[index] = Some(Resident { ready: copied, read: [Event::DONE; 2] });
        Ok(())
    }

    /// Starts to collect calls, if the device supports it. The caller has waited for everything before.
    fn begin_batch(&mut self) -> Stoppable<()> {
        let begun = self.device.begin_batch();
        self.batched = self.on("beginning a batch", begun)?;
        Ok(())
    }

    /// Queues the collected calls.
    fn end_batch(&mut self) -> Stoppable<()> {
        self.batched = false;
        let ended = self.device.end_batch();
        self.on("queueing a batch", ended)
    }

    /// Takes rows of other parts, or a sum over all parts, to the host. Returns whether all of it has arrived.
    fn take_received(&mut self, slot: Slot) -> Stoppable<bool> {
        let taken = self.post.inbox.take(slot);
        let taken = self.on(&format!("putting together {}", self.tensor_name(slot)), taken)?;
        let has_arrived = taken.is_some();
        if let Some(received) = taken {
            self.host[slot.0 as usize] = Some(HostCopy { slot: received, ready: Event::DONE });
        }
        Ok(has_arrived)
    }

    /// Receives messages until `take` returns something.
    fn hear_until<T>(&mut self, mut take: impl FnMut(&mut Self) -> Stoppable<Option<T>>) -> Stoppable<T> {
        loop {
            self.load_ahead()?;
            if let Some(here) = take(self)? {
                return Ok(here);
            }
            // Others may be waiting for this part's rows.
            self.send_unsent()?;
            match self.post.from.recv() {
                Ok(message) => self.receive(message)?,
                Err(_) => return Err(Stop::Aborted), // the driver is gone
            }
        }
    }

    fn receive(&mut self, message: ToWorker) -> Stoppable<()> {
        match message {
            ToWorker::Rows(exchange, part, tile, rows) => self.post.inbox.put_rows(exchange, part, tile, rows),
            ToWorker::Lent(exchange, part, rows) => self.post.inbox.put_lent(exchange, part, rows),
            ToWorker::Passed(exchange) => self.post.inbox.put_passed(exchange),
            ToWorker::Sum(exchange, sum) => self.post.inbox.put_sum(exchange, sum),
            ToWorker::Abort => return Err(Stop::Aborted),
            ToWorker::Run(_) | ToWorker::Write(..) | ToWorker::Show(_) | ToWorker::End => {
                unreachable!("the driver waits for a script's end before it asks for more")
            }
        }
        Ok(())
    }

    fn send_unsent(&mut self) -> Stoppable<()> {
        while !self.unsent.is_empty() {
            self.send_next()?;
        }
        Ok(())
    }

    /// Sends the oldest news, once it may be sent.
    fn send_next(&mut self) -> Stoppable<()> {
        let Some(Unsent { after, news }) = self.unsent.pop_front() else { return Ok(()) };
        let done = self.device.wait(after);
        self.on("telling others", done)?;
        match news {
            News::Published(place, rows) => self.post.mail.send(place, &rows),
            News::Packed(exchange, slot) => {
                let lent = self.device.lend(slot);
                let rows = self.on(&format!("lending {}", self.tensor_name(slot)), lent)?;
                self.post.mail.lend(exchange, &rows);
            }
            News::Read(exchange) => self.post.mail.tell_passed(exchange, &self.post.inbox.lenders(exchange)),
        }
        Ok(())
    }

    /// Waits for everything that was queued.
    fn settle(&mut self) -> Stoppable<()> {
        self.send_unsent()?;
        self.end_batch()?;
        let done = self.newest.iter().try_for_each(|&event| self.device.wait(event));
        self.on("waiting for the last operation", done)
    }

    /// Moves `next` values to the slots of their inputs, and evicts what does not persist.
    fn end(&mut self, script: &Script) -> Stoppable<()> {
        for slot in self.residents() {
            let is_next = script.next.iter().any(|&(new, _)| new == slot);
            let is_old = script.next.iter().any(|&(_, old)| old == slot);
            if is_old || !(is_next || self.outlasts(slot)) {
                self.evict(slot);
            }
        }
        self.free_all()?;
        for (host, tensor) in self.host.iter_mut().zip(&self.lowered.tensors) {
            if tensor.kind == Lifetime::Batch {
                *host = None;
            }
        }
        for &(new, old) in &script.next {
            let [from, to] = [new.0 as usize, old.0 as usize];
            self.resident[to] = self.resident[from].take();
            if self.resident[to].is_some() {
                let renamed = self.device.rename(new, old);
                self.on(&format!("renaming {}", self.tensor_name(new)), renamed)?;
            }
            // The buffer goes with the value; the old one will hold the next value.
            self.host[to] = self.host[from].take();
            self.staging.swap(from, to);
        }
        Ok(())
    }

    /// Returns whether other scripts use a slot's contents. They do not use a constant that the setup made and did not
    /// publish: only the setup reads it.
    fn outlasts(&self, slot: Slot) -> bool {
        match self.lowered.tensor(slot).kind {
            Lifetime::Constant => self.host[slot.0 as usize].is_some(),
            kind => lasts(kind),
        }
    }

    /// Overwrites a persistent tensor on the host and, if it is there, on the device.
    fn write(&mut self, slot: Slot, values: HostSlot) -> Stoppable<()> {
        if let Some(Resident { ready, read: [computed, copied] }) = self.resident[slot.0 as usize] {
            let after = [ready, computed, copied];
            let written = self.device.copy_in(Lane::Control, slot, &values, &after);
            let written = self.on(&format!("writing {}", self.tensor_name(slot)), written)?;
            self.newest[1] = written;
            self.held(slot)?.ready = written;
        }
        self.host[slot.0 as usize] = Some(HostCopy { slot: values, ready: Event::DONE });
        Ok(())
    }

    /// Returns the contents of a tensor.
    fn read(&mut self, slot: Slot) -> Stoppable<HostSlot> {
        let host = match self.host[slot.0 as usize].clone() {
            Some(HostCopy { slot, .. }) => slot,
            None => self.copy_small(slot)?,
        };
        self.settle()?;
        Ok(host)
    }

    /// Copies a tensor to the host without counting it.
    fn copy_small(&mut self, slot: Slot) -> Stoppable<HostSlot> {
        let bytes = self.lowered.tensor(slot).bytes as usize;
        let name = format!("reading {}", self.tensor_name(slot));
        let host = self.on(&name, HostSlot::staging(bytes))?;
        let ready = self.held(slot)?.ready;
        let copied = self.device.copy_out(Lane::Control, slot, &host, &[ready]);
        let copied = self.on(&name, copied)?;
        self.newest[2] = copied;
        self.held(slot)?.read[1] = copied;
        Ok(host)
    }

    fn staging(&mut self, slot: Slot) -> Stoppable<HostSlot> {
        let index = slot.0 as usize;
        let bytes = self.lowered.tensors[index].bytes as usize;
        if let Some(staging) = self.staging[index].as_ref().filter(|staging| staging.len() == bytes) {
            return Ok(staging.clone());
        }
        // What a mini-batch stores has other sizes than in the one before.
        self.host[index] = None;
        self.spare.extend(self.staging[index].take());
        let made = staging(&mut self.spare, bytes);
        let made = self.on(&format!("storing {}", self.tensor_name(slot)), made)?;
        self.staging[index] = Some(made.clone());
        Ok(made)
    }

    fn residents(&self) -> Vec<Slot> {
        (0..self.resident.len()).filter(|&i| self.resident[i].is_some()).map(|i| Slot(i as u32)).collect()
    }

    /// Returns a tensor that a valid plan has put on the device.
    fn held(&mut self, slot: Slot) -> Stoppable<&mut Resident> {
        if self.resident[slot.0 as usize].is_none() {
            let name = format!("using {}, which is not on the device", self.tensor_name(slot));
            self.on(&name, Err(lapidary_kernels::Error::EmptySlot { slot }))?;
        }
        Ok(self.resident[slot.0 as usize].as_mut().expect("it was looked at"))
    }

    fn note_copy(&mut self, event: Event, lane: Lane, slot: Slot) {
        let lowered = self.lowered.clone();
        let tensor = lowered.tensor(slot);
        self.note(event, lane, &tensor.name, tensor.bytes);
    }

    fn note(&mut self, event: Event, lane: Lane, name: &str, bytes: u64) {
        self.newest[lane as usize] = event;
        self.labels.note(event, lane, name, bytes);
    }

    fn tensor_name(&self, slot: Slot) -> &str {
        &self.lowered.tensor(slot).name
    }

    fn on<T>(&self, op: &str, result: lapidary_kernels::Result<T>) -> Stoppable<T> {
        let named = |source| Error::Device { device: self.name.clone(), op: op.into(), source: Box::new(source) };
        result.map_err(|source| Stop::Failed(Box::new(named(source))))
    }
}
