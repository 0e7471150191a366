//! Tracks which jobs of a stream are done, by one driver event behind each job.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use parking_lot::Mutex;

use super::driver::Named;
use crate::error::Result;

/// Number of open jobs from which finished ones are removed.
const MANY: usize = 256;

/// The jobs of one stream that may not be done yet.
pub(super) struct Events {
    context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All jobs up to this number are done.
    done: u64,
    /// The other jobs with their numbers, which ascend.
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

    /// Marks the work queued on the stream so far as job `number`.
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

    /// Makes the stream `other` wait until the job is done. The job must have been marked before.
    pub(super) fn hold_back(&self, other: &CudaStream, number: u64) -> Result<()> {
        match self.state.lock().event(number) {
            Some(event) => other.wait(&event).during("letting a stream wait"),
            None => Ok(()),
        }
    }

    /// Waits until the job is done. The job must have been marked before.
    pub(super) fn finish(&self, number: u64) -> Result<()> {
        let Some(event) = self.state.lock().event(number) else { return Ok(()) };
        event.synchronize().during("waiting for the GPU")?;
        let mut state = self.state.lock();
        while state.open.front().is_some_and(|(first, _)| *first <= number) {
            state.retire_first();
        }
        Ok(())
    }

    /// Whether the job is done; `false` if the driver cannot tell. The job must have been marked before.
    pub(super) fn is_done(&self, number: u64) -> bool {
        let event = self.state.lock().event(number);
        event.is_none_or(|event| event.try_is_complete().unwrap_or(false))
    }

    /// Returns the number up to which all jobs are known to be done.
    pub(super) fn done(&self) -> u64 {
        self.state.lock().done
    }
}

impl State {
    /// Returns the event of a job that is not known to be done. If the job has no event, returns the one of the next
    /// job on the stream that has one.
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
            // Another thread may still wait for the event; then it is not reused.
            if Arc::strong_count(&event) == 1 {
                self.spare.push(event);
            }
        }
    }
}
