//! Reverse Cuthill–McKee.
//!
//! The vertices of a component are numbered by a breadth-first search that visits the neighbours of a vertex by ascending
//! degree, and then backwards. So the numbers of neighbours differ by the sizes of two adjacent levels at most. Levels are
//! small if the search begins at an end of the component, which is found by searches from the last level of the one before.
//!
//! # Source
//! Cuthill & McKee, "Reducing the bandwidth of sparse symmetric matrices" (1969); the ends: George & Liu, "An
//! implementation of a pseudoperipheral node finder" (ACM TOMS 5, 1979).

use std::ops::Range;

use crate::graph::{Graph, Permutation};

/// The most searches for an end of a component. Each costs as much as the numbering, and the first few gain most.
const SEARCHES: usize = 8;

impl Permutation {
    /// Orders the vertices by the reverse Cuthill–McKee method, component by component, in the order of their first
    /// vertices. Directions of edges are ignored.
    ///
    /// ```
    /// use lapidary_data::graph::{Graph, Permutation};
    ///
    /// let path = Graph::from_edges(4, &[(0, 2), (2, 0), (2, 1), (1, 2), (1, 3), (3, 1)])?;
    /// assert_eq!(Permutation::reverse_cuthill_mckee(&path).old_of_new(), [3, 1, 2, 0]);
    /// # Ok::<(), lapidary_data::graph::GraphError>(())
    /// ```
    ///
    /// # Cost
    /// O(n + e log d) for the largest degree d, on one thread; 5 bytes per vertex. A graph that is not symmetric is also
    /// transposed.
    /// # Order
    /// Vertices of equal degree are visited in their old order.
    pub fn reverse_cuthill_mckee(graph: &Graph) -> Self {
        let n = graph.vertex_count();
        let reverse = (!graph.is_symmetric()).then(|| graph.transpose_without_permutation());
        let mut search = Search { pattern: Pattern { graph, reverse }, is_seen: vec![false; n], order: Vec::new() };
        search.order.reserve_exact(n);
        for v in 0..n as u32 {
            if !search.is_seen[v as usize] {
                let first = search.order.len();
                let end = search.end_of_component(v);
                search.visit(end, true);
                search.order[first..].reverse();
            }
        }
        Self::new(search.order).expect("each vertex is visited once")
    }
}

/// The edges of a graph in both directions.
struct Pattern<'a> {
    graph: &'a Graph,
    /// The transposed graph, unless the graph is symmetric.
    reverse: Option<Graph>,
}

impl Pattern<'_> {
    /// Returns the neighbours of a vertex. They may repeat, and the vertex may be one of them.
    fn neighbours(&self, v: u32) -> impl Iterator<Item = u32> {
        let readers = self.reverse.as_ref().map_or(&[][..], |reverse| reverse.sources(v as usize));
        self.graph.sources(v as usize).iter().chain(readers).copied()
    }

    /// Returns the number of edges at a vertex.
    fn degree(&self, v: u32) -> u64 {
        self.graph.in_degree(v as usize) + self.reverse.as_ref().map_or(0, |reverse| reverse.in_degree(v as usize))
    }
}

/// A breadth-first search that goes through one component after the other.
struct Search<'a> {
    pattern: Pattern<'a>,
    is_seen: Vec<bool>,
    /// The vertices that were seen, in order.
    order: Vec<u32>,
}

/// The levels of a search: how many there are, and where the last one is in the order.
struct Levels {
    count: usize,
    last: Range<usize>,
}

