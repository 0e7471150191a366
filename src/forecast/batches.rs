//! Forecasts of mini-batches: how large they are, what they need of a device, and how long an epoch of them takes.

use std::collections::BTreeSet;
use std::time::Instant;

use lapidary_cost_model::Profile;
use lapidary_planner::memory::Epoch;

use super::DryRun;
use crate::error::{Error, Result};
use crate::lower::{FeatureData, Inputs, Lowered, Sizes, Tiling, lower};
use crate::plan::{DeviceBudget, Method, Script, Sequence, Timeline, plan_sequence};
use crate::profile;
use crate::program::{EMBEDDING, LevelSizes, Program};
use crate::sample::Scratch;
use crate::train::{
    Batches, Drawing, EmbeddingSize, FeatureCache, Sources, StageSeconds, TrainingProgram, gradient_name,
};
use lapidary_kernels::{Slot, StorageType};

/// Batches that are drawn for a forecast, at most.
const PROBES: usize = 16;

/// The sizes of caches in a forecast, as shares of all rows.
const CACHE_SHARES: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// What an epoch of mini-batches needs, on one device. Sizes are those of batches that were drawn.
#[derive(Clone, Debug)]
pub struct BatchForecast {
    /// The device profile that seconds of computing are predicted by.
    pub profile: Profile,
    /// Number of batches that were drawn. A run draws the same ones first.
    pub drawn: usize,
    /// Vertices of each level, from the one with the features to the seeds: the mean, and the most.
    pub vertices: Vec<[f64; 2]>,
    /// Edges drawn into each level but the first, in the same order.
    pub edges: Vec<[f64; 2]>,
    /// Bytes of features, or of learned rows, that an epoch gathers on the host and copies to the device.
    pub feature_bytes: u64,
    /// The learned rows that the model reads, if any: they and their moments are in the memory of the host. Their gradients
    /// are among the bytes of [`BatchForecast::outcome`] that are copied to the host.
    pub embedding: Option<EmbeddingSize>,
    /// Of the rows of features that an epoch needs, the share that is on the device already; `None` if no rows stay there.
    pub found_on_device: Option<f64>,
    /// The effect of caches of features of different sizes; empty for sparse features.
    pub caches: Vec<CacheForecast>,
    /// Rows of features that an epoch reads from the dataset's file, and the bytes of these reads; `None` if the file is
    /// mapped.
    pub reads: Option<[u64; 2]>,
    /// Bytes that a device needs so that nothing leaves it before its last use: the median of the batches, their ninth
    /// decile, the most, and what a run plans for.
    pub peak_bytes: [u64; 4],
    /// Memory of the device, in bytes.
    pub device_memory: u64,
    /// Bytes that the plan for the largest batches copies to the device and to the host, in a batch of the sizes that it
    /// is for; the bytes that it would need at least, if it does not fit.
    pub outcome: std::result::Result<[u64; 2], u64>,
    /// The number of batches of an epoch, and the seconds of its stages: sampling and gathering as measured on this
    /// machine for the drawn batches, one after the other; computing as predicted by the profile.
    pub stages: StageSeconds,
}

/// A cache with the rows of features that batches read most often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheForecast {
    /// Share of all rows that it has.
    pub share: f64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Of the rows that batches need, the share that is in it.
    pub hits: f64,
}

