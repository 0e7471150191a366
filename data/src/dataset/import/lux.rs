//! Importer for the files of the original ROC: a graph in Lux's binary format, with features, labels and splits beside
//! it.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::job::{ImportJob, Loaded};
use super::npz::in_edges;
use super::source::Meter;
use super::table;
use crate::dataset::build::{Origin, RawFeatures};
use crate::dataset::error::{Error, Result};
use crate::dataset::split::Members;
use crate::host;

/// Bytes of the two counts at the start: vertices u32, edges u64.
const HEADER_BYTES: u64 = 12;
/// Elements read at a time.
const BLOCK: usize = 1 << 16;
/// The extensions of a graph's file, in the order in which they are tried.
const ENDINGS: [&str; 2] = [".add_self_edge.lux", ".lux"];

/// Reads `PREFIX.add_self_edge.lux` or `PREFIX.lux`. Also reads `PREFIX.feats.bin` (else `PREFIX.feats.csv`),
/// `PREFIX.label` and `PREFIX.mask` if they exist. The source is the prefix or the graph's file.
///
/// The graph is little-endian: vertices u32, edges u64, the end offset of each vertex's in-edges u64 `[vertices]`,
/// their sources u32 `[edges]`. Features are f32 `[vertices, width]`. The label file has one number per line; the mask
/// file has Train, Val, Test or None on each line.
///
/// # Source
/// Jia et al. 2017 and 2020, and the loader of the latter.
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let (path, prefix) = locate(job.source);
    let file = path.display().to_string();
    let mut from = job.meter.open(&path, "it is the graph to import")?;
    let bytes = from.bytes;
    let mut from = BufReader::with_capacity(1 << 18, &mut from);
    let mut header = [0u8; HEADER_BYTES as usize];
    if bytes < HEADER_BYTES {
        return Err(Error::Truncated { file, need_bytes: HEADER_BYTES, have_bytes: bytes });
    }
    from.read_exact(&mut header).map_err(Error::io("read", &path))?;
    let [a, b, c, d, rest @ ..] = header;
    let (vertices, edges) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(rest));
    let need_bytes = u128::from(vertices) * 8 + u128::from(edges) * 4;
    let need_bytes = u64::try_from(need_bytes).unwrap_or(u64::MAX);
    let have_bytes = bytes - HEADER_BYTES;
    if need_bytes > have_bytes {
        return Err(Error::Truncated { file, need_bytes, have_bytes });
    }
    if need_bytes < have_bytes {
        return Err(Error::TrailingBytes { file, extra_bytes: have_bytes - need_bytes });
    }
    if let Some(shortage) = host::lack(need_bytes, host::free_bytes()) {
        return Err(Error::Import { file, why: format!("has {vertices} vertices and {edges} edges: that {shortage}") });
    }
    let vertices = vertices as usize;
    let mut indptr = Vec::with_capacity(vertices + 1);
    indptr.push(0);
    elements(&mut from, vertices, u64::from_le_bytes, &mut indptr).map_err(Error::io("read", &path))?;
    let mut indices = Vec::with_capacity(edges as usize);
    elements(&mut from, edges as usize, u32::from_le_bytes, &mut indices).map_err(Error::io("read", &path))?;
    let (graph, seen) = in_edges(job, &Origin::Import(path), indptr, indices)?;

    let mut parts = job.parts(graph);
    parts.name = prefix.file_name().map_or_else(|| "unnamed".into(), |name| name.to_string_lossy().into_owned());
    let beside = |ending: &str| with_ending(&prefix, ending);
    if beside(".feats.bin").exists() {
        parts.features = Some(binary_features(&job.meter, &beside(".feats.bin"), vertices)?);
    } else if beside(".feats.csv").exists() {
        parts.features = Some(table::features(&job.meter, &beside(".feats.csv"), vertices)?);
    }
    if beside(".label").exists() {
        parts.labels = Some(table::labels(&job.meter, &beside(".label"), vertices)?);
    }
    if beside(".mask").exists() {
        parts.splits = masks(&job.meter, &beside(".mask"), vertices)?.map(|mask| Some(Members::Mask(mask)));
    }
    Ok(Loaded::new(parts, edges, seen, job.rules.symmetrise))
}

