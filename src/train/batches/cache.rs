//! The rows of features that are kept in memory: those that mini-batches read most often.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use lapidary_kernels::{AlignedBytes, StorageType};

use super::{Drawing, FeatureRows};
use crate::dataset::{Dataset, Features, RowFile};
use crate::error::{Error, Result};
use crate::lower::{FeatureData, Inputs, KeptRows};
use crate::ranks::RowStore;
use crate::sample::Scratch;

/// The epoch whose batches show what is read often. It is never trained on.
const PROBED_EPOCH: u64 = u64::MAX;

/// The most batches of it that are drawn.
const PROBES: usize = 64;

/// The size of a cache of features: in memory, or on each device. See [`Batches::feature_cache`](super::Batches) and
/// [`Batches::device_cache`](super::Batches).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeatureCache {
    /// This share of the rows, from 0 to 1.
    Share(f64),
    /// As many rows as so many bytes hold.
    Bytes(u64),
}

/// The error of a text that is not the size of a cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a share of all rows, as in 10%, or a size, as in 2GiB")]
pub struct ParseFeatureCacheError;

impl FromStr for FeatureCache {
    type Err = ParseFeatureCacheError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let Some(percent) = text.strip_suffix('%') else {
            let bytes = text.parse().map(|bytes: ByteSize| Self::Bytes(bytes.as_u64()));
            return bytes.map_err(|_| ParseFeatureCacheError);
        };
        let share: f64 = percent.trim().parse().map_err(|_| ParseFeatureCacheError)?;
        if (0.0..=100.0).contains(&share) { Ok(Self::Share(share / 100.0)) } else { Err(ParseFeatureCacheError) }
    }
}

impl fmt::Display for FeatureCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A share of 7% is 7.000000000000001 hundredths.
            Self::Share(share) => write!(f, "{}%", (share * 1e8).round() / 1e6),
            Self::Bytes(bytes) => ByteSize(*bytes).fmt(f),
        }
    }
}

impl FeatureCache {
    /// Returns the number of rows that are kept.
    pub(crate) fn rows(self, vertices: usize, row_bytes: u64) -> usize {
        let rows = match self {
            Self::Share(share) => (vertices as f64 * share).round() as usize,
            Self::Bytes(bytes) => usize::try_from(bytes / row_bytes.max(1)).unwrap_or(usize::MAX),
        };
        rows.min(vertices)
    }

    /// Reads the rows that are kept.
    ///
    /// # Errors
    /// [`Error::Value`] if the rows of `data` cannot be read from a file; [`Error::Dataset`]; [`Error::Batch`].
    pub(super) fn fill(self, drawing: &Drawing, data: &Dataset, by_visits: &[u32]) -> Result<FeatureRows> {
        let file = match row_file(drawing, data)? {
            Ok(file) => file,
            Err(why) => return Err(self.wrong("feature_cache", why.into())),
        };
        let kept = self.kept(by_visits, file.row_bytes());
        let bytes = kept.rows().len() * file.row_bytes() as usize;
        let none = |_| self.wrong("feature_cache", format!("there is no memory for {bytes} bytes; keep fewer rows"));
        Ok(FeatureRows::new(file, kept, AlignedBytes::zeroed(bytes).map_err(none)?)?)
    }

    /// Returns the rows that stay on each device; `None` if there is no room for one.
    ///
    /// # Errors
    /// [`Error::Value`] for sparse features.
    pub(super) fn on_device(self, inputs: &Inputs, dtype: StorageType, by_visits: &[u32]) -> Result<Option<KeptRows>> {
        let FeatureData::Dense { width, .. } = inputs.features else {
            let expected = "only rows of dense features stay on a device, and those of this dataset are sparse".into();
            return Err(self.wrong("device_cache", expected));
        };
        let kept = self.kept(by_visits, (width * dtype.byte_count()) as u64);
        Ok(Some(kept).filter(|kept| !kept.rows().is_empty()))
    }

    /// Returns the rows that stay on each device, with their contents from the ranks that hold them. All ranks have to call
    /// it with the same rows.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no memory for them; [`Error::OtherRank`].
    pub(super) fn pulled(self, kept: &KeptRows, store: &RowStore) -> Result<KeptRows> {
        let rows = store.begin().pull(0, kept.rows().to_vec(), &[])?.matrix(0..kept.rows().len());
        let rows =
            rows.map_err(|_| self.wrong("device_cache", "there is no memory for its rows; keep fewer".into()))?;
        Ok(kept.clone().with_contents(rows.as_slice::<f32>().to_vec().into()))
    }

    /// Returns the rows that are kept: the first ones of a list of all.
    fn kept(self, by_visits: &[u32], row_bytes: u64) -> KeptRows {
        let mut rows = by_visits[..self.rows(by_visits.len(), row_bytes)].to_vec();
        rows.sort_unstable();
        KeptRows::new(by_visits.len(), rows)
    }

    fn wrong(self, option: &'static str, expected: String) -> Error {
        Error::Value { option, value: self.to_string(), expected }
    }
}

/// Opens the file that has the features as the programs read them. If no file has them, returns why, and what to do.
fn row_file(drawing: &Drawing, data: &Dataset) -> Result<std::result::Result<RowFile, &'static str>> {
    let (Some(Features::Dense(dense)), FeatureData::Dense { data: read, .. }) =
        (data.features(), &drawing.inputs.features)
    else {
        return Ok(Err(
            "only rows of dense features are read from a file, and those of this dataset are sparse; leave this \
                       option out",
        ));
    };
    // Normalised features are another array.
    if read.as_ptr() != dense.data().as_ptr() {
        return Ok(Err(
            "the file has the rows before they are divided by their sums; set option `feature_norm` to none, or \
                       leave this option out",
        ));
    }
    let no_file = "rows are read from the file features.npy of a dataset directory, in float32, and this dataset has no \
                   such file; leave this option out";
    Ok(dense.row_file()?.ok_or(no_file))
}

impl Drawing {
    /// Returns all vertices, ordered by the number of batches that read their features, the largest first. Where these
    /// numbers are equal, vertices with more out-edges come first.
    ///
    /// # Errors
    /// [`Error::Batch`].
    /// # Cost
    /// That of drawing up to 64 batches; O(n log n + e).
    pub(crate) fn by_visits(&self) -> Result<Vec<u32>> {
        let graph = &self.inputs.graph;
        let mut visits = vec![0u32; graph.vertex_count()];
        let (order, mut scratch) = (self.order(PROBED_EPOCH), Scratch::default());
        for number in 0..self.count().min(PROBES) {
            for drawn in self.draw(PROBED_EPOCH, number, &order, &mut scratch)? {
                drawn.vertices.iter().for_each(|&v| visits[v as usize] += 1);
            }
        }
        let mut out_edges = vec![0u64; graph.vertex_count()];
        graph.indices().iter().for_each(|&u| out_edges[u as usize] += 1);
        let mut vertices: Vec<u32> = (0..graph.vertex_count() as u32).collect();
        vertices.sort_by_key(|&v| std::cmp::Reverse((visits[v as usize], out_edges[v as usize])));
        Ok(vertices)
    }
}
