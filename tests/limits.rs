//! The limits of the system, and files that are none: one error each, exit code 1, and nothing left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::command::LAPIDARY;
use crate::common::{archive, npy};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

/// Runs the command under a limit of the shell, such as `-v 200000`, and returns its exit code, its output and its errors.
fn limited(limit: &str, folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let script = format!("{} exec timeout 120 \"$0\" \"$@\"", if limit.is_empty() { "" } else { limit });
    let mut command = Command::new("sh");
    command.args(["-c", &script, LAPIDARY]).args(args).current_dir(folder).env("RAYON_NUM_THREADS", "2");
    command.env("XDG_CACHE_HOME", "/dev/null");
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    limited("", folder, args)
}

/// Checks that a run failed with one error, whose lines have all of `wanted`.
fn expect_error((code, _, stderr): &(Option<i32>, String, String), wanted: &[&str], what: &str) {
    assert_eq!(*code, Some(1), "{what}: {stderr}");
    assert_eq!(stderr.matches("error: ").count(), 1, "{what}: {stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("memory allocation of"), "{what}: {stderr}");
    for word in wanted {
        assert!(stderr.contains(word), "{what}: no `{word}` in {stderr}");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A folder with a checkpoint in `run`.
fn checkpoint() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let train = ["train", "--data", "builtin:karate", "--epochs", "1", "--checkpoint", "run"];
    assert_eq!(run(folder.path(), &train).0, Some(0));
    folder
}

#[test]
fn a_device_a_pipe_or_a_huge_file_was_read_without_end() {
    let folder = checkpoint();
    let here = folder.path();
    assert!(Command::new("mkfifo").arg(here.join("pipe")).status().unwrap().success());
    fs::create_dir(here.join("folder")).unwrap();
    fs::File::create(here.join("huge")).unwrap().set_len(1 << 40).unwrap();
    fs::create_dir(here.join("set")).unwrap();
    let verbs: [&[&str]; 9] = [
        &["train", "--data", "builtin:karate", "--partition", "FILE"],
        &["plan", "--shape", "9,9,9,9", "--profile", "FILE"],
        &["plan", "--tasks", "FILE"],
        &["infer", "--data", "builtin:karate", "--model", "gcn", "--weights", "FILE"],
        &["data", "generate", "bter", "new", "--degrees", "FILE"],
        &["data", "import", "edges", "FILE", "new"],
        &["data", "import", "npz", "FILE", "new"],
        &["infer", "--data", "builtin:karate", "--checkpoint", "run"],
        &["data", "info", "set"],
    ];
    let files = [
        ("/dev/zero", "a device, not a plain file"),
        ("pipe", "a pipe, not a plain file"),
        ("folder", "a directory, not a plain file"),
        ("huge", ""),
    ];
    for (file, wanted) in files {
        // The file is named, or takes the place of one within a folder.
        for inside in ["run/best/run.json", "run/best/B3SUMS", "set/dataset.json"] {
            let _ = fs::remove_file(here.join(inside));
            std::os::unix::fs::symlink(here.join(file), here.join(inside)).unwrap();
        }
        for verb in verbs {
            let args: Vec<&str> = verb.iter().map(|&arg| if arg == "FILE" { file } else { arg }).collect();
            // A read without end is ended by `timeout`, with another exit code.
            expect_error(&run(here, &args), &[wanted], &args.join(" "));
        }
    }
    assert!(!here.join("new").exists());
}

#[test]
fn a_file_that_does_not_exist_was_called_not_plain() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["edges", "mtx", "npz"] {
        let done = run(folder.path(), &["data", "import", kind, "nowhere", "new"]);
        expect_error(&done, &["nowhere is missing"], kind);
        assert!(!done.2.contains("plain file"), "{}", done.2);
    }
    fs::write(folder.path().join("text"), "").unwrap();
    let done = run(folder.path(), &["data", "info", "text"]);
    expect_error(&done, &["a dataset is a directory"], "a file where a dataset should be");
    std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
    let done = run(folder.path(), &["train", "--partition", "loop"]);
    expect_error(&done, &["symbolic links"], "a circle of links");
}

#[test]
fn full_memory_aborted_the_process() {
    let folder = checkpoint();
    let here = folder.path();
    let before = names_in(here);
    let verbs: [&[&str]; 5] = [
        &["train", "--data", "builtin:planted", "--hidden", "4096", "--epochs", "1"],
        &["data", "generate", "rmat", "new", "--vertices", "8000000"],
        &["data", "generate", "planted", "new", "--vertices", "8000000"],
        &["plan", "--shape", "1000,9000,9,9", "--profile", "h200"],
        &["infer", "--data", "builtin:karate", "--checkpoint", "run"],
    ];
    let mut full = 0;
    // With less, the system cannot even load the program.
    let starts = |limit: &u32| limited(&format!("ulimit -v {limit};"), here, &["--version"]).0 == Some(0);
    let least = (20_000..).step_by(2_000).find(starts).unwrap();
    for verb in verbs {
        for limit in [least, 30_000, 60_000, 120_000, 200_000].into_iter().filter(|&limit| limit >= least) {
            let done = limited(&format!("ulimit -v {limit};"), here, verb);
            if done.0 != Some(0) {
                expect_error(&done, &[], &format!("{limit} KiB: {verb:?}"));
            }
            full += usize::from(done.2.contains("error: the memory is full: the system refuses"));
        }
    }
    assert!(full > 0, "no limit was met");
    assert_eq!(names_in(here), before);
}

#[test]
fn a_system_without_threads_made_it_panic() {
    // Root may start any number, so another user runs the command.
    let own = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "prlimit", "--nproc=1", LAPIDARY]).args(args);
        match command.current_dir("/").env("XDG_CACHE_HOME", "/dev/null").output() {
            Err(error) => (None, String::new(), error.to_string()),
            Ok(Output { status, stdout, stderr }) => {
                (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
            }
        }
    };
    let (code, _, stderr) = own(&["--version"]);
    if code != Some(0) {
        let line = format!("\nSKIPPED: no other user can be had to run without threads: {}\n", stderr.trim());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let verbs: [&[&str]; 3] = [&["train"], &["plan", "--shape", "9,9,9,9"], &["data", "info", "builtin:karate"]];
    for verb in verbs {
        expect_error(&own(verb), &["cannot start", "ulimit -u"], &format!("{verb:?}"));
    }
}

