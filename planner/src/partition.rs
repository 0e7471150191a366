//! Splits the vertices into consecutive ranges whose slowest is as fast as possible.
//!
//! The cost of a range is a [`RangeCost`]: vertices, edges, or the seconds that a cost model predicts. A device of
//! twice the speed gets twice the cost. The least bottleneck is found by bisection. A *probe* gives each device in turn
//! as many vertices as it can compute within a given time, and either reaches the last vertex or does not. Each probe
//! also returns the next possible bottleneck, so the bisection ends at one that exists. The cuts of two probes bound
//! those of all bottlenecks between them, so later probes search only a few vertices. Every search begins at the
//! expected cut and continues along a secant of the prefix sums, because each read of them misses every cache.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::str::FromStr;

use lapidary_cost_model::RangeCost;

use crate::memory::UnknownName;

/// The quantity that the parts share equally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Vertices: [`RangeCost::vertices`].
    Vertices,
    /// In-edges: [`RangeCost::edges`].
    Edges,
    /// Predicted seconds: [`lapidary_cost_model::CostModel::range_cost`].
    #[default]
    Learned,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 3] = [Self::Vertices, Self::Edges, Self::Learned];

    /// Returns the name that the command uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vertices => "vertices",
            Self::Edges => "edges",
            Self::Learned => "learned",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == word);
        let known = "vertices, edges or learned";
        found.ok_or_else(|| UnknownName { what: "a way to split", found: word.to_owned(), known })
    }
}

/// The speeds of the devices, each as a multiple of the speed of the device that the cost was measured on.
#[derive(Clone, Debug, PartialEq)]
pub struct Speeds {
    // Invariant: at least one speed; each is finite and above 0.
    speeds: Vec<f64>,
}

/// Why speeds are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpeedsError {
    /// There are no devices.
    #[error("there are no devices; expected one speed per device")]
    None,
    /// A speed is not a finite number above 0.
    #[error("device {device} has the speed {found}; expected a finite number above 0")]
    Speed {
        /// Number of the device.
        device: usize,
        /// Its speed.
        found: f64,
    },
}

impl Speeds {
    /// Checks the speeds.
    ///
    /// # Errors
    /// [`SpeedsError`].
    pub fn new(speeds: Vec<f64>) -> Result<Self, SpeedsError> {
        if speeds.is_empty() {
            return Err(SpeedsError::None);
        }
        match speeds.iter().copied().enumerate().find(|(_, speed)| !(speed.is_finite() && *speed > 0.0)) {
            Some((device, found)) => Err(SpeedsError::Speed { device, found }),
            None => Ok(Self { speeds }),
        }
    }

    /// Returns speeds of 1 for that many devices.
    pub fn equal(devices: NonZeroUsize) -> Self {
        Self { speeds: vec![1.0; devices.get()] }
    }

    /// Returns the time of the slowest device. `times` are the times of the parts at speed 1.
    ///
    /// # Shapes
    /// `times`: one per device.
    pub fn slowest(&self, times: &[f64]) -> f64 {
        times.iter().zip(&self.speeds).map(|(time, speed)| time / speed).fold(0.0, f64::max)
    }

    /// Returns the number of devices.
    pub fn device_count(&self) -> usize {
        self.speeds.len()
    }
}

/// Returns the time of the slowest part.
pub fn bottleneck(cost: &RangeCost<'_>, parts: &[Range<usize>], speeds: &Speeds) -> f64 {
    parts.iter().zip(&speeds.speeds).map(|(part, speed)| cost.of(part.clone()) / speed).fold(0.0, f64::max)
}

/// Splits the vertices into one consecutive range per device, so that the slowest is as fast as possible. Of all such
/// splits, returns one with nearly equal times.
///
/// # Returns
/// Ranges that cover `0..n` in order. Some are empty if there are more devices than vertices. No other consecutive
/// ranges, with the devices in this order, have a [`bottleneck`] that is smaller by more than a millionth. The
/// bottleneck is at most one vertex's cost (divided by the speed of the slowest device, if speeds differ) above the
/// ideal, which is the total cost divided by the sum of all speeds.
/// # Cost
/// O(parts log n) in the worst case for each of at most about 60 probes; about six reads per part and probe where
/// neighbouring vertices have similar costs.
/// # Source
/// The bisection and the bounds on cuts: Pınar & Aykanat, "Fast optimal load balancing algorithms for 1D partitioning"
/// (2004); with speeds: Pınar, Tabak & Aykanat, "One-dimensional partitioning for heterogeneous systems" (2008). ROC
/// (Jia et al., MLSys 2020, section 4.2) cuts where the prefix is nearest to an equal share.
pub fn split(cost: &RangeCost<'_>, speeds: &Speeds) -> Vec<Range<usize>> {
    // If nothing has a cost, all splits are equal in time; but vertices still take memory, so they are split evenly.
    let vertices = RangeCost::vertices(cost.vertex_count());
    let cost = if cost.total() > 0.0 { cost } else { &vertices };
    let per_vertex = cost.total() / cost.vertex_count().max(1) as f64;
    let search = Search { cost, per_vertex, speeds: &speeds.speeds };
    let (best, latest) = search.bisect();
    let earliest = search.earliest(best, &latest);
    ranges(&search.even(best, &earliest, &latest))
}

