//! The nets of a graph.

use rayon::prelude::*;

use super::Nets;
use crate::dataset::{Error, Result};
use crate::graph::{Graph, prefix_sum, rows_mut};
use crate::partition::merged;

/// The largest number that Mt-KaHyPar counts to.
pub(super) const MOST: u64 = i32::MAX as u64;

/// The nets as one list of pins. Nets of a single vertex, whose row is never sent, are left out.
pub(super) struct Pins {
    /// `[nets + 1]`
    pub(super) offsets: Vec<usize>,
    /// The vertices of each net, its own first, the others ascending.
    pub(super) pins: Vec<usize>,
}

impl Pins {
    /// Lists the nets of a graph.
    ///
    /// # Errors
    /// [`Error::NotForThisData`] if there are more pins than [`MOST`].
    /// # Cost
    /// O(n + e). The lists take 8 bytes per net and pin. A directed graph is also transposed.
    pub(super) fn of(graph: &Graph, nets: Nets) -> Result<Self> {
        let n = graph.vertex_count();
        let symmetric = graph.is_symmetric();
        let readers = (!symmetric).then(|| graph.transpose_without_permutation());
        let readers = readers.as_ref().unwrap_or(graph);
        let directions = if nets == Nets::Both && !symmetric { vec![readers, graph] } else { vec![readers] };
        let others = |net: usize| {
            let v = net % n;
            merged(directions[net / n].sources(v), &[]).filter(move |&u| u as usize != v)
        };
        let mut offsets = vec![0u64; n * directions.len() + 1];
        offsets[1..].par_iter_mut().enumerate().for_each(|(net, pins)| {
            let count = others(net).count() as u64;
            *pins = if count == 0 { 0 } else { count + 1 };
        });
        prefix_sum(&mut offsets);
        small("pins", offsets[n * directions.len()])?;
        let mut pins = vec![0usize; offsets[n * directions.len()] as usize];
        rows_mut(&offsets, &mut pins).into_par_iter().enumerate().for_each(|(net, row)| {
            row.iter_mut()
                .zip(std::iter::once(net % n).chain(others(net).map(|u| u as usize)))
                .for_each(|(to, v)| *to = v);
        });
        // Nets without pins begin where the next one does.
        offsets.dedup();
        Ok(Self { offsets: offsets.into_iter().map(|offset| offset as usize).collect(), pins })
    }
}

/// Returns a number as Mt-KaHyPar takes it.
pub(super) fn small(what: &'static str, number: u64) -> Result<i32> {
    i32::try_from(number).map_err(|_| Error::NotForThisData {
        option: "by",
        found: "a hypergraph".into(),
        expected: format!("another way: Mt-KaHyPar counts to {MOST}, but this graph gives it {number} {what}").into(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::partition::{Assignment, Volume};

    /// Returns the sum over nets of the number of their parts, less one.
    fn connectivity(nets: &Pins, assignment: &Assignment) -> u64 {
        let parts =
            |pins: &[usize]| pins.iter().map(|&v| assignment.part_of()[v]).collect::<BTreeSet<_>>().len() as u64;
        nets.offsets.windows(2).map(|net| parts(&nets.pins[net[0]..net[1]]) - 1).sum()
    }

    proptest! {
        #[test]
        fn the_connectivity_of_the_nets_is_the_volume(
            edges in proptest::collection::vec((0u32..12, 0u32..12), 0..80),
            parts in proptest::collection::vec(0u32..4, 14),
            undirected in proptest::bool::ANY,
        ) {
            // Vertices 12 and 13 are isolated; loops and repeated edges are likely.
            let reversed = edges.iter().map(|&(u, v)| (v, u)).filter(|_| undirected);
            let edges: Vec<(u32, u32)> = edges.iter().copied().chain(reversed).collect();
            let graph = Graph::from_edges(14, &edges).unwrap();
            let assignment = Assignment::new(parts, NonZeroU32::new(5).unwrap()).unwrap();
            let volume = Volume::of(&graph, &assignment);
            let [forward, both] = [Nets::Forward, Nets::Both].map(|nets| Pins::of(&graph, nets).unwrap());
            prop_assert_eq!(connectivity(&forward, &assignment), volume.halo_rows);
            if graph.is_symmetric() {
                prop_assert_eq!((both.offsets, both.pins), (forward.offsets, forward.pins));
            } else {
                prop_assert_eq!(connectivity(&both, &assignment), volume.halo_rows + volume.backward_rows);
            }
        }
    }

    #[test]
    fn a_net_is_a_vertex_and_its_readers() {
        // 1 and 2 read 0, 0 reads 2 twice, 3 reads itself, and nobody reads 1.
        let graph = Graph::from_edges(5, &[(0, 1), (0, 2), (2, 0), (2, 0), (3, 3)]).unwrap();
        let forward = Pins::of(&graph, Nets::Forward).unwrap();
        assert_eq!((forward.offsets, forward.pins), (vec![0, 3, 5], vec![0, 1, 2, 2, 0]));
        let both = Pins::of(&graph, Nets::Both).unwrap();
        assert_eq!((both.offsets, both.pins), (vec![0, 3, 5, 7, 9, 11], vec![0, 1, 2, 2, 0, 0, 2, 1, 0, 2, 0]));
        let none = Pins::of(&Graph::from_edges(3, &[]).unwrap(), Nets::Both).unwrap();
        assert_eq!((none.offsets, none.pins), (vec![0], Vec::new()));
    }
}