#[test]
fn a_file_beyond_its_limit_killed_the_process_and_left_temporary_files() {
    let folder = checkpoint();
    let here = folder.path();
    fs::create_dir(here.join("out")).unwrap();
    let edges: String = (0..30_000).map(|i| format!("{} {}\n", i % 3000, (i * 7) % 2999)).collect();
    fs::write(here.join("edges.txt"), edges).unwrap();
    let planted = ["train", "--data", "builtin:planted", "--epochs", "1", "--checkpoint", "planted"];
    assert_eq!(run(here, &planted).0, Some(0));
    let verbs: [&[&str]; 5] = [
        &["train", "--data", "builtin:planted", "--epochs", "1", "--hidden", "256", "--checkpoint", "out/run"],
        &["data", "generate", "rmat", "out/set", "--vertices", "10000"],
        &["data", "import", "edges", "edges.txt", "out/set"],
        &["infer", "--data", "builtin:planted", "--checkpoint", "planted", "--out", "out/logits.npy"],
        &["train", "--data", "builtin:planted", "--epochs", "200", "--trace", "out/trace.json"],
    ];
    for verb in verbs {
        let done = limited("ulimit -f 40;", here, verb);
        expect_error(&done, &["File too large"], &format!("{verb:?}"));
        let left = names_in(&here.join("out"));
        assert!(left.is_empty() || left == ["run"] && names_in(&here.join("out/run")).is_empty(), "{verb:?}: {left:?}");
        let _ = fs::remove_dir(here.join("out/run"));
    }
}

#[test]
fn escape_sequences_in_names_reached_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("edges.csv"), "source,target\na\u{1b}[31m,b\nb,c\u{7}\u{9b}2J\n").unwrap();
    let mut shown = vec![run(here, &["data", "import", "edges", "edges.csv", "set"])];
    let description = here.join("set/dataset.json");
    let text = fs::read_to_string(&description)
        .unwrap()
        .replace("\"edges\",", "\"Zürich \\u001b]0;title\\u0007\\nerror: none\",");
    fs::write(&description, text).unwrap();
    shown.push(run(here, &["data", "info", "set"]));
    shown.push(run(here, &["train", "--data", "set"]));
    let tasks = r#"{"tensors":[{"name":"x\u001b[2J","bytes":3},{"name":"y","bytes":3}],
        "ops":[{"name":"f\u001b[2J\n","inputs":["x\u001b[2J"],"outputs":["y"]}]}"#;
    fs::write(here.join("tasks.json"), tasks).unwrap();
    shown.push(run(here, &["plan", "--tasks", "tasks.json", "--explain"]));
    fs::write(here.join("tasks.json"), tasks.replace("bytes", "by\u{9b}tes")).unwrap();
    shown.push(run(here, &["plan", "--tasks", "tasks.json"]));
    shown.push(run(here, &["infer", "--data", "builtin:karate", "--model", "gcn", "--weights", "no\u{1b}[1mne"]));
    assert!(!shown.iter().any(|(_, _, stderr)| stderr.lines().any(|line| line.starts_with("error: none"))));
    for (_, stdout, stderr) in &shown {
        let raw = |c: char| c.is_control() && c != '\n';
        assert!(!stdout.contains(raw) && !stderr.contains(raw), "{stdout:?} {stderr:?}");
    }
    assert!(shown[1].1.contains("Zürich \\u{1b}]0;title\\u{7}\\nerror: none"), "{}", shown[1].1);
    assert!(shown[3].1.contains("f\\u{1b}[2J\\n"), "{}", shown[3].1);
    assert!(shown[5].2.contains("no\\u{1b}[1mne"), "{}", shown[5].2);
}

