//! Gathers over parts, random blocks and bad blocks.

use std::collections::BTreeSet;

use crate::common::*;
use lapidary_kernels::{BlockView, Error, MatMut, MatView, cpu, reference};
use proptest::prelude::*;

fn gathered(graph: &Graph, weights: Option<&[f32]>, own: &Matrix, halo: Option<&Matrix>) -> Vec<f32> {
    let d = own.cols;
    let mut out = vec![f32::NAN; graph.rows() * d];
    let own = MatView::new(&own.data, own.rows, d).unwrap();
    let halo = halo.map(|halo| MatView::new(&halo.data, halo.rows, d).unwrap());
    let out_view = MatMut::new(&mut out, graph.rows(), d).unwrap();
    cpu::gather(graph.view(), weights, own, halo, out_view).unwrap();
    out
}

/// Returns the rows `low..high` of a graph as a block, and the global ids of its halo rows.
fn part(graph: &Graph, low: usize, high: usize) -> (Graph, Vec<u32>) {
    let inside = |u: &u32| (low..high).contains(&(*u as usize));
    let edges = graph.indptr[low] as usize..graph.indptr[high] as usize;
    let halo: BTreeSet<u32> = graph.indices[edges].iter().copied().filter(|u| !inside(u)).collect();
    let halo: Vec<u32> = halo.into_iter().collect();
    let local = |u: &u32| match halo.binary_search(u) {
        Ok(i) => (high - low + i) as u32,
        Err(_) => u - low as u32,
    };
    let rows: Vec<Vec<u32>> = (low..high).map(|v| graph.view().sources(v).iter().map(local).collect()).collect();
    (Graph::from_rows("part", &rows, high - low, halo.len()), halo)
}

#[test]
fn a_part_gives_the_bits_of_the_whole() {
    let graph = Graph::random(&mut Numbers(1), 1500, 1500, 0, 20_000);
    for d in [1, 16, 41, 100] {
        let x = Numbers(2).matrix(1500, d);
        let weights = Numbers(3).units(graph.edges());
        for weights in [None, Some(&weights[..])] {
            let whole = gathered(&graph, weights, &x, None);
            for (low, high) in [(0, 1500), (0, 700), (700, 701), (701, 1500), (1500, 1500)] {
                let (block, halo_ids) = part(&graph, low, high);
                let own = Matrix { rows: high - low, cols: d, data: x.data[low * d..high * d].to_vec() };
                let rows = halo_ids.iter().flat_map(|&u| &x.data[u as usize * d..(u as usize + 1) * d]);
                let halo = Matrix { rows: halo_ids.len(), cols: d, data: rows.copied().collect() };
                let edges = graph.indptr[low] as usize..graph.indptr[high] as usize;
                let got = gathered(&block, weights.map(|weights| &weights[edges]), &own, Some(&halo));
                assert!(same_bits(&got, &whole[low * d..high * d]), "rows {low}..{high}, d = {d}");
            }
        }
    }
}

#[test]
fn a_gather_with_weights_is_a_sparse_product() {
    // Rows of a bag of words times a weight matrix; the sources are the columns.
    let words = Graph::random(&mut Numbers(5), 200, 500, 0, 4000);
    let values = Numbers(6).units(words.edges());
    let weight = Numbers(7).matrix(500, 16);
    let got = gathered(&words, Some(&values), &weight, None);
    let mut dense = reference::Dense::from_fn(200, 500, |_, _| 0.0);
    for v in 0..200 {
        for edge in words.view().edges(v) {
            dense.data[v * 500 + words.indices[edge] as usize] += f64::from(values[edge]);
        }
    }
    let want = reference::linear(&dense, &reference::transpose(&weight.dense()));
    let magnitude = reference::linear(&dense.map(f64::abs), &reference::transpose(&weight.dense().map(f64::abs)));
    let magnitude: Vec<f64> = magnitude.data.iter().map(|x| x + 1.0).collect();
    assert_close("sparse product", &got, &want.data, &magnitude, 80);
}

