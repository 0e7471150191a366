//! Mini-batches by the names of samplers, as a command line or another language gives them.

use super::Batches;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::sample::{Fanouts, LayerSampler, NeighborSampler, SubgraphSampler};

/// A sampler by its name, and its options.
///
/// ```
/// use lapidary::{Dataset, Model, SamplerOptions, Trainer};
///
/// let data = Dataset::builtin("karate")?;
/// let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
/// let options = SamplerOptions { name: "ladies".into(), fanouts: "16,8".parse()?, replace: false, by_weight: false };
/// let mut trainer = Trainer::builder(&model, &data).batches(options.batches(2, &data)?).build()?;
/// assert!(trainer.step()?.loss.is_finite());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerOptions {
    /// One of [`SamplerOptions::NAMES`].
    pub name: String,
    /// How many in-edges are drawn of each vertex, from the seeds outwards; with `fastgcn` and `ladies`, how many vertices
    /// for each layer.
    pub fanouts: Fanouts,
    /// Whether edges are drawn with replacement. Only `neighbor` can.
    pub replace: bool,
    /// Whether edges are drawn by their weights instead of uniformly. Only `neighbor` can, and without replacement.
    pub by_weight: bool,
}

impl SamplerOptions {
    /// The names of samplers: [`NeighborSampler`], [`SubgraphSampler`], [`LayerSampler::fastgcn`] and
    /// [`LayerSampler::ladies`].
    pub const NAMES: [&'static str; 4] = ["neighbor", "subgraph", "fastgcn", "ladies"];

    /// Checks the name, and that the sampler has the options.
    ///
    /// # Errors
    /// [`Error::Value`], of option `sampler` or `by_weight`.
    pub fn check(&self) -> Result<()> {
        let wrong = |expected| Err(Error::Value { option: "sampler", value: self.name.clone(), expected });
        if !Self::NAMES.contains(&self.name.as_str()) {
            return wrong(format!("there are {}", Self::NAMES.join(", ")));
        }
        let options = [("replace", self.replace), ("by_weight", self.by_weight)];
        match options.into_iter().find(|&(_, is_set)| is_set && self.name != "neighbor") {
            Some((option, _)) => wrong(format!("only neighbor has option `{option}`")),
            None if self.replace && self.by_weight => {
                let expected = "edges are drawn without replacement then; leave out option `replace`".into();
                Err(Error::Value { option: "by_weight", value: "true".into(), expected })
            }
            None => Ok(()),
        }
    }

    /// Returns batches of `size` seeds of this dataset.
    ///
    /// # Errors
    /// Those of [`SamplerOptions::check`]; [`Error::DataLacks`] for a graph without the edge weights to draw by.
    pub fn batches(&self, size: usize, data: &Dataset) -> Result<Batches> {
        self.check()?;
        let fanouts = self.fanouts.clone();
        Ok(match self.name.as_str() {
            "subgraph" => Batches::new(size, SubgraphSampler::new(fanouts)),
            "fastgcn" => Batches::new(size, LayerSampler::fastgcn(fanouts, data.graph())),
            "ladies" => Batches::new(size, LayerSampler::ladies(fanouts)),
            _ => Batches::new(size, self.neighbor(data)?),
        })
    }

    fn neighbor(&self, data: &Dataset) -> Result<NeighborSampler> {
        let sampler = NeighborSampler::new(self.fanouts.clone()).with_replacement(self.replace);
        match (self.by_weight, data.edge_weights()) {
            (false, _) => Ok(sampler),
            (true, Some(weights)) => Ok(sampler.weights(weights.clone())),
            (true, None) => {
                let needed_by = "option `by_weight` draws by them";
                Err(Error::DataLacks { dataset: data.name().into(), what: "edge weights", needed_by })
            }
        }
    }
}
