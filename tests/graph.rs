//! The graph, its transpose, permutations and blocks, compared with lists of edges.

use crate::common::{hostile_graph, numbers};
use lapidary::graph::{Block, Graph, GraphError, Permutation};
use lapidary_kernels::reference::{self, Dense};
use proptest::prelude::*;

/// Returns the edges `u -> v`, sorted by destination, then source, as in a CSR over in-edges.
fn edges_of(graph: &Graph) -> Vec<(u32, u32)> {
    (0..graph.vertex_count()).flat_map(|v| graph.sources(v).iter().map(move |&u| (u, v as u32))).collect()
}

fn sorted(mut edges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    edges.sort_by_key(|&(u, v)| (v, u));
    edges
}

/// Generates graphs of up to 40 vertices and 120 edges, with loops and repeats.
fn graphs() -> impl Strategy<Value = (usize, Vec<(u32, u32)>)> {
    (1usize..40).prop_flat_map(|n| {
        let vertex = 0..n as u32;
        (Just(n), proptest::collection::vec((vertex.clone(), vertex), 0..120))
    })
}

proptest! {
    #[test]
    fn a_graph_holds_its_edges((n, edges) in graphs()) {
        let graph = Graph::from_edges(n, &edges).unwrap();
        prop_assert_eq!(edges_of(&graph), sorted(edges));
        let again = Graph::new(graph.indptr().clone(), graph.indices().clone());
        prop_assert!(again.is_ok());
    }

    #[test]
    fn the_transpose_turns_every_edge_round((n, edges) in graphs()) {
        let graph = Graph::from_edges(n, &edges).unwrap();
        let turned = graph.transpose();
        let want = sorted(edges.iter().map(|&(u, v)| (v, u)).collect());
        prop_assert_eq!(edges_of(&turned.graph), want);
        // Edge i of the transpose was edge permutation[i], with the ends exchanged.
        let (before, after) = (edges_of(&graph), edges_of(&turned.graph));
        for (i, &from) in turned.permutation.iter().enumerate() {
            let (u, v) = before[from as usize];
            prop_assert_eq!(after[i], (v, u));
        }
        let mut positions = turned.permutation.clone();
        positions.sort_unstable();
        prop_assert!(positions.into_iter().eq(0..edges.len() as u64));
        prop_assert_eq!(edges_of(&graph.transpose_without_permutation()), after);
        prop_assert_eq!(edges_of(&turned.graph.transpose().graph), edges_of(&graph));
    }

    #[test]
    fn symmetric_means_equal_to_the_transpose((n, edges) in graphs(), mirror in any::<bool>()) {
        let mut edges = edges;
        if mirror {
            edges.extend(edges.clone().into_iter().map(|(u, v)| (v, u)));
        }
        let graph = Graph::from_edges(n, &edges).unwrap();
        prop_assert_eq!(graph.is_symmetric(), edges_of(&graph) == edges_of(&graph.transpose().graph));
        if mirror {
            prop_assert!(graph.is_symmetric());
        }
    }

    #[test]
    fn every_vertex_gets_exactly_one_self_loop((n, edges) in graphs()) {
        let looped = Graph::from_edges(n, &edges).unwrap().with_self_loops();
        let mut want: Vec<(u32, u32)> = edges.into_iter().filter(|(u, v)| u != v).collect();
        want.extend((0..n as u32).map(|v| (v, v)));
        prop_assert_eq!(edges_of(&looped), sorted(want));
        prop_assert_eq!(looped.self_loop_count(), n);
    }

    #[test]
    fn a_permutation_renames_both_ends((n, edges) in graphs(), seed in any::<u64>()) {
        let graph = Graph::from_edges(n, &edges).unwrap();
        let permutation = Permutation::random(n, seed);
        let name = |v: u32| permutation.new_of_old()[v as usize];
        let want = sorted(edges.iter().map(|&(u, v)| (name(u), name(v))).collect());
        prop_assert_eq!(edges_of(&permutation.apply(&graph)), want);
        let back = Permutation::new(permutation.new_of_old().to_vec()).unwrap();
        prop_assert_eq!(edges_of(&back.apply(&permutation.apply(&graph))), edges_of(&graph));
    }

    #[test]
    fn by_degree_never_rises((n, edges) in graphs()) {
        let graph = Graph::from_edges(n, &edges).unwrap();
        let renamed = Permutation::by_degree(&graph).apply(&graph);
        prop_assert!((1..n).all(|v| renamed.in_degree(v) <= renamed.in_degree(v - 1)));
    }

    #[test]
    fn parts_gather_the_bits_of_the_whole((n, edges) in graphs(), cut in 0usize..40) {
        let graph = Graph::from_edges(n, &edges).unwrap();
        let x = numbers(n * 3, 5);
        let rows = |ids: &mut dyn Iterator<Item = usize>| {
            let ids: Vec<usize> = ids.collect();
            Dense::from_fn(ids.len(), 3, |r, c| f64::from(x[ids[r] * 3 + c]))
        };
        let whole = reference::gather(Block::whole(&graph).view(), None, &rows(&mut (0..n)), None);
        let cut = cut.min(n);
        for part in [0..cut, cut..n] {
            let block = Block::of_part(&graph, part.clone());
            prop_assert!(block.halo().is_sorted_by(|a, b| a < b), "the halo is in order, each row once");
            prop_assert!(block.halo().iter().all(|&u| !part.contains(&(u as usize))));
            let own = rows(&mut part.clone());
            let halo = rows(&mut block.halo().iter().map(|&u| u as usize));
            let got = reference::gather(block.view(), None, &own, Some(&halo));
            prop_assert_eq!(got.data, whole.data[part.start * 3..part.end * 3].to_vec());
            // The halo contains only rows that are read.
            let read: std::collections::BTreeSet<u32> = block.indices().iter().copied().collect();
            prop_assert!((0..block.halo().len()).all(|i| read.contains(&((block.own_sources() + i) as u32))));
        }
    }

    #[test]
    fn a_part_gets_the_self_loops_of_the_whole_graph((n, edges) in graphs(), cut in 0usize..40) {
        let graph = Graph::from_edges(n, &edges).unwrap();
        let cut = cut.min(n);
        for part in [0..cut, cut..n] {
            let want = Block::of_part(&graph.with_self_loops(), part.clone());
            let got = Block::of_part_with_self_loops(&graph, part);
            prop_assert_eq!((&got.indptr()[..], &got.indices()[..]), (&want.indptr()[..], &want.indices()[..]));
            prop_assert_eq!((got.halo(), got.own_sources()), (want.halo(), want.own_sources()));
        }
    }

    #[test]
    fn a_transposed_block_has_the_edges_turned_round((n, edges) in graphs(), cut in 0usize..40) {
        let graph = Graph::from_edges(n, &edges).unwrap();
        let block = Block::of_part(&graph, 0..cut.min(n));
        let list = |block: &Block| -> Vec<(u32, u32)> {
            (0..block.row_count()).flat_map(|v| block.view().sources(v).iter().map(move |&u| (u, v as u32))).collect()
        };
        let (turned, permutation) = block.transpose();
        prop_assert_eq!(turned.row_count(), block.source_count());
        prop_assert_eq!(turned.own_sources(), block.row_count());
        let (before, after) = (list(&block), list(&turned));
        for (i, &from) in permutation.iter().enumerate() {
            let (u, v) = before[from as usize];
            prop_assert_eq!(after[i], (v, u));
        }
        let plain = block.transpose_without_permutation();
        prop_assert_eq!((plain.row_count(), plain.own_sources()), (turned.row_count(), turned.own_sources()));
        prop_assert_eq!(list(&plain), after);
    }
}

