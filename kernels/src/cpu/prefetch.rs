//! Prefetching: the one hint that the compiler cannot give by itself.

/// Prefetches the cache line at `base[offset]`. The address may be outside of the slice. Has no effect but on time.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn prefetch<T>(base: &[T], offset: usize) {
    let address = base.as_ptr().wrapping_add(offset);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch neither reads nor faults at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Does [`prefetch`] for a line that is read later: it goes to the second-level cache, so that the first keeps what it has.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn prefetch_early<T>(base: &[T], offset: usize) {
    let address = base.as_ptr().wrapping_add(offset);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
