//! Importer for the heterophilous datasets: `edges`, `node_features`, `node_labels`, and ten splits as masks.

use super::archive::Archive;
use super::job::{ImportJob, Loaded, dense, labels};
use crate::dataset::edge_store::EdgeStore;
use crate::dataset::error::{Error, Result};
use crate::dataset::split::Members;

/// Reads an archive with `edges` `[edges, 2]`, `node_features`, `node_labels` and `train_masks`, `val_masks`,
/// `test_masks` `[splits, vertices]`.
///
/// # Source
/// Platonov, Kuznedelev, Diskin, Babenko & Prokhorenkova 2023.
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let archive = &mut Archive::open(&job.meter, job.source)?;
    if !archive.has("edges") {
        let found = archive.names();
        return Err(archive.wrong(format!("has no edges, expected edges, node_features, ...; it holds {found}")));
    }
    let features = archive.numbers("node_features", "it has the features")?;
    let vertices = match features.shape[..] {
        [rows, _] => rows,
        _ => return Err(features.wrong_shape("[vertices, width]")),
    };
    let features = dense(features, vertices)?;
    let store = edges(job, archive, vertices)?;
    let edges_listed = store.len();
    let (graph, seen) = job.graph(store, vertices)?;
    let mut parts = job.parts(graph);
    parts.directed = job.rules.symmetrise.then_some(false);
    parts.features = Some(features);
    parts.labels = Some(labels(archive.numbers("node_labels", "it has the labels")?, vertices)?);
    for (members, name) in parts.splits.iter_mut().zip(["train_masks", "val_masks", "test_masks"]) {
        if archive.has(name) {
            *members = Some(mask(job, archive, name, vertices)?);
        }
    }
    parts.source = Some(format!("yandex-research/heterophilous-graphs (mask {})", job.options.split));
    let notes = archive.unread().into_iter().collect();
    Ok(Loaded { notes, ..Loaded::new(parts, edges_listed, seen, job.rules.symmetrise) })
}

/// Reads the edges. If they are stored by columns, all sources come first, then all destinations.
fn edges(job: &ImportJob<'_>, archive: &mut Archive<'_>, vertices: usize) -> Result<EdgeStore> {
    let edges = archive.numbers("edges", "it has the edges")?;
    let by_rows = match edges.shape[..] {
        [_, 2] => !edges.fortran_order(),
        [2, _] => edges.fortran_order(),
        _ => return Err(edges.wrong_shape("[edges, 2]")),
    };
    let place = edges.place.clone();
    let expected = format!("a vertex, 0 to {}", vertices.saturating_sub(1));
    let vertex = |x: i64| u32::try_from(x).ok().filter(|&x| (x as usize) < vertices);
    let mut store = job.store();
    if !by_rows {
        let all = edges.ints(&expected, vertex)?;
        let (sources, destinations) = all.split_at(all.len() / 2);
        store.extend_columns(sources, destinations)?;
        return Ok(store);
    }
    let mut block = Vec::new();
    let mut position = 0;
    edges.int_blocks(|ends| {
        // A block has an even number of elements, since the matrix has.
        block.clear();
        for (at, &[u, v]) in ends.as_chunks::<2>().0.iter().enumerate() {
            let (Some(source), Some(destination)) = (vertex(u), vertex(v)) else {
                let found = if vertex(u).is_none() { u } else { v }.to_string();
                let position = position + 2 * at;
                return Err(Error::Value { file: place.clone(), position, found, expected: expected.clone() });
            };
            block.push([source, destination]);
        }
        position += ends.len();
        store.extend(&block)
    })?;
    Ok(store)
}

/// Reads the mask of the split that `--split` selects.
fn mask(job: &ImportJob<'_>, archive: &mut Archive<'_>, name: &str, vertices: usize) -> Result<Members> {
    let masks = archive.numbers(name, "it has the splits")?;
    let fortran_order = masks.fortran_order();
    let splits = match masks.shape[..] {
        [rows] if rows == vertices => 1,
        [splits, rows] if rows == vertices => splits,
        _ => return Err(masks.wrong_shape(format_args!("[splits, {vertices}]"))),
    };
    let which = job.split_among(splits, &masks.place)?;
    let mut mask = Vec::with_capacity(vertices);
    let mut position = 0;
    masks.int_blocks(|block| {
        for &on in block {
            let split = if fortran_order { position % splits } else { position / vertices };
            if split == which {
                mask.push(on != 0);
            }
            position += 1;
        }
        Ok(())
    })?;
    Ok(Members::Mask(mask))
}