/// Returns a graph with hubs, loops and repeats, large enough for several threads. If `mirrored`, it is symmetric.
fn large_graph(mirrored: bool) -> Vec<(u32, u32)> {
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let edges = (0..20_000).map(|_| (draw(5000) as u32, (draw(5000) * draw(5000) / 5000) as u32)).collect::<Vec<_>>();
    let reversed = edges.iter().filter(|(u, v)| u != v).map(|&(u, v)| (v, u));
    if mirrored { edges.iter().copied().chain(reversed).collect() } else { edges }
}

#[test]
fn transposes_and_symmetry_are_the_same_on_any_number_of_threads() {
    for mirrored in [false, true] {
        let edges = large_graph(mirrored);
        let graph = Graph::from_edges(5000, &edges).unwrap();
        let want = sorted(edges.iter().map(|&(u, v)| (v, u)).collect());
        for threads in [1, 2, 3, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                assert_eq!(graph.is_symmetric(), mirrored);
                let turned = graph.transpose();
                assert_eq!(edges_of(&turned.graph), want);
                assert_eq!(edges_of(&graph.transpose_without_permutation()), want);
                let back = |&from: &u64| graph.indices()[from as usize];
                assert!(turned.permutation.iter().map(back).is_sorted(), "edges are grouped by their source");
            });
        }
    }
}

