//! The simulated device: the laws of a device, with asynchronous lanes.

use std::sync::Arc;
use std::time::Duration;

use lapidary_kernels::op::RowStep;
use lapidary_kernels::{Call, Device, Error, Event, HostSlot, Lane, Mat, Semaphore, Shared, SimDevice, SimSpeed, Slot};

const ROWS: usize = 500;
const COLS: usize = 16;
const BYTES: u64 = (4 * ROWS * COLS) as u64;

fn device(capacity_bytes: u64, speed: SimSpeed) -> SimDevice {
    SimDevice::new("sim:0", std::num::NonZeroUsize::new(1), capacity_bytes, speed).unwrap()
}

fn mat(slot: Slot) -> Mat {
    Mat::f32(slot, ROWS, COLS)
}

#[test]
fn a_call_waits_for_its_events_and_for_its_lane() {
    let speed =
        SimSpeed { copy_bytes_per_s: Some(3e6), semaphore: Some(Arc::new(Semaphore::new(1))), ..SimSpeed::default() };
    let device = device(4 * BYTES, speed);
    let [x, y, z] = [Slot(0), Slot(1), Slot(5)];
    for slot in [x, y, z] {
        device.alloc(slot, BYTES).unwrap();
    }
    for round in 0..5 {
        // Each copy takes about 10 ms, so its result is not there yet unless the test waits for it.
        let values: Shared<f32> = vec![round as f32 - 2.0; ROWS * COLS].into();
        let there = device.copy_in(Lane::CopyIn, x, &HostSlot::constant(&values), &[]).unwrap();
        let relu = device.launch(Lane::Compute, &Call::new(RowStep::Relu, [mat(x)], [mat(y)]), &[there]).unwrap();
        let sum = device.launch(Lane::Compute, &Call::new(RowStep::Add, [mat(x), mat(y)], [mat(z)]), &[]).unwrap();
        let back = HostSlot::staging(BYTES as usize).unwrap();
        let out = device.copy_out(Lane::CopyOut, z, &back, &[relu, sum]).unwrap();
        let small = HostSlot::staging(BYTES as usize).unwrap();
        let report = device.copy_out(Lane::Control, y, &small, &[relu]).unwrap();
        device.wait(out).and_then(|()| device.wait(report)).unwrap();
        let x = round as f32 - 2.0;
        assert!(small.to_vec::<f32>().iter().all(|&cell| cell == x.max(0.0)));
        assert!(back.to_vec::<f32>().iter().all(|&cell| cell == x + x.max(0.0)));
    }
    assert_eq!(device.copied_bytes(), [5 * BYTES, 5 * BYTES], "the control lane is not counted");
    device.wait(Event::DONE).unwrap();
}

#[test]
fn a_kernel_runs_beside_a_copy() {
    // The copy is so slow that no load of this machine makes a kernel as slow.
    let rate = 2e4;
    let speed = SimSpeed { copy_bytes_per_s: Some(rate), ..SimSpeed::default() };
    let device = device(4 * BYTES, speed);
    for slot in [Slot(0), Slot(1), Slot(2)] {
        device.alloc(slot, BYTES).unwrap();
    }
    let values: Shared<f32> = vec![1.0f32; ROWS * COLS].into();
    let host = HostSlot::constant(&values);
    let first = device.copy_in(Lane::CopyIn, Slot(0), &host, &[]).unwrap();
    device.wait(first).unwrap();
    let slow = device.copy_in(Lane::CopyIn, Slot(2), &host, &[]).unwrap();
    let start = std::time::Instant::now();
    let done = device.launch(Lane::Compute, &Call::new(RowStep::Relu, [mat(Slot(0))], [mat(Slot(1))]), &[]).unwrap();
    device.wait(done).unwrap();
    // Memory can be allocated and freed while a copy runs, too.
    device.alloc(Slot(3), BYTES).unwrap();
    device.free(Slot(3)).unwrap();
    let copy = Duration::from_secs_f64(BYTES as f64 / rate);
    assert!(start.elapsed() < copy, "neither waits for the copy, which takes {copy:?}");
    device.wait(slow).unwrap();
}

#[test]
fn the_capacity_is_the_devices_own() {
    let device = device(BYTES, SimSpeed::default());
    device.alloc(Slot(0), BYTES - 4).unwrap();
    let refused = device.alloc(Slot(1), 5).unwrap_err();
    assert!(
        matches!(refused, Error::OutOfMemory { need_bytes, have_bytes } if need_bytes == BYTES + 1 && have_bytes == BYTES)
    );
    device.alloc(Slot(1), 4).unwrap();
    assert_eq!((device.used_bytes(), device.peak_bytes()), (BYTES, BYTES));
}

#[test]
fn constants_are_copied_and_nothing_is_shared() {
    let device = device(BYTES, SimSpeed::default());
    device.alloc(Slot(0), 8).unwrap();
    let values: Shared<f32> = vec![1.0f32, 2.0].into();
    device.wait(device.copy_in(Lane::CopyIn, Slot(0), &HostSlot::constant(&values), &[]).unwrap()).unwrap();
    assert_eq!(device.copied_bytes(), [8, 0]);
    assert!(device.share(Slot(0)).unwrap().is_none());
}

#[test]
fn a_failure_surfaces_once_in_full_and_nothing_hangs() {
    let device = device(BYTES, SimSpeed::default());
    device.alloc(Slot(0), 8).unwrap();
    let bad = device.launch(Lane::Compute, &Call::new(RowStep::Relu, [mat(Slot(9))], [mat(Slot(0))]), &[]).unwrap();
    let host = HostSlot::staging(8).unwrap();
    let error = match device.copy_out(Lane::CopyOut, Slot(0), &host, &[bad]) {
        Ok(copied) => device.wait(copied).unwrap_err(),
        Err(error) => error, // it failed so fast that the next call already reports it
    };
    assert!(matches!(error, Error::EmptySlot { slot: Slot(9) }), "{error}");
    assert!(matches!(device.wait(bad), Err(Error::Failed)));
    let call = Call::new(RowStep::Relu, [mat(Slot(0))], [mat(Slot(0))]);
    assert!(matches!(device.launch(Lane::Compute, &call, &[bad]), Err(Error::Failed)));
}
