//! Timed epochs: how long each call of an epoch typically takes.

use lapidary_cost_model::KernelTimes;

use crate::profile::Busy;
use crate::runtime::MeasuredCall;

/// Epochs whose calls were timed. Those with the same calls are of one kind. An epoch with an evaluation has more calls, and after
/// vertices have moved to another device, calls have other sizes.
#[derive(Debug, Default)]
pub(crate) struct TimedEpochs {
    /// The epochs of each kind. No kind is empty.
    kinds: Vec<Vec<Vec<MeasuredCall>>>,
}

impl TimedEpochs {
    /// Adds an epoch. Returns how many epochs of its kind there are now.
    pub(crate) fn add(&mut self, calls: Vec<MeasuredCall>) -> usize {
        let is_its_kind = |kind: &&mut Vec<Vec<MeasuredCall>>| {
            kind[0].len() == calls.len() && kind[0].iter().zip(&calls).all(|(a, b)| a.does_the_same(b))
        };
        match self.kinds.iter_mut().find(is_its_kind) {
            Some(kind) => {
                kind.push(calls);
                kind.len()
            }
            None => {
                self.kinds.push(vec![calls]);
                1
            }
        }
    }

    /// Returns how many epochs of the most frequent kind there are.
    pub(crate) fn alike(&self) -> usize {
        self.most().len()
    }

    /// Returns the calls of the most frequent kind, each with the median of its times, or the least one if others were busy:
    /// disturbances only slow a call.
    pub(crate) fn typical(&self, busy: Busy) -> Vec<MeasuredCall> {
        let epochs = self.most();
        let of_call = |(place, call): (usize, &MeasuredCall)| {
            let mut seconds: Vec<f64> = epochs.iter().map(|epoch| epoch[place].seconds).collect();
            seconds.sort_by(f64::total_cmp);
            MeasuredCall { seconds: seconds[if busy.disturbs() { 0 } else { seconds.len() / 2 }], ..call.clone() }
        };
        epochs.first().into_iter().flatten().enumerate().map(of_call).collect()
    }

    /// Returns the epochs of the most frequent kind; of as many, those with more calls.
    fn most(&self) -> &[Vec<MeasuredCall>] {
        self.kinds.iter().max_by_key(|kind| (kind.len(), kind[0].len())).map_or(&[], Vec::as_slice)
    }
}

/// Adds calls to the times of kernels. Those that a clock cannot measure are left out.
pub(crate) fn teach(times: &mut KernelTimes, calls: Vec<MeasuredCall>, is_suite: bool) {
    for MeasuredCall { kernel, work, seconds, .. } in calls {
        drop(times.observe(&kernel, &work, seconds, is_suite));
    }
}

#[cfg(test)]
mod tests {
    use lapidary_cost_model::{KernelWork, Quantity};

    use super::*;

    fn call(rows: f64, seconds: f64) -> MeasuredCall {
        let work = KernelWork::call().with(Quantity::Rows, rows);
        MeasuredCall { part: 0, kernel: "linear".into(), work, seconds }
    }

    #[test]
    fn times_of_calls_with_other_sizes_are_not_mixed() {
        let mut epochs = TimedEpochs::default();
        assert!(epochs.alike() == 0 && epochs.typical(Busy(0.0)).is_empty());
        // The split moves after the first epoch; the last one has an evaluation.
        assert_eq!(epochs.add(vec![call(900.0, 9e-6), call(100.0, 1e-6)]), 1);
        for (number, seconds) in (1..).zip([5e-6, 7e-6, 6e-6]) {
            assert_eq!(epochs.add(vec![call(500.0, seconds), call(500.0, 2.0 * seconds)]), number);
        }
        assert_eq!(epochs.add(vec![call(500.0, 1e-6), call(500.0, 1e-6), call(500.0, 1e-6)]), 1);
        assert_eq!(epochs.alike(), 3);
        let seconds = |busy| epochs.typical(Busy(busy)).iter().map(|call| call.seconds).collect::<Vec<_>>();
        assert_eq!((seconds(0.0), seconds(0.9)), (vec![6e-6, 12e-6], vec![5e-6, 10e-6]));
    }

    #[test]
    fn of_as_many_epochs_those_with_an_evaluation_count() {
        let mut epochs = TimedEpochs::default();
        epochs.add(vec![call(1.0, 1e-6), call(2.0, 1e-6)]);
        epochs.add(vec![call(1.0, 1e-6)]);
        assert_eq!(epochs.typical(Busy(0.0)).len(), 2);
    }
}
