//! A graph of which only the size is known.

use crate::lower::{Cut, Sizes};
use crate::program::LevelSizes;

/// The size of a graph, and the widths of its features and classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of vertices.
    pub vertices: u64,
    /// Number of edges, without added self-loops.
    pub edges: u64,
    /// Number of features per vertex; they are dense.
    pub features: usize,
    /// Number of classes.
    pub classes: usize,
    /// Whether the graph is directed, so that backward needs other blocks than forward.
    pub directed: bool,
}

impl Shape {
    /// The assumption about the edges, as text.
    pub const ASSUMPTION: &'static str = "edges have uniform random ends, and every part has an equal share of them";

    /// Returns the sizes for lowering of `parts` equal parts, all as large as the largest part.
    ///
    /// Edges are assumed to have uniform random ends. Then a part with `e_p` edges reads a given vertex of another part
    /// with probability `1 - exp(-e_p / n)`, and other parts read a given vertex of this part with probability
    /// `1 - exp(-(e - e_p) / n)`.
    pub(crate) fn sizes(&self, parts: usize) -> Vec<Sizes> {
        let share = |whole: u64| whole.div_ceil(parts as u64);
        let (vertices, edges) = (share(self.vertices), share(self.edges));
        let read = |edges: u64| -(-(edges as f64) / self.vertices.max(1) as f64).exp_m1();
        let others = (self.vertices - vertices) as f64;
        let halo = (others * read(edges)).round() as u64;
        let packed = (vertices as f64 * read(self.edges - edges)).round() as u64;
        // Half of the halo comes before the own rows, as in the middle part. So all parts are equal.
        // As many rows are sent as received.
        let cut = Cut { edges, self_loops: 0, halo, low: halo / 2, packed, lent: halo, inner: edges / parts as u64 };
        let sizes = |part: u64| Sizes {
            parts,
            first_vertex: (part * vertices).min(self.vertices),
            vertices,
            forward: cut,
            backward: cut,
            symmetric: !self.directed,
            feature_cells: 0,
            labelled: [0, self.vertices, 0, 0],
            levels: LevelSizes::default(),
        };
        (0..parts as u64).map(sizes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_exchanges_nothing_and_more_exchange_at_most_all() {
        let shape = Shape { vertices: 1001, edges: 30_000, features: 5, classes: 2, directed: false };
        let one = shape.sizes(1)[0];
        assert_eq!((one.vertices, one.forward), (1001, Cut { edges: 30_000, inner: 30_000, ..Cut::default() }));
        let four = shape.sizes(4)[1];
        assert_eq!((four.vertices, four.forward.edges), (251, 7500));
        assert!(four.forward.halo > 700 && four.forward.halo <= 750, "{} of 750", four.forward.halo);
        assert!(four.forward.packed > 240 && four.forward.packed <= 251, "{} of 251", four.forward.packed);
    }
}
