//! Attention and its gradients: compared with the reference, and bit for bit in windows, with a halo, in bf16 and with
//! row steps.

mod case;
mod rows;

pub(crate) use rows::{
    rows_of_attention_are_the_reference_in_both_storage_types, rows_of_attention_that_do_not_fit_are_errors,
};

use crate::common::*;
use case::{Case, Operands, PART, outputs, rounded, rows_of};
use lapidary_kernels::op::{AttentionPass, RowStep, Score, WeightDropout};
use lapidary_kernels::{Call, Error, Mat, Slot, StorageType};

use AttentionPass::{Forward, Partial, SourceGrad, TargetGrad};

const PASSES: [AttentionPass; 3] = [Forward, SourceGrad, TargetGrad];

/// Returns a graph whose rows ascend, with rows of every length that a kernel treats differently.
fn mixed(halo: usize) -> Graph {
    let lengths = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 0, 40, 1, 0];
    let row = |(v, &len): (usize, &usize)| (0..len).map(|i| (i * 7 + v) as u32 % 40).collect::<Vec<u32>>();
    ascending("mixed", lengths.iter().enumerate().map(row).collect(), 40, halo)
}

/// Returns a graph whose last `halo` sources are its halo.
fn ascending(name: &'static str, mut rows: Vec<Vec<u32>>, sources: usize, halo: usize) -> Graph {
    rows.iter_mut().for_each(|row| row.sort_unstable());
    Graph::from_rows(name, &rows, sources - halo, halo)
}

fn graphs() -> Vec<Graph> {
    // Each source occurs 43 times or more among the edges of the hub.
    let mut hub: Vec<Vec<u32>> = (0..20).map(|v| vec![v; v as usize % 4]).collect();
    hub[7] = (0..2600).map(|i| i * 7 % 60).collect();
    let numbers = &mut Numbers(4);
    let random = (0..200).map(|_| (0..numbers.below(9)).map(|_| numbers.below(90) as u32).collect());
    vec![
        Graph::from_rows("empty", &[], 0, 0),
        Graph::from_rows("no edges", &vec![vec![]; 5], 5, 0),
        Graph::from_rows("one vertex with a self-loop", &[vec![0]], 1, 0),
        ascending("self-loops", (0..20).map(|v| vec![v]).collect(), 20, 0),
        ascending("multi-edges", (0..20).map(|v| vec![v / 2; 9]).collect(), 20, 0),
        ascending("hub", hub, 60, 0),
        ascending("random", random.collect(), 90, 30),
        ascending("halo alone", (0..9).map(|v| vec![v, 2, 8]).collect(), 9, 9),
    ]
}

/// Returns the four kinds of a pass: plain, with values of edges, with dropout, with both.
fn kinds(graph: &Graph, heads: usize, width: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for score in [Score::Gat, Score::Gatv2] {
        for (edge_values, dropout) in [(false, false), (true, false), (false, true), (true, true)] {
            cases.push(Case { graph: graph.clone(), score, heads, width, edge_values, dropout });
        }
    }
    cases
}

/// Heads and widths where [shapes are few](shapes_are_few).
const FEW_HEADS_AND_WIDTHS: [(usize, usize); 6] = [(1, 1), (1, 33), (2, 16), (3, 3), (3, 8), (8, 8)];

/// Returns cases over all graphs, and with many shapes of heads over one graph.
fn cases(halo: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for heads in [1, 2, 3, 8] {
        for width in [1, 3, 8, 16, 33] {
            if !shapes_are_few() || FEW_HEADS_AND_WIDTHS.contains(&(heads, width)) {
                cases.extend(kinds(&mixed(halo), heads, width));
            }
        }
    }
    // No columns, more heads than a GPU's threads take at once, and heads wider than they take.
    for (heads, width) in [(2, 0), (40, 1), (37, 3), (1, 300), (2, 130)] {
        cases.extend(kinds(&mixed(halo), heads, width));
    }
    for graph in graphs() {
        for (heads, width) in [(1, 8), (3, 3), (8, 8)] {
            let hub = graph.name == "hub" && heads == 8;
            if hub && shapes_are_few() {
                continue;
            }
            cases.extend(
                kinds(&graph, heads, width).into_iter().filter(|case| !hub || case.edge_values == case.dropout),
            );
        }
    }
    cases
}

fn name(case: &Case, pass: AttentionPass) -> String {
    let Case { graph, score, heads, width, edge_values, dropout } = case;
    let extra = format!("edge values {edge_values}, dropout {dropout}");
    format!("{score:?}, {pass:?}, {}, {heads} heads of {width}, {extra}", graph.name)
}

/// Checks that no cell differs by more than a share of the largest one. The gradient of a score can be exactly 0, as
/// the difference of two terms of size 1.
#[track_caller]
fn near(what: &str, got: &[f32], want: &[f64]) {
    let largest = want.iter().fold(0.0, |largest: f64, want| largest.max(want.abs()));
    for (i, (&got, &want)) in pairs(got, want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= 1e-4 * largest + 1e-5, "{what}: cell {i} is {got}, not {want}; the largest is {largest}");
    }
}

