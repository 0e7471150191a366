//! Graphs of published shapes. They are generated when needed; nothing is read or downloaded.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Array2;
use rayon::prelude::*;

use super::Size;
use crate::dataset::generate::both_ways;
use crate::dataset::npy::{self, Dtype};
use crate::dataset::{Arrays, Dataset};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::output::OutputFile;

/// A published shape. `edges` counts both directions.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) vertices: usize,
    pub(super) edges: usize,
    /// Widths of the measured gathers.
    pub(super) widths: &'static [usize],
    /// Layer widths of the networks that are trained on it.
    pub(super) networks: &'static [&'static [usize]],
}

pub(super) const REDDIT: Shape = Shape {
    name: "reddit",
    vertices: 232_965,
    edges: 114_615_892,
    widths: &[3, 16, 32, 41, 64, 128, 256, 602],
    networks: &[&[602, 16, 41], &[602, 256, 41]],
};
pub(super) const PRODUCTS: Shape = Shape {
    name: "products",
    vertices: 2_449_029,
    edges: 123_718_280,
    widths: &[16, 47, 104, 256],
    networks: &[&[104, 256, 256, 47]],
};
pub(super) const PUBMED: Shape =
    Shape { name: "pubmed", vertices: 19_717, edges: 88_648, widths: &[3, 16, 500], networks: &[&[500, 16, 3]] };

/// The numbering of vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// Vertices with many edges are spread over all numbers.
    Scattered,
    /// Vertices with many edges come first, so that parts with equal numbers of vertices take unequal time.
    ByDegree,
}

/// All shapes. Those with a goal come first.
pub(super) const SHAPES: [&Shape; 3] = [&REDDIT, &PRODUCTS, &PUBMED];

impl Shape {
    /// Generates a symmetric graph in which some vertices have many more edges than others.
    ///
    /// # Cost
    /// O(e) per thread, and sorting each row; memory 12 e bytes.
    pub(super) fn graph(&self, size: Size, numbering: Numbering) -> Graph {
        let n = (self.vertices / size.divisor()).max(20);
        let pairs = (self.edges / 2 / size.divisor()).max(40);
        let end = |i: u64| {
            let place = (unit(i).powi(2) * n as f64) as usize;
            // 77,773 is a prime that divides none of the sizes, so the product modulo n is a permutation.
            if numbering == Numbering::Scattered { (place * 77_773 % n) as u32 } else { place as u32 }
        };
        let pairs: Vec<(u32, u32)> = (0..pairs as u64).into_par_iter().map(|i| (end(2 * i), end(2 * i + 1))).collect();
        both_ways(n, &pairs).expect("the ends are vertices")
    }

    /// Returns a dataset of the graph with features and labels for a network. Every vertex is in the training split.
    pub(super) fn data(&self, graph: Graph, network: &[usize]) -> Result<Dataset> {
        let n = graph.vertex_count();
        let (width, classes) = (network[0], network[network.len() - 1]);
        let cells: Vec<f32> = (0..n * width).into_par_iter().map(|i| unit(i as u64) as f32 - 0.5).collect();
        let features = Array2::from_shape_vec((n, width), cells).expect("there are as many");
        let labels: Vec<i64> = (0..n).map(|v| (v * 7 % classes) as i64).collect();
        let train: Vec<i64> = (0..n as i64).collect();
        let arrays =
            Arrays::new(graph).name(self.name).directed(false).features(features).labels(&labels).train(&train);
        Ok(Dataset::from_arrays(arrays)?)
    }
}

/// A cache of the generated graphs, with scattered numbering.
pub(super) struct Graphs {
    pub(super) size: Size,
    made: RefCell<BTreeMap<&'static str, Graph>>,
}

impl Graphs {
    pub(super) fn new(size: Size) -> Self {
        Self { size, made: RefCell::default() }
    }

    pub(super) fn of(&self, shape: &Shape) -> Graph {
        let mut made = self.made.borrow_mut();
        made.entry(shape.name).or_insert_with(|| shape.graph(self.size, Numbering::Scattered)).clone()
    }
}

/// Returns a pseudo-random number in `[0, 1)` for each `i` (SplitMix64).
fn unit(i: u64) -> f64 {
    let z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Writes `NAME-indptr.npy` and `NAME-indices.npy`, so that other frameworks can be measured on the same graph.
///
/// # Errors
/// [`crate::Error::Io`].
pub(super) fn write(folder: &Path, name: &str, graph: &Graph) -> Result<()> {
    let indptr: Vec<i64> = graph.indptr().iter().map(|&offset| offset as i64).collect();
    let file = |what: &str| {
        let path = folder.join(format!("{name}-{what}.npy"));
        OutputFile::create(&path).map(|file| (file, path.clone())).map_err(Error::io("write", &path))
    };
    let (mut to, path) = file("indptr")?;
    let written = npy::write(&mut to, Dtype::I64, &[indptr.len()], &indptr).and_then(|()| to.finish());
    written.map_err(Error::io("write", &path))?;
    let (mut to, path) = file("indices")?;
    let indices = graph.indices();
    let written = npy::write(&mut to, Dtype::U32, &[indices.len()], indices).and_then(|()| to.finish());
    written.map_err(Error::io("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_their_sizes_and_numbers() {
        for shape in [&REDDIT, &PRODUCTS, &PUBMED] {
            assert_ne!(shape.vertices % 77_773, 0, "{}", shape.name);
        }
        let graph = PUBMED.graph(Size::Published, Numbering::Scattered);
        assert_eq!([graph.vertex_count(), graph.edge_count()], [19_717, 88_648]);
        let graph = PUBMED.graph(Size::Published, Numbering::ByDegree);
        let degrees = |rows: std::ops::Range<usize>| rows.map(|v| graph.edges(v).len()).sum::<usize>();
        assert!(degrees(0..5_000) > 3 * degrees(14_717..19_717));
    }
}
