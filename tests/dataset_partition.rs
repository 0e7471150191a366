//! Partitions: datasets relabelled so that parts are consecutive, what follows the vertices, what parts exchange, and
//! `lapidary data partition`.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Command, Output};

use lapidary::dataset::{Arrays, Dataset, Features, Info, Labels};
use lapidary::graph::{Graph, Permutation};
use lapidary::lower::{FeatureData, Inputs, LabelData, Supply};
use lapidary::partition::metis::{self, Objective};
use lapidary::partition::{self, Assignment, VertexWeight, Volume};
use lapidary::program::BlockSpec;
use lapidary::{Devices, Model, Partition, Trainer};
use ndarray::Array2;
use ndarray_npy::read_npy;
use proptest::prelude::*;
use serde_json::Value;

use crate::common::{hostile_graph, largest_difference, npy, numbers};

const LAPIDARY: &str = env!("CARGO_BIN_EXE_lapidary");
/// Vertices of `hostile_graph`.
const N: usize = 12;

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(LAPIDARY).args(args).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[track_caller]
fn succeeds(args: &[&str]) -> String {
    let (code, stdout, stderr) = run(args);
    assert_eq!(code, Some(0), "{args:?}: {stderr}");
    stdout
}

fn parts(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

/// The parts of the vertices of `hostile_graph`; part 2 is empty.
fn with_an_empty_part() -> Assignment {
    Assignment::new(vec![3, 0, 1, 0, 3, 1, 0, 1, 3, 1, 0, 3], parts(5)).unwrap()
}

/// A directed graph with everything that a dataset can have, and dense features.
fn dense() -> Dataset {
    let graph = hostile_graph();
    let weights: Vec<f32> = (0..graph.edge_count()).map(|edge| edge as f32 - 3.5).collect();
    let x = Array2::from_shape_fn((N, 3), |(v, c)| (10 * v + c) as f32);
    let arrays = Arrays::new(graph)
        .name("dense")
        .edge_weights(weights)
        .features(x)
        .labels(&[0, 1, 2, -1, 1, 0, 2, 1, 0, 0, 1, 2]);
    let arrays =
        arrays.train(&[0, 4, 6, 11]).val(&[1, 2]).test(&[5, 9, 10]).graph_ids(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 7, 9]);
    Dataset::from_arrays(arrays.source("a test").licence("CC0")).unwrap()
}

/// An undirected graph with sparse features, several labels per vertex, and weights that are not symmetric.
fn sparse() -> Dataset {
    let ties = [(0u32, 1u32), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 4), (3, 4), (7, 8), (8, 8)];
    let edges: Vec<(u32, u32)> =
        ties.iter().flat_map(|&(u, v)| if u == v { vec![(u, v)] } else { vec![(u, v), (v, u)] }).collect();
    let weights: Vec<f32> = (0..edges.len()).map(|edge| 1.0 + edge as f32).collect();
    let cells: Vec<u64> = (0..=N as u64).map(|v| v * (v + 1) / 2 / 3).collect();
    let columns = cells.windows(2).flat_map(|row| 0..(row[1] - row[0]) as u32).collect::<Vec<_>>();
    let values: Vec<f32> = (0..columns.len()).map(|cell| 0.25 + cell as f32).collect();
    let labels = Array2::from_shape_fn((N, 4), |(v, c)| u8::from((v * 7 + c * 3) % 4 == 0));
    let arrays = Arrays::edges(N, &edges).name("sparse").directed(false).edge_weights(weights);
    let arrays = arrays.sparse_features(cells, columns, values, 5).multi_labels(labels);
    Dataset::from_arrays(arrays.train(&[1, 3, 5, 7]).val(&[0]).test(&[11, 2])).unwrap()
}

