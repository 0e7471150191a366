//! The report as Markdown.

use std::fmt::Write;

use super::{Bands, Bars, Block, Chart, Page};

pub(in super::super) fn text(report: &Page) -> String {
    let mut text = format!("# {}\n", escaped(&report.title));
    for block in &report.blocks {
        text.push('\n');
        match block {
            Block::Heading(heading) => text += &format!("## {}\n", escaped(heading)),
            Block::Paragraph(paragraph) => text += &format!("{}\n", escaped(paragraph)),
            Block::Code(code) => text += &format!("    {code}\n"),
            Block::Chart(Chart { title, .. }) | Block::Bands(Bands { title, .. }) | Block::Bars(Bars { title, .. }) => {
                text += &format!("(chart: {})\n", escaped(title));
            }
            Block::Verdict { word, sentence, .. } => text += &format!("**{word}**: {sentence}\n"),
            Block::List(lines) => lines.iter().for_each(|line| text += &format!("- {}\n", escaped(line))),
            Block::Table { header, rows } => table(&mut text, header, rows),
        }
    }
    text
}

fn table(text: &mut String, header: &[String], rows: &[Vec<String>]) {
    let all = || std::iter::once(header).chain(rows.iter().map(Vec::as_slice));
    let cell = |text: &String| escaped(text).replace('|', "\\|");
    let widths: Vec<usize> = (0..header.len())
        .map(|column| all().map(|row| cell(&row[column]).chars().count()).max().unwrap_or(0).max(3))
        .collect();
    let mut line = |row: &[String]| {
        for (value, width) in row.iter().zip(&widths) {
            let _ = write!(text, "| {:width$} ", cell(value));
        }
        text.push_str("|\n");
    };
    line(header);
    line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
}

/// Replaces line ends, which would end a paragraph or a row, and the beginning of a tag.
fn escaped(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('<', "&lt;")
}
