//! The threads that share the tasks of a kernel.
//!
//! The thread that calls a kernel works on it too, so a team of `n` threads has `n - 1` helpers. With `n` helpers, one
//! would wake up to find no task left. On a machine without a spare core it would take time from the threads that work.
//!
//! Kernels follow one another within microseconds, and a thread that sleeps takes tens of microseconds to come. So a helper
//! looks out for work for a while before it sleeps.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A caller and its helper threads.
#[derive(Debug)]
pub(crate) struct Team {
    board: Arc<Board>,
    helpers: Vec<JoinHandle<()>>,
}

thread_local! {
    /// The team of the device for which this thread calls kernels.
    static CURRENT: RefCell<Option<Arc<Team>>> = const { RefCell::new(None) };
}

/// The team of calls without a device.
static DEFAULT: OnceLock<Arc<Team>> = OnceLock::new();

impl Team {
    /// Creates a team of `threads` threads, including the caller. `awake`: how long a helper looks out for work before it
    /// sleeps.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub(crate) fn new(threads: usize, awake: Duration) -> io::Result<Self> {
        let mut team = Self { board: Arc::default(), helpers: Vec::new() };
        for number in 1..threads {
            let board = team.board.clone();
            // After an error, those that were started end with the team.
            team.helpers.push(Builder::new().name(format!("cpu-{number}")).spawn(move || board.help(number, awake))?);
        }
        Ok(team)
    }

    pub(crate) fn threads(&self) -> usize {
        1 + self.helpers.len()
    }

    /// Runs `work`; its tasks are shared among this team.
    pub(crate) fn install<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _back = Back(CURRENT.replace(Some(self.clone())));
        work()
    }

    fn current() -> Arc<Self> {
        // If no threads can be started, the caller works alone.
        let alone = || Self { board: Arc::default(), helpers: Vec::new() };
        let all = || Arc::new(Self::new(rayon::current_num_threads(), BESIDE_OTHERS).unwrap_or_else(|_| alone()));
        CURRENT.with_borrow(Option::clone).unwrap_or_else(|| DEFAULT.get_or_init(all).clone())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.end();
        for helper in self.helpers.drain(..) {
            // A panic of a task has reached its caller.
            let _ = helper.join();
        }
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

/// Calls `f` for every task. Each thread has a share of consecutive tasks. It is the same share in all calls with equally many
/// tasks, so that what a thread wrote is in its cache when it reads it. A thread that has done its share takes tasks of others.
/// A helper that comes after the last task is not waited for: on a busy machine, it may take longer to wake up than the tasks
/// take.
///
/// # Panics
/// If `f` does.
pub(crate) fn for_each<T: Send>(tasks: impl ExactSizeIterator<Item = T>, f: impl Fn(T) + Sync) {
    let team = Team::current();
    let shares = team.threads().min(tasks.len());
    if shares < 2 {
        return tasks.for_each(f);
    }
    let tasks = Tasks::new(tasks, shares);
    let work = |thread: usize| tasks.run(thread, &f);
    // If another thread shares work with this team now, this one works alone.
    let shared = Shared::on(&team.board, &work, shares);
    work(0);
    if let Some(shared) = shared {
        shared.close();
    }
}

/// Tasks in shares of consecutive ones.
struct Tasks<T> {
    /// A task is taken once.
    tasks: Vec<Mutex<Option<T>>>,
    shares: Vec<Share>,
}

/// The next task of a share, alone in its cache lines.
#[repr(align(128))]
struct Share(AtomicUsize);

impl<T> Tasks<T> {
    fn new(tasks: impl Iterator<Item = T>, shares: usize) -> Self {
        let tasks: Vec<_> = tasks.map(|task| Mutex::new(Some(task))).collect();
        let shares = (0..shares).map(|share| Share(AtomicUsize::new(share * tasks.len() / shares))).collect();
        Self { tasks, shares }
    }

    /// Runs the tasks of a share in order, and then those that are left of others.
    fn run(&self, first: usize, f: impl Fn(T)) {
        let count = self.shares.len();
        for share in (first..first + count).map(|share| share % count) {
            let end = (share + 1) * self.tasks.len() / count;
            loop {
                let next = self.shares[share].0.fetch_add(1, Ordering::Relaxed);
                if next >= end {
                    break;
                }
                let task = self.tasks[next].lock().take();
                f(task.expect("each number is given out once"));
            }
        }
    }
}

/// Work of a caller, which is told the number of the thread that runs it. The caller is number 0.
type Work<'w> = dyn Fn(usize) + Sync + 'w;

/// Where a caller puts up work, and helpers look for it.
#[derive(Default)]
struct Board {
    /// The number of the newest work, or [`ENDED`]. It is set while the state is locked.
    newest: AtomicU64,
    state: Mutex<State>,
    /// Told when there is new work for helpers that sleep.
    is_new: Condvar,
    /// Told when the last helper inside is done.
    is_left: Condvar,
}

/// What stands for the number of the newest work when helpers are to end.
const ENDED: u64 = u64::MAX;

#[derive(Default)]
struct State {
    /// Whether a caller has put up work and has not yet left, so that only one caller waits.
    is_taken: bool,
    /// The work; `None` once it is closed.
    work: Option<&'static Work<'static>>,
    /// Number of threads that it is for, including the caller.
    threads: usize,
    /// Number of helpers that run it.
    inside: usize,
    /// Number of helpers that sleep.
    asleep: usize,
    /// What a helper panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Board")
    }
}