#[test]
fn a_wrong_id_of_a_split_file_was_blamed_on_the_edges() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("edges.txt"), "0 1\n1 2\n2 0\n").unwrap();
    let put = |name: &str, ids: &[i64]| {
        fs::write(here.join(name), npy("<i8", &format!("({},)", ids.len()), bytemuck::cast_slice(ids))).unwrap();
    };
    let import = |flags: &[&str]| run(here, &[&["data", "import", "edges", "edges.txt", "new"], flags].concat());
    put("twice.npy", &[0, 0]);
    put("outside.npy", &[9]);
    put("class.npy", &[0, 1, -7]);
    fs::write(here.join("nan.npy"), npy("<f4", "(3,1)", bytemuck::cast_slice(&[0f32, f32::NAN, 1.0]))).unwrap();
    for (flag, file, wanted) in [
        ("--train", "twice.npy", "vertex 0 is listed twice"),
        ("--test", "outside.npy", "id 9"),
        ("--labels", "class.npy", "-7"),
        ("--features", "nan.npy", "NaN"),
    ] {
        let done = import(&[flag, file]);
        expect_error(&done, &[&format!("error: {file}: "), wanted], flag);
    }
    put("first.npy", &[0, 1]);
    put("second.npy", &[1]);
    let done = import(&["--train", "first.npy", "--val", "second.npy"]);
    expect_error(&done, &["vertex 1 is in both first.npy and second.npy"], "overlapping");
}

#[test]
fn a_small_archive_that_claims_many_vertices_was_believed() {
    let folder = tempfile::tempdir().unwrap();
    let ints = |values: &[i64]| npy("<i8", &format!("({},)", values.len()), bytemuck::cast_slice(values));
    let zeros = |len: usize| npy("<i8", &format!("({len},)"), &vec![0; 8 * len]);
    let many = 20_000_000;
    let graph = [("indptr.npy", ints(&[0, 1, 2])), ("indices.npy", ints(&[1, 0]))];
    let with = |name: &'static str, bytes: Vec<u8>| archive(&[&graph[..], &[(name, bytes)]].concat());
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("npz", archive(&[("indptr.npy", zeros(many)), ("indices.npy", ints(&[0]))]), "claims 19999999 vertices"),
        ("npz", archive(&[("indptr.npy", zeros(many))]), "[indices]: is missing"),
        ("npz", with("y.npy", zeros(many)), "expected 2 rows"),
        ("npz", with("train.npy", zeros(many)), "at most 2 ids"),
        (
            "npz",
            archive(&[("edge_index.npy", npy("<i8", "(2, 1)", &[0; 16])), ("num_nodes.npy", zeros(many))]),
            "expected one number",
        ),
        (
            "npz",
            archive(&[("edge_index.npy", npy("<i8", "(2, 1)", &[0; 16])), ("num_nodes.npy", ints(&[1 << 30]))]),
            "claims 1073741824 vertices",
        ),
    ];
    for (kind, bytes, wanted) in cases {
        assert!(bytes.len() < 1 << 19);
        fs::write(folder.path().join("small.npz"), bytes).unwrap();
        // The arrays need 160 MB.
        let done = limited("ulimit -v 150000;", folder.path(), &["data", "import", kind, "small.npz", "new"]);
        expect_error(&done, &[wanted], wanted);
    }
}

#[test]
fn a_small_compressed_text_of_repeated_edges_took_memory_for_each() {
    let folder = tempfile::tempdir().unwrap();
    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    let cycle: String = (0..1000).map(|i| format!("{i} {}\n", (i + 1) % 1000)).collect();
    (0..20_000).for_each(|_| gz.write_all(cycle.as_bytes()).unwrap());
    let bytes = gz.finish().unwrap();
    assert!(bytes.len() < 1 << 20, "{}", bytes.len());
    fs::write(folder.path().join("edges.txt.gz"), bytes).unwrap();
    // One edge takes 4 bytes at least: together they would take 80 MB, beside the blocks of text and the program. The C
    // library may reserve 64 MiB of addresses for each thread, which says nothing about edges.
    let args = ["data", "import", "edges", "edges.txt.gz", "new", "--json"];
    let limit = "export MALLOC_ARENA_MAX=1; ulimit -v 150000;";
    let (code, stdout, stderr) = limited(limit, folder.path(), &args);
    assert_eq!(code, Some(0), "{stderr}");
    for wanted in ["\"edges_listed\":20000000", "\"duplicates\":19999000", "\"edges\":1000"] {
        assert!(stdout.contains(wanted), "{wanted}: {stdout}");
    }
}

#[test]
fn names_in_a_compressed_list_were_held_whatever_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    (0..20).for_each(|_| gz.write_all(&b"a\n".repeat(1 << 20)).unwrap());
    fs::write(folder.path().join("names.gz"), gz.finish().unwrap()).unwrap();
    fs::write(folder.path().join("edges.txt"), "a b\n").unwrap();
    let args = ["data", "import", "edges", "edges.txt", "new", "--vertex-order", "names.gz"];
    let done = limited("ulimit -v 900000;", folder.path(), &args);
    expect_error(&done, &["names: to read on needs"], "names");
}
