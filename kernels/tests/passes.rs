//! Gathers that do not fit a cache run in passes, and give the same bits as narrow gathers that run in one pass.

use crate::common::same_bits;
use lapidary_kernels::RowStep;
use lapidary_kernels::cpu::{self, RowWork};
use lapidary_kernels::{BlockView, Error, MatMut, MatView};

const ROWS: usize = 1500;
const EDGES: usize = 3000;

/// Returns rows with the same number of edges; with `step`, sources ascend.
fn graph(sources: usize, step: bool) -> (Vec<u64>, Vec<u32>) {
    let row = |v: usize| {
        let mut row: Vec<u32> = (0..EDGES).map(|i| ((v * 7919 + i * 104_729) % sources) as u32).collect();
        if step {
            row.sort_unstable();
        }
        row
    };
    ((0..=ROWS).map(|v| (v * EDGES) as u64).collect(), (0..ROWS).flat_map(row).collect())
}

fn value(row: usize, column: usize) -> f32 {
    let bits = ((row * 1031 + column) as u32).wrapping_mul(0x9e37_79b9);
    (bits ^ (bits >> 15)) as f32 / 2f32.powi(31) - 1.0
}

fn matrix(rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> Vec<f32> {
    rows.flat_map(|row| columns.clone().map(move |column| value(row, column))).collect()
}

/// Gathers some columns of all sources. The last `halo` sources are in a matrix of their own.
fn gather(block: BlockView<'_>, columns: std::ops::Range<usize>, weights: Option<&[f32]>) -> Result<Vec<f32>, Error> {
    let (own_rows, d) = (block.own_sources, columns.len());
    let own = matrix(0..own_rows, columns.clone());
    let halo = matrix(own_rows..own_rows + block.halo_sources, columns);
    let own = MatView::new(&own, own_rows, d).unwrap();
    let halo = (block.halo_sources > 0).then(|| MatView::new(&halo, block.halo_sources, d).unwrap());
    let scale: Vec<f32> = (0..ROWS).map(|v| 1.0 / (v + 1) as f32).collect();
    let mut out = vec![f32::NAN; ROWS * d];
    let scale = RowWork::new(RowStep::Scale, &scale);
    let steps = [scale, RowWork::new(RowStep::Relu, &[])];
    cpu::gather_then(block, weights, own, halo, &steps, MatMut::new(&mut out, ROWS, d).unwrap())?;
    Ok(out)
}

fn check(block: BlockView<'_>, d: usize, weights: Option<&[f32]>) {
    const NARROW: usize = 16;
    let wide = gather(block, 0..d, weights).unwrap();
    for first in (0..d).step_by(NARROW) {
        let columns = first..(first + NARROW).min(d);
        let narrow = gather(block, columns.clone(), weights).unwrap();
        for (v, narrow) in narrow.chunks_exact(columns.len()).enumerate() {
            let wide = &wide[v * d..][columns.clone()];
            assert!(same_bits(wide, narrow), "row {v}, columns {columns:?}");
        }
    }
}

#[test]
fn windows_of_columns_and_sources_give_the_bits_of_narrow_gathers() {
    let sources = 140_000;
    let (indptr, indices) = graph(sources, true);
    let block = BlockView { indptr: &indptr, indices: &indices, own_sources: sources, halo_sources: 0 };
    let weights: Vec<f32> = (0..indices.len()).map(|edge| value(edge, 5)).collect();
    check(block, 130, None);
    check(block, 130, Some(&weights));
}

#[test]
fn rows_that_do_not_ascend_and_halos_do_too() {
    let sources = 60_000;
    let (indptr, indices) = graph(sources, false);
    check(BlockView { indptr: &indptr, indices: &indices, own_sources: sources, halo_sources: 0 }, 97, None);
    check(BlockView { indptr: &indptr, indices: &indices, own_sources: 33_333, halo_sources: 26_667 }, 97, None);
    let (indptr, indices) = graph(140_000, false);
    check(BlockView { indptr: &indptr, indices: &indices, own_sources: 140_000, halo_sources: 0 }, 130, None);
}

#[test]
fn a_source_that_does_not_exist_is_an_error_in_passes_too() {
    for sources in [60_000, 140_000] {
        let (indptr, mut indices) = graph(sources, true);
        indices[EDGES * 3 - 1] = sources as u32;
        let block = BlockView { indptr: &indptr, indices: &indices, own_sources: sources, halo_sources: 0 };
        let limit = sources as u64;
        match gather(block, 0..130, None) {
            Err(Error::Index { operand: "indices", index, limit: l, .. }) => assert_eq!((index, l), (limit, limit)),
            other => panic!("{other:?}"),
        }
    }
}
