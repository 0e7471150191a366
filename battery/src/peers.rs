//! Fetches between devices: the right rows, errors if they are missing, and memory that outlives its owner.

use std::num::NonZeroUsize;

use crate::common::*;
use lapidary_kernels::op::Move;
use lapidary_kernels::{
    Call, CpuDevice, Device, Error, Event, HostSlot, Lane, Lent, Mat, Result, SimDevice, SimSpeed, Slot, StorageType,
    cuda,
};

const ROWS: Slot = Slot(0);
const OUT: Slot = Slot(1);
const PACKED: Slot = Slot(2);

/// Returns three devices that reach each other: simulated ones, or two on one GPU and one on another, if there is one.
fn devices() -> Vec<Box<dyn Device>> {
    let Some(gpu) = gpu() else {
        let sim = |i| SimDevice::new(&format!("sim:{i}"), NonZeroUsize::new(1), u64::MAX, SimSpeed::default());
        return (0..3).map(|i| Box::new(sim(i).unwrap()) as Box<dyn Device>).collect();
    };
    let mut others = cuda::gpus().unwrap().into_iter().map(|other| other.ordinal).filter(|&other| other != gpu);
    let other = others.find(|&other| cuda::reach_each_other(&[gpu, other]).unwrap()).unwrap_or(gpu);
    let ordinals = [gpu, gpu, other];
    assert!(cuda::reach_each_other(&ordinals).unwrap());
    // Linking twice is not an error.
    (0..2).for_each(|_| cuda::link(&ordinals).unwrap());
    ordinals.iter().map(|&ordinal| cuda::open(&format!("cuda:{ordinal}"), ordinal, u64::MAX).unwrap()).collect()
}

fn put<T: bytemuck::Pod>(device: &dyn Device, slot: Slot, values: &[T]) {
    device.alloc(slot, size_of_val(values) as u64).unwrap();
    let copied = device.copy_in(Lane::CopyIn, slot, &HostSlot::staged(values).unwrap(), &[]).unwrap();
    device.wait(copied).unwrap();
}

fn fetched(device: &dyn Device, rows: &[u32], d: usize, from: &[(Lent, usize)]) -> Result<Vec<f32>> {
    fetched_as(device, rows, Mat::f32(OUT, rows.len(), d), from)
}

fn fetched_as<T: bytemuck::Pod>(device: &dyn Device, rows: &[u32], out: Mat, from: &[(Lent, usize)]) -> Result<Vec<T>> {
    let bytes = out.rows * out.row_bytes();
    put(device, ROWS, rows);
    put(device, OUT, &vec![0xff_u8; bytes]);
    let done = device.fetch(Lane::CopyIn, ROWS, out, from, &[]);
    let got = done.and_then(|done| {
        // The copy to the host waits for the fetch, as a kernel would.
        let host = HostSlot::staging(bytes)?;
        let copied = device.copy_out(Lane::CopyOut, OUT, &host, &[done])?;
        device.wait(done)?;
        device.wait(copied)?;
        Ok(host.to_vec())
    });
    if got.is_ok() {
        [ROWS, OUT].into_iter().for_each(|slot| device.free(slot).unwrap());
    }
    got
}

pub(crate) fn fetched_rows_are_those_that_were_named() {
    let devices = devices();
    let numbers = &mut Numbers(1);
    let mut bytes = 0;
    for d in [0, 1, 2, 3, 17, 32, 41, 602] {
        let packed = [numbers.matrix(70, d), numbers.matrix(9, d)];
        for (device, packed) in devices.iter().zip(&packed) {
            put(&**device, PACKED, &packed.data);
        }
        let lent: Vec<Lent> = devices[..2].iter().map(|device| device.lend(PACKED).unwrap()).collect();
        for counts in [[0, 0], [1, 0], [70, 9], [33, 4]] {
            let rows: Vec<u32> = (0..counts[0]).chain(0..counts[1]).collect();
            let from: Vec<(Lent, usize)> = lent.iter().cloned().zip(counts.map(|count| count as usize)).collect();
            // The last device has packed nothing itself; the first reads its own rows as well.
            for reader in [&devices[2], &devices[0]] {
                let got = fetched(&**reader, &rows, d, &from).unwrap();
                let row = |(packed, row): (&Matrix, u32)| packed.data[row as usize * d..][..d].to_vec();
                let of = |i: usize| (0..counts[i]).map(move |row| (i, row));
                let want: Vec<f32> = of(0).chain(of(1)).flat_map(|(i, at)| row((&packed[i], at))).collect();
                assert!(same_bits(&got, &want), "width {d}, {counts:?}");
            }
            bytes += 4 * (rows.len() * d) as u64;
        }
        devices[..2].iter().for_each(|device| device.free(PACKED).unwrap());
    }
    assert_eq!([0, 1, 2].map(|i: usize| devices[i].fetched_bytes()), [bytes, 0, bytes]);
}

