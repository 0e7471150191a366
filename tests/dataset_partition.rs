//! Parts of a graph: the ways to choose them, what they exchange, and `lapidary data partition`.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use lapidary::dataset::{Arrays, Dataset, TRAIN};
use lapidary::graph::{Graph, Permutation};
use lapidary::lower::{Crossing, FeatureData, Inputs, LabelData, Supply};
use lapidary::partition::metis::{self, Objective};
use lapidary::partition::{Assignment, BatchDraws, VertexWeight, Volume, fresh_run};
use lapidary::program::BlockSpec;
use lapidary::sample::NeighborSampler;
use serde_json::Value;

use crate::common::command::{run, succeeds};
use crate::common::parted::{dense, four_cliques, parts, with_an_empty_part};
use crate::common::{hostile_graph, npy};

/// Counts of the routes that training uses: rows, and pairs of parts.
fn routed(graph: &Graph, assignment: &Assignment, transposed: bool) -> (u64, u64) {
    let (order, ranges) = assignment.relabelling();
    let (graph, n) = (order.apply(graph), graph.vertex_count());
    let inputs = Inputs {
        symmetric: graph.is_symmetric(),
        graph,
        edge_weights: None,
        features: FeatureData::Dense { data: vec![0.0; n].into(), width: 1 },
        labels: LabelData::Classes(vec![0; n].into()),
        split: vec![0; n].into(),
        labelled: [n as u64, 0, 0, 0],
        class_weights: None,
        kept: None,
    };
    let mut supply = Supply::of_parts(&inputs, ranges);
    let routes = supply.routes(Crossing::Pull(BlockSpec::Graph { self_loops: false, transposed }));
    let sources = || routes.sources.iter().flatten();
    (sources().map(|source| source.rows.len() as u64).sum(), sources().count() as u64)
}

#[test]
fn volumes_are_those_of_the_routes() {
    for graph in [hostile_graph(), Dataset::builtin("planted").unwrap().graph().clone()] {
        let n = graph.vertex_count();
        for count in [1, 2, 5, 31] {
            let assignment = Assignment::random(n, parts(count), 3);
            let volume = Volume::of(&graph, &assignment);
            assert_eq!((volume.halo_rows, volume.messages), routed(&graph, &assignment, false));
            assert_eq!(volume.backward_rows, routed(&graph, &assignment, true).0);
            assert_eq!(volume.fold_rows, volume.halo_rows);
        }
    }
}

#[test]
fn random_parts_have_equal_sizes_and_their_own_seed() {
    for (n, count) in [(1, 1), (7, 3), (3, 7), (100, 16)] {
        let sizes = |seed| {
            let mut sizes = vec![0; count as usize];
            let assignment = Assignment::random(n, parts(count), seed);
            assignment.part_of().iter().for_each(|&part| sizes[part as usize] += 1);
            (sizes, assignment)
        };
        let (found, assignment) = sizes(1);
        assert!(
            found.iter().all(|&size| (n / count as usize..=n.div_ceil(count as usize)).contains(&size)),
            "{found:?}"
        );
        assert_eq!(assignment, sizes(1).1);
        assert!(n < 7 || assignment != sizes(2).1);
    }
}

