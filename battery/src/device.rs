//! The memory of a device, and its errors.

use crate::common::*;
use lapidary_kernels::op::{Linear, Loss, Move, Norm, RowStep};
use lapidary_kernels::{
    AlignedBytes, BlockSlots, Call, CpuDevice, DType, Device, DropoutKey, Error, Event, HostSlot, Lane, Mat, Shared,
    Slot, Window,
};

const A: Slot = Slot(0);
const B: Slot = Slot(1);

fn device(capacity_bytes: u64) -> Box<dyn Device> {
    open_device(1, capacity_bytes)
}

pub(crate) fn capacity_is_refused_at_the_exact_byte() {
    let device = device(100);
    device.alloc(A, 60).unwrap();
    assert!(matches!(device.alloc(B, 41), Err(Error::OutOfMemory { need_bytes: 101, have_bytes: 100 })));
    device.alloc(B, 40).unwrap();
    assert!(matches!(device.alloc(Slot(2), 1), Err(Error::OutOfMemory { need_bytes: 101, .. })));
    device.alloc(Slot(3), 0).unwrap();
    assert!(matches!(device.alloc(Slot(4), u64::MAX), Err(Error::OutOfMemory { need_bytes: u64::MAX, .. })));
    assert_eq!((device.used_bytes(), device.peak_bytes(), device.capacity_bytes()), (100, 100, 100));
}

pub(crate) fn used_and_peak_are_counted() {
    let device = device(1 << 20);
    let mut model = std::collections::BTreeMap::new();
    let (mut peak, numbers) = (0, &mut Numbers(1));
    for _ in 0..2000 {
        let slot = Slot(numbers.below(12) as u32);
        if let Some(bytes) = model.remove(&slot) {
            assert!(matches!(device.alloc(slot, 1), Err(Error::SlotInUse { slot: s }) if s == slot));
            if numbers.below(2) == 0 {
                let host = HostSlot::staging(bytes as usize).unwrap();
                device.wait(device.copy_in(Lane::CopyIn, slot, &host, &[]).unwrap()).unwrap();
            }
            device.free(slot).unwrap();
        } else {
            assert!(matches!(device.free(slot), Err(Error::EmptySlot { slot: s }) if s == slot));
            let bytes = 64 * numbers.below(100) as u64;
            device.alloc(slot, bytes).unwrap();
            model.insert(slot, bytes);
        }
        let used = model.values().sum();
        peak = peak.max(used);
        assert_eq!((device.used_bytes(), device.peak_bytes()), (used, peak));
    }
}

pub(crate) fn the_allocation_that_fails_leaves_no_trace() {
    for fails in 0..5u32 {
        let device = device(u64::from(fails) * 10 + 9);
        let first = (0..5).find_map(|k| device.alloc(Slot(k), 10).err().map(|error| (k, error)));
        assert!(matches!(first, Some((k, Error::OutOfMemory { .. })) if k == fails), "{first:?}");
        assert_eq!(device.used_bytes(), u64::from(fails) * 10);
        assert!(matches!(device.free(Slot(fails)), Err(Error::EmptySlot { .. })));
        (0..fails).for_each(|k| device.free(Slot(k)).unwrap());
        assert_eq!(device.used_bytes(), 0);
        device.alloc(Slot(fails), u64::from(fails) * 10 + 9).unwrap();
    }
}

pub(crate) fn memory_that_the_host_does_not_have_is_an_error() {
    let rig = Rig::new(1);
    let bytes = 1u64 << 60;
    rig.device.alloc(Slot(50), bytes).unwrap();
    let out = Mat::f32(Slot(50), 1, 4);
    let x = rig.mat(&Numbers(1).matrix(1, 4));
    let objection = rig.launch(&call!(RowStep::Relu, [x], [out])).unwrap_err();
    assert!(matches!(objection, Error::HostMemory { need_bytes } if need_bytes == bytes));
    rig.device.free(Slot(50)).unwrap();
}

