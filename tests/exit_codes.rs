//! What scripts rely on: the exit codes, the contents of standard output, and messages that name flags, not options.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::command::{LAPIDARY, run};
use crate::common::endless::{signal, started};

/// Trains on the built-in graph of 34 vertices. Returns a temporary folder, and the checkpoint folder in it.
fn checkpoint() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let run_folder = folder.path().join("run").to_str().unwrap().to_owned();
    let train = ["train", "--data", "builtin:karate", "--epochs", "2", "--checkpoint", &run_folder];
    assert_eq!(run(&train).0, Some(0));
    (folder, run_folder)
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new").to_str().unwrap().to_owned();
    let cases: [(&[&str], &str); 45] = [
        (&["train", "--no-such-flag"], "--no-such-flag"),
        (&["train", "--optimizer", "lion"], "--optimizer cannot be `lion`"),
        (&["train", "--model", "foo"], "(--model)"),
        (&["train", "--norm", "foo"], "(--norm)"),
        (&["train", "--passes", "foo"], "(--passes)"),
        (&["train", "--devices", "foo"], "--devices cannot be `foo`"),
        (&["train", "--devices", "cpu:2", "--exchange", "peer"], "--exchange cannot be `peer`"),
        (&["train", "--exchange", "foo"], "--exchange cannot be `foo`"),
        (&["train", "--partition", "foo"], "--partition cannot be `foo`"),
        (&["train", "--feature-norm", "foo"], "--feature-norm is foo"),
        (&["train", "--lr", "-1"], "--lr cannot be `-1`"),
        (&["train", "--data", "builtin:foo"], "(--data)"),
        (&["train", "--data", "karate"], "there is no such folder; the built-in graph is builtin:karate"),
        (&["data", "info", "planted"], "there is no such folder; the built-in graph is builtin:planted"),
        (&["train", "--heads", "2"], "--heads is for gat and gatv2, not for gcn"),
        (&["train", "--negative-slope", "0.1"], "--negative-slope is for gat and gatv2, not for gcn"),
        (&["train", "--weighted-mean", "count"], "--weighted-mean is for models that average"),
        (&["train", "--model", "gat", "--heads", "0"], "(--heads, --hidden)"),
        (&["train", "--model", "gat", "--heads", "3"], "(--heads, --hidden)"),
        (&["train", "--model", "gat", "--negative-slope", "2"], "(--negative-slope)"),
        (&["train", "--model", "gat", "--attention-dropout", "2"], "--attention-dropout)"),
        (&["train", "--batch", "9", "--fanout", "5"], "give --fanout one for each layer"),
        (&["plan", "--tasks", "tasks.json", "--hidden", "9"], "cannot be used with '--hidden <D>'"),
        (
            &["plan", "--data", "builtin:karate", "--compare", "edges", "--partition", "edges"],
            "'--partition <PARTITION>'",
        ),
        (&["plan", "--data", "builtin:karate", "--batch", "9", "--fanout", "5,5", "--explain"], "'--explain'"),
        (&["plan", "--data", "builtin:karate", "--batch", "9", "--fanout", "5,5", "--strips", "2"], "'--strips <N>'"),
        (&["train", "--early-stop", "2", "--eval-every", "0"], "of which --eval-every 0 makes none"),
        (&["train", "--batch", "9", "--fanout", "5", "--sampler", "foo"], "--sampler cannot be `foo`"),
        (
            &["train", "--batch", "9", "--fanout", "5", "--sampler", "ladies", "--replace"],
            "only neighbor has --replace",
        ),
        (
            &["train", "--batch", "9", "--fanout", "5", "--sampler", "subgraph", "--by-weight"],
            "only neighbor has --by-weight",
        ),
        (
            &["train", "--batch", "9", "--fanout", "5", "--seeds", "even"],
            "--seeds cannot be `even`: write balanced or own",
        ),
        (&["train", "--seeds", "own"], "--batch <N>"),
        (
            &["train", "--batch", "9", "--fanout", "5,5", "--look-ahead", "257"],
            "--look-ahead cannot be `257`: give at most 256 batches",
        ),
        (
            &["train", "--batch", "9", "--fanout", "5,5", "--embedding", "4611686018427387904"],
            "there is no memory for the rows; use fewer numbers",
        ),
        (&["train", "--batch", "9", "--fanout", "5", "--topology", "foo"], "--topology cannot be `foo`: write whole"),
        (&["train", "--batch", "9", "--fanout", "5,5", "--topology", "parts"], "`parts`: it is for several ranks"),
        (&["plan", "--batch", "9", "--fanout", "5", "--topology", "parts"], "--topology"),
        (&["infer", "--data", "builtin:karate"], "--checkpoint"),
        (&["plan", "--shape", "1,2"], "--shape cannot be `1,2`"),
        (&["plan", "--shape", "9,9,9,9", "--devices", "foo"], "--devices cannot be `foo`"),
        (&["plan", "--shape", "9,9,9,9", "--devices", "5000"], "--devices cannot be `5000`"),
        (&["plan", "--shape", "9,9,9,9", "--profile", "foo"], "--profile cannot be `foo`"),
        (&["plan", "--shape", "9,9,9,9", "--devices", "cpu:2", "--exchange", "peer"], "--exchange cannot be `peer`"),
        (&["data", "import", "foo", "src", &new], "`foo`"),
        (&["data", "generate", "planted", &new, "--inside", "2"], "--inside is 2"),
    ];
    for (args, wanted) in cases {
        let (code, stdout, stderr) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {stderr}");
        assert!(stdout.is_empty() && stderr.contains(wanted), "{args:?}: {stderr}");
        assert!(!stderr.contains("option `"), "{args:?}: {stderr}");
    }
    assert!(!Path::new(&new).exists());
}

