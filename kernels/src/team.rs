//! The threads that share the tasks of a kernel.
//!
//! The thread that calls a kernel works on it too, and the pool has one thread less than may compute. With a full pool,
//! one of the threads would wake up to find no task left. On a machine without a spare core it would take time from the
//! threads that work, and a short kernel would often run on one thread alone.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
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

/// Calls `f` for every task. Each thread takes the next task when it is free. A helper that comes after the last task is
/// not waited for: on a busy machine, it may take longer to wake up than the tasks take.
///
/// # Panics
/// If `f` does.
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
    let shared = Shared::new(&work);
    for _ in 0..helpers {
        let open = shared.open.clone();
        pool.spawn(move || open.help());
    }
    work();
    shared.close();
}

/// Takes the next task. The lock is released before the task runs, so that other threads can take theirs.
fn next<T>(tasks: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    tasks.lock().next()
}

/// Work that helpers may join until it is closed.
struct Open {
    state: Mutex<State>,
    /// Told when the last helper inside is done.
    is_left: Condvar,
}

struct State {
    /// The work; `None` once it is closed.
    work: Option<&'static (dyn Fn() + Sync)>,
    /// Number of helpers that run it.
    inside: usize,
    /// What a helper panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

impl Open {
    /// Runs the work, unless it is closed.
    fn help(&self) {
        let mut state = self.state.lock();
        let Some(work) = state.work else { return };
        state.inside += 1;
        drop(state);
        let done = catch_unwind(AssertUnwindSafe(work));
        let mut state = self.state.lock();
        state.inside -= 1;
        if let Err(panic) = done {
            state.panic.get_or_insert(panic);
        }
        if state.inside == 0 {
            self.is_left.notify_one();
        }
    }

    /// Lets no helper in any more, and waits for those inside.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state.lock();
        state.work = None;
        // A helper is mostly about to finish its last task.
        for _ in 0..SPINS {
            if state.inside == 0 {
                break;
            }
            drop(state);
            std::hint::spin_loop();
            state = self.state.lock();
        }
        while state.inside > 0 {
            self.is_left.wait(&mut state);
        }
        state.panic.take()
    }
}

/// How often the caller looks whether helpers are done before it sleeps: a few microseconds.
const SPINS: usize = 200;

/// Borrowed work that helpers may join. It is closed at the latest when it is dropped.
struct Shared<'w> {
    open: Arc<Open>,
    work: PhantomData<&'w (dyn Fn() + Sync)>,
}

impl<'w> Shared<'w> {
    fn new(work: &'w (dyn Fn() + Sync)) -> Self {
        // SAFETY: helpers call the work only between `inside += 1`, which requires that it is not closed, and `inside -= 1`.
        // `close` takes the work away and returns only when nobody is inside. It is called when `Shared` is dropped, even
        // in a panic, and `Shared` cannot outlive `'w`. It is private, and no code of this file forgets it.
        #[allow(unsafe_code)]
        let work = unsafe { std::mem::transmute::<&'w (dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
        let state = State { work: Some(work), inside: 0, panic: None };
        Self { open: Arc::new(Open { state: Mutex::new(state), is_left: Condvar::new() }), work: PhantomData }
    }

    /// Waits for the helpers inside.
    ///
    /// # Panics
    /// If one of them did.
    fn close(self) {
        if let Some(panic) = self.open.close() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.open.close();
    }
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
    fn a_panic_of_a_task_reaches_the_caller_and_the_team_goes_on() {
        let team = Arc::new(Team::new(3).expect("the host has threads"));
        team.install(|| {
            for round in 0..200 {
                // Each task in turn panics, in whichever thread it runs; the others still borrow `done`.
                let done = Mutex::new(0);
                let work = AssertUnwindSafe(|| {
                    for_each(0..7, |task| {
                        assert_ne!(task, round % 7, "this is a test");
                        *done.lock() += 1;
                    });
                });
                assert!(catch_unwind(work).is_err());
                assert!(*done.lock() <= 6);
            }
            let done = Mutex::new(0);
            for_each(0..7, |_| *done.lock() += 1);
            assert_eq!(done.into_inner(), 7);
        });
    }

    #[test]
    fn a_helper_that_comes_late_is_not_waited_for() {
        let team = Arc::new(Team::new(2).expect("the host has threads"));
        // The only helper is busy until the end of the test.
        let (free, busy) = std::sync::mpsc::channel::<()>();
        team.helpers.as_ref().expect("there is one").spawn(move || {
            let _ = busy.recv();
        });
        team.install(|| {
            for _ in 0..100 {
                let mut runs = vec![0; 10];
                for_each(runs.iter_mut(), |runs| *runs += 1);
                assert_eq!(runs, vec![1; 10]);
            }
        });
        drop(free);
    }

    #[test]
    fn a_team_is_gone_when_its_work_is_done_or_panics() {
        let (one, three) = (Team::new(1), Team::new(3));
        let (one, three) =
            (Arc::new(one.expect("no thread is needed")), Arc::new(three.expect("the host has threads")));
        three.install(|| {
            let work = AssertUnwindSafe(|| one.install(|| panic!("this is a test")));
            let thrown = catch_unwind(work);
            assert!(thrown.is_err());
            assert_eq!(threads(), 3);
        });
    }
}
