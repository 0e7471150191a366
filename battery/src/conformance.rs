//! Compares every call of the CPU device with the serial `f64` reference, on one thread and on three.

use std::num::NonZeroUsize;

use crate::common::*;
use lapidary_kernels::call::NO_LABEL;
use lapidary_kernels::op::{Grid, Linear, Loss, Move, RowStep, Slice};
use lapidary_kernels::{
    Arg, BlockSlots, Call, CpuDevice, DropoutKey, Error, Mat, MatMut, MatView, Matmul, Targets, cpu, cuda,
    linear_weight_grad_workspace_bytes, reference,
};

pub(crate) fn the_comparer_objects_to_one_wrong_cell() {
    let numbers = &mut Numbers(1);
    let got = numbers.units(1000);
    let want = wide(&got);
    let magnitude = absolute(&want);
    assert_eq!(compare(&got, &want, &magnitude, 1), Ok(()));
    for (cell, value) in [(0, f32::NAN), (999, f32::INFINITY), (500, got[500] * 1.000_01), (3, 0.0)] {
        let mut corrupt = got.clone();
        corrupt[cell] = value;
        let objection = compare(&corrupt, &want, &magnitude, 1).unwrap_err();
        assert!(objection.starts_with(&format!("cell {cell} ")), "{objection}");
    }
    assert_eq!(compare(&got[..999], &want, &magnitude, 1), Err("999 cells, not 1000".into()));
}

pub(crate) fn same_bits_objects_to_one_flipped_bit() {
    let a = Numbers(2).units(100);
    let mut b = a.clone();
    assert!(same_bits(&a, &b));
    b[99] = f32::from_bits(b[99].to_bits() ^ 1);
    assert!(!same_bits(&a, &b));
    assert!(!same_bits(&[0.0], &[-0.0]));
}

pub(crate) fn gather() {
    for graph in hostile_graphs() {
        let longest = (0..graph.rows()).map(|v| graph.view().edges(v).len()).max().unwrap_or(0);
        for d in WIDTHS {
            let numbers = &mut Numbers(d as u64);
            let own = numbers.matrix(graph.own_sources, d);
            let halo = (graph.halo_sources > 0).then(|| numbers.matrix(graph.halo_sources, d));
            let weights = numbers.units(graph.edges());
            for weights in [None, Some(&weights)] {
                let what = format!("gather, {}, d = {d}, weights: {}", graph.name, weights.is_some());
                let got = on_any_threads(&what, |rig| {
                    let out = rig.out(graph.rows(), d);
                    let call = Call::gather(
                        rig.block(&graph),
                        weights.map(|weights| rig.put(weights)),
                        rig.mat(&own),
                        halo.as_ref().map(|halo| rig.mat(halo)),
                        out,
                    );
                    rig.run(out, &call)
                });
                let weights = weights.map(|weights| wide(weights));
                let dense_halo = halo.as_ref().map(Matrix::dense);
                let want = reference::gather(graph.view(), weights.as_deref(), &own.dense(), dense_halo.as_ref());
                let magnitude = reference::gather(
                    graph.view(),
                    weights.map(|weights| absolute(&weights)).as_deref(),
                    &own.dense().map(f64::abs),
                    dense_halo.map(|halo| halo.map(f64::abs)).as_ref(),
                );
                assert_close(&what, &got, &want.data, &magnitude.data, longest + 1);
            }
        }
    }
}

/// Every device adds the edges of a row in order, with the same roundings.
pub(crate) fn a_gather_has_the_same_bits_on_every_device() {
    for graph in hostile_graphs().iter().filter(|graph| graph.rows() > 0) {
        for d in [1, 6, 41, 300] {
            let numbers = &mut Numbers(d as u64);
            let (own, halo) = (numbers.matrix(graph.own_sources, d), numbers.matrix(graph.halo_sources, d));
            let weights = numbers.units(graph.edges());
            let mut want = vec![f32::NAN; graph.rows() * d];
            let out = MatMut::new(&mut want, graph.rows(), d).unwrap();
            cpu::gather(graph.view(), Some(&weights), own.view(), Some(halo.view()), out).unwrap();
            let rig = Rig::new(1);
            let out = rig.out(graph.rows(), d);
            let (block, weights) = (rig.block(graph), Some(rig.put(&weights)));
            let got = rig.run(out, &Call::gather(block, weights, rig.mat(&own), Some(rig.mat(&halo)), out));
            assert!(same_bits(&got, &want), "{}, d = {d}", graph.name);
        }
    }
}

