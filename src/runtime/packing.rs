//! Estimates how many rows parts pack for each other, before the graph is cut.

use std::ops::Range;

use crate::graph::Graph;

/// Number of vertices in the sample, which gives an error of about 1 %.
const SAMPLE: usize = 1 << 14;

/// Returns the share of vertices whose rows other parts read, from a sample. It counts the vertices that read from
/// another part. On an undirected graph these are the same vertices; on a directed graph it is an approximation.
///
/// # Cost
/// At most about 2^14 rows, each up to its first neighbour in another part.
pub(super) fn read_by_others(graph: &Graph, parts: &[Range<usize>]) -> f64 {
    let step = graph.vertex_count().div_ceil(SAMPLE).max(1);
    let (mut looked_at, mut read) = (0u32, 0u32);
    for part in parts {
        for v in part.clone().step_by(step) {
            looked_at += 1;
            read += u32::from(graph.sources(v).iter().any(|&u| !part.contains(&(u as usize))));
        }
    }
    f64::from(read) / f64::from(looked_at.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_cross_are_counted() {
        // A ring: only the ends of parts have a neighbour in another.
        let n = 1200u32;
        let edges: Vec<(u32, u32)> = (0..n).flat_map(|v| [(v, (v + 1) % n), ((v + 1) % n, v)]).collect();
        let ring = Graph::from_edges(n as usize, &edges).expect("the ends are vertices");
        assert_eq!(read_by_others(&ring, &[0..1200, 1200..1200]), 0.0);
        assert_eq!(read_by_others(&ring, &[0..300, 300..600, 600..600, 600..1200]), 6.0 / 1200.0);
        assert_eq!(read_by_others(&Graph::from_edges(0, &[]).expect("it is empty"), &[]), 0.0);
    }

    #[test]
    fn a_sample_stands_for_all() {
        // Every third vertex has neighbours on the other side.
        let n = 200_000u32;
        let half = n / 2;
        let cross = (0..half).filter(|v| v % 3 == 0).flat_map(|v| [(v, v + half), (v + half, v)]);
        let graph = Graph::from_edges(n as usize, &cross.collect::<Vec<_>>()).expect("the ends are vertices");
        let share = read_by_others(&graph, &[0..half as usize, half as usize..n as usize]);
        assert!((share - 1.0 / 3.0).abs() < 0.02, "{share} of a third");
    }
}
