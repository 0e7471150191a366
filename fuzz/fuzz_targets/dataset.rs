//! Whole dataset directories of small arrays, which fit each other or do not.
#![no_main]

use std::fs;
use std::path::Path;

use arbitrary::Arbitrary;
use lapidary::Dataset;
use lapidary::dataset::npy::{Dtype, write};
use lapidary_fuzz::{check_again, scratch};
use libfuzzer_sys::fuzz_target;

/// An array of whole numbers or of floats: its type, its numbers, and whether it has columns.
#[derive(Arbitrary, Debug)]
struct Array {
    dtype: u8,
    columns: u8,
    numbers: Vec<i16>,
    /// One number may be large.
    large: Option<(u8, i64)>,
}

#[derive(Arbitrary, Debug)]
struct Directory {
    /// Sources of the edges of each vertex: a graph that may be valid.
    rows: Vec<[u8; 2]>,
    symmetric: bool,
    features: Option<Array>,
    /// Offsets are then those of valid sparse features, if there is such a file.
    sparse: Option<Vec<u8>>,
    labels: Option<Array>,
    splits: [Option<Array>; 3],
    graph_ids: Option<Array>,
    edge_weights: Option<Array>,
    /// Small numbers are taken for the order of their values, which is a permutation.
    permutation: Option<Vec<u8>>,
    /// These replace the valid graph.
    indptr: Option<Array>,
    indices: Option<Array>,
    manifest: Manifest,
}

#[derive(Arbitrary, Debug)]
struct Manifest {
    name: String,
    directed: bool,
    vertices_off: i8,
    edges_off: i8,
    feature_width: Option<u64>,
    classes: Option<u64>,
    class_names: Option<Vec<String>>,
    feature_norm: Option<bool>,
}

const DTYPES: [Dtype; 8] =
    [Dtype::Bool, Dtype::U8, Dtype::U32, Dtype::I32, Dtype::I64, Dtype::F16, Dtype::F32, Dtype::F64];

fn put(dir: &Path, name: &str, array: &Array, usual: Dtype) {
    let mut numbers: Vec<i64> = array.numbers.iter().map(|&x| i64::from(x)).collect();
    if let (Some((at, value)), false) = (array.large, numbers.is_empty()) {
        let at = usize::from(at) % numbers.len();
        numbers[at] = value;
    }
    // Mostly the type that the file needs.
    let dtype = if array.dtype < 32 { DTYPES[usize::from(array.dtype) % 8] } else { usual };
    let columns = usize::from(array.columns % 5);
    let shape = match columns {
        0 => vec![numbers.len()],
        columns => {
            numbers.truncate(numbers.len() / columns * columns);
            vec![numbers.len() / columns, columns]
        }
    };
    let mut bytes = Vec::new();
    let done = match dtype {
        Dtype::Bool => write(&mut bytes, dtype, &shape, &numbers.iter().map(|&x| (x & 1) as u8).collect::<Vec<_>>()),
        Dtype::U8 => write(&mut bytes, dtype, &shape, &numbers.iter().map(|&x| x as u8).collect::<Vec<_>>()),
        Dtype::U32 | Dtype::I32 => {
            write(&mut bytes, dtype, &shape, &numbers.iter().map(|&x| x as u32).collect::<Vec<_>>())
        }
        Dtype::I64 => write(&mut bytes, dtype, &shape, &numbers),
        Dtype::F16 => write(&mut bytes, dtype, &shape, &numbers.iter().map(|&x| x as u16).collect::<Vec<_>>()),
        Dtype::F32 => {
            let floats: Vec<f32> = numbers.iter().map(|&x| f32::from_bits((x as u32) << 16)).collect();
            write(&mut bytes, dtype, &shape, &floats)
        }
        Dtype::F64 => write(&mut bytes, dtype, &shape, &numbers.iter().map(|&x| x as f64).collect::<Vec<_>>()),
    };
    done.expect("memory takes it");
    fs::write(dir.join(format!("{name}.npy")), bytes).expect("a file can be written");
}