/// With a cache that fits some columns of the sources, but not all. The first run does both ways, by groups of columns
/// last; the others take the faster way.
pub(crate) fn a_gather_by_some_columns_at_a_time_has_the_same_bits() {
    let graph = hostile_graphs().into_iter().find(|graph| graph.name == "heavy hubs").unwrap();
    let weights = Numbers(8).units(graph.edges());
    // One column per thread, four and two.
    for d in [45, 64, 100, 602] {
        let (own, halo) = (Numbers(9).matrix(graph.own_sources, d), Numbers(10).matrix(graph.halo_sources, d));
        for weights in [None, Some(&weights[..])] {
            let mut want = vec![f32::NAN; graph.rows() * d];
            let out = MatMut::new(&mut want, graph.rows(), d).unwrap();
            cpu::gather(graph.view(), weights, own.view(), Some(halo.view()), out).unwrap();
            let rig = Rig::with_cache(10 << 10);
            let (block, own, halo) = (rig.block(&graph), rig.mat(&own), Some(rig.mat(&halo)));
            let weights = weights.map(|weights| rig.put(weights));
            let is_wrong = |_: &usize| {
                let out = rig.out(graph.rows(), d);
                !same_bits(&rig.run(out, &Call::gather(block, weights, own, halo, out)), &want)
            };
            let wrong: Vec<usize> = (0..3).filter(is_wrong).collect();
            assert!(wrong.is_empty(), "width {d} is wrong in runs {wrong:?}");
            let by_columns = rig.device.choices().iter().any(|tried| tried.contains("columns at a time"));
            assert!(by_columns || !on_gpu(), "width {d} was not gathered by columns");
        }
    }
}

/// The sources are in one matrix, in two, or in more than a launch takes; the row with the bad source is summed by a group
/// of threads, or by a whole block.
pub(crate) fn a_gather_names_a_source_that_does_not_exist() {
    let mut good = hostile_graphs().into_iter().find(|graph| graph.name == "heavy hubs").unwrap();
    // Windows take sources that ascend.
    (0..good.rows()).for_each(|row| {
        let edges = good.view().edges(row);
        good.indices[edges].sort_unstable();
    });
    let limit = good.own_sources + good.halo_sources;
    let with_edges = |row: &usize| good.view().edges(*row).len();
    let hub = (0..good.rows()).max_by_key(with_edges).unwrap();
    let light = (0..good.rows()).filter(|row| with_edges(row) > 2).min_by_key(with_edges).unwrap();
    let weights = Numbers(3).units(good.edges());
    for d in [3, 64, 100] {
        let rig = Rig::with_cache(10 << 10);
        let numbers = &mut Numbers(d as u64);
        let all = numbers.matrix(limit, d);
        let rows = |rows: std::ops::Range<usize>| {
            rig.mat(&Matrix { rows: rows.len(), cols: d, data: all.data[rows.start * d..rows.end * d].to_vec() })
        };
        let whole = rig.mat(&all);
        let (own, halo) = (rows(0..good.own_sources), rows(good.own_sources..limit));
        let pieces: Vec<Mat> = (0..limit).map(|row| rows(row..row + 1)).collect();
        let weights = rig.put(&weights);
        for row in [light, hub] {
            let edges = good.view().edges(row);
            for (edge, bad) in
                [(edges.start, limit as u32), (edges.start + edges.len() / 2, u32::MAX), (edges.end - 1, u32::MAX)]
            {
                let mut graph = good.clone();
                graph.indices[edge] = bad;
                let with_halo = rig.block(&graph);
                let block = BlockSlots { own_sources: limit, halo_sources: 0, ..with_halo };
                let out = rig.out(graph.rows(), d);
                let of_pieces =
                    Call { more_sources: pieces[1..].to_vec(), ..Call::gather(block, None, pieces[0], None, out) };
                let mut calls = vec![
                    Call::gather(block, None, whole, None, out),
                    Call::gather(block, Some(weights), whole, None, out),
                    Call::gather(with_halo, None, own, Some(halo), out),
                    Call::gather(with_halo, Some(weights), own, Some(halo), out),
                ];
                if edge + 1 == edges.end {
                    calls.push(of_pieces.window(0, None));
                }
                // The second time, a gather may run in the way that was faster.
                for (i, call) in calls.iter().chain(&calls).enumerate() {
                    let objection = rig.launch(call).unwrap_err();
                    let is_named = matches!(objection, Error::Index { operand: "indices", index, limit: most, .. }
                        if index == u64::from(bad) && most == limit as u64);
                    assert!(is_named, "width {d}, edge {edge} of {edges:?}, call {i}: {objection}");
                }
            }
        }
    }
}