/// Everything about one vertex, with the names of its sources in place of their ids.
fn of_vertex(data: &Dataset, v: usize, name: &dyn Fn(usize) -> usize) -> String {
    let graph = data.graph();
    let edges = graph.edges(v).map(|edge| {
        let weight = data.edge_weights().map(|weights| weights[edge].to_bits());
        (name(graph.indices()[edge] as usize), weight)
    });
    let mut edges: Vec<_> = edges.collect();
    edges.sort_unstable();
    let features = match data.features() {
        None => String::new(),
        Some(Features::Dense(x)) => format!("{:?}", &x.data()[v * x.width()..(v + 1) * x.width()]),
        Some(Features::Sparse(x)) => {
            let cells = x.indptr()[v] as usize..x.indptr()[v + 1] as usize;
            format!("{:?} {:?}", &x.indices()[cells.clone()], &x.values()[cells])
        }
    };
    let labels = match data.labels() {
        None => String::new(),
        Some(Labels::Class(labels)) => labels[v].to_string(),
        Some(Labels::Multi { data, classes }) => format!("{:?}", &data[v * classes..(v + 1) * classes]),
    };
    let graph_id = data.graph_ids().map(|ids| ids[v]);
    format!("{edges:?} {features} {labels} {} {graph_id:?}", data.split()[v])
}

/// Checks that `moved` is `data` with other names, and that its permutation says which.
#[track_caller]
fn assert_renamed(data: &Dataset, moved: &Dataset) {
    let order = moved.permutation().expect("it was relabelled");
    let (old, new) = (order.old_of_new(), order.new_of_old());
    for v in 0..data.graph().vertex_count() {
        assert_eq!((old[new[v] as usize], new[old[v] as usize]), (v as u32, v as u32));
        let found = of_vertex(moved, new[v] as usize, &|u| old[u] as usize);
        assert_eq!(found, of_vertex(data, v, &|u| u), "vertex {v}");
    }
    for v in 0..moved.graph().vertex_count() {
        assert!(moved.graph().sources(v).is_sorted());
    }
    assert_eq!(
        (moved.name(), moved.directed(), moved.class_count()),
        (data.name(), data.directed(), data.class_count())
    );
    assert_eq!((moved.source(), moved.licence()), (data.source(), data.licence()));
    assert_eq!(Info::of(moved), Info { relabelled: true, ..Info::of(data) });
}

#[test]
fn everything_follows_its_vertices() {
    for data in [dense(), sparse()] {
        let assignment = with_an_empty_part();
        let (order, ranges) = assignment.relabelling();
        assert_eq!(ranges, [0..4, 4..8, 8..8, 8..12, 12..12]);
        assert_eq!(order.old_of_new(), [1, 3, 6, 10, 2, 5, 7, 9, 0, 4, 8, 11], "the order in a part stays");
        let moved = data.relabelled(&order);
        assert!(data.permutation().is_none());
        assert_renamed(&data, &moved);

        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set");
        assert_eq!(partition::write(&data, &assignment, None, &set).unwrap(), ranges);
        let back = Dataset::open(&set).unwrap();
        assert_renamed(&data, &back);
        assert_eq!((back.fingerprint(), back.permutation()), (moved.fingerprint(), moved.permutation()));
        // What was relabelled in memory is written to the same bytes.
        let again = folder.path().join("again");
        moved.write(&again).unwrap();
        for entry in again.read_dir().unwrap() {
            let name = entry.unwrap().file_name();
            assert_eq!(fs::read(again.join(&name)).unwrap(), fs::read(set.join(&name)).unwrap(), "{name:?}");
        }
        assert_eq!(
            fs::read_to_string(set.join("parts.json")).unwrap(),
            "[[0, 4], [4, 8], [8, 8], [8, 12], [12, 12]]\n"
        );
        let Partition::Ranges(read) = Partition::parse(set.join("parts.json").to_str().unwrap()).unwrap() else {
            panic!("a list of ranges");
        };
        assert_eq!(read, ranges);
    }
}

