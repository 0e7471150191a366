//! A sampler that draws, fails or panics as a test says.

use std::fmt;

use lapidary::graph::Graph;
use lapidary::sample::{BatchKey, MiniBatch, NeighborSampler, SampleError, Sampler, Scratch};

/// What becomes of the share of a batch.
pub enum Draw {
    /// Edges are drawn as the fan-outs say.
    Some,
    /// All edges are drawn.
    All,
    /// The sampler returns an error.
    Fails,
    /// The sampler panics.
    Panics,
}

struct Scripted<F> {
    some: NeighborSampler,
    all: NeighborSampler,
    script: F,
}

/// Returns a sampler with two layers and these fan-outs, for which `script` decides by the seeds and the batch.
pub fn scripted(fanouts: &str, script: impl Fn(&[u32], BatchKey) -> Draw + Send + Sync + 'static) -> impl Sampler {
    let [some, all] = [fanouts, "-1,-1"].map(|fanouts| NeighborSampler::new(fanouts.parse().unwrap()));
    Scripted { some, all, script }
}

impl<F> fmt::Debug for Scripted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}

impl<F: Fn(&[u32], BatchKey) -> Draw + Send + Sync> Sampler for Scripted<F> {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn layers(&self) -> usize {
        self.some.layers()
    }

    fn sample(
        &self,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> Result<MiniBatch, SampleError> {
        match (self.script)(seeds, key) {
            Draw::Some => self.some.sample(graph, seeds, key, scratch),
            Draw::All => self.all.sample(graph, seeds, key, scratch),
            Draw::Fails => self.some.sample(graph, &[u32::MAX], key, scratch),
            Draw::Panics => panic!("no more"),
        }
    }
}
