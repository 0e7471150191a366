//! Matrices stored as bf16: every call computes the same as on f32 matrices of the same numbers, rounded once.

use crate::common::*;
use lapidary_kernels::call::NO_LABEL;
use lapidary_kernels::op::{Dim, Linear, Loss, Move, Norm, RowStep};
use lapidary_kernels::reference::Dense;
use lapidary_kernels::{
    Arg, Call, DropoutKey, Error, Mat, Slot, StorageType, linear_weight_grad_workspace_bytes, reference, storage_type,
};

/// Widths that cover every way of loading bf16, and more columns than a warp holds at a time.
const WIDTHS: [usize; 9] = [0, 1, 2, 3, 8, 12, 41, 130, 264];

fn rounded(values: &[f32]) -> Vec<half::bf16> {
    let mut stored = vec![half::bf16::ZERO; values.len()];
    storage_type::round(values, &mut stored);
    stored
}

/// Returns a matrix of numbers that bf16 represents exactly.
fn matrix(numbers: &mut Numbers, rows: usize, cols: usize) -> Matrix {
    let data = rounded(&numbers.units(rows * cols)).into_iter().map(f32::from).collect();
    Matrix { rows, cols, data }
}

fn put(rig: &Rig, matrix: &Matrix, float: StorageType) -> Mat {
    match float {
        StorageType::F32 => rig.mat(matrix),
        StorageType::Bf16 => Mat {
            slot: rig.put(&rounded(&matrix.data)),
            dtype: float.into(),
            ..Mat::f32(Slot(0), matrix.rows, matrix.cols)
        },
    }
}

fn out(rig: &Rig, rows: usize, cols: usize, float: StorageType) -> Mat {
    put(rig, &Matrix { rows, cols, data: vec![f32::NAN; rows * cols] }, float)
}

/// Runs a call and returns its output, widened to f32.
fn run(rig: &Rig, out: Mat, call: &Call) -> Vec<f32> {
    match out.float() {
        StorageType::F32 => rig.run(out, call),
        StorageType::Bf16 => {
            rig.launch(call).unwrap();
            rig.get::<half::bf16>(out.slot, out.rows * out.cols).into_iter().map(f32::from).collect()
        }
    }
}

/// Checks that the call made by `make` gives the same result in both storage types, after rounding.
fn rounds_once(what: &str, [rows, cols]: [usize; 2], make: &dyn Fn(&Rig, StorageType, Mat) -> Call) {
    let over = |float| {
        on_any_threads(what, |rig| {
            let out = out(rig, rows, cols, float);
            run(rig, out, &make(rig, float, out))
        })
    };
    let want: Vec<f32> = rounded(&over(StorageType::F32)).into_iter().map(f32::from).collect();
    assert!(same_bits(&over(StorageType::Bf16), &want), "{what}: not the f32 result, rounded");
}

/// Does the same for a sum, which is f32 in both cases.
fn sums_alike(what: &str, len: usize, make: &dyn Fn(&Rig, StorageType, Mat) -> Call) {
    let over = |float| {
        on_any_threads(what, |rig| {
            let out = rig.out(1, len);
            rig.run(out, &make(rig, float, out))
        })
    };
    assert!(same_bits(&over(StorageType::Bf16), &over(StorageType::F32)), "{what}: not the sum in f32");
}

/// Checks that a result is within the rounding of bf16, plus the error of f32 sums of so many terms.
#[track_caller]
fn assert_rounded(what: &str, got: &[f32], want: &Dense, magnitude: &Dense, terms: usize) {
    assert_eq!(want.data.len(), magnitude.data.len());
    for ((&got, &want), &magnitude) in pairs(got, &want.data).zip(&magnitude.data) {
        let sum = (terms as f64 + 2.0) * f64::from(f32::EPSILON) * magnitude;
        let allowed = (want.abs() + sum) / 256.0 * 1.002 + sum + 1e-36;
        let error = (f64::from(got) - want).abs();
        assert!(error <= allowed, "{what}: {got}, not {want}: off by {error:e}, allowed {allowed:e}");
    }
}

