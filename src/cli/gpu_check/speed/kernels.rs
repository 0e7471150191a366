//! The GPU's memory, its link to the host, launches, and gathers as a share of the memory bandwidth.

use lapidary_kernels::{Call, cpu};
use serde_json::json;

use super::super::budget::Budget;
use super::super::section::{Finished, Row, Section, lacks_memory, spread};
use super::super::shapes::{Graphs, SHAPES};
use super::super::{Scope, Size};
use super::NEXT;
use crate::profile::gpu::Bench;

/// Measures bytes per second within the device and in both directions to the host, and seconds per launch. Also gives
/// the profile that plans are made with.
pub(in super::super) fn device(scope: &Scope, budget: Budget) -> Finished {
    let size = scope.size;
    let mut section = Section::new(scope, "device", 1, NEXT, Some(budget));
    section.row("rates", || {
        let bench = Bench::open(scope.gpu)?;
        let [to_device, to_host] = bench.copy_rates((1 << 28) / size.divisor(), size.runs())?;
        let [waited_s, queued_s] = bench.launch_seconds(if size == Size::Tiny { 20 } else { 2000 })?;
        let device_bytes_per_s = bench.memory_rate((1 << 20) / size.divisor(), size.runs())?;
        drop(bench);
        let profile = crate::profile::load(&scope.device())?;
        Ok(Row::new(json!({
            "device_bytes_per_s": device_bytes_per_s,
            "to_device_bytes_per_s": to_device, "to_host_bytes_per_s": to_host,
            "launch_seconds": { "each_waited_for": waited_s, "one_behind_the_other": queued_s },
            "profile": profile,
        })))
    });
    section.finish()
}

/// Measures gathers of published shapes, in seconds and as a share of the bandwidth. A share above 1 is due to caches.
pub(in super::super) fn gathers(scope: &Scope, graphs: &Graphs, budget: Budget) -> Finished {
    let size = scope.size;
    let count = SHAPES.iter().map(|shape| shape.widths.len()).sum();
    let mut section = Section::new(scope, "gathers", count, NEXT, Some(budget));
    let mut bandwidth = None;
    for shape in SHAPES {
        for &d in shape.widths {
            section.row(&format!("{} width {d}", shape.name), || {
                let graph = graphs.of(shape);
                let (n, e) = (graph.vertex_count(), graph.edge_count());
                if let Some(row) =
                    lacks_memory(scope.gpu, cpu::gather_bytes(n as u64, e as u64, 0) + 8 * (n * d) as u64)
                {
                    return Ok(row);
                }
                let bench = Bench::open(scope.gpu)?;
                let bandwidth = match bandwidth {
                    Some(known) => known,
                    None => *bandwidth.insert(bench.memory_rate((1 << 20) / size.divisor(), size.runs())?),
                };
                let block = bench.block(&graph)?;
                let (own, out) = (bench.matrix(2, n, d)?, bench.room(3, n, d)?);
                let call = Call::gather(block, None, own, None, out);
                let [seconds, least, most] = spread(bench.seconds(&call, size.runs())?);
                let bytes_per_s = cpu::gather_bytes(n as u64, e as u64, d as u64) as f64 / seconds;
                Ok(Row::new(json!({
                    "shape": shape.name, "vertices": n, "edges": e, "width": d,
                    "seconds": seconds, "seconds_range": [least, most],
                    "bytes_per_s": bytes_per_s, "share_of_bandwidth": bytes_per_s / bandwidth,
                    "choices": bench.choices(),
                })))
            });
        }
    }
    section.finish()
}
