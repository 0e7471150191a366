//! A predictor that keeps its devices, plan and graph between calls.

use std::fmt;
use std::time::Instant;

use ndarray::Array2;

use super::pass::Pass;
use super::{Prediction, Predictor};
use crate::bind::watched;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::runtime::{Plans, Runs, Session};

/// A predictor that keeps its devices, plan and graph between calls, for services that call it often.
///
/// A call with the same dataset as the call before, or a clone of it, only runs the forward pass. A call with another
/// dataset loads it. If its shape is the same (vertices, edges, features, halos), the plan is used again. On the CPU, memory of
/// small graphs is used again for the next one.
///
/// Values that depend on the dataset only, such as the sum of the features over in-neighbours, are computed once per
/// dataset. So the logits agree with those of [`Predictor::predict`] up to rounding. Calls with the same data agree bit
/// for bit.
///
/// ```
/// use lapidary::{Dataset, Model, Trainer};
///
/// let data = Dataset::builtin("karate")?;
/// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
/// let trainer = Trainer::builder(&model, &data).build()?;
/// let mut predictor = trainer.predictor()?.prepared();
/// let first = predictor.predict(&data)?;
/// assert_eq!(predictor.predict(&data)?, first);
/// assert_eq!((predictor.loaded(), predictor.planned()), (1, 1));
/// # Ok::<(), lapidary::Error>(())
/// ```
pub struct PreparedPredictor {
    predictor: Predictor,
    /// The loaded dataset, with its pass and session.
    current: Option<Loaded>,
    /// Plans of an earlier session.
    plans: Option<Plans>,
    loaded: u64,
    planned: u64,
}

/// A dataset on the devices.
struct Loaded {
    data: Dataset,
    pass: Pass,
    session: Session,
}

impl fmt::Debug for PreparedPredictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loaded = self.current.as_ref().map(|loaded| loaded.data.name());
        f.debug_struct("PreparedPredictor").field("predictor", &self.predictor).field("loaded", &loaded).finish()
    }
}

impl PreparedPredictor {
    pub(super) fn new(predictor: Predictor) -> Self {
        Self { predictor, current: None, plans: None, loaded: 0, planned: 0 }
    }

    /// Returns the logits of every vertex, `[n, classes]`, in the order of `data`; see [`Dataset::permutation`].
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub fn predict(&mut self, data: &Dataset) -> Result<Array2<f32>> {
        Ok(self.run(data)?.logits)
    }

    /// Returns the logits of every vertex, the requested outputs, and the accuracy.
    ///
    /// # Errors
    /// As [`Predictor::predict`]. After an error, the next call loads its dataset again.
    pub fn run(&mut self, data: &Dataset) -> Result<Prediction> {
        let ranks = self.predictor.options.ranks.clone();
        ranks.telling(watched(data, || {
            let (start, mut loaded) = match self.current.take() {
                Some(loaded) if loaded.data.is_clone_of(data) => (Instant::now(), loaded),
                earlier => self.load(data, earlier)?,
            };
            let prediction = loaded.pass.run(&self.predictor, &mut loaded.session, start)?;
            self.current = Some(loaded);
            Ok(prediction)
        }))
    }

    /// Returns the underlying predictor.
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// Returns the number of times that a dataset was loaded.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Returns the number of loads that needed a new plan.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// Loads `data`. Returns when planning began, and what is loaded.
    fn load(&mut self, data: &Dataset, earlier: Option<Loaded>) -> Result<(Instant, Loaded)> {
        // The earlier session ends before the new one begins, and leaves its devices.
        if let Some(Loaded { data, session, .. }) = earlier {
            let (plans, idle) = session.into_plans_and_devices();
            self.plans = Some(plans);
            self.predictor.spare().keep(&self.predictor, &data, idle);
        }
        let pass = Pass::new(&self.predictor, data, Runs::Many)?;
        let start = Instant::now();
        let idle = self.predictor.spare().take(&self.predictor);
        let session = pass.open_on(&self.predictor, self.plans.as_ref(), idle)?;
        self.loaded += 1;
        self.planned += u64::from(!session.took_plans());
        Ok((start, Loaded { data: data.clone(), pass, session }))
    }
}