impl DryRun<'_> {
    /// Forecasts an epoch of mini-batches. Evaluations are not part of it.
    ///
    /// # Errors
    /// Those of [`DryRun::run`]; [`Error::Value`] for a shape, for several ranks, and for learned rows that do not go
    /// with the other options; [`Error::Batch`].
    /// # Cost
    /// That of drawing up to 80 batches, and of gathering and planning up to 16. With a cache, 64 more are drawn.
    pub fn run_batches(&self, batches: &Batches) -> Result<BatchForecast> {
        let wrong =
            |value: String, expected: &str| Err(Error::Value { option: "batch", value, expected: expected.into() });
        if self.rank_count() > 1 {
            return wrong(format!("{} ranks", self.rank_count()), "mini-batches are forecast for one process");
        }
        let (model, inputs) = self.bound(true)?;
        let (Some(inputs), Some(data)) = (inputs, self.data()) else {
            return wrong("a shape".into(), "the sizes of batches depend on the edges, so name a dataset");
        };
        self.check_embedding(Some(batches))?;
        let profile = profile::load(&self.profile_name())?;
        let rates = self.rates(&profile, Some(&inputs));
        let parts = self.batch_parts(&model, &inputs)?;
        let drawing = Drawing::new(batches.clone(), data, &inputs, self.storage(), 0, parts)?;
        let inputs = drawing.inputs();
        let order = drawing.order(1);
        let (mut scratch, mut shares, mut sample_s) = (Scratch::default(), Vec::new(), 0.0);
        let count = drawing.count().min(PROBES);
        for number in 0..count {
            let start = Instant::now();
            shares.push(drawing.draw(1, number, &order, &mut scratch)?);
            sample_s += start.elapsed().as_secs_f64();
        }
        let sizes: Vec<LevelSizes> = shares.iter().flatten().map(|drawn| drawing.sizes(drawn)).collect();
        let bound = sizes.iter().fold(LevelSizes::default(), |bound, sizes| bound.or(sizes)).with_room();
        let TrainingProgram { program: training, .. } =
            self.programs(&model, Some(inputs), Some((drawing.layers(), bound)))?;
        let plans = Plans { training: &training, inputs };
        let device_memory = self.device_bytes(&profile);
        let outcome = match plans.plan(bound, device_memory) {
            Ok((script, _)) => Ok([script.bytes_to_device, script.bytes_to_host]),
            Err(Error::DoesNotFit { need_bytes, .. }) => Err(need_bytes),
            Err(error) => return Err(error),
        };
        let free: Vec<(Script, Lowered)> =
            sizes.iter().map(|&sizes| plans.plan(sizes, u64::MAX)).collect::<Result<_>>()?;
        let mut peaks: Vec<u64> = free.iter().map(|(script, _)| script.peak_bytes).collect();
        peaks.sort_unstable();
        let quantile = |share: f64| peaks.get(((peaks.len() as f64 * share) as usize).min(peaks.len() - 1)).copied();
        let planned = plans.plan(bound, u64::MAX)?.0.peak_bytes;
        let supply = drawing.supply([&training]);
        let contents = plans.lower(bound).given_by_batch();
        let from = Sources { supply: &supply, contents: &contents, pulls: None, edges: None };
        let start = Instant::now();
        for (number, share) in shares.iter().enumerate() {
            drawing.give(&from, number, share)?;
        }
        let gather_s = start.elapsed().as_secs_f64();
        let mut each_s = free.iter().map(|(script, lowered)| Timeline::new(&rates, lowered, script).seconds);
        // The slowest device of each batch counts: the others wait for it.
        let of_batch = |share: &Vec<_>| each_s.by_ref().take(share.len()).fold(0.0, f64::max);
        let compute_s: f64 = shares.iter().map(of_batch).sum();
        let per_epoch = drawing.count() as f64 / count.max(1) as f64;
        let levels = 0..=drawing.layers() as u8;
        let vertices: Vec<&[u32]> = shares.iter().flatten().map(|drawn| &drawn.vertices[..]).collect();
        let reads = drawing.feature_rows().map(|rows| {
            let all = shares.iter().flatten().map(|drawn| rows.would_read(&drawing.copied(drawn)));
            let sum = all.fold([0, 0], |[rows, bytes], [more, more_bytes]| [rows + more, bytes + more_bytes]);
            sum.map(|count| (count as f64 * per_epoch) as u64)
        });
        let caches = match &inputs.features {
            FeatureData::Dense { .. } if self.learned().is_some() => Vec::new(),
            FeatureData::Dense { width, .. } => caches(&drawing.by_visits()?, &vertices, 4 * *width as u64),
            FeatureData::Sparse { .. } => Vec::new(),
        };
        let found: u64 = sizes.iter().map(|sizes| sizes.found).sum();
        let needed: u64 = sizes.iter().map(|sizes| sizes.rows(0)).sum();
        Ok(BatchForecast {
            found_on_device: inputs.kept.is_some().then(|| found as f64 / needed.max(1) as f64),
            caches,
            reads,
            drawn: count,
            vertices: levels.clone().map(|level| spread(&sizes, |sizes| sizes.rows(level))).collect(),
            edges: levels.skip(1).map(|level| spread(&sizes, |sizes| sizes.drawn(level))).collect(),
            feature_bytes: match self.learned() {
                Some((width, _)) => (4.0 * width as f64 * needed as f64 * per_epoch) as u64,
                None => (feature_bytes(inputs, self.storage(), &sizes) * per_epoch) as u64,
            },
            embedding: self
                .learned()
                .map(|(width, optimizer)| EmbeddingSize::new([data.graph().vertex_count(), width], optimizer)),
            peak_bytes: [quantile(0.5), quantile(0.9), peaks.last().copied(), Some(planned)]
                .map(Option::unwrap_or_default),
            device_memory,
            outcome,
            stages: StageSeconds {
                batches: drawing.count() as u64,
                vertices: (vertices.iter().map(|vertices| vertices.len()).sum::<usize>() as f64 * per_epoch) as u64,
                sample: sample_s * per_epoch,
                gather: gather_s * per_epoch,
                compute: compute_s * per_epoch,
                ..StageSeconds::default()
            },
            profile,
        })
    }
}

