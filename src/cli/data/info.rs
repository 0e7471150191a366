//! The description of a dataset, for people.

use crate::cli::output::{count, percent};
use crate::dataset::{DegreeRange, EdgeWeightInfo, Info};

/// Returns the rows of the table that describes a dataset.
pub(super) fn info_rows(info: &Info) -> Vec<(&'static str, String)> {
    let degree = &info.degree;
    let mut rows = vec![
        ("name", info.name.clone()),
        ("vertices", count(info.vertices as u64)),
        ("edges", format!("{} ({})", count(info.edges as u64), if info.directed { "directed" } else { "undirected" })),
        ("self-loops", count(info.self_loops as u64)),
        ("repeated edges", count(info.duplicate_edges as u64)),
        ("isolated vertices", count(info.isolated as u64)),
        (
            "in-degree",
            format!("{} to {}, median {}, mean {:.2}", degree.min, count(degree.max), degree.median, degree.mean),
        ),
        (
            "skew",
            format!(
                "{} of the edges at 1 % of the vertices, Gini {:.2}",
                percent(Some(info.skew.top_percent_share)),
                info.skew.gini
            ),
        ),
    ];
    rows.push(("edge weights", info.edge_weights.as_ref().map_or_else(|| "none".into(), weights)));
    if let Some(graphs) = info.graphs {
        rows.push(("graphs", count(graphs as u64)));
    }
    if info.relabelled {
        rows.push(("vertex order", "relabelled: permutation.npy has the original ids".into()));
    }
    rows.push(match &info.features {
        Some(f) => ("features", format!("{} {}, {} non-zero", count(f.width as u64), f.kind, percent(Some(f.density)))),
        None => ("features", "none".into()),
    });
    if let Some(f) = &info.features {
        rows.push(("feature norm", f.norm.to_string()));
    }
    rows.push(match &info.labels {
        Some(l) => {
            let (classes, kind, labelled) = (l.classes, l.kind, count(l.labelled as u64));
            let names = l.class_names.as_deref().map_or_else(String::new, class_names);
            ("labels", format!("{classes} classes ({kind}){names}, {labelled} vertices; {}", balance(&l.per_class)))
        }
        None => ("labels", "none".into()),
    });
    for split in &info.splits {
        let labelled = match split.vertices - split.labelled {
            0 => String::new(),
            missing => format!(", {} without a label", count(missing as u64)),
        };
        rows.push((
            split.name,
            format!("{} vertices{labelled}; {}", count(split.vertices as u64), balance(&split.per_class)),
        ));
    }
    rows.extend(info.source.iter().map(|source| ("source", source.clone())));
    rows.extend(info.licence.iter().map(|licence| ("licence", licence.clone())));
    rows
}

/// Formats the statistics of edge weights.
fn weights(info: &EdgeWeightInfo) -> String {
    let EdgeWeightInfo { min, max, mean, negative, zero, symmetric } = info;
    let counts: String = [(negative, "negative"), (zero, "zero")]
        .into_iter()
        .filter(|&(&number, _)| number > 0)
        .map(|(&number, what)| format!(", {} {what}", count(number as u64)))
        .collect();
    let symmetric = if *symmetric { "symmetric" } else { "not symmetric" };
    format!("{min} to {max}, mean {mean:.4}{counts}, {symmetric}")
}

/// Formats the distribution of in-degrees as an aligned table with bars.
pub(super) fn histogram(info: &Info) -> String {
    const WIDEST: usize = 40;
    let name = |range: &DegreeRange| match range.least == range.most {
        true => range.least.to_string(),
        false => format!("{}-{}", range.least, range.most),
    };
    let names: Vec<String> = info.degree_histogram.iter().map(name).collect();
    let counts: Vec<String> = info.degree_histogram.iter().map(|range| count(range.vertices as u64)).collect();
    let widest = |texts: &[String], title: &str| texts.iter().map(String::len).max().unwrap_or(0).max(title.len());
    let (name_width, count_width) = (widest(&names, "in-degree"), widest(&counts, "vertices"));
    let most = info.degree_histogram.iter().map(|range| range.vertices).max().unwrap_or(1).max(1);
    let mut text = format!("\n{:>name_width$}  {:>count_width$}    share", "in-degree", "vertices");
    for ((range, name), count) in info.degree_histogram.iter().zip(&names).zip(&counts) {
        let share = 100.0 * range.vertices as f64 / info.vertices as f64;
        // Rounding up gives every non-empty range a visible bar.
        let bar = "#".repeat((range.vertices * WIDEST).div_ceil(most));
        let line = format!("\n{name:>name_width$}  {count:>count_width$}  {share:>5.1} %  {bar}");
        text.push_str(line.trim_end());
    }
    text
}

/// Formats the first names of classes.
fn class_names(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut shown: Vec<String> = names.iter().take(SHOWN).map(|name| name.escape_debug().to_string()).collect();
    if names.len() > SHOWN {
        shown.push("...".into());
    }
    format!(": {}", shown.join(", "))
}

/// Formats the sizes of the smallest and the largest class of a split.
fn balance(per_class: &[usize]) -> String {
    match (per_class.iter().min(), per_class.iter().max()) {
        (Some(least), Some(most)) => format!("{least} to {most} per class"),
        _ => "no classes".into(),
    }
}
