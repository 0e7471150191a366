//! The order of the vertices in which a run computes: option `reorder`.
//!
//! `auto` predicts the gathers of a run for each order from the reuse of rows ([`Reuse`](crate::graph::Reuse)), this
//! machine's caches and nominal rates, so that it chooses the same on the same machine. An order is taken if gathers are
//! then at least [`LEAST_GAIN`] times as fast and the run saves more time than reordering takes. An order whose permutation
//! takes longer to find than misses cost at all is not tried.

use std::fmt;
use std::str::FromStr;

use lapidary_cost_model::{KernelTimes, Profile};
use lapidary_kernels::StorageType;

use super::work::{Gathered, Locality};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::graph::{Graph, Permutation, VertexOrder};
use crate::host;
use crate::model::Model;
use crate::partition;
use crate::profile::{self, CPU};

/// How many times as fast gathers have to be predicted.
const LEAST_GAIN: f64 = 1.1;

/// Seconds to find a permutation, per edge: by degree, by reverse Cuthill–McKee, with METIS; and to predict its gathers.
const DEGREE_S: f64 = 5e-9;
const RCM_S: f64 = 30e-9;
const METIS_S: f64 = 400e-9;
const PREDICT_S: f64 = 40e-9;

/// Seconds to move an edge, and a byte of features.
const MOVE_EDGE_S: f64 = 25e-9;
const MOVE_BYTE_S: f64 = 1e-9;

/// The order of the vertices in which a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reorder {
    /// This order.
    To(VertexOrder),
    /// The one that is predicted to save most time, if one does.
    Auto,
}

impl Default for Reorder {
    fn default() -> Self {
        Self::To(VertexOrder::Own)
    }
}

impl FromStr for Reorder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |_| {
            let expected = "write none, degree, rcm, metis or auto".into();
            Error::Value { option: "reorder", value: text.into(), expected }
        };
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::To).map_err(wrong) }
    }
}

impl fmt::Display for Reorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(order) => order.fmt(f),
            Self::Auto => f.pad("auto"),
        }
    }
}

/// What a run keeps by the numbers that the vertices have in the dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptByNumber {
    /// The ranges of the devices, which were given.
    pub ranges: bool,
    /// A learned row for each vertex.
    pub embedding: bool,
    /// A file with a row of features for each vertex.
    pub feature_rows: bool,
}

/// The gathers of a run: their widths, how often each runs, and the caches of the device.
#[derive(Clone, Debug)]
pub struct RunGathers {
    /// The width of each layer's gathers: the smaller one of its input and its output.
    widths: Vec<usize>,
    /// How often each runs over the graph, and over the transposed graph.
    runs: [f64; 2],
    locality: Locality,
    times: KernelTimes,
}

impl RunGathers {
    /// Returns the gathers of a training with an evaluation in each epoch. `profile` is the name of the devices' profile.
    pub fn of_training(model: &Model, profile: &str, epochs: u64) -> Self {
        Self::new(model, profile, [2.0 * epochs as f64, epochs as f64])
    }

    /// Returns the gathers of one forward pass.
    pub fn of_inference(model: &Model, profile: &str) -> Self {
        Self::new(model, profile, [1.0, 0.0])
    }

    /// Returns the gathers of mini-batches. They read what is drawn, so no order of the graph is known to be better.
    pub fn of_batches(profile: &str) -> Self {
        Self::of_widths(Vec::new(), profile, [0.0; 2])
    }

    fn new(model: &Model, word: &str, runs: [f64; 2]) -> Self {
        let widths = model.config().widths.windows(2).map(|layer| layer[0].min(layer[1])).collect();
        Self::of_widths(widths, word, runs)
    }

    fn of_widths(widths: Vec<usize>, word: &str, runs: [f64; 2]) -> Self {
        let nominal = profile::nominal(word).profile;
        let cache_bytes = if word == CPU { host::cache_bytes() } else { nominal.cache_bytes };
        let profile = Profile { cache_bytes, ..nominal };
        Self { widths, runs, locality: Locality::new(word, &profile), times: KernelTimes::new(&profile) }
    }

