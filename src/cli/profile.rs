//! `lapidary profile`.

use std::io::Write;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{ArgGroup, Args};
use serde_json::json;

use super::kernel_times;
use super::output::{align, count, json_line, one_line, print, say, seconds, table};
use crate::error::{Error, Result};
use crate::forecast::Network;
use crate::output::OutputFile;
use crate::profile::{self, CPU};
use crate::ranks::{Link, Ranks};

/// Text below the flags.
const HELP: &str = "\
Without flags, this machine's cores are measured if they are not known yet: their rates, and the
times of the kernels in short trainings on made-up graphs. This takes about 110 s, or up to 5
minutes beside other programs. `plan` does the same when it first needs them, and later trainings
add what they have measured. What is older than 30 days is measured again, and so is what was
measured beside other programs.

With --ranks, the ranks are started by mpirun, on the machines that a job would use:
  mpirun -n 4 lapidary profile --ranks --out network.json
  lapidary plan --data DATA --ranks 4 --network network.json
With up to 8 ranks, every pair is measured; with more, each rank with the next one. The file has the
median of the links between different machines, or of all links if there is only one machine.";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["ranks", "show", "again"]), after_help = HELP)]
pub(super) struct ProfileArgs {
    /// Measure latency and rate between the ranks that mpirun has started
    #[arg(long)]
    ranks: bool,
    /// Show what is known, without measuring kernels
    #[arg(long)]
    show: bool,
    /// Forget what is known, and measure again
    #[arg(long)]
    again: bool,
    /// Write the network to FILE, for `plan --network FILE`
    #[arg(long, value_name = "FILE", requires = "ranks")]
    out: Option<PathBuf>,
    /// Print one JSON line instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures this machine or the network, and prints the result.
pub(super) fn run(args: &ProfileArgs, ranks: &Ranks) -> Result<()> {
    if args.ranks {
        return measure_network(args, ranks);
    }
    if !ranks.is_first() {
        return Ok(());
    }
    if args.again {
        profile::forget(CPU);
    }
    if !args.show && !kernel_times::has_suite(CPU)? {
        kernel_times::measure(args.json)?;
    }
    kernel_times::show(args.json)
}

/// Measures the network, prints it, and writes the file if requested.
fn measure_network(args: &ProfileArgs, ranks: &Ranks) -> Result<()> {
    // Opens the file first, so that a file that cannot be written is an error before the work.
    let out = args.out.as_deref().filter(|_| ranks.is_first() && ranks.count() > 1);
    let out = out.map(|path| OutputFile::create(path).map_err(Error::io("write the network", path))).transpose()?;
    let links = ranks.measure_links()?;
    let network = Network::of_links(&links).ok_or(Error::Alone)?;
    let of_link = |link: &Link| json!([link.ranks[0], link.ranks[1], link.latency_s, link.bytes_per_s]);
    let mut written = json!({
        "latency_s": network.latency_s,
        "bytes_per_s": network.bytes_per_s,
        "ranks": ranks.count(),
        "links": links.iter().map(of_link).collect::<Vec<_>>(),
    });
    if let (Some(mut file), Some(path)) = (out, &args.out) {
        let text = format!("{written}\n");
        file.write_all(text.as_bytes()).and_then(|()| file.finish()).map_err(Error::io("write the network", path))?;
    }
    if args.json {
        written["event"] = "network".into();
        return json_line(&written);
    }
    print(&shown(&links, network))?;
    if let Some(path) = &args.out {
        say(format_args!("wrote {0}; plan with it: `plan --network {0}`", path.display()));
    }
    Ok(())
}

/// Formats the links and their medians.
fn shown(links: &[Link], network: Network) -> String {
    let mut rows = table(["ranks", "machines", "latency", "rate each way"]);
    let of = |latency_s, bytes_per_s| [seconds(latency_s), format!("{}/s", ByteSize(bytes_per_s as u64))];
    for Link { ranks: [a, b], hosts, latency_s, bytes_per_s } in links {
        let hosts = if hosts[0] == hosts[1] { hosts[0].clone() } else { hosts.join(", ") };
        let [latency, rate] = of(*latency_s, *bytes_per_s);
        rows.add_row([format!("{a} and {b}"), one_line(&hosts).into_owned(), latency, rate]);
    }
    let [latency, rate] = of(network.latency_s, network.bytes_per_s);
    let measured = format!("{} measured", count(links.len() as u64));
    rows.add_row(["median".into(), measured, latency, rate]);
    align(rows)
}