/// Plans of the training program for batches of different sizes.
struct Plans<'a> {
    training: &'a Program,
    inputs: &'a Inputs,
}

impl Plans<'_> {
    fn lower(&self, sizes: LevelSizes) -> Lowered {
        let tiling = Tiling::from(Sizes::of(self.inputs)).with_levels(sizes);
        lower(&[("train", self.training)], &tiling, 0)
    }

    fn plan(&self, sizes: LevelSizes, capacity_bytes: u64) -> Result<(Script, Lowered)> {
        let lowered = self.lower(sizes);
        let budget = DeviceBudget { name: "the device".into(), capacity_bytes, in_place: false };
        let gradient = lowered.phases[0].outputs.get(&gradient_name(EMBEDDING));
        let learned = gradient.into_iter().flatten().copied().filter(|_| lowered.learned_slot().is_some());
        let keep: BTreeSet<Slot> = learned.collect();
        let sequence = Sequence::Phases(&[0]);
        let planned = plan_sequence(&[&lowered], &[budget], sequence, &Epoch::Steady, &keep, &Method::default())?;
        Ok((planned.devices[0].script(), lowered))
    }
}

/// Returns how many of the rows that batches need caches would have. `by_visits` has the rows that are read most often first.
fn caches(by_visits: &[u32], batches: &[&[u32]], row_bytes: u64) -> Vec<CacheForecast> {
    let mut place = vec![0u32; by_visits.len()];
    by_visits.iter().zip(0..).for_each(|(&row, at)| place[row as usize] = at);
    let needed: usize = batches.iter().map(|rows| rows.len()).sum();
    let cache = |share: f64| {
        let rows = FeatureCache::Share(share).rows(by_visits.len(), row_bytes) as u32;
        let hits = batches.iter().flat_map(|rows| rows.iter()).filter(|&&row| place[row as usize] < rows).count();
        CacheForecast { share, bytes: u64::from(rows) * row_bytes, hits: hits as f64 / needed.max(1) as f64 }
    };
    CACHE_SHARES.into_iter().map(cache).collect()
}

/// Returns the mean of a size, and the most.
fn spread(sizes: &[LevelSizes], size: impl Fn(&LevelSizes) -> u64) -> [f64; 2] {
    let all: Vec<f64> = sizes.iter().map(|sizes| size(sizes) as f64).collect();
    [all.iter().sum::<f64>() / all.len().max(1) as f64, all.iter().copied().fold(0.0, f64::max)]
}

/// Returns the bytes of the features of these batches: numbers, and for sparse features their columns.
fn feature_bytes(inputs: &Inputs, dtype: StorageType, sizes: &[LevelSizes]) -> f64 {
    let of_batch = |sizes: &LevelSizes| match &inputs.features {
        FeatureData::Dense { width, .. } => {
            let rows = if inputs.kept.is_some() { sizes.copied } else { sizes.rows(0) };
            (dtype.byte_count() * width) as f64 * rows as f64
        }
        FeatureData::Sparse { .. } => 8.0 * sizes.feature_cells as f64,
    };
    sizes.iter().map(of_batch).sum()
}
