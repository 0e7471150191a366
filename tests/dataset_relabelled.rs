//! Datasets whose vertices are relabelled so that parts are consecutive: what follows the vertices, in memory, on disk,
//! in training and in predictions.

use std::fs;
use std::path::Path;

use lapidary::dataset::{Arrays, Dataset, Features, Info, Labels};
use lapidary::graph::Permutation;
use lapidary::partition::{self, Assignment, Volume};
use lapidary::{Devices, Model, Partition, Trainer};
use ndarray::Array2;
use ndarray_npy::read_npy;
use proptest::prelude::*;

use crate::common::command::{run, succeeds};
use crate::common::parted::{N, dense, parts, with_an_empty_part};
use crate::common::{largest_difference, npy, numbers};

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
