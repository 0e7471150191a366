//! The degrees of a graph and their clustering: how many vertices have a degree, and how often two neighbours of such a
//! vertex are neighbours themselves.

use std::collections::BTreeMap;
use std::path::Path;

use rand::Rng;
use rayon::prelude::*;

use super::{Purpose, stream};
use crate::dataset::error::{Error, Result};
use crate::graph::Graph;
use crate::plain_file;

/// Wedges sampled per degree. The share of closed wedges then has a standard error of at most 0.0035.
const WEDGES: usize = 20_000;
/// The largest file that is accepted as a list of degrees.
const MAX_FILE_BYTES: u64 = 1 << 28;

/// The vertices of one degree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DegreeRow {
    /// Number of neighbours.
    pub degree: u64,
    /// Number of vertices with this degree.
    pub vertices: u64,
    /// Share of the pairs of their neighbours that are neighbours themselves; 0 below degree 2.
    pub clustering: f64,
}

/// The degrees of a graph, the number of vertices of each, and their clustering.
#[derive(Clone, Debug, PartialEq)]
pub struct DegreeProfile {
    // Invariant: degrees ascend strictly and are at most 2^32 - 4; clustering is from 0 to 1; there is at least one
    // vertex.
    rows: Vec<DegreeRow>,
}

impl DegreeProfile {
    /// Checks rows, which may be in any order, and takes them.
    ///
    /// # Errors
    /// [`Error::NotForThisData`] if there are no vertices, a degree occurs twice, or a clustering is not from 0 to 1.
    pub fn new(mut rows: Vec<DegreeRow>) -> Result<Self> {
        let wrong = |found: String, expected: &'static str| {
            Err(Error::NotForThisData { option: "the degree profile", found, expected: expected.into() })
        };
        rows.retain(|row| row.vertices > 0);
        rows.sort_by_key(|row| row.degree);
        if let Some(pair) = rows.windows(2).find(|pair| pair[0].degree == pair[1].degree) {
            return wrong(format!("one with degree {} twice", pair[0].degree), "each degree once");
        }
        if let Some(row) = rows.iter().find(|row| !(0.0..=1.0).contains(&row.clustering)) {
            let found = format!("one with clustering {} at degree {}", row.clustering, row.degree);
            return wrong(found, "a share from 0 to 1");
        }
        match rows.last() {
            None => wrong("empty".into(), "at least one vertex"),
            Some(row) if row.degree > u64::from(u32::MAX) - 3 => {
                wrong(format!("one with degree {}", row.degree), "degrees below the number of vertices")
            }
            Some(_) => Ok(Self { rows }),
        }
    }

    /// Computes the profile of a graph, ignoring loops and repeated edges. For each degree, up to 20,000 pairs of
    /// neighbours are tested: all of them if there are no more, otherwise a sample, which is always the same.
    ///
    /// # Errors
    /// [`Error::NotForThisData`] if an edge has no reverse.
    /// # Cost
    /// O(n + e), and 20,000 binary searches per degree that occurs, in parallel.
    /// # Source
    /// Seshadhri, Pinar & Kolda 2013, "Triadic measures on graphs: the power of wedge sampling".
    pub fn of(graph: &Graph) -> Result<Self> {
        if !graph.is_symmetric() {
            let expected = "an undirected one; import it with option `symmetrise`".into();
            return Err(Error::NotForThisData { option: "the graph to be like", found: "directed".into(), expected });
        }
        let degrees: Vec<u64> =
            (0..graph.vertex_count()).into_par_iter().map(|v| neighbours(graph, v as u32).count() as u64).collect();
        let mut by_degree: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (v, &degree) in degrees.iter().enumerate() {
            by_degree.entry(degree).or_default().push(v as u32);
        }
        let row = |(degree, vertices): (u64, Vec<u32>)| DegreeRow {
            degree,
            vertices: vertices.len() as u64,
            clustering: clustering(graph, degree, &vertices),
        };
        Self::new(by_degree.into_iter().collect::<Vec<_>>().into_par_iter().map(row).collect())
    }

    /// Reads a text file. Each line has a degree, the number of vertices with it, and optionally their clustering
    /// (default 0), separated by blanks or commas. Lines that start with # are skipped.
    ///
    /// # Errors
    /// A file that is missing or has another format.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |why: String| Error::Import { file: path.display().to_string(), why };
        let text = plain_file::read_text(path, MAX_FILE_BYTES);
        let text = text.map_err(Error::missing_or("read", path, "it has the degrees"))?;
        let mut rows = Vec::new();
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let row = parse_row(text);
            rows.push(row.ok_or_else(|| {
                wrong(format!("line {line} is `{text:.40}`, expected a degree, a number of vertices and a clustering"))
            })?);
        }
        Self::new(rows)
    }

    /// Returns the rows, by ascending degree.
    pub fn rows(&self) -> &[DegreeRow] {
        &self.rows
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.vertices))
    }

    /// Returns the sum of degrees, which is the number of directed edges.
    pub fn edges(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.vertices.saturating_mul(row.degree)))
    }

    /// Multiplies the number of vertices of each degree by `factor`, and rounds.
    ///
    /// # Errors
    /// [`Error::Option`] if the factor is not a positive number, or leaves no vertex.
    pub fn scaled(&self, factor: f64) -> Result<Self> {
        let ok = factor.is_finite() && factor > 0.0;
        super::check(ok, "the scale", factor, "a positive number")?;
        let scale = |row: &DegreeRow| DegreeRow { vertices: (row.vertices as f64 * factor).round() as u64, ..*row };
        Self::new(self.rows.iter().map(scale).collect())
    }

    /// Returns the clustering over all pairs of neighbours of all vertices.
    pub fn transitivity(&self) -> f64 {
        let wedges = |row: &DegreeRow| row.vertices as f64 * row.degree as f64 * (row.degree as f64 - 1.0) / 2.0;
        let all: f64 = self.rows.iter().map(wedges).sum();
        let closed: f64 = self.rows.iter().map(|row| wedges(row) * row.clustering).sum();
        if all > 0.0 { closed / all } else { 0.0 }
    }
}

