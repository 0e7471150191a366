//! The suite: short trainings on made-up graphs, which measure the kernels of this machine.
//!
//! Together they have calls of all sizes: of graphs that lie in a cache and of graphs that do not, of few and of many
//! neighbours, with dense and with sparse features, on whole matrices, on tiles and in windows. So the times of all other
//! calls lie between those that were measured.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use lapidary_cost_model::KernelTimes;
use lapidary_kernels::StorageType;
use ndarray::Array2;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::timed::{TimedEpochs, teach};
use crate::dataset::generate::{RmatOptions, rmat};
use crate::dataset::{Arrays, Dataset};
use crate::error::Result;
use crate::host::{self, ThreadSeconds};
use crate::model::{Model, ModelConfig};
use crate::plan::{BETWEEN_CALLS_AND_COPIES, Locality};
use crate::profile::{self, Busy, CPU};
use crate::runtime::Devices;
use crate::train::Trainer;

/// A graph of the suite.
struct Shape {
    vertices: usize,
    /// Edges per vertex, about.
    degree: usize,
    /// Width of the features, and non-zeros per row if they are sparse.
    features: (usize, Option<usize>),
    classes: usize,
    /// The trainings on it: model, with the number of heads of attention behind a slash, and hidden width.
    trainings: &'static [(&'static str, usize)],
    /// More trainings on it.
    special: &'static [(&'static str, usize, Special)],
}

/// What sets a training apart.
#[derive(Clone, Copy)]
enum Special {
    /// The device has this share of the memory, in percent.
    Memory(u64),
    Bf16,
    LayerNorm,
    /// It has two parts.
    Parts,
}

use Special::{Bf16, LayerNorm, Memory, Parts};

const SHAPES: [Shape; 9] = [
    Shape {
        vertices: 1 << 11,
        degree: 5,
        features: (600, Some(20)),
        classes: 7,
        trainings: &ALL,
        special: &[
            ("gcn", 64, Memory(40)),
            ("gcn", 16, Memory(20)),
            ("gin", 64, LayerNorm),
            ("sage", 32, Parts),
            ("gcn", 16, Memory(100)),
            ("gat/8", 64, Memory(30)),
            ("gatv2/4", 32, Parts),
        ],
    },
    Shape {
        vertices: 1 << 12,
        degree: 4,
        features: (1500, Some(40)),
        classes: 6,
        trainings: &ALL,
        special: &[("sage", 16, Memory(40)), ("gcn", 32, Bf16)],
    },
    Shape {
        vertices: 1 << 13,
        degree: 45,
        features: (64, None),
        classes: 10,
        trainings: &ALL,
        special: &[
            ("gcn", 64, Memory(50)),
            ("gcn", 16, Memory(50)),
            ("sage", 128, Memory(25)),
            ("gin", 16, Memory(25)),
            ("gcn", 64, Bf16),
            ("gin", 128, Bf16),
            ("sage", 64, LayerNorm),
            ("gcn", 128, Memory(100)),
            ("gcn", 16, Parts),
            ("gin", 128, Parts),
            ("gat/1", 16, Parts),
            ("gat/8", 64, Memory(25)),
            ("gat/1", 32, Memory(40)),
            ("gatv2/1", 64, Memory(50)),
            ("gatv2/8", 64, Memory(25)),
            ("gatv2/8", 64, Parts),
            ("gat/8", 64, Bf16),
            ("gatv2/1", 32, Bf16),
        ],
    },
    Shape {
        vertices: 1 << 14,
        degree: 14,
        features: (2000, Some(60)),
        classes: 12,
        trainings: &MOST,
        special: &[("gcn", 128, Memory(25)), ("sage", 64, Bf16), ("gcn", 64, Parts)],
    },
    Shape {
        vertices: 1 << 15,
        degree: 21,
        features: (128, None),
        classes: 32,
        trainings: &MOST,
        special: &[
            ("gcn", 128, Memory(50)),
            ("gin", 64, Memory(20)),
            ("sage", 16, Memory(25)),
            ("sage", 128, Bf16),
            ("resgcn", 128, LayerNorm),
            ("sage", 16, Parts),
            ("gcn", 256, Parts),
            ("gat/8", 64, Memory(50)),
            ("gatv2/2", 64, Memory(40)),
            ("gat/4", 64, Parts),
            ("gatv2/1", 32, Parts),
            ("gat/1", 64, Bf16),
        ],
    },
    Shape {
        vertices: 1 << 17,
        degree: 9,
        features: (96, None),
        classes: 40,
        trainings: &[("gcn", 16), ("gcn", 256), ("sage", 128), ("gin", 64), ("gat/1", 16), ("gatv2/1", 32)],
        special: &[("gcn", 128, Memory(25)), ("gin", 32, Memory(25)), ("gcn", 128, Bf16), ("gcn", 64, Parts)],
    },
    Shape {
        vertices: 1 << 15,
        degree: 160,
        features: (100, None),
        classes: 40,
        trainings: &[("gcn", 16), ("gcn", 256), ("sage", 256), ("gin", 64)],
        special: &[("gcn", 64, Memory(25)), ("gcn", 16, Memory(50)), ("sage", 16, Memory(25)), ("gcn", 128, Bf16)],
    },
    Shape {
        vertices: 1 << 13,
        degree: 700,
        features: (200, None),
        classes: 41,
        trainings: &[("gcn", 128), ("sage", 64)],
        special: &[("gcn", 128, Bf16)],
    },
    Shape {
        vertices: 1 << 13,
        degree: 36,
        features: (800, Some(250)),
        classes: 3,
        trainings: &[("gcn", 16), ("sage", 64)],
        special: &[("gcn", 16, Memory(20)), ("sage", 16, Memory(50)), ("gcn", 64, Memory(50))],
    },
];

