//! The main figures by name, and goals for some of them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Size;

/// Time limits of epochs, in seconds.
const MOST_SECONDS: [(&str, f64); 2] = [("products_104_256_256_47_epoch_s", 0.15), ("reddit_602_16_41_epoch_s", 0.012)];

/// Maximum error of the cost model's prediction for a part, as a share of the measured time.
const MOST_ERROR: f64 = 0.10;

/// A goal for a figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Goal {
    pub(super) figure: String,
    pub(super) limit: Limit,
    pub(super) measured: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// Returns whether the goal is met; `None` if the figure was not measured.
    pub(super) fn is_met(&self) -> Option<bool> {
        self.measured.map(|measured| match self.limit {
            Limit::AtMost(most) => measured <= most,
            Limit::AtLeast(least) => measured >= least,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        let (name, limit) = match self.limit {
            Limit::AtMost(limit) => ("at_most", limit),
            Limit::AtLeast(limit) => ("at_least", limit),
        };
        let mut goal = json!({ "figure": self.figure, "measured": self.measured, "met": self.is_met() });
        goal[name] = json!(limit);
        goal
    }
}

/// Returns the main figures of the measurements by name. `speed` has the sections by name.
pub(super) fn figures(speed: &Value) -> Map<String, Value> {
    let mut figures = Map::new();
    for row in rows(speed, "device") {
        for name in ["device_bytes_per_s", "to_device_bytes_per_s", "to_host_bytes_per_s"] {
            insert(&mut figures, name.into(), &row[name]);
        }
        insert(&mut figures, "launch_s".into(), &row["launch_seconds"]["one_behind_the_other"]);
    }
    for row in rows(speed, "gathers") {
        let of = |what: &str| format!("{}_{what}", gather_name(row));
        insert(&mut figures, of("s"), &row["seconds"]);
        insert(&mut figures, of("share_of_bandwidth"), &row["share_of_bandwidth"]);
    }
    for row in rows(speed, "epochs") {
        insert(&mut figures, format!("{}_s", epoch_name(row)), &row["epoch_seconds"]);
    }
    for row in rows(speed, "bf16") {
        let of = |what: &str| format!("{}_{}_bf16_{what}", text(&row["shape"]), layers(&row["network"], "_"));
        insert(&mut figures, of("epoch_s"), &row["epoch_seconds"]);
        insert(&mut figures, of("loss_difference"), &row["loss_difference"]);
    }
    for row in rows(speed, "capacity") {
        let of = |what: &str| format!("capacity_{}_{}_{what}", row["percent"], text(&row["policy"]));
        insert(&mut figures, of("epoch_s"), &row["epoch_seconds"]);
        let bytes = |what: &str| row[what].as_u64();
        if let (Some(in_bytes), Some(out_bytes)) = (bytes("bytes_to_device"), bytes("bytes_to_host")) {
            figures.insert(of("bytes"), json!(in_bytes + out_bytes));
        }
        insert(&mut figures, of("copies_hidden_share"), &row["noted_epoch"]["copies_hidden_share"]);
    }
    for row in rows(speed, "splits") {
        let of = |what: &str| format!("split_{}_{}_{what}", text(&row["shape"]), text(&row["partition"]));
        insert(&mut figures, of("slowest_over_mean"), &row["slowest_over_mean"]);
        insert(&mut figures, of("model_error"), &row["errors_of_profile_and_learned"][1]);
    }
    for (name, (seconds, peer)) in fastest_peers(speed) {
        let ours = figures.get(&format!("{name}_s")).and_then(Value::as_f64);
        figures.insert(format!("{name}_best_peer"), json!(peer));
        figures.insert(format!("{name}_best_peer_s"), json!(seconds));
        if let Some(ours) = ours {
            figures.insert(format!("{name}{OVER_OURS}"), json!(seconds / ours));
        }
    }
    figures
}

/// The end of the names of ratios.
const OVER_OURS: &str = "_best_peer_over_ours";

/// Returns the seconds and the name of the fastest of the others, by the name of what was measured.
fn fastest_peers(speed: &Value) -> BTreeMap<String, (f64, String)> {
    let mut fastest: BTreeMap<String, (f64, String)> = BTreeMap::new();
    for row in rows(speed, "peers") {
        let (name, seconds) = match row["seconds"].as_f64() {
            Some(seconds) => (gather_name(row), Some(seconds)),
            None => (epoch_name(row), row["epoch_seconds"].as_f64()),
        };
        let Some(seconds) = seconds else { continue };
        if fastest.get(&name).is_none_or(|(least, _)| seconds < *least) {
            fastest.insert(name, (seconds, text(&row["peer"]).to_owned()));
        }
    }
    fastest
}

/// Returns the goals. Times of tiny graphs mean nothing and are not compared.
pub(super) fn goals(figures: &Map<String, Value>, size: Size) -> Vec<Goal> {
    let goal = |figure: &str, limit| {
        let measured = figures.get(figure).and_then(Value::as_f64).filter(|_| size == Size::Published);
        Goal { figure: figure.to_owned(), limit, measured }
    };
    let times = MOST_SECONDS.map(|(name, most)| goal(name, Limit::AtMost(most)));
    let errors = ["reddit", "products"]
        .map(|shape| goal(&format!("split_{shape}_learned_model_error"), Limit::AtMost(MOST_ERROR)));
    let ratios = figures.keys().filter(|name| name.ends_with(OVER_OURS)).map(|name| goal(name, Limit::AtLeast(1.0)));
    times.into_iter().chain(errors).chain(ratios).collect()
}

fn rows<'v>(speed: &'v Value, section: &str) -> impl Iterator<Item = &'v Value> {
    speed[section]["rows"].as_array().into_iter().flatten()
}

