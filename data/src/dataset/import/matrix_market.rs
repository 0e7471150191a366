//! Importer for Matrix Market's coordinate files.

use super::blocks::Blocks;
use super::job::{ImportJob, Loaded};
use super::text::{Small, Stop, each_edge};
use crate::dataset::error::Result;
use crate::graph::MAX_VERTICES;

/// Reads a square matrix. Cell (i, j) is the edge i -> j; if the header declares any symmetry, it is j -> i as well.
/// Rows count from 1. Values are dropped and counted.
///
/// # Source
/// Boisvert, Pozo & Remington 1996, "The Matrix Market exchange formats".
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let text = job.meter.open_text(job.source, "it is the matrix to import")?;
    let mut blocks = Blocks::new(text, job.source.display().to_string());
    let header = Header::read(job, &mut blocks)?;
    let vertices = header.side;
    let mut store = job.store();
    let mut block = Vec::new();
    let most = header.cells;
    let read = each_edge::<_, Small>(blocks, 0, b' ', |edges| {
        block.clear();
        for &[row, column] in edges {
            let inside = |x: u32| (1..=vertices as u64).contains(&u64::from(x));
            if !inside(row) || !inside(column) {
                let cell = store.len() + block.len() as u64 + 1;
                return Err(job.wrong(format!("entry {cell} is ({row}, {column}), expected 1 to {vertices}")));
            }
            block.push([row - 1, column - 1]);
        }
        store.extend(&block)?;
        if store.len() > most {
            return Err(job.wrong(format!("has more entries than the {most} of its size line")));
        }
        Ok(())
    })?;
    let counts = read.map_err(|stopped| {
        let line = header.lines + stopped.line;
        match stopped.stop {
            Stop::OneEnd => job.wrong(format!("line {line} has one column, expected a row and a column")),
            Stop::Large => job.wrong(format!("line {line} has a row or column above {MAX_VERTICES}")),
            _ => job.wrong(format!("line {line} is not an entry: expected a row and a column, counting from 1")),
        }
    })?;
    let edges_listed = store.len();
    if edges_listed != header.cells {
        let cells = header.cells;
        return Err(
            job.wrong(format!("ends after {edges_listed} entries, its size line promises {cells}; is it cut short?"))
        );
    }
    let symmetrise = job.options.symmetrise.unwrap_or(header.symmetric);
    let (graph, seen) = store.finish(vertices, symmetrise, job.rules.keep, |id| id)?;
    let mut parts = job.parts(graph);
    parts.name = parts.name.strip_suffix(".mtx").map_or(parts.name.clone(), str::to_string);
    parts.directed = symmetrise.then_some(false);
    job.add_arrays(&mut parts)?;
    Ok(Loaded { values_dropped: counts.with_more, ..Loaded::new(parts, edges_listed, seen, symmetrise) })
}

/// The header of a file.
struct Header {
    side: usize,
    cells: u64,
    symmetric: bool,
    lines: u64,
}

impl Header {
    /// Reads the banner and the size line. The entries remain in `blocks`.
    fn read<R: std::io::Read>(job: &ImportJob<'_>, blocks: &mut Blocks<R>) -> Result<Self> {
        let block = blocks.next()?.unwrap_or_default();
        let mut lines = 0;
        let mut at = 0;
        let mut next = || {
            let line = block.get(at..).filter(|rest| !rest.is_empty())?;
            let len = line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len());
            at += (len + 1).min(line.len());
            lines += 1;
            Some(String::from_utf8_lossy(&line[..len.min(1024)]).into_owned())
        };
        let banner = next().unwrap_or_default();
        let symmetric = symmetry(&banner).map_err(|why| job.wrong(why))?;
        let size = loop {
            match next() {
                None => return Err(job.wrong("ends before its size line")),
                Some(line) if line.trim().is_empty() || line.trim_start().starts_with('%') => {}
                Some(line) => break line,
            }
        };
        let numbers: Vec<u64> = size.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [rows, columns, cells] = numbers[..] else {
            return Err(job.wrong(format!("has size line `{size:.60}`, expected rows, columns and entries")));
        };
        if rows != columns {
            return Err(
                job.wrong(format!("is {rows} by {columns}, expected a square matrix: a vertex is a row and a column"))
            );
        }
        if rows > MAX_VERTICES as u64 {
            return Err(job.wrong(format!("has {rows} rows, expected at most {MAX_VERTICES}")));
        }
        job.check_vertices(rows as usize, cells)?;
        blocks.put_back(block[at..].to_vec());
        Ok(Self { side: rows as usize, cells, symmetric, lines })
    }
}

/// Returns whether the banner declares that each entry has a mirror image.
fn symmetry(banner: &str) -> std::result::Result<bool, String> {
    let words: Vec<String> = banner.split_whitespace().map(str::to_lowercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [mark, object, format, field, symmetry] = words[..] else {
        return Err(format!("starts with `{banner:.60}`, expected %%MatrixMarket matrix coordinate ..."));
    };
    if mark != "%%matrixmarket" || object != "matrix" {
        return Err(format!("starts with `{banner:.60}`, expected %%MatrixMarket matrix coordinate ..."));
    }
    if format != "coordinate" {
        return Err(format!("is a matrix in `{format:.20}` format, expected coordinate: edges are its entries"));
    }
    if !["pattern", "real", "integer", "complex", "double"].contains(&field) {
        return Err(format!("has entries of type `{field:.20}`, expected pattern, real, integer or complex"));
    }
    match symmetry {
        "general" => Ok(false),
        "symmetric" | "skew-symmetric" | "hermitian" => Ok(true),
        other => Err(format!("has symmetry `{other:.20}`, expected general, symmetric, skew-symmetric or hermitian")),
    }
}
