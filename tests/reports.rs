//! The pages of `plan --report` and `train --report`: they need no other file, and their numbers are those of the tables.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::command::{run, succeeds};

/// Returns the cells of the rows of all tables of a page.
fn cells(page: &str) -> Vec<Vec<String>> {
    let unescaped = |text: &str| {
        text.replace("<wbr>", "")
            .replace("&nbsp;", " ")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&amp;", "&")
    };
    let rows = page.split("<tr>").skip(1).map(|row| row.split("</tr>").next().unwrap());
    rows.map(|row| row.split("<td>").skip(1).map(|cell| unescaped(cell.split("</td>").next().unwrap())).collect())
        .collect()
}

/// Checks that a page is closed where it is opened, small, and needs nothing from elsewhere.
fn is_one_page(page: &str) {
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("width=device-width"));
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"), "{page}");
    for tag in ["table", "svg", "figure", "tr", "td", "ul", "li", "main", "pre"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
}

#[test]
fn the_page_of_a_plan_has_the_numbers_of_its_tables() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plan.html").to_str().unwrap().to_owned();
    let shape =
        ["plan", "--shape", "20000,400000,64,7", "--hidden", "64", "--profile", "a100", "--device-memory", "8MB"];
    let flags = ["--memory", "all", "--devices", "2", "--report", &out];
    let shown = succeeds(&[&shape[..], &flags].concat());
    let page = fs::read_to_string(&out).unwrap();
    is_one_page(&page);
    // What lives when, two curves, and the parts.
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(page.contains("planned for: 7.63 MiB"), "{page}");
    let mut compared = 0;
    for row in cells(&page) {
        if ["optimal", "roc", "lru", "none"].contains(&row.first().map_or("", String::as_str)) {
            let line = shown.lines().find(|line| line.starts_with(&format!("{} ", row[0]))).unwrap();
            assert_eq!(line.split_whitespace().collect::<Vec<_>>().join(" "), row.join(" "));
            compared += 1;
        }
    }
    assert_eq!(compared, 4);
    assert!(page.contains(shown.lines().last().unwrap()), "the advice is there");
    assert!(page.contains("lapidary plan --shape 20000,400000,64,7"), "it can be run again");
}

#[test]
fn the_page_of_a_plan_with_many_devices_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plan.html").to_str().unwrap().to_owned();
    succeeds(&[
        "plan",
        "--shape",
        "20000,400000,64,7",
        "--profile",
        "a100",
        "--devices",
        "64",
        "--report",
        &out,
        "--json",
    ]);
    let page = fs::read_to_string(&out).unwrap();
    is_one_page(&page);
    assert!(page.contains("and 48 that are not slower"));
}

#[test]
fn the_page_of_a_large_plan_shows_what_lives_when() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plan.html").to_str().unwrap().to_owned();
    let shape =
        ["plan", "--shape", "2449029,123718152,100,47", "--hidden", "256", "--layers", "3", "--profile", "a100"];
    let shown = succeeds(&[&shape[..], &["--device-memory", "2GB", "--report", &out, "--json"]].concat());
    let plan: Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
    let page = fs::read_to_string(&out).unwrap();
    is_one_page(&page);
    let steps = plan["devices"][0]["steps"].as_array().unwrap();
    assert!(steps.len() > 500, "{} steps", steps.len());
    // The largest tensors are those that the plan names, and what is copied of them is what its steps copy.
    let named = |step: &Value, what: &str, name: &str| {
        let names = step[what].as_array().unwrap().iter().map(|found| found.as_str().unwrap());
        names.filter(|found| found.split('[').next().unwrap().trim_end_matches('\'') == name).count()
    };
    let largest: Vec<Vec<String>> =
        cells(&page).into_iter().filter(|row| row.len() == 9 && row[3].ends_with('B')).collect();
    let largest: Vec<&Vec<String>> = largest.iter().filter(|row| row[4].parse::<u32>().is_ok()).collect();
    assert!((12..=20).contains(&largest.len()), "{largest:?}");
    for (place, row) in largest.iter().enumerate() {
        let has_band = page.contains(&format!("<title>{}: {}", row[0], row[3]));
        assert_eq!(has_band, place < 12, "{row:?}");
        let loads: usize = steps.iter().map(|step| named(step, "load", &row[0])).sum();
        assert_eq!(row[6] == "-", loads == 0, "{row:?} and {loads} loads");
    }
    assert!(largest.iter().any(|row| row[6] != "-"), "nothing is moved: {largest:?}");
    assert_eq!(page.matches("class=\"band ").count(), 13);
}

