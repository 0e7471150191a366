//! Fused calls: against the reference, and bit for bit against the calls that they stand for.

#![allow(clippy::unwrap_used)]

use crate::common::*;
use lapidary_kernels::reference::{self, Dense};
use lapidary_kernels::{Call, DropoutKey, Error, Mat, RowStep, Slot};

const KEY: DropoutKey = DropoutKey { seed: 5, op: 2, first_row: 70, rate: 0.4 };
const EPOCH: u64 = 6;

/// One step, to be given operands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Scale,
    AddBias,
    Add,
    Relu,
    ReluGrad,
    Dropout,
}

use Kind::{Add, AddBias, Dropout, Relu, ReluGrad, Scale};

/// Each step alone, and the chains that layers make.
const CHAINS: [&[Kind]; 10] = [
    &[Scale],
    &[AddBias],
    &[Add],
    &[Relu],
    &[ReluGrad],
    &[Dropout],
    &[Scale, AddBias, Relu, Dropout, Scale],
    &[Dropout, ReluGrad, Scale],
    &[AddBias, Add, Relu],
    &[Add, Add, Scale, Scale],
];

/// Operands for any step on a matrix `[n, d]`. A step that comes twice reads the same ones.
struct Operands {
    scale: Vec<f32>,
    bias: Vec<f32>,
    other: Matrix,
}

impl Operands {
    fn new(numbers: &mut Numbers, n: usize, d: usize) -> Self {
        Self { scale: numbers.units(n), bias: numbers.units(d), other: numbers.matrix(n, d) }
    }

    fn step(&self, rig: &Rig, kind: Kind) -> RowStep {
        match kind {
            Scale => RowStep::Scale(rig.put(&self.scale)),
            AddBias => RowStep::AddBias(rig.put(&self.bias)),
            Add => RowStep::Add(rig.put(&self.other.data)),
            Relu => RowStep::Relu,
            ReluGrad => RowStep::ReluGrad(rig.put(&self.other.data)),
            Dropout => RowStep::Dropout { key: KEY, clock: rig.put(&[EPOCH, 1]) },
        }
    }

    /// The step as the reference does it, on the result and on the sum of the terms' sizes.
    fn apply(&self, kind: Kind, [x, size]: [Dense; 2]) -> [Dense; 2] {
        let (scale, bias, other) = (wide(&self.scale), wide(&self.bias), self.other.dense());
        match kind {
            Scale => [reference::row_scale(&x, &scale), reference::row_scale(&size, &absolute(&scale))],
            AddBias => [reference::add_bias(&x, &bias), reference::add_bias(&size, &absolute(&bias))],
            Add => [reference::add(&x, &other), reference::add(&size, &other.map(f64::abs))],
            // What is 0 by rounding may be on either side.
            Relu => [reference::relu(&x), size],
            ReluGrad => [reference::relu_grad(&x, &other), size],
            Dropout => [reference::dropout(&x, KEY, EPOCH), reference::dropout(&size, KEY, EPOCH)],
        }
    }
}

/// The call of one step alone, from `x` to `out`.
fn alone(step: RowStep, x: Mat, out: Mat) -> Call {
    match step {
        RowStep::Scale(scale) => Call::RowScale { x, scale, out },
        RowStep::AddBias(bias) => Call::AddBias { x, bias, out },
        RowStep::Add(slot) => Call::Add { a: x, b: Mat { slot, ..x }, out },
        RowStep::Relu => Call::Relu { x, out },
        RowStep::ReluGrad(slot) => Call::ReluGrad { grad: x, y: Mat { slot, ..x }, out },
        RowStep::Dropout { key, clock } => Call::Dropout { x, out, key, clock },
    }
}

/// Holds `head` with each chain behind it against the reference, and against the same calls one after the other.
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
    for chain in CHAINS {
        let what = format!("{what}, then {chain:?}");
        let fused = on_any_threads(&what, |rig| {
            let out = rig.out(n, d);
            let steps = chain.iter().map(|&kind| operands.step(rig, kind)).collect();
            rig.run(out, &Call::Fused { head: Box::new(head(rig, out)), steps })
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
        assert_close(&what, &fused, &done[0].data, &done[1].data, terms + 2 * chain.len());
    }
}

#[test]
fn steps_behind_a_gather() {
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
            check(&what, numbers, &want, &size, longest + 1, &|rig, out| Call::Gather {
                block: rig.block(&graph),
                weights: weights.as_ref().map(|weights| rig.put(weights)),
                own: rig.mat(&own),
                halo: halo.as_ref().map(|halo| rig.mat(halo)),
                out,
            });
        }
    }
}

