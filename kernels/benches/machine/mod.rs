//! Peak rates of this machine: the floors that kernels are compared with.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use lapidary_kernels::AlignedBytes;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::report::WorkCount;

/// Rates of all threads together.
pub struct Machine {
    threads: usize,
    read_bytes_per_s: f64,
    copy_bytes_per_s: f64,
    flops_per_s: f64,
}

impl Machine {
    /// Measures medians over arrays larger than the caches; over small arrays if not `timed`.
    pub fn measure(timed: bool) -> Self {
        let (len, rounds) = if timed { (64 << 20, 10_000_000) } else { (1 << 12, 1000) };
        let memory = || AlignedBytes::zeroed(4 * len).expect("the host has memory");
        let (mut from, mut to) = (memory(), memory());
        from.as_mut_slice::<f32>().par_iter_mut().for_each(|x| *x = 1.0);
        let (from, to) = (from.as_slice::<f32>(), to.as_mut_slice::<f32>());
        const CHUNK: usize = 1 << 16;
        let read = || {
            let sums = from.par_chunks(CHUNK).map(sum);
            black_box(sums.reduce(|| 0.0, |a, b| a + b));
        };
        let copy =
            || to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| to.copy_from_slice(from));
        let threads = rayon::current_num_threads();
        let multiply = || {
            let flops: u64 = rayon::broadcast(|_| Arch::new().dispatch(MultiplyAdds { rounds })).iter().sum();
            black_box(flops);
        };
        let flops = (threads as u64 * Arch::new().dispatch(MultiplyAdds { rounds: 1 }) * rounds) as f64;
        Self {
            threads,
            read_bytes_per_s: 4.0 * len as f64 / median_s(read),
            copy_bytes_per_s: 8.0 * len as f64 / median_s(copy),
            flops_per_s: flops / median_s(multiply),
        }
    }

    /// Returns the least seconds for this work: to move its bytes or to do its operations, whichever takes longer.
    pub fn floor_s(&self, work: WorkCount) -> f64 {
        let memory = self.read_bytes_per_s.max(self.copy_bytes_per_s);
        (work.bytes as f64 / memory).max(work.flops as f64 / self.flops_per_s)
    }

    /// Returns the rates as JSON, for `bench/speed.py`.
    pub fn json(&self) -> String {
        let [read, copy, flops] = self.in_billions();
        let threads = self.threads;
        format!(r#"{{"threads":{threads},"read_gb_s":{read:.1},"copy_gb_s":{copy:.1},"fma_gflop_s":{flops:.1}}}"#)
    }

    fn in_billions(&self) -> [f64; 3] {
        [self.read_bytes_per_s, self.copy_bytes_per_s, self.flops_per_s].map(|rate| rate / 1e9)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [read, copy, flops] = self.in_billions();
        let threads = self.threads;
        write!(
            f,
            "{threads} threads: reads {read:.1} GB/s, copies {copy:.1} GB/s (both ways), {flops:.0} GFLOP/s of f32"
        )
    }
}

fn median_s(mut run: impl FnMut()) -> f64 {
    let once = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    let mut seconds: Vec<f64> = std::iter::repeat_with(once).take(7).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn sum(chunk: &[f32]) -> f32 {
    let mut lanes = [0.0; 64];
    for chunk in chunk.as_chunks::<64>().0 {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter().sum()
}

/// Fused multiply-adds that depend on registers only. Returns the number of operations.
struct MultiplyAdds {
    rounds: u64,
}

impl WithSimd for MultiplyAdds {
    type Output = u64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> u64 {
        const CHAINS: usize = 12;
        let factor = simd.splat_f32s(black_box(0.5));
        let mut sums = [factor; CHAINS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, factor, factor);
            }
        }
        black_box(sums.map(|sum| simd.reduce_sum_f32s(sum)));
        self.rounds * (2 * CHAINS * S::F32_LANES) as u64
    }
}
