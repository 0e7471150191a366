//! Dropout: the identity at rate 0, the same cells everywhere, and draws that look random.

use crate::common::*;
use lapidary_kernels::random::{draw, row_key, threshold};
use lapidary_kernels::{DropoutKey, cpu};
use lapidary_kernels::{MatMut, MatView};

const KEY: DropoutKey = DropoutKey { seed: 42, op: 3, first_row: 0, first_column: 0, rate: 0.5 };

fn dropped(x: &Matrix, key: DropoutKey, epoch: u64) -> Vec<f32> {
    on_any_threads("dropout", |rig| {
        let out = rig.out(x.rows, x.cols);
        rig.run(out, &drop_cells(key, rig.mat(x), rig.put(&[epoch, 1]), out))
    })
}

pub(crate) fn a_rate_of_0_is_the_identity() {
    let x = Numbers(1).matrix(700, 41);
    assert!(same_bits(&dropped(&x, DropoutKey { rate: 0.0, ..KEY }, 5), &x.data));
}

pub(crate) fn kept_cells_are_scaled_in_f32() {
    let x = Numbers(2).matrix(200, 17);
    for rate in [0.1f32, 0.3, 0.5, 0.9] {
        let got = dropped(&x, DropoutKey { rate, ..KEY }, 5);
        let scale = 1.0f32 / (1.0f32 - rate);
        for (i, (&got, &x)) in pairs(&got, &x.data).enumerate() {
            let key = row_key(KEY.seed, 5, KEY.op, (i / 17) as u64);
            let want = if draw(key, (i % 17) as u32) >= threshold(rate) { x * scale } else { 0.0 };
            assert_eq!(got.to_bits(), want.to_bits());
        }
    }
}

pub(crate) fn a_part_drops_the_cells_that_the_whole_does() {
    let x = Numbers(3).matrix(1000, 19);
    let whole = dropped(&x, KEY, 8);
    for (low, high) in [(0, 1000), (0, 1), (1, 400), (400, 1000)] {
        let part = Matrix { rows: high - low, cols: 19, data: x.data[low * 19..high * 19].to_vec() };
        let got = dropped(&part, DropoutKey { first_row: low as u64, ..KEY }, 8);
        assert!(same_bits(&got, &whole[low * 19..high * 19]));
    }
}

pub(crate) fn a_strip_of_columns_drops_the_cells_that_the_whole_does() {
    let x = Numbers(3).matrix(300, 50);
    let whole = dropped(&x, KEY, 8);
    for (low, high) in [(0, 50), (0, 16), (16, 50), (49, 50)] {
        let columns =
            |data: &[f32]| -> Vec<f32> { data.chunks_exact(50).flat_map(|row| row[low..high].to_vec()).collect() };
        let strip = Matrix { rows: 300, cols: high - low, data: columns(&x.data) };
        let got = dropped(&strip, DropoutKey { first_column: low as u32, ..KEY }, 8);
        assert!(same_bits(&got, &columns(&whole)));
    }
}

pub(crate) fn a_sparse_matrix_drops_the_cells_that_the_dense_one_does() {
    let graph = Graph::random(&mut Numbers(4), 2000, 60, 0, 30_000);
    let values = Numbers(5).units(graph.edges());
    let ones = Matrix { rows: 2000, cols: 60, data: vec![1.0; 2000 * 60] };
    let key = DropoutKey { first_row: 77, ..KEY };
    let dense = dropped(&ones, key, 2);
    let sparse = on_any_threads("sparse_dropout", |rig| {
        let out = rig.out(graph.edges(), 1);
        let (block, values, clock) = (rig.block(&graph), rig.put(&values), rig.put(&[2u64, 1]));
        rig.run(out, &drop_edges(key, (block, false), values, clock, out.slot))
    });
    for v in 0..graph.rows() {
        for edge in graph.view().edges(v) {
            let want = values[edge] * dense[v * 60 + graph.indices[edge] as usize];
            assert_eq!(sparse[edge], want, "row {v}, edge {edge}");
        }
    }
    let (back, permutation) = graph.transpose();
    let moved: Vec<f32> = permutation.iter().map(|&edge| values[edge as usize]).collect();
    let got = on_any_threads("sparse_dropout of the transposed block", |rig| {
        let out = rig.out(back.edges(), 1);
        let (block, values, clock) = (rig.block(&back), rig.put(&moved), rig.put(&[2u64, 1]));
        rig.run(out, &drop_edges(key, (block, true), values, clock, out.slot))
    });
    let want: Vec<f32> = permutation.iter().map(|&edge| sparse[edge as usize]).collect();
    assert!(same_bits(&got, &want), "the transposed block has other values");
}

