//! A counting semaphore.

use crate::sync::{Condvar, Mutex};

/// Limits how many kernels run at once. With more devices than cores, the measured seconds of an operation are then its
/// own, without the time of operations that run beside it.
#[derive(Debug)]
pub struct Semaphore {
    // Number of free places.
    free: Mutex<usize>,
    left: Condvar,
}

impl Semaphore {
    /// Creates a semaphore with `places` places, at least one.
    pub fn new(places: usize) -> Self {
        Self { free: Mutex::new(places.max(1)), left: Condvar::new() }
    }

    /// Waits for a free place, then runs `work`.
    pub fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        let _place = self.enter();
        work()
    }

    fn enter(&self) -> Place<'_> {
        let mut free = self.free.lock();
        self.left.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Place(self)
    }
}

/// A taken place. Dropping it frees the place, also after a panic.
struct Place<'a>(&'a Semaphore);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_more_than_there_are_places_are_inside() {
        let (semaphore, inside, most) = (Semaphore::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        semaphore.pass(|| {
                            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 2);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| semaphore.pass(|| panic!("inside"))));
        assert!(panicked.is_err());
        assert_eq!(*semaphore.free.lock(), 2, "a panic gives its place back");
    }
}
