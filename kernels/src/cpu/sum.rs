//! Sums of a row in `f64` that vectorise. Their order depends on the length alone, not on the vector width of the host.

/// Number of partial sums.
const LANES: usize = 16;

/// Returns `M` sums over the columns of `K` rows of the same length. `f` computes the terms from the cells of a column.
///
/// # Order
/// Cell `i` is added to lane `i % LANES`. The cells behind the last whole group of lanes are added to the last lanes if
/// there is a whole group, else to the first. Then the lanes are folded in halves.
#[inline(always)]
pub(super) fn sums<const K: usize, const M: usize>(rows: [&[f32]; K], f: impl Fn([f32; K]) -> [f64; M]) -> [f64; M] {
    let len = rows[0].len();
    let mut sums = [[0.0f64; LANES]; M];
    let whole = len / LANES;
    for i in 0..whole {
        add(&mut sums, rows.map(|row| &row.as_chunks::<LANES>().0[i]), 0..LANES, &f);
    }
    let rest = len % LANES;
    if rest > 0 && whole > 0 {
        // The last cells of the rows, of which the first were added before: a copy of the rest alone would be slow.
        let last = rows.map(|row| row.last_chunk::<LANES>().expect("the rows have one length"));
        add(&mut sums, last, LANES - rest..LANES, &f);
    } else if rest > 0 {
        let mut cells = [[0.0f32; LANES]; K];
        for (cells, row) in cells.iter_mut().zip(rows) {
            for (cell, &x) in cells.iter_mut().zip(row) {
                *cell = x;
            }
        }
        add(&mut sums, std::array::from_fn(|k| &cells[k]), 0..rest, &f);
    }
    sums.map(fold)
}

/// Adds the terms of some lanes.
#[inline(always)]
fn add<const K: usize, const M: usize>(
    sums: &mut [[f64; LANES]; M],
    cells: [&[f32; LANES]; K],
    lanes: std::ops::Range<usize>,
    f: &impl Fn([f32; K]) -> [f64; M],
) {
    for lane in 0..LANES {
        let terms = f(std::array::from_fn(|k| cells[k][lane]));
        for m in 0..M {
            sums[m][lane] += if lanes.contains(&lane) { terms[m] } else { 0.0 };
        }
    }
}

/// Adds the lanes in halves.
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
