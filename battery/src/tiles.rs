//! Gathers over windows of their sources, and sums that continue over more rows: the building blocks of tiles.

use crate::common::*;
use lapidary_kernels::call::NO_LABEL;
use lapidary_kernels::op::{Linear, Loss, Norm, RowStep};
use lapidary_kernels::{Call, Error, Mat, Slot, linear_weight_grad_workspace_bytes};

/// Returns the hostile graphs without a halo; the sources of each row ascend.
fn ascending_graphs() -> Vec<Graph> {
    let mut graphs: Vec<Graph> = hostile_graphs().into_iter().filter(|graph| graph.halo_sources == 0).collect();
    for graph in &mut graphs {
        for v in 0..graph.rows() {
            let edges = graph.view().edges(v);
            graph.indices[edges].sort_unstable();
        }
    }
    graphs
}

fn rows_of(matrix: &Matrix, rows: std::ops::Range<usize>) -> Matrix {
    let data = matrix.data[rows.start * matrix.cols..rows.end * matrix.cols].to_vec();
    Matrix { rows: rows.len(), cols: matrix.cols, data }
}

pub(crate) fn windows_one_after_the_other_are_the_whole_gather_bit_for_bit() {
    for graph in ascending_graphs() {
        for d in [0, 1, 3, 16, 41, 602] {
            let numbers = &mut Numbers(d as u64);
            let own = numbers.matrix(graph.own_sources, d);
            let weights = (d % 2 == 1).then(|| numbers.units(graph.edges()));
            let scale = numbers.units(graph.rows());
            let steps = |rig: &Rig| vec![step(RowStep::Scale, rig.put(&scale)), (RowStep::Relu, None)];
            let whole = on_any_threads(&format!("{}, d = {d}", graph.name), |rig| {
                let out = rig.out(graph.rows(), d);
                let weights = weights.as_ref().map(|weights| rig.put(weights));
                let head = Call::gather(rig.block(&graph), weights, rig.mat(&own), None, out);
                rig.run(out, &then(head, steps(rig)))
            });
            let m = graph.own_sources;
            let ninths: Vec<usize> = (0..=m.clamp(1, 9)).map(|i| i * m / m.clamp(1, 9)).collect();
            // The places where the sources are cut, and how many pieces a call reads.
            for (cuts, at_once) in [
                (vec![0, m], 1),
                (vec![0, m / 3, m / 3, m / 2, m], 1),
                (vec![0, m / 3, m / 3, m / 2, m], 4),
                (vec![0, 0, m / 2, m, m], 2),
                (ninths.clone(), 1),
                (ninths.clone(), 2),
                (ninths, 9),
            ] {
                let what = format!("{}, d = {d}, windows {cuts:?}, {at_once} at once", graph.name);
                let windows = on_any_threads(&what, |rig| {
                    let (block, weights) = (rig.block(&graph), weights.as_ref().map(|weights| rig.put(weights)));
                    let (mut sum, mut last): (Option<Mat>, Option<Call>) = (None, None);
                    for group in cuts.windows(2).collect::<Vec<_>>().chunks(at_once) {
                        if let Some(before) = last.take() {
                            rig.launch(&before).unwrap();
                        }
                        let piece = |cut: &&[usize]| rig.mat(&rows_of(&own, cut[0]..cut[1]));
                        let mut pieces = group.iter().map(piece);
                        let out = rig.out(graph.rows(), d);
                        let call = Call::gather(block, weights, pieces.next().unwrap(), None, out);
                        last = Some(Call { more_sources: pieces.collect(), ..call.window(group[0][0], sum) });
                        sum = Some(out);
                    }
                    let head = last.unwrap_or_else(|| unreachable!("there is a window"));
                    rig.run(sum.unwrap(), &then(head, steps(rig)))
                });
                assert!(same_bits(&windows, &whole), "{what}: not the bits of the whole");
            }
        }
    }
}

