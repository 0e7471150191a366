//! What `lapidary plan --batch` prints.

use bytesize::ByteSize;
use serde_json::json;

use super::output::{align, count, facts, json_line, print, seconds, table};
use super::train::{embedding_line, learned_line, reads_line};
use crate::error::Result;
use crate::forecast::{BatchForecast, CacheForecast};
use crate::train::StageSeconds;

/// Prints the forecast of an epoch of mini-batches, as tables or as a JSON line.
pub(super) fn show(forecast: &BatchForecast, as_json: bool) -> Result<()> {
    let BatchForecast { drawn, feature_bytes, peak_bytes, device_memory, outcome, stages, .. } = forecast;
    let StageSeconds { batches, sample, gather, compute, .. } = *stages;
    if as_json {
        return json_line(&json!({
            "event": "plan_batches",
            "batches": batches,
            "drawn": drawn,
            "vertices": forecast.vertices,
            "edges": forecast.edges,
            "feature_bytes": feature_bytes,
            "embedding": forecast.embedding.map(|size| embedding_line(&size)),
            "feature_rows_read": forecast.reads.map(|reads| reads[0]),
            "feature_bytes_read": forecast.reads.map(|reads| reads[1]),
            "found_on_device": forecast.found_on_device,
            "caches": forecast.caches.iter().map(cache_line).collect::<Vec<_>>(),
            "peak_bytes": {"median": peak_bytes[0], "p90": peak_bytes[1], "most": peak_bytes[2], "planned": peak_bytes[3]},
            "device_memory": device_memory,
            "feasible": outcome.is_ok(),
            "needed_bytes": outcome.err(),
            "batch_bytes_to_device": outcome.ok().map(|bytes| bytes[0]),
            "batch_bytes_to_host": outcome.ok().map(|bytes| bytes[1]),
            "stage_seconds": {"sampling": sample, "gathering": gather, "computing": compute},
        }));
    }
    let mut levels = table(["level", "vertices", "most", "edges drawn", "most "]);
    for (level, vertices) in forecast.vertices.iter().enumerate() {
        let name = match level {
            0 if forecast.embedding.is_some() => "0, learned rows".to_owned(),
            0 => "0, features".to_owned(),
            last if last + 1 == forecast.vertices.len() => format!("{last}, seeds"),
            middle => middle.to_string(),
        };
        let whole = |number: f64| count(number.round() as u64);
        let edges = level.checked_sub(1).map(|layer| forecast.edges[layer]);
        let [mean, most] = edges.map_or(["-".into(), "-".into()], |edges| edges.map(whole));
        levels.add_row([name, whole(vertices[0]), whole(vertices[1]), mean, most]);
    }
    print(&align(levels))?;
    if !forecast.caches.is_empty() {
        let mut caches = table(["feature cache", "memory", "rows found in it"]);
        for &CacheForecast { share, bytes, hits } in &forecast.caches {
            let [share, hits] = [share, hits].map(|share| format!("{:.1} %", 100.0 * share));
            caches.add_row([share, ByteSize(bytes).to_string(), hits]);
        }
        print(&format!("\n{}", align(caches)))?;
    }
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let [median, ninth, most, planned] = peak_bytes.map(size);
    let memory = match outcome {
        Ok([_, 0]) => format!("fits into {}; nothing leaves the device before its last use", size(*device_memory)),
        Ok([to_device, to_host]) => format!(
            "fits into {} if each batch copies {} to the device and {} to the host",
            size(*device_memory),
            size(*to_device),
            size(*to_host)
        ),
        Err(needed) => format!("does not fit into {}: needs {} bytes", size(*device_memory), count(*needed)),
    };
    let mut features = format!("{} per epoch, gathered and copied to the device", size(*feature_bytes));
    if let Some(share) = forecast.found_on_device {
        features += &format!("; {:.1} % of the rows are there already", 100.0 * share);
    }
    if let Some(learned) = &forecast.embedding {
        features += &format!("; {}", learned_line(learned));
    }
    let [sample_s, gather_s, compute_s] = [sample, gather, compute].map(seconds);
    let slowest = stages.slowest();
    let mut rows = vec![
        ("batches", format!("{} per epoch; {drawn} were drawn for these figures", count(batches))),
        (if forecast.embedding.is_some() { "embedding" } else { "features" }, features),
    ];
    rows.extend(forecast.reads.map(|reads| ("", reads_line(reads))));
    rows.extend([
        ("device memory", format!("median {median}, ninth decile {ninth}, most {most}; planned for {planned}")),
        ("", memory),
        (
            "stages",
            format!(
                "sampling {sample_s}, gathering {gather_s} (measured), computing {compute_s} (predicted) per epoch; \
                 slowest: {slowest}"
            ),
        ),
    ]);
    print(&format!("\n{}", facts(&rows)))
}

fn cache_line(cache: &CacheForecast) -> serde_json::Value {
    json!({"share": cache.share, "bytes": cache.bytes, "hits": cache.hits})
}
