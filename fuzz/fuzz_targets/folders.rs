//! Folders of other programs: OGB, PPI, GraphSAINT, Reddit, Lux. The first byte selects the file. A compressed text is
//! fuzzed before it is compressed.
#![no_main]

use std::sync::OnceLock;

use lapidary::dataset::import::{Format, Options};
use lapidary_fuzz::{Folder, fixture, imported, packed, selected};
use libfuzzer_sys::fuzz_target;

const FOLDERS: [(Format, &str); 6] = [
    (Format::Ogb, "ogb"),
    (Format::Ppi, "ppi"),
    (Format::GraphSaint, "graphsaint"),
    (Format::GraphSaint, "graphsaint_multi"),
    (Format::Reddit, "reddit"),
    (Format::Lux, "lux"),
];

fuzz_target!(|bytes: &[u8]| {
    static ALL: OnceLock<Vec<(Format, Folder, usize)>> = OnceLock::new();
    // One entry per file.
    let all = ALL.get_or_init(|| {
        let files = FOLDERS.iter().flat_map(|&(kind, name)| {
            let folder = move || Folder::copy(&fixture(&format!("import/{name}")), name);
            (0..folder().files.len()).map(move |which| (kind, folder(), which))
        });
        files.collect()
    });
    let Some((first, rest)) = selected(bytes) else { return };
    let (kind, folder, which) = &all[first % all.len()];
    let is_packed = folder.files[*which].0.ends_with(".gz");
    let contents = if is_packed { packed(rest) } else { rest.to_vec() };
    folder.with(*which, &contents, |path| {
        let path = if *kind == Format::Lux { path.join("roc.add_self_edge.lux") } else { path.to_path_buf() };
        imported(*kind, &path, &Options::default());
    });
});