/// A graph with rows of 0 to 699 edges, whose sources are spread evenly, all near the front or all near the back.
fn rows_of_all_lengths() -> Graph {
    let sources = 900;
    let row = |v: usize| -> Vec<u32> {
        let count = v % 700;
        let spread = |i: usize| match v % 3 {
            0 => i * sources / count,
            1 => i / 2,
            _ => sources - 1 - (count - 1 - i) / 2,
        };
        (0..count).map(|i| spread(i) as u32).collect()
    };
    let rows: Vec<Vec<u32>> = (0..1400).map(row).collect();
    Graph::from_rows("rows of all lengths", &rows, sources, 0)
}

pub(crate) fn windows_find_their_edges_in_rows_of_all_lengths() {
    let graph = rows_of_all_lengths();
    let (m, d) = (graph.own_sources, 3);
    let own = Numbers(7).matrix(m, d);
    let weights = Numbers(8).units(graph.edges());
    for weights in [None, Some(&weights)] {
        let gather = |rig: &Rig, own: &Matrix, out: Mat| {
            let weights = weights.map(|weights| rig.put(weights));
            Call::gather(rig.block(&graph), weights, rig.mat(own), None, out)
        };
        let whole = on_any_threads("rows of all lengths", |rig| {
            let out = rig.out(graph.rows(), d);
            rig.run(out, &gather(rig, &own, out))
        });
        for cuts in [vec![0, 1, 449, 450, m], vec![0, 30, 300, 310, 800, 899, m]] {
            let windows = on_any_threads(&format!("rows of all lengths, windows {cuts:?}"), |rig| {
                let mut sum: Option<Mat> = None;
                let mut calls = cuts.windows(2).map(|cut| {
                    let out = rig.out(graph.rows(), d);
                    let call = gather(rig, &rows_of(&own, cut[0]..cut[1]), out).window(cut[0], sum.replace(out));
                    (out, call)
                });
                let (mut out, mut call) = calls.next().unwrap();
                for (next, after) in calls {
                    rig.launch(&call).unwrap();
                    (out, call) = (next, after);
                }
                rig.run(out, &call)
            });
            assert!(same_bits(&windows, &whole), "{cuts:?}: not the bits of the whole");
        }
        // As many tiles as a launch on a GPU takes, fewer and more; every other one is empty.
        for tiles in [31, 32, 33, 80] {
            let joined = on_any_threads(&format!("rows of all lengths, {tiles} tiles at once"), |rig| {
                let tile =
                    |i: usize| rig.mat(&rows_of(&own, i.div_ceil(2) * m / tiles..(i + 1).div_ceil(2) * m / tiles));
                let mut sources = (0..2 * tiles).map(tile);
                let out = rig.out(graph.rows(), d);
                let mut call = gather(rig, &own, out).window(0, None);
                call.inputs[0] = sources.next().unwrap();
                call.more_sources = sources.collect();
                rig.run(out, &call)
            });
            assert!(same_bits(&joined, &whole), "{tiles} tiles at once: not the bits of the whole");
        }
    }
}

