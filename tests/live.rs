//! Live predictions against whole passes over the changed data.

use lapidary::model::ModelConfig;
use lapidary::{Arrays, Dataset, Devices, Graph, LivePredictions, Model, Predictor, StorageType, Trainer, Weights};
use ndarray::{Array2, ArrayView2, s};

use crate::common::MODELS;

/// A graph of 90 vertices: a path, whose ends are far from each other, a hub, repeated edges and self-loops; directed or not.
fn graph(directed: bool) -> Graph {
    let path = (0..59u32).map(|v| (v, v + 1));
    let hub = (60..80u32).map(|u| (u, 85));
    let mut edges: Vec<(u32, u32)> = path.chain(hub).chain([(3, 4), (9, 9), (85, 0)]).collect();
    if !directed {
        edges.extend(edges.clone().iter().filter(|(u, v)| u != v).map(|&(u, v)| (v, u)));
    }
    Graph::from_edges(90, &edges).unwrap()
}

/// The features of the graph, of which half are 0 if they are to be sparse.
fn features(sparse: bool) -> Array2<f32> {
    Array2::from_shape_fn((90, 7), |(v, c)| match (v * 3 + c) % 4 < 2 && sparse {
        true => 0.0,
        false => ((v * 31 + c * 17) % 23) as f32 / 23.0 + 0.1,
    })
}

fn dataset(directed: bool, sparse: bool, features: &Array2<f32>) -> Dataset {
    let graph = graph(directed);
    let weights: Vec<f32> = (0..graph.edge_count()).map(|e| 0.25 + (e % 7) as f32).collect();
    let labels: Vec<i64> = (0..90).map(|v| v % 3).collect();
    let arrays = Arrays::new(graph).directed(directed).edge_weights(weights).labels(&labels).train(&[0i64, 1, 2]);
    let arrays = match sparse {
        false => arrays.features(features.clone()),
        true => {
            let (mut indptr, mut indices, mut values) = (vec![0u64], Vec::new(), Vec::new());
            for row in features.rows() {
                for (column, &x) in row.iter().enumerate().filter(|(_, x)| **x != 0.0) {
                    indices.push(column as u32);
                    values.push(x);
                }
                indptr.push(indices.len() as u64);
            }
            arrays.sparse_features(indptr, indices, values, 7)
        }
    };
    Dataset::from_arrays(arrays).unwrap()
}

fn predictor(name: &str, data: &Dataset) -> Predictor {
    let model = Model::from_config(ModelConfig::new(name, &[7, 8, 8, 3])).unwrap();
    Trainer::builder(&model, data).seed(3).build().unwrap().predictor().unwrap().outputs(&["hidden"])
}

#[track_caller]
fn agree(found: &Array2<f32>, want: &Array2<f32>, within: f32, what: &str) {
    let largest = found.iter().zip(want).fold(0f32, |largest, (a, b)| largest.max((a - b).abs() / (1.0 + b.abs())));
    assert!(found.dim() == want.dim() && largest <= within, "{what}: {largest}");
}

/// Changes features twice, and compares with whole passes. Returns the number of vertices of the first update.
#[track_caller]
fn follows(predictor: &Predictor, directed: bool, sparse: bool, within: f32) -> usize {
    let mut rows = features(sparse);
    let mut live = predictor.live(&dataset(directed, sparse, &rows)).unwrap();
    let mut counts = Vec::new();
    for (vertices, add) in [(&[17u32, 4][..], 1.0), (&[85, 17], -0.6), (&[], 0.0)] {
        for &v in vertices {
            rows.row_mut(v as usize).iter_mut().filter(|x| **x != 0.0).for_each(|x| *x += add);
        }
        let changed: Vec<f32> = vertices.iter().flat_map(|&v| rows.row(v as usize).to_vec()).collect();
        let before = live.logits().clone();
        let changed = ArrayView2::from_shape((vertices.len(), 7), &changed).unwrap();
        let update = live.update(vertices, changed).unwrap();
        let want = predictor.run(&dataset(directed, sparse, &rows)).unwrap();
        agree(live.logits(), &want.logits, within, &format!("{vertices:?}, directed {directed}, sparse {sparse}"));
        agree(&live.outputs()["hidden"], &want.outputs["hidden"], within, "hidden");
        for v in (0..90).filter(|v| !update.vertices.contains(&(*v as u32))) {
            assert_eq!(live.logits().row(v), before.row(v), "a row that does not depend on the change");
        }
        assert!(update.vertices.is_sorted());
        counts.push(update.vertices.len());
    }
    assert_eq!(counts[2], 0);
    counts[0]
}

#[test]
fn updates_agree_with_whole_passes_for_every_model() {
    for name in MODELS {
        for (directed, sparse) in [(false, false), (true, false), (false, true), (true, true)] {
            let data = dataset(directed, sparse, &features(sparse));
            let count = follows(&predictor(name, &data), directed, sparse, 1e-5);
            // Three layers: the vertices at most three edges away from 17 and from 4 on the path.
            let want = if directed { 4 + 4 } else { 7 + 7 };
            assert_eq!(count, want, "{name}, directed {directed}");
        }
    }
}

