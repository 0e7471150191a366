//! The report as one page, which needs no other file.

use super::{Block, Page, Tone, bands, bars, chart};

/// The look of the page, in light and in dark.
const STYLE: &str = include_str!("page.css");

pub(in super::super) fn page(report: &Page) -> String {
    let blocks: String = report.blocks.iter().map(block).collect();
    let title = escaped(&report.title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{blocks}</main>\n</body>\n</html>\n"
    )
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(heading) => format!("<h2>{}</h2>\n", escaped(heading)),
        Block::Paragraph(paragraph) => format!("<p>{}</p>\n", escaped(paragraph)),
        Block::Code(code) => format!("<pre>{}</pre>\n", escaped(code)),
        Block::Chart(chart) => chart::svg(chart),
        Block::Bands(bands) => bands::svg(bands),
        Block::Bars(bars) => bars::svg(bars),
        Block::Verdict { tone, word, sentence } => {
            let class = match tone {
                Tone::Good => "good",
                Tone::Bad => "bad",
                Tone::Unsure => "unsure",
            };
            format!("<p class=\"verdict {class}\"><strong>{word}</strong> {sentence}</p>\n")
        }
        Block::List(lines) => {
            let items: String = lines.iter().map(|line| format!("<li>{}</li>\n", escaped(line))).collect();
            format!("<ul>\n{items}</ul>\n")
        }
        Block::Table { header, rows } => {
            let row = |tag: &str, cells: &[String]| {
                let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", breakable(cell))).collect();
                format!("<tr>{cells}</tr>\n")
            };
            let body: String = rows.iter().map(|cells| row("td", cells)).collect();
            format!(
                "<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n",
                row("th", header)
            )
        }
    }
}

/// Returns a cell that is broken at the right places: long names of fused operations may be, a number and its unit not.
fn breakable(cell: &str) -> String {
    let cell_is_number = cell.starts_with(|c: char| c.is_ascii_digit()) && cell.matches(' ').count() == 1;
    let cell = escaped(cell).replace('+', "+<wbr>");
    if cell_is_number { cell.replace(' ', "&nbsp;") } else { cell }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::markdown;
    use super::*;

    #[test]
    fn names_and_errors_cannot_become_markup() {
        let cell = "<script>alert(\"a|b\")</script>\nnext".to_owned();
        let table = Block::Table { header: vec!["a".into()], rows: vec![vec![cell.clone()]] };
        let report =
            Page { title: cell.clone(), blocks: vec![table, Block::List(vec![cell.clone()]), Block::Paragraph(cell)] };
        let page = page(&report);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
        assert!(!page.contains("http"), "the page needs nothing else: {page}");
        let text = markdown::text(&report);
        assert!(!text.contains("<script") && text.contains("a\\|b"), "{text}");
        let row = text.lines().find(|line| line.starts_with('|') && line.contains("alert")).expect("the row");
        assert!(row.ends_with("next |"), "{row}");
    }
}
