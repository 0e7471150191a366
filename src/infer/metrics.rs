//! Metrics for unbalanced classes: macro-F1, ROC-AUC and the confusion matrix, as scikit-learn defines them.

use ndarray::{Array2, ArrayView1, ArrayView2};
use rayon::prelude::*;

use crate::dataset::{Dataset, Labels};
use crate::model::LabelKind;

/// The predictions for the labelled vertices of one split.
///
/// ```
/// use lapidary::{Dataset, SplitPredictions, dataset::TEST};
///
/// let data = Dataset::builtin("karate")?;
/// let logits = lapidary::ndarray::Array2::<f32>::eye(34).slice_move(lapidary::ndarray::s![.., ..4]);
/// let test = SplitPredictions::new(logits.view(), &data, TEST).expect("there are test vertices");
/// assert!(test.macro_f1() < 0.5);
/// # Ok::<(), lapidary::dataset::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SplitPredictions<'a> {
    logits: ArrayView2<'a, f32>,
    labels: &'a Labels,
    vertices: Vec<usize>,
}

impl<'a> SplitPredictions<'a> {
    /// Takes the rows of the labelled vertices of `split`. Returns `None` if there are none, or no class.
    ///
    /// # Shapes
    /// `logits`: `[n, classes]`, in the order of `data`. There may be more classes than labels have.
    /// # Panics
    /// If there is not one row per vertex, or a label has no column.
    /// # Cost
    /// O(n); 8 bytes per vertex of the split.
    pub fn new(logits: ArrayView2<'a, f32>, data: &'a Dataset, split: u32) -> Option<Self> {
        let labels = data.labels()?;
        assert_eq!(logits.nrows(), data.graph().vertex_count(), "one row per vertex");
        assert!(data.class_count() <= logits.ncols(), "one column per class");
        let is_in = |&v: &usize| data.split()[v] == split && labels.is_labelled(v);
        let vertices: Vec<usize> = (0..logits.nrows()).filter(is_in).collect();
        (!vertices.is_empty() && logits.ncols() > 0).then_some(Self { logits, labels, vertices })
    }

    /// Returns the mean F1 of the classes. With one class per vertex, classes count that some vertex of the split has or is
    /// predicted to have; with several, all classes count, and one that is neither has 0.
    ///
    /// # Cost
    /// O(n classes).
    pub fn macro_f1(&self) -> f64 {
        // Of each class: how many vertices have it and are predicted to have it, and how many of either kind there are.
        let mut counts = vec![[0u64; 2]; self.classes()];
        let mut add = |class: usize, has: bool, is_predicted: bool| {
            counts[class][0] += u64::from(has && is_predicted);
            counts[class][1] += u64::from(has) + u64::from(is_predicted);
        };
        for &v in &self.vertices {
            match self.labels {
                Labels::Class(labels) => {
                    let (label, predicted) = (labels[v] as usize, predicted_class(self.logits.row(v)));
                    add(label, true, predicted == Some(label));
                    if let Some(other) = predicted.filter(|class| *class != label) {
                        add(other, false, true);
                    }
                }
                Labels::Multi { .. } => {
                    (0..self.classes()).for_each(|class| add(class, self.has(v, class), self.logits[[v, class]] > 0.0));
                }
            }
        }
        let is_multi = matches!(self.labels, Labels::Multi { .. });
        let counted = counts.iter().filter(|[_, either]| is_multi || *either > 0);
        let f1: Vec<f64> = counted.map(|&[both, either]| 2.0 * both as f64 / either.max(1) as f64).collect();
        f1.iter().sum::<f64>() / f1.len().max(1) as f64
    }

