//! The description of a GPU.

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The driver's number of the GPU.
    pub ordinal: u32,
    /// The product name.
    pub name: String,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// Free memory in bytes.
    pub free_bytes: u64,
    /// Bytes of the L2 cache, which all multiprocessors share.
    pub cache_bytes: u64,
}