pub(crate) fn rows_of_two_bytes_a_number_are_fetched_as_they_are() {
    let devices = devices();
    let mut bytes = 0;
    for d in [1, 3, 4, 8, 40, 602] {
        let packed: [Vec<u16>; 2] = [0, 30_000].map(|first| (first..first + 20 * d as u16).collect());
        for (device, packed) in devices.iter().zip(&packed) {
            put(&**device, PACKED, packed);
        }
        let from: Vec<(Lent, usize)> = devices[..2].iter().map(|device| (device.lend(PACKED).unwrap(), 2)).collect();
        let out = Mat { dtype: StorageType::Bf16.into(), ..Mat::f32(OUT, 4, d) };
        let got: Vec<u16> = fetched_as(&*devices[2], &[19, 0, 7, 7], out, &from).unwrap();
        let row = |i: usize, row: usize| packed[i][row * d..][..d].to_vec();
        assert_eq!(got, [row(0, 19), row(0, 0), row(1, 7), row(1, 7)].concat(), "width {d}");
        bytes += 8 * d as u64;
        devices[..2].iter().for_each(|device| device.free(PACKED).unwrap());
    }
    assert_eq!(devices[2].fetched_bytes(), bytes);
}

pub(crate) fn what_cannot_be_fetched_is_an_error() {
    let at = |rows: usize| Mat::f32(OUT, rows, 3);
    let fresh = || {
        let devices = devices();
        put(&*devices[0], PACKED, &[1.0f32; 12]);
        let lent = devices[0].lend(PACKED).unwrap();
        put(&*devices[1], ROWS, &[0u32, 3]);
        put(&*devices[1], OUT, &[0.0f32; 6]);
        (devices, lent)
    };
    let (devices, lent) = fresh();
    let fetch = |out: Mat, from: &[(Lent, usize)]| {
        let done = devices[1].fetch(Lane::CopyIn, ROWS, out, from, &[])?;
        devices[1].wait(done)
    };
    assert!(fetch(at(2), &[(lent.clone(), 2)]).is_ok());
    assert!(matches!(devices[0].lend(OUT), Err(Error::EmptySlot { .. })));
    assert!(matches!(CpuDevice::new(None, 8).unwrap().lend(PACKED), Err(Error::NoPeers)));
    let never = devices[1].launch(Lane::Compute, &call!(Move::Fetch, [PACKED, ROWS], [at(2)]), &[]);
    assert!(matches!(never.and_then(|event| devices[1].wait(event)), Err(Error::NoPeers)));

    type Wrong<'a> = (&'a str, &'a [u32], Mat, usize);
    let wrong: [Wrong<'_>; 4] = [
        ("a row that was not packed", &[0, 4], at(2), 2),
        ("fewer rows than there is room for", &[0, 3], at(2), 1),
        ("more rows than are named", &[0, 3], at(3), 3),
        ("a row far outside", &[u32::MAX, 0], at(2), 2),
    ];
    for (what, rows, out, count) in wrong {
        let (devices, lent) = fresh();
        devices[1].free(ROWS).unwrap();
        put(&*devices[1], ROWS, rows);
        let done = devices[1].fetch(Lane::CopyIn, ROWS, out, &[(lent, count)], &[]);
        let error = done.and_then(|event| devices[1].wait(event)).unwrap_err();
        let fits = matches!(&error, Error::Index { call: "fetch" | "pack", limit: 4, .. })
            || matches!(&error, Error::Shape { call: "fetch", .. } | Error::SlotSize { .. });
        assert!(fits, "{what}: {error}");
    }
}

/// A run that failed drops its devices in any order.
pub(crate) fn what_is_being_read_outlives_its_owner() {
    let mut devices = devices();
    let values: Vec<f32> = (0..64 * 1024).map(|i| i as f32).collect();
    put(&*devices[0], PACKED, &values);
    let lent = devices[0].lend(PACKED).unwrap();
    let rows: Vec<u32> = (0..1024).rev().collect();
    put(&*devices[1], ROWS, &rows);
    put(&*devices[1], OUT, &vec![0.0f32; values.len()]);
    let out = Mat::f32(OUT, 1024, 64);
    let done = devices[1].fetch(Lane::CopyIn, ROWS, out, &[(lent, 1024)], &[]).unwrap();
    drop(devices.remove(0));
    let host = HostSlot::staging(4 * values.len()).unwrap();
    let copied = devices[0].copy_out(Lane::CopyOut, OUT, &host, &[done]).unwrap();
    devices[0].wait(copied).unwrap();
    let want: Vec<f32> = rows.iter().flat_map(|&row| values[row as usize * 64..][..64].to_vec()).collect();
    assert!(same_bits(&host.to_vec(), &want));

    // Two devices that read each other are dropped, in both orders.
    let lent: Vec<Lent> = [0, 1]
        .map(|i: usize| {
            put(&*devices[i], PACKED, &values);
            devices[i].lend(PACKED).unwrap()
        })
        .into();
    put(&*devices[1], ROWS, &rows);
    put(&*devices[1], OUT, &vec![0.0f32; values.len()]);
    for (device, lent) in devices.iter().zip(lent.into_iter().rev()) {
        let event: Event = device.fetch(Lane::CopyIn, ROWS, out, &[(lent, 1024)], &[]).unwrap();
        assert!(event != Event::DONE);
    }
    drop(devices);
}