#[test]
fn the_report_counts_what_the_parts_exchange() {
    let folder = tempfile::tempdir().unwrap();
    let (set, file) = (folder.path().join("set"), folder.path().join("parts.txt"));
    dense().write(&set).unwrap();
    let set = set.to_str().unwrap();
    let assignment = with_an_empty_part();
    let lines: Vec<String> = assignment.part_of().iter().map(ToString::to_string).collect();
    fs::write(&file, lines.join("\r\n")).unwrap();
    let volume = Volume::of(&hostile_graph(), &assignment);
    for (name, weights) in [("edges", VertexWeight::Edges), ("rows", VertexWeight::Rows)] {
        let dst = folder.path().join(name);
        let dst = dst.to_str().unwrap();
        let partition =
            ["data", "partition", set, dst, "--parts", "5", "--by", file.to_str().unwrap(), "--weights", name];
        let stdout = succeeds(&[&partition[..], &["--json"]].concat());
        assert_eq!(stdout.lines().count(), 1);
        let line: BTreeMap<String, Value> = serde_json::from_str(&stdout).unwrap();
        let number = |key: &str| line[key].as_u64().unwrap();
        assert_eq!(line["event"], "partition");
        assert_eq!((line["dataset"].as_str(), line["written"].as_str()), (Some("dense"), Some(dst)));
        assert_eq!((number("halo_rows"), number("backward_rows")), (volume.halo_rows, volume.backward_rows));
        assert_eq!((number("fold_rows"), number("messages")), (volume.fold_rows, volume.messages));
        let largest = volume.largest();
        assert_eq!((number("largest"), number("largest_part")), (largest.rows, largest.part as u64));
        assert_eq!(line["largest_direction"], if largest.sends { "sends" } else { "receives" });
        assert_eq!(line["imbalance"].as_f64(), Some(assignment.imbalance(&hostile_graph(), weights)));
        assert!(line["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0));
        let vertices: Vec<u64> = volume.parts.iter().map(|part| part.vertices).collect();
        assert_eq!(line["part_vertices"], serde_json::json!(vertices));
    }
    let dst = folder.path().join("table");
    let args = ["data", "partition", set, dst.to_str().unwrap(), "--parts", "2", "--by", "edges"];
    let stdout = succeeds(&args);
    for word in ["halo rows", "by fold", "largest", "messages", "imbalance", "rows received"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    assert!(succeeds(&["data", "info", dst.to_str().unwrap()]).contains("permutation.npy"));
}

#[test]
fn a_plan_compares_what_partitions_would_send() {
    let folder = tempfile::tempdir().unwrap();
    let ways = ["edges", "random", "metis-vol"];
    let plan = ["plan", "--data", "builtin:planted", "--ranks", "4", "--json"];
    let compared = succeeds(&[&plan[..], &["--compare", &ways.join(",")]].concat());
    let compared: Vec<Value> = compared.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(compared.len(), ways.len());
    for (way, line) in ways.iter().zip(&compared) {
        let moved = folder.path().join(way);
        let moved = moved.to_str().unwrap();
        let partition = ["data", "partition", "builtin:planted", moved, "--parts", "4", "--json", "--by", way];
        let written: Value = serde_json::from_str(&succeeds(&partition)).unwrap();
        assert_eq!((&line["partition"], &line["halo_rows"]), (&(*way).into(), &written["halo_rows"]), "{way}");
        // The same as a plan of the dataset that was written.
        let parts = format!("{moved}/parts.json");
        let plan = ["plan", "--data", moved, "--ranks", "4", "--json", "--partition", &parts, "--defaults", "plain"];
        let planned = succeeds(&plan);
        let planned: Vec<Value> = planned.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ranks = planned.iter().find(|line| line["event"] == "ranks").unwrap();
        for name in ["rows", "messages", "bytes", "largest", "network_seconds"] {
            assert_eq!(line[name], ranks[name], "{way}: {name}");
        }
    }
    assert!(compared[2]["rows"].as_u64() < compared[1]["rows"].as_u64(), "METIS sends less than random parts");
    for args in [["--shape", "9,9,9,2", "--compare", "edges"], ["--data", "builtin:karate", "--compare", "edges,nope"]]
    {
        let (code, stdout, stderr) = run(&[&["plan"], &args[..]].concat());
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    }
}

#[test]
fn ranges_are_those_of_training() {
    let folder = tempfile::tempdir().unwrap();
    for (by, want) in [("vertices", [[0, 17], [17, 34]]), ("edges", [[0, 10], [10, 34]])] {
        let dst = folder.path().join(by);
        succeeds(&["data", "partition", "builtin:karate", dst.to_str().unwrap(), "--parts", "2", "--by", by]);
        let data = Dataset::open(&dst).unwrap();
        assert_eq!(data.permutation(), Some(&Permutation::identity(34)));
        let ranges: Vec<[usize; 2]> = serde_json::from_slice(&fs::read(dst.join("parts.json")).unwrap()).unwrap();
        if by == "vertices" {
            assert_eq!(ranges, want);
        }
        assert_eq!((ranges[0][0], ranges[0][1], ranges[1][1]), (0, ranges[1][0], 34));
        assert_eq!(data.fingerprint(), Dataset::builtin("karate").unwrap().fingerprint());
    }
}

#[test]
fn more_parts_than_vertices_leave_some_empty() {
    for by in ["vertices", "edges", "random", "metis", "metis-vol"] {
        let folder = tempfile::tempdir().unwrap();
        let dst = folder.path().join("set");
        let stdout = succeeds(&[
            "data",
            "partition",
            "builtin:karate",
            dst.to_str().unwrap(),
            "--parts",
            "50",
            "--by",
            by,
            "--json",
        ]);
        let line: Value = serde_json::from_str(&stdout).unwrap();
        let sizes: Vec<u64> = serde_json::from_value(line["part_vertices"].clone()).unwrap();
        assert_eq!((sizes.len(), sizes.iter().sum::<u64>()), (50, 34), "{by}: {sizes:?}");
        Dataset::open(&dst).unwrap();
    }
}

#[test]
fn metis_cuts_where_few_edges_are() {
    let graph = four_cliques();
    assert!(!graph.is_symmetric(), "METIS gets both directions all the same");
    for objective in [Objective::Cut, Objective::Volume] {
        for weight in [VertexWeight::Rows, VertexWeight::Edges] {
            let found = metis::assign(&graph, parts(4), objective, &[weight], 1).unwrap();
            assert_eq!(found, metis::assign(&graph, parts(4), objective, &[weight], 1).unwrap());
            let volume = Volume::of(&graph, &found);
            assert_eq!((volume.halo_rows, volume.backward_rows, volume.messages), (4, 4, 4), "{found:?}");
            assert!(volume.parts.iter().all(|part| part.vertices == 8));
        }
    }
}

#[test]
fn metis_balances_several_weights() {
    let data = Dataset::builtin("planted").unwrap();
    let graph = data.graph();
    // The labelled vertices are among the first, so balanced rows say nothing about them.
    let labelled: Vec<bool> = (0..graph.vertex_count()).map(|v| v < 600 && v % 2 == 0).collect();
    let weights = [VertexWeight::Edges, VertexWeight::Rows, VertexWeight::Labelled(&labelled)];
    for objective in [Objective::Cut, Objective::Volume] {
        let found = metis::assign(graph, parts(4), objective, &weights, 1).unwrap();
        assert_eq!(found, metis::assign(graph, parts(4), objective, &weights, 1).unwrap(), "the seed decides");
        for weight in weights {
            let imbalance = found.imbalance(graph, weight);
            assert!(imbalance < 1.06, "{objective:?}: {imbalance}");
        }
        let alone = metis::assign(graph, parts(4), objective, &weights[2..], 1).unwrap();
        assert!(alone.imbalance(graph, weights[2]) < 1.06);
    }
    assert_eq!(
        metis::assign(graph, parts(4), Objective::Cut, &[], 1).unwrap(),
        metis::assign(graph, parts(4), Objective::Cut, &[VertexWeight::Rows], 1).unwrap()
    );
}

#[test]
fn the_report_has_the_balance_of_each_weight_and_the_rows_of_batches() {
    let folder = tempfile::tempdir().unwrap();
    let partition = |name: &str, data: &str, more: &[&str]| {
        let dst = folder.path().join(name);
        run(&[&["data", "partition", data, dst.to_str().unwrap(), "--parts", "3"], more].concat())
    };
    let weighed = ["--weights", "edges,rows,train", "--batch", "64", "--fanout", "3,-1", "--json"];
    let data = Dataset::builtin("planted").unwrap();
    let is_seed = |v: &usize| data.split()[*v] == TRAIN && data.labels().unwrap().is_labelled(*v);
    let seeds: Vec<u32> = (0..data.graph().vertex_count()).filter(is_seed).map(|v| v as u32).collect();
    for by in ["metis", "random", "edges"] {
        let (code, stdout, stderr) = partition(by, "builtin:planted", &[&weighed[..], &["--by", by]].concat());
        assert_eq!(code, Some(0), "{stderr}");
        let line: Value = serde_json::from_str(&stdout).unwrap();
        let imbalances: BTreeMap<String, f64> = serde_json::from_value(line["imbalances"].clone()).unwrap();
        assert_eq!(imbalances.keys().collect::<Vec<_>>(), ["edges", "rows", "train"]);
        assert_eq!(line["imbalance"].as_f64(), imbalances.values().copied().reduce(f64::max));
        // Counted again from what was written.
        let written = Dataset::open(folder.path().join(by)).unwrap();
        let ranges: Vec<[usize; 2]> =
            serde_json::from_slice(&fs::read(folder.path().join(by).join("parts.json")).unwrap()).unwrap();
        let mut part_of = vec![0; data.graph().vertex_count()];
        for (part, [start, end]) in (0u32..).zip(ranges) {
            for &old in &written.permutation().unwrap().old_of_new()[start..end] {
                part_of[old as usize] = part;
            }
        }
        let assignment = Assignment::new(part_of, parts(3)).unwrap();
        let sampler = NeighborSampler::new("3,-1".parse().unwrap());
        let (graph, size) = (data.graph(), NonZeroUsize::new(64).unwrap());
        let draws = BatchDraws { graph, sampler: &sampler, seeds: &seeds, size };
        let rows = draws.fetched_rows(&assignment, fresh_run(1), 100).unwrap();
        assert_eq!(line["fetched_rows"]["batches"], serde_json::json!(rows), "{by}");
        let part_seeds: Vec<u64> = serde_json::from_value(line["part_seeds"].clone()).unwrap();
        assert_eq!(part_seeds.iter().sum::<u64>(), seeds.len() as u64);
    }
    let (_, stdout, _) = partition("table", "builtin:planted", &["--by", "random", "--weights", "rows,train"]);
    assert!(stdout.contains(" (rows), ") && stdout.contains(" (train)"), "{stdout}");

    let bare = folder.path().join("bare");
    Dataset::from_arrays(Arrays::new(four_cliques())).unwrap().write(&bare).unwrap();
    for (data, more, exit, wanted) in [
        ("builtin:karate", &["--weights", "edges,foo"][..], 2, "write edges, rows, learned or train"),
        ("builtin:karate", &["--weights", "edges,rows,edges"], 2, "write edges once"),
        ("builtin:karate", &["--weights", ""], 2, "write edges, rows, learned or train"),
        ("builtin:karate", &["--batch", "0", "--fanout", "2"], 2, "--batch cannot be `0`"),
        ("builtin:karate", &["--fanout", "2"], 2, "--batch"),
        (bare.to_str().unwrap(), &["--weights", "train"], 1, "no labelled vertex to train on; --weights train"),
        (bare.to_str().unwrap(), &["--batch", "4", "--fanout", "2"], 1, "no labelled vertex to train on"),
    ] {
        let (code, stdout, stderr) = partition("wrong", data, &[&["--by", "metis"], more].concat());
        assert_eq!((code, stdout.as_str()), (Some(exit), ""), "{more:?}: {stderr}");
        assert!(stderr.contains(wanted), "{more:?}: {stderr}");
    }
}

#[test]
fn metis_takes_any_graph_and_says_nothing() {
    let star: Vec<(u32, u32)> = (1..40).map(|v| (v, 0)).collect();
    let graphs = [
        ("one", Graph::from_edges(1, &[(0, 0)]).unwrap()),
        ("none", Graph::from_edges(30, &[]).unwrap()),
        ("loops", Graph::from_edges(30, &(0..30).map(|v| (v, v)).collect::<Vec<_>>()).unwrap()),
        ("star", Graph::from_edges(40, &star).unwrap()),
        ("hostile", hostile_graph()),
        ("path", Graph::from_edges(60, &(1..60).map(|v| (v - 1, v)).collect::<Vec<_>>()).unwrap()),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (name, graph) in graphs {
        let set = folder.path().join(name);
        Dataset::from_arrays(Arrays::new(graph.clone())).unwrap().write(&set).unwrap();
        for count in ["1", "2", "3", "7", "11", "29", "39"] {
            for (by, weights) in [
                ("metis", "rows"),
                ("metis", "edges"),
                ("metis-vol", "rows"),
                ("metis-vol", "edges"),
                ("metis", "edges,rows"),
            ] {
                let dst = folder.path().join("dst");
                let (from, to) = (set.to_str().unwrap(), dst.to_str().unwrap());
                let stdout = succeeds(&[
                    "data",
                    "partition",
                    from,
                    to,
                    "--parts",
                    count,
                    "--by",
                    by,
                    "--weights",
                    weights,
                    "--json",
                ]);
                assert!(
                    stdout.starts_with('{') && stdout.lines().count() == 1,
                    "{name} {count} {by} {weights}: {stdout}"
                );
                fs::remove_dir_all(dst).unwrap();
            }
        }
    }
}

/// Runs `data partition` on karate with a file of parts. Returns the exit code and the message.
fn with_file(bytes: &[u8], count: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, dst) = (folder.path().join("file"), folder.path().join("dst"));
    fs::write(&file, bytes).unwrap();
    let args = [file.to_str().unwrap(), dst.to_str().unwrap()];
    let (code, stdout, stderr) =
        run(&["data", "partition", "builtin:karate", args[1], "--parts", count, "--by", args[0], "--json"]);
    assert_eq!(code == Some(0), dst.exists());
    assert_eq!(code == Some(0), !stdout.is_empty());
    (code, stderr)
}

#[test]
fn a_file_of_parts_is_a_text_or_an_array() {
    let parts: Vec<i64> = (0..34).map(|v| v % 3).collect();
    let text: String = parts.iter().map(|part| format!("{part}\n")).collect();
    let narrow: Vec<u8> = parts.iter().map(|&part| part as u8).collect();
    let ints: Vec<u32> = parts.iter().map(|&part| part as u32).collect();
    for good in [
        text.as_bytes().to_vec(),
        text.trim_end().as_bytes().to_vec(),
        text.replace('\n', " \r\n").into_bytes(),
        npy("<i8", "(34,)", bytemuck::cast_slice(&parts)),
        npy("|u1", "(34,)", &narrow),
        npy("<u4", "(34,)", bytemuck::cast_slice(&ints)),
        npy("<i4", "(34,)", bytemuck::cast_slice(&ints)),
    ] {
        assert_eq!(with_file(&good, "3").0, Some(0));
        assert_eq!(with_file(&good, "4").0, Some(0), "a part may be empty");
        let (code, error) = with_file(&good, "2");
        assert!(code == Some(1) && error.contains("element 2 is") && error.contains("a part, 0 to 1"), "{error}");
    }
}

#[test]
fn a_hostile_file_of_parts_is_refused() {
    let lines = |line: &str| format!("{line}\n").repeat(34).into_bytes();
    let cases: [(Vec<u8>, &str); 18] = [
        (Vec::new(), "has shape [0], expected [34]"),
        (b"0\n".repeat(33), "has shape [33], expected [34] (one line per vertex)"),
        (b"0\n".repeat(35), "has shape [35], expected [34]"),
        ([b"0\n".repeat(34), b"\n".to_vec()].concat(), "has shape [35]"),
        (lines("-1"), "element 0 is `-1`, expected a part, 0 to 3"),
        (lines("4"), "element 0 is `4`, expected a part, 0 to 3"),
        (lines("1.0"), "element 0 is `1.0`"),
        (lines(""), "element 0 is ``"),
        (lines("99999999999999999999"), "element 0 is `99999999999999999999`"),
        (lines("0 1"), "element 0 is `0 1`"),
        (lines("\u{1b}[31m"), "element 0 is `\\u{1b}[31m`"),
        (vec![0xff; 64], "element 0 is `"),
        ([b"[[0, 10], [10, 34]]".to_vec()].concat(), "element 0 is `[[0, 10]"),
        (vec![b'0'; 1 << 20], "are read"),
        (npy("<i8", "(34,)", bytemuck::cast_slice(&[-1i64; 34])), "element 0 is -1, expected a part, 0 to 3"),
        (npy("<i8", "(34, 1)", bytemuck::cast_slice(&[0i64; 34])), "has shape [34, 1], expected [34]"),
        (npy("<f4", "(34,)", bytemuck::cast_slice(&[0f32; 34])), "'<f4'"),
        (npy("<i8", "(34,)", bytemuck::cast_slice(&[0i64; 33])), "is cut short"),
    ];
    for (bytes, word) in cases {
        let (code, error) = with_file(&bytes, "4");
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(word) && error.starts_with("error: "), "`{word}` is not in: {error}");
    }
}

#[test]
fn a_wrong_command_line_is_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("dst");
    let dst = dst.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&[dst, "--by", "metis"], 2, "--parts"),
        (&[dst, "--parts", "2"], 2, "--by"),
        (&[dst, "--parts", "0", "--by", "metis"], 2, "0 is not in 1..="),
        (&[dst, "--parts", "100000", "--by", "metis"], 2, "100000 is not in 1..="),
        (&[dst, "--parts", "2", "--by", "foo"], 2, "--by cannot be `foo`: write vertices, edges, random"),
        (&[dst, "--parts", "2", "--by", "metis", "--weights", "foo"], 2, "edges, rows, learned or train"),
        (&[folder.path().parent().unwrap().to_str().unwrap(), "--parts", "2", "--by", "metis"], 1, "is not empty"),
    ];
    for (args, want, word) in cases {
        let (code, stdout, stderr) = run(&[&["data", "partition", "builtin:karate"][..], args].concat());
        assert_eq!((code, stdout.as_str()), (Some(want), ""), "{args:?}: {stderr}");
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
        assert!(!Path::new(dst).exists());
    }
    let (code, _, stderr) = run(&["data", "partition", "no/such/set", dst, "--parts", "2", "--by", "metis"]);
    assert!(code == Some(1) && stderr.contains("no/such/set"), "{stderr}");
    let here = folder.path().to_str().unwrap();
    let (code, _, stderr) = run(&["data", "partition", "builtin:karate", dst, "--parts", "2", "--by", here]);
    assert!(code == Some(1) && stderr.contains("it is a directory, not a plain file"), "{stderr}");
}
