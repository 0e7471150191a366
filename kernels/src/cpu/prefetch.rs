//! Prefetching: the one hint that the compiler cannot give by itself.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0 as FIRST_LEVEL, _MM_HINT_T1 as SECOND_LEVEL, _mm_prefetch};

#[cfg(not(target_arch = "x86_64"))]
const FIRST_LEVEL: i32 = 1;
#[cfg(not(target_arch = "x86_64"))]
const SECOND_LEVEL: i32 = 2;

/// Prefetches the cache line at `base[offset]`. The address may be outside of the slice. Has no effect but on time.
#[inline(always)]
pub(super) fn prefetch<T>(base: &[T], offset: usize) {
    prefetch_into::<FIRST_LEVEL, T>(base, offset);
}

/// Does [`prefetch`] for a line that is read later: it goes to the second-level cache, so that the first keeps what it has.
#[inline(always)]
pub(super) fn prefetch_early<T>(base: &[T], offset: usize) {
    prefetch_into::<SECOND_LEVEL, T>(base, offset);
}

#[inline(always)]
#[allow(unsafe_code)]
fn prefetch_into<const LEVEL: i32, T>(base: &[T], offset: usize) {
    let address = base.as_ptr().wrapping_add(offset);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch neither reads nor faults at any address.
    unsafe {
        _mm_prefetch::<LEVEL>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