/// Trainings on a small graph.
const ALL: [(&str, usize); 15] = [
    ("gcn", 16),
    ("gcn", 256),
    ("gin", 16),
    ("gin", 128),
    ("sage", 32),
    ("sage", 256),
    ("commnet", 64),
    ("resgcn", 16),
    ("resgcn", 128),
    ("gat/1", 16),
    ("gat/8", 64),
    ("gat/2", 256),
    ("gatv2/1", 64),
    ("gatv2/8", 64),
    ("gatv2/2", 256),
];

/// Trainings on a graph of medium size.
const MOST: [(&str, usize); 11] = [
    ("gcn", 16),
    ("gcn", 256),
    ("gin", 64),
    ("sage", 32),
    ("sage", 256),
    ("commnet", 128),
    ("resgcn", 64),
    ("gat/1", 16),
    ("gat/8", 16),
    ("gatv2/1", 128),
    ("gatv2/4", 32),
];

/// Draws so many different columns, in ascending order. Low ones are more frequent, as words are in texts.
fn words(rng: &mut impl Rng, width: usize, cells: usize) -> BTreeSet<u32> {
    let mut drawn = BTreeSet::new();
    while drawn.len() < cells {
        drawn.insert((width as f64 * rng.random::<f64>().powi(2)) as u32);
    }
    drawn
}

impl Shape {
    fn dataset(&self, seed: u64) -> Result<Dataset> {
        let n = self.vertices;
        // Each pair is two edges.
        let options =
            RmatOptions { vertices: n, edge_factor: self.degree as f64 / 2.0, seed, ..RmatOptions::default() };
        let graph = rmat(&options)?.graph().clone();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let labels: Vec<i64> = (0..n).map(|_| rng.random_range(0..self.classes as i64)).collect();
        // Splits at random: what follows a pattern, a processor predicts.
        let mut splits: [Vec<i64>; 3] = Default::default();
        (0..n as i64).for_each(|v| splits[[0, 0, 0, 1, 2][rng.random_range(0..5)]].push(v));
        let [train, val, test] = splits;
        let arrays = Arrays::new(graph).labels(&labels).train(&train).val(&val).test(&test);
        let arrays = match self.features {
            (width, None) => arrays.features(Array2::from_shape_simple_fn((n, width), || rng.random_range(-1.0..1.0))),
            (width, Some(cells)) => {
                let indptr: Vec<u64> = (0..=n as u64).map(|row| row * cells as u64).collect();
                let indices: Vec<u32> = (0..n).flat_map(|_| words(&mut rng, width, cells)).collect();
                let values = vec![1.0f32; n * cells];
                arrays.sparse_features(indptr, indices, values, width)
            }
        };
        Ok(Dataset::from_arrays(arrays)?)
    }

    fn trainer(&self, data: &Dataset, (model, hidden): (&str, usize), special: Option<Special>) -> Result<Trainer> {
        let widths = [self.features.0, hidden, self.classes];
        let (name, heads) = model.split_once('/').unwrap_or((model, "1"));
        let model = Model::from_config(ModelConfig::new(name, &widths)).expect("it is a model");
        let model = model.heads(heads.parse().expect("it is a number"));
        let model = model.dropout(0.5).layer_norm(matches!(special, Some(LayerNorm)));
        let builder = Trainer::builder(&model, data);
        match special {
            Some(Bf16) => builder.dtype(StorageType::Bf16).build(),
            Some(Memory(percent)) => {
                let whole =
                    Trainer::builder(&model, data).devices(Devices::sim(1)).build()?.planned_peak_device_bytes();
                let memory = ByteSize::b(whole[0] * percent / 100);
                builder.devices(Devices::sim(1)).device_memory(memory).build()
            }
            Some(Parts) => builder.devices(Devices::cpus(2)).build(),
            None | Some(LayerNorm) => builder.build(),
        }
    }
}

/// Epochs of each training that count, after [`WARM_UP`].
const EPOCHS: usize = 4;

/// Most epochs of each training beside other programs, and the time after which no more begin. Many are needed until each call
/// has once had a core for each of its threads.
const MOST_EPOCHS: usize = 32;
const MOST_TIME: Duration = Duration::from_secs(1);

/// First epochs of a training, which do not count: they touch memory for the first time, and edges are not stored window by
/// window yet.
const WARM_UP: usize = 5;