pub(crate) fn copies_need_the_exact_size() {
    let device = device(1000);
    let host = HostSlot::staged(&[1.0f32, 2.0]).unwrap();
    assert!(matches!(device.copy_in(Lane::CopyIn, A, &host, &[]), Err(Error::EmptySlot { slot: A })));
    assert!(matches!(device.copy_out(Lane::CopyOut, A, &host, &[]), Err(Error::EmptySlot { slot: A })));
    for wrong in [0, 7, 9] {
        device.alloc(A, wrong).unwrap();
        let objection = device.copy_in(Lane::CopyIn, A, &host, &[]).unwrap_err();
        assert!(matches!(objection, Error::SlotSize { slot: A, need_bytes: 8, have_bytes } if have_bytes == wrong));
        let objection = device.copy_out(Lane::CopyOut, A, &host, &[]).unwrap_err();
        assert!(matches!(objection, Error::SlotSize { slot: A, need_bytes: 8, have_bytes } if have_bytes == wrong));
        device.free(A).unwrap();
    }
    device.alloc(A, 8).unwrap();
    device.wait(device.copy_in(Lane::CopyIn, A, &host, &[]).unwrap()).unwrap();
    let back = HostSlot::staging(8).unwrap();
    device.wait(device.copy_out(Lane::CopyOut, A, &back, &[]).unwrap()).unwrap();
    assert_eq!(back.to_vec::<f32>(), [1.0, 2.0]);
    device.wait(Event::DONE).unwrap();
}

pub(crate) fn a_constant_is_never_written() {
    let rig = Rig::new(1);
    let values: Shared<f32> = vec![1.0, 2.0, 3.0].into();
    let host = HostSlot::constant(&values);
    rig.device.alloc(Slot(70), 12).unwrap();
    assert!(matches!(rig.device.copy_out(Lane::CopyOut, Slot(70), &host, &[]), Err(Error::ConstantWritten)));
    rig.device.wait(rig.device.copy_in(Lane::CopyIn, Slot(70), &host, &[]).unwrap()).unwrap();
    assert_eq!(rig.get::<f32>(Slot(70), 3), [1.0, 2.0, 3.0]);
    // The slot may be written: it then becomes a copy.
    let mat = |slot| Mat::f32(slot, 1, 3);
    rig.launch(&call!(RowStep::Relu, [mat(rig.put(&[4.0f32, 5.0, 6.0]))], [mat(Slot(70))])).unwrap();
    assert_eq!(rig.get::<f32>(Slot(70), 3), [4.0, 5.0, 6.0]);
    assert_eq!(&values[..], [1.0, 2.0, 3.0]);
}

pub(crate) fn a_constant_that_is_not_aligned_is_copied() {
    let rig = Rig::new(1);
    let bytes: Vec<u8> = (0..=32).collect();
    for offset in [0, 1, 4] {
        let part = Shared::<u8>::from_owner(std::sync::Arc::new(bytes.clone()), offset, 24).unwrap();
        let slot = Slot(60 + offset as u32);
        rig.device.alloc(slot, 24).unwrap();
        let copied = rig.device.copy_in(Lane::CopyIn, slot, &HostSlot::Constant(part), &[]).unwrap();
        rig.device.wait(copied).unwrap();
        assert_eq!(rig.get::<u8>(slot, 24), bytes[offset..offset + 24]);
        let out = rig.out(6, 1);
        rig.launch(&call!(RowStep::Relu, [Mat::f32(slot, 6, 1)], [out])).unwrap();
    }
}

pub(crate) fn a_slot_that_is_read_and_written_is_an_error_and_no_deadlock() {
    let rig = Rig::new(2);
    let x = rig.mat(&Numbers(1).matrix(3, 3));
    let (y, v) = (rig.out(3, 3), rig.put(&[0.0f32; 9]));
    let aliased = [
        call!(RowStep::Relu, [x], [x]),
        call!(RowStep::Add, [y, x], [x]),
        call!(Linear::Product, [x, y], [y]),
        call!(RowStep::AddBias, [x, y.slot], [y]),
        call!(Linear::ColumnSum, [x], [x.slot]),
        call!(Norm::Layer { eps: 0.0 }, [x, v, v], [x]),
        call!(Norm::InputGrad { eps: 0.0 }, [y, x, v], [y]),
        call!(Norm::GainGrad { eps: 0.0 }, [y, x], [y.slot]),
        call!(Loss::SigmoidCrossEntropyGrad(TRAIN), [x, v, v], [x], selected(0, 1)),
        permute_edges(v, rig.put(&[0u64; 9]), v, 9),
    ];
    for call in aliased {
        let objection = rig.launch(&call).unwrap_err();
        assert!(matches!(objection, Error::Aliased { .. }), "{}: {objection}", call.name());
    }
    // A slot may be read twice.
    rig.launch(&call!(RowStep::Add, [x, x], [y])).unwrap();
}

pub(crate) fn freed_memory_is_used_again_and_never_read() {
    let rig = Rig::new(1);
    let x = rig.mat(&Matrix { rows: 1, cols: 40, data: vec![7.0; 40] });
    rig.device.free(x.slot).unwrap();
    rig.device.alloc(x.slot, 160).unwrap();
    if cfg!(debug_assertions) {
        assert!(rig.get::<f32>(x.slot, 40).iter().all(|x| x.is_nan()));
    }
}

