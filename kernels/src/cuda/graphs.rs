//! CUDA graphs: batches that repeat unchanged are launched as one graph.
//!
//! If an epoch copies nothing, its calls are the same in every epoch, except for the addresses of new values, which
//! alternate. So a batch is compared with the ones that ran before. The second time, it is captured while it is queued;
//! from then on it is launched as a whole. If capturing fails, batches are queued call by call.

use std::sync::atomic::Ordering;

use cudarc::driver::{CudaStream, result, sys};

use super::counts::{CAPTURES_REFUSED, GRAPHS_LAUNCHED};
use super::driver::Named;
use super::task::Task;
use crate::error::Result;

/// Number of batches that are remembered. If more than this take turns, none is found again.
const MOST: usize = 8;

/// The known batches of one stream.
#[derive(Default)]
pub(super) struct Graphs {
    known: Vec<Known>,
    /// Whether capturing has failed. It is not tried again then.
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
    /// Queues `tasks` on the stream, as a graph or with `queue`, which queues them one by one.
    ///
    /// # Errors
    /// The errors of `queue`; [`crate::Error::Cuda`].
    pub(super) fn run(
        &mut self,
        stream: &CudaStream,
        tasks: Vec<Task>,
        queue: impl Fn(&[Task]) -> Result<()>,
    ) -> Result<()> {
        // A trial is timed, and will be another task next time.
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
            CAPTURES_REFUSED.fetch_add(u64::from(self.is_off), Ordering::Relaxed);
        }
        match &known.graph {
            Some(graph) => {
                // SAFETY: the graph was made in this context and still exists. Its addresses are those of `tasks`, which
                // are valid now.
                unsafe { result::graph::launch(graph.0, stream.cu_stream()) }.during("launching a graph")?;
                GRAPHS_LAUNCHED.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            None => queue(&tasks),
        }
    }
}

impl Graph {
    /// Captures what `queue` queues on the stream, without running it. Returns `None` if the driver refuses.
    fn capture(stream: &CudaStream, queue: impl FnOnce() -> Result<()>) -> Option<Self> {
        // Relaxed mode, because other threads copy and allocate meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream exists, and this thread is the only one that queues on it.
        unsafe { result::stream::begin_capture(stream.cu_stream(), mode) }.ok()?;
        let queued = queue();
        // SAFETY: capturing began above; it is ended whether or not queueing failed.
        let graph = unsafe { result::stream::end_capture(stream.cu_stream()) }.ok()?;
        if graph.is_null() {
            return None;
        }
        // SAFETY: the graph was just made. It is destroyed here; the instantiated graph is a copy.
        let made = unsafe {
            let made = queued.is_ok().then(|| result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)));
            // A failure only leaks it.
            let _ = result::graph::destroy(graph);
            made
        };
        made?.ok().map(Self)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was made by `capture` and is not launched any more; the driver lets a running launch finish.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}
