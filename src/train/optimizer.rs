//! Optimizers: how parameters are updated from their gradients.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use lapidary_kernels::op;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::Parameter;
use crate::program::{CLOCK, Origin, Program, ProgramError, RowSpace, SCALAR, TensorId, TensorType};

/// Stochastic gradient descent; equivalent to `torch.optim.SGD`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    lr: f64,
    momentum: f64,
    weight_decay: f64,
}

impl Sgd {
    /// Returns SGD without momentum or weight decay.
    pub fn new(lr: f64) -> Self {
        Self { lr, momentum: 0.0, weight_decay: 0.0 }
    }

    /// Sets the momentum, in `[0, 1)`.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Sets the L2 weight decay.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay, ..self }
    }
}

/// Adam; equivalent to `torch.optim.Adam`: the weight decay is added to the gradient.
///
/// # Source
/// Kingma & Ba, ICLR 2015, algorithm 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
}

impl Adam {
    /// Returns Adam with betas 0.9 and 0.999, eps 1e-8, and no weight decay.
    pub fn new(lr: f64) -> Self {
        Self { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }

    /// Sets the decay rates of the two moments, each in `[0, 1)`.
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Self { beta1, beta2, ..self }
    }

    /// Sets the number that is added to the root of the second moment.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// Sets the L2 weight decay.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay, ..self }
    }
}

/// Adam with decoupled weight decay; equivalent to `torch.optim.AdamW`: each step shrinks parameters by
/// `lr * weight_decay`, relative to their value.
///
/// # Source
/// Loshchilov & Hutter, ICLR 2019, algorithm 2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW(Adam);

impl AdamW {
    /// Returns AdamW with betas 0.9 and 0.999, eps 1e-8, and a weight decay of 0.01.
    pub fn new(lr: f64) -> Self {
        Self(Adam::new(lr).weight_decay(0.01))
    }

    /// Sets the decay rates of the two moments, each in `[0, 1)`.
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Self(self.0.betas(beta1, beta2))
    }

    /// Sets the number that is added to the root of the second moment.
    pub fn eps(self, eps: f64) -> Self {
        Self(self.0.eps(eps))
    }

    /// Sets the decoupled weight decay.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self(self.0.weight_decay(weight_decay))
    }
}

/// One of the optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Optimizer {
    /// [`Sgd`].
    Sgd(Sgd),
    /// [`Adam`].
    Adam(Adam),
    /// [`AdamW`].
    AdamW(AdamW),
}

impl From<Sgd> for Optimizer {
    fn from(sgd: Sgd) -> Self {
        Self::Sgd(sgd)
    }
}

impl From<Adam> for Optimizer {
    fn from(adam: Adam) -> Self {
        Self::Adam(adam)
    }
}

impl From<AdamW> for Optimizer {
    fn from(adamw: AdamW) -> Self {
        Self::AdamW(adamw)
    }
}

/// The layers to which weight decay applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecayLayers {
    /// All layers, as in `torch.optim.Adam`.
    #[default]
    All,
    /// The first layer only, as in the experiments of the GCN paper.
    First,
}

impl fmt::Display for DecayLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::All => "all",
            Self::First => "first",
        })
    }
}

impl FromStr for DecayLayers {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "all" => Ok(Self::All),
            "first" => Ok(Self::First),
            _ => {
                let expected = "write all or first".into();
                Err(Error::Value { option: "the layers that decay", value: name.into(), expected })
            }
        }
    }
}

impl fmt::Display for Optimizer {
    /// Writes the optimizer's name: `sgd`, `adam` or `adamw`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sgd(_) => "sgd",
            Self::Adam(_) => "adam",
            Self::AdamW(_) => "adamw",
        })
    }
}

/// What the learning rate must be.
const AT_LEAST_0: &str = "it is a finite number, 0 or more";

/// Returns whether a number can be a learning rate. It reaches the device as f32.
fn is_rate(lr: f64) -> bool {
    lr >= 0.0 && (lr as f32).is_finite()
}

/// Checks a learning rate.
///
/// # Errors
/// [`Error::Value`].
pub(super) fn check_learning_rate(lr: f64) -> Result<()> {
    match is_rate(lr) {
        true => Ok(()),
        false => Err(Error::Value { option: "lr", value: lr.to_string(), expected: AT_LEAST_0.into() }),
    }
}

impl Optimizer {
    /// Returns the learning rate.
    pub fn lr(&self) -> f64 {
        match self {
            Self::Sgd(sgd) => sgd.lr,
            Self::Adam(adam) | Self::AdamW(AdamW(adam)) => adam.lr,
        }
    }

