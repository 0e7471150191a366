//! Completions for shells, and man pages.

use std::fs;
use std::process::Command;

use crate::common::command::{run, succeeds};

#[test]
fn shells_complete_verbs_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = succeeds(&["completions", shell]);
        for word in ["gpu-check", "device-memory", "partition"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    let (code, _, errors) = run(&["completions", "tcsh"]);
    assert!(code == Some(2) && errors.contains("tcsh"), "{errors}");
}

#[test]
fn bash_takes_the_script() {
    let script = format!(
        "{}\nCOMP_WORDS=(lapidary inf); COMP_CWORD=1; _lapidary lapidary inf lapidary; echo \"${{COMPREPLY[@]}}\"",
        succeeds(&["completions", "bash"])
    );
    let Ok(output) = Command::new("bash").args(["--norc", "-c", &script]).output() else {
        eprintln!("SKIPPED: there is no bash");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "infer", "{output:?}");
}

#[test]
fn each_verb_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("new/man1");
    let said = succeeds(&["man", "--out", pages.to_str().unwrap()]);
    assert!(said.contains("lapidary.1"), "{said}");
    for (page, word) in [("lapidary.1", "gpu"), ("lapidary-train.1", "epochs"), ("lapidary-data-import.1", "vertices")]
    {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains(word), "{page}: no {word}");
    }
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let (code, _, errors) = run(&["man", "--out", file.join("man1").to_str().unwrap()]);
    assert!(code == Some(1) && errors.contains("write the man pages"), "{errors}");
}
