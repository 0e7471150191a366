//! Properties of the host. Sizes that it could never hold are refused before anything is allocated.

use std::path::Path;

use bytesize::ByteSize;

/// The memory that is assumed if the system does not report it: more than any machine has.
const UNKNOWN_BYTES: u64 = 1 << 44;

/// The memory that the fuzz targets have, so that a claim of a size is refused before it costs time, and one that is
/// not compared with the memory is found.
const FUZZING_BYTES: u64 = 16 << 20;

/// Returns the memory of the host, in bytes, or of the container if that is limited to less.
pub fn memory_bytes() -> u64 {
    if cfg!(fuzzing) {
        return FUZZING_BYTES;
    }
    let limits = control_groups().into_iter().map(|group| group.limit_bytes);
    limits.chain(kib_of("/proc/meminfo", "MemTotal:")).min().unwrap_or(UNKNOWN_BYTES)
}

/// Returns the memory that this process can still get, in bytes: what the system has free, within the limits of the
/// container and of the address space (`ulimit -v`).
pub fn free_bytes() -> u64 {
    if cfg!(fuzzing) {
        return FUZZING_BYTES;
    }
    let free = kib_of("/proc/meminfo", "MemAvailable:");
    let left = control_groups().into_iter().map(|group| group.limit_bytes.saturating_sub(group.used_bytes));
    left.chain(free).chain(address_space_left()).min().unwrap_or(UNKNOWN_BYTES)
}

/// What a control group with a limit says about memory.
#[derive(Debug, PartialEq)]
struct ControlGroup {
    limit_bytes: u64,
    /// What its processes use, without files that the system can drop.
    used_bytes: u64,
}

/// Returns the control groups that limit this process: its own and those above it. Containers are made of them.
fn control_groups() -> Vec<ControlGroup> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    control_groups_in(Path::new("/sys/fs/cgroup"), &own)
}

/// Returns the groups with a limit that are mounted at `root`. `own` has a line for each hierarchy, with the group of this
/// process. In a container, the groups above its own may not be seen.
fn control_groups_in(root: &Path, own: &str) -> Vec<ControlGroup> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kind), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        // The files of the second version of control groups, and of the first.
        let (root, names) = match kind {
            "" => (root.to_owned(), ["memory.max", "memory.current", "inactive_file"]),
            _ if kind.split(',').any(|kind| kind == "memory") => {
                let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
                (root.join("memory"), names)
            }
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        found.extend(group.ancestors().filter_map(|group| control_group(&root.join(group), names)));
    }
    found
}

/// Reads the limit and the use of a control group. A group without a limit says `max`, or has no such file.
fn control_group(folder: &Path, [limit, used, files]: [&str; 3]) -> Option<ControlGroup> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let limit_bytes = number(limit)?;
    let stat = read("memory.stat").unwrap_or_default();
    let of_files = stat.lines().find_map(|line| line.strip_prefix(files)?.trim().parse().ok()).unwrap_or(0);
    Some(ControlGroup { limit_bytes, used_bytes: number(used).unwrap_or(0).saturating_sub(of_files) })
}

/// Returns how much the address space may still grow, if it is limited.
fn address_space_left() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let most: u64 = limit.split_whitespace().next()?.parse().ok()?;
    Some(most.saturating_sub(kib_of("/proc/self/status", "VmSize:")?))
}

/// Returns the size in bytes on the line of a system file that starts with `name` and counts KiB.
fn kib_of(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the model name of the host's processor; empty if the system does not report it.
pub fn processor() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

/// Seconds of all cores that were used since a start of the system's choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuSeconds {
    /// By this process.
    pub own: f64,
    /// By all, those that the hypervisor gave to others included.
    pub all: f64,
}

/// Returns the seconds of all cores that were used so far; `None` if the system does not report them.
pub fn cpu_seconds() -> Option<CpuSeconds> {
    /// Ticks per second in the system's files, on every architecture (`man 5 proc`).
    const TICKS: f64 = 100.0;
    let numbers = |text: &str| text.split_whitespace().map(|n| n.parse::<f64>().ok()).collect::<Option<Vec<f64>>>();
    let of_all = std::fs::read_to_string("/proc/stat").ok()?;
    // User, nice, system, idle, waiting, interrupts, soft interrupts, stolen.
    let of_all = numbers(of_all.lines().next()?.strip_prefix("cpu")?)?;
    let [user, nice, system, _, _, hard, soft, stolen] = of_all.get(..8)?.try_into().ok()?;
    let own = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may have spaces; it ends with the last bracket. Then user is field 11, system field 12.
    let mut own = own.rsplit_once(')')?.1.split_whitespace().skip(11);
    let own: f64 = own.next()?.parse::<f64>().ok()? + own.next()?.parse::<f64>().ok()?;
    Some(CpuSeconds { own: own / TICKS, all: (user + nice + system + hard + soft + stolen) / TICKS })
}

/// Seconds of the threads that a process has, since each began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadSeconds {
    /// In which they ran.
    pub running: f64,
    /// In which they could have run, and waited for a core.
    pub waiting: f64,
}

/// Returns the seconds of this process's threads; `None` if the system does not report them.
pub fn thread_seconds() -> Option<ThreadSeconds> {
    let mut seconds = ThreadSeconds { running: 0.0, waiting: 0.0 };
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread may end meanwhile.
        let Ok(text) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        let mut nanoseconds = text.split_whitespace().map_while(|number| number.parse::<f64>().ok());
        seconds.running += nanoseconds.next()? * 1e-9;
        seconds.waiting += nanoseconds.next()? * 1e-9;
    }
    Some(seconds)
}

