//! Batches that come again as they were, launched by the driver as one graph.
//!
//! The calls of an epoch that copies nothing are the same from epoch to epoch but for the addresses of what is new, and those
//! alternate. So a batch is compared with those that ran before: a second time it is captured while it is queued, and from then on
//! launched as a whole. Where capturing fails, batches are queued call by call as before.

use cudarc::driver::{CudaStream, result, sys};

use super::driver::Named;
use super::task::Task;
use crate::error::Result;

/// Batches that are remembered. Of more that take turns, none would be found again.
const MOST: usize = 8;

/// The batches of one stream.
#[derive(Default)]
pub(super) struct Graphs {
    known: Vec<Known>,
    /// Whether capturing has failed: it is not tried again.
    is_off: bool,
}

struct Known {
    tasks: Vec<Task>,
    graph: Option<Graph>,
}

/// A graph that can be launched.
struct Graph(sys::CUgraphExec);

// SAFETY: the driver's handle may be used from any thread on which the context is current; `Graphs` has it to itself.
unsafe impl Send for Graph {}

impl Graphs {
    /// Queues `tasks` on the stream: `queue` does so one by one.
    ///
    /// # Errors
    /// Those of `queue`; [`crate::Error::Cuda`].
    pub(super) fn run(
        &mut self,
        stream: &CudaStream,
        tasks: Vec<Task>,
        queue: impl Fn(&[Task]) -> Result<()>,
    ) -> Result<()> {
        // What is tried is timed, and will be another task next time.
        if tasks.is_empty() || tasks.iter().any(|task| matches!(task, Task::Trial { .. })) {
            return queue(&tasks);
        }
        let Some(place) = self.known.iter().position(|known| known.tasks == tasks) else {
            if self.known.len() == MOST {
                self.known.remove(0);
            }
            queue(&tasks)?;
            self.known.push(Known { tasks, graph: None });
            return Ok(());
        };
        let known = &mut self.known[place];
        if known.graph.is_none() && !self.is_off {
            known.graph = Graph::capture(stream, || queue(&known.tasks));
            self.is_off = known.graph.is_none();
        }
        match &known.graph {
            // SAFETY: the graph was made on this context and is still there. Its addresses are those of `tasks`, which hold now.
            Some(graph) => unsafe { result::graph::launch(graph.0, stream.cu_stream()) }.during("launching a graph"),
            None => queue(&tasks),
        }
    }
}

impl Graph {
    /// What `queue` queues on the stream, which does not run it; nothing if the driver will not have it so.
    fn capture(stream: &CudaStream, queue: impl FnOnce() -> Result<()>) -> Option<Self> {
        // Relaxed: other threads copy and take memory meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is there, and this thread is the only one that queues on it.
        unsafe { result::stream::begin_capture(stream.cu_stream(), mode) }.ok()?;
        let queued = queue();
        // SAFETY: capturing began above; it ends whatever became of the queueing.
        let graph = unsafe { result::stream::end_capture(stream.cu_stream()) }.ok()?;
        if graph.is_null() {
            return None;
        }
        // SAFETY: the graph was just made, and is used once more, to be destroyed: what can be launched is a copy.
        let made = unsafe {
            let made = queued.is_ok().then(|| result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)));
            // A failure leaks it, no worse.
            let _ = result::graph::destroy(graph);
            made
        };
        made?.ok().map(Self)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was made by `capture` and is launched no more; the driver lets a launch that is under way end.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}