    /// Returns the area under the ROC curve: the share of pairs of a vertex with and one without a class whose probabilities
    /// are in the right order; equal ones count half. With more than two classes it is the mean over the classes, each
    /// against the rest. Classes that all or none of the vertices have do not count; without any other the result is `None`.
    /// So it is if a logit is NaN.
    ///
    /// # Cost
    /// O(n classes), and O(n log n) per class, in parallel; 16 bytes per vertex of the split.
    pub fn roc_auc(&self) -> Option<f64> {
        if self.vertices.iter().any(|&v| self.logits.row(v).iter().any(|x| x.is_nan())) {
            return None;
        }
        // Of two classes, the second is the positive one. Against the rest, the first has the same area.
        let first = usize::from(self.classes() == 2 && matches!(self.labels, Labels::Class(_)));
        let softmaxes: Vec<Softmax> = match self.labels {
            Labels::Class(_) => self.vertices.par_iter().map(|&v| Softmax::of(self.logits.row(v))).collect(),
            Labels::Multi { .. } => Vec::new(),
        };
        let score = |i: usize, class: usize| {
            let logit = self.logits[[self.vertices[i], class]];
            // Of a logit alone, the probability grows with it.
            softmaxes.get(i).map_or(f64::from(logit), |softmax| softmax.probability(logit))
        };
        let area = |class: usize| {
            let scored = self.vertices.iter().enumerate().map(|(i, &v)| (score(i, class), self.has(v, class)));
            area_under_curve(scored.collect())
        };
        let areas: Vec<f64> = (first..self.classes()).into_par_iter().filter_map(area).collect();
        (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64)
    }

    /// Returns how many vertices of each class (row) are predicted to have each class (column), `[classes, classes]`.
    /// `None` if vertices have several classes. A vertex whose logits are all NaN has no prediction and is left out.
    ///
    /// # Cost
    /// O(n classes).
    pub fn confusion(&self) -> Option<Array2<u64>> {
        let Labels::Class(labels) = self.labels else { return None };
        let mut counts = Array2::zeros([self.classes(); 2]);
        for &v in &self.vertices {
            if let Some(predicted) = predicted_class(self.logits.row(v)) {
                counts[[labels[v] as usize, predicted]] += 1;
            }
        }
        Some(counts)
    }

    fn classes(&self) -> usize {
        self.logits.ncols()
    }

    fn has(&self, vertex: usize, class: usize) -> bool {
        match self.labels {
            Labels::Class(labels) => labels[vertex] as usize == class,
            Labels::Multi { data, classes } => class < *classes && data[vertex * classes + class] != 0,
        }
    }
}

/// Returns the area under the ROC curve from the scores of vertices with and without a class (Mann-Whitney).
fn area_under_curve(mut scored: Vec<(f64, bool)>) -> Option<f64> {
    scored.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let with = scored.iter().filter(|(_, has)| *has).count() as f64;
    let without = scored.len() as f64 - with;
    let (mut below, mut pairs) = (0.0, 0.0);
    for equal in scored.chunk_by(|a, b| a.0 == b.0) {
        let here = equal.iter().filter(|(_, has)| *has).count() as f64;
        let others = equal.len() as f64 - here;
        pairs += here * (below + others / 2.0);
        below += others;
    }
    (with > 0.0 && without > 0.0).then(|| pairs / (with * without))
}

/// Returns the first class with the largest logit; `None` if all are NaN.
pub(crate) fn predicted_class(logits: ArrayView1<'_, f32>) -> Option<usize> {
    let numbers = logits.iter().enumerate().filter(|(_, x)| !x.is_nan());
    numbers.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(class, _)| class)
}

/// Returns the probability of each class from a row of logits.
pub(crate) fn probabilities(row: ArrayView1<'_, f32>, labels: LabelKind) -> Vec<f32> {
    match labels {
        LabelKind::Class => {
            let softmax = Softmax::of(row);
            row.iter().map(|&x| softmax.probability(x) as f32).collect()
        }
        LabelKind::Multi => row.iter().map(|&x| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32).collect(),
    }
}

/// The softmax of a row of logits.
struct Softmax {
    largest: f64,
    sum: f64,
}

