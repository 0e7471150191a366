//! Initial values of parameters.

use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::{Parameter, Weight, Weights};

/// How a parameter is initialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// Uniform in `+- sqrt(6 / (in + out))`, where `in` and `out` are the last two dimensions.
    ///
    /// Source: Glorot & Bengio, AISTATS 2010, equation 16.
    Glorot,
    /// Uniform in `+- 1 / sqrt(fan in)`, as `torch.nn.Linear` initialises weights and biases.
    FanIn(usize),
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
}

/// Draws all parameters; the same for the same seed. Each parameter has its own random stream, by its index in the
/// list.
pub fn initial_weights(parameters: &[Parameter], seed: u64) -> Weights {
    let mut weights = Weights::default();
    for (stream, parameter) in parameters.iter().enumerate() {
        let len = parameter.shape.iter().product();
        let data = match parameter.init {
            Init::Zeros => vec![0.0; len],
            Init::Ones => vec![1.0; len],
            Init::Glorot => {
                let last: usize = parameter.shape.iter().rev().take(2).sum();
                uniform(seed, stream as u64, (6.0 / last as f64).sqrt(), len)
            }
            Init::FanIn(fan_in) => uniform(seed, stream as u64, 1.0 / (fan_in as f64).sqrt(), len),
        };
        weights.insert(&parameter.name, Weight { shape: parameter.shape.clone(), data });
    }
    weights
}

/// Draws `len` numbers in `+- bound` from one random stream.
fn uniform(seed: u64, stream: u64, bound: f64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    let bound = bound as f32;
    let uniform = Uniform::new_inclusive(-bound, bound).expect("widths are at least 1, so the bound is finite");
    uniform.sample_iter(&mut rng).take(len).collect()
}