#[test]
fn updates_work_with_little_memory_with_several_devices_and_in_bf16() {
    let data = dataset(false, false, &features(false));
    for name in ["gcn", "sage", "gat"] {
        let predictor = predictor(name, &data);
        follows(&predictor.clone().devices(Devices::sim(2)), false, false, 1e-5);
        follows(
            &predictor.clone().devices(Devices::sim(1)).device_memory("24KiB".parse().unwrap()),
            false,
            false,
            1e-5,
        );
        follows(&predictor.clone().dtype(StorageType::Bf16), false, false, 2e-2);
        follows(&predictor.passes("none".parse().unwrap()), false, false, 1e-5);
    }
}

#[test]
fn updates_agree_with_whole_passes_on_a_graph_without_weights() {
    for name in MODELS {
        for directed in [false, true] {
            let mut rows = features(false);
            let data = |rows: &Array2<f32>| {
                let labels: Vec<i64> = (0..90).map(|v| v % 3).collect();
                let arrays = Arrays::new(graph(directed)).directed(directed).labels(&labels).train(&[0i64, 1, 2]);
                Dataset::from_arrays(arrays.features(rows.clone())).unwrap()
            };
            let predictor = predictor(name, &data(&rows));
            let mut live = predictor.live(&data(&rows)).unwrap();
            rows.row_mut(17).fill(0.3);
            rows.row_mut(9).fill(-0.2);
            live.update(&[9, 17], rows.select(ndarray::Axis(0), &[9, 17]).view()).unwrap();
            let want = predictor.run(&data(&rows)).unwrap();
            agree(live.logits(), &want.logits, 1e-5, &format!("{name}, directed {directed}"));
            agree(&live.outputs()["hidden"], &want.outputs["hidden"], 1e-5, "hidden");
        }
    }
}

#[test]
fn an_update_of_few_vertices_fits_where_the_first_pass_does() {
    let data = dataset(true, false, &features(false));
    for devices in [Devices::cpu(), Devices::cpus(2)] {
        let with =
            |bytes: u64| predictor("gcn", &data).devices(devices.clone()).device_memory(lapidary::ByteSize::b(bytes));
        let (mut too_little, mut enough) = (0, 1 << 20);
        while enough - too_little > 64 {
            let middle = (too_little + enough) / 2;
            match with(middle).live(&data) {
                Ok(_) => enough = middle,
                Err(lapidary::Error::DoesNotFit { .. }) => too_little = middle,
                Err(other) => panic!("{other}"),
            }
        }
        let mut live = with(enough).live(&data).unwrap();
        let update = live.update(&[57], Array2::from_elem((1, 7), 0.5).view());
        assert_eq!(update.unwrap().vertices, [57, 58, 59], "{devices:?} with {enough} bytes");
        // An update of all vertices is cut into as many runs as it takes.
        let rows = features(false).mapv(|x| 0.5 - x);
        let all: Vec<u32> = (0..90).collect();
        assert_eq!(live.update(&all, rows.view()).unwrap().vertices.len(), 90);
        agree(live.logits(), &with(enough).predict(&dataset(true, false, &rows)).unwrap(), 1e-5, "all");
    }
}

#[test]
fn features_normalised_by_row_are_normalised_again() {
    let rows = features(true);
    let data = dataset(false, true, &rows);
    let predictor = predictor("gcn", &data).feature_norm("row".parse().unwrap());
    follows(&predictor, false, true, 1e-5);
}

#[test]
fn all_vertices_can_change_at_once() {
    let mut rows = features(false);
    let predictor = predictor("gin", &dataset(true, false, &rows));
    let mut live = predictor.live(&dataset(true, false, &rows)).unwrap();
    rows.mapv_inplace(|x| 0.5 - x);
    let all: Vec<u32> = (0..90).rev().collect();
    let update = live.update(&all, rows.slice(s![..;-1, ..])).unwrap();
    assert_eq!(update.vertices.len(), 90);
    agree(live.logits(), &predictor.predict(&dataset(true, false, &rows)).unwrap(), 1e-5, "all");
}

#[test]
fn wrong_updates_change_nothing() {
    let data = dataset(false, false, &features(false));
    let mut live: LivePredictions = predictor("gcn", &data).live(&data).unwrap();
    let before = live.logits().clone();
    let row = |x: f32| Array2::from_elem((1, 7), x);
    let two = Array2::from_elem((2, 7), 0.5f32);
    for (vertices, rows, word) in [
        (&[90u32][..], row(0.0), "90"),
        (&[1], Array2::zeros((1, 6)), "7 features"),
        (&[1, 2], row(0.0), "2 vertices"),
        (&[1, 1], two, "each vertex once"),
        (&[1], row(f32::NAN), "finite"),
    ] {
        let error = live.update(vertices, rows.view()).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(live.update(&[], Array2::zeros((0, 7)).view()).unwrap().vertices, Vec::<u32>::new());
    assert_eq!(live.logits(), before);
}

#[test]
fn learned_rows_are_refused() {
    let data = dataset(false, false, &features(false));
    let weights = predictor("gcn", &data).weights().clone();
    let table = lapidary::Weight { shape: vec![90, 7], data: vec![0.1; 630] };
    let weights: Weights = weights.iter().chain([("embedding.weight", &table)]).collect();
    let model = Model::from_config(ModelConfig::new("gcn", &[7, 8, 8, 3])).unwrap();
    let error = Predictor::new(&model, weights, None).unwrap().live(&data).unwrap_err().to_string();
    assert!(error.contains("learned rows"), "{error}");
}
