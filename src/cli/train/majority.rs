//! The largest class: what a model has to beat, and what to try if it does not.

use super::args::TrainArgs;
use crate::cli::output::one_line;
use crate::dataset::{Dataset, FeatureNorm, TEST};
use crate::error::Result;

/// Of what is left above the largest class, a model that learns predicts at least this share.
const LEARNED: f64 = 0.1;

/// From this share of the largest class on, classes are unbalanced.
const UNBALANCED: f64 = 0.6;

/// Epochs and a width with which graphs of thousands of vertices are usually trained.
const USUAL_EPOCHS: u64 = 200;
const USUAL_WIDTH: usize = 64;

/// The largest class of the test vertices.
pub(super) struct Majority {
    /// The name of the class, or its number.
    pub class: String,
    /// Its share of the labelled test vertices.
    pub share: f64,
}

impl Majority {
    /// Counts the classes. Returns `None` if no test vertex has a label, or if they have several.
    ///
    /// # Cost
    /// O(vertices + classes).
    pub(super) fn of(data: &Dataset) -> Option<Self> {
        let counts = data.class_counts(TEST)?;
        let (class, &most) = counts.iter().enumerate().rev().max_by_key(|(_, count)| **count)?;
        let all: u64 = counts.iter().sum();
        let class = data.class_names().map_or_else(|| class.to_string(), |names| names[class].clone());
        (all > 0).then(|| Self { class, share: most as f64 / all as f64 })
    }

    /// Returns what to try if a model with this test accuracy has hardly learned anything.
    ///
    /// # Errors
    /// Those of a wrong flag.
    pub(super) fn advice(&self, accuracy: f64, args: &TrainArgs, data: &Dataset) -> Result<Option<String>> {
        // With weights of classes, the accuracy is not what the training is after.
        let is_weighted = args.training.class_weights != "none";
        if is_weighted || accuracy - self.share >= LEARNED * (1.0 - self.share) {
            return Ok(None);
        }
        let mut tries = vec![match args.feature_norm()?.unwrap_or_else(|| data.default_feature_norm()) {
            FeatureNorm::Row => "--feature-norm none".to_owned(),
            FeatureNorm::None => "--feature-norm row".to_owned(),
        }];
        if args.training.epochs() < USUAL_EPOCHS {
            tries.push(format!("--epochs {USUAL_EPOCHS}"));
        }
        if args.model.hidden() < USUAL_WIDTH {
            tries.push(format!("--hidden {USUAL_WIDTH}"));
        }
        if self.share >= UNBALANCED {
            tries.push("--class-weights balanced (and --metric macro-f1)".into());
        }
        Ok(Some(format!(
            "note: the model is hardly better than predicting class {} for every vertex; try {} or another --lr or --model",
            one_line(&self.class),
            tries.join(", "),
        )))
    }
}
