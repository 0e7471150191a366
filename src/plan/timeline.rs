//! Predicts when the kernels and copies of a script run: three lanes, and the rules by which a worker waits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use lapidary_kernels::Slot;

use super::script::fetched_bytes;
use super::seconds::Rates;
use super::{Action, Script};
use crate::lower::Lowered;

/// The predicted seconds of a script, and of its lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Seconds from start to end.
    pub seconds: f64,
    /// The part of them that an evaluation after the first phase takes.
    pub eval_seconds: f64,
    /// Seconds of all kernels.
    pub kernels_s: f64,
    /// Seconds of all copies to the device.
    pub copies_in_s: f64,
    /// Seconds of all copies to the host.
    pub copies_out_s: f64,
}

impl Timeline {
    /// Predicts the time of a script.
    ///
    /// Kernels, copies in and copies out are three lanes that run at the same time; each runs its work in order. A worker
    /// queues the actions one after the other. It waits only for memory: an evicted tensor gives up its memory when its
    /// last use has happened. Loads for later calls wait for memory too, but not the worker for them. Rows of other
    /// parts arrive when this part has published its own. If copies use the cores that compute, nothing runs side by side:
    /// the times of all lanes are added, and those between calls.
    ///
    /// # Cost
    /// O(copies and operands x log).
    pub fn new(rates: &Rates, lowered: &Lowered, script: &Script) -> Self {
        let mut run = Run::new(rates, lowered, script);
        let mut trained_s = None;
        for (i, action) in script.actions.iter().enumerate() {
            if script.evaluates_from == Some(i) {
                run.now = run.end();
                trained_s = Some(run.seconds());
            }
            run.action(action);
        }
        let [store, evict, load] = &script.finish;
        store.iter().for_each(|&slot| run.store(slot));
        evict.iter().for_each(|&slot| run.evict(slot));
        load.iter().for_each(|&slot| run.load(slot, true));
        run.times.seconds = run.seconds();
        run.times.eval_seconds = trained_s.map_or(0.0, |trained_s| run.times.seconds - trained_s);
        run.times
    }

    /// Returns the seconds of the first phase, without an evaluation after it.
    pub fn train_seconds(&self) -> f64 {
        self.seconds - self.eval_seconds
    }

    /// Returns the time if everything ran side by side: that of the lane with the most work.
    pub fn least_s(&self) -> f64 {
        self.kernels_s.max(self.copies_in_s).max(self.copies_out_s)
    }

    /// Returns the time if nothing ran side by side.
    pub fn sum_s(&self) -> f64 {
        self.kernels_s + self.copies_in_s + self.copies_out_s
    }
}

/// A tensor on the device.
#[derive(Clone, Copy, Default)]
struct Resident {
    /// When its contents are complete.
    ready: f64,
    /// When its last reader is done.
    read: f64,
}

/// A script that runs.
struct Run<'a> {
    rates: &'a Rates,
    lowered: &'a Lowered,
    /// For each received tensor, what this part publishes in the same exchange.
    published: HashMap<Slot, &'a [Slot]>,
    /// By slot.
    resident: Vec<Option<Resident>>,
    /// When a tensor is complete on the host, by slot.
    on_host: Vec<f64>,
    /// Evicted tensors: when they give up their memory, and how much. The first to do so is on top. Seconds are not
    /// negative, so their bits are in the same order.
    leaving: BinaryHeap<Reverse<(u64, u64)>>,
    used_bytes: u64,
    limit_bytes: u64,
    /// The time at which the worker queues what comes next.
    now: f64,
    /// Calls so far, and the seconds between two of them.
    calls: u32,
    between_s: f64,
    /// When the lanes are done: kernels, copies in and copies out.
    lanes: [f64; 3],
    times: Timeline,
}

impl<'a> Run<'a> {
    fn new(rates: &'a Rates, lowered: &'a Lowered, script: &Script) -> Self {
        let exchanges = lowered.exchanges.iter();
        let published = exchanges.flat_map(|e| e.received().iter().map(|&slot| (slot, e.published()))).collect();
        let bytes = script.start.iter().map(|&slot| lowered.tensor(slot).bytes);
        let mut resident = vec![None; lowered.tensors.len()];
        script.start.iter().for_each(|slot| resident[slot.0 as usize] = Some(Resident::default()));
        Self {
            rates,
            lowered,
            published,
            resident,
            on_host: vec![0.0; lowered.tensors.len()],
            leaving: BinaryHeap::new(),
            used_bytes: bytes.fold(0, u64::saturating_add),
            limit_bytes: script.peak_bytes,
            now: 0.0,
            calls: 0,
            between_s: rates.between_s(lowered, script),
            lanes: [0.0; 3],
            times: Timeline::default(),
        }
    }

