//! A GPU, as the driver describes it.

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, as the driver counts.
    pub ordinal: u32,
    /// What its maker calls it.
    pub name: String,
    /// Its memory.
    pub total_bytes: u64,
    /// What of it nobody uses now.
    pub free_bytes: u64,
    /// The cache that all its processors share.
    pub cache_bytes: u64,
}
