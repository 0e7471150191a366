//! The target figures of a GPU, by name, taken from the results.

use serde_json::{Map, Value, json};

use super::Size;

/// Time limits of epochs, in seconds.
const MOST_SECONDS: [(&str, f64); 2] = [("products_104_256_256_47_epoch_s", 0.15), ("reddit_602_16_41_epoch_s", 0.012)];

/// Maximum error of the cost model's prediction for a part, as a share of the measured time.
const MOST_ERROR: f64 = 0.10;

/// Returns each figure by its name, and under `met` whether the figures with a limit meet it. `ci/gpu_peers.py` adds
/// the figures of other frameworks.
pub(super) fn marks(results: &Value, size: Size) -> Value {
    let rows = |part: &str| results[part]["rows"].as_array().cloned().unwrap_or_default();
    let mut marks = Map::new();
    for name in ["device_bytes_per_s", "to_device_bytes_per_s", "to_host_bytes_per_s"] {
        insert(&mut marks, name.into(), &results["device"][name]);
    }
    insert(&mut marks, "launch_s".into(), &results["device"]["launch_seconds"]["one_behind_the_other"]);
    for row in rows("gathers") {
        let of = |what: &str| format!("gather_{}_{}_{what}", text(&row["shape"]), row["width"]);
        insert(&mut marks, of("s"), &row["seconds"]);
        insert(&mut marks, of("share_of_bandwidth"), &row["share_of_bandwidth"]);
    }
    for row in rows("epochs") {
        insert(
            &mut marks,
            format!("{}_{}_epoch_s", text(&row["shape"]), layers(&row["network"])),
            &row["epoch_seconds"],
        );
    }
    for row in rows("bf16") {
        let of = |what: &str| format!("{}_{}_bf16_{what}", text(&row["shape"]), layers(&row["network"]));
        insert(&mut marks, of("epoch_s"), &row["epoch_seconds"]);
        insert(&mut marks, of("loss_difference"), &row["loss_difference"]);
    }
    for row in rows("capacity") {
        let of = |what: &str| format!("capacity_{}_{}_{what}", row["percent"], text(&row["policy"]));
        insert(&mut marks, of("epoch_s"), &row["epoch_seconds"]);
        let bytes = |what: &str| row[what].as_u64();
        if let (Some(in_bytes), Some(out_bytes)) = (bytes("bytes_to_device"), bytes("bytes_to_host")) {
            marks.insert(of("bytes"), json!(in_bytes + out_bytes));
        }
        insert(&mut marks, of("copies_hidden_share"), &row["noted_epoch"]["copies_hidden_share"]);
    }
    for row in rows("splits") {
        let of = |what: &str| format!("split_{}_{}_{what}", text(&row["shape"]), text(&row["partition"]));
        insert(&mut marks, of("slowest_over_mean"), &row["slowest_over_mean"]);
        insert(&mut marks, of("model_error"), &row["errors_of_profile_and_learned"][1]);
    }
    let met = met(&marks, size);
    marks.insert("met".into(), met);
    Value::Object(marks)
}

/// Returns which limits are met. Times of tiny graphs are not compared.
fn met(marks: &Map<String, Value>, size: Size) -> Value {
    let mut met = Map::new();
    for (name, most) in MOST_SECONDS {
        met.insert(name.into(), json!({ "at_most": most, "met": kept(marks.get(name), most, size) }));
    }
    for shape in ["reddit", "products"] {
        let name = format!("split_{shape}_learned_model_error");
        let kept = kept(marks.get(&name), MOST_ERROR, size);
        met.insert(name, json!({ "at_most": MOST_ERROR, "met": kept }));
    }
    Value::Object(met)
}

/// Returns whether a value is within its limit; `None` if it was not measured or the graphs are tiny.
fn kept(value: Option<&Value>, most: f64, size: Size) -> Option<bool> {
    value.and_then(Value::as_f64).filter(|_| size == Size::Published).map(|value| value <= most)
}

fn insert(marks: &mut Map<String, Value>, name: String, value: &Value) {
    if !value.is_null() {
        marks.insert(name, value.clone());
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("unnamed")
}

fn layers(network: &Value) -> String {
    let widths = network.as_array().cloned().unwrap_or_default();
    widths.iter().map(Value::to_string).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::marks as marks_of;
    use super::*;

    #[test]
    fn marks_are_what_was_measured_and_nothing_else() {
        let results = json!({
            "device": { "device_bytes_per_s": 4e12, "launch_seconds": { "one_behind_the_other": 5e-6 } },
            "epochs": { "rows": [
                { "shape": "reddit", "network": [602, 16, 41], "epoch_seconds": 0.02 },
                { "shape": "products", "network": [104, 256, 256, 47], "epoch_seconds": 0.14 },
            ], "left_out": [] },
            "splits": { "rows": [{ "row": "reddit learned", "error": "no", "ok": false }], "left_out": [] },
        });
        let marks = marks_of(&results, Size::Published);
        assert_eq!(marks["reddit_602_16_41_epoch_s"], 0.02);
        assert_eq!(marks["met"]["reddit_602_16_41_epoch_s"]["met"], false);
        assert_eq!(marks["met"]["products_104_256_256_47_epoch_s"]["met"], true);
        assert_eq!(marks["met"]["split_reddit_learned_model_error"]["met"], Value::Null);
        assert_eq!(marks["launch_s"], 5e-6);
        assert!(marks.get("to_host_bytes_per_s").is_none());
        let tiny = marks_of(&results, Size::Tiny);
        assert_eq!(tiny["met"]["products_104_256_256_47_epoch_s"]["met"], Value::Null);
    }
}