/// What the suite has measured.
#[derive(Clone, Debug)]
pub struct SuiteReport {
    /// The times of the kernels.
    pub times: KernelTimes,
    /// The share of all cores that other programs used meanwhile, from 0 to 1.
    pub busy: f64,
    /// Whether that was so much that the times are not to be trusted, and are measured again soon.
    pub disturbed: bool,
    /// Whether the times are remembered; otherwise, why not.
    pub kept: std::result::Result<(), String>,
}

/// Measures the kernels of this machine's cores, and remembers their times for all later forecasts with the profile `cpu`.
/// `progress` is called after each training, with the number of those that are done and of all.
///
/// # Cost
/// About 110 s on two cores, and 1 GiB of memory during that time; up to five minutes beside other programs.
/// # Errors
/// [`Error::Device`](crate::Error::Device) if the host does not have enough memory.
pub fn measure_kernels(mut progress: impl FnMut(usize, usize)) -> Result<SuiteReport> {
    let profile = profile::load(CPU)?;
    let count: usize = SHAPES.iter().map(|shape| shape.trainings.len() + shape.special.len()).sum();
    let mut times = KernelTimes::new(&profile);
    let (watch, mut done) = (Busy::watch(), 0);
    for (seed, shape) in (0u64..).zip(&SHAPES) {
        let data = shape.dataset(seed)?;
        let locality = Locality::new(CPU, &profile).of_graph(data.graph());
        let plain = shape.trainings.iter().map(|&(model, hidden)| (model, hidden, None));
        let special = shape.special.iter().map(|&(model, hidden, special)| (model, hidden, Some(special)));
        for (model, hidden, special) in plain.chain(special) {
            observe(&mut times, &mut shape.trainer(&data, (model, hidden), special)?, &locality)?;
            done += 1;
            progress(done, count);
        }
    }
    times.refit();
    let busy = watch.end();
    let kept = profile::remember_kernels(CPU, &times, Some(busy)).map_err(|error| error.to_string());
    Ok(SuiteReport { times, busy: busy.0, disturbed: busy.disturbs(), kept })
}

/// Runs a few epochs and adds the times of their calls. Beside other programs, it runs more, and the least times count, without
/// the time in which threads waited for a core.
fn observe(times: &mut KernelTimes, trainer: &mut Trainer, locality: &Locality) -> Result<()> {
    let (watch, before) = (Busy::watch(), host::thread_seconds());
    trainer.start_trace();
    for _ in 0..WARM_UP {
        trainer.step()?;
    }
    let (start, mut epochs) = (Instant::now(), TimedEpochs::default());
    let busy = loop {
        for _ in 0..EPOCHS {
            trainer.step()?;
            epochs.add(trainer.measured_calls(locality));
        }
        let busy = watch.end();
        if !busy.disturbs() || epochs.alike() >= MOST_EPOCHS || start.elapsed() >= MOST_TIME {
            break busy;
        }
    };
    let mut calls = epochs.typical(busy);
    if busy.disturbs()
        && let Some((before, after)) = before.zip(host::thread_seconds())
    {
        let share = share_of_waiting(before, after);
        calls.iter_mut().for_each(|call| call.seconds = without_waiting(call.seconds, share));
        // A thread that continues where another one has ended mostly waits for a core.
        calls.retain(|call| call.kernel != BETWEEN_CALLS_AND_COPIES);
    }
    teach(times, calls, true);
    Ok(())
}

/// How long a thread keeps a core that others want, in seconds.
const TURN_S: f64 = 3e-3;

/// Most of its time that a thread is taken to have waited for a core.
const MOST_WAITED: f64 = 0.8;

/// Returns the share of their time that threads waited for a core.
fn share_of_waiting(before: ThreadSeconds, after: ThreadSeconds) -> f64 {
    let [running, waiting] = [after.running - before.running, after.waiting - before.waiting];
    let share = waiting / (running + waiting);
    if share.is_finite() { share.clamp(0.0, MOST_WAITED) } else { 0.0 }
}

/// Returns the seconds of a call without those in which its threads waited, if they waited for this share of all their time.
/// In the fastest of several epochs, a call that is shorter than a turn did not wait.
fn without_waiting(seconds: f64, share: f64) -> f64 {
    seconds - (seconds - TURN_S).max(0.0) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_calls_wait_and_short_ones_do_not() {
        let at = |running, waiting| ThreadSeconds { running, waiting };
        assert_eq!(share_of_waiting(at(1.0, 1.0), at(3.0, 3.0)), 0.5);
        assert_eq!(share_of_waiting(at(1.0, 1.0), at(1.0, 1.0)), 0.0, "nothing ran");
        assert_eq!(share_of_waiting(at(1.0, 1.0), at(1.0, 9.0)), MOST_WAITED);
        assert_eq!(without_waiting(2e-3, 0.5), 2e-3);
        assert!((without_waiting(20e-3, 0.5) - 11.5e-3).abs() < 1e-12);
    }
}
