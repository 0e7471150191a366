//! Edge weights from the arrays of archives.

use std::fs;

use lapidary::dataset::import::{EdgeWeights, Format, Options};

use crate::common::weights::{DROP, KEEP, Source, dropped, edges, file, floats, ints, plain, with};
use crate::common::{archive, npy};

/// An archive of the in-edges 0 -> 1, 2 -> 1, 1 -> 2, out of order.
fn csr(more: &[(&str, Vec<u8>)]) -> Source {
    let arrays = [("indptr.npy", ints(&[0, 0, 2, 3])), ("indices.npy", ints(&[2, 0, 1]))];
    file("g.npz", archive(&[&arrays[..], more].concat()))
}

/// An archive of the edges 2 -> 1, 0 -> 1, 1 -> 2.
fn listed(more: &[(&str, Vec<u8>)]) -> Source {
    let ends = [2i64, 0, 1, 1, 1, 2];
    let arrays = [("edge_index.npy", npy("<i8", "(2, 3)", bytemuck::cast_slice(&ends)))];
    file("g.npz", archive(&[&arrays[..], more].concat()))
}

#[test]
fn values_of_archives_are_weights() {
    let want = [(0, 1, 0.5), (2, 1, 4.0), (1, 2, -1.0)];
    let values = floats(&[4.0, 0.5, -1.0]);
    let doubles: Vec<u8> = npy("<f8", "(3, 1)", bytemuck::cast_slice(&[4.0f64, 0.5, -1.0]));
    for (name, bytes) in [("data", &values), ("edge_weight", &values), ("edge_weights", &values), ("data", &doubles)] {
        let source = csr(&[(&format!("{name}.npy"), bytes.clone())]);
        for options in [plain(), KEEP, with(EdgeWeights::Column(name)), with(EdgeWeights::Column("1"))] {
            let got = source.read(Format::Npz, &options);
            assert_eq!(edges(&got.dataset), want);
            assert_eq!(got.report.edge_weights.as_deref(), Some(name));
            assert!(got.report.notes.is_empty(), "{:?}", got.report.notes);
        }
        assert!(source.read(Format::Npz, &DROP).report.values_dropped == 3);
    }
    for name in ["edge_weight", "edge_weights"] {
        let got = listed(&[(&format!("{name}.npy"), values.clone())]).read(Format::Npz, &plain());
        assert_eq!(edges(&got.dataset), want);
    }
    // Values of 1 say nothing, unless they are asked for.
    let ones = csr(&[("data.npy", ints(&[1, 1, 1]))]);
    dropped(&ones.read(Format::Npz, &plain()), 0, "");
    assert_eq!(edges(&ones.read(Format::Npz, &KEEP).dataset), [(0, 1, 1.0), (2, 1, 1.0), (1, 2, 1.0)]);
    for source in [csr(&[]), listed(&[])] {
        source.refused(Format::Npz, &KEEP, &["`keep`", "has no values of edges"]);
        source.refused(Format::Npz, &with(EdgeWeights::Column("2")), &["`2`", "has no values of edges"]);
        source.refused(Format::Npz, &with(EdgeWeights::Column("w")), &["`w`", "an array of"]);
    }
    let options = Options { symmetrise: Some(true), ..plain() };
    let got = csr(&[("data.npy", values)]).read(Format::Npz, &options);
    assert_eq!(edges(&got.dataset), [(1, 0, 0.5), (0, 1, 0.5), (2, 1, 1.5), (1, 2, 1.5)]);
}

#[test]
fn attributes_of_edges_are_kept_only_if_asked_for() {
    let one = listed(&[("edge_attr.npy", floats(&[4.0, 0.5, -1.0]))]);
    dropped(&one.read(Format::Npz, &plain()), 0, "edge_attr was left out");
    let want = [(0, 1, 0.5), (2, 1, 4.0), (1, 2, -1.0)];
    assert_eq!(edges(&one.read(Format::Npz, &KEEP).dataset), want);
    assert_eq!(edges(&one.read(Format::Npz, &with(EdgeWeights::Column("edge_attr"))).dataset), want);
    let cells: [f32; 6] = [4.0, 7.0, 0.5, 8.0, -1.0, 9.0];
    let wide = listed(&[("edge_attr.npy", npy("<f4", "(3, 2)", bytemuck::cast_slice(&cells)))]);
    assert_eq!(edges(&wide.read(Format::Npz, &with(EdgeWeights::Column("1"))).dataset), want);
    let got = wide.read(Format::Npz, &with(EdgeWeights::Column("2")));
    assert_eq!(edges(&got.dataset), [(0, 1, 8.0), (2, 1, 7.0), (1, 2, 9.0)]);
    assert_eq!(got.report.edge_weights.as_deref(), Some("column 2 of edge_attr"));
    wide.refused(Format::Npz, &KEEP, &["1 to 2", "several columns"]);
    wide.refused(Format::Npz, &with(EdgeWeights::Column("3")), &["1 to 2"]);
}