pub(crate) fn numbers_are_rounded_to_the_nearest_and_of_two_to_the_even_one() {
    let cases: [(f32, u16); 12] = [
        (0.0, 0x0000),
        (-0.0, 0x8000),
        (1.0, 0x3f80),
        (f32::from_bits(0x3f80_7fff), 0x3f80),
        (f32::from_bits(0x3f80_8000), 0x3f80),
        (f32::from_bits(0x3f80_8001), 0x3f81),
        (f32::from_bits(0x3f81_8000), 0x3f82),
        (f32::from_bits(0xbf81_8000), 0xbf82),
        (f32::MAX, 0x7f80),
        (f32::NEG_INFINITY, 0xff80),
        (f32::from_bits(0x0000_8001), 0x0001),
        (f32::from_bits(0x7f80_0001), 0x7fc0),
    ];
    let x = Matrix { rows: 1, cols: cases.len(), data: cases.iter().map(|case| case.0).collect() };
    let rig = Rig::new(1);
    let (wide, stored) = (rig.mat(&x), out(&rig, 1, cases.len(), StorageType::Bf16));
    rig.launch(&call!(Linear::Round, [wide], [stored])).unwrap();
    assert_eq!(rig.get::<u16>(stored.slot, cases.len()), cases.map(|case| case.1));
    drop(rig);
    // Rounding as part of every other kernel, too.
    for cols in [1, 2, 3, 4, 8, 12] {
        let mut numbers = Numbers(cols as u64);
        let a = matrix(&mut numbers, 5, cols);
        rounds_once("round", [5, cols], &|rig, float, out| {
            call!(RowStep::Add, [put(rig, &a, float), put(rig, &a, float)], [out])
        });
    }
}

pub(crate) fn gathers_in_bf16_are_those_in_f32_rounded_once() {
    for graph in hostile_graphs() {
        let longest = (0..graph.rows()).map(|v| graph.view().edges(v).len()).max().unwrap_or(0);
        for d in WIDTHS {
            let numbers = &mut Numbers(d as u64);
            let own = matrix(numbers, graph.own_sources, d);
            let halo = (graph.halo_sources > 0).then(|| matrix(numbers, graph.halo_sources, d));
            let weights = (d % 3 != 0).then(|| numbers.units(graph.edges()));
            let what = format!("gather, {}, d = {d}, weights: {}", graph.name, weights.is_some());
            let call = |rig: &Rig, float, out| {
                Call::gather(
                    rig.block(&graph),
                    weights.as_ref().map(|weights| rig.put(weights)),
                    put(rig, &own, float),
                    halo.as_ref().map(|halo| put(rig, halo, float)),
                    out,
                )
            };
            rounds_once(&what, [graph.rows(), d], &call);
            sums_alike(&what, graph.rows() * d, &|rig, float, out| {
                call(rig, float, Mat { rows: graph.rows(), cols: d, ..out })
            });
            let bias = numbers.units(d);
            let other = matrix(numbers, graph.rows(), d);
            rounds_once(&format!("{what}, with steps"), [graph.rows(), d], &|rig, float, out| {
                then(
                    call(rig, float, out),
                    vec![
                        step(RowStep::AddBias, rig.put(&bias)),
                        step(RowStep::Add, put(rig, &other, float).slot),
                        step(RowStep::ReluGrad, put(rig, &other, float).slot),
                    ],
                )
            });
            let rig = Rig::new(2);
            let out = out(&rig, graph.rows(), d, StorageType::Bf16);
            let got = run(&rig, out, &call(&rig, StorageType::Bf16, out));
            let (dense_halo, weights) = (halo.as_ref().map(Matrix::dense), weights.as_ref().map(|w| wide(w)));
            let want = reference::gather(graph.view(), weights.as_deref(), &own.dense(), dense_halo.as_ref());
            let magnitude = reference::gather(
                graph.view(),
                weights.map(|weights| absolute(&weights)).as_deref(),
                &own.dense().map(f64::abs),
                dense_halo.map(|halo| halo.map(f64::abs)).as_ref(),
            );
            assert_rounded(&what, &got, &want, &magnitude, longest + 1);
        }
    }
}