/// The error for a wrong offset; the last one is the number of edges.
fn names_the_offset(error: &Error, is_last: bool) -> bool {
    match error {
        Error::Shape { operand: "indices", .. } => is_last,
        Error::Index { operand: "indptr", .. } => !is_last,
        _ => false,
    }
}

#[test]
fn bad_blocks_are_errors_and_no_panics() {
    let x = vec![1.0; 4000 * 8];
    let own = MatView::new(&x, 4000, 8).unwrap();
    let good: Vec<u64> = (0..=4000u64).map(|v| v * 2).collect();
    let sources: Vec<u32> = (0..8000).map(|e| e % 4000).collect();
    let run = |indptr: &[u64], indices: &[u32]| {
        let mut out = vec![0.0; indptr.len().saturating_sub(1) * 8];
        let block = BlockView { indptr, indices, own_sources: 4000, halo_sources: 0 };
        let rows = indptr.len().saturating_sub(1);
        cpu::gather(block, None, own, None, MatMut::new(&mut out, rows, 8).unwrap())
    };
    assert!(run(&good, &sources).is_ok());
    for bad in [4000, u32::MAX] {
        for place in [0, 4001, 7999] {
            let mut indices = sources.clone();
            indices[place] = bad;
            let objection = run(&good, &indices).unwrap_err();
            assert!(matches!(objection, Error::Index { operand: "indices", index, limit: 4000, .. }
                if index == u64::from(bad)));
        }
    }
    for (place, bad) in [(0, 1), (5, u64::MAX), (2000, 9000), (3999, 0), (4000, 7999), (4000, u64::MAX)] {
        let mut indptr = good.clone();
        indptr[place] = bad;
        let objection = run(&indptr, &sources).unwrap_err();
        assert!(names_the_offset(&objection, place == 4000), "indptr[{place}] = {bad}: {objection}");
    }
    assert!(matches!(run(&[], &[]), Err(Error::Shape { operand: "indptr", .. })));
}

#[test]
fn bad_rows_of_a_sparse_dropout_are_errors_and_no_panics() {
    let key = lapidary_kernels::DropoutKey { seed: 0, op: 0, first_row: 0, first_column: 0, rate: 0.5 };
    let (columns, values) = (vec![0u32; 80_000], vec![1.0; 80_000]);
    let good: Vec<u64> = (0..=40_000u64).map(|v| v * 2).collect();
    for (place, bad) in [(5, u64::MAX), (20_000, 90_000), (39_999, 0), (0, 3), (40_000, 5)] {
        let mut indptr = good.clone();
        indptr[place] = bad;
        let block = BlockView { indptr: &indptr, indices: &columns, own_sources: 1, halo_sources: 0 };
        let mut out = vec![0.0; 80_000];
        let objection = cpu::sparse_dropout((block, false), &values, key, 0, &mut out).unwrap_err();
        assert!(names_the_offset(&objection, place == 40_000), "indptr[{place}] = {bad}: {objection}");
    }
}

prop_compose! {
    fn blocks()(n in 0usize..40, own in 1usize..40, halo in 0usize..20)
        (lists in prop::collection::vec(prop::collection::vec(0..(own + halo) as u32, 0..30), n),
         own in Just(own), halo in Just(halo)) -> Graph {
        Graph::from_rows("any", &lists, own, halo)
    }
}

proptest! {
    #[test]
    fn any_block(graph in blocks(), d in 0usize..150, seed: u64, weighted: bool) {
        let numbers = &mut Numbers(seed);
        let own = numbers.matrix(graph.own_sources, d);
        let halo = numbers.matrix(graph.halo_sources, d);
        let weights = weighted.then(|| numbers.units(graph.edges()));
        let got = gathered(&graph, weights.as_deref(), &own, Some(&halo));
        let weights = weights.map(|weights| wide(&weights));
        let want = reference::gather(graph.view(), weights.as_deref(), &own.dense(), Some(&halo.dense()));
        let magnitude = reference::gather(
            graph.view(),
            weights.map(|weights| absolute(&weights)).as_deref(),
            &own.dense().map(f64::abs),
            Some(&halo.dense().map(f64::abs)),
        );
        prop_assert_eq!(compare(&got, &want.data, &magnitude.data, 31), Ok(()));
    }
}