#[test]
fn what_the_data_does_not_allow_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("parts.json");
    fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    let cases: [(&[&str], &str); 3] = [
        (&["train", "--data", "no/such/folder"], "no/such/folder"),
        (&["train", "--data", "builtin:karate", "--partition", file], "(--partition)"),
        (&["infer", "--checkpoint", "no/such/folder", "--data", "builtin:karate"], "no/such/folder"),
    ];
    for (args, wanted) in cases {
        let (code, stdout, stderr) = run(args);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        assert!(stdout.is_empty() && stderr.contains(wanted), "{args:?}: {stderr}");
    }
}

#[test]
fn what_does_not_fit_exits_with_3_and_the_two_sizes_differ() {
    let train = ["train", "--data", "builtin:karate", "--device-memory"];
    let (code, _, stderr) = run(&[&train[..], &["1kB"]].concat());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("(--device-memory, or --hidden of `train`; with mini-batches, --batch or --device-cache)"),
        "{stderr}"
    );
    let need = stderr.split_once(" bytes)").unwrap().0.rsplit_once('(').unwrap().1;
    let (code, ..) = run(&[&train[..], &[need, "--epochs", "1"]].concat());
    assert_eq!(code, Some(0), "the {need} bytes that were named are not enough");
    let less = (need.parse::<u64>().unwrap() - 1).to_string();
    let (_, _, stderr) = run(&[&train[..], &[&less]].concat());
    let sizes = stderr.split_once(" has ").unwrap().1;
    let (have, rest) = sizes.split_once(" of memory, but this needs ").unwrap();
    assert!(!rest.starts_with(&format!("{have} (")), "{stderr}");
    // If one of several policies fits, the exit code is 0. The plan is printed in both cases.
    let plan = ["plan", "--shape", "100,1000,16,4", "--profile", "a100", "--memory", "all", "--device-memory"];
    let (code, stdout, _) = run(&[&plan[..], &["100"]].concat());
    assert!(code == Some(3) && stdout.contains("optimal does not fit: it needs"), "{stdout}");
    assert_eq!(run(&[&plan[..], &["1MiB"]].concat()).0, Some(0));
    let compare =
        ["plan", "--data", "builtin:karate", "--profile", "a100", "--compare", "edges,random", "--device-memory"];
    let (code, stdout, _) = run(&[&compare[..], &["1kB"]].concat());
    assert!(code == Some(3) && stdout.contains("does not fit"), "{stdout}");
    assert_eq!(run(&[&compare[..], &["1MiB"]].concat()).0, Some(0));
    let (code, _, stderr) =
        run(&["data", "generate", "rmat", "no-such", "--vertices", "4294967294", "--edge-factor", "1e6"]);
    assert!(code == Some(3) && stderr.contains("this host has"), "{stderr}");
}