    /// Checks the optimizer's settings.
    ///
    /// # Errors
    /// [`Error::Value`], with the setting's name and valid range.
    pub(super) fn check(&self) -> Result<()> {
        let below_1 = "it lies in [0, 1)";
        let rate = |lr: f64| ("lr", lr, is_rate(lr), AT_LEAST_0);
        let amount = |option, x: f64| (option, x, x >= 0.0 && x.is_finite(), AT_LEAST_0);
        let share = |option, x: f64| (option, x, (0.0..1.0).contains(&x), below_1);
        let checks = match *self {
            Self::Sgd(Sgd { lr, momentum, weight_decay }) => {
                vec![rate(lr), share("momentum", momentum), amount("weight_decay", weight_decay)]
            }
            Self::Adam(Adam { lr, beta1, beta2, eps, weight_decay })
            | Self::AdamW(AdamW(Adam { lr, beta1, beta2, eps, weight_decay })) => vec![
                rate(lr),
                share("beta1", beta1),
                share("beta2", beta2),
                amount("eps", eps),
                amount("weight_decay", weight_decay),
            ],
        };
        match checks.into_iter().find(|(_, _, good, _)| !good) {
            Some((option, value, _, expected)) => {
                Err(Error::Value { option, value: value.to_string(), expected: expected.into() })
            }
            None => Ok(()),
        }
    }

    /// Returns the number of moments that are kept for each parameter.
    pub(crate) fn moment_count(&self) -> u8 {
        match self {
            Self::Sgd(sgd) => u8::from(sgd.momentum > 0.0),
            Self::Adam(_) | Self::AdamW(_) => 2,
        }
    }

    /// Returns both betas and eps of Adam and AdamW; `None` for SGD.
    pub(super) fn adam_settings(&self) -> Option<[f64; 3]> {
        match *self {
            Self::Sgd(_) => None,
            Self::Adam(adam) | Self::AdamW(AdamW(adam)) => Some([adam.beta1, adam.beta2, adam.eps]),
        }
    }

    /// Returns the operation that updates one parameter.
    fn op(&self, decays: bool) -> op::Optimizer {
        let decay = |weight_decay| if decays { weight_decay } else { 0.0 };
        match *self {
            Self::Sgd(Sgd { momentum, weight_decay, .. }) => {
                op::Optimizer::Sgd { momentum, weight_decay: decay(weight_decay) }
            }
            Self::Adam(adam) | Self::AdamW(AdamW(adam)) => op::Optimizer::Adam {
                beta1: adam.beta1,
                beta2: adam.beta2,
                eps: adam.eps,
                weight_decay: decay(adam.weight_decay),
                decoupled: matches!(self, Self::AdamW(_)),
            },
        }
    }
}

/// Appends one update for each parameter that has a gradient. The new values of the parameter and of its moments become
/// those of the next epoch.
pub(super) fn append_updates(
    program: &mut Program,
    parameters: &[Parameter],
    gradients: &BTreeMap<String, TensorId>,
    optimizer: &Optimizer,
    decay: DecayLayers,
) -> std::result::Result<(), ProgramError> {
    let clock = program.input(Origin::Clock, CLOCK)?;
    let rate = program.input(Origin::LearningRate, SCALAR)?;
    let first_layer = parameters.iter().filter_map(Parameter::layer).min();
    for parameter in parameters {
        let Some(&gradient) = gradients.get(&parameter.name) else { continue };
        let (rows, cols) = parameter.rows_cols();
        let ty = TensorType::f32(RowSpace::Param(rows), cols);
        let mut state = vec![program.input(Origin::Parameter(parameter.name.clone()), ty)?];
        for which in 1..=optimizer.moment_count() {
            state.push(program.input(Origin::Moment { parameter: parameter.name.clone(), which }, ty)?);
        }
        // Inputs are in the order of the operation's record.
        let inputs = match (optimizer, &state[..]) {
            (Optimizer::Sgd(_), &[parameter, ref m @ ..]) => [&[parameter, gradient, clock, rate], m].concat(),
            (_, state) => [&[state[0], gradient], &state[1..], &[clock, rate]].concat(),
        };
        let decays = decay == DecayLayers::All || parameter.layer() == first_layer;
        let updated = program.push(optimizer.op(decays), &inputs)?;
        for (output, input) in updated.into_iter().zip(state) {
            program.set_next(output, input);
        }
    }
    Ok(())
}
