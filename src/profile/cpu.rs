//! Measures the processor: times single kernels, and derives its profile.

use std::hint::black_box;
use std::time::Instant;

use lapidary_cost_model::Profile;
use lapidary_kernels::cpu::{self, RowWork};
use lapidary_kernels::{AlignedBytes, BlockView, MatMut, MatView, NoHostMemory, RowStep};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{WIDTH, far_apart, random_rate};
use crate::error::{Error, Result};
use crate::host;

/// Bytes of the matrices that are read: larger than all but the largest caches.
const BYTES: usize = 192 << 20;

/// Measures the threads of the current rayon pool with Lapidary's own kernels.
///
/// # Cost
/// About a second, and 400 MiB during that time.
/// # Errors
/// [`Error::Device`] if the host does not have enough memory.
pub fn measure() -> Result<Profile> {
    let failed = |NoHostMemory { need_bytes }| Error::Device {
        device: "cpu".into(),
        op: "measuring its profile".into(),
        source: Box::new(lapidary_kernels::Error::HostMemory { need_bytes }),
    };
    let mut bytes = AlignedBytes::zeroed(BYTES).map_err(failed)?;
    let mut out = AlignedBytes::zeroed(BYTES).map_err(failed)?;
    bytes.as_mut_slice::<f32>().fill(1.0);
    out.as_mut_slice::<f32>().fill(1.0);
    let memory_bytes_per_s = memory_rate(bytes.as_slice(), out.as_mut_slice());
    let mut rate = |of: u64, degrees: Degrees| {
        let rows = (of as usize / 4 / WIDTH).clamp(1, BYTES / 4 / WIDTH);
        gather_rate(bytes.as_slice(), out.as_mut_slice(), rows, degrees, memory_bytes_per_s)
    };
    let mut long = |of| rate(of, Degrees::Equal(32));
    let gather_bytes_per_s = long(BYTES as u64);
    let cache_bytes = host::cache_bytes();
    // The reported cache may not be all ours: other rows and the sums need space as well, and so do other processors.
    let surely_ours = cache_bytes / 8;
    let cached_gather_bytes_per_s = long(surely_ours);
    let cache_bytes = served_bytes(cache_bytes, gather_bytes_per_s, cached_gather_bytes_per_s, long);
    let short_gather_bytes_per_s = rate(surely_ours, Degrees::UpTo(8));
    let flops_per_s = product_rate(bytes.as_slice(), out.as_mut_slice());
    let profile = Profile {
        name: "cpu".into(),
        memory_bytes_per_s,
        gather_bytes_per_s,
        cached_gather_bytes_per_s,
        short_gather_bytes_per_s,
        cache_bytes,
        // A copy within host memory reads and writes every byte.
        to_device_bytes_per_s: memory_bytes_per_s / 2.0,
        to_host_bytes_per_s: memory_bytes_per_s / 2.0,
        between_devices_bytes_per_s: None,
        flops_per_s,
        launch_s: launch_seconds(),
        capacity_bytes: host::memory_bytes(),
        access_width: std::num::NonZeroU32::new(16).expect("a cache line has 16 floats"),
        gpu: None,
    };
    tracing::debug!(?profile, "measured");
    Ok(profile)
}

/// Returns the least of several times: disturbances only slow a run.
fn least_seconds(times: usize, mut run: impl FnMut()) -> f64 {
    let timed = (0..times).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    timed.fold(f64::INFINITY, f64::min).max(1e-9)
}

fn matrix(data: &[f32], rows: usize, cols: usize) -> MatView<'_> {
    MatView::new(&data[..rows * cols], rows, cols).expect("the slice has that length")
}

fn matrix_mut(data: &mut [f32], rows: usize, cols: usize) -> MatMut<'_> {
    MatMut::new(&mut data[..rows * cols], rows, cols).expect("the slice has that length")
}

fn relu(x: MatView<'_>, out: MatMut<'_>) {
    cpu::rows_then(x, &[RowWork::new(RowStep::Relu, &[])], out).expect("the shapes agree");
}