#[test]
fn results_go_to_standard_output_and_progress_to_standard_error() {
    let (_folder, run_folder) = checkpoint();
    let train = ["train", "--data", "builtin:karate", "--epochs", "2", "--devices", "sim:2", "--explain"];
    let (_, stdout, stderr) = run(&train);
    for result in ["test accuracy", "median epoch", "planned peak", "copies per epoch", "\nto devices"] {
        assert!(stdout.contains(result) && !stderr.contains(result), "{result}: {stdout}");
    }
    for progress in ["34 vertices", "epoch 2/2"] {
        assert!(stderr.contains(progress) && !stdout.contains(progress), "{progress}: {stderr}");
    }
    let (_, stdout, stderr) = run(&["infer", "--checkpoint", &run_folder, "--data", "builtin:karate"]);
    assert!(stdout.contains("forward pass") && stderr.is_empty(), "{stdout}{stderr}");
    let (_, stdout, stderr) = run(&["plan", "--shape", "100,1000,16,4", "--profile", "a100"]);
    assert!(stdout.starts_with("devices") && stdout.contains("uniform") && stderr.is_empty(), "{stdout}{stderr}");
    for flags in [&train[..], &["infer", "--checkpoint", &run_folder, "--data", "builtin:karate"]] {
        let (code, stdout, _) = run(&[flags, &["--json"]].concat());
        assert_eq!(code, Some(0));
        assert!(stdout.lines().all(|line| line.starts_with('{')), "{stdout}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (_folder, run_folder) = checkpoint();
    let train = ["train", "--data", "builtin:karate", "--epochs", "3"];
    let infer = ["infer", "--data", "builtin:karate", "--checkpoint", &run_folder];
    let plan = ["plan", "--shape", "100,1000,16,4", "--profile", "a100", "--memory", "all", "--explain"];
    let info = ["data", "info", "builtin:karate"];
    for args in [&train[..], &infer, &plan, &info] {
        for json in [&[][..], &["--json"]] {
            let mut child = Command::new(LAPIDARY)
                .args(args)
                .args(json)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            drop(child.stdout.take());
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            let status = child.wait().unwrap();
            assert!(status.success(), "{args:?} {json:?}: {status}: {stderr}");
            assert!(!stderr.contains("error") && !stderr.contains("panicked"), "{args:?} {json:?}: {stderr}");
        }
    }
}

/// Nobody reads the lines, but the model is wanted.
#[test]
fn a_run_with_a_checkpoint_goes_on_without_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let args = ["train", "--data", "builtin:karate", "--epochs", "30", "--json", "--checkpoint"];
    let mut child =
        Command::new(LAPIDARY).args(args).arg(&dir).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert!(dir.join("epoch-00000030/model.safetensors").exists());
}

/// Ctrl-C ends a run after the current epoch. The results are still printed.
#[test]
#[cfg(unix)]
fn an_interrupted_run_exits_with_130() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let child = started(&dir);
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8(output.stdout).unwrap().contains("test accuracy"));
}

#[test]
fn plan_takes_the_devices_of_train() {
    let plan = |devices: &[&str]| {
        let shape = ["plan", "--shape", "1000,20000,50,7", "--json", "--device-memory", "1MiB"];
        let (code, stdout, stderr) = run(&[&shape[..], devices].concat());
        assert_eq!(code, Some(0), "{devices:?}: {stderr}");
        stdout
    };
    let a100 = |devices: &'static str, exchange: &'static str| {
        plan(&["--profile", "a100", "--devices", devices, "--exchange", exchange])
    };
    for [name, number] in [["sim:1", "1"], ["sim:3", "3"], ["cuda:0,1,1", "3"]] {
        assert_eq!(a100(name, "auto"), a100(number, "host"), "{name}");
    }
    // In the host's memory nothing is copied, whatever the capacity.
    let stdout = a100("cpu", "auto");
    assert!(stdout.lines().count() > 3, "{stdout}");
    for line in stdout.lines() {
        assert!(line.contains("\"bytes_to_device\":0,\"bytes_to_host\":0,"), "{line}");
    }
    assert_eq!(a100("sim:2", "peer"), a100("2", "peer"));
    // Without --profile, the profile of the devices is used: that of the CPU for a number and for `sim:N`.
    assert_eq!(plan(&["--devices", "sim:2"]), plan(&["--devices", "2", "--profile", "cpu"]));
    if lapidary_kernels::cuda::gpus().is_err() {
        let (code, _, stderr) = run(&["plan", "--shape", "1000,20000,50,7", "--devices", "cuda:0"]);
        assert_eq!(code, Some(1));
        assert!(stderr.contains("--devices is `cuda:0`") && stderr.contains("--profile"), "{stderr}");
    }
}