#[test]
fn one_edge_too_many_is_seen_wherever_it_is() {
    let edges = large_graph(true);
    for extra in [(0, 4999), (4999, 0), (0, 1), (1, 0), (2500, 2499), edges[0]] {
        if extra.0 == extra.1 {
            continue;
        }
        let more: Vec<(u32, u32)> = edges.iter().copied().chain([extra]).collect();
        assert!(!Graph::from_edges(5000, &more).unwrap().is_symmetric(), "{extra:?}");
    }
    let looped: Vec<(u32, u32)> = edges.iter().copied().chain([(7, 7), (7, 7)]).collect();
    assert!(Graph::from_edges(5000, &looped).unwrap().is_symmetric(), "a loop is its own reverse");
}

#[test]
fn the_hostile_graph_is_hostile() {
    let graph = hostile_graph();
    assert_eq!(graph.self_loop_count(), 4);
    assert_eq!(graph.duplicate_edge_count(), 2);
    assert!(!graph.is_symmetric());
    let turned = graph.transpose().graph;
    assert!((0..12).any(|v| graph.in_degree(v) == 0 && turned.in_degree(v) == 0), "an isolated vertex");
}

#[test]
fn arrays_that_are_no_csr_are_refused_with_the_place() {
    let check = |indptr: Vec<u64>, indices: Vec<u32>| Graph::new(indptr.into(), indices.into()).unwrap_err();
    assert_eq!(check(vec![], vec![]), GraphError::NoOffsets);
    assert_eq!(check(vec![1, 1], vec![0]), GraphError::FirstOffset { found: 1 });
    assert_eq!(check(vec![0, 2, 1, 2], vec![0, 1]), GraphError::Falling { position: 2, previous: 2, found: 1 });
    assert_eq!(check(vec![0, 1], vec![0, 0]), GraphError::LastOffset { found: 1, edges: 2 });
    let stray = GraphError::SourceOutOfRange { position: 1, found: 2, vertices: 2 };
    assert_eq!(check(vec![0, 1, 2], vec![0, 2]), stray);
    let unsorted = GraphError::Unsorted { position: 2, row: 1, previous: 1, found: 0 };
    assert_eq!(check(vec![0, 1, 3], vec![0, 1, 0]), unsorted);
    let stray = GraphError::SourceOutOfRange { position: 1, found: 2, vertices: 2 };
    assert_eq!(Graph::from_edges(2, &[(0, 1), (2, 0)]).unwrap_err(), stray);
    assert!(Graph::new(vec![0u64].into(), Vec::<u32>::new().into()).is_ok(), "no vertices are a graph");
}

#[test]
fn ids_that_are_no_permutation_are_refused() {
    for ids in [vec![0, 0], vec![1, 2], vec![0, 2, 1, 4]] {
        assert!(Permutation::new(ids).is_none());
    }
}
