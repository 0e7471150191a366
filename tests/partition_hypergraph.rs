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
    let batches = ["--batch", "9", "--fanout", "2"];
    for more in [&batches[..], &[]] {
        let partition = ["data", "partition", "no/such/set", to, "--parts", "2", "--by", "stochastic"];
        let (code, _, stderr) = run(&[&partition[..], more].concat());
        assert!(code == Some(1) && stderr.contains("no hypergraph partitioner"), "{code:?}: {stderr}");
    }
}

#[cfg(feature = "hypergraph")]
mod built {
    use std::num::NonZeroUsize;

    use lapidary::dataset::generate::{RmatOptions, rmat};
    use lapidary::dataset::{Arrays, Dataset};
    use lapidary::graph::Graph;
    use lapidary::partition::hypergraph::{Nets, Source, assign, stochastic};
    use lapidary::partition::{Assignment, BatchDraws, Estimate, VertexWeight, Volume, fresh_run};
    use lapidary::sample::NeighborSampler;
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

    /// Four communities of 64 vertices, in an order that hides them: v is in community v % 4. A vertex reads 12 others of
    /// its community and one of another.
    fn communities() -> Graph {
        let reads = |v: u32| (1..=12).map(move |i| ((v + 4 * i * i) % 256, v)).chain([((v + 1 + v / 64) % 256, v)]);
        Graph::from_edges(256, &(0..256).flat_map(reads).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn batches_find_communities_and_choose_their_number_by_others() {
        let (graph, sampler) = (communities(), NeighborSampler::new("4,4".parse().unwrap()));
        let seeds: Vec<u32> = (0..256).filter(|v| v % 3 > 0).collect();
        let draws =
            BatchDraws { graph: &graph, sampler: &sampler, seeds: &seeds, size: NonZeroUsize::new(40).unwrap() };
        let find = || stochastic(&draws, parts(4), VertexWeight::Rows, 1, 1 << 20).unwrap();
        let found = find();
        // No batch begins at every third vertex, and each has a part all the same.
        assert_eq!(found.assignment.part_of().len(), 256);
        let of_community = |v: usize| found.assignment.part_of()[v % 4];
        assert!((0..256).all(|v| found.assignment.part_of()[v] == of_community(v)), "{:?}", found.assignment);
        // The first trial is the hypergraph of the graph.
        let alone = assign(&graph, parts(4), Nets::Forward, VertexWeight::Rows, 1).unwrap();
        assert_eq!(found.trials[0].source, Source::Graph);
        assert!(found.trials.iter().any(|trial| matches!(trial.source, Source::Batches(_))));
        let best = found.trials[found.best].held_out.mean;
        assert!(found.trials.iter().all(|trial| best <= trial.held_out.mean), "{:?}", found.trials);
        let fetched = |parts: &Assignment| Estimate::of(&draws.fetched_rows(parts, fresh_run(1), 50).unwrap()).mean;
        let drawn = fetched(&Assignment::random(256, parts(4), 1));
        assert!(3.0 * fetched(&found.assignment) < drawn && 3.0 * fetched(&alone) < drawn);
        let again = find();
        assert_eq!((again.assignment, again.trials, again.best), (found.assignment, found.trials, found.best));
    }

    #[test]
    fn one_part_and_many_need_no_partitioner() {
        let (graph, sampler) = (four_cliques(), NeighborSampler::new("2".parse().unwrap()));
        let seeds: Vec<u32> = (0..32).collect();
        let draws = BatchDraws { graph: &graph, sampler: &sampler, seeds: &seeds, size: NonZeroUsize::new(9).unwrap() };
        for count in [1, 32, 50] {
            let found = stochastic(&draws, parts(count), VertexWeight::Edges, 1, 1 << 20).unwrap();
            assert_eq!((found.best, found.assignment.count()), (0, parts(count)));
        }
    }

    #[test]
    fn the_command_reports_how_many_batches_are_best() {
        let folder = tempfile::tempdir().unwrap();
        let dst = folder.path().join("dst");
        let partition = |name: &str, more: &[&str]| {
            let dst = folder.path().join(name);
            let args =
                ["data", "partition", "builtin:karate", dst.to_str().unwrap(), "--parts", "2", "--by", "stochastic"];
            run(&[&args[..], more].concat())
        };
        let batches = ["--batch", "2", "--fanout", "3,3"];
        let (code, stdout, stderr) = partition("json", &[&batches[..], &["--json"]].concat());
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
        let line: Value = serde_json::from_str(&stdout).unwrap();
        let trials = line["trials"].as_array().unwrap();
        let held_out = |trial: &Value| trial["held_out"]["mean"].as_f64().unwrap();
        let best = held_out(&trials[line["best_trial"].as_u64().unwrap() as usize]);
        assert!(trials.len() > 2 && trials.iter().all(|trial| best <= held_out(trial)), "{line}");
        let ways: Vec<&str> = trials.iter().map(|trial| trial["by"].as_str().unwrap()).collect();
        assert_eq!(ways.iter().filter(|way| **way != "stochastic").count(), 2, "{ways:?}");
        assert_eq!((&ways[..3], &trials[2]["batches"]), (&["hypergraph", "metis", "stochastic"][..], &8.into()));
        assert!(trials[0]["own"].is_null() && trials[2]["own"]["mean"].is_number());
        assert_eq!(line["fetched_rows"]["batches"].as_array().unwrap().len(), 100);
        let (code, stdout, _) = partition("table", &batches);
        assert!(code == Some(0) && ["parts of", "(kept)", "fresh batches"].iter().all(|w| stdout.contains(w)));

        for (more, wanted, exit) in [
            (&[][..], "as in --batch 1024 --fanout 10,10", 2),
            (&["--batch", "2"], "--fanout", 2),
            (&["--batch", "0", "--fanout", "3"], "--batch cannot be `0`", 2),
            (&["--batch", "2", "--fanout", "x"], "--fanout cannot be `x`", 2),
            (&["--batch", "2", "--fanout", "3", "--weights", "edges,rows"], "--weights cannot be `edges,rows`", 2),
            (&["--batch", "2", "--fanout", "3", "--most-pins", "9"], "--most-pins is 9", 1),
            (&["--batch", "2", "--fanout", "3", "--by-weight"], "has no edge weights", 1),
        ] {
            let (code, stdout, stderr) = partition("dst", more);
            assert_eq!((code, stdout.as_str()), (Some(exit), ""), "{more:?}: {stderr}");
            assert!(stderr.contains(wanted) && !stderr.contains("option `"), "{more:?}: {stderr}");
            assert!(!dst.exists());
        }
        let compare =
            ["plan", "--data", "builtin:karate", "--ranks", "2", "--profile", "h200", "--compare", "stochastic"];
        let (code, _, stderr) = run(&compare);
        assert!(code == Some(2) && stderr.contains("it is for mini-batches"), "{stderr}");
    }
}
