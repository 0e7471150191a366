//! The locks, channels and threads of lanes and workers.
//!
//! With `--cfg shuttle` they belong to a scheduler that runs one thread at a time, in many orders, and reports when all of
//! them wait (`ci/orders`). Threads that share the tasks of a kernel are not among them: kernels compute alike in
//! any order, and `team.rs` has tests of its own.

#[cfg(not(shuttle))]
pub use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
#[cfg(not(shuttle))]
pub use parking_lot::{Condvar, Mutex};
#[cfg(not(shuttle))]
pub use std::thread::{Builder, JoinHandle};

#[cfg(shuttle)]
pub use scheduled::{Builder, Condvar, JoinHandle, Mutex, Receiver, Sender, bounded, unbounded};

/// The same functions over the scheduler's locks and channels, which are those of the standard library.
#[cfg(shuttle)]
#[allow(missing_docs)]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    pub use shuttle::sync::mpsc::{Receiver, SyncSender as Sender, sync_channel as bounded};
    pub use shuttle::thread::{Builder, JoinHandle};

    /// More jobs than a test queues: the scheduler allocates a record for each.
    const MOST_MESSAGES: usize = 1 << 10;

    pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
        bounded(MOST_MESSAGES)
    }

    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    }

    /// The guard is absent only while a [`Condvar`] has it.
    pub struct Guard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("nobody waits with it")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("nobody waits with it")
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn wait_while<T>(&self, guard: &mut Guard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
            while condition(&mut *guard) {
                let inner = guard.0.take().expect("nobody waits with it");
                guard.0 = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
            }
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