pub(crate) fn attention_is_the_reference() {
    for case in cases(0).into_iter().chain(kinds(&mixed(13), 8, 8)) {
        // The shift in a state is the device's choice.
        for pass in PASSES {
            let (what, operands) = (name(&case, pass), case.operands(pass));
            let got = on_any_threads(&what, |rig| operands.run(rig));
            let mut rest = &got[..];
            for want in operands.oracle() {
                let (made, others) = rest.split_at(want.len());
                near(&what, made, &want);
                rest = others;
            }
            assert!(rest.is_empty());
        }
    }
}

pub(crate) fn windows_of_attention_are_the_whole_bit_for_bit() {
    for case in cases(0) {
        if case.graph.halo_sources > 0 || case.edge_values != case.dropout {
            continue;
        }
        for pass in PASSES {
            let operands = case.operands(pass);
            let m = operands.own.rows;
            let whole = operands.run(&Rig::new(1));
            for cuts in [vec![0, m], vec![0, m / 3, m / 3, m / 2, m]] {
                let what = format!("{}, windows {cuts:?}", name(&case, pass));
                let windows = on_any_threads(&what, |rig| operands.run_windows(rig, &cuts));
                assert!(same_bits(&windows, &whole), "{what}: not the bits of the whole");
            }
        }
    }
}

pub(crate) fn attention_with_a_halo_has_the_same_bits() {
    for (heads, width) in [(1, 33), (3, 8), (8, 8)] {
        for case in kinds(&mixed(0), heads, width) {
            for pass in PASSES {
                let (what, whole) = (name(&case, pass), case.operands(pass));
                let m = whole.own.rows;
                let want = whole.run(&Rig::new(1));
                for own in [0, m / 3, m] {
                    let halo = (own < m).then(|| rows_of(&whole.own, own..m));
                    let graph = Graph { own_sources: own, halo_sources: m - own, ..whole.graph.clone() };
                    let parts = Operands { graph, own: rows_of(&whole.own, 0..own), halo, ..whole.clone() };
                    let got = parts.run(&Rig::new(1));
                    assert!(same_bits(&got, &want), "{what}: other bits with a halo from {own}");
                }
            }
        }
    }
}

pub(crate) fn attention_over_bf16_is_that_over_f32_rounded() {
    use StorageType::{Bf16, F32};
    for (heads, width) in [(1, 33), (3, 8), (8, 8), (2, 16)] {
        for case in kinds(&mixed(13), heads, width) {
            for pass in [Forward, Partial, SourceGrad, TargetGrad] {
                let (what, operands) = (name(&case, pass), case.operands(pass));
                let run = |float, out| {
                    on_any_threads(&what, |rig| {
                        let call = operands.on(rig, float, out);
                        rig.launch(&call).unwrap();
                        outputs(rig, &call)
                    })
                };
                let want = run(F32, F32);
                if pass != Forward {
                    assert!(same_bits(&run(Bf16, F32), &want), "{what}: not the sum in f32");
                }
                // A state is f32, and so is a gradient of scores.
                if pass != Partial && (pass, case.score) != (TargetGrad, Score::Gat) {
                    let (first, second) = want.split_at(operands.graph.rows() * operands.out_cols()[0]);
                    let first = rounded(first).into_iter().map(f32::from);
                    let want: Vec<f32> = first.chain(second.iter().copied()).collect();
                    assert!(same_bits(&run(Bf16, Bf16), &want), "{what}: not the f32 result, rounded");
                }
            }
        }
    }
}

pub(crate) fn row_steps_after_attention_have_the_bits_of_separate_calls() {
    let dropout = RowStep::Dropout { rate: 0.4, salt: 9, first_column: 0 };
    let elu = RowStep::Elu { alpha: 1.0 };
    let chain = [RowStep::AddBias, elu, dropout, RowStep::Add, RowStep::Scale, RowStep::Relu, RowStep::AddBias, elu];
    for (heads, width) in [(1, 33), (3, 8), (8, 8), (1, 300)] {
        for case in kinds(&mixed(13), heads, width) {
            let (what, operands) = (name(&case, Forward), case.operands(Forward));
            let (n, d) = (operands.graph.rows(), case.d());
            let numbers = &mut Numbers(8);
            let (bias, other, scale) = (numbers.units(d), numbers.units(n * d), numbers.units(n));
            let steps = |rig: &Rig| -> Vec<FusedStep> {
                let beside = |kind: &RowStep| match kind {
                    RowStep::AddBias => Some(rig.put(&bias)),
                    RowStep::Add => Some(rig.put(&other)),
                    RowStep::Scale => Some(rig.put(&scale)),
                    RowStep::Dropout { .. } => Some(rig.put(&[6u64, 1])),
                    _ => None,
                };
                chain.iter().map(|kind| (*kind, beside(kind))).collect()
            };
            // A fused call has the second output only if something reads it.
            for count in [1, 2] {
                let fused = on_any_threads(&what, |rig| {
                    let mut call = operands.on(rig, StorageType::F32, StorageType::F32);
                    call.outputs.truncate(count);
                    let call = then(call, steps(rig));
                    rig.launch(&call).unwrap();
                    outputs(rig, &call)
                });
                let rig = Rig::new(1);
                let head = operands.on(&rig, StorageType::F32, StorageType::F32);
                rig.launch(&head).unwrap();
                let mut x = head.out();
                for (kind, beside) in steps(&rig) {
                    let out = rig.out(n, d);
                    let inputs = std::iter::once(x.into()).chain(beside.map(lapidary_kernels::Arg::Slot));
                    rig.launch(&Call::over(kind, PART, None, inputs, [out])).unwrap();
                    x = out;
                }
                let mut want = rig.get::<f32>(x.slot, n * d);
                if count == 2 {
                    want.extend(rig.get::<f32>(head.outputs[1].slot, n * case.heads));
                }
                assert!(same_bits(&fused, &want), "{what}: not the bits of the calls one by one");
            }
        }
    }
}

