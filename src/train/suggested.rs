//! Settings to begin with on a dataset.

use crate::dataset::{Dataset, FeatureNorm, Features, TRAIN, VAL};
use crate::model::ModelConfig;

/// From this number of labelled training vertices on, a wide model has enough to learn from.
const MANY_LABELS: usize = 50_000;

/// Up to this mean number of stored features of a vertex, they are taken for the words of a text. Divided by their number,
/// more of them would be too small to learn from quickly.
const MOST_WORDS: usize = 50;

/// Values of [`Suggested::plain`].
pub(crate) const PLAIN_HIDDEN: usize = 16;
pub(crate) const PLAIN_EPOCHS: u64 = 200;
pub(crate) const PLAIN_LEARNING_RATE: f64 = 0.01;

/// The settings with which a practitioner would begin to train a model on a dataset.
///
/// `docs/performance.md` has the accuracies with them and with [`Suggested::plain`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suggested {
    /// Width of the hidden layers: 64; 256 with at least 50,000 labelled vertices in the training split.
    pub hidden: usize,
    /// Layer norm on hidden layers, for models that sum over neighbours: their rows grow with the degrees.
    pub layer_norm: bool,
    /// Learning rate of Adam: 0.01; 0.001 for models that sum over neighbours.
    pub learning_rate: f64,
    /// Normalisation of features: what the dataset specifies. If it specifies none: by row for sparse features without
    /// negative values that have at most 50 stored numbers per vertex, otherwise none.
    pub feature_norm: FeatureNorm,
    /// Number of epochs: 500 if the validation split can end the run before, else 200.
    pub epochs: u64,
    /// Epochs without a better validation accuracy after which to stop: 100; `None` without a labelled validation split.
    pub early_stop: Option<u64>,
}

impl Suggested {
    /// Returns the settings of the papers of GCN and of PyTorch Geometric's examples, whatever the dataset is like.
    pub fn plain(data: &Dataset) -> Self {
        Self {
            hidden: PLAIN_HIDDEN,
            layer_norm: false,
            learning_rate: PLAIN_LEARNING_RATE,
            feature_norm: data.default_feature_norm(),
            epochs: PLAIN_EPOCHS,
            early_stop: None,
        }
    }

    /// Returns the settings for a model on a dataset. Of the model, only what it does with neighbours counts.
    ///
    /// ```
    /// use lapidary::model::ModelConfig;
    /// use lapidary::{Dataset, Suggested};
    ///
    /// let data = Dataset::builtin("planted")?;
    /// let [gcn, gin] = ["gcn", "gin"].map(|model| Suggested::of(&ModelConfig::new(model, &[64, 7]), &data));
    /// assert_eq!((gcn.hidden, gcn.epochs, gcn.early_stop), (64, 500, Some(100)));
    /// assert!(gin.layer_norm && gin.learning_rate < gcn.learning_rate);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cost
    /// O(n + stored values), in parallel.
    pub fn of(model: &ModelConfig, data: &Dataset) -> Self {
        Self::plain(data).suited(model, data)
    }

    /// Returns the settings for a model on a dataset whose plain ones these are.
    pub(crate) fn suited(self, model: &ModelConfig, data: &Dataset) -> Self {
        let sums = model.sums_neighbours();
        let can_stop = data.labelled_split_size(VAL) > 0;
        let is_text = |features: &Features| features.stored() <= MOST_WORDS * features.rows();
        Self {
            hidden: if data.labelled_split_size(TRAIN) >= MANY_LABELS { 256 } else { 64 },
            layer_norm: sums,
            learning_rate: if sums { 0.001 } else { self.learning_rate },
            feature_norm: match (data.feature_norm(), data.features()) {
                (None, Some(features)) if !is_text(features) => FeatureNorm::None,
                _ => self.feature_norm,
            },
            epochs: if can_stop { 500 } else { self.epochs },
            early_stop: can_stop.then_some(100),
        }
    }
}
