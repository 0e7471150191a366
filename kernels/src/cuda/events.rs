//! Which of a stream's jobs are done: an event of the driver behind each job.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use parking_lot::Mutex;

use super::driver::Named;
use crate::error::Result;

/// From so many on, jobs that are done are looked for.
const MANY: usize = 256;

/// The jobs of one stream that may not be done yet.
pub(super) struct Events {
    context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Jobs up to this number are done.
    done: u64,
    /// The others, by number, which rises.
    open: VecDeque<(u64, Arc<CudaEvent>)>,
    spare: Vec<Arc<CudaEvent>>,
}

impl Events {
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let stream = context.new_stream().during("making a stream")?;
        Ok(Self { context: context.clone(), stream, state: Mutex::default() })
    }

    /// Events what was queued on the stream so far as the job `number`.
    pub(super) fn mark(&self, number: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.open.len() > MANY {
            state.retire()?;
        }
        let event = match state.spare.pop() {
            Some(event) => event,
            None => Arc::new(self.context.new_event(None).during("making an event")?),
        };
        event.record(&self.stream).during("recording an event")?;
        state.open.push_back((number, event));
        Ok(())
    }

    /// Lets `other` go on only when the job is done. It was marked before.
    pub(super) fn hold_back(&self, other: &CudaStream, number: u64) -> Result<()> {
        match self.state.lock().event(number) {
            Some(event) => other.wait(&event).during("letting a stream wait"),
            None => Ok(()),
        }
    }

    /// Waits until the job is done. It was marked before.
    pub(super) fn finish(&self, number: u64) -> Result<()> {
        let Some(event) = self.state.lock().event(number) else { return Ok(()) };
        event.synchronize().during("waiting for the GPU")?;
        let mut state = self.state.lock();
        while state.open.front().is_some_and(|(first, _)| *first <= number) {
            state.retire_first();
        }
        Ok(())
    }

    /// Jobs up to this number are known to be done.
    pub(super) fn done(&self) -> u64 {
        self.state.lock().done
    }
}

impl State {
    /// The event of a job that is not known to be done, or of a later one of its stream where it has none.
    fn event(&self, number: u64) -> Option<Arc<CudaEvent>> {
        let index = self.open.partition_point(|(open, _)| *open < number);
        self.open.get(index).filter(|_| number > self.done).map(|(_, event)| event.clone())
    }

    fn retire(&mut self) -> Result<()> {
        while let Some((_, event)) = self.open.front() {
            if !event.try_is_complete().during("asking for an event")? {
                break;
            }
            self.retire_first();
        }
        Ok(())
    }

    fn retire_first(&mut self) {
        if let Some((number, event)) = self.open.pop_front() {
            self.done = self.done.max(number);
            // Another thread may still wait for it; then it is not used again.
            if Arc::strong_count(&event) == 1 {
                self.spare.push(event);
            }
        }
    }
}
