//! One device running what was lowered.

use bytemuck::Pod;
use lapidary_kernels::{Device, Event, HostSlot, Lane, Slot};

use crate::error::{Error, Result};
use crate::lower::{Inputs, Kind, Lowered, Step, Supply};
use crate::program::Origin;

/// A device with all tensors of a lowered program in place, ready to run its phases.
pub(crate) struct Session {
    device: Box<dyn Device>,
    lowered: Lowered,
}

impl Session {
    /// Places all tensors, constants from `inputs`, and runs the setup, after which what only the setup used leaves.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] before anything that grows with the graph is made; [`Error::Device`].
    pub(crate) fn open(device: Box<dyn Device>, lowered: Lowered, inputs: &Inputs) -> Result<Self> {
        let (need_bytes, have_bytes) = (byte_count(&lowered), device.capacity_bytes());
        if need_bytes > have_bytes {
            return Err(Error::DoesNotFit { device: device.name(), need_bytes, have_bytes });
        }
        let session = Self { device, lowered };
        let mut supply = Supply::new(inputs);
        for (index, tensor) in session.lowered.tensors.iter().enumerate() {
            let slot = Slot(index as u32);
            session.on(&tensor.name, session.device.alloc(slot, tensor.bytes))?;
            if let Some(contents) = &tensor.contents {
                let copied = session.device.copy_in(Lane::CopyIn, slot, &supply.get(0, contents), &[]);
                session.finish(&tensor.name, copied)?;
            } else if tensor.kind == Kind::State {
                session.write(slot, &vec![0u8; tensor.bytes as usize])?;
            }
        }
        session.run_steps(&session.lowered.setup)?;
        let used = used_after_setup(&session.lowered);
        for (index, tensor) in session.lowered.tensors.iter().enumerate() {
            if !used[index] && tensor.kind == Kind::Constant {
                session.on(&tensor.name, session.device.free(Slot(index as u32)))?;
            }
        }
        Ok(session)
    }

    /// Runs the phase that was lowered as number `phase`.
    ///
    /// # Errors
    /// [`Error::Device`], with the operation's name.
    pub(crate) fn run(&self, phase: usize) -> Result<()> {
        let steps = &self.lowered.phases[phase].steps;
        self.run_steps(steps)?;
        for &(output, input) in steps.iter().flat_map(|step| &step.next) {
            let bytes = self.lowered.tensor(output).bytes;
            let swapped = self.device.free(input).and_then(|()| self.device.rename(output, input));
            self.on(self.name(input), swapped.and_then(|()| self.device.alloc(output, bytes)))?;
        }
        Ok(())
    }

    /// Writes a tensor.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write<T: Pod>(&self, slot: Slot, values: &[T]) -> Result<()> {
        let name = self.name(slot);
        let host = self.on(name, HostSlot::staged(values))?;
        let copied = self.device.copy_in(Lane::CopyIn, slot, &host, &[]);
        self.finish(name, copied)
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read<T: Pod>(&self, slot: Slot) -> Result<Vec<T>> {
        let name = self.name(slot);
        let bytes = self.lowered.tensors[slot.0 as usize].bytes as usize;
        let host = self.on(name, HostSlot::staging(bytes))?;
        let copied = self.device.copy_out(Lane::CopyOut, slot, &host, &[]);
        self.finish(name, copied)?;
        Ok(host.to_vec())
    }

    /// Where an origin lies, if the programs read it.
    pub(crate) fn origin(&self, origin: &Origin) -> Option<Slot> {
        self.lowered.origins.get(origin).copied()
    }

    /// Where a phase's result lies.
    pub(crate) fn output(&self, phase: usize, name: &str) -> Option<Slot> {
        self.lowered.phases[phase].outputs.get(name).copied()
    }

    /// Reads a phase's result, which its program must name.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read_output<T: Pod>(&self, phase: usize, name: &str) -> Result<Vec<T>> {
        self.read(self.output(phase, name).expect("the program names its outputs"))
    }

    /// What the plan says the device will hold at most.
    pub(crate) fn planned_peak_bytes(&self) -> u64 {
        byte_count(&self.lowered)
    }

    /// What the device has held at most.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.device.peak_bytes()
    }

    fn name(&self, slot: Slot) -> &str {
        &self.lowered.tensors[slot.0 as usize].name
    }

    fn run_steps(&self, steps: &[Step]) -> Result<()> {
        let mut last = Event::DONE;
        for step in steps {
            last = self.on(&step.name, self.device.launch(Lane::Compute, &step.call, &[]))?;
        }
        self.on("waiting for the last operation", self.device.wait(last))
    }

    fn finish(&self, op: &str, event: lapidary_kernels::Result<Event>) -> Result<()> {
        self.on(op, event.and_then(|event| self.device.wait(event)))
    }

    fn on<T>(&self, op: &str, result: lapidary_kernels::Result<T>) -> Result<T> {
        result.map_err(|source| Error::Device { device: self.device.name(), op: op.into(), source })
    }
}

/// Bytes of all tensors together. What no memory could hold saturates.
fn byte_count(lowered: &Lowered) -> u64 {
    lowered.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
}

/// Whether each tensor is used by a phase, rather than by the setup alone.
fn used_after_setup(lowered: &Lowered) -> Vec<bool> {
    let mut used = vec![false; lowered.tensors.len()];
    for phase in &lowered.phases {
        let calls = phase.steps.iter().map(|step| &step.call);
        let slots = calls.flat_map(|call| call.reads().into_iter().chain(call.writes()));
        for slot in slots.chain(phase.outputs.values().copied()) {
            used[slot.0 as usize] = true;
        }
    }
    used
}