pub(crate) fn attention_that_does_not_fit_is_an_error_and_no_panic() {
    let launch = |operands: &Operands, change: &dyn Fn(&mut Call)| {
        let rig = Rig::new(1);
        let mut call = operands.on(&rig, StorageType::F32, StorageType::F32);
        change(&mut call);
        rig.launch(&call)
    };
    for case in kinds(&mixed(0), 2, 8) {
        for pass in PASSES {
            let (what, good) = (name(&case, pass), case.operands(pass));
            launch(&good, &|_| ()).unwrap();
            for (place, bad) in [(0, u32::MAX), (17, good.graph.own_sources as u32), (good.graph.edges() - 1, 900)] {
                let mut bad_index = good.clone();
                bad_index.graph.indices[place] = bad;
                let objection = launch(&bad_index, &|_| ()).unwrap_err();
                let named = matches!(objection, Error::Index { operand: "indices", index, .. } if index == bad.into());
                assert!(named, "{what}: {objection}");
            }
            for (place, bad) in [(0, 1), (5, u64::MAX), (good.graph.rows(), 7)] {
                let mut bad_offset = good.clone();
                bad_offset.graph.indptr[place] = bad;
                let objection = launch(&bad_offset, &|_| ()).unwrap_err();
                assert!(matches!(objection, Error::Index { .. } | Error::Shape { .. }), "{what}: {objection}");
            }
            for place in 0..good.rest.len() + 2 {
                let objection = launch(&good, &|call| call.inputs[place].cols += 1).unwrap_err();
                assert!(matches!(objection, Error::Shape { .. }), "{what}, operand {place}: {objection}");
                let objection = launch(&good, &|call| call.inputs[place].slot = Slot(u32::MAX)).unwrap_err();
                assert!(matches!(objection, Error::EmptySlot { .. }), "{what}, operand {place}: {objection}");
            }
            let m = good.own.rows;
            let objection = launch(&good, &|call| *call = call.clone().window(1, None)).unwrap_err();
            assert!(
                matches!(objection, Error::Index { operand: "the window's end", index, .. } if index as usize == m + 1)
            );
            let sum = |call: &mut Call| *call = call.clone().window(0, Some(Mat { cols: 3, ..call.out() }));
            assert!(matches!(launch(&good, &sum), Err(Error::Shape { operand: "sum", .. })), "{what}");
            let mut wrong = good.clone();
            wrong.op.dropout = wrong.op.dropout.map(|dropout| WeightDropout { rate: 1.0, ..dropout });
            let objection = launch(&wrong, &|_| ());
            let named = matches!(objection, Err(Error::Argument { operand: "rate", .. }));
            assert_eq!(named, case.dropout, "{what}: {objection:?}");
        }
    }
    // Heads that do not divide the columns: 16 columns.
    for (score, heads) in [(Score::Gatv2, 3), (Score::Gatv2, 0), (Score::Gat, 5)] {
        let case = Case { graph: mixed(0), score, heads, width: 1, edge_values: false, dropout: false };
        let numbers = &mut Numbers(1);
        let (n, m) = (case.graph.rows(), case.graph.own_sources);
        let cols = if score == Score::Gat { 16 + 2 * heads } else { 16 };
        let rig = Rig::new(1);
        let ends =
            [rig.mat(&numbers.matrix(m, cols)), rig.mat(&numbers.matrix(n, cols))].map(lapidary_kernels::Arg::Mat);
        let a = (score == Score::Gatv2).then(|| lapidary_kernels::Arg::Slot(rig.put(&[0.5f32; 16])));
        let op = Case { heads: heads.max(1), ..case.clone() }.operands(Forward).op;
        let op = lapidary_kernels::op::Attention { heads, ..op };
        let inputs = ends.into_iter().chain(a);
        let call = Call::over(op, PART, Some(rig.block(&case.graph)), inputs, [rig.out(n, 16), rig.out(n, heads)]);
        assert!(matches!(rig.launch(&call), Err(Error::Argument { operand: "heads", .. })), "{score:?}, {heads} heads");
    }
}
