//! Tables of vertices, and orders of vertices, beside a small edge list. The first byte selects the options.
#![no_main]

use std::sync::OnceLock;

use lapidary::dataset::import::{Format, Missing, Options, TableColumns};
use lapidary_fuzz::{choice, file, imported, packed, selected};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static EDGES: OnceLock<[std::path::PathBuf; 2]> = OnceLock::new();
    let edges =
        EDGES.get_or_init(|| [file("names.txt", b"a b\nb c\nc a\nd a\n"), file("numbers.txt", b"1 2\n2 3\n3 1\n")]);
    let Some((first, rest)) = selected(bytes) else { return };
    let path = if first & 1 == 0 { file("table", rest) } else { file("table", &packed(rest)) };
    let is_table = first & 2 == 0;
    let features = [String::from("x"), String::from("y")];
    let columns = TableColumns {
        key: choice(first >> 2, None, Some("key"), None).filter(|_| is_table),
        label: choice(first >> 2, None, None, Some("class")).filter(|_| is_table),
        features: (first & 16 != 0 && is_table).then_some(&features[..]),
    };
    let options = Options {
        vertices: is_table.then_some(&path),
        vertex_order: (!is_table).then_some(&path),
        missing: choice(first >> 5, Missing::Refuse, Missing::Drop, Missing::Keep),
        columns,
        ..Options::default()
    };
    imported(Format::Edges, &edges[first >> 7], &options);
});