/// All ways to read the rows of a source: every kind of tile of columns, from one matrix and from several, beside a halo
/// and in windows.
pub(crate) fn gathers_of_any_width_read_bf16_as_they_read_f32() {
    let own_sources = 70;
    let mut whole = Graph::random(&mut Numbers(5), 90, own_sources, 0, 1500);
    let with_halo = Graph::random(&mut Numbers(6), 90, 50, 20, 1500);
    for v in 0..whole.rows() {
        let edges = whole.view().edges(v);
        whole.indices[edges].sort_unstable();
    }
    let few = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 41, 59, 61, 64, 66, 77, 80];
    let widths = if shapes_are_few() { few.to_vec() } else { (1..=80).collect() };
    for d in widths.into_iter().chain([128, 256, 602]) {
        let numbers = &mut Numbers(d as u64);
        let all = matrix(numbers, own_sources, d);
        let rows = |range: std::ops::Range<usize>| Matrix {
            rows: range.len(),
            cols: d,
            data: all.data[range.start * d..range.end * d].to_vec(),
        };
        let (weights, bias, sum) = (numbers.units(1500), numbers.units(d), numbers.matrix(90, d));
        for (weighted, steps) in [(false, false), (false, true), (true, false), (true, true)] {
            let name = |what: &str| format!("{what}, d = {d}, weights: {weighted}, steps: {steps}");
            let weights = |rig: &Rig| weighted.then(|| rig.put(&weights));
            let then_steps = |rig: &Rig, call: Call| match steps {
                true => then(call, vec![step(RowStep::AddBias, rig.put(&bias)), (RowStep::Relu, None)]),
                false => call,
            };
            rounds_once(&name("one matrix"), [90, d], &|rig, float, out| {
                then_steps(rig, Call::gather(rig.block(&whole), weights(rig), put(rig, &all, float), None, out))
            });
            rounds_once(&name("a halo"), [90, d], &|rig, float, out| {
                let (own, halo) = (put(rig, &rows(0..50), float), put(rig, &rows(50..70), float));
                then_steps(rig, Call::gather(rig.block(&with_halo), weights(rig), own, Some(halo), out))
            });
            let window = |rig: &Rig, float, out| {
                let (own, sum) = (put(rig, &rows(9..30), float), rig.mat(&sum));
                Call::gather(rig.block(&whole), weights(rig), own, None, out).window(9, Some(sum))
            };
            rounds_once(&name("a window"), [90, d], &|rig, float, out| then_steps(rig, window(rig, float, out)));
            sums_alike(&name("a window of tiles"), 90 * d, &|rig, float, out| {
                let more = [30..31, 31..70].map(|range| put(rig, &rows(range), float)).to_vec();
                let out = Mat { rows: 90, cols: d, ..out };
                then_steps(rig, Call { more_sources: more, ..window(rig, float, out) })
            });
        }
    }
}

/// The running sum of windows is f32, so only the last window rounds.
pub(crate) fn gather_windows_in_bf16_are_the_whole_gather_bit_for_bit() {
    let mut graph = Graph::random(&mut Numbers(4), 300, 200, 0, 6000);
    for v in 0..graph.rows() {
        let edges = graph.view().edges(v);
        graph.indices[edges].sort_unstable();
    }
    for d in [1, 2, 8, 12, 41, 264] {
        let numbers = &mut Numbers(d as u64);
        let own = matrix(numbers, 200, d);
        let weights = (d % 2 == 1).then(|| numbers.units(graph.edges()));
        let got = on_any_threads("windows", |rig| {
            let (block, weights) = (rig.block(&graph), weights.as_ref().map(|weights| rig.put(weights)));
            let mut sum = None;
            for (first, last) in [(0, 1), (1, 90), (90, 90)] {
                let rows = Matrix { rows: last - first, cols: d, data: own.data[first * d..last * d].to_vec() };
                let (own, out) = (put(rig, &rows, StorageType::Bf16), rig.out(300, d));
                rig.launch(&Call::gather(block, weights, own, None, out).window(first, sum)).unwrap();
                sum = Some(out);
            }
            let rows = Matrix { rows: 110, cols: d, data: own.data[90 * d..].to_vec() };
            let (own, out) = (put(rig, &rows, StorageType::Bf16), out(rig, 300, d, StorageType::Bf16));
            run(rig, out, &Call::gather(block, weights, own, None, out).window(90, sum))
        });
        let rig = Rig::new(1);
        let (block, weights) = (rig.block(&graph), weights.as_ref().map(|weights| rig.put(weights)));
        let whole = out(&rig, 300, d, StorageType::Bf16);
        let own = put(&rig, &own, StorageType::Bf16);
        let want = run(&rig, whole, &Call::gather(block, weights, own, None, whole));
        assert!(same_bits(&got, &want), "d = {d}: not the bits of the whole");
    }
}