/// Returns every call with one operand that does not fit, and the operand that the error must name.
fn misshapen(rig: &Rig) -> Vec<(Call, &'static str)> {
    let mat = |rows, cols| rig.out(rows, cols);
    let vec = |len: usize| rig.put(&vec![0u64; len]);
    let block = |own_sources, halo_sources| {
        let (indptr, indices) = (rig.put(&[0u64, 1, 2]), rig.put(&[0u32, 1]));
        BlockSlots { indptr, indices, rows: 2, own_sources, halo_sources, edges: 2 }
    };
    let key = DropoutKey { seed: 0, op: 0, first_row: 0, first_column: 0, rate: 0.5 };
    let (labels, split, select, count) = (vec(4), vec(4), 0, 1);
    let eps = 1e-5;
    let (two, three) = (mat(2, 2), mat(3, 2));
    vec![
        (Call::gather(block(2, 0), None, two, None, mat(3, 2)), "out"),
        (Call::gather(block(2, 0), None, three, None, mat(2, 2)), "own"),
        (Call::gather(block(2, 0), None, mat(2, 3), None, mat(2, 2)), "own"),
        (Call::gather(block(1, 1), None, mat(1, 2), None, mat(2, 2)), "halo"),
        (Call::gather(block(2, 0), None, two, Some(two), mat(2, 2)), "halo"),
        (Call::gather(BlockSlots { rows: 1, ..block(2, 0) }, None, two, None, mat(1, 2)), "indices"),
        (call!(RowStep::Scale, [two, vec(2)], [three]), "out"),
        (call!(Linear::Product, [two, mat(4, 3)], [mat(2, 4)]), "weight"),
        (call!(Linear::Product, [two, mat(4, 2)], [mat(2, 5)]), "out"),
        (call!(Linear::InputGrad, [two, three], [mat(2, 2)]), "weight"),
        (call!(Linear::InputGrad, [two, mat(2, 2)], [three]), "out"),
        (call!(Linear::WeightGrad, [three, two], [mat(2, 2)]), "grad"),
        (call!(Linear::WeightGrad, [mat(2, 2), two], [three]), "out"),
        (call!(Linear::Transpose, [three], [mat(3, 2)]), "out"),
        (call!(RowStep::AddBias, [two, vec(2)], [three]), "out"),
        (call!(RowStep::Add, [two, three], [mat(2, 2)]), "b"),
        (call!(RowStep::Add, [three, two], [mat(2, 2)]), "a"),
        (call!(RowStep::Relu, [two], [three]), "out"),
        (call!(RowStep::ReluGrad, [two, three], [mat(2, 2)]), "y"),
        (drop_cells(key, two, vec(2), three), "out"),
        (drop_edges(key, (BlockSlots { edges: 1, ..block(2, 0) }, false), vec(2), vec(2), vec(2)), "indices"),
        (call!(Norm::Layer { eps }, [two, vec(2), vec(2)], [three]), "out"),
        (call!(Norm::InputGrad { eps }, [three, two, vec(2)], [mat(2, 2)]), "grad"),
        (call!(Norm::InputGrad { eps }, [two, mat(2, 2), vec(2)], [three]), "out"),
        (call!(Norm::GainGrad { eps }, [three, two], [vec(2)]), "grad"),
        (call!(Loss::SoftmaxCrossEntropyGrad(TRAIN), [two, labels, split], [three], selected(select, count)), "out"),
        (call!(Loss::SigmoidCrossEntropyGrad(TRAIN), [two, labels, split], [three], selected(select, count)), "out"),
        (
            call!(
                Loss::WeightedSoftmaxCrossEntropyGrad(TRAIN),
                [two, labels, split, vec(2)],
                [three],
                selected(select, count)
            ),
            "out",
        ),
    ]
}

pub(crate) fn shapes_that_do_not_agree_are_refused_and_the_output_is_untouched() {
    let rig = Rig::new(1);
    for (call, want) in misshapen(&rig) {
        match rig.launch(&call) {
            Err(Error::Shape { call: name, operand, .. }) => assert_eq!((name, operand), (call.name(), want)),
            other => panic!("{call:?} gives {other:?}"),
        }
        let out = call.out();
        if out.dtype == DType::F32 && ["linear", "relu", "add"].contains(&call.name()) {
            assert!(rig.get::<f32>(out.slot, out.rows * out.cols).iter().all(|x| x.is_nan()));
        }
    }
}