#[test]
fn damaged_values_of_archives_are_refused() {
    for (bad, words) in [
        (floats(&[1.0, f32::NAN, 1.0]), ["[data]: element 1 is NaN", "finite weight"]),
        (floats(&[1.0, 2.0, f32::INFINITY]), ["[data]: element 2 is inf", "finite weight"]),
        (npy("<f8", "(3,)", bytemuck::cast_slice(&[1e300f64, 2.0, 3.0])), ["element 0 is inf", "finite weight"]),
        (floats(&[2.0, 1.0]), ["[data] has shape [2]", "[3] (one weight per edge)"]),
        (floats(&[2.0; 4]), ["[data] has shape [4]", "[3] (one weight per edge)"]),
        (npy("<f4", "(3, 2)", bytemuck::cast_slice(&[2.0f32; 6])), ["shape [3, 2]", "[3] (one weight per edge)"]),
        (npy("<f4", "()", bytemuck::cast_slice(&[2.0f32])), ["shape []", "[3] (one weight per edge)"]),
        (floats(&[2.0; 3])[..70].to_vec(), ["[data]", ""]),
        (npy("<c8", "(3,)", bytemuck::cast_slice(&[2.0f32; 6])), ["'<c8'", "floats"]),
        (b"text".to_vec(), ["[data]", ".npy"]),
    ] {
        csr(&[("data.npy", bad.clone())]).refused(Format::Npz, &plain(), &words);
        if words[0].contains("element") {
            // Values that are left out need not be finite.
            assert!(csr(&[("data.npy", bad)]).read(Format::Npz, &DROP).dataset.edge_weights().is_none());
        }
    }
    // Bad offsets and sources are found with weights, too.
    let values = ("data.npy", floats(&[2.0; 3]));
    for (indptr, indices) in [([0, 2, 1, 3], [0, 1, 2]), ([0, 1, 2, 4], [0, 1, 2]), ([0, 1, 2, 3], [0, 1, 3])] {
        let arrays = [("indptr.npy", ints(&indptr)), ("indices.npy", ints(&indices)), values.clone()];
        file("g.npz", archive(&arrays)).refused(Format::Npz, &plain(), &["g.npz["]);
    }
}

/// A folder of DGL's Reddit with the edges 0 -> 1, 0 -> 1, 2 -> 0.
fn reddit(data: Vec<u8>) -> Source {
    let graph = archive(&[
        ("row.npy", ints(&[0, 0, 2])),
        ("col.npy", ints(&[1, 1, 0])),
        ("data.npy", data),
        ("shape.npy", ints(&[3, 3])),
    ]);
    let mut source = file("reddit_graph.npz", graph);
    let x = npy("<f4", "(3, 1)", bytemuck::cast_slice(&[1f32, 2.0, 3.0]));
    let arrays = [("feature.npy", x), ("label.npy", ints(&[0, 1, 0])), ("node_types.npy", ints(&[1, 2, 3]))];
    fs::write(source.dir.path().join("reddit_data.npz"), archive(&arrays)).unwrap();
    source.path = source.dir.path().into();
    source
}

#[test]
fn values_of_sparse_matrices_are_weights() {
    let got = reddit(floats(&[1.0, 2.0, 5.0])).read(Format::Reddit, &plain());
    assert_eq!(edges(&got.dataset), [(2, 0, 5.0), (0, 1, 3.0)]);
    dropped(&reddit(floats(&[1.0, 2.0, 5.0])).read(Format::Reddit, &DROP), 2, "");
    dropped(&reddit(floats(&[1.0; 3])).read(Format::Reddit, &plain()), 0, "");
    reddit(floats(&[1.0, f32::NAN, 5.0])).refused(Format::Reddit, &plain(), &["[data]: element 1 is NaN"]);
    reddit(floats(&[1.0; 2])).refused(Format::Reddit, &plain(), &["[data] has shape [2]"]);
    // The rows of these matrices are sources: 0 -> 1, 0 -> 2, 1 -> 0, 2 -> 2. Loops are dropped, reverses are added.
    let arrays = [
        ("adj_indptr.npy", ints(&[0, 2, 3, 4])),
        ("adj_indices.npy", ints(&[1, 2, 0, 2])),
        ("adj_data.npy", floats(&[1.0, 4.0, 2.0, 9.0])),
        ("adj_shape.npy", ints(&[3, 3])),
        ("labels.npy", ints(&[0, 1, 0])),
    ];
    let source = file("g.npz", archive(&arrays));
    for kind in [Format::GnnBenchmark, Format::Npz] {
        let got = source.read(kind, &plain());
        assert_eq!(edges(&got.dataset), [(1, 0, 1.5), (2, 0, 4.0), (0, 1, 1.5), (0, 2, 4.0)]);
        assert_eq!(got.report.edge_weights.as_deref(), Some("adj_data"));
    }
    dropped(&source.read(Format::Npz, &DROP), 3, "");
}
