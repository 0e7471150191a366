//! SIGBUS, which would otherwise end the process without a word: a mapped file became shorter.

use std::sync::atomic::{AtomicU8, Ordering};

/// Who says why the process ends. Several threads can read the same file, and the program may detect the change itself
/// in the same moment, but the user needs one error.
static SPEAKER: AtomicU8 = AtomicU8::new(NOBODY);

const NOBODY: u8 = 0;
#[cfg(target_os = "linux")]
const HANDLER: u8 = 1;
const PROGRAM: u8 = 2;

/// Returns whether the handler has said why the process ends. If it has not, the program does, and the handler will not.
pub(super) fn is_explained() -> bool {
    is_taken_by(PROGRAM).is_some_and(|speaker| speaker != PROGRAM)
}

/// Makes `who` the speaker, unless there is one; returns that one.
fn is_taken_by(who: u8) -> Option<u8> {
    SPEAKER.compare_exchange(NOBODY, who, Ordering::SeqCst, Ordering::SeqCst).err()
}

/// Ends the process by one error when SIGBUS comes.
///
/// The handler replaces the one of Rust's standard library, which knows SIGBUS for overflows of the stack on other
/// systems. A handler that is called after that one comes too late: it restores the signal's default effect, which ends
/// the process when the next thread reads the file.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn explain() {
    // SAFETY: all fields of `sigaction` may be 0. The handler calls only `write`, `sleep` and `_exit`, which are
    // async-signal-safe, and allocates nothing. It ends the process, so the read that raised the signal does not return.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = end as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if done != 0 {
        tracing::debug!("SIGBUS has its default effect: {}", std::io::Error::last_os_error());
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn explain() {}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
extern "C" fn end(_: libc::c_int) {
    const TEXT: &str = "error: a file became shorter while this program was reading it, or its disk failed (SIGBUS); \
        put the file back as it was and start again (with a checkpoint: --resume)\n";
    // SAFETY: these three may be called by a signal handler, and the text lives for as long as the program.
    unsafe {
        if is_taken_by(HANDLER).is_none() {
            libc::write(libc::STDERR_FILENO, TEXT.as_ptr().cast(), TEXT.len());
        } else {
            // The other speaker has time to finish; it ends the process.
            libc::sleep(2);
        }
        libc::_exit(super::failure::FAILED.into());
    }
}
