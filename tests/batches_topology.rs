//! Mini-batches on ranks that draw only the edges of their own vertices: the same runs as with the whole graph on each
//! rank, in as many rounds of messages as they should take.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::batches_failures::assert_sampling_failed;
use super::batches_ranks::{hostile, model, neighbors, train, trainer};
use crate::common::ranks::{on_ranks, simulated};
use lapidary::graph::Graph;
use lapidary::model::ModelConfig;
use lapidary::sample::{BatchKey, MiniBatch, NeighborSampler, SampleError, Sampler, Scratch, SubgraphSampler};
use lapidary::{Batches, Dataset, Error, Model, Position, Ranks, RunOptions, SeedShares, Topology, Trainer};

/// Batches whose edges are drawn by the ranks that own them.
fn by_parts(size: usize, sampler: impl Sampler + 'static) -> Batches {
    Batches::new(size, sampler).seeds(SeedShares::Own).topology(Topology::Parts)
}

#[test]
fn ranks_that_have_their_own_edges_train_alike() {
    for data in [Dataset::builtin("planted").unwrap(), hostile()] {
        let size = data.labelled_split_size(1).div_ceil(3) + 1;
        let mut samplers = vec![neighbors("4,3"), neighbors("-1,2"), neighbors("3,4").with_replacement(true)];
        samplers.extend(data.edge_weights().map(|weights| neighbors("3,3").weights(weights.clone())));
        // GCN reads the weights of edges.
        for (sampler, name) in samplers.into_iter().zip(["sage", "gcn", "gat", "gcn"]) {
            let model = model(name, &data);
            for count in [2, 3] {
                let batches = || Batches::new(size, sampler.clone()).seeds(SeedShares::Own);
                let want = train(&model, &data, simulated(count, Ranks::alone()), batches(), 2);
                for look_ahead in [0, 1, 4] {
                    let batches = || batches().topology(Topology::Parts).look_ahead(look_ahead);
                    for got in on_ranks(count, |ranks| train(&model, &data, simulated(1, ranks), batches(), 2)) {
                        assert_eq!(got, want, "{name}, {count} ranks, {look_ahead} ahead");
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_takes_two_rounds_for_each_layer() {
    let data = Dataset::builtin("planted").unwrap();
    for (layers, count, devices) in [(1, 2, 1), (2, 2, 2), (2, 3, 1), (3, 2, 1), (4, 3, 1), (4, 2, 1)] {
        let widths = [&[data.feature_width()][..], &vec![6; layers - 1], &[data.class_count()]].concat();
        let model = Model::from_config(ModelConfig::new("sage", &widths)).unwrap();
        let sampler = neighbors(&vec!["3"; layers].join(","));
        let run = |topology: Topology| {
            on_ranks(count, |ranks| {
                let batches = by_parts(40, sampler.clone()).topology(topology).evaluation(sampler.clone());
                let mut trainer = trainer(&model, &data, simulated(devices, ranks), batches).unwrap();
                let epochs: Vec<_> = (0..2).map(|_| trainer.step().unwrap()).collect();
                let numbers: Vec<_> = epochs.iter().map(|epoch| (epoch.loss, epoch.accuracy)).collect();
                let stages = [epochs[1].stages, epochs[1].eval_stages].map(Option::unwrap);
                ((numbers, trainer.weights().unwrap().to_safetensors().unwrap()), stages)
            })
        };
        let (whole, parts) = (run(Topology::Whole), run(Topology::Parts));
        for ((want, of_whole), (got, of_parts)) in whole.iter().zip(&parts) {
            assert_eq!(got, want, "{layers} layers, {count} ranks");
            for (whole, parts) in of_whole.iter().zip(of_parts) {
                let rounds = [whole, parts].map(|stages| stages.rounds);
                assert_eq!(rounds, [2 * whole.batches, 2 * layers as u64 * whole.batches], "{layers} layers");
                assert_eq!((whole.fetched_rows, whole.fetched_edges), (parts.fetched_rows, 0));
                assert_eq!(parts.fetched_edges > 0, layers > 1);
                assert!(parts.fetched_edge_bytes >= 4 * parts.fetched_edges);
            }
        }
        let [whole, parts] = [whole, parts].map(|of_ranks| of_ranks[0].1[0]);
        println!(
            "{layers} layers on {count} ranks: {} batches; whole: {} rounds; parts: {} rounds, {} edges, {} bytes",
            whole.batches, whole.rounds, parts.rounds, parts.fetched_edges, parts.fetched_edge_bytes
        );
    }
}

#[test]
fn kept_rows_and_checkpoints_within_an_epoch_are_the_same() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let folder = tempfile::tempdir().unwrap();
    let build = |topology: Topology, ranks: Ranks| {
        let batches = by_parts(20, neighbors("4,3")).topology(topology).device_cache("20%".parse().unwrap());
        trainer(&model, &data, simulated(1, ranks), batches).unwrap()
    };
    let finish = |mut trainer: Trainer| {
        let losses: Vec<f64> = (0..2).map(|_| trainer.step().unwrap().loss).collect();
        (losses, trainer.weights().unwrap())
    };
    let run = |topology: Topology| on_ranks(2, |ranks| finish(build(topology, ranks)));
    let want = run(Topology::Whole);
    assert!(run(Topology::Parts) == want);
    on_ranks(2, |ranks| {
        let mut trainer = build(Topology::Parts, ranks.clone());
        assert_eq!(trainer.step_batches(3).unwrap(), None);
        let snapshot = trainer.snapshot().unwrap();
        if ranks.is_first() {
            snapshot.save(folder.path()).unwrap();
        }
    });
    let resumed = on_ranks(2, |ranks| {
        let mut trainer = build(Topology::Parts, ranks);
        trainer.resume(folder.path()).unwrap();
        assert_eq!(trainer.position(), Position { epoch: 0, batch: 3 });
        finish(trainer)
    });
    assert!(resumed == want);
}

/// A neighbour sampler that fails after it has been used for some batches.
struct Failing {
    sampler: NeighborSampler,
    left: AtomicUsize,
    panics: bool,
}

impl fmt::Debug for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failing").finish_non_exhaustive()
    }
}

impl Sampler for Failing {
    fn name(&self) -> String {
        "failing".into()
    }

    fn layers(&self) -> usize {
        self.sampler.layers()
    }

    fn sample(
        &self,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> Result<MiniBatch, SampleError> {
        self.sampler.sample(graph, seeds, key, scratch)
    }

    fn as_neighbor(&self) -> Option<&NeighborSampler> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_ok() || !self.panics, "no more");
        left.is_ok().then_some(&self.sampler)
    }
}

#[test]
fn a_rank_that_fails_while_it_samples_ends_the_job() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    // It is asked once whether it is a neighbour sampler, and four batches are drawn to learn their sizes.
    for (left, look_ahead, panics) in [(2, 2, false), (5, 0, false), (9, 0, true), (9, 1, true), (30, 4, false)] {
        let errors = on_ranks(3, |ranks| {
            let left = AtomicUsize::new(if ranks.rank() == 1 { left } else { usize::MAX });
            let sampler = Failing { sampler: neighbors("3,3"), left, panics };
            let batches = by_parts(16, sampler).look_ahead(look_ahead);
            let mut trainer = trainer(&model, &data, simulated(1, ranks), batches)?;
            (0..9).try_for_each(|_| trainer.step().map(drop))
        });
        assert_sampling_failed(errors, left);
    }
}

#[test]
fn what_cannot_be_drawn_by_others_is_refused() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let refused = |options: RunOptions, batches: Batches| -> String {
        let error = trainer(&model, &data, options, batches).map(drop).unwrap_err();
        assert!(matches!(error, Error::Value { option: "topology", .. }), "{error}");
        error.to_string()
    };
    let subgraph = || SubgraphSampler::new("3,3".parse().unwrap());
    let alone = refused(simulated(2, Ranks::alone()), by_parts(16, neighbors("3,3")));
    assert!(alone.contains("for several ranks"), "{alone}");
    for (batches, want) in [
        (by_parts(16, neighbors("3,3")).seeds(SeedShares::Balanced), "give option `seeds` own as well"),
        (by_parts(16, subgraph()), "option `sampler` neighbor"),
        (by_parts(16, neighbors("3,3")).evaluation(subgraph()), "also those of evaluations"),
    ] {
        for error in on_ranks(2, |ranks| refused(simulated(1, ranks), batches.clone())) {
            assert!(error.contains(want), "{error}");
        }
    }
}
