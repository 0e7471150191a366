//! What the ranks of a job send each other, and how long that takes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use lapidary_kernels::Slot;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::lower::{Crossing, Exchange, Lowered, LoweredStep, Sizes, Supply};
use crate::plain_file;
use crate::ranks::Slices;

/// The network between the ranks of a job: a message of b bytes takes `latency_s + b / bytes_per_s` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Seconds until the first byte of a message arrives.
    pub latency_s: f64,
    /// Bytes per second that one rank sends, while it receives as many.
    pub bytes_per_s: f64,
}

/// Seconds of latency that are assumed if only the rate of a network is known.
const LATENCY_S: f64 = 1e-5;

impl Default for Network {
    /// 10 Gb/s.
    fn default() -> Self {
        Self::of_gigabits(10.0)
    }
}

impl Network {
    fn of_gigabits(rate: f64) -> Self {
        Self { latency_s: LATENCY_S, bytes_per_s: rate * 1e9 / 8.0 }
    }

    /// Returns the seconds in which a rank sends and receives this.
    fn seconds(&self, [sent, received]: [Load; 2]) -> f64 {
        let messages = sent.messages.max(received.messages);
        messages as f64 * self.latency_s + sent.bytes.max(received.bytes) as f64 / self.bytes_per_s
    }
}

impl FromStr for Network {
    type Err = Error;

    /// Parses a rate, such as `10Gb` (gigabits per second, with a latency of 10 us), or the name of a JSON file with
    /// `latency_s` and `bytes_per_s`.
    ///
    /// # Errors
    /// [`Error::Value`]; [`Error::Io`] if the file cannot be read.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |expected: &str| Error::Value { option: "network", value: text.into(), expected: expected.into() };
        let form = "write a rate above 0, as in 10Gb, or the name of a JSON file with latency_s and bytes_per_s";
        let network = match text.strip_suffix("Gb").map(str::parse::<f64>) {
            Some(Ok(rate)) => Self::of_gigabits(rate),
            _ => {
                let json =
                    plain_file::read_text(Path::new(text), plain_file::TEXT_BYTES).map_err(|source| {
                        match source.kind() {
                            std::io::ErrorKind::NotFound => wrong(form),
                            _ => Error::Io { action: "read", path: text.into(), source },
                        }
                    })?;
                serde_json::from_str(&json).map_err(|_| wrong(form))?
            }
        };
        let is_good = network.bytes_per_s.is_finite()
            && network.bytes_per_s > 0.0
            && network.latency_s.is_finite()
            && network.latency_s >= 0.0;
        if is_good { Ok(network) } else { Err(wrong(form)) }
    }
}

/// Rows of the graph's vertices that are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Number of rows. A row counts once for each part that reads it and each exchange.
    pub rows: u64,
    /// Number of messages.
    pub messages: u64,
    /// Bytes of the rows, without the heads of messages.
    pub bytes: u64,
}

impl Load {
    fn add(&mut self, other: Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn times(self, factor: u64) -> Self {
        let Self { rows, messages, bytes } = self;
        let [rows, messages, bytes] = [rows, messages, bytes].map(|number| number.saturating_mul(factor));
        Self { rows, messages, bytes }
    }
}

/// What the ranks of a job send each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Number of ranks.
    pub ranks: usize,
    /// The network that seconds are predicted for.
    pub network: Network,
    /// The rows that all ranks send in an epoch.
    pub epoch: Load,
    /// The rows that all ranks send once, before the first epoch.
    pub setup: Load,
    /// The rows that all ranks would send in an epoch if each sent all of its rows to all others, as CAGNET's 1D
    /// algorithm and MG-GCN do.
    pub broadcast: Load,
    /// The same if two ranks each held the same rows, and added half of the products each: the 1.5D algorithm with two
    /// copies. Every rank then needs twice the memory for rows. `None` unless the number of ranks is a multiple of 4.
    pub two_copies: Option<Load>,
    /// The rows that each rank sends in an epoch to each other rank: `(from, to, rows)`. Pairs without rows are left
    /// out. Empty for a [`Shape`](super::Shape), whose pairs are all alike.
    pub pairs: Vec<(usize, usize, Load)>,
    /// For each rank, the rows that it sends and receives in an epoch.
    pub by_rank: Vec<[Load; 2]>,
    /// Bytes of gradients that each rank sends in an epoch, and receives.
    pub gradient_bytes: u64,
    /// Seconds in which the rank with the most sends and receives everything of an epoch.
    pub seconds: f64,
}