fn insert(figures: &mut Map<String, Value>, name: String, value: &Value) {
    if !value.is_null() {
        figures.insert(name, value.clone());
    }
}

/// Returns a text of a row.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("unnamed")
}

/// Returns the name under which figures have the epochs of a row; `_s` and others follow.
pub(super) fn epoch_name(row: &Value) -> String {
    format!("{}_{}_epoch", text(&row["shape"]), layers(&row["network"], "_"))
}

/// Returns the name under which figures have the gather of a row.
pub(super) fn gather_name(row: &Value) -> String {
    format!("gather_{}_{}", text(&row["shape"]), row["width"])
}

/// Returns the widths of a network.
pub(super) fn layers(network: &Value, between: &str) -> String {
    let widths = network.as_array().into_iter().flatten().map(Value::to_string);
    widths.collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_was_measured_and_goals_say_what_is_met() {
        let speed = json!({
            "device": { "rows": [{ "device_bytes_per_s": 4e12, "launch_seconds": { "one_behind_the_other": 5e-6 } }] },
            "epochs": { "rows": [
                { "shape": "reddit", "network": [602, 16, 41], "epoch_seconds": 0.02 },
                { "shape": "products", "network": [104, 256, 256, 47], "epoch_seconds": 0.14 },
            ] },
            "gathers": { "rows": [{ "shape": "reddit", "width": 64, "seconds": 0.005 }] },
            "splits": { "rows": [{ "name": "reddit learned", "ok": false }] },
            "peers": { "rows": [
                { "shape": "reddit", "width": 64, "peer": "torch_csr", "seconds": 0.02 },
                { "shape": "reddit", "width": 64, "peer": "cusparse", "seconds": 0.004 },
                { "shape": "reddit", "network": [602, 16, 41], "peer": "torch_csr", "epoch_seconds": 0.03 },
                { "shape": "reddit", "network": [602, 16, 41], "peer": "pyg", "error": "out of memory" },
            ] },
        });
        let figures = figures(&speed);
        assert_eq!(figures["reddit_602_16_41_epoch_s"], 0.02);
        assert_eq!(figures["launch_s"], 5e-6);
        assert!(figures.get("to_host_bytes_per_s").is_none());
        assert_eq!(figures["gather_reddit_64_best_peer"], "cusparse");
        assert_eq!(figures["reddit_602_16_41_epoch_best_peer_over_ours"], 1.5);
        let met = |size| -> BTreeMap<String, Option<bool>> {
            goals(&figures, size).iter().map(|goal| (goal.figure.clone(), goal.is_met())).collect()
        };
        let published = met(Size::Published);
        assert_eq!(published["reddit_602_16_41_epoch_s"], Some(false));
        assert_eq!(published["products_104_256_256_47_epoch_s"], Some(true));
        assert_eq!(published["split_reddit_learned_model_error"], None);
        assert_eq!(published["gather_reddit_64_best_peer_over_ours"], Some(false));
        assert_eq!(published["reddit_602_16_41_epoch_best_peer_over_ours"], Some(true));
        assert!(met(Size::Tiny).values().all(Option::is_none));
    }
}