#[test]
fn steps_behind_products() {
    let shapes =
        [(0, 3, 4), (5, 0, 4), (5, 4, 0), (1, 1, 1), (3, 17, 41), (1537, 7, 3), (4000, 41, 17), (70, 20, 2100)];
    for (n, d_in, d_out) in shapes {
        let numbers = &mut Numbers((n * d_in + d_out) as u64);
        let (x, weight, grad) = (numbers.matrix(n, d_in), numbers.matrix(d_out, d_in), numbers.matrix(n, d_out));
        let (dx, dw, dg) = (x.dense(), weight.dense(), grad.dense());
        let (ax, aw, ag) = (dx.map(f64::abs), dw.map(f64::abs), dg.map(f64::abs));
        let what = format!("linear, {n} x {d_in} x {d_out}");
        let (want, size) = (reference::linear(&dx, &dw), reference::linear(&ax, &aw));
        check(&what, numbers, &want, &size, d_in, &|rig, out| Call::Linear {
            x: rig.mat(&x),
            weight: rig.mat(&weight),
            out,
        });
        let what = format!("linear_input_grad, {n} x {d_in} x {d_out}");
        let (want, size) = (reference::linear_input_grad(&dg, &dw), reference::linear_input_grad(&ag, &aw));
        check(&what, numbers, &want, &size, d_out, &|rig, out| Call::LinearInputGrad {
            grad: rig.mat(&grad),
            weight: rig.mat(&weight),
            out,
        });
    }
}

#[test]
fn steps_behind_steps() {
    for (n, d) in [(0, 3), (4, 0), (1, 1), (1030, 17), (2500, 3), (3, 5000)] {
        for kind in [Scale, AddBias, Add, Relu, ReluGrad, Dropout] {
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

/// What a step of the chain that is left out, put elsewhere or given other operands does to the bits.
#[test]
fn a_wrong_chain_shows() {
    let numbers = &mut Numbers(3);
    let (x, operands) = (numbers.matrix(50, 9), Operands::new(numbers, 50, 9));
    let run = |chain: &[Kind], change: &dyn Fn(&mut Vec<RowStep>)| {
        let rig = Rig::new(1);
        let out = rig.out(50, 9);
        let mut steps = chain.iter().map(|&kind| operands.step(&rig, kind)).collect();
        change(&mut steps);
        rig.run(out, &Call::Fused { head: Box::new(Call::Relu { x: rig.mat(&x), out }), steps })
    };
    let chain = [Scale, AddBias, ReluGrad, Dropout];
    let good = run(&chain, &|_| ());
    assert!(same_bits(&good, &run(&chain, &|_| ())));
    for left_out in 0..chain.len() {
        assert!(
            !same_bits(
                &good,
                &run(&chain, &|steps| {
                    steps.remove(left_out);
                })
            ),
            "{left_out}"
        );
    }
    assert!(!same_bits(&good, &run(&chain, &|steps| steps.swap(0, 1))));
    let other_key = |steps: &mut Vec<RowStep>| {
        if let RowStep::Dropout { key, .. } = &mut steps[3] {
            key.first_row += 1;
        }
    };
    assert!(!same_bits(&good, &run(&chain, &other_key)));
}

#[test]
fn a_fused_call_names_all_its_slots() {
    let mat = |slot| Mat::f32(Slot(slot), 2, 2);
    let steps = vec![
        RowStep::Scale(Slot(3)),
        RowStep::AddBias(Slot(4)),
        RowStep::Add(Slot(5)),
        RowStep::Relu,
        RowStep::ReluGrad(Slot(6)),
        RowStep::Dropout { key: KEY, clock: Slot(7) },
    ];
    let head = Box::new(Call::Linear { x: mat(0), weight: mat(1), out: mat(2) });
    let call = Call::Fused { head, steps };
    assert_eq!(call.reads(), [0, 1, 3, 4, 5, 6, 7].map(Slot));
    assert_eq!(call.writes(), [Slot(2)]);
    let moved = call.renamed(|slot| Slot(slot.0 + 10));
    assert_eq!(moved.reads(), [10, 11, 13, 14, 15, 16, 17].map(Slot));
    assert_eq!(moved.writes(), [Slot(12)]);
    assert_eq!(call.name(), "fused_linear");
}

#[test]
fn what_does_not_fit_is_refused_and_writes_nothing() {
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
    let fused = |head: Call, step| Call::Fused { head: Box::new(head), steps: vec![step] };
    let small = rig.put(&[1.0f32]);
    for step in [RowStep::Scale(small), RowStep::AddBias(small), RowStep::Add(small), RowStep::ReluGrad(small)] {
        let objection = refuse(&|out| fused(Call::Relu { x, out }, step));
        assert!(matches!(objection, Error::SlotSize { slot, .. } if slot == small), "{objection}");
    }
    let clock = rig.put(&[1u64, 1]);
    let all = RowStep::Dropout { key: DropoutKey { rate: 1.0, ..KEY }, clock };
    assert!(matches!(refuse(&|out| fused(Call::Relu { x, out }, all)), Error::Argument { operand: "rate", .. }));
    assert!(matches!(refuse(&|out| fused(Call::Relu { x, out }, RowStep::Add(out.slot))), Error::Aliased { .. }));
    let wrong = Call::Relu { x: Mat { rows: 2, cols: 2, ..x }, out: x };
    assert!(rig.launch(&fused(wrong, RowStep::Relu)).is_err());
    let sum = |out: Mat| fused(Call::ColumnSum { x, out: out.slot }, RowStep::Relu);
    let objection = refuse(&sum);
    assert_eq!(objection.to_string(), "row steps cannot follow column_sum");
}
