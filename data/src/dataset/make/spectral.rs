//! The leading eigenvectors of the normalised adjacency matrix, by subspace iteration.
//!
//! The matrix is `M = (I + D^-1/2 (A + A^T) D^-1/2) / 2`, whose eigenvalues are from 0 to 1: the halved sum makes the leading
//! ones those of smooth vectors. Each round multiplies by `M` and makes the columns orthonormal by a Cholesky factorisation of
//! their Gram matrix (Golub & Van Loan, *Matrix Computations*, section 8.2.4; Yamamoto et al. 2015). A column that
//! depends on those before it becomes 0.

use rayon::prelude::*;

use super::fill_random;
use crate::graph::Graph;

/// Rounds of the iteration.
const ROUNDS: usize = 30;

/// Rows whose products are added together. It is fixed, so that sums do not depend on the number of threads.
const CHUNK: usize = 4096;

/// A column whose squared norm falls below this share of what it was depends on those before it.
const DEPENDENT: f64 = 1e-10;

/// Returns up to `most` columns of a graph, directed or not, row by row, and their number. Where a vertex begins depends on
/// its `original` id.
pub(super) fn leading(
    (graph, directed): (&Graph, bool),
    original: impl Fn(usize) -> u32 + Sync,
    most: usize,
) -> (Vec<f32>, usize) {
    let n = graph.vertex_count();
    let width = most.min(n);
    let back = directed.then(|| graph.transpose_without_permutation());
    let degree = |v: usize| graph.edges(v).len() + back.as_ref().map_or(0, |back| back.edges(v).len());
    let scale: Vec<f32> = (0..n).map(|v| 1.0 / (degree(v).max(1) as f32).sqrt()).collect();
    let mut x = vec![0.0f32; n * width];
    x.par_chunks_exact_mut(width).enumerate().for_each(|(v, row)| {
        fill_random(original(v), row);
        // The first eigenvector is known.
        row[0] = (degree(v) as f32).sqrt();
    });
    let mut next = vec![0.0f32; x.len()];
    for _ in 0..ROUNDS {
        next.par_chunks_exact_mut(width).enumerate().for_each(|(v, out)| {
            out.fill(0.0);
            let all = [Some(graph), back.as_ref()];
            for &u in all.into_iter().flatten().flat_map(|graph| graph.sources(v)) {
                let (row, factor) = (&x[u as usize * width..][..width], scale[u as usize]);
                out.iter_mut().zip(row).for_each(|(out, x)| *out += factor * x);
            }
            let own = &x[v * width..][..width];
            out.iter_mut().zip(own).for_each(|(out, x)| *out = 0.5 * (x + scale[v] * *out));
        });
        std::mem::swap(&mut x, &mut next);
        orthonormalise(&mut x, width);
    }
    let unit = (n as f32).sqrt();
    x.par_iter_mut().for_each(|x| *x *= unit);
    (x, width)
}

/// Makes the columns of a matrix orthonormal, each relative to those before it.
fn orthonormalise(x: &mut [f32], width: usize) {
    let factor = cholesky(gram(x, width), width);
    x.par_chunks_exact_mut(width).for_each(|row| {
        // Solves `factor * out = row`.
        let mut out = vec![0.0f64; width];
        for j in 0..width {
            let pivot = factor[j * width + j];
            let before: f64 = (0..j).map(|k| factor[j * width + k] * out[k]).sum();
            out[j] = if pivot > 0.0 { (f64::from(row[j]) - before) / pivot } else { 0.0 };
        }
        row.iter_mut().zip(&out).for_each(|(cell, &x)| *cell = x as f32);
    });
}

/// Returns `X^T X`.
fn gram(x: &[f32], width: usize) -> Vec<f64> {
    let parts: Vec<Vec<f64>> = x
        .par_chunks(CHUNK * width)
        .map(|rows| {
            let mut sums = vec![0.0f64; width * width];
            for row in rows.chunks_exact(width) {
                for (i, &a) in row.iter().enumerate() {
                    let sums = &mut sums[i * width..][..=i];
                    sums.iter_mut().zip(row).for_each(|(sum, &b)| *sum += f64::from(a) * f64::from(b));
                }
            }
            sums
        })
        .collect();
    let mut sum = vec![0.0; width * width];
    for part in parts {
        sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
    }
    sum
}

/// Replaces the lower triangle of a symmetric matrix by its Cholesky factor. The pivot of a dependent column is 0.
fn cholesky(mut a: Vec<f64>, width: usize) -> Vec<f64> {
    for j in 0..width {
        let norm = a[j * width + j];
        let pivot = norm - (0..j).map(|k| a[j * width + k].powi(2)).sum::<f64>();
        let pivot = if pivot > DEPENDENT * norm { pivot.sqrt() } else { 0.0 };
        a[j * width + j] = pivot;
        for i in j + 1..width {
            let rest = a[i * width + j] - (0..j).map(|k| a[i * width + k] * a[j * width + k]).sum::<f64>();
            a[i * width + j] = if pivot > 0.0 { rest / pivot } else { 0.0 };
        }
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two cliques with one edge between them: the second eigenvector tells them apart.
    #[test]
    fn columns_are_orthonormal_eigenvectors() {
        let side = 6u32;
        let clique = |first: u32| (0..side).flat_map(move |a| (0..a).map(move |b| (first + a, first + b)));
        let edges: Vec<(u32, u32)> =
            clique(0).chain(clique(side)).chain([(0, side)]).flat_map(|(a, b)| [(a, b), (b, a)]).collect();
        let n = 2 * side as usize;
        let graph = Graph::from_edges(n, &edges).expect("the ends are vertices");
        let (x, width) = leading((&graph, false), |v| v as u32, 2);
        assert_eq!(width, 2);
        let column = |j: usize| (0..n).map(|v| f64::from(x[v * width + j])).collect::<Vec<_>>();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / n as f64;
        let (first, second) = (column(0), column(1));
        assert!((dot(&first, &first) - 1.0).abs() < 1e-4 && dot(&first, &second).abs() < 1e-4);
        // The first is the root of the degrees.
        let ratio = |v: usize| first[v] / (graph.edges(v).len() as f64).sqrt();
        assert!((0..n).all(|v| (ratio(v) / ratio(0) - 1.0).abs() < 1e-3), "{first:?}");
        assert!((0..n).all(|v| (second[v] > 0.0) == (second[0] > 0.0) || v >= n / 2), "{second:?}");
        assert!(second[0] * second[n - 1] < 0.0, "{second:?}");
    }

    #[test]
    fn more_columns_than_the_graph_has_are_0() {
        let graph = Graph::from_edges(3, &[(0, 1), (1, 0)]).expect("the ends are vertices");
        let (x, width) = leading((&graph, false), |v| v as u32, 32);
        assert_eq!(width, 3);
        assert!(x.iter().all(|x| x.is_finite()));
    }
}
