//! Draws in proportion to weights without replacement, by times of arrival, and how many each drawn one stands for.
//!
//! A candidate of weight `q` arrives after a time that is exponential with rate `q`. The first `k` to arrive are drawn.
//! Given the times of all others, a candidate is drawn if it arrives before the `k`-th of those: with the probability
//! `1 - exp(-q t)`, where `t` is that time. If it was drawn, `t` is the time of the first arrival that was not. So the
//! inverse of this probability is 1 on average, where one that is not drawn counts 0.
//!
//! Source: Cohen & Kaplan, Summarizing data using bottom-k sketches, PODC 2007, and Tighter estimation using bottom-k
//! sketches, VLDB 2008: rank conditioning.

/// What may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    /// When it arrives.
    pub time: f64,
    /// The rate of its arrival, more than 0.
    pub weight: f64,
    pub vertex: u32,
}

/// Keeps the first `count` to arrive, in any order, and returns the time of the next one, or infinity if there is none.
///
/// # Cost
/// O(candidates) in expectation.
pub(super) fn keep_earliest(candidates: &mut Vec<Candidate>, count: usize) -> f64 {
    if candidates.len() <= count {
        return f64::INFINITY;
    }
    let earlier = |a: &Candidate, b: &Candidate| a.time.total_cmp(&b.time).then(a.vertex.cmp(&b.vertex));
    let next = candidates.select_nth_unstable_by(count, earlier).1.time;
    candidates.truncate(count);
    next
}

/// Returns how many candidates of this weight one stands for that arrived before `next`, the first arrival that was not
/// drawn.
pub(super) fn stands_for(weight: f64, next: f64) -> f32 {
    // 1 / (1 - exp(-x)), exact for small x too.
    (-1.0 / (-weight * next).exp_m1()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_are_kept() {
        let times = [5.0, 1.0, 4.0, 1.0, 9.0];
        let all: Vec<Candidate> =
            (0..).zip(times).map(|(vertex, time)| Candidate { time, weight: 1.0, vertex }).collect();
        for (count, want, next) in
            [(0, vec![], 1.0), (1, vec![1], 1.0), (3, vec![1, 2, 3], 5.0), (5, vec![0, 1, 2, 3, 4], f64::INFINITY)]
        {
            let mut kept = all.clone();
            assert_eq!(keep_earliest(&mut kept, count), next);
            let mut vertices: Vec<u32> = kept.iter().map(|kept| kept.vertex).collect();
            vertices.sort_unstable();
            assert_eq!(vertices, want);
        }
    }

    #[test]
    fn all_stand_for_themselves_if_all_are_drawn() {
        assert_eq!(stands_for(1e-30, f64::INFINITY), 1.0);
        assert_eq!(stands_for(2f64.ln(), 1.0), 2.0);
        // Where exp(-x) rounds to 1.
        assert_eq!(stands_for(1e-20, 1.0), 1e20);
    }
}
