//! Gathers over edges that are stored window by window give the bits of gathers over the block.

use crate::common::same_bits;
use half::bf16;
use lapidary_kernels::cpu::{self, EdgeWindows, RowWork};
use lapidary_kernels::{
    BlockSlots, BlockView, Call, CpuDevice, DType, Device, Error, HostSlot, Lane, Mat, MatMut, MatView, RowStep,
    Shared, Slot, storage_type,
};

const SOURCES: usize = 20_001;
const ROWS: usize = 1200;

fn hash(a: usize, b: usize) -> u32 {
    let bits = (a as u32).wrapping_mul(0x9e37_79b9) ^ (b as u32).wrapping_mul(0x85eb_ca6b);
    (bits ^ (bits >> 15)).wrapping_mul(0x2c1b_3c6d) ^ (bits >> 13)
}

fn value(row: usize, column: usize) -> f32 {
    hash(row, column) as f32 / 2f32.powi(31) - 1.0
}

/// Returns a block with empty rows, hubs, rows of one window, sources at the limits of windows, and multi-edges.
fn graph() -> (Vec<u64>, Vec<u32>) {
    let row = |v: usize| -> Vec<u32> {
        let mut row: Vec<u32> = match v % 8 {
            0 => Vec::new(),
            1 if v < 100 => (0..SOURCES as u32).flat_map(|u| [u, u]).collect(),
            2 => (0..300).map(|i| 8192 + hash(v, i) % 4096).collect(),
            3 => [0, 4095, 4096, 4096, 8191, 8192, 16_383, 16_384, SOURCES as u32 - 1].to_vec(),
            _ => (0..hash(v, 0) as usize % 2600).map(|i| hash(v, i) % SOURCES as u32).collect(),
        };
        row.sort_unstable();
        row
    };
    let rows: Vec<Vec<u32>> = (0..ROWS).map(row).collect();
    let ends = rows.iter().scan(0, |end, row| {
        *end += row.len() as u64;
        Some(*end)
    });
    (std::iter::once(0).chain(ends).collect(), rows.concat())
}

fn view<'a>((indptr, indices): &'a (Vec<u64>, Vec<u32>)) -> BlockView<'a> {
    BlockView { indptr, indices, own_sources: SOURCES, halo_sources: 0 }
}

fn matrix(d: usize) -> Vec<f32> {
    (0..SOURCES).flat_map(|row| (0..d).map(move |column| value(row, column))).collect()
}

#[test]
fn windows_of_edges_give_the_bits_of_the_block() {
    let graph = graph();
    let block = view(&graph);
    let windows = EdgeWindows::new(block).unwrap().unwrap();
    let weights: Vec<f32> = (0..graph.1.len()).map(|edge| value(edge, 7)).collect();
    let scale: Vec<f32> = (0..ROWS).map(|v| 1.0 / (v + 1) as f32).collect();
    let steps = [RowWork::new(RowStep::Scale, &scale), RowWork::new(RowStep::Relu, &[])];
    for d in [1, 3, 8, 16, 17, 31, 33, 41, 48, 64, 65, 100, 130] {
        let x = matrix(d);
        let own = MatView::new(&x, SOURCES, d).unwrap();
        for (weights, steps) in [(None, &[][..]), (None, &steps), (Some(&weights[..]), &[]), (Some(&weights), &steps)] {
            let [mut want, mut got] = [0, 1].map(|_| vec![f32::NAN; ROWS * d]);
            cpu::gather_then(block, weights, own, None, steps, MatMut::new(&mut want, ROWS, d).unwrap()).unwrap();
            windows.gather_then(weights, own, steps, MatMut::new(&mut got, ROWS, d).unwrap()).unwrap();
            assert!(same_bits(&got, &want), "d = {d}, {} steps, weights: {}", steps.len(), weights.is_some());
        }
    }
}

#[test]
fn blocks_that_cannot_be_stored_in_windows_are_left_as_they_are() {
    let mut graph = graph();
    assert!(EdgeWindows::new(BlockView { halo_sources: 1, ..view(&graph) }).unwrap().is_none(), "a halo");
    let short = [vec![0, 3], vec![]];
    let short = BlockView { indptr: &short[0], indices: &[1, 2, 3], own_sources: SOURCES, halo_sources: 0 };
    assert!(EdgeWindows::new(short).unwrap().is_none(), "few edges");
    let last = graph.1.len() - 1;
    let before = std::mem::replace(&mut graph.1[last], SOURCES as u32);
    assert!(EdgeWindows::new(view(&graph)).unwrap().is_none(), "a source that does not exist");
    graph.1[last] = before;
    let hub = graph.0[1] as usize;
    graph.1.swap(hub, hub + 2);
    assert!(EdgeWindows::new(view(&graph)).unwrap().is_none(), "sources that do not ascend");
    *graph.0.last_mut().unwrap() += 1;
    assert!(matches!(EdgeWindows::new(view(&graph)), Err(Error::Shape { operand: "indices", .. })));
}