#[test]
fn the_page_of_a_run_has_its_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run.html").to_str().unwrap().to_owned();
    let shown = succeeds(&["train", "--epochs", "12", "--devices", "sim:2", "--explain", "--report", &out]);
    let page = fs::read_to_string(&out).unwrap();
    is_one_page(&page);
    let rows = cells(&page);
    for epoch in 1..=12 {
        assert_eq!(rows.iter().filter(|row| row.len() == 3 && row[0] == epoch.to_string()).count(), 1, "epoch {epoch}");
    }
    let test = rows.iter().find(|row| row.first().is_some_and(|cell| cell == "test accuracy")).unwrap();
    let line = shown.lines().find(|line| line.starts_with("test accuracy")).unwrap();
    assert!(line.ends_with(&test[1]), "{test:?}, {shown}");
    // The loss, the score, the kernels and the parts.
    assert_eq!(page.matches("<svg").count(), 4);
    let gather = rows.iter().find(|row| row.len() == 5 && row[0] == "gather with halo").unwrap();
    let line = shown.lines().find(|line| line.starts_with("gather with halo ")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>().join(" "), gather.join(" "));
    assert!(page.contains("part 0") && page.contains("part 1"));
    let copied = rows.iter().find(|row| row.first().is_some_and(|cell| cell == "to devices")).unwrap();
    assert_eq!(copied[1], copied[2], "measured as planned");
}

#[test]
fn the_page_of_a_run_has_the_metrics_that_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run.html").to_str().unwrap().to_owned();
    let shown = succeeds(&["train", "--epochs", "5", "--metric", "macro-f1,confusion", "--report", &out, "--json"]);
    let measured: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    let page = fs::read_to_string(&out).unwrap();
    is_one_page(&page);
    let rows = cells(&page);
    let macro_f1 = format!("{:.2} %", measured["test_macro_f1"].as_f64().unwrap() * 100.0);
    assert!(rows.contains(&vec!["test macro-F1".into(), macro_f1.clone()]), "{macro_f1}: {rows:?}");
    assert!(page.contains(&format!("Metrics of the test vertices, epoch {}", measured["epoch"])));
    let confusion = measured["test_confusion"].as_array().unwrap();
    assert_eq!(confusion.len(), 7);
    for (class, counts) in confusion.iter().enumerate() {
        let counts = counts.as_array().unwrap().iter().map(Value::to_string);
        let row: Vec<String> = std::iter::once(class.to_string()).chain(counts).collect();
        assert!(rows.contains(&row), "{row:?} is not in {rows:?}");
    }
}

#[test]
fn a_short_run_says_that_its_kernels_were_not_timed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run.html").to_str().unwrap().to_owned();
    succeeds(&["train", "--data", "builtin:karate", "--epochs", "2", "--devices", "cpu", "--report", &out]);
    let page = fs::read_to_string(&out).unwrap();
    is_one_page(&page);
    assert!(page.contains("were not timed") && page.contains("lapidary profile"), "{page}");
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("missing/run.html").to_str().unwrap().to_owned();
    for verb in [&["train"][..], &["plan", "--shape", "1000,5000,8,3", "--profile", "a100"]] {
        let (code, shown, errors) = run(&[verb, &["--report", &out]].concat());
        assert_eq!((code, shown.as_str()), (Some(1), ""));
        assert!(errors.contains("write the report") && errors.contains("missing/run.html"), "{errors}");
    }
    // A run that fails leaves an earlier page as it is.
    let out = folder.path().join("run.html");
    fs::write(&out, "earlier").unwrap();
    let out = out.to_str().unwrap();
    assert_ne!(run(&["train", "--data", "/nonexistent", "--report", out]).0, Some(0));
    assert_eq!(fs::read_to_string(out).unwrap(), "earlier");
    assert_eq!(fs::read_dir(Path::new(out).parent().unwrap()).unwrap().count(), 1);
    let (code, _, errors) = run(&["plan", "--tasks", "x.json", "--report", out]);
    assert!(code == Some(2) && errors.contains("--report"), "{errors}");
}