/// Returns the ranges of the parts, given their ends.
fn ranges(ends: &[usize]) -> Vec<Range<usize>> {
    let starts = std::iter::once(&0).chain(ends);
    starts.zip(ends).map(|(&start, &end)| start..end).collect()
}

/// Relative precision of the bottleneck at which the bisection stops. The split that the search begins with is already
/// within one vertex of the ideal.
const EXACT: f64 = 1e-6;

struct Search<'a> {
    cost: &'a RangeCost<'a>,
    /// Average cost per vertex.
    per_vertex: f64,
    speeds: &'a [f64],
}

/// The result of a probe: the end of each part, and a bottleneck.
struct Probe {
    ends: Vec<usize>,
    /// If the last vertex was reached: the time of the slowest part. Otherwise: the least time at which an end would
    /// move.
    time: f64,
}

impl Search<'_> {
    fn vertices(&self) -> usize {
        self.cost.vertex_count()
    }

    /// Returns the time of a range on a device. It never decreases when the range grows.
    fn time(&self, device: usize, range: Range<usize>) -> f64 {
        self.cost.of(range) / self.speeds[device]
    }

    /// Returns the least bottleneck, and the ends of its parts when each takes as many vertices as it can.
    fn bisect(&self) -> (f64, Vec<usize>) {
        let n = self.vertices();
        let ideal = self.cost.total() / self.speeds.iter().sum::<f64>();
        // Ends for bottlenecks that are too small, and for one that is large enough.
        let mut low_ends = vec![0; self.speeds.len()];
        let start = self.nearest_to_equal();
        let mut high = ranges(&start).into_iter().enumerate().map(|(p, part)| self.time(p, part)).fold(0.0, f64::max);
        let mut low = ideal.min(high);
        // Within the time of those parts, each end comes at least as far as theirs.
        let mut high_ends = self.probe(high, &start, &vec![n; self.speeds.len()], &start).ends;
        let mut next = low;
        while high - low > EXACT * low {
            let probe = self.probe(next, &low_ends, &high_ends, &high_ends);
            if probe.ends.last() == Some(&n) {
                (high, high_ends) = (probe.time, probe.ends);
            } else {
                (low, low_ends) = (probe.time, probe.ends);
            }
            next = low + (high - low) / 2.0;
        }
        (high, high_ends)
    }

    /// Returns the ends at which the prefix sum is nearest to each device's share.
    fn nearest_to_equal(&self) -> Vec<usize> {
        let n = self.vertices();
        let speeds = self.speeds.iter().sum::<f64>();
        let shares = self.speeds.iter().scan(0.0, |sum, speed| {
            *sum += speed;
            Some(*sum / speeds)
        });
        let nearest = |share: f64| self.nearest(self.cost.total() * share, 0..n, (n as f64 * share) as usize);
        let mut ends: Vec<usize> = shares.map(nearest).collect();
        if let Some(last) = ends.last_mut() {
            *last = n;
        }
        ends
    }

    /// Returns the vertex of `within`, or its end, up to which the cost is nearest to `target`. The search begins at
    /// `from`.
    fn nearest(&self, target: f64, within: Range<usize>, from: usize) -> usize {
        let above = first(within.clone(), from, self.per_vertex, |v| self.cost.of(0..v) - target);
        match above.checked_sub(1).filter(|&below| below >= within.start) {
            Some(below) if target - self.cost.of(0..below) <= self.cost.of(0..above) - target => below,
            _ => above,
        }
    }

    /// Gives each device in turn as many vertices as it can compute within `limit`. The ends must lie between `low` and
    /// `high`; the search begins at `from`.
    fn probe(&self, limit: f64, low: &[usize], high: &[usize], from: &[usize]) -> Probe {
        let n = self.vertices();
        let (mut slowest, mut next) = (0.0f64, f64::INFINITY);
        let mut start = 0;
        let mut ends = Vec::with_capacity(self.speeds.len());
        for (device, (&low, &high)) in low.iter().zip(high).enumerate() {
            let end = self.reach(device, start, limit, low..high, from[device]);
            slowest = slowest.max(self.time(device, start..end));
            if end < n {
                next = next.min(self.time(device, start..end + 1));
            }
            ends.push(end);
            start = end;
        }
        let time = if start == n { slowest } else { next };
        Probe { ends, time }
    }

    /// Returns how far a device comes from `start` within `limit`. The result must lie in `within`.
    fn reach(&self, device: usize, start: usize, limit: f64, within: Range<usize>, from: usize) -> usize {
        let (slope, above) = (self.per_vertex / self.speeds[device], limit.next_up());
        first(within.start.max(start)..within.end, from, slope, |v| self.time(device, start..v + 1) - above)
    }

    /// Returns the earliest possible end of each part if the parts after it are to stay within `limit`.
    fn earliest(&self, limit: f64, latest: &[usize]) -> Vec<usize> {
        let mut ends = latest.to_vec();
        for device in (1..ends.len()).rev() {
            let (end, high) = (ends[device], latest[device - 1].min(ends[device]));
            let slope = self.per_vertex / self.speeds[device];
            ends[device - 1] = first(0..high, high, slope, |v| limit - self.time(device, v..end));
        }
        ends
    }

    /// Returns ends between the earliest and the latest, with no part above `limit`. Each device gets about its share
    /// of what is left, and at least one vertex if possible.
    ///
    /// Without this step, wherever a single vertex determines the bottleneck, the first parts would be filled to the
    /// limit and the last ones would be empty.
    fn even(&self, limit: f64, earliest: &[usize], latest: &[usize]) -> Vec<usize> {
        let n = self.vertices();
        let mut start = 0;
        let mut ends = Vec::with_capacity(latest.len());
        for (device, speed) in self.speeds.iter().enumerate() {
            let share = speed / self.speeds[device..].iter().sum::<f64>();
            let target = self.cost.of(0..start) + self.cost.of(start..n) * share;
            let low = earliest[device].max(start);
            let high = self.reach(device, start, limit, low..latest[device], latest[device]);
            start = self.nearest(target, low.max(high.min(start + 1))..high, high);
            ends.push(start);
        }
        ends
    }
}