pub(crate) fn products_in_bf16_sum_in_f32() {
    products_are_close(&|| Rig::new(2));
}

pub(crate) fn products_by_pairs_of_bf16_sum_in_f32() {
    if Rig::multiplying_bf16(1).is_some() {
        products_are_close(&|| Rig::multiplying_bf16(2).unwrap());
    }
}

pub(crate) fn products_by_pairs_of_bf16_are_the_same_on_any_threads_and_go_on_where_others_ended() {
    for (n, d_in, d_out) in [(1, 34, 1), (61, 34, 41), (5000, 66, 130)] {
        let numbers = &mut Numbers((n + d_in) as u64);
        let [x, weight, grad] = [[n, d_in], [d_out, d_in], [n, d_out]].map(|[r, c]| matrix(numbers, r, c));
        let columns = |from: &Matrix, range: std::ops::Range<usize>| {
            let data = from.data.chunks(from.cols).flat_map(|row| &row[range.clone()]).copied().collect();
            Matrix { rows: from.rows, cols: range.len(), data }
        };
        let results = |threads| {
            let rig = Rig::multiplying_bf16(threads)?;
            let stored = |matrix: &Matrix| put(&rig, matrix, StorageType::Bf16);
            let whole = out(&rig, n, d_out, StorageType::Bf16);
            let whole = run(&rig, whole, &call!(Linear::Product, [stored(&x), stored(&weight)], [whole]));
            let sums = rig.out(d_out, d_in);
            let bytes = linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64);
            let workspace = (bytes > 0).then(|| rig.put(&vec![f32::NAN; bytes as usize / 4]));
            let call = call!(Linear::WeightGrad, [stored(&grad), stored(&x)], [sums]);
            let sums = rig.run(sums, &Call { workspace, ..call });
            // The columns from 2 on, added to a sum of zeros and the first two.
            let zero = stored(&Matrix { rows: n, cols: d_out, data: vec![0.0; n * d_out] });
            let onto = out(&rig, n, d_out, StorageType::Bf16);
            let onto = run(&rig, onto, &call!(Linear::ProductOnto, [stored(&x), stored(&weight), zero], [onto]));
            assert!(same_bits(&onto, &whole), "{n} x {d_in} x {d_out}: a sum of zeros changes bits");
            let rest = [stored(&columns(&x, 2..d_in)), stored(&columns(&weight, 2..d_in))];
            let first = reference::linear(&columns(&x, 0..2).dense(), &columns(&weight, 0..2).dense());
            let first = first.data.iter().map(|&sum| sum as f32).collect();
            let first = stored(&Matrix { rows: n, cols: d_out, data: first });
            let onto = out(&rig, n, d_out, StorageType::Bf16);
            let onto = run(&rig, onto, &call!(Linear::ProductOnto, [rest[0], rest[1], first], [onto]));
            let close = onto.iter().zip(&whole).all(|(a, b)| (a - b).abs() <= 0.02 * (1.0 + b.abs()));
            assert!(close, "{n} x {d_in} x {d_out}: in two strips");
            Some((whole, sums))
        };
        let Some((whole, sums)) = results(1) else { return };
        for threads in [2, 3] {
            let (other, other_sums) = results(threads).unwrap();
            assert!(same_bits(&whole, &other) && same_bits(&sums, &other_sums), "{threads} threads");
        }
    }
}

pub(crate) fn products_by_pairs_of_bf16_keep_what_is_no_number() {
    let Some(rig) = Rig::multiplying_bf16(1) else { return };
    for bad in [f32::NAN, f32::INFINITY] {
        // The last of an odd number of terms.
        let mut x = Matrix { rows: 7, cols: 5, data: vec![1.0; 35] };
        x.data[3 * 5 + 4] = bad;
        let weight = Matrix { rows: 2, cols: 5, data: vec![1.0; 10] };
        let made = out(&rig, 7, 2, StorageType::Bf16);
        let [x, weight] = [&x, &weight].map(|matrix| put(&rig, matrix, StorageType::Bf16));
        let got = run(&rig, made, &call!(Linear::Product, [x, weight], [made]));
        for (i, &cell) in got.iter().enumerate() {
            assert_eq!(cell.is_finite(), i / 2 != 3, "{bad}, cell {i}: {cell}");
        }
    }
}

