//! A learned embedding: a row of numbers for each vertex, which mini-batches read in place of features.
//!
//! The rows and their moments are in host memory. With several ranks, each holds those of the vertices of its parts. A batch
//! takes its rows after the update of the batch before it, and its program returns their gradients, with which
//! [`update`] changes the rows that the batch read, and no others.

mod update;

use std::ops::Range;

use lapidary_kernels::memory::AlignedBytes;
use lapidary_kernels::random::{draw, row_key};
use lapidary_kernels::{HostSlot, Shared, Slot, StorageType};
use rayon::prelude::*;

use super::Optimizer;
use super::batches::{Batches, StageSeconds};
use crate::dataset::FeatureNorm;
use crate::error::{Error, Result};
use crate::model::{Init, Model, Parameter, Weight, Weights};
use crate::program::{EMBEDDING, LevelSizes};
use crate::ranks::{Crossed, LearnedRows, Pulls, Ranks, RowTerms, taken};
use crate::runtime::SharedBatch;
use update::{SparseStep, Table};

/// The number that stands for the operation when initial rows are drawn. No dropout has it.
const DRAWN_AS: u32 = u32::MAX;

/// The learned rows of this rank, and their moments.
#[derive(Debug)]
pub(super) struct Embedding {
    vertices: usize,
    width: usize,
    optimizer: Optimizer,
    ranks: Ranks,
    /// The vertices whose rows this rank holds.
    range: Range<usize>,
    rows: AlignedBytes,
    moments: Vec<AlignedBytes>,
    /// Who holds the rows of others, if there are several ranks.
    learned: Option<LearnedRows>,
    /// What was fetched from other ranks, and given to them, since that was last asked for.
    crossed: Crossed,
    /// Rounds of letters since that was last asked for.
    rounds: u64,
}

/// The size of a learned embedding: see [`Trainer::embedding`](super::Trainer::embedding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingSize {
    /// Number of rows: one for each vertex.
    pub rows: u64,
    /// Numbers per row.
    pub width: usize,
    /// Bytes of the rows, on all ranks together.
    pub bytes: u64,
    /// Bytes of the optimizer's moments of the rows, on all ranks together.
    pub moment_bytes: u64,
}

impl EmbeddingSize {
    /// Returns the size of a row for each vertex, with this optimizer.
    pub(crate) fn new([vertices, width]: [usize; 2], optimizer: &Optimizer) -> Self {
        let bytes = vertices as u64 * width as u64 * size_of::<f32>() as u64;
        Self { rows: vertices as u64, width, bytes, moment_bytes: bytes * u64::from(optimizer.moment_count()) }
    }
}

/// The rows of a batch, by part of this rank.
pub(super) struct BatchRows {
    /// The vertices of each part whose rows its share reads.
    ids: Vec<Vec<u32>>,
}

impl Embedding {
    /// Creates an embedding with rows and moments of 0.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no memory for it, or if the optimizer has a momentum.
    pub(super) fn new(
        [vertices, width]: [usize; 2],
        optimizer: Optimizer,
        ranks: &Ranks,
        parts: &[Range<usize>],
    ) -> Result<Self> {
        if matches!(optimizer, Optimizer::Sgd(_)) && optimizer.moment_count() > 0 {
            let expected = "rows that no batch reads would move on; with sgd, leave option `momentum` out".into();
            return Err(wrong(width, expected));
        }
        let empty = || AlignedBytes::zeroed(0).map_err(|_| wrong(width, "there is no memory".into()));
        let mut made = Self {
            vertices,
            width,
            optimizer,
            ranks: ranks.clone(),
            range: 0..0,
            rows: empty()?,
            moments: Vec::new(),
            learned: None,
            crossed: Crossed::default(),
            rounds: 0,
        };
        made.spread(parts)?;
        Ok(made)
    }

    /// Makes this rank hold the rows of the vertices of its parts. All are 0 then.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no memory for them.
    pub(super) fn spread(&mut self, parts: &[Range<usize>]) -> Result<()> {
        let (count, rank) = (self.ranks.count(), self.ranks.rank());
        let starts = parts.iter().step_by(parts.len() / count).map(|part| part.start);
        let offsets: Vec<usize> = starts.chain([self.vertices]).collect();
        self.range = offsets[rank]..offsets[rank + 1];
        let bytes = self.range.len() * self.width * size_of::<f32>();
        let moments = usize::from(self.optimizer.moment_count());
        let zeros = || {
            let expected = || format!("there is no memory for {bytes} bytes, {} times; use fewer numbers", 1 + moments);
            AlignedBytes::zeroed(bytes).map_err(|_| wrong(self.width, expected()))
        };
        let (rows, moments) = (zeros()?, (0..moments).map(|_| zeros()).collect::<Result<_>>()?);
        (self.rows, self.moments) = (rows, moments);
        self.learned = (count > 1).then(|| LearnedRows::new(&self.ranks, offsets, self.width));
        Ok(())
    }

