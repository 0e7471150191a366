//! The counter-based random generator of dropout: the draw of a cell depends on its key alone.
//!
//! Masks are never stored. Forward, backward, a sparse copy of the same matrix, a part of it and another device all
//! compute the same draw for the same (seed, epoch, op, vertex, column). A strong 64-bit hash per row is followed by a
//! cheap 32-bit hash per cell, so that the inner loop is a few multiplications that vectorise.

/// The key that decides, with the clock's epoch, which cells a dropout keeps: see [the module](self).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// Number of this dropout in the model.
    pub op: u32,
    /// The global id of the matrix's first row.
    pub first_row: u64,
    /// The number of the matrix's first column.
    pub first_column: u32,
    /// Share of cells that are set to 0, in `[0, 1)`. The others are scaled by `1 / (1 - rate)`.
    pub rate: f32,
}

/// A bijective 64-bit mix (the finaliser of SplitMix64; Steele, Lea & Flood, OOPSLA 2014).
#[inline(always)]
fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The odd number nearest to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the hash that all cells of one run share.
#[inline(always)]
pub(crate) fn run_key(seed: u64) -> u64 {
    mix64(seed.wrapping_add(STEP))
}

/// The hash that all cells of one row share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowKey {
    first: u32,
    second: u32,
}

/// The hash that all cells of one dropout in one epoch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallKey(u64);

/// Returns the key of dropout `op` in `epoch`.
#[inline(always)]
pub(crate) fn call_key(seed: u64, epoch: u64, op: u32) -> CallKey {
    CallKey(mix64(run_key(seed) ^ mix64(epoch.wrapping_mul(STEP) ^ u64::from(op).rotate_left(40))))
}

impl CallKey {
    /// Returns the key of global row `vertex`.
    #[inline(always)]
    pub(crate) fn row(self, vertex: u64) -> RowKey {
        let row = mix64(self.0 ^ vertex.wrapping_mul(STEP));
        RowKey { first: row as u32, second: (row >> 32) as u32 }
    }
}

/// Returns the key of global row `vertex` for dropout `op` in `epoch`.
#[inline(always)]
pub fn row_key(seed: u64, epoch: u64, op: u32, vertex: u64) -> RowKey {
    call_key(seed, epoch, op).row(vertex)
}

/// Returns 32 uniform bits for one cell of a row.
#[inline(always)]
pub fn draw(key: RowKey, column: u32) -> u32 {
    let mut h = column.wrapping_mul(0x9e37_79b9) ^ key.first;
    h = (h ^ (h >> 16)).wrapping_mul(0x7feb_352d);
    h ^= key.second;
    h = (h ^ (h >> 15)).wrapping_mul(0x846c_a68b);
    h ^ (h >> 16)
}

/// Returns the column that stands for a head of an edge in [`draw`]; the row is the edge's destination. `twin` numbers
/// the edges between the same two vertices.
#[inline(always)]
pub fn edge_column(source: u32, twin: u32, head: usize, heads: usize) -> u32 {
    source.wrapping_mul(heads as u32).wrapping_add(head as u32).wrapping_add(twin.wrapping_mul(0x85eb_ca6b))
}

/// Returns the threshold below which a draw drops its cell. At a rate of 0 no cell is dropped.
pub fn threshold(rate: f32) -> u32 {
    (f64::from(rate) * 4_294_967_296.0).round().min(f64::from(u32::MAX)) as u32
}
