//! What the processor is.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

/// Returns whether it has AVX512-BF16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512_bf16() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// Returns whether AMD made it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_amd() -> bool {
    static IS_AMD: LazyLock<bool> = LazyLock::new(|| {
        raw_cpuid::CpuId::new().get_vendor_info().is_some_and(|vendor| vendor.as_str() == "AuthenticAMD")
    });
    *IS_AMD
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_avx512_bf16() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_amd() -> bool {
    false
}