    /// Draws all rows of this rank from the standard normal distribution, as `torch.nn.Embedding` does. A number depends on
    /// the seed, the vertex and the column alone. Moments become 0.
    pub(super) fn draw(&mut self, seed: u64) {
        let (first, width) = (self.range.start, self.width);
        let rows = self.rows.as_mut_slice::<f32>().par_chunks_mut(width).enumerate();
        rows.for_each(|(row, numbers)| {
            let key = row_key(seed, 0, DRAWN_AS, (first + row) as u64);
            for (pair, numbers) in (0u32..).zip(numbers.chunks_mut(2)) {
                // Box & Muller 1958. Neither uniform number is 0 or 1.
                let [a, b] = [0, 1].map(|i| (f64::from(draw(key, 2 * pair + i)) + 0.5) / 4_294_967_296.0);
                let (length, angle) = ((-2.0 * a.ln()).sqrt(), std::f64::consts::TAU * b);
                let drawn = [length * angle.cos(), length * angle.sin()];
                numbers.iter_mut().zip(drawn).for_each(|(number, drawn)| *number = drawn as f32);
            }
        });
        self.moments.iter_mut().for_each(|moment| moment.as_mut_slice::<f32>().fill(0.0));
    }

    /// Returns the embedding as a parameter, for checks of names and shapes.
    pub(super) fn parameter(&self) -> Parameter {
        let shape = vec![self.vertices, self.width];
        Parameter { name: EMBEDDING.into(), shape, init: Init::Zeros, trained: true }
    }

    pub(super) fn size(&self) -> EmbeddingSize {
        EmbeddingSize::new([self.vertices, self.width], &self.optimizer)
    }

    /// Returns the rows of the vertices of this rank's parts.
    pub(super) fn own_rows(&self) -> Shared<f32> {
        self.rows.as_slice::<f32>().to_vec().into()
    }

    /// Gives a batch the rows that it reads, as they are now. `slot` says where, and of which level. All ranks have to call
    /// it, after the update of the batch before.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no memory for them; [`Error::OtherRank`].
    pub(super) fn give(
        &mut self,
        batch: &mut SharedBatch,
        (slot, level): (Slot, u8),
        number: u64,
        pulls: Option<&Pulls<'_>>,
    ) -> Result<BatchRows> {
        let read = |sizes: &LevelSizes, vertices: &[u32]| vertices[..sizes.rows(level) as usize].to_vec();
        let ids: Vec<Vec<u32>> = batch.own.iter().map(|share| read(&share.sizes, &share.vertices)).collect();
        let own = self.rows.as_slice::<f32>();
        let all = ids.concat();
        let rows = match (&self.learned, pulls) {
            (Some(learned), Some(pulls)) => {
                let (rows, crossed) = learned.pull(pulls, number, &all, own)?;
                self.crossed.rows += crossed.rows;
                self.crossed.bytes += crossed.bytes;
                self.rounds += 2;
                rows
            }
            _ => taken(&all, self.width, |id| &own[id as usize * self.width..][..self.width]),
        };
        let rows = rows.map_err(|_| wrong(self.width, "there is no memory for the rows of a batch".into()))?;
        let rows: Shared<u8> = rows.into();
        let mut first = 0;
        for (share, ids) in batch.own.iter_mut().zip(&ids) {
            let bytes = ids.len() * self.width * size_of::<f32>();
            share.values.push((slot, HostSlot::Constant(rows.slice(first..first + bytes))));
            first += bytes;
        }
        Ok(BatchRows { ids })
    }

    /// Updates the rows that a batch has read, with the gradients of each part of this rank. All ranks have to call it.
    ///
    /// The gradients of a vertex are added in the order of the parts. `step` counts the updates of the run, from 1.
    ///
    /// # Errors
    /// [`Error::OtherRank`].
    pub(super) fn update(
        &mut self,
        batch: BatchRows,
        gradients: Vec<Vec<f32>>,
        (step, lr): (u64, f64),
        number: u64,
        pulls: Option<&Pulls<'_>>,
    ) -> Result<()> {
        let terms = batch.ids.into_iter().zip(gradients).map(|(ids, rows)| RowTerms { ids, rows });
        let mut terms: Vec<RowTerms> = terms.collect();
        if let (Some(learned), Some(pulls)) = (&self.learned, pulls) {
            let (all, crossed) = learned.push(pulls, number, &terms)?;
            terms = all;
            self.crossed.rows += crossed.rows;
            self.crossed.bytes += crossed.bytes;
            self.rounds += 1;
        }
        let table = Table {
            first: self.range.start,
            width: self.width,
            rows: self.rows.as_mut_slice(),
            moments: self.moments.iter_mut().map(AlignedBytes::as_mut_slice).collect(),
        };
        table.update(&terms, &SparseStep::new(&self.optimizer, step, lr));
        Ok(())
    }

    /// Adds what was exchanged with other ranks since the last call.
    pub(super) fn count_into(&mut self, stages: &mut StageSeconds) {
        let Crossed { rows, bytes } = std::mem::take(&mut self.crossed);
        stages.rounds += std::mem::take(&mut self.rounds);
        stages.fetched_rows += rows;
        stages.fetched_bytes += bytes;
    }

