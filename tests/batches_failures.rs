//! Mini-batches on ranks of which one fails: the job ends on all of them, with its error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::batches_ranks::{model, neighbors, trainer};
use crate::common::ranks::{on_ranks, simulated};
use crate::common::scripted::{Draw, scripted};
use lapidary::sample::Sampler;
use lapidary::{Adam, Batches, Dataset, Error, Ranks, SeedShares, Topology, Trainer};

/// Returns a sampler that draws `left` shares of batches, and then fails or panics on rank 1.
fn failing(ranks: &Ranks, left: usize, panics: bool) -> impl Sampler + use<> {
    let (left, fails) = (AtomicUsize::new(left), ranks.rank() == 1);
    scripted("3,3", move |_, _| {
        let left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Err(_) if fails && panics => Draw::Panics,
            Err(_) if fails => Draw::Fails,
            _ => Draw::Some,
        }
    })
}

/// Asserts that sampling failed on rank 1 after so many batches, and that the other ranks know it.
pub(super) fn assert_sampling_failed(errors: Vec<lapidary::Result<()>>, left: usize) {
    for (rank, error) in errors.into_iter().enumerate() {
        let (error, what) = (error.unwrap_err(), format!("rank {rank}, {left} batches before"));
        match rank {
            1 => assert!(matches!(error, Error::Batch { stage: "sampling", .. }), "{what}: {error}"),
            _ => assert!(matches!(error, Error::OtherRank { rank: 1, .. }), "{what}: {error}"),
        }
    }
}

#[test]
fn a_rank_whose_sampler_fails_ends_the_job() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let start = Instant::now();
    // Four batches are drawn to learn their sizes. The first is drawn before the run, later ones in it.
    for (left, look_ahead, panics) in [(1, 2, false), (4, 0, false), (9, 0, true), (9, 1, true), (30, 3, false)] {
        let errors = on_ranks(3, |ranks| {
            let batches = Batches::new(16, failing(&ranks, left, panics)).look_ahead(look_ahead);
            let mut trainer = trainer(&model, &data, simulated(1, ranks), batches)?;
            (0..9).try_for_each(|_| trainer.step().map(drop))
        });
        assert_sampling_failed(errors, left);
    }
    assert!(start.elapsed() < Duration::from_secs(120), "a rank waited for {:?}", start.elapsed());
}

#[test]
fn all_ranks_stop_at_the_batch_where_numbers_are_not_finite() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let errors = on_ranks(2, |ranks| {
        let builder = Trainer::builder(&model, &data).options(simulated(1, ranks)).optimizer(Adam::new(1e30));
        let mut trainer = builder.batches(Batches::new(32, neighbors("3,3"))).build().unwrap();
        (0..5).find_map(|_| trainer.step().err()).expect("this learning rate diverges").to_string()
    });
    assert!(errors[0].contains("first appeared in step") && errors[0] == errors[1], "{errors:?}");
}

#[test]
fn a_rank_that_stops_computing_wakes_the_others_and_its_own_stages() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    for (look_ahead, topology) in [0, 1, 4].into_iter().flat_map(|n| [(n, Topology::Whole), (n, Topology::Parts)]) {
        let ended = on_ranks(3, |ranks| {
            let batches = Batches::new(16, neighbors("3,3")).look_ahead(look_ahead);
            let batches = batches.seeds(SeedShares::Own).topology(topology);
            let rank = ranks.rank();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut trainer = trainer(&model, &data, simulated(1, ranks), batches)?;
                trainer.on_batch(move |number, _| assert!(rank != 2 || number < 4, "enough"));
                (0..3).try_for_each(|_| trainer.step().map(drop))
            }))
        });
        for (rank, ended) in ended.into_iter().enumerate() {
            match ended {
                Err(_) => assert_eq!(rank, 2),
                Ok(ended) => assert!(matches!(ended, Err(Error::OtherRank { rank: 2, .. })), "{rank}: {ended:?}"),
            }
        }
    }
}

#[test]
fn a_rank_that_fails_in_an_evaluation_or_between_batches_ends_the_job() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    for look_ahead in [0, 1, 4] {
        // Four batches of an evaluation are drawn to learn their sizes.
        for (left, panics) in [(4, false), (7, true), (9, false)] {
            let errors = on_ranks(3, |ranks| {
                let failing = failing(&ranks, left, panics);
                let batches = Batches::new(40, neighbors("3,3")).evaluation(failing).look_ahead(look_ahead);
                let mut trainer = trainer(&model, &data, simulated(1, ranks), batches)?;
                (0..9).try_for_each(|_| trainer.step().map(drop))
            });
            for (rank, error) in errors.into_iter().enumerate() {
                match (rank, error.unwrap_err()) {
                    (1, Error::Batch { stage: "sampling", .. }) | (0 | 2, Error::OtherRank { rank: 1, .. }) => {}
                    (_, error) => panic!("rank {rank}, {look_ahead} ahead, {left} batches before: {error}"),
                }
            }
        }
        let errors = on_ranks(3, |ranks| {
            let batches = Batches::new(16, neighbors("3,3")).evaluation(neighbors("3,3")).look_ahead(look_ahead);
            let mut trainer = trainer(&model, &data, simulated(1, ranks.clone()), batches)?;
            for call in 0..99 {
                if call == 3 && ranks.rank() == 2 {
                    let error = Error::Value { option: "batch", value: "3".into(), expected: "enough".into() };
                    ranks.fail(&error);
                    return Err(error);
                }
                trainer.step_batches(2)?;
            }
            Ok(())
        });
        for (rank, error) in errors.into_iter().enumerate() {
            match (rank, error.unwrap_err()) {
                (2, Error::Value { .. }) | (0 | 1, Error::OtherRank { rank: 2, .. }) => {}
                (_, error) => panic!("rank {rank}, {look_ahead} ahead: {error}"),
            }
        }
    }
}
