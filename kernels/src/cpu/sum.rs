//! Sums of a row in `f64` that vectorise. Their order depends on the length alone, not on the vector width of the host.

/// Number of partial sums.
const LANES: usize = 16;

/// Returns `M` sums over the columns of `K` rows of the same length. `f` computes the terms from the cells of a column.
///
/// # Order
/// Cell `i` is added to lane `i % LANES`; then the lanes are folded in halves.
#[inline(always)]
pub(super) fn sums<const K: usize, const M: usize>(rows: [&[f32]; K], f: impl Fn([f32; K]) -> [f64; M]) -> [f64; M] {
    let rows = rows.map(|row| row.as_chunks::<LANES>());
    let mut sums = [[0.0f64; LANES]; M];
    for i in 0..rows[0].0.len() {
        let chunks: [&[f32; LANES]; K] = std::array::from_fn(|k| &rows[k].0[i]);
        for lane in 0..LANES {
            let terms = f(std::array::from_fn(|k| chunks[k][lane]));
            for m in 0..M {
                sums[m][lane] += terms[m];
            }
        }
    }
    let len = rows[0].1.len();
    if len > 0 {
        let mut tails = [[0.0f32; LANES]; K];
        for (tail, row) in tails.iter_mut().zip(rows) {
            tail[..len].copy_from_slice(row.1);
        }
        for lane in 0..LANES {
            let terms = f(std::array::from_fn(|k| tails[k][lane]));
            for m in 0..M {
                sums[m][lane] += if lane < len { terms[m] } else { 0.0 };
            }
        }
    }
    sums.map(fold)
}

#[inline(always)]
fn fold(mut lanes: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::sums;

    #[test]
    fn every_cell_is_added_once() {
        for len in [0, 1, 15, 16, 17, 31, 32, 602] {
            let a: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let ones = vec![1.0f32; len];
            // The padding cells of the tail would be 1 too, if they were added.
            let got = sums([&a, &ones], |[a, one]| [f64::from(a), f64::from(a * one), 1.0]);
            let want = (len * len.saturating_sub(1) / 2) as f64;
            assert_eq!(got, [want, want, len as f64], "{len} cells");
        }
    }
}