    /// Adds the rows of all ranks to `weights`. All ranks have to call it.
    ///
    /// # Errors
    /// [`Error::OtherRank`].
    pub(super) fn add_rows(&self, weights: &mut Weights) -> Result<()> {
        weights.insert(EMBEDDING, self.gathered(&self.rows)?);
        Ok(())
    }

    /// Adds the moments of all ranks to `moments`. All ranks have to call it.
    ///
    /// # Errors
    /// [`Error::OtherRank`].
    pub(super) fn add_moments(&self, moments: &mut Weights) -> Result<()> {
        for (moment, name) in self.moments.iter().zip(self.moment_names()) {
            moments.insert(&name, self.gathered(moment)?);
        }
        Ok(())
    }

    /// Returns the names of the moments in a checkpoint.
    pub(super) fn moment_names(&self) -> Vec<String> {
        (1..=self.optimizer.moment_count()).map(|which| format!("{EMBEDDING}.moment{which}")).collect()
    }

    fn gathered(&self, own: &AlignedBytes) -> Result<Weight> {
        let own = own.as_slice::<f32>();
        let data = match self.ranks.count() {
            1 => own.to_vec(),
            _ => {
                let all = self.ranks.gather_bytes(bytemuck::cast_slice(own).to_vec())?;
                all.iter().flat_map(|bytes| bytemuck::pod_collect_to_vec::<u8, f32>(bytes)).collect()
            }
        };
        Ok(Weight { shape: vec![self.vertices, self.width], data })
    }

    /// Takes over this rank's rows of weights that were checked. Weights without an embedding change nothing.
    pub(super) fn set_rows(&mut self, weights: &Weights) {
        if let Some(weight) = weights.get(EMBEDDING) {
            self.rows.as_mut_slice().copy_from_slice(of_range(weight, &self.range, self.width));
        }
    }

    /// Takes over this rank's moments, which were checked.
    pub(super) fn set_moments(&mut self, moments: &Weights) {
        for (name, moment) in self.moment_names().into_iter().zip(&mut self.moments) {
            if let Some(weight) = moments.get(&name) {
                moment.as_mut_slice().copy_from_slice(of_range(weight, &self.range, self.width));
            }
        }
    }
}

/// Returns the rows of some vertices.
fn of_range<'w>(weight: &'w Weight, range: &Range<usize>, width: usize) -> &'w [f32] {
    &weight.data[range.start * width..range.end * width]
}

/// Checks that learned rows of `width` numbers go with the other options of a run.
///
/// # Errors
/// [`Error::Value`].
pub(crate) fn check_embedding(
    width: usize,
    model: &Model,
    batches: Option<&Batches>,
    (dtype, norm): (StorageType, Option<FeatureNorm>),
) -> Result<()> {
    let input = model.config().widths.first().copied().unwrap_or_default();
    let expected = match batches {
        _ if width == 0 => "a row has at least one number".into(),
        None => "rows are learned on mini-batches: set option `batch` and option `fanout` as well".into(),
        _ if input != width => format!("the model reads {input} numbers per vertex; give it this width"),
        _ if dtype == StorageType::Bf16 => "learned rows are f32: leave option `dtype` bf16 out".into(),
        _ if norm.is_some_and(|norm| norm != FeatureNorm::None) => {
            "no features are read: leave option `feature_norm` out".into()
        }
        Some(batches) => match batches.cached() {
            Some(cache) => format!("no features are read: leave option `{cache}` out"),
            None => return Ok(()),
        },
    };
    Err(wrong(width, expected))
}

/// Returns the error of an embedding that cannot be.
pub(super) fn wrong(width: usize, expected: String) -> Error {
    Error::Value { option: "embedding", value: width.to_string(), expected }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::train::Adam;

    #[test]
    fn initial_rows_are_standard_normal_and_depend_on_no_part() {
        let (n, d) = (2000, 17);
        let drawn = |seed: u64, range: Range<usize>| {
            let parts = [0..n / 2, n / 2..n];
            let mut made = Embedding::new([n, d], Adam::new(0.1).into(), &Ranks::alone(), &parts).unwrap();
            (made.range, made.rows) = (range.clone(), AlignedBytes::zeroed(4 * range.len() * d).unwrap());
            made.draw(seed);
            made.own_rows().to_vec()
        };
        let whole = drawn(7, 0..n);
        assert_eq!(drawn(7, 600..1100), whole[600 * d..1100 * d]);
        assert_ne!(drawn(8, 0..n), whole);
        let count = (n * d) as f64;
        let moment = |power: i32| whole.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / count;
        // Four standard deviations of each mean.
        for (power, want, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let error = moment(power) - want;
            assert!(error.abs() < 4.0 * (variance / count).sqrt(), "moment {power} is {}", moment(power));
        }
        // Neither neighbours in a row nor neighbours in a column go together.
        for apart in [1, 2, d, 2 * d] {
            let together = whole.iter().zip(&whole[apart..]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
            assert!((together / count).abs() < 4.0 / count.sqrt(), "{apart} apart: {}", together / count);
        }
    }
}
