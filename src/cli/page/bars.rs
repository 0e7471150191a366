//! Horizontal bars as SVG, inside of a page.

use std::fmt::Write;

use super::chart::{WIDTH, key};
use super::html::escaped;
use crate::cli::output::seconds;

/// Space for the number behind the longest bar.
const RIGHT: f64 = 130.0;
/// Height of the name of a row, of a bar, and of the space below a row.
const NAME: f64 = 26.0;
const BAR: f64 = 22.0;
const BELOW: f64 = 10.0;

/// Rows of bars over a common axis that begins at 0.
pub(in super::super) struct Bars {
    pub(in super::super) title: String,
    /// The names of the bars of a row.
    pub(in super::super) series: Vec<String>,
    pub(in super::super) rows: Vec<Row>,
}

/// A group of bars.
pub(in super::super) struct Row {
    pub(in super::super) name: String,
    /// The length of each bar, and its number as text. A bar whose number is not known has none.
    pub(in super::super) bars: Vec<Option<(f64, String)>>,
}

impl Row {
    /// Returns a row of seconds, some of which are not known.
    pub(in super::super) fn of_seconds(name: String, bars: &[Option<f64>]) -> Self {
        Self { name, bars: bars.iter().map(|bar| bar.map(|value| (value, seconds(value)))).collect() }
    }
}

/// Draws the bars.
pub(super) fn svg(chart: &Bars) -> String {
    let row_height = NAME + BAR * chart.series.len() as f64 + BELOW;
    let height = row_height * chart.rows.len() as f64;
    let lengths = chart.rows.iter().flat_map(|row| row.bars.iter().flatten()).map(|(length, _)| *length);
    let most = lengths.fold(0.0, f64::max);
    let title = escaped(&chart.title);
    let mut svg = format!(
        "<figure>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n"
    );
    for (i, row) in chart.rows.iter().enumerate() {
        let top = row_height * i as f64;
        let _ =
            writeln!(svg, "<text class=\"row\" x=\"0\" y=\"{:.1}\">{}</text>", top + NAME - 8.0, escaped(&row.name));
        for (number, bar) in row.bars.iter().enumerate() {
            let y = top + NAME + BAR * number as f64;
            let text_y = y + BAR - 6.0;
            let Some((length, text)) = bar else {
                let _ = writeln!(svg, "<text x=\"0\" y=\"{text_y:.1}\">not known</text>");
                continue;
            };
            let width = if most > 0.0 { length / most * (WIDTH - RIGHT) } else { 0.0 };
            let (text_x, text) = (width + 6.0, escaped(text));
            let thickness = BAR - 4.0;
            let _ = writeln!(
                svg,
                "<rect class=\"series{number}\" x=\"0\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{thickness}\"/>"
            );
            let _ = writeln!(svg, "<text x=\"{text_x:.1}\" y=\"{text_y:.1}\">{text}</text>");
        }
    }
    svg += "</svg>\n<figcaption>";
    for (number, name) in chart.series.iter().enumerate() {
        svg += &key(&format!("square series{number}"), name);
    }
    svg + "</figcaption>\n</figure>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_numbers_say() {
        let bar = |length: f64| Some((length, format!("{length} s")));
        let rows = vec![
            Row { name: "a & b".into(), bars: vec![bar(2.0), bar(4.0)] },
            Row { name: "c".into(), bars: vec![None, bar(1.0)] },
        ];
        let drawn = svg(&Bars { title: "t".into(), series: vec!["x".into(), "y".into()], rows });
        for (series, share) in [(0, 0.5), (1, 1.0), (1, 0.25)] {
            let width = share * (WIDTH - RIGHT);
            let bar = drawn.lines().find(|line| line.contains(&format!("width=\"{width:.1}\""))).expect("a bar");
            assert!(bar.contains(&format!("series{series}")), "{bar}");
        }
        assert!(drawn.contains("a &amp; b") && drawn.contains(">4 s<") && drawn.contains("not known"), "{drawn}");
    }

    #[test]
    fn bars_of_no_length_are_drawn() {
        let rows = vec![Row { name: "a".into(), bars: vec![Some((0.0, "0 s".into()))] }];
        let drawn = svg(&Bars { title: "t".into(), series: vec!["x".into()], rows });
        assert!(drawn.contains("width=\"0.0\"") && !drawn.contains("NaN"), "{drawn}");
    }
}