impl Softmax {
    fn of(logits: ArrayView1<'_, f32>) -> Self {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        Self { largest, sum: logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum() }
    }

    /// Returns the probability of a class from its logit.
    fn probability(&self, logit: f32) -> f64 {
        (f64::from(logit) - self.largest).exp() / self.sum
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;
    use crate::dataset::{Arrays, TEST};
    use crate::graph::Graph;

    /// Returns a dataset of vertices without edges, all in the test split.
    fn data(labels: &[i64], width: Option<usize>) -> Dataset {
        let vertices = labels.len() / width.unwrap_or(1);
        let arrays = Arrays::new(Graph::from_edges(vertices, &[]).expect("no edges"));
        let arrays = match width {
            None => arrays.labels(labels),
            Some(width) => {
                let cells = labels.iter().map(|&x| x as u8).collect();
                arrays.multi_labels(Array2::from_shape_vec((vertices, width), cells).expect("as many cells"))
            }
        };
        let test: Vec<i64> = (0..vertices as i64).collect();
        Dataset::from_arrays(arrays.test(&test)).expect("the arrays fit")
    }

    /// The numbers are those of scikit-learn.
    #[test]
    fn three_classes_with_a_tie_and_an_unlabelled_vertex() {
        let data = data(&[0, 0, 1, 1, 2, 1, -1], None);
        let logits = array![
            [2.0, 1.0, 0.0],
            [0.0, 1.0, 0.5],
            [1.0, 1.0, 0.0],
            [0.0, 3.0, 1.0],
            [0.0, 1.0, 2.0],
            [0.5, 0.0, 0.25],
            [9.0, 0.0, 0.0f32]
        ];
        let test = SplitPredictions::new(logits.view(), &data, TEST).expect("it is defined");
        assert_eq!(test.confusion().expect("it is defined"), array![[1, 1, 0], [2, 1, 0], [0, 0, 1]]);
        assert!((test.macro_f1() - 0.6).abs() < 1e-12, "{}", test.macro_f1());
        assert!(
            (test.roc_auc().expect("it is defined") - 0.842_592_592_592_592_6).abs() < 1e-12,
            "{:?}",
            test.roc_auc()
        );
    }

    #[test]
    fn of_two_classes_the_second_is_positive() {
        let data = data(&[0, 0, 1, 1, 0], None);
        let logits = array![[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8], [0.6, 0.4f32]];
        let test = SplitPredictions::new(logits.view(), &data, TEST).expect("it is defined");
        assert!((test.roc_auc().expect("it is defined") - 4.0 / 6.0).abs() < 1e-12);
        let undefined = array![[0.9, f32::NAN], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8], [f32::NAN, f32::NAN]];
        let test = SplitPredictions::new(undefined.view(), &data, TEST).expect("it is defined");
        assert_eq!((test.roc_auc(), test.confusion().expect("it is defined").sum()), (None, 4));
    }

    #[test]
    fn several_labels_per_vertex() {
        let data = data(&[1, 0, 0, 1, 1, 0, 0, 1, 0], Some(3));
        let logits = array![[1.0, -1.0, -1.0], [2.0, 1.0, -3.0], [-1.0, 2.0, -1.0f32]];
        let test = SplitPredictions::new(logits.view(), &data, TEST).expect("it is defined");
        assert_eq!(test.confusion(), None);
        assert!((test.macro_f1() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(test.roc_auc(), Some(1.0));
    }

    #[test]
    fn one_class_alone_has_no_curve_and_no_labels_have_no_predictions() {
        let all = data(&[1, 1], None);
        let logits = array![[0.0, 1.0], [1.0, 0.0f32]];
        let test = SplitPredictions::new(logits.view(), &all, TEST).expect("it is defined");
        assert_eq!(test.roc_auc(), None);
        assert!(SplitPredictions::new(logits.view(), &all, crate::dataset::TRAIN).is_none());
    }
}
