//! Compares fused calls with the reference, and bit for bit with the separate calls.

use crate::common::*;
use lapidary_kernels::op::oracle::{self, Array};
use lapidary_kernels::op::{Dim, Linear, RowStep};
use lapidary_kernels::reference::{self, Dense};
use lapidary_kernels::{Arg, Call, DropoutKey, Error, Mat, Part, Slot};

const KEY: DropoutKey = DropoutKey { seed: 5, op: 2, first_row: 70, first_column: 5, rate: 0.4 };
const DROPOUT: RowStep = RowStep::Dropout { rate: KEY.rate, salt: KEY.op, first_column: KEY.first_column };
const EPOCH: u64 = 6;

use RowStep::{Add, AddBias, Relu, ReluGrad, Scale};

/// Returns each step alone, and the chains that layers produce.
fn chains() -> Vec<Vec<RowStep>> {
    let layers: [&[RowStep]; 4] = [
        &[Scale, AddBias, Relu, DROPOUT, Scale],
        &[DROPOUT, ReluGrad, Scale],
        &[AddBias, Add, Relu],
        &[Add, Add, Scale, Scale],
    ];
    RowStep::EACH.iter().map(|step| vec![*step]).chain(layers.map(<[_]>::to_vec)).collect()
}

/// Operands for any step on a matrix `[n, d]`. A step that occurs twice reads the same ones.
struct Operands {
    scale: Vec<f32>,
    bias: Vec<f32>,
    other: Matrix,
}

impl Operands {
    fn new(numbers: &mut Numbers, n: usize, d: usize) -> Self {
        Self { scale: numbers.units(n), bias: numbers.units(d), other: numbers.matrix(n, d) }
    }

    /// Returns the operand that the step's record requires.
    fn of(&self, step: RowStep) -> Option<Vec<f32>> {
        let operand = step.record().inputs.get(1)?;
        match [operand.rows, operand.cols] {
            [Dim::N, Dim::Just(1)] => Some(self.scale.clone()),
            [Dim::Just(1), Dim::D] => Some(self.bias.clone()),
            [Dim::N, Dim::D] => Some(self.other.data.clone()),
            _ => None,
        }
    }

    fn step(&self, rig: &Rig, step: RowStep) -> FusedStep {
        match (self.of(step), step) {
            (Some(values), _) => (step, Some(rig.put(&values))),
            (None, RowStep::Dropout { .. }) => (step, Some(rig.put(&[EPOCH, 1]))),
            (None, _) => (step, None),
        }
    }

    /// Applies the step with the reference, to the result and to the sum of the absolute terms.
    fn apply(&self, step: RowStep, results: [Dense; 2]) -> [Dense; 2] {
        let [other, size]: [Option<Array>; 2] = match (self.of(step), step) {
            (Some(values), _) => [wide(&values), absolute(&wide(&values))].map(|values| Some(Array::Float(values))),
            (None, RowStep::Dropout { .. }) => [(); 2].map(|()| Some(Array::U64(vec![EPOCH, 1]))),
            (None, _) => [None, None],
        };
        // A negative factor turns a sum of absolute terms negative.
        let [x, mut sizes] = results;
        sizes.data = absolute(&sizes.data);
        [(x, other), (sizes, size)].map(|(x, other)| {
            let (rows, cols) = (x.rows, x.cols);
            let mat = |slot| Mat::f32(Slot(slot), rows, cols);
            let call = alone((step, other.is_some().then_some(Slot(1))), mat(0), mat(2));
            let slots = [Some(Array::from(x)), other];
            let made = oracle::run(&call, |slot| slots[slot.0 as usize].as_ref().unwrap());
            Dense { rows, cols, data: made[0].1.floats().to_vec() }
        })
    }
}

/// Returns the call of a single step from `x` to `out`.
fn alone((step, beside): FusedStep, x: Mat, out: Mat) -> Call {
    let inputs = std::iter::once(Arg::Mat(x)).chain(beside.map(Arg::Slot));
    Call::over(step, keyed(KEY), None, inputs, [out])
}