/// Returns which cells of a `rows x cols` matrix are kept, as 0 or 1.
fn kept(rows: usize, cols: usize, key: DropoutKey, epoch: u64) -> Vec<f64> {
    let ones = vec![1.0; rows * cols];
    let mut out = vec![f32::NAN; rows * cols];
    let (x, out_view) = (MatView::new(&ones, rows, cols).unwrap(), MatMut::new(&mut out, rows, cols).unwrap());
    cpu::dropout(x, key, epoch, out_view).unwrap();
    out.iter().map(|&x| if x == 0.0 { 0.0 } else { 1.0 }).collect()
}

/// Returns how many standard deviations a binomial count is from its mean.
fn deviations(count: f64, trials: f64, p: f64) -> f64 {
    (count - trials * p).abs() / (trials * p * (1.0 - p)).sqrt()
}

pub(crate) fn the_share_of_kept_cells_is_binomial() {
    let (rows, cols) = (4000, 64);
    for rate in [0.1f32, 0.5, 0.8] {
        let p = 1.0 - f64::from(rate);
        let mut all = Vec::new();
        for (op, epoch) in [(0, 0), (0, 1), (1, 0), (1, 1), (7, 199)] {
            let cells = kept(rows, cols, DropoutKey { rate, op, ..KEY }, epoch);
            assert!(deviations(cells.iter().sum(), cells.len() as f64, p) < 5.0);
            for row in cells.chunks(cols) {
                assert!(deviations(row.iter().sum(), cols as f64, p) < 6.5);
            }
            for column in 0..cols {
                let count = cells.iter().skip(column).step_by(cols).sum();
                assert!(deviations(count, rows as f64, p) < 5.5, "column {column}");
            }
            all.push(cells);
        }
        let trials = (rows * cols * all.len()) as f64;
        assert!(deviations(all.iter().flatten().sum(), trials, p) < 5.0);
    }
}

pub(crate) fn neighbouring_rows_columns_epochs_ops_and_seeds_are_independent() {
    let (rows, cols) = (4000, 64);
    let at = |key: DropoutKey, epoch: u64| kept(rows, cols, key, epoch);
    let base = at(KEY, 10);
    let shifted = |by: usize| base[by..].to_vec();
    let pairs = [
        ("row", shifted(cols)),
        ("second row", shifted(2 * cols)),
        ("column", shifted(1)),
        ("second column", shifted(2)),
        ("epoch", at(KEY, 11)),
        ("op", at(DropoutKey { op: 4, ..KEY }, 10)),
        ("seed", at(DropoutKey { seed: 43, ..KEY }, 10)),
        ("op for epoch", at(DropoutKey { op: 10, ..KEY }, 3)),
    ];
    for (what, other) in pairs {
        assert!(other.len() + 2 * cols >= base.len(), "{what}: too few to tell");
        let agree: f64 = base.iter().zip(&other).map(|(a, b)| f64::from(u8::from(a == b))).sum();
        assert!(deviations(agree, other.len() as f64, 0.5) < 5.0, "{what}");
    }
}

pub(crate) fn rates_that_make_no_sense_are_refused() {
    let rig = Rig::new(1);
    let x = rig.mat(&Numbers(1).matrix(2, 2));
    let (out, clock) = (rig.out(2, 2), rig.put(&[0u64, 1]));
    for rate in [1.0, -0.1, 2.0, f32::NAN, f32::INFINITY] {
        let objection = rig.launch(&drop_cells(DropoutKey { rate, ..KEY }, x, clock, out)).unwrap_err();
        assert!(objection.to_string().contains("must be at least 0 and below 1"), "{objection}");
    }
}
