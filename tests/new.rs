//! The program that `lapidary new` writes.

use std::fs;

use crate::common::command::{run, succeeds};

#[test]
fn a_program_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("deep/my-training");
    let path = dir.to_str().unwrap();
    let said = succeeds(&["new", path, "--lapidary", env!("CARGO_MANIFEST_DIR")]);
    assert!(said.contains("cargo run --release"), "{said}");
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
    assert!(manifest.contains("name = \"my-training\"") && manifest.contains("path = \"/"), "{manifest}");
    // It is the example, which is compiled with the tests.
    let example = include_str!("../examples/new_program.rs");
    assert_eq!(fs::read_to_string(dir.join("src/main.rs")).unwrap(), example);
    let (code, _, stderr) = run(&["new", path]);
    assert!(
        code == Some(2) && stderr.starts_with("error: DIR cannot be") && stderr.contains("there already"),
        "{stderr}"
    );
    assert_eq!(fs::read_to_string(dir.join("Cargo.toml")).unwrap(), manifest, "nothing is lost");
}

#[test]
fn wrong_names_and_sources_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["1st", "my training", "\"", ".."] {
        let path = folder.path().join(name);
        let (code, _, stderr) = run(&["new", path.to_str().unwrap()]);
        assert!(code == Some(2) && stderr.contains("names the program"), "{name}: {stderr}");
    }
    let path = folder.path().join("fine");
    let (code, _, stderr) = run(&["new", path.to_str().unwrap(), "--lapidary", folder.path().to_str().unwrap()]);
    assert!(code == Some(2) && stderr.contains("no Cargo.toml"), "{stderr}");
    assert!(!path.exists());
    succeeds(&["new", path.to_str().unwrap()]);
    let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
    assert!(manifest.contains(concat!("version = \"", env!("CARGO_PKG_VERSION"))), "{manifest}");
}
