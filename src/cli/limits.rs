//! The limits that the system sets: on memory, threads and the size of files. Each ends in one error, not in a signal or
//! a panic.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error as _;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary_arrays::allocation_may_fail;

use super::failure::FAILED;
use crate::error::{Error, Result};

/// The longest report of memory that ran out.
const REPORT_BYTES: usize = 256;

/// The allocator of the program: the system's. When it has no more memory, the process ends with an error and exit code
/// 1, unless the caller handles that ([`allocation_may_fail`]).
///
/// Rust's own answer is to abort the process by a signal. Temporary files stay in both cases, as after a kill.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

// SAFETY: every call goes to `System` with the arguments as they came, and returns what it returns; where it does not
// return, the process has ended.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        or_end(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        or_end(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`, which is the same.
        or_end(unsafe { System.realloc(memory, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Returns allocated memory, or ends the process if there is none and nobody handles that.
#[inline]
fn or_end(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() && !allocation_may_fail() {
        out_of_memory(bytes);
    }
    memory
}

/// Reports that memory ran out, and ends the process. Nothing here allocates.
#[cold]
fn out_of_memory(bytes: usize) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::Relaxed) {
        // Another thread reports it already.
        loop {
            std::thread::park();
        }
    }
    let mut text = [0; REPORT_BYTES];
    let len = report(&mut text, bytes);
    drop(std::io::stderr().write_all(&text[..len]));
    // At once: exit handlers may allocate.
    signal_hook::low_level::exit(FAILED.into());
}

/// Writes the report to `text` and returns its length.
fn report(text: &mut [u8; REPORT_BYTES], bytes: usize) -> usize {
    let mut rest = &mut text[..];
    // Clears what a progress bar has drawn.
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    let written = writeln!(
        rest,
        "{clear}error: the memory is full: the system refuses {bytes} more bytes; raise its limit (ulimit -v), or take a smaller \
         graph or model (--hidden, --layers)"
    );
    debug_assert!(written.is_ok());
    REPORT_BYTES - rest.len()
}

/// Starts the threads that all verbs share, and makes a write beyond the allowed size of a file an error.
///
/// # Errors
/// [`Error::Device`] if the threads cannot be started.
pub(super) fn prepare() -> Result<()> {
    #[cfg(unix)]
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        // The signal then ends the process, as it would without this.
        tracing::debug!("a write beyond `ulimit -f` is no error: {error}");
    }
    match rayon::ThreadPoolBuilder::new().build_global() {
        // Without a cause, the threads run already.
        Err(source) if source.source().is_some() => {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let source = std::io::Error::other(source);
            let source = Box::new(lapidary_kernels::Error::Threads { threads, source });
            Err(Error::Device { device: "cpu".into(), op: "starting".into(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_full_memory_is_one_line_whatever_its_size() {
        let mut text = [0; REPORT_BYTES];
        let len = report(&mut text, usize::MAX);
        let text = std::str::from_utf8(&text[..len]).expect("it is text");
        assert!(text.ends_with("(--hidden, --layers)\n") && text.lines().count() == 1, "{text}");
        assert!(text.contains("error: the memory is full: the system refuses 18446744073709551615"), "{text}");
    }
}