impl Board {
    /// Puts up work for so many threads. Returns whether there was none.
    fn open(&self, work: &'static Work<'static>, threads: usize) -> bool {
        let mut state = self.state.lock();
        if state.is_taken {
            return false;
        }
        state.is_taken = true;
        (state.work, state.threads) = (Some(work), threads);
        self.newest.fetch_add(1, Ordering::Release);
        if state.asleep > 0 {
            self.is_new.notify_all();
        }
        true
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
        state.is_taken = false;
        state.panic.take()
    }

    fn end(&self) {
        let state = self.state.lock();
        self.newest.store(ENDED, Ordering::Release);
        self.is_new.notify_all();
        drop(state);
    }

    /// Runs all work until the end.
    fn help(&self, number: usize, awake: Duration) {
        let mut seen = 0;
        loop {
            seen = self.next(seen, awake);
            if seen == ENDED {
                return;
            }
            let mut state = self.state.lock();
            let Some(work) = state.work.filter(|_| number < state.threads) else { continue };
            state.inside += 1;
            drop(state);
            let done = catch_unwind(AssertUnwindSafe(|| work(number)));
            let mut state = self.state.lock();
            state.inside -= 1;
            if let Err(panic) = done {
                state.panic.get_or_insert(panic);
            }
            if state.inside == 0 {
                self.is_left.notify_one();
            }
        }
    }