/// Returns the size in bytes of the first processor's last-level cache; 32 MiB if the system does not report it.
pub fn cache_bytes() -> u64 {
    caches().max().map_or(32 << 20, |(_, bytes)| bytes)
}

/// Returns the size in bytes of the first processor's second-level cache, which a core has for itself; 1 MiB if the system
/// does not report it.
pub fn core_cache_bytes() -> u64 {
    caches().find(|(level, _)| *level == 2).map_or(1 << 20, |(_, bytes)| bytes)
}

/// Returns the level and the size in bytes of each cache of the first processor.
fn caches() -> impl Iterator<Item = (u32, u64)> {
    let read = |index: u32, what: &str| -> Option<String> {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{what}");
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let level_and_bytes = move |index| {
        let level = read(index, "level")?.parse::<u32>().ok()?;
        Some((level, 1024 * read(index, "size")?.strip_suffix('K')?.parse::<u64>().ok()?))
    };
    (0..8).filter_map(level_and_bytes)
}

/// Returns the product of sizes, saturated at `u64::MAX`.
pub fn product(sizes: [u64; 3]) -> u64 {
    sizes.into_iter().fold(1, u64::saturating_mul)
}

/// Returns a message if `need_bytes` exceeds `have_bytes`, otherwise `None`.
pub fn shortage(need_bytes: u64, have_bytes: u64) -> Option<String> {
    if need_bytes <= have_bytes {
        return None;
    }
    let more = if need_bytes == u64::MAX { " or more" } else { "" };
    let [need, have] = told_apart(need_bytes, have_bytes);
    Some(format!("needs {need}{more}, but this host has {have}"))
}

/// Returns a message if `need_bytes` exceeds the memory that is free, `free_bytes`.
pub fn lack(need_bytes: u64, free_bytes: u64) -> Option<String> {
    if need_bytes <= free_bytes {
        return None;
    }
    let more = if need_bytes == u64::MAX { " or more" } else { "" };
    let [need, free] = told_apart(need_bytes, free_bytes);
    Some(format!("needs {need}{more}, but {free} of memory are free"))
}

/// Two sizes with a unit, with as many decimals (up to 3) as tell them apart; where that is not enough, in bytes.
pub fn told_apart(a: u64, b: u64) -> [String; 2] {
    let with = |decimals: usize| [a, b].map(|bytes| format!("{:.decimals$}", ByteSize::b(bytes).display()));
    let differ = |texts: &[String; 2]| texts[0] != texts[1];
    let shown = (1..=3).map(with).find(differ);
    shown.unwrap_or_else(|| if a == b { with(1) } else { [a, b].map(|bytes| format!("{bytes} bytes")) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_said_in_bytes() {
        assert_eq!(shortage(1 << 30, 1 << 30), None);
        let said = shortage(product([4, 1 << 32, 2]), 1 << 30);
        assert_eq!(said.as_deref(), Some("needs 32.0 GiB, but this host has 1.0 GiB"));
        let said = shortage(product([u64::MAX, 3000, 4]), 1 << 30);
        assert_eq!(said.as_deref(), Some("needs 16.0 EiB or more, but this host has 1.0 GiB"));
        assert!(memory_bytes() > 1 << 20);
        assert!(free_bytes() > 1 << 20 && free_bytes() <= memory_bytes());
        assert_eq!(lack(2 << 30, 1 << 30).as_deref(), Some("needs 2.0 GiB, but 1.0 GiB of memory are free"));
    }

    #[test]
    fn the_limits_of_containers_are_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let group = |limit_bytes, used_bytes| ControlGroup { limit_bytes, used_bytes };
        // The second version: the job is limited, the group within it is not.
        write("job/memory.max", "8000\n");
        write("job/memory.current", "5000\n");
        write("job/memory.stat", "anon 3000\ninactive_file 1500\nactive_file 500\n");
        write("job/step/memory.max", "max\n");
        assert_eq!(control_groups_in(root.path(), "0::/job/step\n"), [group(8000, 3500)]);
        assert_eq!(control_groups_in(root.path(), "0::/\n"), []);
        // The root of a container's own view has its limit.
        write("memory.max", "9000\n");
        assert_eq!(control_groups_in(root.path(), "0::/elsewhere\n"), [group(9000, 0)]);
        // The first version.
        write("memory/box/memory.limit_in_bytes", "7000\n");
        write("memory/box/memory.usage_in_bytes", "100\n");
        let own = "5:cpu,cpuacct:/box\n4:memory:/box\nnonsense\n";
        assert_eq!(control_groups_in(root.path(), own), [group(7000, 100)]);
    }

    #[test]
    fn threads_that_work_have_run() {
        let start = std::time::Instant::now();
        while start.elapsed().as_secs_f64() < 0.02 {
            std::hint::spin_loop();
        }
        let Some(seconds) = thread_seconds() else { return println!("skipped: the system does not report threads") };
        assert!(seconds.running > 0.0 && seconds.running + seconds.waiting > 0.015, "{seconds:?}");
    }

    #[test]
    fn sizes_that_differ_look_different() {
        let pairs = [
            (19 << 20, 19 << 20, ["19.0 MiB", "19.0 MiB"]),
            (19 << 20, 20 << 20, ["19.0 MiB", "20.0 MiB"]),
            (19 << 20, (19 << 20) + 50_000, ["19.00 MiB", "19.05 MiB"]),
            (19 << 20, (19 << 20) + 1, ["19922944 bytes", "19922945 bytes"]),
            (100, 101, ["100 B", "101 B"]),
        ];
        for (a, b, want) in pairs {
            assert_eq!(told_apart(a, b), want);
        }
    }
}