#[test]
fn operands_of_other_shapes_are_errors_with_windows_too() {
    let graph = graph();
    let windows = EdgeWindows::new(view(&graph)).unwrap().unwrap();
    let (x, mut out) = (matrix(2), vec![7.0; ROWS * 2]);
    let own = MatView::new(&x, SOURCES, 2).unwrap();
    let narrow = windows.gather_then(None, own, &[], MatMut::new(&mut out, ROWS * 2, 1).unwrap());
    assert!(matches!(narrow, Err(Error::Shape { operand: "own", .. })));
    let short = windows.gather_then(None, own, &[], MatMut::new(&mut out[2..], ROWS - 1, 2).unwrap());
    assert!(matches!(short, Err(Error::Shape { operand: "out", .. })));
    let weights = vec![1.0; graph.1.len() - 1];
    let few = windows.gather_then(Some(&weights), own, &[], MatMut::new(&mut out, ROWS, 2).unwrap());
    assert!(matches!(few, Err(Error::Shape { operand: "weights", .. })));
    assert_eq!(out, vec![7.0; ROWS * 2]);
}

/// More calls than a device makes before it stores the edges of a block.
const CALLS: usize = 9;

#[test]
fn a_device_gives_the_same_bits_when_gathers_over_a_block_repeat() {
    let (indptr, indices) = graph();
    let edges = indices.len();
    let weights: Vec<f32> = (0..edges).map(|edge| value(edge, 7)).collect();
    let device = CpuDevice::new(None, u64::MAX).unwrap();
    let put = |slot: u32, bytes: Shared<u8>| {
        device.alloc(Slot(slot), bytes.len() as u64).unwrap();
        device.copy_in(Lane::CopyIn, Slot(slot), &HostSlot::Constant(bytes), &[]).unwrap();
        Slot(slot)
    };
    let (indptr, indices) = (put(0, Shared::from(indptr).to_bytes()), put(1, Shared::from(indices).to_bytes()));
    let weights = put(2, Shared::from(weights).to_bytes());
    let block = BlockSlots { indptr, indices, rows: ROWS, own_sources: SOURCES, halo_sources: 0, edges };
    // So much memory that there is room for the windows.
    device.alloc(Slot(3), 64 << 20).unwrap();
    for d in [41, 96] {
        let mut x = vec![bf16::ZERO; SOURCES * d];
        storage_type::round(&matrix(d), &mut x);
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let narrow: Vec<u16> = bytemuck::cast_vec(x);
        let (wide, narrow) = (put(4, Shared::from(wide).to_bytes()), put(5, Shared::from(narrow).to_bytes()));
        for (x, from, to) in
            [(wide, DType::F32, DType::F32), (narrow, DType::Bf16, DType::F32), (narrow, DType::Bf16, DType::Bf16)]
        {
            for weights in [None, Some(weights)] {
                let out = Mat { dtype: to, ..Mat::f32(Slot(6), ROWS, d) };
                device.alloc(out.slot, (ROWS * d) as u64 * to.byte_count()).unwrap();
                let call = Call::gather(block, weights, Mat { dtype: from, ..Mat::f32(x, SOURCES, d) }, None, out);
                let results: Vec<Vec<u8>> = (0..CALLS)
                    .map(|_| {
                        device.launch(Lane::Compute, &call, &[]).unwrap();
                        let host = HostSlot::staging((ROWS * d) * to.byte_count() as usize).unwrap();
                        device.copy_out(Lane::CopyOut, out.slot, &host, &[]).unwrap();
                        host.to_vec()
                    })
                    .collect();
                assert!(results.iter().all(|result| *result == results[0]), "d = {d}, {from:?} to {to:?}");
                device.free(out.slot).unwrap();
            }
        }
        device.free(Slot(4)).unwrap();
        device.free(Slot(5)).unwrap();
    }
}