/// Products of these rows, columns of the input, and columns of the output.
const PRODUCTS: [[usize; 3]; 10] = [
    [0, 3, 4],
    [5, 0, 4],
    [5, 4, 0],
    [1, 1, 1],
    [3, 17, 41],
    [100, 602, 16],
    [1536, 16, 7],
    [1537, 7, 3],
    [5000, 41, 17],
    [4100, 64, 100],
];

pub(crate) fn linear_and_its_gradients() {
    for shape in PRODUCTS {
        are_products(shape, 0, |what, run| on_any_threads(what, run));
    }
}

/// The product of two numbers lacks at most 2^-21 of it: both cross products 2^-23, as 12 bits of a rest are rounded to 11,
/// and the product of the rests 2^-22.
pub(crate) fn products_in_3xtf32_are_almost_those_in_f32() {
    let matmul = Matmul::Tf32x3;
    let Some(ordinal) = gpu() else {
        let objection = CpuDevice::new(NonZeroUsize::new(1), u64::MAX).unwrap().matmul(matmul).unwrap_err();
        assert!(matches!(objection, Error::NoTf32 { .. }), "{objection}");
        return;
    };
    let options = cuda::Options { matmul, ..cuda::Options::default() };
    let rig = match cuda::open_with(&format!("cuda:{ordinal}"), ordinal, u64::MAX, &options, None) {
        Ok(device) => Rig::on(device),
        Err(Error::NoTf32 { why }) => return println!("SKIPPED: {why}"),
        Err(error) => panic!("{error}"),
    };
    let kernels = rig.device.choices().concat();
    assert!(kernels.contains("3xtf32"), "{kernels}");
    for shape in PRODUCTS {
        are_products(shape, 4, |_, run| run(&rig));
    }
    // A product that goes on with the sum of other columns.
    let numbers = &mut Numbers(21);
    let (x, weight) = (numbers.matrix(300, 70), numbers.matrix(90, 70));
    let strips = [0..33, 33..70].map(|strip| [columns(&x, strip.clone()), columns(&weight, strip)]);
    let (first, out) = (rig.out(300, 90), rig.out(300, 90));
    rig.launch(&call!(Linear::Product, [rig.mat(&strips[0][0]), rig.mat(&strips[0][1])], [first])).unwrap();
    let got = rig.run(out, &call!(Linear::ProductOnto, [rig.mat(&strips[1][0]), rig.mat(&strips[1][1]), first], [out]));
    let magnitude = reference::linear(&x.dense().map(f64::abs), &weight.dense().map(f64::abs));
    assert_close("in strips", &got, &reference::linear(&x.dense(), &weight.dense()).data, &magnitude.data, 74);
    // What is no number stays in its row.
    for odd in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut spoilt = x.clone();
        spoilt.data[70 * 5 + 3] = odd;
        let got = rig.run(out, &call!(Linear::Product, [rig.mat(&spoilt), rig.mat(&weight)], [out]));
        let is_spoilt = |row: usize| got[90 * row..][..90].iter().all(|cell| cell.is_nan());
        assert!((0..300).all(|row| is_spoilt(row) == (row == 5)), "{odd}");
    }
}

/// Checks a product and its gradients, where the product of two numbers may be off by `units` in the last place.
fn are_products(
    [n, d_in, d_out]: [usize; 3],
    units: usize,
    result: impl Fn(&str, &dyn Fn(&Rig) -> Vec<f32>) -> Vec<f32>,
) {
    let numbers = &mut Numbers((n * d_in + d_out) as u64);
    let x = numbers.matrix(n, d_in);
    let weight = numbers.matrix(d_out, d_in);
    let grad = numbers.matrix(n, d_out);
    let check = |op: Linear, [a, b]: [&Matrix; 2], [rows, cols]: [usize; 2], reference: OfTwo, terms: usize| {
        let what = format!("{op:?}, {n} x {d_in} x {d_out}");
        let got = result(&what, &|rig| {
            let out = rig.out(rows, cols);
            let bytes = match op {
                Linear::WeightGrad => linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64),
                _ => 0,
            };
            let workspace = (bytes > 0).then(|| rig.put(&vec![f32::NAN; bytes as usize / 4]));
            rig.run(out, &Call { workspace, ..call!(op, [rig.mat(a), rig.mat(b)], [out]) })
        });
        let (a, b) = (a.dense(), b.dense());
        let magnitude = reference(&a.map(f64::abs), &b.map(f64::abs));
        assert_close(&what, &got, &reference(&a, &b).data, &magnitude.data, terms + units);
    };
    check(Linear::Product, [&x, &weight], [n, d_out], reference::linear, d_in);
    check(Linear::InputGrad, [&grad, &weight], [n, d_in], reference::linear_input_grad, d_out);
    check(Linear::WeightGrad, [&grad, &x], [d_out, d_in], reference::linear_weight_grad, n);
}