pub(crate) fn slots_that_are_too_small_or_empty_are_refused() {
    let rig = Rig::new(1);
    let (x, small) = (rig.mat(&Numbers(1).matrix(2, 3)), rig.put(&[0u8; 3]));
    let out = rig.out(2, 3);
    let [claim, of_size] = [x, out].map(|mat| move |rows, cols| Mat::f32(mat.slot, rows, cols));
    let (window, clock, rate) = (Window { first: 0, len: 6 }, rig.put(&[0u64, 1]), rig.put(&[0.1f32]));
    let (moment, momentum, weight_decay) = (None, 0.0, 0.0);
    let next = rig.put(&[0.0f32; 6]);
    let calls = [
        call!(RowStep::Relu, [claim(2, 4)], [of_size(2, 4)]),
        call!(RowStep::Relu, [claim(usize::MAX, 2)], [of_size(usize::MAX, 2)]),
        call!(RowStep::Relu, [claim(1 << 62, 1)], [of_size(1 << 62, 1)]),
        call!(RowStep::Relu, [x], [Mat { slot: small, ..out }]),
        call!(RowStep::AddBias, [x, small], [out]),
        call!(RowStep::Scale, [x, small], [out]),
        call!(Linear::ColumnSum, [x], [small]),
        drop_cells(DropoutKey { seed: 0, op: 0, first_row: 0, first_column: 0, rate: 0.5 }, x, rate, out),
        call!(Norm::Layer { eps: 0.0 }, [x, small, x.slot], [out]),
        call!(Norm::Layer { eps: 0.0 }, [x, x.slot, small], [out]),
        call!(Norm::InputGrad { eps: 0.0 }, [x, x, small], [out]),
        call!(Norm::GainGrad { eps: 0.0 }, [x, x], [small]),
        call!(Loss::CountCorrect(TRAIN), [x, small, clock], [clock], selected(0, 0)),
        call!(Loss::SigmoidCrossEntropyGrad(TRAIN), [x, small, clock], [out], selected(0, 1)),
        call!(Loss::CountMicro(TRAIN), [x, x.slot, small], [out.slot], selected(0, 0)),
        call!(Loss::CountMicro(TRAIN), [x, x.slot, clock], [clock], selected(0, 0)),
        sgd_call(x.slot, small, moment, next, window, clock, rate, momentum, weight_decay),
        sgd_call(x.slot, next, moment, small, window, clock, rate, momentum, weight_decay),
        sgd_call(x.slot, x.slot, moment, next, window, clock, small, momentum, weight_decay),
        call!(Move::Pack, [x, small], [out]),
    ];
    for call in calls {
        let objection = rig.launch(&call).unwrap_err();
        assert!(matches!(objection, Error::SlotSize { .. }), "{call:?}: {objection}");
    }
    let nothing = Mat { slot: Slot(999), ..x };
    for call in [call!(RowStep::Relu, [nothing], [out]), call!(RowStep::Relu, [x], [nothing])] {
        assert!(matches!(rig.launch(&call), Err(Error::EmptySlot { slot: Slot(999) })));
    }
}

pub(crate) fn a_permutation_that_points_outside_is_refused() {
    let rig = Rig::new(1);
    let (values, out, edges) = (rig.put(&[1.0f32, 2.0]), rig.put(&[0.0f32; 2]), 2);
    for bad in [2, u64::MAX] {
        let permutation = rig.put(&[0, bad]);
        let objection = rig.launch(&permute_edges(values, permutation, out, edges)).unwrap_err();
        assert!(matches!(objection, Error::Index { operand: "permutation", limit: 2, .. }), "{objection}");
    }
}

