//! Gathers that do not fit a cache run in passes, and give the same bits as narrow gathers that run in one pass.

use crate::common::same_bits;
use lapidary_kernels::RowStep;
use lapidary_kernels::cpu::{self, RowWork};
use lapidary_kernels::{
    BlockSlots, BlockView, Call, CpuDevice, DType, Device, Error, HostSlot, Lane, Mat, MatMut, MatView, Slot,
    storage_type,
};

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
fn passes_over_bf16_give_the_bits_of_f32_rounded_once() {
    let sources = 140_000;
    let scale: Vec<f32> = (0..ROWS).map(|v| 1.0 / (v + 1) as f32).collect();
    for (d, ascend) in [(130, true), (130, false), (97, true)] {
        let (indptr, indices) = graph(sources, ascend);
        let mut x = vec![half::bf16::ZERO; sources * d];
        storage_type::round(&matrix(0..sources, 0..d), &mut x);
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let device = CpuDevice::new(None, u64::MAX).unwrap();
        let (wide, x) = (put(&device, 0, &wide), put(&device, 1, &x));
        let block = BlockSlots {
            indptr: put(&device, 2, &indptr),
            indices: put(&device, 3, &indices),
            rows: ROWS,
            own_sources: sources,
            halo_sources: 0,
            edges: indices.len(),
        };
        let scale = put(&device, 4, &scale);
        let gather = |x: Slot, x_type: DType, out: u32, out_type: DType| {
            device.alloc(Slot(out), (ROWS * d) as u64 * out_type.byte_count()).unwrap();
            let own = Mat { dtype: x_type, ..Mat::f32(x, sources, d) };
            let out = Mat { dtype: out_type, ..Mat::f32(Slot(out), ROWS, d) };
            let call = Call::gather(block, None, own, None, out);
            device.launch(Lane::Compute, &call.followed_by([RowStep::Scale, RowStep::Relu], [scale]), &[])
        };
        gather(wide, DType::F32, 5, DType::F32).unwrap();
        gather(x, DType::Bf16, 6, DType::F32).unwrap();
        gather(x, DType::Bf16, 7, DType::Bf16).unwrap();
        let (want, sums) = (get::<f32>(&device, 5, ROWS * d), get::<f32>(&device, 6, ROWS * d));
        assert!(same_bits(&sums, &want), "d = {d}, {ascend}: sums in f32");
        let mut rounded = vec![half::bf16::ZERO; ROWS * d];
        storage_type::round(&want, &mut rounded);
        assert_eq!(get::<u16>(&device, 7, ROWS * d), bytemuck::cast_vec::<_, u16>(rounded), "d = {d}, {ascend}");
    }
}

fn put<T: bytemuck::Pod>(device: &CpuDevice, slot: u32, values: &[T]) -> Slot {
    device.alloc(Slot(slot), size_of_val(values) as u64).unwrap();
    device.copy_in(Lane::CopyIn, Slot(slot), &HostSlot::staged(values).unwrap(), &[]).unwrap();
    Slot(slot)
}

fn get<T: bytemuck::Pod>(device: &CpuDevice, slot: u32, len: usize) -> Vec<T> {
    let host = HostSlot::staging(len * size_of::<T>()).unwrap();
    device.copy_out(Lane::CopyOut, Slot(slot), &host, &[]).unwrap();
    host.to_vec()
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