    /// Waits for work that is newer than what was seen. Returns its number.
    fn next(&self, seen: u64, awake: Duration) -> u64 {
        let begun = Instant::now();
        while begun.elapsed() < awake {
            for _ in 0..SPINS {
                let newest = self.newest.load(Ordering::Acquire);
                if newest != seen {
                    return newest;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        let mut state = self.state.lock();
        loop {
            let newest = self.newest.load(Ordering::Acquire);
            if newest != seen {
                return newest;
            }
            state.asleep += 1;
            self.is_new.wait(&mut state);
            state.asleep -= 1;
        }
    }
}

/// How long helpers look out for work: if the device's threads have cores of their own, and if it shares its cores with other
/// devices or with threads that copy.
pub(crate) const ALONE: Duration = Duration::from_micros(200);
pub(crate) const BESIDE_OTHERS: Duration = Duration::from_micros(20);

/// How often a thread looks before it does something else: a few microseconds.
const SPINS: usize = 200;

/// Work on a board. It is closed at the latest when it is dropped.
struct Shared<'w> {
    board: &'w Board,
    is_open: bool,
    work: PhantomData<&'w Work<'w>>,
}

impl<'w> Shared<'w> {
    /// Puts up work for so many threads, unless there is other work.
    fn on(board: &'w Board, work: &'w Work<'w>, threads: usize) -> Option<Self> {
        // SAFETY: helpers call the work only between `inside += 1`, which requires that it is not closed, and `inside -= 1`.
        // `close` takes the work away and returns only when nobody is inside. It is called when `Shared` is dropped, even
        // in a panic, and `Shared` cannot outlive `'w`. It is private, and no code of this file forgets it.
        #[allow(unsafe_code)]
        let work = unsafe { std::mem::transmute::<&'w Work<'w>, &'static Work<'static>>(work) };
        board.open(work, threads).then(|| Self { board, is_open: true, work: PhantomData })
    }

    /// Waits for the helpers inside.
    ///
    /// # Panics
    /// If one of them did.
    fn close(mut self) {
        self.is_open = false;
        if let Some(panic) = self.board.close() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.board.close();
        }
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
            let team = Arc::new(Team::new(size, ALONE).expect("the host has threads"));
            team.install(|| {
                assert_eq!(threads(), size);
                [0, 1, 2, 7, 1000].into_iter().for_each(all);
            });
        }
        [0, 1, 2, 7, 1000].into_iter().for_each(all);
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_caller_and_the_team_goes_on() {
        let team = Arc::new(Team::new(3, ALONE).expect("the host has threads"));
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
        // The only helper is busy until the end of the test.
        let (free, busy) = std::sync::mpsc::channel::<()>();
        let helper = std::thread::spawn(move || {
            let _ = busy.recv();
        });
        let team = Arc::new(Team { board: Arc::default(), helpers: vec![helper] });
        let free = free; // It is dropped before the team, which waits for its helper.
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
    fn a_caller_that_finds_other_work_leaves_it_there() {
        let board = Board::default();
        let first = Shared::on(&board, &|_| {}, 2).expect("there is no work");
        assert!(Shared::on(&board, &|_| {}, 2).is_none());
        assert!(board.state.lock().work.is_some());
        // A caller that has closed its work, and waits for helpers, keeps others out.
        board.state.lock().work = None;
        assert!(Shared::on(&board, &|_| {}, 2).is_none());
        first.close();
        assert!(Shared::on(&board, &|_| {}, 2).is_some());
        assert!(board.state.lock().work.is_none(), "it is closed when it is dropped");
    }

    /// Returns whether `count` tasks run in as many threads at once, and the thread of each.
    fn threads_of(count: usize) -> (bool, Vec<std::thread::ThreadId>) {
        let (begun, since) = (AtomicUsize::new(0), Instant::now());
        let mut threads = vec![None; count];
        for_each(threads.iter_mut(), |thread| {
            *thread = Some(std::thread::current().id());
            begun.fetch_add(1, Ordering::Relaxed);
            // Each waits for all others.
            while begun.load(Ordering::Relaxed) < count && since.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
        });
        let together = since.elapsed() < Duration::from_secs(20);
        (together, threads.into_iter().flatten().collect())
    }

    #[test]
    fn helpers_come_at_once_and_from_their_sleep_and_each_has_its_share() {
        let team = Arc::new(Team::new(3, ALONE).expect("the host has threads"));
        team.install(|| {
            let (together, first) = threads_of(3);
            assert!(together && first[0] == std::thread::current().id());
            for _ in 0..20 {
                assert_eq!(threads_of(3), (true, first.clone()), "awake");
            }
            for _ in 0..3 {
                std::thread::sleep(50 * ALONE);
                assert_eq!(threads_of(3), (true, first.clone()), "asleep before");
            }
            assert_eq!(threads_of(2), (true, first[..2].to_vec()), "the last helper is not needed");
        });
    }

    #[test]
    fn a_panic_reaches_only_the_caller_whose_task_it_was() {
        let team = Arc::new(Team::new(3, ALONE).expect("the host has threads"));
        let caller = |fails: bool| {
            for _ in 0..300 {
                let work = AssertUnwindSafe(|| for_each(0..6, |task| assert!(!(fails && task == 4), "this is a test")));
                assert_eq!(catch_unwind(work).is_err(), fails);
            }
        };
        std::thread::scope(|scope| {
            for fails in [true, false, false] {
                let (team, caller) = (&team, &caller);
                scope.spawn(move || team.install(|| caller(fails)));
            }
        });
    }

    #[test]
    fn callers_that_share_a_team_each_do_all_of_their_tasks() {
        let team = Arc::new(Team::new(3, ALONE).expect("the host has threads"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    team.install(|| {
                        for count in 0..300 {
                            let mut runs = vec![0; count];
                            for_each(runs.iter_mut(), |runs| *runs += 1);
                            assert_eq!(runs, vec![1; count]);
                        }
                    });
                });
            }
        });
    }

    #[test]
    fn tasks_may_share_tasks_of_their_own() {
        let team = Arc::new(Team::new(2, ALONE).expect("the host has threads"));
        team.install(|| {
            let done = Mutex::new(0);
            for_each(0..5, |_| for_each(0..7, |_| *done.lock() += 1));
            assert_eq!(done.into_inner(), 35);
        });
    }

    #[test]
    fn a_team_is_gone_when_its_work_is_done_or_panics() {
        let (one, three) = (Team::new(1, ALONE), Team::new(3, ALONE));
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