fn parse_row(text: &str) -> Option<DegreeRow> {
    let mut words = text.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty());
    let (degree, vertices) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let clustering = words.next().map_or(Some(0.0), |word| word.parse().ok())?;
    words.next().is_none().then_some(DegreeRow { degree, vertices, clustering })
}

/// Returns the neighbours, each once, without the vertex itself.
fn neighbours(graph: &Graph, v: u32) -> impl Iterator<Item = u32> {
    let mut previous = None;
    graph.sources(v as usize).iter().copied().filter(move |&u| {
        let new = u != v && previous != Some(u);
        previous = Some(u);
        new
    })
}

/// Returns the share of closed wedges at the vertices of one degree.
fn clustering(graph: &Graph, degree: u64, vertices: &[u32]) -> f64 {
    if degree < 2 {
        return 0.0;
    }
    let closed = |u: u32, w: u32| graph.sources(u as usize).binary_search(&w).is_ok();
    let wedges = u128::from(degree) * u128::from(degree - 1) / 2 * vertices.len() as u128;
    if wedges <= WEDGES as u128 {
        let at = |&v: &u32| {
            let row: Vec<u32> = neighbours(graph, v).collect();
            let pairs = row.iter().enumerate().flat_map(|(i, &u)| row[..i].iter().map(move |&w| (u, w)));
            pairs.filter(|&(u, w)| closed(u, w)).count()
        };
        return vertices.iter().map(at).sum::<usize>() as f64 / wedges as f64;
    }
    let mut rng = stream(1, Purpose::Wedges, degree);
    let mut centres: Vec<u32> = (0..WEDGES).map(|_| vertices[rng.random_range(0..vertices.len())]).collect();
    centres.sort_unstable();
    let mut found = 0;
    for centres in centres.chunk_by(|a, b| a == b) {
        let row: Vec<u32> = neighbours(graph, centres[0]).collect();
        for _ in centres {
            let first = rng.random_range(0..row.len());
            let second = rng.random_range(0..row.len() - 1);
            let second = second + usize::from(second >= first);
            found += usize::from(closed(row[first], row[second]));
        }
    }
    found as f64 / WEDGES as f64
}