/// A reference of two matrices.
type OfTwo = fn(&reference::Dense, &reference::Dense) -> reference::Dense;

/// Returns some columns of a matrix.
fn columns(x: &Matrix, columns: std::ops::Range<usize>) -> Matrix {
    let data = x.data.chunks_exact(x.cols).flat_map(|row| row[columns.clone()].to_vec()).collect();
    Matrix { rows: x.rows, cols: columns.len(), data }
}

/// A product of some columns goes on with the sum of those before. On a real GPU, cuBLAS may add in another order.
pub(crate) fn a_product_in_strips_of_columns_has_the_bits_of_one_product() {
    for (n, d_in, d_out) in [(1, 2, 1), (3, 17, 41), (100, 602, 16), (1537, 48, 3), (2100, 64, 100), (30, 37, 130)] {
        let numbers = &mut Numbers((n + d_in * d_out) as u64);
        let (x, weight) = (numbers.matrix(n, d_in), numbers.matrix(d_out, d_in));
        let want = reference::linear(&x.dense(), &weight.dense());
        let magnitude = reference::linear(&x.dense().map(f64::abs), &weight.dense().map(f64::abs));
        for cut in [1, d_in / 2, d_in - 1] {
            for backward in [false, true] {
                let what = format!("{n} x {d_in} x {d_out}, cut at {cut}, backward: {backward}");
                let run = |rig: &Rig, from: std::ops::Range<usize>, sum: Option<Mat>| {
                    let (part, out) = (rig.mat(&columns(&x, from.clone())), rig.out(n, d_out));
                    let weight = match backward {
                        // The same weights, stored as the transpose.
                        true => {
                            let rows = from.clone().flat_map(|c| (0..d_out).map(move |r| (r, c)));
                            let data = rows.map(|(r, c)| weight.data[r * d_in + c]).collect();
                            Matrix { rows: from.len(), cols: d_out, data }
                        }
                        false => columns(&weight, from),
                    };
                    let weight = rig.mat(&weight);
                    let call = match (backward, sum) {
                        (false, None) => call!(Linear::Product, [part, weight], [out]),
                        (false, Some(sum)) => call!(Linear::ProductOnto, [part, weight, sum], [out]),
                        (true, None) => call!(Linear::InputGrad, [part, weight], [out]),
                        (true, Some(sum)) => call!(Linear::InputGradOnto, [part, weight, sum], [out]),
                    };
                    rig.launch(&call).unwrap();
                    out
                };
                let whole = on_any_threads(&what, |rig| rig.get(run(rig, 0..d_in, None).slot, n * d_out));
                let got = on_any_threads(&what, |rig| {
                    let first = run(rig, 0..cut, None);
                    rig.get(run(rig, cut..d_in, Some(first)).slot, n * d_out)
                });
                assert_close(&what, &got, &want.data, &magnitude.data, d_in);
                assert!(on_gpu() || same_bits(&got, &whole), "{what}");
            }
        }
    }
}

