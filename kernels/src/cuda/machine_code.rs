//! What the machine code of gathers does per edge, from the table that `ci/cubin` makes.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::storage_type::StorageType;

/// The table; its first lines describe it. `ci/cubin` fails if it is not that of the kernels.
const TABLE: &str = include_str!("machine_code.txt");

/// The title of the release of NVRTC whose figures are used.
const RELEASE: &str = "==== NVRTC 12.8 ====";

/// The architectures of the table, in the order of its columns.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// For each gather kernel and storage type, the instructions that a warp issues per edge, by architecture.
static ISSUED_PER_EDGE: LazyLock<HashMap<(&str, &str), [f64; 3]>> = LazyLock::new(|| {
    let of_line = |line: &'static str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // After the name and the type: edges, instructions of the loop by architecture, and those that are issued.
        let number = |place: usize| words.get(place)?.parse::<f64>().ok();
        let (edges, issued) = (number(2)?, [number(6)?, number(7)?, number(8)?]);
        Some(((words[0], words[1]), issued.map(|issued| issued / edges)))
    };
    section("gather").filter_map(of_line).collect()
});

/// Returns the instructions that a warp issues per edge that its groups add, in the loop of a gather kernel; `None` for
/// an architecture or a kernel that is not in the table.
pub(super) fn issued_per_edge(kernel: &str, stored: StorageType, architecture: &str) -> Option<f64> {
    let column = ARCHITECTURES.iter().position(|&known| known == architecture)?;
    // As a map of shorter-lived names, it can be asked for any name.
    let issued: &HashMap<(&str, &str), [f64; 3]> = &ISSUED_PER_EDGE;
    issued.get(&(kernel, stored.name())).map(|issued| issued[column])
}

/// Returns the lines of the release below the line that begins with `word`, up to an empty line.
fn section(word: &str) -> impl Iterator<Item = &'static str> {
    let release = TABLE.lines().skip_while(|line| *line != RELEASE);
    release
        .skip_while(move |line| line.split_whitespace().next() != Some(word))
        .skip(1)
        .take_while(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::gather_kernel::{Division, GatherKind};
    use crate::cuda::width::WARP;

    #[test]
    fn the_tables_widths_are_divided_as_the_host_divides_them() {
        let mut count = 0;
        for line in section("width") {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |place: usize| words[place].parse::<usize>().expect("it is a number");
            let d = number(0);
            let stored = if words[1] == "f32" { StorageType::F32 } else { StorageType::Bf16 };
            let division = Division::of(d, stored, d);
            let Division { width, slices, .. } = division;
            assert_eq!(words[2], GatherKind { weighted: false, split: false }.kernel(&division), "{line}");
            assert_eq!([number(3), number(4)], [width.lanes, slices], "{line}");
            for (column, architecture) in ARCHITECTURES.into_iter().enumerate() {
                let of_warp = issued_per_edge(words[2], stored, architecture).expect("it is in the table");
                let want = of_warp * (width.lanes * slices) as f64 / WARP as f64;
                let found: f64 = words[5 + column].parse().expect("it is a number");
                assert!((found - want).abs() <= 0.005 + 1e-9, "{line}: {want}");
            }
            count += 1;
        }
        assert_eq!(count, 12);
        assert_eq!(issued_per_edge("gather_4x1", StorageType::F32, "sm_60"), None);
        assert_eq!(issued_per_edge("gather_3x1", StorageType::F32, "sm_90"), None);
    }
}