fn products_are_close(rig: &dyn Fn() -> Rig) {
    let shapes = [
        (0, 3, 4),
        (5, 0, 4),
        (5, 4, 0),
        (1, 1, 1),
        (3, 17, 41),
        (300, 33, 65),
        (257, 130, 48),
        (100, 602, 16),
        (1537, 7, 3),
        (4100, 64, 100),
    ];
    for (n, d_in, d_out) in shapes {
        let numbers = &mut Numbers((n * d_in + d_out) as u64);
        let [x, weight, grad] = [[n, d_in], [d_out, d_in], [n, d_out]].map(|[r, c]| matrix(numbers, r, c));
        let [dx, dw, dg] = [&x, &weight, &grad].map(Matrix::dense);
        let [ax, aw, ag] = [&dx, &dw, &dg].map(|dense| dense.map(f64::abs));
        let rig = rig();
        let stored = |matrix: &Matrix| put(&rig, matrix, StorageType::Bf16);
        let (x, weight, grad) = (stored(&x), stored(&weight), stored(&grad));

        let what = format!("linear, {n} x {d_in} x {d_out}");
        let made = out(&rig, n, d_out, StorageType::Bf16);
        let got = run(&rig, made, &call!(Linear::Product, [x, weight], [made]));
        assert_rounded(&what, &got, &reference::linear(&dx, &dw), &reference::linear(&ax, &aw), d_in);

        // The result is rounded before the steps and after them, if not only once.
        let what = format!("{what}, with a bias");
        let bias = numbers.units(d_out);
        let made = out(&rig, n, d_out, StorageType::Bf16);
        let steps = vec![step(RowStep::AddBias, rig.put(&bias))];
        let head = Box::new(call!(Linear::Product, [x, weight], [made]));
        let got = run(&rig, made, &then(*head, steps));
        let product = reference::linear(&dx, &dw);
        let want = reference::add_bias(&product, &wide(&bias));
        assert_eq!(want.data.len(), product.data.len());
        for ((got, want), product) in pairs(&got, &want.data).zip(&product.data) {
            let allowed = (want.abs() + product.abs()) / 256.0 * 1.02 + 1e-4;
            assert!((f64::from(*got) - want).abs() <= allowed, "{what}: {got}, not {want}");
        }

        let what = format!("linear_input_grad, {n} x {d_in} x {d_out}");
        let made = out(&rig, n, d_in, StorageType::Bf16);
        let got = run(&rig, made, &call!(Linear::InputGrad, [grad, weight], [made]));
        let (want, magnitude) = (reference::linear_input_grad(&dg, &dw), reference::linear_input_grad(&ag, &aw));
        assert_rounded(&what, &got, &want, &magnitude, d_out);

        let what = format!("linear_weight_grad, {n} x {d_in} x {d_out}");
        let bytes = linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64);
        let workspace = (bytes > 0).then(|| rig.put(&vec![f32::NAN; bytes as usize / 4]));
        let made = rig.out(d_out, d_in);
        let got = run(&rig, made, &Call { workspace, ..call!(Linear::WeightGrad, [grad, x], [made]) });
        let magnitude = reference::linear_weight_grad(&ag, &ax);
        assert_close(&what, &got, &reference::linear_weight_grad(&dg, &dx).data, &magnitude.data, n);
    }
}