pub(crate) fn a_parameter_is_cut_into_slices_and_joined() {
    let numbers = &mut Numbers(5);
    let whole = numbers.matrix(37, 50);
    for (rows, cols) in
        [(vec![0, 37], vec![0, 16, 32, 50]), (vec![0, 16, 37], vec![0, 50]), (vec![0, 1, 36, 37], vec![0, 49, 50])]
    {
        let rig = Rig::new(2);
        let x = rig.mat(&whole);
        let mut parts = Vec::new();
        for down in rows.windows(2) {
            for across in cols.windows(2) {
                let shape = [down[1] - down[0], across[1] - across[0]];
                let (cut, out) = (Slice { first: [down[0], across[0]], shape }, rig.out(shape[0], shape[1]));
                let got = rig.run(out, &call!(Linear::Slice(cut), [x], [out]));
                assert_eq!(wide(&got), reference::slice(&whole.dense(), cut.first, cut.shape).data);
                parts.push(out);
            }
        }
        let grid = Grid { shape: [37, 50], parts: [rows.len() - 1, cols.len() - 1] };
        let out = rig.out(37, 50);
        let got = rig.run(out, &Call::new(Linear::Join(grid), parts.clone(), [out]));
        assert!(same_bits(&got, &whole.data), "{grid:?}");
        parts.swap_remove(0);
        let objection = rig.launch(&Call::new(Linear::Join(grid), parts, [out])).unwrap_err();
        assert!(matches!(objection, Error::Shape { .. }), "{objection}");
    }
    let rig = Rig::new(1);
    let cut = Slice { first: [30, 0], shape: [8, 50] };
    let objection = rig.launch(&call!(Linear::Slice(cut), [rig.mat(&whole)], [rig.out(8, 50)])).unwrap_err();
    assert!(matches!(objection, Error::Shape { operand: "x", .. }), "{objection}");
}

pub(crate) fn a_matrix_is_cut_into_strips_of_columns_and_joined() {
    for (rows, ends) in [(0, vec![0, 16, 40]), (1, vec![0, 1, 2]), (700, vec![0, 16, 32, 47]), (5000, vec![0, 40])] {
        let cols = ends[ends.len() - 1];
        let whole = Numbers(7).matrix(rows, cols);
        let got = on_any_threads("strips", |rig| {
            let x = rig.mat(&whole);
            let strips = ends.windows(2).map(|pair| {
                let (op, out) =
                    (Linear::Columns { first: pair[0], count: pair[1] - pair[0] }, rig.out(rows, pair[1] - pair[0]));
                let got = rig.run(out, &call!(op, [x], [out]));
                assert_eq!(wide(&got), reference::slice(&whole.dense(), [0, pair[0]], [rows, out.cols]).data);
                out
            });
            let strips: Vec<_> = strips.collect();
            let out = rig.out(rows, cols);
            rig.run(out, &Call::new(Linear::Beside { strips: strips.len(), cols }, strips, [out]))
        });
        assert!(same_bits(&got, &whole.data), "{rows} rows, {ends:?}");
    }
    let rig = Rig::new(1);
    let (x, out) = (rig.mat(&Numbers(7).matrix(4, 20)), rig.out(4, 16));
    let objection = rig.launch(&call!(Linear::Columns { first: 5, count: 16 }, [x], [out])).unwrap_err();
    assert!(matches!(objection, Error::Shape { operand: "x", .. }), "{objection}");
    let objection = rig.launch(&Call::new(Linear::Beside { strips: 2, cols: 16 }, [x, x], [out])).unwrap_err();
    assert!(matches!(objection, Error::Shape { .. }), "{objection}");
}

pub(crate) fn packed_rows_are_those_that_were_named() {
    for d in WIDTHS {
        for rows in [vec![], vec![0], vec![6, 0, 6, 3], (0..7).collect::<Vec<u32>>()] {
            let x = Numbers(d as u64).matrix(7, d);
            let got = on_any_threads("pack", |rig| {
                let out = rig.out(rows.len(), d);
                rig.run(out, &call!(Move::Pack, [rig.mat(&x), rig.put(&rows)], [out]))
            });
            assert_eq!(wide(&got), reference::pack(&x.dense(), &rows).data);
        }
    }
    let rig = Rig::new(1);
    let (x, rows) = (rig.mat(&Numbers(1).matrix(7, 2)), rig.put(&[6u32, 7]));
    let objection = rig.launch(&call!(Move::Pack, [x, rows], [rig.out(2, 2)])).unwrap_err();
    assert!(matches!(objection, Error::Index { index: 7, limit: 7, .. }));
}