/// The sums of all models are planned on the devices; what NCCL moves is not counted, and the host adds nothing.
#[test]
fn plan_takes_sums_by_nccl_where_a_run_could() {
    let flags = ["plan", "--shape", "1000,20000,50,7", "--json", "--profile", "a100"];
    let plan = |more: &[&str]| run(&[&flags[..], more].concat());
    let through_host = |sum: &str, model: &str| {
        let (code, stdout, stderr) = plan(&["--devices", "3", "--exchange", "peer", "--sum", sum, "--model", model]);
        assert_eq!(code, Some(0), "{model}: {stderr}");
        let line: serde_json::Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
        line["bytes_to_host"].as_u64().unwrap()
    };
    for model in ["gcn", "gat", "gatv2", "gin", "sage", "graphconv", "commnet", "resgcn"] {
        assert!(through_host("parts", model) > 0, "{model}");
        assert_eq!(through_host("nccl", model), 0, "{model}");
    }
    for refused in [["--devices", "cpu:2"], ["--ranks", "2"]] {
        let (code, _, stderr) = plan(&[&refused[..], &["--sum", "nccl"]].concat());
        assert!(code == Some(2) && stderr.contains("--sum cannot be `nccl`"), "{refused:?}: {stderr}");
    }
    assert!(plan(&["--sum", "mpi"]).2.contains("write parts or nccl"));
}

/// Checks the help of the verbs: no line is wider than 100 columns, and shared flags have the same text.
#[test]
fn help_is_the_same_everywhere_and_names_the_exit_codes() {
    let help = |args: &[&str]| run(&[args, &["--help"]].concat()).1;
    let top = help(&[]);
    for code in ["  0 ", "  1 ", "  2 ", "  3 ", "128 + N"] {
        assert!(top.contains(code), "{top}");
    }
    // Returns the help text of a flag, independent of its line breaks.
    let entry = |text: &str, flag: &str| -> String {
        let from = &text[text.find(&format!("      {flag} ")).unwrap_or_else(|| panic!("no {flag}: {text}"))..];
        let end = from[6..].find("\n      -").map_or(from.len(), |end| end + 6);
        let words: Vec<&str> = from[..end].split("\n\n").next().unwrap().split_whitespace().collect();
        words.join(" ")
    };
    let [train, infer, plan] = ["train", "infer", "plan"].map(|verb| help(&[verb]));
    for flag in ["--exchange", "--partition", "--passes"] {
        let want = entry(&train, flag);
        assert!(want.contains("[default: "), "{want}");
        assert!(entry(&infer, flag) == want && entry(&plan, flag) == want, "{flag}: {want}");
    }
    for text in [&train, &infer, &plan] {
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(entry(text, "--exchange").matches("default").count(), 1);
    }
}

/// A program that embeds the library has no command line. So messages of the libraries name options, and the command
/// replaces them by its flags.
#[test]
fn no_message_of_the_libraries_names_a_flag() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<_> = ["src", "data/src", "kernels/src", "cost_model/src", "planner/src", "arrays/src"]
        .map(|folder| root.join(folder))
        .to_vec();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("src/cli") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                let is_flag = |line: &&str| {
                    let dashes = line.match_indices("--").any(|(at, _)| {
                        line[at + 2..].starts_with(|c: char| c.is_ascii_lowercase())
                            && line[..at].ends_with([' ', '`', '"', '('])
                    });
                    // Options of the NVRTC compiler are not flags of the command.
                    dashes && !line.contains("--gpu-architecture")
                };
                found.extend(code.filter(is_flag).map(|line| format!("{}: {}", path.display(), line.trim())));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