/// The job that traffic is counted for.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub ranks: usize,
    /// Devices of a rank.
    pub devices: usize,
    pub network: Network,
    /// Vertices of the graph.
    pub vertices: u64,
}

/// The rows that one exchange sends.
struct Sending {
    crossing: Crossing,
    row_bytes: u64,
    /// Messages from one part to another.
    messages: u64,
    /// Whether it happens once, before the first epoch.
    once: bool,
}

/// The exchanges of these phases and of the setup, and the bytes that each rank sends for sums in an epoch.
fn sendings(lowered: &Lowered, phases: &[usize], job: Job) -> (Vec<Sending>, u64) {
    let writes = |steps: &[LoweredStep]| -> BTreeSet<Slot> {
        steps.iter().flat_map(|step| step.call.writes().collect::<Vec<_>>()).collect()
    };
    let (before, made) = (writes(&lowered.setup), writes(&lowered.sequence(phases)));
    let (mut rows, mut sum_bytes) = (Vec::new(), 0);
    for exchange in &lowered.exchanges {
        match exchange {
            Exchange::Halo { packed, crossing, width, float, .. } => {
                let once = before.contains(&packed[0]);
                if once || made.contains(&packed[0]) {
                    let row_bytes = (float.byte_count() * width) as u64;
                    rows.push(Sending { crossing: *crossing, row_bytes, messages: packed.len() as u64, once });
                }
            }
            Exchange::Sum { term, .. } if made.contains(term) => {
                let len = lowered.tensor(*term).bytes as usize / size_of::<f32>();
                sum_bytes += Slices::new(job.ranks, len).sent_bytes(job.devices);
            }
            Exchange::Sum { .. } | Exchange::Fetch { .. } | Exchange::Reduce { .. } => {}
        }
    }
    (rows, sum_bytes)
}

/// Returns what all ranks would send in an epoch if each sent all of its rows to all others.
fn broadcast(sendings: &[Sending], job: Job) -> Load {
    let others = job.ranks as u64 - 1;
    let mut all = Load::default();
    for sending in sendings.iter().filter(|sending| !sending.once) {
        let rows = job.vertices.saturating_mul(others);
        let messages = others * (job.ranks * job.devices) as u64;
        all.add(Load { rows, messages, bytes: rows.saturating_mul(sending.row_bytes) });
    }
    all
}

/// Returns what all ranks would send in an epoch if two of them always held the same rows.
///
/// There are P / 2 groups of two ranks, each with 2n / P rows. A rank adds the rows of every second group, of which it
/// holds one at most, and then the two ranks of a group add their sums: each sends one half and returns the other.
///
/// # Source
/// Tripathy et al., Reducing communication in graph neural network training, SC 2020: the 1.5D algorithm with c = 2.
fn two_copies(sendings: &[Sending], job: Job) -> Option<Load> {
    let ranks = job.ranks as u64;
    if !ranks.is_multiple_of(4) {
        return None;
    }
    let mut all = Load::default();
    for sending in sendings.iter().filter(|sending| !sending.once) {
        let rows = job.vertices.saturating_mul(ranks / 2 - 1).saturating_add(job.vertices.saturating_mul(2));
        let messages = (ranks * (ranks / 4) - ranks / 2 + 2 * ranks) * (job.devices as u64);
        all.add(Load { rows, messages, bytes: rows.saturating_mul(sending.row_bytes) });
    }
    Some(all)
}

impl Traffic {
    /// Counts the rows that cross between the ranks of a dataset, `devices` parts each.
    ///
    /// # Cost
    /// O(parts + pairs of parts that exchange rows) for each exchange, once the routes are known.
    pub(super) fn of_data(supply: &mut Supply<'_>, lowered: &Lowered, phases: &[usize], job: Job) -> Self {
        let devices = job.devices;
        let (sendings, sum_bytes) = sendings(lowered, phases, job);
        let (mut setup, others) = (Load::default(), (broadcast(&sendings, job), two_copies(&sendings, job)));
        let mut pairs: BTreeMap<(usize, usize), Load> = BTreeMap::new();
        for Sending { crossing, row_bytes, messages, once } in sendings {
            for (reader, sources) in supply.routes(crossing).sources.iter().enumerate() {
                for source in sources {
                    let (from, to, rows) = (source.part / devices, reader / devices, source.rows.len() as u64);
                    let load = Load { rows, messages, bytes: rows * row_bytes };
                    match (from == to, once) {
                        (true, _) => {}
                        (false, true) => setup.add(load),
                        (false, false) => pairs.entry((from, to)).or_default().add(load),
                    }
                }
            }
        }
        let pairs: Vec<_> = pairs.into_iter().map(|((from, to), load)| (from, to, load)).collect();
        let mut by_rank = vec![[Load::default(); 2]; job.ranks];
        for &(from, to, load) in &pairs {
            by_rank[from][0].add(load);
            by_rank[to][1].add(load);
        }
        Self::new(job, setup, others, pairs, by_rank, sum_bytes)
    }