pub(crate) fn cells_rows_and_columns() {
    for d in WIDTHS {
        for n in [0, 1, 5, 1030, 2500] {
            let numbers = &mut Numbers((n * 1000 + d) as u64);
            let (a, b) = (numbers.matrix(n, d), numbers.matrix(n, d));
            let (scale, bias) = (numbers.units(n), numbers.units(d));
            let (da, db) = (a.dense(), b.dense());
            let exact = |name: &str, want: &reference::Dense, call: &dyn Fn(&Rig, Mat) -> Call| {
                let what = format!("{name}, {n} x {d}");
                let got = on_any_threads(&what, |rig| {
                    let out = rig.out(want.rows, want.cols);
                    rig.run(out, &call(rig, out))
                });
                assert_close(&what, &got, &want.data, &absolute(&want.data), 0);
            };
            exact("row_scale", &reference::row_scale(&da, &wide(&scale)), &|rig, out| {
                call!(RowStep::Scale, [rig.mat(&a), rig.put(&scale)], [out])
            });
            exact("add_bias", &reference::add_bias(&da, &wide(&bias)), &|rig, out| {
                call!(RowStep::AddBias, [rig.mat(&a), rig.put(&bias)], [out])
            });
            exact("add", &reference::add(&da, &db), &|rig, out| call!(RowStep::Add, [rig.mat(&a), rig.mat(&b)], [out]));
            exact("relu", &reference::relu(&da), &|rig, out| call!(RowStep::Relu, [rig.mat(&a)], [out]));
            exact("relu_grad", &reference::relu_grad(&da, &db), &|rig, out| {
                call!(RowStep::ReluGrad, [rig.mat(&a), rig.mat(&b)], [out])
            });
            exact("transpose", &reference::transpose(&da), &|rig, out| call!(Linear::Transpose, [rig.mat(&a)], [out]));
            let key = DropoutKey { seed: 3, op: 1, first_row: 40, first_column: 0, rate: 0.3 };
            exact("dropout", &reference::dropout(&da, key, 9), &|rig, out| {
                drop_cells(key, rig.mat(&a), rig.put(&[9u64, 1]), out)
            });
            let what = format!("column_sum, {n} x {d}");
            let got = on_any_threads(&what, |rig| {
                let out = rig.out(1, d);
                rig.run(out, &call!(Linear::ColumnSum, [rig.mat(&a)], [out.slot]))
            });
            let magnitude = reference::column_sum(&da.map(f64::abs));
            assert_close(&what, &got, &reference::column_sum(&da), &magnitude, n);
        }
    }
}

pub(crate) fn not_a_number_is_not_hidden_by_relu() {
    let x = Matrix { rows: 1, cols: 3, data: vec![f32::NAN, -1.0, f32::INFINITY] };
    let rig = Rig::new(1);
    let out = rig.out(1, 3);
    let got = rig.run(out, &call!(RowStep::Relu, [rig.mat(&x)], [out]));
    assert!(got[0].is_nan() && got[1] == 0.0 && got[2] == f32::INFINITY);
}

pub(crate) fn edge_values() {
    for graph in hostile_graphs() {
        let (_, permutation) = graph.transpose();
        let values = Numbers(5).units(graph.edges());
        let what = format!("permute_edges, {}", graph.name);
        let got = on_any_threads(&what, |rig| {
            let out = rig.out(graph.edges(), 1);
            let (values, permutation) = (rig.put(&values), rig.put(&permutation));
            rig.run(out, &permute_edges(values, permutation, out.slot, graph.edges()))
        });
        let want = reference::permute_edges(&wide(&values), &permutation);
        assert_close(&what, &got, &want, &absolute(&want), 0);

        let key = DropoutKey { seed: 1, op: 2, first_row: 3, first_column: 0, rate: 0.5 };
        for is_transposed in [false, true] {
            let what = format!("sparse_dropout, {}, transposed: {is_transposed}", graph.name);
            let got = on_any_threads(&what, |rig| {
                let out = rig.out(graph.edges(), 1);
                let (block, values, clock) = (rig.block(&graph), rig.put(&values), rig.put(&[4u64, 1]));
                rig.run(out, &drop_edges(key, (block, is_transposed), values, clock, out.slot))
            });
            let want = reference::sparse_dropout((graph.view(), is_transposed), &wide(&values), key, 4);
            assert_close(&what, &got, &want, &absolute(&want), 1);
        }
    }
}

/// Returns labels (a few missing, one that is not a class) and splits for `n` rows.
fn random_targets(numbers: &mut Numbers, n: usize, classes: usize) -> (Vec<u32>, Vec<u32>) {
    let label = |i: usize, numbers: &mut Numbers| match i % 11 {
        3 => NO_LABEL,
        7 => classes as u32,
        _ => numbers.below(classes.max(1)) as u32,
    };
    ((0..n).map(|i| label(i, numbers)).collect(), (0..n).map(|_| numbers.below(3) as u32).collect())
}

