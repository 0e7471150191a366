//! Partitions of the hypergraph: with the feature `hypergraph`, the parts; without it, the error.

use std::process::{Command, Output};

/// Runs the command. Returns the exit code, standard output and standard error.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_lapidary")).args(args).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[cfg(not(feature = "hypergraph"))]
#[test]
fn a_build_without_the_partitioner_says_so_before_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("dst");
    let to = dst.to_str().unwrap();
    for way in ["hypergraph", "hypergraph-both"] {
        let compared = format!("edges,{way}");
        for args in [
            &["data", "partition", "no/such/set", to, "--parts", "2", "--by", way][..],
            &["plan", "--data", "builtin:karate", "--ranks", "2", "--profile", "h200", "--compare", &compared],
        ] {
            let (code, stdout, stderr) = run(args);
            assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
            for words in ["no hypergraph partitioner", "cargo install --path . --features hypergraph"] {
                assert!(stderr.contains(words), "`{words}` is not in: {stderr}");
            }
            assert!(!dst.exists());
        }
    }
}

#[cfg(feature = "hypergraph")]
mod built {
    use lapidary::dataset::generate::{RmatOptions, rmat};
    use lapidary::dataset::{Arrays, Dataset};
    use lapidary::graph::Graph;
    use lapidary::partition::hypergraph::{Nets, assign};
    use lapidary::partition::{Assignment, VertexWeight, Volume};
    use serde_json::Value;

    use super::run;
    use crate::common::hostile_graph;
    use crate::common::parted::{four_cliques, parts};

    #[test]
    fn it_cuts_where_few_rows_are_read() {
        let graph = four_cliques();
        assert!(!graph.is_symmetric());
        for nets in [Nets::Forward, Nets::Both] {
            for weight in [VertexWeight::Rows, VertexWeight::Edges, VertexWeight::Given(&[3; 32])] {
                let found = assign(&graph, parts(4), nets, weight, 1).unwrap();
                let volume = Volume::of(&graph, &found);
                assert_eq!((volume.halo_rows, volume.backward_rows, volume.messages), (4, 4, 4), "{found:?}");
                assert!(volume.parts.iter().all(|part| part.vertices == 8));
            }
        }
    }

    #[test]
    fn directions_of_edges_count() {
        // Vertex 0 has 30 readers, and vertex 1 has 30 sources.
        let mut edges = Vec::new();
        for v in 0..30u32 {
            edges.extend([(0, 2 + v), (32 + v, 1)]);
        }
        let graph = Graph::from_edges(62, &edges).unwrap();
        let [forward, both] = [Nets::Forward, Nets::Both]
            .map(|nets| Volume::of(&graph, &assign(&graph, parts(2), nets, VertexWeight::Rows, 1).unwrap()));
        // The readers of vertex 0 may be anywhere for one row; the sources of vertex 1 have a row each.
        assert!(forward.halo_rows <= 1, "{forward:?}");
        assert!(both.halo_rows + both.backward_rows <= forward.halo_rows + forward.backward_rows, "{both:?}");
    }

    #[test]
    fn it_sends_fewer_rows_than_random_parts_and_keeps_the_balance() {
        let options = RmatOptions { vertices: 1 << 11, edge_factor: 6.0, ..RmatOptions::default() };
        let data = rmat(&options).unwrap();
        let graph = data.graph();
        let heavy: Vec<u64> = (0..graph.vertex_count() as u64).map(|v| 1 + v % 5).collect();
        let rows = |found: &Assignment| Volume::of(graph, found).halo_rows;
        let drawn = rows(&Assignment::random(graph.vertex_count(), parts(8), 1));
        for weight in [VertexWeight::Rows, VertexWeight::Edges, VertexWeight::Given(&heavy)] {
            let found = assign(graph, parts(8), Nets::Forward, weight, 5).unwrap();
            assert_eq!(found, assign(graph, parts(8), Nets::Forward, weight, 5).unwrap(), "the seed decides");
            assert!(5 * rows(&found) < 4 * drawn, "{} of {drawn}", rows(&found));
            let imbalance = found.imbalance(graph, weight);
            // Without edges, a vertex weighs 1 for the partitioner, and nothing here.
            assert!(imbalance < if weight == VertexWeight::Edges { 1.08 } else { 1.031 }, "{weight:?}: {imbalance}");
        }
    }

    #[test]
    fn it_takes_any_graph_and_says_nothing() {
        let star: Vec<(u32, u32)> = (1..40).map(|v| (v, 0)).collect();
        let graphs = [
            Graph::from_edges(1, &[(0, 0)]).unwrap(),
            Graph::from_edges(30, &[]).unwrap(),
            Graph::from_edges(30, &(0..30).map(|v| (v, v)).collect::<Vec<_>>()).unwrap(),
            Graph::from_edges(40, &star).unwrap(),
            hostile_graph(),
        ];
        let folder = tempfile::tempdir().unwrap();
        for (i, graph) in graphs.into_iter().enumerate() {
            let [set, dst] = ["set", "dst"].map(|name| folder.path().join(format!("{name}{i}")));
            Dataset::from_arrays(Arrays::new(graph.clone())).unwrap().write(&set).unwrap();
            for count in ["1", "2", "7", "29", "50"] {
                for by in ["hypergraph", "hypergraph-both"] {
                    let args = ["data", "partition", set.to_str().unwrap(), dst.to_str().unwrap(), "--parts", count];
                    let (code, stdout, stderr) = run(&[&args[..], &["--by", by, "--json"]].concat());
                    assert_eq!((code, stderr.as_str()), (Some(0), ""), "graph {i} in {count}: {stdout}");
                    assert_eq!(stdout.lines().count(), 1, "{stdout}");
                    let line: Value = serde_json::from_str(&stdout).unwrap();
                    let sizes: Vec<u64> = serde_json::from_value(line["part_vertices"].clone()).unwrap();
                    assert_eq!(sizes.iter().sum::<u64>(), graph.vertex_count() as u64);
                    std::fs::remove_dir_all(&dst).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_plan_compares_it() {
        let (code, stdout, stderr) = run(&[
            "plan",
            "--data",
            "builtin:planted",
            "--ranks",
            "4",
            "--profile",
            "h200",
            "--json",
            "--compare",
            "random,hypergraph",
        ]);
        assert_eq!(code, Some(0), "{stderr}");
        let rows: Vec<u64> = stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["halo_rows"].as_u64().unwrap())
            .collect();
        assert!(rows[1] < rows[0], "{rows:?}");
    }
}
