//! All tests of whole programs and of data, as one test program. Each file of this folder is a module of it. To run one
//! module: `cargo test --test all misread::`.
#![allow(clippy::unwrap_used)]

mod common;

mod attention;
mod bad_input;
mod batch_checkpoints;
mod batches;
mod batches_failures;
mod batches_fetched;
mod batches_ranks;
mod batches_topology;
mod bf16;
mod checkpoints;
mod class_weights;
#[cfg(feature = "parquet")]
mod columnar;
mod dataset_archive_weights;
mod dataset_bad_input;
mod dataset_core;
mod dataset_formats;
mod dataset_generate;
mod dataset_hostile;
mod dataset_import;
mod dataset_import_weights;
mod dataset_info;
mod dataset_partition;
mod dataset_relabelled;
mod dataset_weights;
mod defaults;
mod edge_keys;
mod embedding;
mod embedding_checkpoints;
#[cfg(feature = "cuda")]
mod emulated;
mod exit_codes;
mod faulty_disk;
mod feature_caches;
mod fold;
mod formats;
mod fuse;
#[cfg(feature = "cuda")]
mod gpu_check;
mod gradients;
mod graph;
mod interrupted;
mod learn;
mod library;
#[cfg(unix)]
mod limits;
mod live;
mod made_features;
mod manual;
mod many_graphs;
mod misread;
mod multi_label;
mod new;
mod not_finite;
mod outputs;
mod parity;
mod partition_hypergraph;
mod partition_learned;
mod passes;
mod peers;
mod plan;
mod plan_advice;
mod plan_tasks;
mod predictions;
mod program;
mod ranks;
mod reorder;
mod reports;
mod runtime;
mod sampled_evaluation;
mod seconds;
mod stress;
mod tensorboard;
mod tiles;
mod train;

/// A file without a `mod` line is not compiled, so its tests would never run.
#[test]
fn every_file_of_tests_is_a_module() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, program) in
        [("tests", "all"), ("kernels/tests", "battery"), ("battery/src", "lib"), ("planner/tests", "all")]
    {
        let text = std::fs::read_to_string(root.join(folder).join(program).with_extension("rs")).unwrap();
        for entry in root.join(folder).read_dir().unwrap() {
            let path = entry.unwrap().path();
            let (stem, is_rust) = (path.file_stem().unwrap(), path.extension().is_some_and(|end| end == "rs"));
            let line = format!("mod {};", stem.to_str().unwrap());
            assert!(!is_rust || stem == program || text.lines().any(|l| l == line), "{folder} lacks `{line}`");
        }
    }
}
