//! Optimizer steps. The new values are written to slots of their own. A call updates one window of the parameter.

use super::Op;
use super::oracle::{Array, Given};
use super::record::Dim::{Just, Scalar, UpdateRows, UpdateWhole, UpdateWindow};
use super::record::{CLOCK, Operand, PLAIN, Record, of};
use super::types::DType::F32;
use crate::reference;
use crate::step::{AdamStep, SgdStep};

/// An update of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent as `torch.optim.SGD`: `(param, grad, clock, rate) -> param'`, or with momentum
    /// `(param, grad, clock, rate, m) -> (param', m')`: `g = grad + decay * param`; `m = momentum * m + g` (`m = g` at
    /// step 1); `param -= rate * m`. Without momentum, `m` is `g`.
    Sgd {
        /// Momentum, in `[0, 1)`.
        momentum: f64,
        /// L2 decay.
        weight_decay: f64,
    },
    /// Adam as `torch.optim.Adam`, or with `decoupled` as `torch.optim.AdamW`:
    /// `(param, grad, m, v, clock, rate) -> (param', m', v')`.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// L2 decay, added to the gradient; with `decoupled`, `param` shrinks by `rate * weight_decay` first.
        weight_decay: f64,
        /// Whether the weight decay is decoupled from the gradient (AdamW).
        decoupled: bool,
    },
}

const RATE: Operand = of(F32, "rate", Scalar, Just(1));

/// An operand that has the whole parameter; the call updates its window.
const fn whole(name: &'static str) -> Operand {
    of(F32, name, UpdateRows, UpdateWhole)
}

/// An operand that has the window only.
const fn window(name: &'static str) -> Operand {
    of(F32, name, UpdateRows, UpdateWindow)
}

static SGD: Record = Record {
    name: "sgd",
    inputs: &[whole("param"), whole("grad"), CLOCK, RATE],
    outputs: &[window("out")],
    reference: sgd,
    ..PLAIN
};

static MOMENTUM: Record = Record {
    name: "sgd",
    inputs: &[whole("param"), whole("grad"), CLOCK, RATE, window("m")],
    outputs: &[window("out"), window("next m")],
    reference: sgd,
    ..PLAIN
};

static ADAM: Record = Record {
    name: "adam",
    inputs: &[whole("param"), whole("grad"), window("m"), window("v"), CLOCK, RATE],
    outputs: &[window("out"), window("next m"), window("next v")],
    reference: |given| {
        let window = given.window();
        let (mut w, grad) = (given.floats(0)[window.clone()].to_vec(), &given.floats(1)[window]);
        let (mut m, mut v) = (given.floats(2).to_vec(), given.floats(3).to_vec());
        let step = adam_step(given.op(), given.u64s(4)[1], given.floats(5)[0]);
        reference::adam(&mut w, grad, &mut m, &mut v, step);
        [w, m, v].map(Array::Float).into()
    },
    ..PLAIN
};

fn sgd(given: &Given<'_>) -> Vec<Array> {
    let window = given.window();
    let (mut w, grad) = (given.floats(0)[window.clone()].to_vec(), &given.floats(1)[window]);
    let mut m = (given.count_operands() > 4).then(|| given.floats(4).to_vec());
    let step = sgd_step(given.op(), given.u64s(2)[1], given.floats(3)[0]);
    reference::sgd(&mut w, grad, m.as_deref_mut(), step);
    std::iter::once(w).chain(m).map(Array::Float).collect()
}

/// Returns the settings of an SGD step.
pub(crate) fn sgd_step(op: &Op, step: u64, rate: f64) -> SgdStep {
    match *op {
        Op::Optimizer(Optimizer::Sgd { momentum, weight_decay }) => SgdStep { step, rate, momentum, weight_decay },
        _ => unreachable!("only SGD has SGD's settings"),
    }
}

/// Returns the settings of an Adam step.
pub(crate) fn adam_step(op: &Op, step: u64, rate: f64) -> AdamStep {
    match *op {
        Op::Optimizer(Optimizer::Adam { beta1, beta2, eps, weight_decay, decoupled }) => {
            AdamStep { step, rate, beta1, beta2, eps, weight_decay, decoupled }
        }
        _ => unreachable!("only Adam has Adam's settings"),
    }
}

impl Optimizer {
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Sgd { momentum, .. } if *momentum > 0.0 => &MOMENTUM,
            Self::Sgd { .. } => &SGD,
            Self::Adam { .. } => &ADAM,
        }
    }
}