pub(crate) fn losses_and_metrics() {
    for classes in [0, 1, 2, 3, 7, 16, 17, 41, 64, 65, 121] {
        for n in [0, 1, 15, 16, 17, 30, 63, 64, 65, 5000] {
            for scale in [0.0, 3.0, 80.0] {
                let numbers = &mut Numbers((n + classes) as u64);
                let mut logits = numbers.matrix(n, classes);
                logits.data.iter_mut().for_each(|x| *x *= scale);
                let (labels, split) = random_targets(numbers, n, classes);
                let targets = Targets { labels: &labels, split: &split, select: 1 };
                let dense = logits.dense();
                let counts = reference::count_correct(&dense, targets);
                check_counts(&logits, targets, counts);
                // A weight of 0 leaves out a class.
                let weights: Vec<f32> = (0..classes).map(|class| [1.5, 0.0, 0.25, 8.0][class % 4]).collect();
                for count in [counts[1], 0] {
                    check_loss(&logits, targets, None, count);
                    check_loss(&logits, targets, Some(&weights), count);
                }
            }
        }
    }
}

fn check_counts(logits: &Matrix, targets: Targets<'_>, want: [u64; 2]) {
    for threads in [1, 3] {
        let rig = Rig::new(threads);
        let (labels, split) = (rig.put(targets.labels), rig.put(targets.split));
        let out = rig.put(&[u64::MAX; 2]);
        rig.launch(&call!(Loss::CountCorrect(TRAIN), [rig.mat(logits), labels, split], [out], selected(1, 0))).unwrap();
        assert_eq!(rig.get::<u64>(out, 2), want, "count_correct, {} x {}", logits.rows, logits.cols);
    }
}

fn check_loss(logits: &Matrix, targets: Targets<'_>, weights: Option<&[f32]>, count: u64) {
    let (n, classes) = (logits.rows, logits.cols);
    let (loss_op, grad_op) = match weights {
        None => (Loss::SoftmaxCrossEntropy(TRAIN), Loss::SoftmaxCrossEntropyGrad(TRAIN)),
        Some(_) => (Loss::WeightedSoftmaxCrossEntropy(TRAIN), Loss::WeightedSoftmaxCrossEntropyGrad(TRAIN)),
    };
    let inputs = |rig: &Rig| {
        let mut inputs: Vec<Arg> =
            vec![rig.mat(logits).into(), rig.put(targets.labels).into(), rig.put(targets.split).into()];
        inputs.extend(weights.map(|weights| Arg::from(rig.put(weights))));
        inputs
    };
    let wide: Option<Vec<f64>> = weights.map(|weights| weights.iter().map(|&w| f64::from(w)).collect());
    let largest_weight = wide.iter().flatten().fold(1.0, |largest: f64, &w| largest.max(w));
    let what = format!("{}, {n} x {classes}, count {count}", loss_op.record().name);
    let got = on_any_threads(&what, |rig| {
        let (inputs, loss) = (inputs(rig), rig.out(1, 1));
        rig.run(loss, &Call::over(loss_op, selected(1, count), None, inputs, [loss.slot]))
    });
    // The sum of the exponentials has a relative error of 3e-7, and so has its logarithm; the rest is f64.
    let want = reference::softmax_cross_entropy(&logits.dense(), targets, wide.as_deref(), count);
    assert_close(&what, &got, &[want], &[want.abs() + largest_weight], 2);

    let what = format!("{}, {n} x {classes}, count {count}", grad_op.record().name);
    let got = on_any_threads(&what, |rig| {
        let (inputs, out) = (inputs(rig), rig.out(n, classes));
        rig.run(out, &Call::over(grad_op, selected(1, count), None, inputs, [out]))
    });
    let want = reference::softmax_cross_entropy_grad(&logits.dense(), targets, wide.as_deref(), count);
    // Each exponential has a relative error of 3e-7, plus the rounding of its exponent, which is at most twice the
    // largest logit. Below e^-87 they are e^-87. The remainder beside a confident answer is rounded in f64, beside 1.
    let largest = logits.data.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let least = 1e-10 * largest_weight / count.max(1) as f64;
    let magnitude: Vec<f64> = want.data.iter().map(|x| x.abs() + least).collect();
    assert_close(&what, &got, &want.data, &magnitude, 8 + 2 * largest as usize);
}