    /// Returns the predicted seconds of all gathers over a graph, and those if caches missed nothing.
    fn seconds(&self, graph: &Graph) -> [f64; 2] {
        let sizes = [graph.vertex_count(), graph.edge_count(), graph.vertex_count()];
        let locality = self.locality.clone().of_graph(graph);
        let mut seconds = [0.0; 2];
        for &width in &self.widths {
            for (reuse, runs) in locality.reuses().into_iter().zip(self.runs) {
                let gathered =
                    Gathered { columns: width, stored: StorageType::F32, weighted: false, ascend: true, whole: true };
                let work = locality.gather(reuse, sizes, gathered);
                seconds[0] += runs * self.times.by_profile(&work);
                seconds[1] += runs * self.times.by_profile(&locality.without_misses(work));
            }
        }
        seconds
    }

    /// Returns the order that saves most.
    fn best_order(&self, data: &Dataset) -> ChosenOrder {
        let stay = |why| ChosenOrder { order: VertexOrder::Own, permutation: None, why: Some(why) };
        if self.widths.is_empty() {
            return stay("mini-batches gather what is drawn".into());
        }
        let graph = data.graph();
        let edges = graph.edge_count() as f64;
        let feature_bytes = 4.0 * data.features().map_or(0, |features| features.stored()) as f64;
        let move_s = edges * MOVE_EDGE_S + feature_bytes * MOVE_BYTE_S;
        let [own_s, cached_s] = self.seconds(graph);
        let mut best = (own_s, VertexOrder::Own, None);
        let mut tried = Vec::new();
        for (order, find_s) in
            [(VertexOrder::Degree, DEGREE_S), (VertexOrder::Rcm, RCM_S), (VertexOrder::Metis, METIS_S)]
        {
            let saved_s = best.0 - cached_s;
            if saved_s < move_s + edges * (find_s + PREDICT_S) || best.0 < LEAST_GAIN * cached_s {
                continue;
            }
            // METIS may be left out of this build, or not count as far.
            let Ok(Some(permutation)) = partition::permutation(graph, order) else { continue };
            let [seconds, _] = self.seconds(&permutation.apply(graph));
            tried.push((order, own_s / seconds));
            if seconds < best.0 {
                best = (seconds, order, Some(permutation));
            }
        }
        let (seconds, order, permutation) = best;
        if own_s - seconds < move_s || own_s < LEAST_GAIN * seconds {
            let most =
                format!("no order pays: gathers that never miss a cache are {:.2} times as fast", own_s / cached_s);
            return stay(most + &listed(&tried));
        }
        tried.retain(|&(other, _)| other != order);
        let gain = format!("predicted gathers {:.2} times as fast", own_s / seconds);
        ChosenOrder { order, permutation, why: Some(gain + &listed(&tried)) }
    }
}

/// Formats orders with how many times as fast gathers are in them; nothing for none.
fn listed(orders: &[(VertexOrder, f64)]) -> String {
    let texts: Vec<String> = orders.iter().map(|(order, gain)| format!("{order} {gain:.2}")).collect();
    if texts.is_empty() { String::new() } else { format!(" ({})", texts.join(", ")) }
}

/// An order that was chosen for a dataset.
#[derive(Clone, Debug)]
pub struct ChosenOrder {
    /// The order.
    pub order: VertexOrder,
    permutation: Option<Permutation>,
    /// Why `auto` has chosen it; `None` for an order that was asked for.
    pub why: Option<String>,
}

impl Reorder {
    /// Checks that a run that keeps these can compute in this order.
    ///
    /// # Errors
    /// [`Error::Value`] for an order other than the dataset's own, if the run keeps any of them.
    pub fn check(self, kept: KeptByNumber) -> Result<()> {
        let wrong = |expected: &str| {
            Err(Error::Value { option: "reorder", value: self.to_string(), expected: expected.into() })
        };
        match kept {
            _ if self == Self::default() => Ok(()),
            KeptByNumber { ranges: true, .. } => {
                wrong("a file of option `partition` has ranges of the dataset's own order")
            }
            KeptByNumber { embedding: true, .. } => {
                wrong("option `embedding` learns a row for each vertex in the dataset's own order")
            }
            KeptByNumber { feature_rows: true, .. } => {
                wrong("option `feature_cache` reads rows from a file in the dataset's own order")
            }
            KeptByNumber { ranges: false, embedding: false, feature_rows: false } => Ok(()),
        }
    }