#[test]
fn partitions_of_partitions_lead_back_to_the_first_order() {
    let (data, folder) = (dense(), tempfile::tempdir().unwrap());
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    partition::write(&data, &with_an_empty_part(), None, &first).unwrap();
    let middle = Dataset::open(&first).unwrap();
    partition::write(&middle, &Assignment::random(N, parts(4), 9), None, &second).unwrap();
    assert_renamed(&data, &Dataset::open(&second).unwrap());
    // And back.
    let back = middle.relabelled(&Permutation::new(middle.permutation().unwrap().new_of_old().to_vec()).unwrap());
    assert_eq!(back.permutation(), Some(&Permutation::identity(N)));
    assert_eq!(back.fingerprint(), data.fingerprint());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn any_graph_is_relabelled(
        edges in proptest::collection::vec((0u32..9, 0u32..9), 0..60),
        part_of in proptest::collection::vec(0u32..4, 9),
    ) {
        let weights: Vec<f32> = (0..edges.len()).map(|edge| edge as f32).collect();
        let data = Dataset::from_arrays(Arrays::edges(9, &edges).edge_weights(weights)).unwrap();
        let assignment = Assignment::new(part_of.clone(), parts(4)).unwrap();
        let (order, ranges) = assignment.relabelling();
        let moved = data.relabelled(&order);
        assert_renamed(&data, &moved);
        let renamed: Vec<u32> = order.rows(&part_of, 1);
        prop_assert!(renamed.is_sorted());
        for (part, range) in ranges.iter().enumerate() {
            prop_assert!(renamed[range.clone()].iter().all(|&found| found as usize == part));
        }
        prop_assert_eq!(order.restored(&renamed, 1), part_of);
        // The volume is the same before and after.
        prop_assert_eq!(Volume::of(data.graph(), &assignment), Volume::of(moved.graph(), &Assignment::of_ranges(&ranges)));
    }
}

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
    };
    let mut supply = Supply::of_parts(&inputs, ranges);
    let routes = supply.routes(BlockSpec::Graph { self_loops: false, transposed });
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

/// Writes a dataset directory with names of vertices beside it.
fn named(folder: &Path) -> String {
    let set = folder.join("named");
    dense().write(&set).unwrap();
    let names: Vec<String> = (0..N).map(|v| format!("name {v}, é")).collect();
    fs::write(set.join("vertex_names.txt"), names.join("\n")).unwrap();
    let ids: Vec<i64> = (0..N as i64).map(|v| 1000 - v).collect();
    fs::write(set.join("vertex_ids.npy"), npy("<i8", "(12,)", bytemuck::cast_slice(&ids))).unwrap();
    set.to_str().unwrap().to_owned()
}