pub(crate) fn a_window_that_does_not_go_with_its_block_is_an_error() {
    let rig = Rig::new(1);
    let graph = Graph::from_rows("pair", &[vec![0, 1], vec![1]], 2, 0);
    let (block, one, two) = (rig.block(&graph), rig.mat(&Numbers(1).matrix(1, 3)), rig.mat(&Numbers(1).matrix(2, 3)));
    let narrow = rig.mat(&Numbers(1).matrix(2, 2));
    let call = |first, own, sum| Call::gather(block, None, own, None, rig.out(2, 3)).window(first, sum);
    assert!(rig.launch(&call(1, one, None)).is_ok());
    assert!(matches!(rig.launch(&call(1, two, None)), Err(Error::Index { operand: "the window's end", index: 3, .. })));
    assert!(matches!(rig.launch(&call(usize::MAX, one, None)), Err(Error::Index { .. })));
    assert!(matches!(rig.launch(&call(0, narrow, None)), Err(Error::Shape { operand: "own", .. })));
    assert!(matches!(rig.launch(&call(0, two, Some(one))), Err(Error::Shape { operand: "sum", .. })));
    let more = |call: Call, sources| Call { more_sources: vec![sources], ..call };
    assert!(rig.launch(&more(call(0, one, None), one)).is_ok());
    let behind = rig.launch(&more(call(1, one, None), one));
    assert!(matches!(behind, Err(Error::Index { operand: "the window's end", index: 3, .. })));
    let other = rig.launch(&more(call(0, one, None), narrow));
    assert!(matches!(other, Err(Error::Shape { operand: "sources", .. })));
    let whole = rig.launch(&more(Call::gather(block, None, two, None, rig.out(2, 3)), one));
    assert!(matches!(whole, Err(Error::Shape { operand: "sources", .. })), "a whole gather has no further sources");
    let halo = Call::gather(
        lapidary_kernels::BlockSlots { own_sources: 1, halo_sources: 1, ..block },
        None,
        one,
        None,
        rig.out(2, 3),
    )
    .window(0, None);
    assert!(matches!(rig.launch(&halo), Err(Error::Shape { operand: "halo", .. })));
    // A source before the window, in a row that does not ascend, is detected and not read.
    let unsorted = rig.block(&Graph::from_rows("unsorted", &[vec![1, 0, 1]], 2, 0));
    let call = Call::gather(unsorted, None, one, None, rig.out(1, 3)).window(1, None);
    assert!(!matches!(rig.launch(&call), Err(Error::Panicked { .. })));
}

/// Runs `head` over rows in two halves that are added, and over all rows at once.
fn both_ways(head: impl Fn(&Rig, std::ops::Range<usize>, Slot) -> Call, n: usize, out_len: usize) -> [Vec<f32>; 2] {
    let rig = Rig::new(2);
    let out = || rig.put(&vec![f32::NAN; out_len]);
    let [whole, first, both] = [out(), out(), out()];
    rig.launch(&head(&rig, 0..n, whole)).unwrap();
    rig.launch(&head(&rig, 0..n / 3, first)).unwrap();
    let rest = head(&rig, n / 3..n, both);
    rig.launch(&rest.added_to(first)).unwrap();
    [rig.get(whole, out_len), rig.get(both, out_len)]
}

pub(crate) fn sums_over_rows_go_on_from_other_rows() {
    let (n, d_in, d_out) = (1000, 7, 5);
    let numbers = &mut Numbers(3);
    let (x, grad) = (numbers.matrix(n, d_in), numbers.matrix(n, d_out));
    let labels: Vec<u32> = (0..n).map(|v| if v % 11 == 0 { NO_LABEL } else { (v % d_out) as u32 }).collect();
    let split: Vec<u32> = (0..n).map(|v| (v % 2) as u32).collect();
    let targets: Vec<u8> = (0..n * d_out).map(|cell| (cell % 3 == 0) as u8).collect();
    let near = |[whole, both]: [Vec<f32>; 2]| {
        assert!(whole.iter().all(|x| x.is_finite()) && whole.iter().any(|&x| x != 0.0));
        let size = whole.iter().map(|x| f64::from(x.abs()) + 1.0).collect::<Vec<_>>();
        assert_close("the sum of both", &both, &wide(&whole), &size, n);
    };
    near(both_ways(
        |rig, rows, slot| {
            let (x, grad) = (rig.mat(&rows_of(&x, rows.clone())), rig.mat(&rows_of(&grad, rows.clone())));
            let room = linear_weight_grad_workspace_bytes(rows.len() as u64, d_in as u64, d_out as u64) as usize / 4;
            let workspace = (room > 0).then(|| rig.put(&vec![f32::NAN; room]));
            Call { workspace, ..call!(Linear::WeightGrad, [grad, x], [Mat::f32(slot, d_out, d_in)]) }
        },
        n,
        d_in * d_out,
    ));
    near(both_ways(|rig, rows, out| call!(Linear::ColumnSum, [rig.mat(&rows_of(&grad, rows))], [out]), n, d_out));
    near(both_ways(
        |rig, rows, out| {
            let grad = rig.mat(&rows_of(&x, rows.clone()));
            call!(Norm::GainGrad { eps: 1e-5 }, [grad, rig.mat(&rows_of(&x, rows))], [out])
        },
        n,
        d_in,
    ));
    near(both_ways(
        |rig, rows, loss| {
            let logits = rig.mat(&rows_of(&grad, rows.clone()));
            let (labels, split) = (rig.put(&labels[rows.clone()]), rig.put(&split[rows]));
            call!(Loss::SoftmaxCrossEntropy(TRAIN), [logits, labels, split], [loss], selected(1, 450))
        },
        n,
        1,
    ));
    near(both_ways(
        |rig, rows, loss| {
            let logits = rig.mat(&rows_of(&grad, rows.clone()));
            let targets = rig.put(&targets[rows.start * d_out..rows.end * d_out]);
            call!(Loss::SigmoidCrossEntropy(TRAIN), [logits, targets, rig.put(&split[rows])], [loss], selected(1, 500))
        },
        n,
        1,
    ));
}

