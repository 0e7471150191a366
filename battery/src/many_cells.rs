//! Matrices with many cells: every row is read and written where it belongs, also past 2^31 cells.

use super::list::Check;
use crate::common::*;
use lapidary_kernels::op::Move;
use lapidary_kernels::{BlockSlots, Call, Mat, RowStep};

const D: usize = 64;
/// Rows of the small matrix that all rows are copies of.
const SOURCES: usize = 1009;

/// Writes `n` rows of 64 columns by a gather and a bias, and reads some of them, also the last, by a gather and a pack.
///
/// # Cost
/// `4 * 64 * n` bytes of the device, and `12 * n` bytes of it and of the host.
fn rows_are_read_and_written(n: usize) {
    let numbers = &mut Numbers(31);
    let (sources, bias) = (numbers.matrix(SOURCES, D), numbers.units(D));
    let rig = Rig::new(3);
    let small = rig.mat(&sources);
    let copies: Vec<u32> = (0..n).map(|v| (v % SOURCES) as u32).collect();
    let each: Vec<u64> = (0..=n as u64).collect();
    let block = |rows: usize, own_sources: usize, indptr, indices| BlockSlots {
        indptr,
        indices,
        rows,
        own_sources,
        halo_sources: 0,
        edges: rows,
    };
    let many = Mat::f32(rig.room(4 * (n * D) as u64), n, D);
    let gather = Call::gather(block(n, SOURCES, rig.put(&each), rig.put(&copies)), None, small, None, many);
    rig.launch(&then(gather, vec![step(RowStep::AddBias, rig.put(&bias))])).unwrap();

    // Some of all rows, and those at both ends.
    let some: Vec<u32> = (0..1000).map(|i| (i * (n - 1) / 999) as u32).collect();
    let want: Vec<f32> = some
        .iter()
        .flat_map(|&v| sources.data[v as usize % SOURCES * D..][..D].iter().zip(&bias).map(|(x, b)| x + b))
        .collect();
    let (rows, out) = (rig.put(&some), rig.out(some.len(), D));
    let packed = rig.run(out, &call!(Move::Pack, [many, rows], [out]));
    assert!(same_bits(&packed, &want), "rows {some:?} of {n} are not those that a gather wrote");
    let out = rig.out(some.len(), D);
    let read = Call::gather(block(some.len(), n, rig.put(&each[..=some.len()]), rows), None, many, None, out);
    assert!(same_bits(&rig.run(out, &read), &want), "a gather reads other rows of {n} than a pack");
}

pub(crate) fn every_row_of_a_matrix_is_read_and_written() {
    for n in [1000, 30_011] {
        rows_are_read_and_written(n);
    }
}

/// Rows with more than 2^31 cells, so that a product of row and width needs 64 bits.
const MANY: usize = (1 << 31) / D + 2017;

/// The memory of a device that [`MANY_CELLS`] needs, in bytes: the matrix, its edges, and room for what else there is.
pub const MANY_CELLS_BYTES: u64 = 4 * (MANY * D) as u64 + 12 * MANY as u64 + (256 << 20);

/// A check over a matrix of more than 2^31 cells. It is not in the list, because few devices have the memory.
pub const MANY_CELLS: Check = Check {
    name: "many_cells::rows_beyond_two_to_the_31_cells_are_read_and_written",
    on_gpu: true,
    run: || rows_are_read_and_written(MANY),
};