/// Returns the path of the graph, and the prefix of the other files.
fn locate(source: &Path) -> (PathBuf, PathBuf) {
    let text = source.display().to_string();
    if let Some(prefix) = ENDINGS.iter().find_map(|ending| text.strip_suffix(ending)) {
        return (source.into(), prefix.into());
    }
    let found = ENDINGS.iter().map(|ending| with_ending(source, ending)).find(|path| path.exists());
    (found.unwrap_or_else(|| with_ending(source, ENDINGS[0])), source.into())
}

fn with_ending(prefix: &Path, ending: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_os_string();
    name.push(ending);
    name.into()
}

/// Appends `count` elements of `N` bytes each.
fn elements<const N: usize, T>(
    from: &mut impl Read,
    count: usize,
    element: impl Fn([u8; N]) -> T,
    to: &mut Vec<T>,
) -> std::io::Result<()> {
    let mut buffer = vec![0u8; BLOCK * N];
    let mut left = count;
    while left > 0 {
        let block = &mut buffer[..left.min(BLOCK) * N];
        from.read_exact(block)?;
        to.extend(block.as_chunks::<N>().0.iter().map(|&bytes| element(bytes)));
        left -= block.len() / N;
    }
    Ok(())
}

fn binary_features(meter: &Meter<'_>, path: &Path, vertices: usize) -> Result<RawFeatures> {
    let mut from = meter.open(path, "it has the features")?;
    let row_bytes = 4 * vertices as u64;
    let width = from.bytes / row_bytes.max(1);
    if row_bytes == 0 || width == 0 || from.bytes % row_bytes != 0 {
        let why = format!("has {} bytes, expected 4 for each of {vertices} vertices and each feature", from.bytes);
        return Err(Error::Import { file: path.display().to_string(), why });
    }
    if let Some(lack) = host::lack(from.bytes, host::free_bytes()) {
        return Err(Error::Import {
            file: path.display().to_string(),
            why: format!("has {width} features: that {lack}"),
        });
    }
    let width = width as usize;
    let mut data = Vec::with_capacity(vertices * width);
    elements(&mut from, vertices * width, f32::from_le_bytes, &mut data).map_err(Error::io("read", path))?;
    Ok(RawFeatures::Dense { data: data.into(), rows: vertices, width })
}

/// Reads the masks of training, validation and test.
fn masks(meter: &Meter<'_>, path: &Path, vertices: usize) -> Result<[Vec<bool>; 3]> {
    let mut text = String::new();
    // The longest word has five letters, so 8 bytes per line suffice.
    let most = 8 * vertices as u64 + 8;
    let wrong = |why: String| Error::Import { file: path.display().to_string(), why };
    let from = meter.open_text(path, "it has the splits")?;
    from.take(most).read_to_string(&mut text).map_err(|e| wrong(format!("is not text: {e}")))?;
    let mut masks = [(); 3].map(|()| Vec::with_capacity(vertices));
    for (line, word) in text.lines().enumerate() {
        let which = match word.trim() {
            "Train" => 0,
            "Val" => 1,
            "Test" => 2,
            "None" => 3,
            other => {
                let line = line + 1;
                return Err(wrong(format!("line {line} is `{other:.20}`, expected Train, Val, Test or None")));
            }
        };
        masks.iter_mut().enumerate().for_each(|(split, mask)| mask.push(split == which));
    }
    if masks[0].len() != vertices {
        return Err(wrong(format!("has {} lines, expected {vertices} (one per vertex)", masks[0].len())));
    }
    Ok(masks)
}