fn memory_rate(x: &[f32], out: &mut [f32]) -> f64 {
    let rows = x.len() / WIDTH;
    let run = || relu(matrix(x, rows, WIDTH), matrix_mut(out, rows, WIDTH));
    cpu::elementwise_bytes(1, rows as u64, WIDTH as u64) as f64 / least_seconds(5, run)
}

/// Returns the largest of the sizes `most`, `most / 2` and `most / 4` at which the cache gives at least three quarters
/// of its saving; `most / 8` if none does.
fn served_bytes(most: u64, memory_rate: f64, cached_rate: f64, mut rate: impl FnMut(u64) -> f64) -> u64 {
    let (memory_s, cached_s) = (1.0 / memory_rate, 1.0 / cached_rate);
    let halves = [most, most / 2, most / 4];
    let served = |&bytes: &u64| memory_s - 1.0 / rate(bytes) >= 0.75 * (memory_s - cached_s);
    halves.into_iter().find(served).unwrap_or(most / 8)
}

/// The number of neighbours per row.
#[derive(Clone, Copy)]
enum Degrees {
    /// The same number for all rows.
    Equal(u64),
    /// Random, from 0 to this number.
    UpTo(u64),
}

/// Returns the rate at which a gather reads random rows of a matrix with `sources` rows. The time of its sequential
/// reads and writes is subtracted.
fn gather_rate(x: &[f32], out: &mut [f32], sources: usize, degrees: Degrees, memory_bytes_per_s: f64) -> f64 {
    const EDGES: u64 = 1 << 19;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut degree = || match degrees {
        Degrees::Equal(degree) => degree,
        Degrees::UpTo(most) => rng.random_range(0..=most),
    };
    let (mut indptr, mut edges) = (vec![0], 0);
    while edges < EDGES {
        edges += degree();
        indptr.push(edges);
    }
    let rows = indptr.len() - 1;
    let indices: Vec<u32> = (0..edges).map(|i| far_apart(i, sources)).collect();
    let block = BlockView { indptr: &indptr, indices: &indices, own_sources: sources, halo_sources: 0 };
    let run = || {
        cpu::gather(block, None, matrix(x, sources, WIDTH), None, matrix_mut(out, rows, WIDTH)).expect("it is a block");
    };
    random_rate(rows, indices.len(), least_seconds(5, run), memory_bytes_per_s)
}

fn product_rate(x: &[f32], out: &mut [f32]) -> f64 {
    const SHAPE: [usize; 3] = [1 << 14, 256, 256];
    let [n, k, m] = SHAPE;
    let run = || cpu::linear(matrix(x, n, k), matrix(x, m, k), matrix_mut(out, n, m)).expect("the shapes agree");
    cpu::linear_flops(n as u64, k as u64, m as u64) as f64 / least_seconds(5, run)
}

fn launch_seconds() -> f64 {
    let (x, mut out) = ([1.0f32; 16], [0.0f32; 16]);
    least_seconds(200, || relu(matrix(&x, 1, 16), matrix_mut(black_box(&mut out), 1, 16))).max(1e-7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured() {
        let profile = measure().expect("there is memory for it");
        profile.check().expect("its rates are good");
        assert!((1e8..1e13).contains(&profile.gather_bytes_per_s), "{profile:?}");
    }

    #[test]
    fn a_cache_is_as_large_as_what_it_serves() {
        // For a matrix larger than the cache, the part that fits is served from the cache.
        let rate = |cache: u64| {
            move |bytes: u64| {
                let served = (cache as f64 / bytes as f64).min(1.0);
                1.0 / (served / 4.0 + (1.0 - served))
            }
        };
        for (cache, want) in [(100, 64), (64, 64), (50, 64), (40, 32), (20, 16), (3, 8)] {
            assert_eq!(served_bytes(64, 1.0, 4.0, rate(cache)), want, "{cache}");
        }
    }
}
