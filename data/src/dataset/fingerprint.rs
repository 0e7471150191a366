//! Digests of the arrays of a dataset, which detect changes.

use bytemuck::Pod;
use serde::{Deserialize, Serialize};

use super::{Dataset, Features, Labels};

/// Hexadecimal digits per digest: 128 bits, so that chance collisions do not occur.
const DIGITS: usize = 32;

/// Digests of a dataset's arrays. Two datasets with the same digests train alike. The digests do not cover the name,
/// the licence, or whether a symmetric graph is declared undirected.
///
/// Each digest is BLAKE3, cut to 32 hexadecimal digits, over the numbers as they are in memory. It does not depend on
/// the number of threads, nor on how a file stores the numbers (32-bit or 64-bit sources, a split as ids or as a mask).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Digest of the offsets and sources of the edges.
    pub graph: String,
    /// Digest of the weights of the edges, if they have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_weights: Option<String>,
    /// Digest of the features, if there are any. Dense and sparse features with the same numbers have different
    /// digests.
    pub features: Option<String>,
    /// Digest of the labels and the number of classes, if there are any.
    pub labels: Option<String>,
    /// Digest of the split of each vertex and of the graph that it belongs to.
    pub splits: String,
}

impl Fingerprint {
    /// Computes the digests of all arrays.
    pub(super) fn of(data: &Dataset) -> Self {
        let graph = Digest::of("graph").array(data.graph.indptr()).array(data.graph.indices()).end();
        let edge_weights = data.edge_weights.as_ref().map(|weights| Digest::of("edge weights").array(weights).end());
        let features = data.features.as_ref().map(|features| match features {
            Features::Dense(dense) => Digest::of("dense").number(dense.width()).array(dense.data()).end(),
            Features::Sparse(sparse) => {
                let digest = Digest::of("sparse").number(sparse.width()).array(sparse.indptr());
                digest.array(sparse.indices()).array(sparse.values()).end()
            }
        });
        let labels = data.labels.as_ref().map(|labels| match labels {
            Labels::Class(classes) => Digest::of("class").number(data.classes).array(classes).end(),
            Labels::Multi { data: cells, .. } => Digest::of("multi").number(data.classes).array(cells).end(),
        });
        let splits = Digest::of("splits").array(&data.split);
        let splits = data.graph_ids.iter().fold(splits, |digest, ids| digest.array(ids)).end();
        Self { graph, edge_weights, features, labels, splits }
    }

    /// Returns the names of the arrays that differ: `graph`, `edge_weights`, `features`, `labels`, `splits`.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let differ = [
            ("graph", self.graph != other.graph),
            ("edge_weights", self.edge_weights != other.edge_weights),
            ("features", self.features != other.features),
            ("labels", self.labels != other.labels),
            ("splits", self.splits != other.splits),
        ];
        differ.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }
}

/// A digest of several arrays, each preceded by its length.
struct Digest(blake3::Hasher);

impl Digest {
    fn of(kind: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(kind.as_bytes());
        Self(hasher)
    }

    fn number(mut self, number: usize) -> Self {
        self.0.update(&(number as u64).to_le_bytes());
        self
    }

    fn array<T: Pod>(self, values: &[T]) -> Self {
        let mut digest = self.number(values.len());
        // All threads of the current pool take part.
        digest.0.update_rayon(bytemuck::cast_slice(values));
        digest
    }

    fn end(self) -> String {
        self.0.finalize().to_hex()[..DIGITS].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Arrays;
    use super::*;
    use ndarray::Array2;

    fn arrays() -> Arrays {
        let edges = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)];
        let x = Array2::from_shape_fn((4, 3), |(v, c)| (3 * v + c) as f32);
        Arrays::edges(4, &edges).features(x).labels(&[0, 1, 0, 1]).train(&[0]).val(&[1]).test(&[2])
    }

    fn print(arrays: Arrays) -> Fingerprint {
        Dataset::from_arrays(arrays).expect("it is right").fingerprint().clone()
    }

    #[test]
    fn each_array_has_its_digest() {
        let first = print(arrays());
        let x = Array2::from_shape_fn((4, 3), |(v, c)| (3 * v + c) as f32);
        assert!(
            [Some(&first.graph), first.features.as_ref(), first.labels.as_ref(), Some(&first.splits)]
                .into_iter()
                .all(|digest| digest.is_some_and(|digest| digest.len() == DIGITS))
        );
        assert_eq!(first.differences(&print(arrays().name("other"))), [""; 0]);
        let mut y = x.clone();
        y[[3, 2]] = -11.0;
        for (changed, what) in [
            (arrays().edge_weights(vec![1.0; 6]), "edge_weights"),
            (arrays().features(y), "features"),
            (arrays().labels(&[0, 1, 1, 1]), "labels"),
            (arrays().classes(3), "labels"),
            (arrays().test(&[3]), "splits"),
            (arrays().graph_ids(&[0, 0, 1, 1]), "splits"),
            (arrays().features(x.into_shape_with_order((4, 3)).expect("as many")).directed(false), ""),
        ] {
            let wanted: Vec<&str> = Some(what).filter(|what| !what.is_empty()).into_iter().collect();
            assert_eq!(first.differences(&print(changed)), wanted);
        }
        let moved = Arrays::edges(4, &[(0, 1), (1, 0), (1, 3), (3, 1), (2, 3), (3, 2)]);
        let bare = print(Arrays::edges(4, &[(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]));
        assert_eq!(bare.differences(&print(moved)), ["graph"]);
        assert_eq!(first.differences(&bare), ["features", "labels", "splits"]);
    }

    #[test]
    fn without_weights_the_digests_are_those_of_a_dataset_that_never_had_any() {
        let weighted = || Dataset::from_arrays(arrays().edge_weights(vec![2.0; 6])).expect("it is right");
        let plain = print(arrays());
        assert_eq!(*weighted().without_edge_weights().fingerprint(), plain);
        let known = weighted();
        assert!(known.fingerprint().edge_weights.is_some());
        let bare = known.clone().without_edge_weights();
        assert_eq!((bare.fingerprint(), bare.is_clone_of(&known)), (&plain, false));
        assert!(bare.clone().without_edge_weights().is_clone_of(&bare));
        let text = serde_json::to_string(&plain).expect("it is text");
        assert!(!text.contains("weights"));
        assert_eq!(serde_json::from_str::<Fingerprint>(&text).expect("it is read"), plain);
    }

    #[test]
    fn digests_do_not_depend_on_threads() {
        let n = 100_000;
        let x = Array2::from_shape_fn((n, 16), |(v, c)| (v * 31 + c * 17) as f32);
        let data = || Dataset::from_arrays(Arrays::edges(n, &[(0, 1)]).features(x.clone())).expect("it is right");
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            let data = data();
            pool.install(|| data.fingerprint().clone())
        };
        assert_eq!(with(1), with(3));
    }
}
