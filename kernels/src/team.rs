//! The threads that share the tasks of a kernel.
//!
//! The thread that calls a kernel works on it too, and the pool has one thread less than may compute. With a full pool,
//! one of the threads would wake up to find no task left. On a machine without a spare core it would take time from the
//! threads that work, and a short kernel would often run on one thread alone.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// A caller and its helper threads.
#[derive(Debug)]
pub(crate) struct Team {
    /// None if the caller works alone.
    helpers: Option<ThreadPool>,
}

thread_local! {
    /// The team of the device for which this thread calls kernels.
    static CURRENT: RefCell<Option<Arc<Team>>> = const { RefCell::new(None) };
}

/// The team of calls without a device.
static DEFAULT: OnceLock<Arc<Team>> = OnceLock::new();

impl Team {
    /// Creates a team of `threads` threads, including the caller.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub(crate) fn new(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        let build =
            |helpers| ThreadPoolBuilder::new().num_threads(helpers).thread_name(|i| format!("cpu-{}", i + 1)).build();
        Ok(Self { helpers: (threads > 1).then(|| build(threads - 1)).transpose()? })
    }

    pub(crate) fn threads(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Runs `work`; its tasks are shared among this team.
    pub(crate) fn install<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _back = Back(CURRENT.replace(Some(self.clone())));
        work()
    }

    fn current() -> Arc<Self> {
        // If no threads can be started, the caller works alone.
        let all = || Arc::new(Self::new(rayon::current_num_threads()).unwrap_or(Self { helpers: None }));
        CURRENT.with_borrow(Option::clone).unwrap_or_else(|| DEFAULT.get_or_init(all).clone())
    }
}

/// Restores the previous team when dropped, also after a panic.
struct Back(Option<Arc<Team>>);

impl Drop for Back {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Returns how many threads share tasks.
pub(crate) fn threads() -> usize {
    Team::current().threads()
}

/// Calls `f` for every task. Each thread takes the next task when it is free.
pub(crate) fn for_each<T: Send>(tasks: impl ExactSizeIterator<Item = T> + Send, f: impl Fn(T) + Sync) {
    let team = Team::current();
    let helpers = team.threads().min(tasks.len()).saturating_sub(1);
    let Some(pool) = team.helpers.as_ref().filter(|_| helpers > 0) else {
        return tasks.for_each(f);
    };
    let tasks = Mutex::new(tasks);
    let work = || {
        while let Some(task) = next(&tasks) {
            f(task);
        }
    };
    pool.in_place_scope(|scope| {
        (0..helpers).for_each(|_| scope.spawn(|_| work()));
        work();
    });
}

/// Takes the next task. The lock is released before the task runs, so that other threads can take theirs.
fn next<T>(tasks: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    tasks.lock().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_a_team_of_any_size_and_in_none() {
        let all = |count: usize| {
            let mut runs = vec![0; count];
            for_each(runs.iter_mut(), |runs| *runs += 1);
            assert_eq!(runs, vec![1; count]);
        };
        for size in [1, 2, 5] {
            let team = Arc::new(Team::new(size).expect("the host has threads"));
            team.install(|| {
                assert_eq!(threads(), size);
                [0, 1, 2, 7, 1000].into_iter().for_each(all);
            });
        }
        [0, 1, 2, 7, 1000].into_iter().for_each(all);
    }

    #[test]
    fn a_team_is_gone_when_its_work_is_done_or_panics() {
        let (one, three) = (Team::new(1), Team::new(3));
        let (one, three) =
            (Arc::new(one.expect("no thread is needed")), Arc::new(three.expect("the host has threads")));
        three.install(|| {
            let work = std::panic::AssertUnwindSafe(|| one.install(|| panic!("this is a test")));
            let thrown = std::panic::catch_unwind(work);
            assert!(thrown.is_err());
            assert_eq!(threads(), 3);
        });
    }
}