#[test]
fn names_follow_their_vertices() {
    let folder = tempfile::tempdir().unwrap();
    let set = named(folder.path());
    let [once, twice] = ["once", "twice"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    succeeds(&["data", "partition", &set, &once, "--parts", "3", "--by", "random", "--seed", "5"]);
    succeeds(&["data", "partition", &once, &twice, "--parts", "2", "--by", "random"]);
    for dst in [once, twice] {
        let data = Dataset::open(&dst).unwrap();
        let order = data.permutation().unwrap().old_of_new();
        let names = fs::read_to_string(Path::new(&dst).join("vertex_names.txt")).unwrap();
        let want: Vec<String> = order.iter().map(|v| format!("name {v}, é\n")).collect();
        assert_eq!(names, want.concat());
        let ids: ndarray::Array1<i64> = read_npy(Path::new(&dst).join("vertex_ids.npy")).unwrap();
        assert!(ids.iter().zip(order).all(|(&id, &v)| id == 1000 - i64::from(v)), "{ids:?}");
    }
    // Names that do not fit are refused, and nothing is left.
    fs::write(Path::new(&set).join("vertex_names.txt"), "a\nb\n").unwrap();
    let dst = folder.path().join("dst");
    let (code, stdout, stderr) =
        run(&["data", "partition", &set, dst.to_str().unwrap(), "--parts", "3", "--by", "random"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("vertex_names.txt has shape [2], expected [12]"), "{stderr}");
    let left = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// Trains without dropout and returns the losses.
fn losses(data: &Dataset, model: &Model, devices: Devices, partition: Partition) -> Vec<f64> {
    let trainer = Trainer::builder(model, data).devices(devices).partition(partition).seed(4);
    let mut trainer = trainer.build().unwrap();
    (0..5).map(|_| trainer.step().unwrap().loss).collect()
}

/// Makes edge weights that every model can divide by.
fn with_positive_weights(data: &Dataset) -> Dataset {
    let edges = data.graph().edge_count();
    let x = Array2::from_shape_vec((N, 6), numbers(N * 6, 5)).unwrap();
    let weights: Vec<f32> = (0..edges).map(|edge| 0.5 + (edge % 5) as f32).collect();
    let arrays = Arrays::new(data.graph().clone())
        .edge_weights(weights)
        .features(x)
        .labels(&[0, 1, 2, 0, 1, 0, 2, 1, 0, 0, 1, 2]);
    Dataset::from_arrays(arrays.train(&[0, 4, 6, 7, 8, 11]).val(&[1, 2]).test(&[5, 9, 10])).unwrap()
}

#[test]
fn a_relabelled_dataset_trains_alike() {
    let directed = with_positive_weights(&dense());
    for data in [directed.clone(), directed.without_edge_weights(), Dataset::builtin("karate").unwrap()] {
        let n = data.graph().vertex_count();
        let assignment = if n == N { with_an_empty_part() } else { Assignment::random(n, parts(5), 2) };
        let (order, ranges) = assignment.relabelling();
        let moved = data.relabelled(&order);
        let widths = [data.feature_width(), 8, data.class_count()];
        for model in [Model::gcn(&widths), Model::sage(&widths)] {
            let want = losses(&data, &model, Devices::cpu(), Partition::default());
            for (devices, partition) in
                [(Devices::cpu(), Partition::default()), (Devices::sim(5), Partition::Ranges(ranges.clone()))]
            {
                let found = losses(&moved, &model, devices, partition);
                for (a, b) in found.iter().zip(&want) {
                    assert!((a - b).abs() < 1e-5, "{found:?}, not {want:?}");
                }
            }
        }
    }
}

#[test]
fn logits_come_back_in_the_users_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (set, checkpoint) = (path("set"), path("run"));
    with_positive_weights(&dense()).write(&set).unwrap();
    succeeds(&["train", "--data", &set, "--epochs", "3", "--hidden", "4", "--checkpoint", &checkpoint]);
    let logits = |data: &str, name: &str, more: &[&str]| -> Array2<f32> {
        let out = path(name);
        let infer = ["infer", "--checkpoint", &checkpoint, "--data", data, "--out", &out];
        succeeds(&[&infer[..], more].concat());
        read_npy(out).unwrap()
    };
    let want = logits(&set, "want.npy", &[]);
    let (once, twice) = (path("once"), path("twice"));
    succeeds(&["data", "partition", &set, &once, "--parts", "3", "--by", "random"]);
    succeeds(&["data", "partition", &once, &twice, "--parts", "2", "--by", "metis", "--json"]);
    let ranges = path("twice/parts.json");
    for (data, more) in [(&once, &[][..]), (&twice, &[]), (&twice, &["--devices", "sim:2", "--partition", &ranges])] {
        let found = logits(data, "found.npy", more);
        assert_eq!(found.dim(), want.dim());
        assert!(largest_difference(found.as_slice().unwrap(), want.as_slice().unwrap()) < 1e-4, "{found}, not {want}");
    }
    // In the library, rows are in the order of the dataset.
    let data = Dataset::open(&once).unwrap();
    let found = lapidary::Predictor::open(&checkpoint).unwrap().predict(&data).unwrap();
    let restored = data.permutation().unwrap().restored(found.as_slice().unwrap(), found.ncols());
    assert!(largest_difference(&restored, want.as_slice().unwrap()) < 1e-4);
    assert!(largest_difference(found.as_slice().unwrap(), want.as_slice().unwrap()) > 1e-4, "the order differs");
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
        let planned = succeeds(&["plan", "--data", moved, "--ranks", "4", "--json", "--partition", &parts]);
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
    // Four cliques of eight, joined in a ring; vertex v is in clique v % 4.
    let clique = |v: u32| (0..8).map(move |i| (v % 4 + 4 * i, v)).filter(|(u, v)| u != v);
    let mut edges: Vec<(u32, u32)> = (0..32).flat_map(clique).collect();
    edges.extend([(0, 1), (1, 2), (2, 3), (3, 0)]);
    let graph = Graph::from_edges(32, &edges).unwrap();
    assert!(!graph.is_symmetric(), "METIS gets both directions all the same");
    for objective in [Objective::Cut, Objective::Volume] {
        for weight in [VertexWeight::Rows, VertexWeight::Edges] {
            let found = metis::assign(&graph, parts(4), objective, weight, 1).unwrap();
            assert_eq!(found, metis::assign(&graph, parts(4), objective, weight, 1).unwrap());
            let volume = Volume::of(&graph, &found);
            assert_eq!((volume.halo_rows, volume.backward_rows, volume.messages), (4, 4, 4), "{found:?}");
            assert!(volume.parts.iter().all(|part| part.vertices == 8));
        }
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
            for (by, weights) in [("metis", "rows"), ("metis", "edges"), ("metis-vol", "rows"), ("metis-vol", "edges")]
            {
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
        (&[dst, "--parts", "2", "--by", "metis", "--weights", "foo"], 2, "rows or edges"),
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

/// Opens a relabelled dataset after a change.
fn opened(change: impl FnOnce(&Path)) -> Result<Dataset, String> {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    partition::write(&dense(), &with_an_empty_part(), None, &set).unwrap();
    change(&set);
    Dataset::open(&set).map_err(|error| error.to_string())
}

#[test]
fn a_permutation_that_is_none_is_refused() {
    let good = with_an_empty_part().relabelling().0.old_of_new().to_vec();
    let put = |ids: &[u32]| {
        let bytes = npy("<u4", &format!("({},)", ids.len()), bytemuck::cast_slice(ids));
        opened(|set| fs::write(set.join("permutation.npy"), bytes).unwrap())
    };
    assert!(put(&good).is_ok());
    let wide: Vec<i64> = good.iter().map(|&id| i64::from(id)).collect();
    let wide = npy("<i8", "(12,)", bytemuck::cast_slice(&wide));
    assert!(opened(|set| fs::write(set.join("permutation.npy"), wide).unwrap()).is_ok());
    let changed = |at: usize, id: u32| {
        let mut ids = good.clone();
        ids[at] = id;
        put(&ids).map(|_| ()).unwrap_err()
    };
    let manifest = |from: &'static str, to: &'static str| {
        opened(move |set| {
            let path = set.join("dataset.json");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{text}");
            fs::write(path, text.replace(from, to)).unwrap();
        })
        .map(|_| ())
        .unwrap_err()
    };
    for (error, words) in [
        (changed(3, good[1]), &["permutation.npy: element 3 is 3, expected each vertex once, 0 to 11"][..]),
        (changed(11, 12), &["element 11 is 12"]),
        (changed(0, u32::MAX), &["element 0 is 4294967295"]),
        (put(&good[..11]).map(|_| ()).unwrap_err(), &["permutation.npy has shape [11]", "12 rows"]),
        (put(&[]).map(|_| ()).unwrap_err(), &["permutation.npy has shape [0]"]),
        (
            opened(|set| fs::remove_file(set.join("permutation.npy")).unwrap()).map(|_| ()).unwrap_err(),
            &["permutation.npy is missing", "dataset.json says that the vertices were relabelled"],
        ),
        (
            manifest(",\n  \"permutation\": \"permutation.npy\"", ""),
            &["says permutation nothing, but there is a permutation.npy"],
        ),
        (manifest("permutation.npy", "../permutation.npy"), &["says permutation `../permutation.npy`"]),
        (manifest("\"permutation.npy\"", "7"), &["dataset.json is not a valid dataset description"]),
    ] {
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
    // The identity is a permutation, but the graph ids do not ascend in its order.
    let error = put(&(0..N as u32).collect::<Vec<_>>()).map(|_| ()).unwrap_err();
    assert!(error.contains("graph_ids.npy: the graph id of vertex"), "{error}");
}

#[test]
fn a_dataset_that_changes_while_it_is_partitioned_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let [set, dst] = ["set", "dst"].map(|name| folder.path().join(name));
    dense().write(&set).unwrap();
    let data = Dataset::open(&set).unwrap();
    let labels = fs::read(set.join("labels.npy")).unwrap();
    fs::remove_file(set.join("labels.npy")).unwrap();
    fs::write(set.join("labels.npy"), labels).unwrap();
    let error = partition::write(&data, &with_an_empty_part(), Some(&set), &dst).unwrap_err().to_string();
    assert!(error.contains("labels.npy") && error.contains("while it was in use"), "{error}");
    assert!(!dst.exists() && folder.path().read_dir().unwrap().count() == 1);
}