pub(crate) fn ties_go_to_the_first_column_and_nan_never_wins() {
    let logits = [1.0, 1.0, 0.0, f32::NAN, 2.0, 1.0, -1.0, -1.0, -1.0];
    let (labels, split) = ([0, 1, 1], [0, 0, 0]);
    let view = MatView::new(&logits, 3, 3).unwrap();
    let targets = Targets { labels: &labels, split: &split, select: 0 };
    assert_eq!(cpu::count_correct(view, targets).unwrap(), [2, 3]);
}

/// Returns the loss, the gradient and the count of rows whose labels are all `label`.
fn softmax_of(logits: &[f32], classes: usize, label: u32) -> (f32, Vec<f32>, u64) {
    let n = logits.len() / classes;
    let (labels, split) = (vec![label; n], vec![0; n]);
    let targets = Targets { labels: &labels, split: &split, select: 0 };
    let view = MatView::new(logits, n, classes).unwrap();
    let mut grad = vec![f32::NAN; logits.len()];
    let loss = cpu::softmax_cross_entropy(view, targets, None, n as u64).unwrap();
    cpu::softmax_cross_entropy_grad(view, targets, None, n as u64, MatMut::new(&mut grad, n, classes).unwrap())
        .unwrap();
    let [correct, selected] = cpu::count_correct(view, targets).unwrap();
    assert_eq!(selected, n as u64);
    (loss, grad, correct)
}

pub(crate) fn softmax_of_extreme_logits() {
    let inf = f32::INFINITY;
    for classes in [2, 3, 16, 17, 41] {
        // The first logit is `first`, the others are `rest`; the label is the last column.
        let of = |first: f32, rest: f32| {
            let row: Vec<f32> = (0..classes).map(|column| if column == 0 { first } else { rest }).collect();
            softmax_of(&row, classes, classes as u32 - 1)
        };
        let (loss, grad, correct) = of(1e30, -1e30);
        assert!((loss - 2e30).abs() <= 1e24 && (grad[classes - 1] + 1.0).abs() < 1e-6 && correct == 0, "{classes}");
        let (loss, grad, correct) = of(-inf, 1.0);
        let want = (classes as f32 - 1.0).ln();
        assert!((loss - want).abs() <= 1e-6 && grad.iter().all(|x| x.is_finite()), "{classes}: {loss}");
        assert_eq!(correct, u64::from(classes == 2));
        assert_eq!(of(0.0, -inf).0, inf);
        for (first, rest) in [(inf, 0.0), (f32::NAN, 0.0), (0.0, f32::NAN), (f32::NAN, f32::NAN), (-inf, -inf)] {
            let (loss, grad, _) = of(first, rest);
            assert!(loss.is_nan() && grad.iter().all(|x| x.is_nan()), "{classes}: {first}, {rest}");
        }
        // The first largest wins: NaN never does, and an infinity does beside it.
        assert_eq!(of(f32::NAN, 0.0).2, u64::from(classes == 2));
        assert_eq!(of(0.0, f32::NAN).2, 0);
        assert_eq!(of(f32::NAN, f32::NAN).2, 0);
        assert_eq!(of(f32::NAN, -inf).2, u64::from(classes == 2));
        assert_eq!(of(-inf, -inf).2, 0);
        assert_eq!(of(0.0, inf).2, u64::from(classes == 2));
    }
}

pub(crate) fn the_product_of_the_sums_of_many_rows_does_not_overflow() {
    for classes in [16, 17, 64] {
        let n = 64 * 300;
        let (loss, _, correct) = softmax_of(&vec![0.5; n * classes], classes, 0);
        assert!((loss - (classes as f32).ln()).abs() <= 1e-6, "{classes} classes: {loss}");
        assert_eq!(correct, n as u64);
    }
}

pub(crate) fn a_row_of_nan_spoils_no_gradient_but_its_own() {
    for classes in [3, 17] {
        let mut logits = vec![0.25f32; 70 * classes];
        logits[5 * classes + 1] = f32::NAN;
        let (loss, grad, correct) = softmax_of(&logits, classes, 0);
        assert!(loss.is_nan());
        // The NaN is in column 1, so column 0 is the first largest of its row, too.
        assert_eq!(correct, 70);
        for (r, row) in grad.chunks_exact(classes).enumerate() {
            assert!(row.iter().all(|x| x.is_nan() == (r == 5)), "row {r}");
        }
    }
}