    /// Chooses the order for a run.
    ///
    /// ```
    /// use lapidary::{Dataset, Model, Reorder};
    /// use lapidary::plan::RunGathers;
    ///
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
    /// let gathers = RunGathers::of_training(&model, "cpu", 200);
    /// let data = "rcm".parse::<Reorder>()?.choose(&data, &gathers)?.apply(data)?;
    /// assert_eq!(data.order().name(), "rcm");
    /// # Ok::<(), lapidary::Error>(())
    /// ```
    ///
    /// # Errors
    /// For an order that is asked for, those of [`partition::permutation`].
    /// # Cost
    /// With [`Reorder::Auto`], the permutations of all orders that may pay, and a copy of the edges at a time.
    pub fn choose(self, data: &Dataset, gathers: &RunGathers) -> Result<ChosenOrder> {
        match self {
            Self::Auto => Ok(gathers.best_order(data)),
            Self::To(order) => {
                let permutation = partition::permutation(data.graph(), order)?;
                Ok(ChosenOrder { order, permutation, why: None })
            }
        }
    }
}

impl ChosenOrder {
    /// Brings the vertices of the dataset that the order was chosen for into it: see [`Dataset::in_order`].
    ///
    /// # Errors
    /// Those of [`Dataset::in_order`].
    pub fn apply(self, data: Dataset) -> Result<Dataset> {
        match self.permutation {
            None => Ok(data),
            Some(permutation) => Ok(data.in_order(self.order, &permutation)?),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dataset::Arrays;

    /// A ring: each vertex is joined to the next 8. Its rows of 32 numbers are larger than the caches of most cores.
    fn ring() -> Dataset {
        const N: u32 = 100_000;
        let edges = (0..N).flat_map(|v| (1..=8).map(move |step| (v, (v + step) % N)));
        let edges: Vec<(u32, u32)> = edges.flat_map(|(u, v)| [(u, v), (v, u)]).collect();
        Dataset::from_arrays(Arrays::edges(N as usize, &edges).directed(false)).unwrap()
    }

    #[test]
    fn auto_keeps_a_good_order_and_repairs_a_shuffled_one() {
        let model = Model::gcn(&[32, 32, 32]);
        let chosen = |data: &Dataset, gathers: &RunGathers| {
            let ChosenOrder { order, why, .. } = Reorder::Auto.choose(data, gathers).unwrap();
            (order, why.unwrap())
        };
        let good = ring();
        let training = RunGathers::of_training(&model, CPU, 200);
        let (order, why) = chosen(&good, &training);
        assert_eq!(order, VertexOrder::Own, "{why}");
        let shuffled = good.relabelled(&Permutation::random(good.graph().vertex_count(), 3));
        let (order, why) = chosen(&shuffled, &training);
        assert!([VertexOrder::Rcm, VertexOrder::Metis].contains(&order), "{why}");
        assert!(why.starts_with("predicted gathers ") && !why.contains(order.name()), "{why}");
        // One pass does not pay for it.
        let (order, why) = chosen(&shuffled, &RunGathers::of_inference(&model, CPU));
        assert_eq!(order, VertexOrder::Own, "{why}");
        assert!(!why.contains("rcm"), "it is not tried: {why}");
        let small = Dataset::builtin("karate").unwrap();
        assert_eq!(chosen(&small, &training).0, VertexOrder::Own);
    }

    #[test]
    fn what_is_kept_by_number_forbids_another_order() {
        let none = KeptByNumber::default();
        let some = [
            ("option `partition`", KeptByNumber { ranges: true, ..none }),
            ("option `embedding`", KeptByNumber { embedding: true, ..none }),
            ("option `feature_cache`", KeptByNumber { feature_rows: true, ..none }),
        ];
        for (name, kept) in some {
            let error = Reorder::To(VertexOrder::Rcm).check(kept).unwrap_err().to_string();
            assert!(error.starts_with("option `reorder` cannot be `rcm`: ") && error.contains(name), "{error}");
            Reorder::default().check(kept).unwrap();
        }
        Reorder::Auto.check(none).unwrap();
    }

    #[test]
    fn words() {
        assert_eq!("auto".parse::<Reorder>().unwrap(), Reorder::Auto);
        assert_eq!("none".parse::<Reorder>().unwrap(), Reorder::default());
        for word in ["none", "degree", "rcm", "metis", "auto"] {
            assert_eq!(word.parse::<Reorder>().unwrap().to_string(), word);
        }
        let error = "rmc".parse::<Reorder>().unwrap_err().to_string();
        assert_eq!(error, "option `reorder` cannot be `rmc`: write none, degree, rcm, metis or auto");
    }
}
