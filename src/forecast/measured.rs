//! A network from measurements between ranks.

use super::Network;
use crate::ranks::Link;

impl Network {
    /// Returns the medians of latency and rate over the links between different machines, or over all links if the ranks
    /// share one machine; `None` without links.
    pub fn of_links(links: &[Link]) -> Option<Self> {
        let between: Vec<&Link> = links.iter().filter(|link| link.hosts[0] != link.hosts[1]).collect();
        let counted = if between.is_empty() { links.iter().collect() } else { between };
        let median = |of: fn(&Link) -> f64| {
            let mut values: Vec<f64> = counted.iter().map(|link| of(link)).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Some(Self { latency_s: median(|link| link.latency_s)?, bytes_per_s: median(|link| link.bytes_per_s)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_machines_count_if_there_are_any() {
        let link = |hosts: [&str; 2], latency_s, bytes_per_s| Link {
            ranks: [0, 1],
            hosts: hosts.map(String::from),
            latency_s,
            bytes_per_s,
        };
        let near = [link(["a", "a"], 1e-6, 9e9), link(["a", "a"], 3e-6, 7e9), link(["b", "b"], 2e-6, 8e9)];
        assert_eq!(Network::of_links(&near), Some(Network { latency_s: 2e-6, bytes_per_s: 8e9 }));
        let mut all = near.to_vec();
        all.push(link(["a", "b"], 1e-4, 1e8));
        assert_eq!(Network::of_links(&all), Some(Network { latency_s: 1e-4, bytes_per_s: 1e8 }));
        assert_eq!(Network::of_links(&[]), None);
    }
}
