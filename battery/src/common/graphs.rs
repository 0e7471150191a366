//! Blocks of hostile shapes.

use lapidary_kernels::BlockView;

use super::numbers::Numbers;
use super::rig::shapes_are_few;

/// A block that owns its arrays.
#[derive(Clone, Debug)]
pub struct Graph {
    pub name: &'static str,
    pub indptr: Vec<u64>,
    pub indices: Vec<u32>,
    pub own_sources: usize,
    pub halo_sources: usize,
}

impl Graph {
    pub fn from_rows(name: &'static str, rows: &[Vec<u32>], own_sources: usize, halo_sources: usize) -> Self {
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for row in rows {
            indices.extend(row);
            indptr.push(indices.len() as u64);
        }
        Self { name, indptr, indices, own_sources, halo_sources }
    }

    pub fn view(&self) -> BlockView<'_> {
        BlockView {
            indptr: &self.indptr,
            indices: &self.indices,
            own_sources: self.own_sources,
            halo_sources: self.halo_sources,
        }
    }

    pub fn rows(&self) -> usize {
        self.indptr.len() - 1
    }

    pub fn edges(&self) -> usize {
        self.indices.len()
    }

    /// Returns the block with its edges reversed, and the original index of each edge.
    pub fn transpose(&self) -> (Graph, Vec<u64>) {
        let sources = self.own_sources + self.halo_sources;
        let mut rows = vec![Vec::new(); sources];
        let mut places = vec![Vec::new(); sources];
        for v in 0..self.rows() {
            for edge in self.view().edges(v) {
                rows[self.indices[edge] as usize].push(v as u32);
                places[self.indices[edge] as usize].push(edge as u64);
            }
        }
        (Graph::from_rows("transposed", &rows, self.rows(), 0), places.concat())
    }

    pub fn random(numbers: &mut Numbers, rows: usize, own: usize, halo: usize, edges: usize) -> Self {
        let mut lists = vec![Vec::new(); rows];
        for _ in 0..edges {
            let u = numbers.below(own + halo) as u32;
            lists[numbers.below(rows)].push(u);
        }
        Graph::from_rows("random", &lists, own, halo)
    }
}

/// Edges of the largest of the hostile graphs that are small.
const SMALL_EDGES: usize = 4000;

/// Returns graphs of every shape that has broken a kernel somewhere. Where shapes are few, leaves out those with many
/// edges.
pub fn hostile_graphs() -> Vec<Graph> {
    let mut graphs = all_hostile_graphs();
    if shapes_are_few() {
        graphs.retain(|graph| graph.edges() <= SMALL_EDGES);
    }
    graphs
}

fn all_hostile_graphs() -> Vec<Graph> {
    let numbers = &mut Numbers(7);
    let n = 300;
    let all = || (0..n as u32).collect::<Vec<_>>();
    let mut hub = vec![Vec::new(); n];
    hub[17] = [all(), all(), all()].concat();
    // Longer rows than one group of GPU threads sums, side by side and far apart.
    let mut heavy: Vec<Vec<u32>> = (0..40).map(|v| vec![v; v as usize % 4]).collect();
    heavy[7] = (0..2500).map(|i| i * 7 % 60).collect();
    heavy[8] = (0..1025).map(|i| i % 60).collect();
    let mut hubs = vec![Vec::new(); 1030];
    for (row, edges) in [(1, 1281), (1029, 1026)] {
        hubs[row] = (0..edges).map(|i| i * 11 % 50).collect();
    }
    let mut tail: Vec<Vec<u32>> = (0..n).map(|_| (0..5).map(|_| numbers.below(200) as u32).collect()).collect();
    tail[200..].fill(Vec::new());
    let mut random = Graph::random(numbers, 3000, 3000, 0, 20_000);
    random.name = "random";
    let mut halo = Graph::random(numbers, 900, 900, 130, 7000);
    halo.name = "with a halo";
    let mut only_halo = Graph::random(numbers, 40, 0, 20, 300);
    only_halo.name = "halo alone";
    vec![
        Graph::from_rows("empty", &[], 0, 0),
        Graph::from_rows("one vertex", &[vec![]], 1, 0),
        Graph::from_rows("one vertex with a self-loop", &[vec![0]], 1, 0),
        Graph::from_rows("no edges", &vec![vec![]; 5], 5, 0),
        Graph::from_rows("self-loops", &(0..40).map(|v| vec![v]).collect::<Vec<_>>(), 40, 0),
        Graph::from_rows("multi-edges", &(0..40).map(|v| vec![v / 2; 9]).collect::<Vec<_>>(), 40, 0),
        Graph::from_rows("hub with every edge", &hub, n, 0),
        Graph::from_rows("heavy hubs", &heavy, 40, 20),
        Graph::from_rows("scattered hubs", &hubs, 50, 0),
        Graph::from_rows("isolated tail", &tail, n, 0),
        random,
        halo,
        only_halo,
    ]
}
