//! Kernels that work alike: the variants of a kernel, by the endings of their names.

/// What the name of a gather from a window of the sources ends in.
pub const IN_WINDOWS: &str = " in windows";
/// What the name of a gather from several matrices ends in.
pub const OVER_TILES: &str = " over tiles";
/// What the name of a gather over the stored windows of long rows ends in.
pub const OF_LONG_ROWS: &str = " of long rows";
/// What the name of a gather that also reads rows of other parts ends in.
pub const WITH_HALO: &str = " with halo";
/// What the name of a call on bf16 ends in.
pub const BF16: &str = " bf16";

/// Returns the kernels that work most like this one, the likest first. Their names are beginnings of its name.
pub(crate) fn kin(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| {
        [BF16, WITH_HALO, IN_WINDOWS, OVER_TILES, OF_LONG_ROWS].iter().find_map(|end| name.strip_suffix(end))
    })
    .skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_of_kin_lack_one_ending_after_the_other() {
        let of = |name: &'static str| kin(name).collect::<Vec<_>>();
        let whole = ["gather in windows with halo", "gather in windows", "gather"];
        assert_eq!(of("gather in windows with halo bf16"), whole);
        assert_eq!(of("gather over tiles"), ["gather"]);
        assert_eq!(of("gather of long rows bf16"), ["gather of long rows", "gather"]);
        assert!(of("gather").is_empty());
    }
}