pub(crate) fn counts_go_on_from_other_rows() {
    let rig = Rig::new(1);
    let (n, classes) = (1000, 4);
    let logits = Numbers(9).matrix(n, classes);
    let labels: Vec<u32> = (0..n).map(|v| (v % classes) as u32).collect();
    let targets: Vec<u8> = (0..n * classes).map(|cell| (cell % 3 == 0) as u8).collect();
    let split = vec![0u32; n];
    let correct = |rows: std::ops::Range<usize>, out| {
        call!(
            Loss::CountCorrect(TRAIN),
            [rig.mat(&rows_of(&logits, rows.clone())), rig.put(&labels[rows.clone()]), rig.put(&split[rows])],
            [out],
            selected(0, 0)
        )
    };
    let micro = |rows: std::ops::Range<usize>, out| {
        call!(
            Loss::CountMicro(TRAIN),
            [
                rig.mat(&rows_of(&logits, rows.clone())),
                rig.put(&targets[rows.start * classes..rows.end * classes]),
                rig.put(&split[rows])
            ],
            [out],
            selected(0, 0)
        )
    };
    let check = |call: &dyn Fn(std::ops::Range<usize>, Slot) -> Call, len: usize| {
        let [whole, first, both] = [(); 3].map(|()| rig.put(&vec![u64::MAX; len]));
        rig.launch(&call(0..n, whole)).unwrap();
        rig.launch(&call(0..n / 3, first)).unwrap();
        rig.launch(&call(n / 3..n, both).added_to(first)).unwrap();
        let want: Vec<u64> = rig.get(whole, len);
        assert!(want.iter().all(|&count| count > 0) && want == rig.get::<u64>(both, len));
    };
    check(&correct, 2);
    check(&micro, 3);
}

pub(crate) fn only_a_sum_can_be_added_to() {
    let rig = Rig::new(1);
    let x = rig.mat(&Numbers(1).matrix(2, 2));
    let (sum, out) = (rig.put(&[0.0f32; 2]), rig.out(2, 2));
    let relu = call!(RowStep::Relu, [x], [out]).added_to(sum);
    assert!(matches!(rig.launch(&relu), Err(Error::NoSum { call: "relu" })));
    let narrow = call!(Linear::ColumnSum, [x], [rig.put(&[0.0f32; 2])]).added_to(rig.put(&[0.0f32]));
    let objection = rig.launch(&narrow).unwrap_err();
    assert!(matches!(objection, Error::SlotSize { .. }), "{objection}");
}
