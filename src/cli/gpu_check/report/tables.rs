//! The tables of the report.

use bytesize::ByteSize;
use serde_json::Value;

use super::super::checked::Checked;
use super::super::goals::{epoch_name, gather_name, layers};
use crate::cli::output::{percent, seconds};
use crate::cli::page::Block;

/// Returns what happened in each section.
pub(in super::super) fn overview(checked: &Checked) -> Block {
    let rows = checked.sections().map(|section| {
        let failed = section.rows.len() - section.passed();
        let counts = [section.passed(), failed, section.left_out.len(), section.not_here.len()];
        let [passed, failed, left_out, not_here] =
            counts.map(|count| if count == 0 { "-".into() } else { count.to_string() });
        [section.name.into(), passed, failed, left_out, not_here, seconds(section.seconds)]
    });
    Block::table(["section", "right", "wrong", "left out", "not here", "time"], rows.collect())
}

/// Returns the tables of what was measured, with their headings. Sections without rows have none.
pub(in super::super) fn speed(checked: &Checked) -> Vec<(String, Block)> {
    let figures = checked.figures();
    let peer = |figure: String| {
        let ratio = figures.get(&format!("{figure}_best_peer_over_ours")).and_then(Value::as_f64);
        let time = figures.get(&format!("{figure}_best_peer_s")).and_then(Value::as_f64);
        let name = figures.get(&format!("{figure}_best_peer")).and_then(Value::as_str);
        [
            name.map_or("-".into(), |name| format!("{name} {}", time.map_or("-".into(), seconds))),
            ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
        ]
    };
    let mut tables = Vec::new();
    let mut add = |heading: &str, block: Block| {
        if matches!(&block, Block::Table { rows, .. } if !rows.is_empty()) {
            tables.push((heading.to_owned(), block));
        }
    };
    let rows = |name| checked.rows(name);
    let device = rows("device").flat_map(|row| {
        let rate = |what: &str| row[what].as_f64().map_or("-".into(), |rate| format!("{:.1} GB/s", rate / 1e9));
        [
            ["copies within the GPU".into(), rate("device_bytes_per_s")],
            ["copies to the GPU".into(), rate("to_device_bytes_per_s")],
            ["copies to the host".into(), rate("to_host_bytes_per_s")],
            ["a launch behind another".into(), time(&row["launch_seconds"]["one_behind_the_other"])],
            ["a launch that is waited for".into(), time(&row["launch_seconds"]["each_waited_for"])],
        ]
    });
    add("Rates", Block::table(["what", "measured"], device.collect()));
    let epochs = rows("epochs").map(|row| {
        let [other, ratio] = peer(epoch_name(row));
        [
            text(&row["shape"]),
            layers(&row["network"], "-"),
            time(&row["epoch_seconds"]),
            bytes(&row["peak_bytes"]),
            other,
            ratio,
        ]
    });
    add(
        "Epochs of a GCN",
        Block::table(["graph", "network", "epoch", "peak", "fastest other", "times ours"], epochs.collect()),
    );
    let gathers = rows("gathers").map(|row| {
        let [other, ratio] = peer(gather_name(row));
        let rate = row["bytes_per_s"].as_f64().map_or("-".into(), |rate| format!("{:.0} GB/s", rate / 1e9));
        [text(&row["shape"]), row["width"].to_string(), time(&row["seconds"]), rate, other, ratio]
    });
    add("Gathers", Block::table(["graph", "width", "time", "rate", "fastest other", "times ours"], gathers.collect()));
    let products = rows("products").map(|row| {
        let rate = row["flops_per_s"].as_f64().map_or("-".into(), |rate| format!("{:.1} TFLOP/s", rate / 1e12));
        let error = row["largest_error"].as_f64().map_or("-".into(), |error| format!("{error:.1e}"));
        let columns = layers(&row["columns"], "-");
        [text(&row["shape"]), columns, text(&row["matmul"]), time(&row["seconds"]), rate, error]
    });
    add("Products", Block::table(["rows of", "columns", "in", "time", "rate", "largest error"], products.collect()));
    let bf16 = rows("bf16").map(|row| {
        let network = layers(&row["network"], "-");
        [
            text(&row["shape"]),
            network,
            time(&row["epoch_seconds"]),
            time(&row["f32_epoch_seconds"]),
            bytes(&row["peak_bytes"]),
            bytes(&row["f32_peak_bytes"]),
        ]
    });
    add("Rows in bf16", Block::table(["graph", "network", "epoch", "in f32", "peak", "in f32"], bf16.collect()));
    let capacity = rows("capacity").map(|row| {
        let moved = [&row["bytes_to_device"], &row["bytes_to_host"]].map(Value::as_u64);
        let moved = moved[0].zip(moved[1]).map_or("does not fit".into(), |(a, b)| ByteSize::b(a + b).to_string());
        let hidden = percent(row["noted_epoch"]["copies_hidden_share"].as_f64());
        [
            format!("{} %", row["percent"]),
            text(&row["policy"]),
            row["tiles"].as_u64().map_or("-".into(), |tiles| tiles.to_string()),
            time(&row["epoch_seconds"]),
            moved,
            hidden,
        ]
    });
    add(
        "Less memory than needed",
        Block::table(["memory", "policy", "tiles", "epoch", "copied", "copies hidden"], capacity.collect()),
    );
    let splits = rows("splits").map(|row| {
        let slowest = row["slowest_over_mean"].as_f64().map_or("-".into(), |ratio| format!("{ratio:.3}"));
        [
            text(&row["shape"]),
            text(&row["partition"]),
            time(&row["epoch_seconds"]),
            slowest,
            percent(row["errors_of_profile_and_learned"][1].as_f64()),
        ]
    });
    add(
        "Two shares of the GPU",
        Block::table(["graph", "partition", "epoch", "slowest over mean", "error of the model"], splits.collect()),
    );
    tables
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn time(value: &Value) -> String {
    value.as_f64().map_or("-".into(), seconds)
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or("-".into(), |bytes| ByteSize::b(bytes).to_string())
}
