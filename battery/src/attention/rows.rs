//! The operations on single rows and on parameters that belong to attention.

use super::case::{exact, outputs, put, rounded};
use super::near;
use crate::common::*;
use lapidary_kernels::op::oracle::{self, Array};
use lapidary_kernels::op::{AttentionRows, Score};
use lapidary_kernels::{Call, DType, Error, Mat, Slot, StorageType};

/// An operation with the sizes of its operands, and whether each is stored as the rows are.
struct Rows {
    op: AttentionRows,
    inputs: Vec<([usize; 2], bool)>,
    out: ([usize; 2], bool),
}

fn rows(op: AttentionRows, inputs: &[([usize; 2], bool)], out: ([usize; 2], bool)) -> Rows {
    Rows { op, inputs: inputs.to_vec(), out }
}

/// Returns every operation with these sizes.
fn operations(n: usize, heads: usize, width: usize, k: usize) -> Vec<Rows> {
    use AttentionRows::{
        Alternate, Columns, Grads, HeadDots, HeadScale, ScoreVectorGrad, ScoreWeight, ScoreWeightGrad,
    };
    let d = heads * width;
    let (stored, f32) = (|cols| ([n, cols], true), |rows, cols| ([rows, cols], false));
    let (a, scored) = (f32(1, d), f32(d + 2 * heads, k));
    let grads = |score, ends, cols| {
        rows(Grads { heads, score }, &[stored(d), stored(d), f32(n, heads), stored(ends)], f32(n, cols))
    };
    let columns = |parts, part| rows(Columns { parts, part }, &[stored(parts * d)], stored(d));
    let vector = |second| rows(ScoreVectorGrad { heads, second }, &[scored, f32(d, k)], a);
    vec![
        grads(Score::Gat, d + 2 * heads, d + 3 * heads),
        grads(Score::Gatv2, d, 2 * d + 2 * heads),
        columns(2, 0),
        columns(2, 1),
        columns(3, 0),
        columns(3, 2),
        rows(HeadDots { heads }, &[a, a], f32(1, heads)),
        rows(HeadScale { heads }, &[f32(1, heads), a], a),
        rows(Alternate { heads, inverse: false }, &[f32(d, k)], f32(d, k)),
        rows(Alternate { heads, inverse: true }, &[f32(d, k)], f32(d, k)),
        rows(ScoreWeight { heads }, &[f32(d, k), a, a], scored),
        rows(ScoreWeightGrad { heads }, &[scored, a, a], f32(d, k)),
        vector(false),
        vector(true),
    ]
}

fn matrices(rows: &Rows) -> Vec<Matrix> {
    let numbers = &mut Numbers(3);
    let matrix = |&([rows, cols], _): &([usize; 2], bool)| Matrix { rows, cols, data: exact(numbers, rows * cols) };
    rows.inputs.iter().map(matrix).collect()
}

fn call(rig: &Rig, rows: &Rows, float: StorageType) -> Call {
    let typed = |stored: bool| if stored { float } else { StorageType::F32 };
    let inputs = matrices(rows).into_iter().zip(&rows.inputs).map(|(x, input)| put(rig, &x, typed(input.1)));
    let ([n, cols], stored) = rows.out;
    let out = put(rig, &Matrix { rows: n, cols, data: vec![f32::NAN; n * cols] }, typed(stored));
    Call::new(rows.op, inputs.collect::<Vec<_>>(), [out])
}

pub(crate) fn rows_of_attention_are_the_reference_in_both_storage_types() {
    for (n, heads, width, k) in [
        (0, 2, 3, 4),
        (6, 2, 0, 4),
        (1, 1, 1, 1),
        (50, 1, 33, 7),
        (33, 3, 8, 17),
        (9, 8, 8, 602),
        (5, 40, 2, 3),
        (4, 1, 300, 5),
    ] {
        for rows in operations(n, heads, width, k) {
            let what = format!("{:?}, {n} rows, {heads} heads of {width}, {k}", rows.op);
            let run = |float| {
                on_any_threads(&what, |rig| {
                    let call = call(rig, &rows, float);
                    rig.launch(&call).unwrap();
                    outputs(rig, &call)
                })
            };
            let got = run(StorageType::F32);
            let arrays: Vec<Array> = matrices(&rows).iter().map(|x| Array::Float(wide(&x.data))).collect();
            let mats = rows.inputs.iter().enumerate();
            let mats = mats.map(|(i, ([rows, cols], _))| Mat::f32(Slot(i as u32), *rows, *cols)).collect::<Vec<_>>();
            let [out_rows, cols] = rows.out.0;
            let call = Call::new(rows.op, mats, [Mat::f32(Slot(9), out_rows, cols)]);
            near(&what, &got, oracle::run(&call, |slot| &arrays[slot.0 as usize])[0].1.floats());
            let want: Vec<f32> = match rows.out.1 {
                true => rounded(&got).into_iter().map(f32::from).collect(),
                false => got,
            };
            assert!(same_bits(&run(StorageType::Bf16), &want), "{what}: other bits in bf16");
        }
    }
}

pub(crate) fn rows_of_attention_that_do_not_fit_are_errors() {
    let rig = Rig::new(1);
    for rows in operations(3, 2, 4, 5) {
        for place in 0..rows.inputs.len() {
            let mut wrong = call(&rig, &rows, StorageType::F32);
            wrong.inputs[place].cols += 1;
            let objection = rig.launch(&wrong).unwrap_err();
            assert!(matches!(objection, Error::Shape { .. }), "{:?}, operand {place}: {objection}", rows.op);
            wrong.inputs[place].cols -= 1;
            wrong.inputs[place].dtype = DType::U32;
            let objection = rig.launch(&wrong).unwrap_err();
            assert!(matches!(objection, Error::Stored { .. }), "{:?}, operand {place}: {objection}", rows.op);
        }
    }
    // Four columns do not divide into three heads.
    let mat = |rows, cols| rig.mat(&Numbers(1).matrix(rows, cols));
    for heads in [0, 3] {
        let dots = Call::new(AttentionRows::HeadDots { heads }, [mat(1, 4), mat(1, 4)], [rig.out(1, heads)]);
        let scale = Call::new(AttentionRows::HeadScale { heads }, [mat(1, heads), mat(1, 4)], [rig.out(1, 4)]);
        let scored = 4 + 2 * heads;
        let inputs = [mat(4, 5), mat(1, 4), mat(1, 4)];
        let weight = Call::new(AttentionRows::ScoreWeight { heads }, inputs, [rig.out(scored, 5)]);
        let inputs = [mat(scored, 5), mat(1, 4), mat(1, 4)];
        let weight_grad = Call::new(AttentionRows::ScoreWeightGrad { heads }, inputs, [rig.out(4, 5)]);
        let vector = AttentionRows::ScoreVectorGrad { heads, second: true };
        let vector = Call::new(vector, [mat(scored, 5), mat(4, 5)], [rig.out(1, 4)]);
        let grads = AttentionRows::Grads { heads, score: Score::Gatv2 };
        let inputs = [mat(3, 4), mat(3, 4), mat(3, heads), mat(3, 4)];
        let grads = Call::new(grads, inputs, [rig.out(3, 8 + 2 * heads)]);
        for call in [dots, scale, weight, weight_grad, vector, grads] {
            let objection = rig.launch(&call).unwrap_err();
            assert!(matches!(objection, Error::Argument { operand: "heads", .. }), "{:?}: {objection}", call.op);
        }
    }
}
