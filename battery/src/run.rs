//! Runs checks one after the other, and collects those that fail.

use std::panic::{self, PanicHookInfo};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::list::Check;

/// Why a check failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The message of the panic.
    pub message: String,
    /// File, line and column of the panic.
    pub place: String,
}

/// The first panic since it was last taken.
static FIRST_PANIC: Mutex<Option<Failure>> = Mutex::new(None);

/// Runs checks one after the other and calls `done` after each, with its time and why it failed. They share a thread,
/// because each thread opens the device under test. After a failure, the next check has a new thread and a new device,
/// unless `done` says that no other check shall run. Panics print nothing meanwhile.
pub fn run(checks: &[Check], mut done: impl FnMut(&Check, Duration, Option<Failure>) -> bool) {
    let _quiet = Quiet::new();
    let (mut rest, mut goes_on) = (checks, true);
    while goes_on && !rest.is_empty() {
        let from = rest;
        let (passed, times) = mpsc::channel();
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                for check in from {
                    let start = Instant::now();
                    (check.run)();
                    let _ = passed.send(start.elapsed());
                }
            });
            let mut start = Instant::now();
            for time in times {
                done(&rest[0], time, None);
                (rest, start) = (&rest[1..], Instant::now());
            }
            if thread.join().is_err() {
                goes_on = done(&rest[0], start.elapsed(), Some(FIRST_PANIC.lock().take().unwrap_or_else(unknown)));
                rest = &rest[1..];
            }
        });
    }
}

fn unknown() -> Failure {
    Failure { message: "a panic without a message".into(), place: "unknown".into() }
}

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;

/// Replaces the panic hook, which prints, by one that keeps the first panic.
struct Quiet {
    before: Option<Hook>,
}

impl Quiet {
    fn new() -> Self {
        let before = Some(panic::take_hook());
        FIRST_PANIC.lock().take();
        panic::set_hook(Box::new(|info| {
            let message = info.payload_as_str().unwrap_or("a panic without a message").to_owned();
            let place = info.location().map_or_else(|| "unknown".into(), ToString::to_string);
            FIRST_PANIC.lock().get_or_insert(Failure { message, place });
        }));
        Self { before }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = self.before.take().filter(|_| !thread::panicking()) {
            panic::set_hook(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_with_its_message_and_place_and_the_next_check_runs() {
        fn passes() {}
        fn fails() {
            panic!("cell {} is wrong", 3);
        }
        let check = |name, run| Check { name, on_gpu: true, run };
        let checks = [check("a", passes as fn()), check("b", fails), check("c", fails), check("d", passes)];
        let mut all = Vec::new();
        run(&checks, |check, _, failure| {
            all.push((check.name, failure));
            true
        });
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert!(all[0].1.is_none() && all[3].1.is_none());
        for (_, failure) in &all[1..3] {
            let failure = failure.as_ref().unwrap();
            assert_eq!(failure.message, "cell 3 is wrong");
            assert!(failure.place.contains("run.rs:"), "{}", failure.place);
        }
        let mut count = 0;
        run(&checks, |_, _, failure| {
            count += 1;
            failure.is_none()
        });
        assert_eq!(count, 2, "no check runs after one that ends them");
    }
}