/// Rows that one call after another computes, each in memory of a different size, on a device that can hold a few of
/// them.
pub(crate) fn a_batch_of_many_sizes_stays_within_the_capacity() {
    const D: usize = 256;
    const CAPACITY: u64 = 4 << 20;
    let device = device(CAPACITY);
    let put = |slot: Slot, bytes: HostSlot| {
        device.alloc(slot, bytes.len() as u64).unwrap();
        let copied = device.copy_in(Lane::CopyIn, slot, &bytes, &[]).unwrap();
        device.wait(copied).unwrap();
    };
    let mat = |slot: u32, rows: usize| Mat::f32(Slot(slot), rows, D);
    let values: Vec<f32> = (0..2 * D).map(|i| i as f32).collect();
    put(Slot(0), HostSlot::staged(&values).unwrap());
    put(Slot(1), HostSlot::staged(&[999u32]).unwrap());
    let sizes: Vec<usize> = (0..30).map(|i| 1000 + i).collect();
    for (i, &n) in sizes.iter().enumerate() {
        let rows: Vec<u32> = (0..n as u32).map(|row| (row + 1) % 2).collect();
        put(Slot(10 + i as u32), HostSlot::staged(&rows).unwrap());
    }
    let mut last = Event::DONE;
    device.begin_batch().unwrap();
    for (i, &n) in sizes.iter().enumerate() {
        let i = i as u32;
        let (many, one) = (mat(2, n), mat(100 + i, 1));
        for (x, rows, out) in [(mat(0, 2), Slot(10 + i), many), (many, Slot(1), one)] {
            device.alloc(out.slot, 4 * (out.rows * D) as u64).unwrap();
            last = device.launch(Lane::Compute, &call!(Move::Pack, [x, rows], [out]), &[]).unwrap();
        }
        device.free(many.slot).unwrap();
    }
    device.wait(last).unwrap();
    assert!(device.peak_bytes() <= CAPACITY);
    for i in 0..sizes.len() as u32 {
        let host = HostSlot::staging(4 * D).unwrap();
        let copied = device.copy_out(Lane::CopyOut, Slot(100 + i), &host, &[]).unwrap();
        device.wait(copied).unwrap();
        assert_eq!(host.to_vec::<f32>(), values[..D], "{i}");
    }
}

pub(crate) fn the_device_may_use_the_global_pool() {
    let device = CpuDevice::new(None, 100).unwrap();
    assert_eq!(device.threads(), rayon::current_num_threads());
    assert_eq!(device.name(), "cpu");
    let bytes = AlignedBytes::zeroed(8).unwrap();
    device.alloc(A, bytes.len() as u64).unwrap();
    device.alloc(B, 8).unwrap();
    device.copy_in(Lane::CopyIn, A, &HostSlot::staged(&[-1.0f32, 1.0]).unwrap(), &[]).unwrap();
    let (x, out) = (Mat::f32(A, 1, 2), Mat::f32(B, 1, 2));
    device.launch(Lane::Compute, &call!(RowStep::Relu, [x], [out]), &[]).unwrap();
    let host = HostSlot::staging(8).unwrap();
    device.copy_out(Lane::CopyOut, B, &host, &[]).unwrap();
    assert_eq!(host.to_vec::<f32>(), [0.0, 1.0]);
}

pub(crate) fn bytes_are_zero_aligned_and_whole_at_every_size() {
    const MIB: usize = 1 << 20;
    for len in [0, 1, 63, 64, 65, 3 * MIB / 2 - 1, 3 * MIB / 2, 3 * MIB / 2 + 5, 4 * MIB + 5] {
        let mut bytes = AlignedBytes::zeroed(len).unwrap();
        assert_eq!((bytes.len(), bytes.is_empty()), (len, len == 0));
        assert!(bytes.as_slice::<u8>().iter().all(|&byte| byte == 0));
        assert_eq!((bytes.as_slice::<u8>().len(), bytes.as_mut_slice::<u64>().len()), (len, len / 8));
        assert!(len == 0 || bytes.as_slice::<u8>().as_ptr().addr().is_multiple_of(64));
        bytes.as_mut_slice::<u8>().fill(3);
        let copy = bytes.clone();
        bytes.as_mut_slice::<u8>().fill(4);
        assert!(copy.as_slice::<u8>() == vec![3; len] && copy.len() == len);
    }
}

pub(crate) fn a_slot_is_renamed_and_shared_without_a_copy() {
    let rig = Rig::new(1);
    let (from, to) = (rig.put(&[1.0f32, 2.0]), Slot(90));
    assert!(matches!(rig.device.rename(to, from), Err(Error::EmptySlot { slot: Slot(90) })));
    let other = rig.put(&[3.0f32]);
    assert!(matches!(rig.device.rename(from, other), Err(Error::SlotInUse { .. })));
    let used = rig.device.used_bytes();
    rig.device.rename(from, to).unwrap();
    assert_eq!(rig.get::<f32>(to, 2), [1.0, 2.0]);
    assert_eq!(rig.device.used_bytes(), used);

    let shared = rig.device.share(to).unwrap().expect("this memory is the host's");
    let before = rig.device.copied_bytes();
    let mat = |slot| Mat::f32(slot, 1, 2);
    rig.launch(&call!(RowStep::Relu, [mat(rig.put(&[5.0f32, 6.0]))], [mat(to)])).unwrap();
    assert_eq!(shared.to_vec::<f32>(), [1.0, 2.0], "a later write leaves what was shared");
    rig.device.free(to).unwrap();
    assert_eq!(shared.to_vec::<f32>(), [1.0, 2.0], "and so does the end of the slot");
    assert_eq!(rig.device.copied_bytes()[1], before[1]);
}
