//! Memory of a worker's device: evicted tensors give it up when their last use has happened, and loads ahead of their
//! step take it as soon as there is enough.
//!
//! A call needs memory at once, and a load ahead of its step does not. So a load that is ahead waits in a list until its
//! memory is free and its rows are here, or until a call reads the tensor. It comes before the outputs of later calls, as
//! in the plan, unless the device would have nothing to compute.

use lapidary_kernels::{Call, Event, Slot};

use super::{Stoppable, Worker};
use crate::lower::Lifetime;

impl Worker {
    /// Queues loads for later calls, as far as there is memory now.
    pub(super) fn load_ahead(&mut self) -> Stoppable<()> {
        let mut i = 0;
        while let Some(&slot) = self.ahead.get(i) {
            if !self.has_arrived(slot)? {
                i += 1;
                continue;
            }
            let bytes = self.lowered.tensor(slot).bytes;
            if !self.fits(bytes) || self.is_leaving(slot) {
                self.free_unused()?;
            }
            if !self.fits(bytes) || self.is_leaving(slot) {
                break;
            }
            self.ahead.remove(i);
            self.load(slot)?;
        }
        Ok(())
    }

    /// Queues the loads of these tensors that were put off.
    pub(super) fn load_now(&mut self, slots: impl Iterator<Item = Slot>) -> Stoppable<()> {
        for slot in slots {
            if let Some(i) = self.ahead.iter().position(|&ahead| ahead == slot) {
                self.ahead.remove(i);
                self.load(slot)?;
            }
        }
        Ok(())
    }

    /// Returns whether a tensor can be loaded without waiting for rows of other parts.
    fn has_arrived(&mut self, slot: Slot) -> Stoppable<bool> {
        let index = slot.0 as usize;
        if self.host[index].is_none() && self.lowered.tensors[index].kind == Lifetime::Received {
            while let Ok(message) = self.post.from.try_recv() {
                self.receive(message)?;
            }
            return self.take_received(slot);
        }
        Ok(true)
    }

    /// Allocates a tensor, after enough evicted tensors were freed.
    pub(super) fn make_room(&mut self, slot: Slot) -> Stoppable<()> {
        let bytes = self.lowered.tensor(slot).bytes;
        while !self.fits(bytes) || self.is_leaving(slot) {
            if !self.free_some(None)? {
                let need_bytes = self.device.used_bytes().saturating_add(bytes);
                let full = lapidary_kernels::Error::OutOfMemory { need_bytes, have_bytes: self.limit_bytes };
                return self.on(&format!("making room for {}", self.tensor_name(slot)), Err(full));
            }
        }
        let allocated = self.device.alloc(slot, bytes);
        self.on(&format!("making room for {}", self.tensor_name(slot)), allocated)
    }

    /// Allocates the outputs of a call. Loads that are ahead get their memory first, as long as the device computes.
    pub(super) fn make_room_for_outputs(&mut self, call: &Call) -> Stoppable<()> {
        let bytes = |worker: &Self, slots: &mut dyn Iterator<Item = Slot>| {
            slots.fold(0u64, |sum, slot| sum.saturating_add(worker.lowered.tensor(slot).bytes))
        };
        let outputs = bytes(self, &mut call.writes());
        while !self.ahead.is_empty() {
            self.load_ahead()?;
            let is_here = |slot: &Slot| {
                let index = slot.0 as usize;
                self.host[index].is_some() || self.lowered.tensors[index].kind != Lifetime::Received
            };
            let first = bytes(self, &mut self.ahead.iter().copied().filter(is_here));
            let computed = self.newest[0];
            let is_idle = self.device.has_happened(computed);
            if self.fits(outputs.saturating_add(first)) || is_idle && self.fits(outputs) {
                break;
            }
            if !self.free_some((!is_idle).then_some(computed))? {
                break;
            }
        }
        call.writes().try_for_each(|slot| self.make_room(slot))
    }