/// Compares `head` followed by each chain with the reference, and with the same calls one after the other.
fn check(
    what: &str,
    numbers: &mut Numbers,
    want: &Dense,
    size: &Dense,
    terms: usize,
    head: &dyn Fn(&Rig, Mat) -> Call,
) {
    let (n, d) = (want.rows, want.cols);
    let operands = Operands::new(numbers, n, d);
    for chain in chains() {
        let chain = &chain[..];
        let what = format!("{what}, then {chain:?}");
        let fused = on_any_threads(&what, |rig| {
            let out = rig.out(n, d);
            let steps = chain.iter().map(|&step| operands.step(rig, step)).collect();
            rig.run(out, &Call { part: keyed(KEY), ..then(head(rig, out), steps) })
        });
        let rig = Rig::new(1);
        let mut x = rig.out(n, d);
        rig.launch(&head(&rig, x)).unwrap();
        for &kind in chain {
            let out = rig.out(n, d);
            rig.launch(&alone(operands.step(&rig, kind), x, out)).unwrap();
            x = out;
        }
        assert!(same_bits(&fused, &rig.get(x.slot, n * d)), "{what}: not the bits of the calls one by one");
        let done = chain.iter().fold([want.clone(), size.clone()], |x, &kind| operands.apply(kind, x));
        assert_close(&what, &fused, &done[0].data, &absolute(&done[1].data), terms + 2 * chain.len());
    }
}

pub(crate) fn steps_behind_a_gather() {
    for graph in hostile_graphs() {
        let longest = (0..graph.rows()).map(|v| graph.view().edges(v).len()).max().unwrap_or(0);
        for d in [0, 1, 3, 16, 17, 41, 602] {
            let numbers = &mut Numbers(d as u64);
            let own = numbers.matrix(graph.own_sources, d);
            let halo = (graph.halo_sources > 0).then(|| numbers.matrix(graph.halo_sources, d));
            let weights = (d % 2 == 1).then(|| numbers.units(graph.edges()));
            let (wide_weights, dense_halo) = (weights.as_deref().map(wide), halo.as_ref().map(Matrix::dense));
            let want = reference::gather(graph.view(), wide_weights.as_deref(), &own.dense(), dense_halo.as_ref());
            let size = reference::gather(
                graph.view(),
                wide_weights.map(|weights| absolute(&weights)).as_deref(),
                &own.dense().map(f64::abs),
                dense_halo.map(|halo| halo.map(f64::abs)).as_ref(),
            );
            let what = format!("gather, {}, d = {d}", graph.name);
            check(&what, numbers, &want, &size, longest + 1, &|rig, out| {
                Call::gather(
                    rig.block(&graph),
                    weights.as_ref().map(|weights| rig.put(weights)),
                    rig.mat(&own),
                    halo.as_ref().map(|halo| rig.mat(halo)),
                    out,
                )
            });
        }
    }
}

pub(crate) fn steps_behind_products() {
    let shapes =
        [(0, 3, 4), (5, 0, 4), (5, 4, 0), (1, 1, 1), (3, 17, 41), (1537, 7, 3), (4000, 41, 17), (70, 20, 2100)];
    for (n, d_in, d_out) in shapes {
        let numbers = &mut Numbers((n * d_in + d_out) as u64);
        let (x, weight, grad) = (numbers.matrix(n, d_in), numbers.matrix(d_out, d_in), numbers.matrix(n, d_out));
        let (dx, dw, dg) = (x.dense(), weight.dense(), grad.dense());
        let (ax, aw, ag) = (dx.map(f64::abs), dw.map(f64::abs), dg.map(f64::abs));
        let what = format!("linear, {n} x {d_in} x {d_out}");
        let (want, size) = (reference::linear(&dx, &dw), reference::linear(&ax, &aw));
        check(&what, numbers, &want, &size, d_in, &|rig, out| {
            call!(Linear::Product, [rig.mat(&x), rig.mat(&weight)], [out])
        });
        let what = format!("linear_input_grad, {n} x {d_in} x {d_out}");
        let (want, size) = (reference::linear_input_grad(&dg, &dw), reference::linear_input_grad(&ag, &aw));
        check(&what, numbers, &want, &size, d_out, &|rig, out| {
            call!(Linear::InputGrad, [rig.mat(&grad), rig.mat(&weight)], [out])
        });
    }
}

pub(crate) fn steps_behind_steps() {
    for (n, d) in [(0, 3), (4, 0), (1, 1), (1030, 17), (2500, 3), (3, 5000)] {
        for kind in RowStep::EACH {
            let numbers = &mut Numbers((n * 10 + d) as u64);
            let x = numbers.matrix(n, d);
            let operands = Operands::new(numbers, n, d);
            let [want, size] = operands.apply(kind, [x.dense(), x.dense().map(f64::abs)]);
            check(&format!("{kind:?}, {n} x {d}"), numbers, &want, &size, 2, &|rig, out| {
                alone(operands.step(rig, kind), rig.mat(&x), out)
            });
        }
    }
}