/// Distance from which on bisection is used: such a range lies in a few cache lines.
const NEAR: usize = 16;

/// Most reads along a secant before bisection is used.
const SECANTS: usize = 12;

/// Returns the first index of the range at which `excess` is not negative, or the range's end. `excess` must never
/// decrease.
///
/// It first reads at `from`, then where a line of `slope` from there crosses zero, then along the secant of the last
/// two reads. Each step goes a little too far, so that the last two reads soon lie on both sides.
fn first(range: Range<usize>, from: usize, slope: f64, excess: impl Fn(usize) -> f64) -> usize {
    let (mut low, mut high) = (range.start, range.end.max(range.start));
    let (mut slope, mut next) = (slope, from);
    let mut last: Option<(usize, f64)> = None;
    for look in 1.. {
        if low >= high {
            break;
        }
        let at = next.clamp(low, high - 1);
        let over = excess(at);
        if over >= 0.0 {
            high = at
        } else {
            low = at + 1
        }
        if let Some((before, was)) = last.replace((at, over)).filter(|(_, was)| *was != over) {
            slope = (over - was) / (at as f64 - before as f64);
        }
        let away = over.abs() / slope;
        let step = ((away + 2.0 * away.sqrt()) as usize).saturating_add(1);
        next = match over >= 0.0 {
            _ if look >= SECANTS || high.saturating_sub(low) < NEAR => low + high.saturating_sub(low) / 2,
            true => at.saturating_sub(step),
            false => at.saturating_add(step),
        };
    }
    low
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, ProptestConfig, TestCaseError, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    /// Returns the least bottleneck of any split, by trying every end of every part.
    fn least_bottleneck(cost: &RangeCost<'_>, speeds: &[f64]) -> f64 {
        let n = cost.vertex_count();
        let mut best = vec![f64::INFINITY; n + 1];
        best[0] = 0.0;
        for speed in speeds {
            let of_end = |end: usize| {
                let bottleneck = |start: usize| best[start].max(cost.of(start..end) / speed);
                (0..=end).map(bottleneck).fold(f64::INFINITY, f64::min)
            };
            best = (0..=n).map(of_end).collect();
        }
        best[n]
    }

    fn prefix(costs: &[u64]) -> Vec<u64> {
        let sums = costs.iter().scan(0, |sum, cost| {
            *sum += cost;
            Some(*sum)
        });
        std::iter::once(0).chain(sums).collect()
    }

    fn check(cost: &RangeCost<'_>, speeds: Vec<f64>) -> Result<(), TestCaseError> {
        let n = cost.vertex_count();
        let parts = split(cost, &Speeds::new(speeds.clone()).expect("they are above 0"));
        prop_assert_eq!(parts.len(), speeds.len());
        prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, n));
        prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert!(parts.iter().all(|part| part.start <= part.end));
        let found = bottleneck(cost, &parts, &Speeds { speeds: speeds.clone() });
        let least = least_bottleneck(cost, &speeds);
        prop_assert!(least <= found && found <= least * (1.0 + EXACT), "{} {}: {:?}", least, found, parts);
        let ideal = cost.total() / speeds.iter().sum::<f64>();
        let vertex = (0..n).map(|v| cost.of(v..v + 1)).fold(0.0, f64::max);
        let most = ideal + vertex / speeds.iter().copied().fold(f64::INFINITY, f64::min);
        prop_assert!(found <= most * (1.0 + 1e-12), "{} is above {}: {:?}", found, most, parts);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn no_split_is_better(
            costs in proptest::collection::vec(0u64..50, 0..24),
            speeds in proptest::collection::vec(0.01f64..10.0, 1..9),
        ) {
            let sums = prefix(&costs);
            check(&RangeCost::edges(&sums), vec![1.0; speeds.len()])?;
            check(&RangeCost::edges(&sums), speeds.clone())?;
            check(&RangeCost::vertices(costs.len()), speeds)?;
        }

        #[test]
        fn nor_where_a_hub_or_zeros_rule(
            costs in proptest::collection::vec(prop_oneof![4 => Just(0u64), 4 => 1u64..4, 1 => 1000u64..1 << 50], 0..24),
            speeds in proptest::collection::vec(prop_oneof![Just(1.0), 1e-6f64..1e6], 1..9),
        ) {
            let sums = prefix(&costs);
            check(&RangeCost::edges(&sums), speeds)?;
        }
    }

    #[test]
    fn a_hub_leaves_no_part_empty() {
        // The hub is a third of the total. If parts were filled to the limit, only two would get vertices.
        let mut costs = vec![1u64; 2000];
        costs[500] = 1000;
        let sums = prefix(&costs);
        let cost = RangeCost::edges(&sums);
        let parts = split(&cost, &Speeds::equal(NonZeroUsize::new(6).expect("six")));
        let costs: Vec<f64> = parts.iter().map(|part| cost.of(part.clone())).collect();
        assert!(costs.iter().all(|&cost| (250.0..=1000.0).contains(&cost)), "{costs:?}");
    }

    #[test]
    fn more_parts_than_vertices_leave_some_empty() {
        let cost = RangeCost::vertices(2);
        let parts = split(&cost, &Speeds::equal(NonZeroUsize::new(5).expect("five")));
        assert_eq!(parts.iter().map(ExactSizeIterator::len).sum::<usize>(), 2);
        assert_eq!(bottleneck(&cost, &parts, &Speeds::equal(NonZeroUsize::new(5).expect("five"))), 1.0);
    }

    #[test]
    fn what_costs_nothing_is_split_by_vertices() {
        let parts = split(&RangeCost::edges(&[0; 101]), &Speeds::equal(NonZeroUsize::new(4).expect("four")));
        assert!(parts.iter().all(|part| part.len() == 25), "{parts:?}");
    }

    #[test]
    fn speeds_and_words_that_mean_nothing_are_named() {
        assert_eq!(Speeds::new(Vec::new()), Err(SpeedsError::None));
        for bad in [0.0, -1.0, f64::INFINITY] {
            assert_eq!(Speeds::new(vec![1.0, bad]), Err(SpeedsError::Speed { device: 1, found: bad }));
        }
        assert!(Speeds::new(vec![f64::NAN]).is_err());
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        let said = "metis".parse::<Strategy>().map_err(|error| error.to_string());
        assert_eq!(said, Err("`metis` is not a way to split; expected vertices, edges or learned".into()));
    }
}