    /// Estimates the rows that cross between the ranks of a graph of which only the size is known: all parts are like
    /// `part`, and read as many rows of each other part.
    pub(super) fn of_shape(part: &Sizes, lowered: &Lowered, phases: &[usize], job: Job) -> Self {
        let (sendings, sum_bytes) = sendings(lowered, phases, job);
        let others_send = (broadcast(&sendings, job), two_copies(&sendings, job));
        let (parts, devices) = ((job.ranks * job.devices) as u64, job.devices as u64);
        let others = parts - devices;
        let (mut setup, mut epoch) = (Load::default(), Load::default());
        for Sending { crossing, row_bytes, messages, once } in sendings {
            let halo = match crossing {
                Crossing::Pull(block) => part.cut(block).halo,
                Crossing::Fold(block) => part.cut(block.transpose()).lent,
            };
            let rows = (u128::from(halo) * u128::from(others) / u128::from(parts.max(2) - 1)) as u64;
            let messages = if rows > 0 { messages * others } else { 0 };
            let load = Load { rows, messages, bytes: rows.saturating_mul(row_bytes) };
            if once { setup.add(load) } else { epoch.add(load) }
        }
        let by_rank = vec![[epoch.times(devices); 2]; job.ranks];
        Self::new(job, setup.times(parts), others_send, Vec::new(), by_rank, sum_bytes)
    }

    fn new(
        Job { ranks, network, .. }: Job,
        setup: Load,
        (broadcast, two_copies): (Load, Option<Load>),
        pairs: Vec<(usize, usize, Load)>,
        by_rank: Vec<[Load; 2]>,
        gradient_bytes: u64,
    ) -> Self {
        // The terms of each sum are messages of their own, of which there are few.
        let gradients = Load { bytes: gradient_bytes, ..Load::default() };
        let with_gradients = |mut load: Load| {
            load.add(gradients);
            load
        };
        let seconds = by_rank.iter().map(|both| network.seconds(both.map(with_gradients))).fold(0.0, f64::max);
        let mut epoch = Load::default();
        by_rank.iter().for_each(|[sent, _]| epoch.add(*sent));
        Self { ranks, network, epoch, setup, broadcast, two_copies, pairs, by_rank, gradient_bytes, seconds }
    }

    /// Returns the most that one rank sends or receives in an epoch.
    pub fn largest(&self) -> Load {
        self.by_rank.iter().flatten().copied().max_by_key(|load| load.bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_copies_send_what_their_ranks_do() {
        for ranks in [4u64, 8, 12, 64] {
            let (n, groups) = (960 * ranks, ranks / 2);
            let group_rows = n / groups;
            let (mut rows, mut messages) = (0, 0);
            for rank in 0..ranks {
                let (own, half) = (rank / 2, rank % 2);
                let others = (0..groups).filter(|group| group % 2 == half && *group != own).count() as u64;
                rows += others * group_rows;
                messages += others;
                // The sum: one half goes to the other rank of the group, and the other half comes back.
                rows += 2 * (group_rows / 2);
                messages += 2;
            }
            let sending = Sending {
                crossing: Crossing::Pull(crate::program::BlockSpec::Graph { self_loops: false, transposed: false }),
                row_bytes: 8,
                messages: 1,
                once: false,
            };
            let job = Job { ranks: ranks as usize, devices: 1, network: Network::default(), vertices: n };
            let load = two_copies(&[sending], job).expect("it is a multiple of 4");
            assert_eq!(load, Load { rows, messages, bytes: 8 * rows }, "{ranks} ranks");
        }
    }
}