/// Checks that the bits change if a step is left out, moved or given other operands.
pub(crate) fn a_wrong_chain_shows() {
    let numbers = &mut Numbers(3);
    let (x, operands) = (numbers.matrix(50, 9), Operands::new(numbers, 50, 9));
    let run = |chain: &[RowStep], change: &dyn Fn(&mut Vec<FusedStep>), first_row: u64| {
        let rig = Rig::new(1);
        let out = rig.out(50, 9);
        let mut steps = chain.iter().map(|&kind| operands.step(&rig, kind)).collect();
        change(&mut steps);
        let part = Part { first_row, ..keyed(KEY) };
        rig.run(out, &Call { part, ..then(call!(Relu, [rig.mat(&x)], [out]), steps) })
    };
    let chain = [Scale, AddBias, ReluGrad, DROPOUT];
    let good = run(&chain, &|_| (), 70);
    assert!(same_bits(&good, &run(&chain, &|_| (), 70)));
    for left_out in 0..chain.len() {
        let other = run(&chain, &|steps| steps.retain(|step| step.0 != chain[left_out]), 70);
        assert!(!same_bits(&good, &other), "{left_out}");
    }
    assert!(!same_bits(&good, &run(&chain, &|steps| steps.swap(0, 1), 70)));
    assert!(!same_bits(&good, &run(&chain, &|_| (), 71)));
}

pub(crate) fn a_fused_call_names_all_its_slots() {
    let mat = |slot| Mat::f32(Slot(slot), 2, 2);
    let steps = vec![
        step(Scale, Slot(3)),
        step(AddBias, Slot(4)),
        step(Add, Slot(5)),
        (Relu, None),
        step(ReluGrad, Slot(6)),
        step(DROPOUT, Slot(7)),
    ];
    let call = then(call!(Linear::Product, [mat(0), mat(1)], [mat(2)]), steps);
    assert!(call.reads().eq([0, 1, 3, 4, 5, 6, 7].map(Slot)));
    assert!(call.writes().eq([Slot(2)]));
    assert_eq!(call.name(), "fused_linear");
    let moved = call.renamed(|slot| Slot(slot.0 + 10));
    assert!(moved.reads().eq([10, 11, 13, 14, 15, 16, 17].map(Slot)));
    assert!(moved.writes().eq([Slot(12)]));
}

pub(crate) fn what_does_not_fit_is_refused_and_writes_nothing() {
    let rig = Rig::new(1);
    let numbers = &mut Numbers(4);
    let x = rig.mat(&numbers.matrix(3, 2));
    let untouched = vec![7.0f32; 6];
    let refuse = |call: &dyn Fn(Mat) -> Call| {
        let out = Mat::f32(rig.put(&untouched), 3, 2);
        let objection = rig.launch(&call(out)).unwrap_err();
        assert_eq!(rig.get::<f32>(out.slot, 6), untouched);
        objection
    };
    let fused = |head: Call, step| then(head, vec![step]);
    let small = rig.put(&[1.0f32]);
    for which in [Scale, AddBias, Add, ReluGrad] {
        let objection = refuse(&|out| fused(call!(Relu, [x], [out]), step(which, small)));
        assert!(matches!(objection, Error::SlotSize { slot, .. } if slot == small), "{objection}");
    }
    let clock = rig.put(&[1u64, 1]);
    let all = step(RowStep::Dropout { rate: 1.0, salt: KEY.op, first_column: 0 }, clock);
    assert!(matches!(refuse(&|out| fused(call!(Relu, [x], [out]), all)), Error::Argument { operand: "rate", .. }));
    assert!(matches!(refuse(&|out| fused(call!(Relu, [x], [out]), step(Add, out.slot))), Error::Aliased { .. }));
    let wrong = call!(Relu, [Mat { rows: 2, cols: 2, ..x }], [x]);
    let objection = rig.launch(&fused(wrong, (Relu, None))).unwrap_err();
    assert!(matches!(objection, Error::Shape { .. }), "{objection}");
    let sum = |out: Mat| fused(call!(Linear::ColumnSum, [x], [out.slot]), (Relu, None));
    let objection = refuse(&sum);
    assert_eq!(objection.to_string(), "row steps cannot follow column_sum");
}
