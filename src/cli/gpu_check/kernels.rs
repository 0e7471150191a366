//! Measures the GPU's memory, its link to the host, launches, and gathers as a share of the memory bandwidth.

use lapidary_kernels::{BlockSlots, Call, cpu};
use serde_json::{Value, json};

use super::budget::Budget;
use super::rows::{Rows, joined, spread};
use super::shapes::{Graphs, PRODUCTS, PUBMED, REDDIT};
use super::{ORDINAL, Size};
use crate::error::Result;
use crate::profile::gpu::Bench;

/// Measures bytes per second within the device and in both directions to the host, and seconds per launch. Also returns
/// the profile that plans are made with.
pub(super) fn device(size: Size) -> Result<Value> {
    let bench = Bench::open(ORDINAL)?;
    let [to_device, to_host] = bench.copy_rates((1 << 28) / size.divisor(), size.runs())?;
    let [waited_s, queued_s] = bench.launch_seconds(if size == Size::Tiny { 20 } else { 2000 })?;
    let device_bytes_per_s = bench.memory_rate((1 << 20) / size.divisor(), size.runs())?;
    drop(bench);
    let profile = crate::profile::load(super::DEVICE)?;
    Ok(json!({
        "device_bytes_per_s": device_bytes_per_s,
        "to_device_bytes_per_s": to_device, "to_host_bytes_per_s": to_host,
        "launch_seconds": { "each_waited_for": waited_s, "one_behind_the_other": queued_s },
        "profile": profile,
    }))
}

/// Measures gathers of published shapes, in seconds and as a share of the bandwidth. A share above 1 is due to caches.
pub(super) fn gathers(graphs: &Graphs, budget: Budget) -> Result<Value> {
    let size = graphs.size;
    let bench = Bench::open(ORDINAL)?;
    let bandwidth = bench.memory_rate((1 << 20) / size.divisor(), size.runs())?;
    let mut rows = Rows::default();
    for shape in [&REDDIT, &PRODUCTS, &PUBMED] {
        let graph = graphs.of(shape);
        let (n, e) = (graph.vertex_count(), graph.edge_count());
        let block = BlockSlots {
            indptr: bench.put(0, graph.indptr().to_vec())?,
            indices: bench.put(1, graph.indices().to_vec())?,
            rows: n,
            own_sources: n,
            halo_sources: 0,
            edges: e,
        };
        for &d in shape.widths {
            rows.measure(budget, &format!("{} {d}", shape.name), || {
                let (own, out) = (bench.matrix(2, n, d)?, bench.room(3, n, d)?);
                let call = Call::gather(block, None, own, None, out);
                let [seconds, least, most] = spread(bench.seconds(&call, size.runs())?);
                bench.free(&[own.slot, out.slot])?;
                let bytes_per_s = cpu::gather_bytes(n as u64, e as u64, d as u64) as f64 / seconds;
                Ok(json!({
                    "shape": shape.name, "vertices": n, "edges": e, "width": d,
                    "seconds": seconds, "seconds_range": [least, most],
                    "bytes_per_s": bytes_per_s, "share_of_bandwidth": bytes_per_s / bandwidth,
                }))
            });
        }
        bench.free(&[block.indptr, block.indices])?;
    }
    Ok(joined(rows.into_json(), json!({ "choices": bench.choices() })))
}