    /// Frees all evicted tensors, one after the other.
    pub(super) fn free_all(&mut self) -> Stoppable<()> {
        while !self.leaving.is_empty() {
            self.free_next()?;
        }
        Ok(())
    }

    fn fits(&self, bytes: u64) -> bool {
        self.device.used_bytes().saturating_add(bytes) <= self.limit_bytes
    }

    fn is_leaving(&self, slot: Slot) -> bool {
        self.leaving.iter().any(|(leaving, _)| *leaving == slot)
    }

    /// Frees at least one evicted tensor, or waits until something else happens: `other`, or something that other
    /// workers wait to hear of. Returns whether there was anything to free.
    fn free_some(&mut self, other: Option<Event>) -> Stoppable<bool> {
        let before = self.leaving.len();
        self.free_unused()?;
        if before == 0 || self.leaving.len() < before {
            return Ok(before > 0);
        }
        // The first to be waited for, on a device that cannot wait for any of several.
        let told = self.unsent.front().map(|unsent| [unsent.after; 3]);
        let unlent = self.leaving.iter().filter(|(slot, _)| !self.lent.contains_key(slot));
        let uses: Vec<[Event; 3]> =
            told.into_iter().chain(unlent.map(|(_, uses)| *uses)).chain(other.map(|event| [event; 3])).collect();
        if uses.is_empty() {
            // Only readers of rows can give memory back.
            self.free_next()?;
            return Ok(true);
        }
        let waited = self.device.wait_any(&uses);
        let happened = self.on("waiting for memory", waited)?;
        if told.is_some() && happened == 0 {
            self.send_next()?;
        } else if let Some(i) =
            self.leaving.iter().position(|(slot, of)| *of == uses[happened] && !self.lent.contains_key(slot))
        {
            let leaving = self.leaving.remove(i).expect("it is there");
            self.free(leaving)?;
        }
        Ok(true)
    }

    /// Frees the evicted tensors that nothing uses any more, without waiting.
    fn free_unused(&mut self) -> Stoppable<()> {
        let mut i = 0;
        while let Some(&(slot, uses)) = self.leaving.get(i) {
            let is_used = !self.batched && !uses.iter().all(|&event| self.device.has_happened(event));
            if is_used || !self.was_read(slot) {
                i += 1;
                continue;
            }
            let leaving = self.leaving.remove(i).expect("it is there");
            self.free(leaving)?;
        }
        Ok(())
    }

    /// Returns whether other parts have read what this part lent them.
    fn was_read(&mut self, slot: Slot) -> bool {
        let Some(&exchange) = self.lent.get(&slot) else { return true };
        let was_read = self.post.inbox.take_passed(exchange, self.post.mail.reader_count(exchange));
        if was_read {
            self.lent.remove(&slot);
        }
        was_read
    }

    /// Waits for the last use of the tensor that was evicted first, and frees it.
    fn free_next(&mut self) -> Stoppable<()> {
        self.send_unsent()?;
        let Some(leaving) = self.leaving.pop_front() else { return Ok(()) };
        self.free(leaving)
    }

    fn free(&mut self, (slot, uses): (Slot, [Event; 3])) -> Stoppable<()> {
        // Calls of a batch run in order, so earlier ones have finished when a later one writes to this memory.
        let uses = if self.batched { &[][..] } else { &uses[..] };
        let done = uses.iter().try_for_each(|&event| self.device.wait(event));
        self.on(&format!("giving up {}", self.tensor_name(slot)), done)?;
        if let Some(exchange) = self.lent.remove(&slot) {
            let readers = self.post.mail.reader_count(exchange);
            self.hear_until(|worker| Ok(worker.post.inbox.take_passed(exchange, readers).then_some(())))?;
        }
        let done = self.device.free(slot);
        self.on(&format!("giving up {}", self.tensor_name(slot)), done)
    }
}