pub(crate) fn cells_rows_and_columns_in_bf16_are_those_in_f32_rounded_once() {
    for d in WIDTHS {
        for n in [0, 5, 300] {
            let numbers = &mut Numbers((n * 1000 + d) as u64);
            let (a, b) = (matrix(numbers, n, d), matrix(numbers, n, d));
            let (scale, bias, gain) = (numbers.units(n), numbers.units(d), numbers.units(d));
            let key = DropoutKey { seed: 3, op: 1, first_row: 40, first_column: 0, rate: 0.3 };
            let rounds = |name: &str, make: &dyn Fn(&Rig, [Mat; 2], Mat) -> Call| {
                rounds_once(&format!("{name}, {n} x {d}"), [n, d], &|rig, float, out| {
                    make(rig, [put(rig, &a, float), put(rig, &b, float)], out)
                });
            };
            for step in RowStep::EACH {
                rounds(step.record().name, &|rig, [x, other], out| {
                    let beside = step.record().inputs.get(1).map(|operand| match [operand.rows, operand.cols] {
                        [Dim::N, Dim::Just(1)] => rig.put(&scale),
                        [Dim::Just(1), Dim::D] => rig.put(&bias),
                        [Dim::Scalar, _] => rig.put(&[9u64, 1]),
                        _ => other.slot,
                    });
                    let inputs = std::iter::once(Arg::Mat(x)).chain(beside.map(Arg::Slot));
                    Call::over(step, keyed(key), None, inputs, [out])
                });
            }
            rounds("a chain", &|rig, [x, other], out| {
                then(
                    call!(RowStep::Relu, [x], [out]),
                    vec![
                        step(RowStep::Scale, rig.put(&scale)),
                        step(RowStep::Add, other.slot),
                        step(RowStep::ReluGrad, other.slot),
                    ],
                )
            });
            rounds("layer_norm", &|rig, [x, _], out| {
                let (gain, bias) = (rig.put(&gain), rig.put(&bias));
                call!(Norm::Layer { eps: 1e-5 }, [x, gain, bias], [out])
            });
            rounds("layer_norm_input_grad", &|rig, [grad, x], out| {
                call!(Norm::InputGrad { eps: 1e-5 }, [grad, x, rig.put(&gain)], [out])
            });
            rounds_once("transpose", [d, n], &|rig, float, out| call!(Linear::Transpose, [put(rig, &a, float)], [out]));
            let rows: Vec<u32> = (0..n as u32).rev().step_by(2).collect();
            rounds_once("pack", [rows.len(), d], &|rig, float, out| {
                call!(Move::Pack, [put(rig, &a, float), rig.put(&rows)], [out])
            });
            sums_alike("column_sum", d, &|rig, float, out| call!(Linear::ColumnSum, [put(rig, &a, float)], [out.slot]));
            sums_alike("layer_norm_gain_grad", d, &|rig, float, out| {
                call!(Norm::GainGrad { eps: 1e-5 }, [put(rig, &a, float), put(rig, &b, float)], [out.slot])
            });
        }
    }
}