fn put_numbers<T: bytemuck::Pod>(dir: &Path, name: &str, dtype: Dtype, numbers: &[T]) {
    let mut bytes = Vec::new();
    write(&mut bytes, dtype, &[numbers.len()], numbers).expect("memory takes it");
    fs::write(dir.join(format!("{name}.npy")), bytes).expect("a file can be written");
}

fuzz_target!(|input: Directory| {
    let dir = scratch().join("directory");
    if dir.exists() {
        fs::remove_dir_all(&dir).expect("the scratch folder is ours");
    }
    fs::create_dir(&dir).expect("a folder can be made");
    let n = input.rows.len();
    let mut rows: Vec<Vec<u32>> = vec![Vec::new(); n];
    for (v, sources) in input.rows.iter().enumerate() {
        for u in sources.iter().map(|&u| usize::from(u) % n) {
            rows[v].push(u as u32);
            if input.symmetric && u != v {
                rows[u].push(v as u32);
            }
        }
    }
    rows.iter_mut().for_each(|row| row.sort_unstable());
    let mut indptr = vec![0i64];
    indptr.extend(rows.iter().scan(0, |sum, row| {
        *sum += row.len() as i64;
        Some(*sum)
    }));
    let indices = rows.concat();
    put_numbers(&dir, "indptr", Dtype::I64, &indptr);
    put_numbers(&dir, "indices", Dtype::U32, &indices);
    if let Some(columns) = &input.sparse {
        let cells = columns.len() / n.max(1);
        let offsets: Vec<i64> = (0..=n).map(|v| (v * cells) as i64).collect();
        let mut columns: Vec<u32> = columns[..n * cells].iter().map(|&column| u32::from(column % 8)).collect();
        columns.chunks_mut(cells.max(1)).for_each(<[u32]>::sort_unstable);
        let values: Vec<f32> = columns.iter().map(|&column| column as f32 - 1.5).collect();
        put_numbers(&dir, "features_indptr", Dtype::I64, &offsets);
        put_numbers(&dir, "features_indices", Dtype::U32, &columns);
        put_numbers(&dir, "features_values", Dtype::F32, &values);
    }
    if let Some(keys) = &input.permutation {
        let mut order: Vec<u32> = (0..keys.len().min(n) as u32).collect();
        order.sort_by_key(|&v| keys[v as usize]);
        put_numbers(&dir, "permutation", Dtype::U32, &order);
    }
    let [train, val, test] = &input.splits;
    for (name, array, usual) in [
        ("indptr", &input.indptr, Dtype::I64),
        ("indices", &input.indices, Dtype::U32),
        ("edge_weights", &input.edge_weights, Dtype::F32),
        ("features", &input.features, Dtype::F32),
        ("labels", &input.labels, Dtype::I64),
        ("train", train, Dtype::I64),
        ("val", val, Dtype::I64),
        ("test", test, Dtype::I64),
        ("graph_ids", &input.graph_ids, Dtype::I64),
    ] {
        if let Some(array) = array {
            put(&dir, name, array, usual);
        }
    }
    let Manifest { name, directed, vertices_off, edges_off, feature_width, classes, class_names, feature_norm } =
        &input.manifest;
    // Mostly the right number.
    let stated = |right: usize, off: i8| if off > 100 { u64::from(off.unsigned_abs()) } else { right as u64 };
    let json = serde_json::json!({
        "name": name,
        "vertices": stated(n, *vertices_off),
        "edges": stated(indices.len(), *edges_off),
        "directed": directed,
        "feature_width": feature_width,
        "classes": classes,
        "class_names": class_names,
        "permutation": input.permutation.as_ref().map(|_| "permutation.npy"),
        "feature_norm": feature_norm.map(|by_row| if by_row { "row" } else { "none" }),
    });
    fs::write(dir.join("dataset.json"), json.to_string()).expect("a file can be written");
    if let Ok(data) = Dataset::open(&dir) {
        check_again(&data);
    }
});
