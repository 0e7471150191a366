//! What `nvidia-smi` says of a GPU, where it is installed.

use std::process::Command;

/// Fields of a query, with the names under which they are shown.
const FIELDS: [(&str, &str); 10] = [
    ("driver_version", "driver release"),
    ("clocks.sm", "clock (SM)"),
    ("clocks.max.sm", "highest clock (SM)"),
    ("clocks.mem", "clock (memory)"),
    ("clocks.max.mem", "highest clock (memory)"),
    ("power.limit", "power limit"),
    ("temperature.gpu", "temperature in C"),
    ("ecc.mode.current", "ECC"),
    ("ecc.errors.uncorrected.volatile.total", "uncorrected ECC errors"),
    ("mig.mode.current", "MIG"),
];

/// Facts about the GPU whose number `nvidia-smi` has as well, by name.
pub(super) fn facts(gpu: u32) -> Vec<(&'static str, String)> {
    let fields = FIELDS.map(|(field, _)| field).join(",");
    let answer = ask(&["-i", &gpu.to_string(), &format!("--query-gpu={fields}"), "--format=csv,noheader"]);
    answer.map_or_else(Vec::new, |text| parse(&text))
}

fn parse(line: &str) -> Vec<(&'static str, String)> {
    let values = line.lines().next().unwrap_or_default().split(',').map(str::trim);
    let known = FIELDS.iter().zip(values).filter(|(_, value)| !value.is_empty() && !value.contains("N/A"));
    known.map(|((_, name), value)| (*name, value.to_owned())).collect()
}

/// Processes that compute on a GPU of this machine, one line of text each; `None` if nobody knows.
pub(super) fn processes() -> Option<Vec<String>> {
    let text = ask(&["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"])?;
    let own = std::process::id().to_string();
    let is_other = |line: &&str| !line.trim().is_empty() && line.split(',').next().map(str::trim) != Some(&own);
    Some(text.lines().filter(is_other).map(|line| line.trim().to_owned()).collect())
}

fn ask(arguments: &[&str]) -> Option<String> {
    let output = Command::new("nvidia-smi").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_the_gpu_does_not_know_are_left_out() {
        let line = "580.65.06, 1980 MHz, 1980 MHz, 2619 MHz, 2619 MHz, 700.00 W, 34, Enabled, 0, [N/A]\n";
        let facts = parse(line);
        assert_eq!(facts.len(), FIELDS.len() - 1);
        assert_eq!(facts[0], ("driver release", "580.65.06".into()));
        assert_eq!(facts[7], ("ECC", "Enabled".into()));
        assert!(parse("").is_empty());
    }
}