pub(crate) fn losses_and_metrics_of_logits_in_bf16() {
    for (n, classes) in [(0, 3), (30, 1), (700, 7), (700, 41), (65, 121)] {
        let numbers = &mut Numbers((n + classes) as u64);
        let logits = matrix(numbers, n, classes);
        let labels: Vec<u32> =
            (0..n).map(|i| if i % 11 == 3 { NO_LABEL } else { numbers.below(classes) as u32 }).collect();
        let targets: Vec<u8> = (0..n * classes).map(|_| numbers.below(2) as u8).collect();
        let split: Vec<u32> = (0..n).map(|_| numbers.below(3) as u32).collect();
        let weights: Vec<f32> = (0..classes).map(|class| 0.5 + class as f32).collect();
        let (select, count) = (1, n as u64 / 3);
        let what = format!("{n} x {classes}");
        sums_alike(&format!("softmax_cross_entropy, {what}"), 1, &|rig, float, out| {
            let (logits, labels, split) = (put(rig, &logits, float), rig.put(&labels), rig.put(&split));
            call!(Loss::SoftmaxCrossEntropy(TRAIN), [logits, labels, split], [out.slot], selected(select, count))
        });
        sums_alike(&format!("weighted_softmax_cross_entropy, {what}"), 1, &|rig, float, out| {
            let (logits, labels) = (put(rig, &logits, float), rig.put(&labels));
            let (op, given) = (Loss::WeightedSoftmaxCrossEntropy(TRAIN), selected(select, count));
            call!(op, [logits, labels, rig.put(&split), rig.put(&weights)], [out.slot], given)
        });
        sums_alike(&format!("sigmoid_cross_entropy, {what}"), 1, &|rig, float, out| {
            let (logits, targets, split) = (put(rig, &logits, float), rig.put(&targets), rig.put(&split));
            call!(Loss::SigmoidCrossEntropy(TRAIN), [logits, targets, split], [out.slot], selected(select, count))
        });
        rounds_once(&format!("softmax_cross_entropy_grad, {what}"), [n, classes], &|rig, float, out| {
            let (logits, labels, split) = (put(rig, &logits, float), rig.put(&labels), rig.put(&split));
            call!(Loss::SoftmaxCrossEntropyGrad(TRAIN), [logits, labels, split], [out], selected(select, count))
        });
        rounds_once(&format!("weighted_softmax_cross_entropy_grad, {what}"), [n, classes], &|rig, float, out| {
            let (logits, labels) = (put(rig, &logits, float), rig.put(&labels));
            let (op, given) = (Loss::WeightedSoftmaxCrossEntropyGrad(TRAIN), selected(select, count));
            call!(op, [logits, labels, rig.put(&split), rig.put(&weights)], [out], given)
        });
        rounds_once(&format!("sigmoid_cross_entropy_grad, {what}"), [n, classes], &|rig, float, out| {
            let (logits, targets, split) = (put(rig, &logits, float), rig.put(&targets), rig.put(&split));
            call!(Loss::SigmoidCrossEntropyGrad(TRAIN), [logits, targets, split], [out], selected(select, count))
        });
        let counts = |float| {
            let rig = Rig::new(2);
            let (logits, split) = (put(&rig, &logits, float), rig.put(&split));
            let (labels, targets) = (rig.put(&labels), rig.put(&targets));
            let [correct, micro] = [2, 3].map(|len| rig.put(&vec![u64::MAX; len]));
            rig.launch(&call!(Loss::CountCorrect(TRAIN), [logits, labels, split], [correct], selected(select, 0)))
                .unwrap();
            rig.launch(&call!(Loss::CountMicro(TRAIN), [logits, targets, split], [micro], selected(select, 0)))
                .unwrap();
            (rig.get::<u64>(correct, 2), rig.get::<u64>(micro, 3))
        };
        assert_eq!(counts(StorageType::Bf16), counts(StorageType::F32), "counts, {what}");
    }
}

pub(crate) fn matrices_that_are_not_stored_alike_are_an_error() {
    let rig = Rig::new(1);
    let x = matrix(&mut Numbers(1), 4, 4);
    let [wide, stored] = [StorageType::F32, StorageType::Bf16].map(|float| put(&rig, &x, float));
    let outs = [StorageType::F32, StorageType::Bf16].map(|float| out(&rig, 4, 4, float));
    let block = rig.block(&Graph::from_rows("pair", &[vec![0, 1], vec![1], vec![], vec![3]], 4, 0));
    let gather = |own, out| Call::gather(block, None, own, None, out);
    let calls = [
        (call!(RowStep::Relu, [wide], [outs[1]]), "out"),
        (call!(RowStep::Relu, [stored], [outs[0]]), "out"),
        (call!(RowStep::Add, [stored, wide], [outs[1]]), "b"),
        (call!(Linear::Product, [stored, wide], [outs[1]]), "weight"),
        (call!(Linear::WeightGrad, [stored, stored], [outs[1]]), "out"),
        (gather(wide, outs[1]), "out"),
        (Call::gather(block, None, stored, None, outs[1]).window(0, Some(stored)), "sum"),
        (call!(Linear::Round, [stored], [outs[1]]), "x"),
        (call!(Linear::Round, [wide], [outs[0]]), "out"),
    ];
    for (call, wrong) in calls {
        let objection = rig.launch(&call).unwrap_err();
        assert!(matches!(objection, Error::Stored { operand, .. } if operand == wrong), "{call:?}: {objection}");
    }
    assert!(rig.launch(&gather(stored, outs[0])).is_ok());
    // A slot that is too small for f32 can be large enough for bf16, but not one byte smaller.
    let short = Mat { slot: rig.put(&[0u16; 15]), ..outs[1] };
    assert!(matches!(
        rig.launch(&call!(RowStep::Relu, [stored], [short])),
        Err(Error::SlotSize { need_bytes: 32, .. })
    ));
    assert!(matches!(rig.launch(&call!(RowStep::Relu, [stored], [stored])), Err(Error::Aliased { .. })));
}
