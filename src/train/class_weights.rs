//! How much the classes count in the loss.

use std::fmt;
use std::str::FromStr;

use crate::dataset::{Dataset, TRAIN};
use crate::error::{Error, Result};

/// How much the classes count in the loss of data with one class per vertex.
///
/// The loss is the weighted mean over the labelled vertices of the training split, as in
/// `torch.nn.CrossEntropyLoss(weight=..)`: `sum of w[y_v] * loss_v / sum of w[y_v]`. A mini-batch is divided
/// by its number of vertices, since weights are scaled to a mean of 1 over the whole split.
///
/// ```
/// use lapidary::ClassWeights;
///
/// assert_eq!("1,0.5".parse(), Ok(ClassWeights::Given(vec![1.0, 0.5])));
/// assert_eq!("balanced".parse(), Ok(ClassWeights::Balanced));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ClassWeights {
    /// All vertices count alike.
    #[default]
    Equal,
    /// All classes count alike: each has the weight `n / (classes * its vertices)`, with the `n` labelled vertices of the
    /// training split and the classes that they have. This is scikit-learn's `class_weight="balanced"`.
    Balanced,
    /// One weight for each class, 0 or more.
    Given(Vec<f32>),
}

impl ClassWeights {
    /// Returns the weight of each class, scaled so that their mean over the labelled vertices of the training split is 1;
    /// `None` if all vertices count alike.
    ///
    /// # Errors
    /// [`Error::Value`] if the vertices have several classes, for another number of weights than there are classes, for a
    /// weight that is not a number of at least 0, and if all vertices of the training split have the weight 0.
    /// # Cost
    /// O(n + classes).
    pub(crate) fn scaled(&self, data: &Dataset) -> Result<Option<Vec<f32>>> {
        if *self == Self::Equal {
            return Ok(None);
        }
        let wrong = |expected: String| Error::Value { option: "class_weights", value: self.to_string(), expected };
        let counts = data.class_counts(TRAIN).ok_or_else(|| {
            wrong(format!("they weigh vertices of one class each, and those of {} have none or several", data.name()))
        })?;
        let all = counts.iter().sum::<u64>() as f64;
        let weights: Vec<f64> = match self {
            Self::Given(weights) if weights.len() != counts.len() => {
                let (given, classes) = (weights.len(), counts.len());
                return Err(wrong(format!("{} has {classes} classes, and these are {given} weights", data.name())));
            }
            Self::Given(weights) => weights.iter().map(|&weight| f64::from(weight)).collect(),
            _ => {
                let present = counts.iter().filter(|&&count| count > 0).count() as f64;
                counts.iter().map(|&count| if count > 0 { all / (present * count as f64) } else { 0.0 }).collect()
            }
        };
        if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            return Err(wrong(format!("{weight} is no weight; write numbers of 0 or more")));
        }
        let sum: f64 = weights.iter().zip(&counts).map(|(weight, &count)| weight * count as f64).sum();
        if sum == 0.0 && all > 0.0 {
            return Err(wrong("every labelled vertex of the training split has the weight 0".into()));
        }
        let scale = if sum > 0.0 { all / sum } else { 1.0 };
        Ok(Some(weights.iter().map(|weight| (weight * scale) as f32).collect()))
    }
}

impl fmt::Display for ClassWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("none"),
            Self::Balanced => f.write_str("balanced"),
            Self::Given(weights) => f.write_str(&weights.iter().map(f32::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

/// A text that gives no weights of classes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write none, balanced, or one number for each class, separated by commas")]
pub struct ParseClassWeightsError;

impl FromStr for ClassWeights {
    type Err = ParseClassWeightsError;

    fn from_str(text: &str) -> std::result::Result<Self, ParseClassWeightsError> {
        match text {
            "none" => Ok(Self::Equal),
            "balanced" => Ok(Self::Balanced),
            _ => {
                let weights: std::result::Result<Vec<f32>, _> =
                    text.split(',').map(|weight| weight.trim().parse()).collect();
                weights.map(Self::Given).map_err(|_| ParseClassWeightsError)
            }
        }
    }
}