    fn action(&mut self, action: &Action) {
        self.calls += 1;
        let Action { call, store, evict, load, ahead, publish, .. } = action;
        store.iter().for_each(|&slot| self.store(slot));
        evict.iter().for_each(|&slot| self.evict(slot));
        load.iter().for_each(|&slot| self.load(slot, true));
        for slot in call.writes() {
            self.now = self.now.max(self.room(slot));
        }
        let ready =
            call.reads().filter_map(|slot| self.resident[slot.0 as usize]).fold(0.0, |at, tensor| tensor.ready.max(at));
        let fetched = fetched_bytes(call);
        let done = if call.fetches() {
            let seconds = if fetched > 0 { self.rates.profile.fetch_s(fetched) } else { 0.0 };
            self.times.copies_in_s += seconds;
            self.queue(1, ready, seconds)
        } else if call.reduces() {
            // A ring sends each byte about twice: once to add shares, once to spread the sums.
            let bytes = call.out().numbers() as u64 * 4;
            let seconds = if bytes > 0 { self.rates.profile.fetch_s(2 * bytes) } else { 0.0 };
            self.times.kernels_s += seconds;
            self.queue(0, ready, seconds)
        } else {
            let seconds = self.rates.call(self.lowered, call).1.seconds;
            self.times.kernels_s += seconds;
            self.queue(0, ready, seconds)
        };
        call.reads().for_each(|slot| self.reads_until(slot, done));
        for slot in call.writes() {
            self.resident[slot.0 as usize] = Some(Resident { ready: done, read: done });
        }
        publish.iter().for_each(|&slot| self.store(slot));
        ahead.iter().for_each(|&slot| self.load(slot, false));
    }

    /// Runs a job of a lane. Returns when it is done.
    fn queue(&mut self, lane: usize, after: f64, seconds: f64) -> f64 {
        self.lanes[lane] = self.lanes[lane].max(self.now).max(after) + seconds;
        self.lanes[lane]
    }

    fn store(&mut self, slot: Slot) {
        let seconds = self.rates.copy_out_s(self.lowered.tensor(slot).bytes);
        self.times.copies_out_s += seconds;
        let ready = self.resident[slot.0 as usize].map_or(0.0, |tensor| tensor.ready);
        let done = self.queue(2, ready, seconds);
        self.reads_until(slot, done);
        self.on_host[slot.0 as usize] = done;
    }

    /// Notes that a tensor is read until then.
    fn reads_until(&mut self, slot: Slot, done: f64) {
        if let Some(tensor) = &mut self.resident[slot.0 as usize] {
            tensor.read = tensor.read.max(done);
        }
    }

    fn evict(&mut self, slot: Slot) {
        if let Some(Resident { ready, read }) = self.resident[slot.0 as usize].take() {
            self.leaving.push(Reverse((ready.max(read).to_bits(), self.lowered.tensor(slot).bytes)));
        }
    }

    /// Loads a tensor as soon as there is room. If the next call reads it, the worker waits for the room.
    fn load(&mut self, slot: Slot, waits: bool) {
        let seconds = self.rates.copy_in_s(self.lowered.tensor(slot).bytes);
        self.times.copies_in_s += seconds;
        let arrives = |run: &Self, slot: &Slot| run.on_host[slot.0 as usize];
        let told =
            self.published.get(&slot).map_or(0.0, |told| told.iter().fold(0.0, |at, slot| arrives(self, slot).max(at)));
        let after = self.room(slot).max(arrives(self, &slot)).max(told);
        if waits {
            self.now = self.now.max(after);
        }
        let done = self.queue(1, after, seconds);
        self.resident[slot.0 as usize] = Some(Resident { ready: done, read: done });
    }

    /// Takes the memory of a tensor. Returns when it is free.
    fn room(&mut self, slot: Slot) -> f64 {
        self.used_bytes = self.used_bytes.saturating_add(self.lowered.tensor(slot).bytes);
        let mut free_at = 0.0f64;
        while self.used_bytes > self.limit_bytes {
            let Some(Reverse((at, bytes))) = self.leaving.pop() else { break };
            self.used_bytes -= bytes;
            free_at = free_at.max(f64::from_bits(at));
        }
        free_at
    }

    /// Returns the seconds so far.
    fn seconds(&self) -> f64 {
        let between_s = f64::from(self.calls) * self.between_s;
        if self.rates.shares_cores { self.times.sum_s() + between_s } else { self.end() }
    }

    /// Returns when everything is done.
    fn end(&self) -> f64 {
        self.lanes.iter().copied().fold(self.now, f64::max)
    }
}
