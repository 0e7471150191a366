//! The inner loops of `bf16_product.rs`, for x86-64.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _mm512_dpbf16_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_set1_epi32, _mm512_setzero_ps,
};
use std::array::from_fn;
use std::mem::transmute;

use half::bf16;

use super::bf16_pairs::{LANES, Work, pair};
use super::prefetch::prefetch;
use super::product::Panel;
use crate::matmul::Matmul;

/// Pairs of terms that are processed together: one cache line of a row.
const STEP: usize = LANES;

/// Pairs of as many columns as a vector has lanes.
type Pairs = [u32; LANES];

pub(super) fn run(work: Work<'_>) {
    assert!(Matmul::Bf16.supported(), "this machine has no AVX512-BF16");
    // SAFETY: the machine has all features of the function, as was just checked.
    #[allow(unsafe_code)]
    unsafe {
        work.run();
    }
}

impl Work<'_> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    fn run(self) {
        match self {
            Work::Rows { x, small, panels, sizes, out } => {
                for panel in panels {
                    match panel.stride / LANES {
                        0 => {}
                        1 => rows::<12, 1>(x, small, panel, sizes, out),
                        2 => rows::<9, 2>(x, small, panel, sizes, out),
                        3 => rows::<7, 3>(x, small, panel, sizes, out),
                        _ => rows::<6, 4>(x, small, panel, sizes, out),
                    }
                }
            }
            Work::Block { left, stride, x, panel, sizes, out } => match panel.stride / LANES {
                0 => {}
                1 => block::<12, 1>(left, stride, x, panel, sizes, out),
                2 => block::<9, 2>(left, stride, x, panel, sizes, out),
                3 => block::<7, 3>(left, stride, x, panel, sizes, out),
                _ => block::<6, 4>(left, stride, x, panel, sizes, out),
            },
        }
    }
}

/// Computes all rows of one panel, which has `V` vectors, `M` rows at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn rows<const M: usize, const V: usize>(
    x: &[bf16],
    small: &[u32],
    panel: &Panel,
    [k, width]: [usize; 2],
    out: &mut [f32],
) {
    let count = out.len() / width;
    let small = &small[panel.start..][..k.div_ceil(2) * panel.stride];
    let columns = |row: usize| row * width + panel.columns.start..row * width + panel.columns.end;
    let whole = count / M * M;
    for row in (0..whole).step_by(M) {
        let sums = dot::<M, V>(from_fn(|i| load(&out[columns(row + i)])), &x[row * k..], k, small);
        sums.into_iter().enumerate().for_each(|(i, sums)| store(sums, &mut out[columns(row + i)]));
    }
    for row in whole..count {
        let [sums] = dot::<1, V>([load(&out[columns(row)])], &x[row * k..], k, small);
        store(sums, &mut out[columns(row)]);
    }
}

/// Multiplies `M` rows by `V` vectors of columns of the small operand, and adds to `sums`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn dot<const M: usize, const V: usize>(
    mut sums: [[__m512; V]; M],
    rows: &[bf16],
    k: usize,
    small: &[u32],
) -> [[__m512; V]; M] {
    let row = |i: usize| rows[i * k..][..k].as_chunks::<2>();
    let chunks: [_; M] = from_fn(|i| row(i).0.as_chunks::<STEP>());
    let small = small.as_chunks::<LANES>().0;
    let (steps, rest) = small.split_at(chunks[0].0.len() * STEP * V);
    for (step, small) in steps.chunks_exact(STEP * V).enumerate() {
        let x: [&[[bf16; 2]; STEP]; M] = from_fn(|i| &chunks[i].0[step]);
        (M..2 * M).for_each(|i| prefetch(rows, i * k + 2 * step * STEP));
        for (j, small) in small.as_chunks::<V>().0.iter().enumerate() {
            sums.iter_mut().zip(x).for_each(|(sums, x)| add_pair(sums, x[j], small));
        }
    }
    let pairs = chunks[0].1.len();
    let (rest, last) = rest.split_at(pairs * V);
    for (j, small) in rest.as_chunks::<V>().0.iter().enumerate() {
        sums.iter_mut().zip(chunks).for_each(|(sums, chunk)| add_pair(sums, chunk.1[j], small));
    }
    // The last term of an odd number of terms.
    if let Some(small) = last.first_chunk::<V>() {
        sums.iter_mut().enumerate().for_each(|(i, sums)| add_pair(sums, [rows[i * k + k - 1], bf16::ZERO], small));
    }
    sums
}

/// Adds one block to the columns of one panel, `M` rows of the result at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn block<const M: usize, const V: usize>(
    left: &[u32],
    stride: usize,
    x: &[u32],
    panel: &Panel,
    [m, width]: [usize; 2],
    out: &mut [f32],
) {
    let columns = |row: usize| row * width + panel.columns.start..row * width + panel.columns.end;
    let whole = m / M * M;
    for row in (0..whole).step_by(M) {
        let sums = transposed::<M, V>(from_fn(|i| load(&out[columns(row + i)])), left, stride, row, x);
        sums.into_iter().enumerate().for_each(|(i, sums)| store(sums, &mut out[columns(row + i)]));
    }
    for row in whole..m {
        let [sums] = transposed::<1, V>([load(&out[columns(row)])], left, stride, row, x);
        store(sums, &mut out[columns(row)]);
    }
}

/// Adds to `M` rows of the result, from `row` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn transposed<const M: usize, const V: usize>(
    mut sums: [[__m512; V]; M],
    left: &[u32],
    stride: usize,
    row: usize,
    x: &[u32],
) -> [[__m512; V]; M] {
    for (left, x) in left.chunks_exact(stride).zip(x.as_chunks::<LANES>().0.as_chunks::<V>().0) {
        let Some(left) = left[row..].first_chunk::<M>() else { return sums };
        sums.iter_mut().zip(left).for_each(|(sums, &left)| add_pair(sums, bytemuck::cast(left), x));
    }
    sums
}

/// Adds the products of a pair with `V` vectors of pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn add_pair<const V: usize>(sums: &mut [__m512; V], [first, second]: [bf16; 2], vectors: &[Pairs; V]) {
    let factor = _mm512_set1_epi32(pair(first, second).cast_signed());
    for (sum, &vector) in sums.iter_mut().zip(vectors) {
        // SAFETY: all have 64 bytes without padding, and every pattern of bits is a value of each.
        #[allow(unsafe_code)]
        let [factor, vector] =
            unsafe { [transmute::<__m512i, __m512bh>(factor), transmute::<Pairs, __m512bh>(vector)] };
        *sum = _mm512_dpbf16_ps(*sum, factor, vector);
    }
}

/// Returns which of 16 lanes are among the first `len`.
#[inline(always)]
fn mask(len: usize) -> __mmask16 {
    if len >= LANES { !0 } else { (1 << len) - 1 }
}

/// Reads as many lanes as `from` has elements; the others are 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn load<const V: usize>(from: &[f32]) -> [__m512; V] {
    from_fn(|v| match from.get(v * LANES..) {
        // SAFETY: only lanes that the slice has are read.
        #[allow(unsafe_code)]
        Some(from) => unsafe { _mm512_maskz_loadu_ps(mask(from.len()), from.as_ptr()) },
        None => _mm512_setzero_ps(),
    })
}

/// Writes as many lanes as `to` has elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn store<const V: usize>(sums: [__m512; V], to: &mut [f32]) {
    for (to, sum) in to.chunks_mut(LANES).zip(sums) {
        // SAFETY: only lanes that the slice has are written.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_mask_storeu_ps(to.as_mut_ptr(), mask(to.len()), sum);
        }
    }
}
