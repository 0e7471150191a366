//! Archives. The first byte selects the format, and whether the rest is the archive itself or a list of arrays, whose
//! archive then has right checksums.
#![no_main]

use std::io::{Cursor, Write};

use lapidary::dataset::import::{EdgeWeights, Format, Options};
use lapidary_fuzz::{file, imported, selected};
use libfuzzer_sys::fuzz_target;
use zip::write::SimpleFileOptions;

/// Names of arrays of all formats.
const NAMES: [&str; 35] = [
    "indptr",
    "indices",
    "x",
    "y",
    "train",
    "val",
    "test",
    "edge_index",
    "num_nodes",
    "train_mask",
    "val_mask",
    "test_mask",
    "adj_data",
    "adj_indices",
    "adj_indptr",
    "adj_shape",
    "attr_data",
    "attr_indices",
    "attr_indptr",
    "attr_shape",
    "attr_matrix",
    "labels",
    "label_indices",
    "edges",
    "node_features",
    "node_labels",
    "train_masks",
    "val_masks",
    "test_masks",
    "class_names",
    "node_names",
    "attr_names",
    "data",
    "edge_weight",
    "edge_attr",
];

/// Element types, and their bytes.
const DTYPES: [(&str, usize); 12] = [
    ("|b1", 1),
    ("|u1", 1),
    ("<u4", 4),
    ("<i4", 4),
    ("<i8", 8),
    ("<f2", 2),
    ("<f4", 4),
    ("<f8", 8),
    ("<u8", 8),
    ("<i2", 2),
    ("<U3", 12),
    ("|O", 8),
];

/// Reads a list of arrays: name, type, axes, the length of each axis, data. Data that is missing is 0.
fn archive(mut bytes: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let mut used = Vec::new();
    while let [name, dtype, axes, rest @ ..] = bytes {
        let name = NAMES[usize::from(*name) % NAMES.len()];
        let (descr, size) = DTYPES[usize::from(*dtype & 127) % DTYPES.len()];
        let method = if dtype & 128 == 0 { zip::CompressionMethod::Stored } else { zip::CompressionMethod::Deflated };
        let Some((shape, rest)) = rest.split_at_checked(usize::from(axes % 4)) else { break };
        let order = if axes & 128 == 0 { "False" } else { "True" };
        let elements: usize = shape.iter().map(|&length| usize::from(length)).product();
        let wanted = (elements * size).min(1 << 16);
        let (data, rest) = rest.split_at(wanted.min(rest.len()));
        bytes = rest;
        if used.contains(&name) {
            continue;
        }
        used.push(name);
        let shape: String = shape.iter().map(|length| format!("{length},")).collect();
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}\n");
        let start = zip.start_file(format!("{name}.npy"), SimpleFileOptions::default().compression_method(method));
        let write = start.and_then(|()| {
            zip.write_all(b"\x93NUMPY\x01\x00")?;
            zip.write_all(&(header.len() as u16).to_le_bytes())?;
            zip.write_all(header.as_bytes())?;
            zip.write_all(data)?;
            zip.write_all(&vec![0; wanted - data.len()])?;
            Ok(())
        });
        write.expect("memory takes it");
    }
    zip.finish().expect("memory takes it").into_inner()
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    let kind = [Format::Npz, Format::GnnBenchmark, Format::Heterophilous][first % 3];
    let path = if first & 128 == 0 { file("set.npz", rest) } else { file("set.npz", &archive(rest)) };
    let asked = first & 64 != 0 && kind != Format::Heterophilous;
    let edge_weights = if asked { EdgeWeights::Column("1") } else { EdgeWeights::Guess };
    imported(kind, &path, &Options { split: first >> 5 & 1, edge_weights, ..Options::default() });
});
