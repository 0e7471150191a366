//! Importer for Matrix Market's coordinate files.

use super::blocks::Blocks;
use super::job::{ImportJob, Loaded};
use super::text::{Small, Stop, each_edge};
use super::weights::EdgeWeights;
use crate::dataset::edge_store::{Built, Reverses};
use crate::dataset::error::Result;
use crate::graph::MAX_VERTICES;

/// Reads a square matrix. Cell (i, j) is the edge i -> j; if the header declares any symmetry, it is j -> i as well.
/// Rows count from 1. Real and integer values are the weights of the edges, unless they are to be dropped. The
/// reverse of an edge of a skew-symmetric matrix has the weight of the other sign.
///
/// # Source
/// Boisvert, Pozo & Remington 1996, "The Matrix Market exchange formats".
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let text = job.meter.open_text(job.source, "it is the matrix to import")?;
    let mut blocks = Blocks::new(text, job.source.display().to_string());
    let header = Header::read(job, &mut blocks)?;
    let vertices = header.side;
    let weights = header.weights(job)?;
    let mut store = job.store_with(weights.is_some());
    let mut block = Vec::new();
    let most = header.cells;
    let read = each_edge::<_, Small>(blocks, 0, (b' ', weights), |edges, weights| {
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
        store.extend_weights(weights)?;
        if store.len() > most {
            return Err(job.wrong(format!("has more entries than the {most} of its size line")));
        }
        Ok(())
    })?;
    let counts = read.map_err(|stopped| {
        let line = header.lines + stopped.line;
        match stopped.stop {
            Stop::OneEnd => job.wrong(format!("line {line} has one column, expected a row and a column")),
            Stop::Weight => job.wrong(format!(
                "line {line} has no finite value: `{}`; set option `edge_weights` to drop to import it without weights",
                stopped.text
            )),
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
    let reverses = match symmetrise {
        false => Reverses::Without,
        true if header.skew => Reverses::Negated,
        true => Reverses::Same,
    };
    let Built { graph, weights, seen } = store.finish_weighted(vertices, reverses, job.joining(), |id| id)?;
    let weights_from = weights.is_some().then(|| "the values of the matrix".into());
    let mut parts = job.weighted_parts(graph, weights);
    parts.name = parts.name.strip_suffix(".mtx").map_or(parts.name.clone(), str::to_string);
    parts.directed = symmetrise.then_some(false);
    job.add_arrays(&mut parts)?;
    Ok(Loaded { weights_from, values_dropped: counts.with_more, ..Loaded::new(parts, edges_listed, seen, symmetrise) })
}

/// The header of a file.
struct Header {
    side: usize,
    cells: u64,
    symmetric: bool,
    skew: bool,
    field: Field,
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
        let (field, symmetric, skew) = kind(&banner).map_err(|why| job.wrong(why))?;
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
        Ok(Self { side: rows as usize, cells, symmetric, skew, field, lines })
    }

    /// Returns the column of the weights, if they are kept.
    fn weights(&self, job: &ImportJob<'_>) -> Result<Option<usize>> {
        const VALUES: usize = 2;
        let choice = job.options.edge_weights;
        match (choice, self.field) {
            (EdgeWeights::Drop, _) => Ok(None),
            (EdgeWeights::Column(_), _) if choice.number() != Some(VALUES) => {
                Err(choice.refused("`keep`, `drop` or 3: the values of a matrix are its third column"))
            }
            (_, Field::Real) => Ok(Some(VALUES)),
            (EdgeWeights::Guess, _) => Ok(None),
            (_, Field::Pattern) => Err(choice.refused("nothing or `drop`: the entries of a pattern have no values")),
            (_, Field::Complex) => Err(choice.refused("nothing or `drop`: weights are real, the values are complex")),
        }
    }
}

/// The type of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Pattern,
    /// Real or integer.
    Real,
    Complex,
}

/// Returns what the banner declares: the type of the values, whether each entry has a mirror image, and whether that has
/// the other sign.
fn kind(banner: &str) -> std::result::Result<(Field, bool, bool), String> {
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
    let field = match field {
        "pattern" => Field::Pattern,
        "real" | "integer" | "double" => Field::Real,
        "complex" => Field::Complex,
        _ => return Err(format!("has entries of type `{field:.20}`, expected pattern, real, integer or complex")),
    };
    match symmetry {
        "general" => Ok((field, false, false)),
        "symmetric" | "hermitian" => Ok((field, true, false)),
        "skew-symmetric" => Ok((field, true, true)),
        other => Err(format!("has symmetry `{other:.20}`, expected general, symmetric, skew-symmetric or hermitian")),
    }
}