impl Search<'_> {
    /// Visits the component of `start`, the neighbours of each vertex by ascending degree if asked for.
    fn visit(&mut self, start: u32, by_degree: bool) -> Levels {
        let Self { pattern, is_seen, order } = self;
        let mut levels = Levels { count: 1, last: order.len()..order.len() + 1 };
        is_seen[start as usize] = true;
        order.push(start);
        loop {
            for place in levels.last.clone() {
                let found = order.len();
                for u in pattern.neighbours(order[place]) {
                    if !std::mem::replace(&mut is_seen[u as usize], true) {
                        order.push(u);
                    }
                }
                if by_degree {
                    order[found..].sort_unstable_by_key(|&u| (pattern.degree(u), u));
                }
            }
            if order.len() == levels.last.end {
                return levels;
            }
            levels = Levels { count: levels.count + 1, last: levels.last.end..order.len() };
        }
    }

    /// Returns a vertex from which the component of `v` has about as many levels as from any. The component is then unseen,
    /// as before.
    fn end_of_component(&mut self, v: u32) -> u32 {
        let (mut end, mut next, mut most) = (v, v, 0);
        for _ in 0..SEARCHES {
            let first = self.order.len();
            let levels = self.visit(next, false);
            let is_farther = levels.count > most;
            let far = self.order[levels.last].iter().copied().min_by_key(|&u| (self.pattern.degree(u), u));
            self.order[first..].iter().for_each(|&u| self.is_seen[u as usize] = false);
            self.order.truncate(first);
            if !is_farther {
                break;
            }
            (end, most) = (next, levels.count);
            next = far.expect("a level has vertices");
        }
        end
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rcm(vertices: usize, edges: &[(u32, u32)]) -> Vec<u32> {
        Permutation::reverse_cuthill_mckee(&Graph::from_edges(vertices, edges).unwrap()).old_of_new().to_vec()
    }

    /// Returns the edges in both directions.
    fn both(edges: &[(u32, u32)]) -> Vec<(u32, u32)> {
        edges.iter().flat_map(|&(u, v)| [(u, v), (v, u)]).collect()
    }

    /// Returns the largest difference of the numbers of two neighbours.
    fn bandwidth(graph: &Graph) -> u32 {
        let width = |v: usize| graph.sources(v).iter().map(move |&u| u.abs_diff(v as u32));
        (0..graph.vertex_count()).flat_map(width).max().unwrap_or(0)
    }

    fn grid(side: u32) -> Graph {
        let at = |x, y| side * y + x;
        let cells = (0..side).flat_map(|y| (0..side).map(move |x| (x, y)));
        let right = cells.clone().filter(|&(x, _)| x + 1 < side).map(|(x, y)| (at(x, y), at(x + 1, y)));
        let down = cells.filter(|&(_, y)| y + 1 < side).map(|(x, y)| (at(x, y), at(x, y + 1)));
        Graph::from_edges((side * side) as usize, &both(&right.chain(down).collect::<Vec<_>>())).unwrap()
    }

    #[test]
    fn orders_that_were_computed_by_hand() {
        // A path 3 - 1 - 4 - 0 - 2: the search from 0 ends at 3, the one from 3 at 2, and that from 2 is no longer.
        assert_eq!(rcm(5, &both(&[(3, 1), (1, 4), (4, 0), (0, 2)])), [2, 0, 4, 1, 3]);
        // A star around 2 with a tail 2 - 5 - 4: from the tail, 5, 2, then the leaves; backwards.
        assert_eq!(rcm(6, &both(&[(2, 0), (2, 1), (2, 3), (2, 5), (5, 4)])), [4, 5, 3, 1, 2, 0]);
        // Components keep their order, and so do vertices without edges.
        assert_eq!(rcm(7, &both(&[(1, 4), (2, 5)])), [0, 4, 1, 5, 2, 3, 6]);
        // Of a star's leaves, the ones of higher degree come last, so first backwards: 3 and 4 are joined.
        assert_eq!(rcm(5, &both(&[(0, 1), (0, 2), (0, 3), (0, 4), (3, 4)])), [4, 3, 2, 0, 1]);
        assert_eq!(rcm(1, &[(0, 0)]), [0]);
    }

    #[test]
    fn directions_do_not_matter() {
        let one_way = [(3, 1), (1, 4), (0, 4), (0, 2)];
        assert_eq!(rcm(5, &one_way), rcm(5, &both(&one_way)));
    }

    #[test]
    fn a_shuffled_grid_has_a_small_bandwidth() {
        let grid = grid(30);
        assert_eq!(bandwidth(&grid), 30);
        for seed in 0..4 {
            let shuffled = Permutation::random(900, seed).apply(&grid);
            assert!(bandwidth(&shuffled) > 600);
            let ordered = Permutation::reverse_cuthill_mckee(&shuffled).apply(&shuffled);
            assert!(bandwidth(&ordered) <= 60, "{}", bandwidth(&ordered));
        }
    }

    proptest! {
        #[test]
        fn any_graph_is_ordered_component_by_component(edges in proptest::collection::vec((0u32..24, 0u32..24), 0..40)) {
            let graph = Graph::from_edges(24, &edges).unwrap();
            let order = Permutation::reverse_cuthill_mckee(&graph);
            prop_assert_eq!(&order, &Permutation::reverse_cuthill_mckee(&graph));
            // The component of each vertex, by as many rounds as could be needed.
            let mut component: Vec<u32> = (0..24).collect();
            for _ in 0..24 {
                for &(u, v) in &edges {
                    let least = component[u as usize].min(component[v as usize]);
                    (component[u as usize], component[v as usize]) = (least, least);
                }
            }
            prop_assert!(order.rows(&component, 1).is_sorted());
        }
    }
}
