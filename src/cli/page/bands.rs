//! Stacked bands over steps as SVG, inside of a page.

use std::fmt::Write;
use std::ops::Range;

use super::chart::{BOTTOM, LEFT, RIGHT, Scale, TICK_BELOW, WIDTH, key, number};
use super::html::escaped;

const HEIGHT: f64 = 420.0;
/// Space for three lines of text: the axis, the mark and the limit.
const TOP: f64 = 72.0;

/// The least height and width of a place for the name of a band.
const NAME_HEIGHT: f64 = 15.0;
const LETTER_WIDTH: f64 = 7.0;

/// How opaque the bands of one kind are, in turn, so that neighbours differ.
const SHADES: [&str; 3] = ["1", "0.72", "0.5"];

/// Quantities that are stacked, step by step.
pub(in super::super) struct Bands {
    pub(in super::super) title: String,
    /// What the steps are.
    pub(in super::super) x_label: String,
    /// What is stacked, with the unit.
    pub(in super::super) y_label: String,
    /// The first step of each column, and the step after the last one.
    pub(in super::super) steps: Vec<usize>,
    /// The bands, from the bottom to the top.
    pub(in super::super) bands: Vec<Band>,
    /// The names of the kinds of bands.
    pub(in super::super) kinds: Vec<String>,
    /// A height that the stack may not exceed.
    pub(in super::super) limit: Option<(f64, String)>,
    /// A step that is pointed out.
    pub(in super::super) mark: Option<(usize, String)>,
}

/// One band.
pub(in super::super) struct Band {
    pub(in super::super) name: String,
    /// What is shown with the name when one points at it.
    pub(in super::super) note: String,
    /// The number of its kind, which has the colour; `None` for what is left over.
    pub(in super::super) kind: Option<usize>,
    /// Its height in each column.
    pub(in super::super) heights: Vec<f64>,
}

/// A part of a band whose edges are level: its columns, and its edges as numbers of the axis.
struct Level {
    columns: Range<usize>,
    edges: [f64; 2],
}

/// Draws the bands.
pub(super) fn svg(chart: &Bands) -> String {
    let columns = chart.steps.len() - 1;
    let (first, end) = (chart.steps[0], chart.steps[columns]);
    let x = Scale { from: first as f64, to: end as f64, start: LEFT, end: WIDTH - RIGHT, is_log: false };
    let totals = (0..columns).map(|column| chart.bands.iter().map(|band| band.heights[column]).sum());
    let limit = chart.limit.iter().map(|(limit, _)| *limit);
    let y = Scale::of(totals.chain(limit).chain([0.0]), false, [HEIGHT - BOTTOM, TOP]);
    let title = escaped(&chart.title);
    let mut svg = format!(
        "<figure>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n"
    );
    axes(&mut svg, chart, (&x, &y));
    let mut bottoms = vec![0.0; columns];
    let mut of_kind = vec![0; chart.kinds.len()];
    let mut names = String::new();
    for band in &chart.bands {
        let levels = levels(&band.heights, &bottoms);
        let class = band.kind.map_or("rest".into(), |kind| format!("kind{kind}"));
        let shade = band.kind.map_or(0, |kind| of_kind[kind]);
        band.kind.into_iter().for_each(|kind| of_kind[kind] += 1);
        let place = |column: usize| x.place(chart.steps[column] as f64);
        let _ = writeln!(
            svg,
            "<path class=\"band {class}\" fill-opacity=\"{}\" d=\"{}\"><title>{}: {}</title></path>",
            SHADES[shade % SHADES.len()],
            outline(&levels, place, &y),
            escaped(&band.name),
            escaped(&band.note)
        );
        if let Some([x, y]) = place_of_name(&levels, &band.name, place, &y) {
            let name = escaped(&band.name);
            let _ =
                writeln!(names, "<text class=\"name\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>");
        }
        bottoms.iter_mut().zip(&band.heights).for_each(|(bottom, height)| *bottom += height);
    }
    svg += &names;
    lines(&mut svg, chart, (&x, &y));
    svg += "</svg>\n<figcaption>";
    let used = |kind: usize| chart.bands.iter().any(|band| band.kind == Some(kind));
    for (kind, name) in chart.kinds.iter().enumerate().filter(|(kind, _)| used(*kind)) {
        svg += &key(&format!("square kind{kind}"), name);
    }
    if chart.bands.iter().any(|band| band.kind.is_none()) {
        svg += &key("square rest", "all others");
    }
    svg + "</figcaption>\n</figure>\n"
}

/// Draws the grid and the texts of the axes.
fn axes(svg: &mut String, chart: &Bands, (x, y): (&Scale, &Scale)) {
    let right = WIDTH - RIGHT;
    for tick in y.ticks() {
        let (at, text) = (y.place(tick), number(tick));
        let _ = writeln!(svg, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 8.0, at + 4.0);
    }
    for tick in x.ticks().into_iter().filter(|tick| tick.fract() == 0.0) {
        // A step is as wide as what it stands for: its number is in the middle.
        let (at, y) = (x.place((tick + 0.5).min(x.to)), HEIGHT - BOTTOM + TICK_BELOW);
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", number(tick));
    }
    let (middle, bottom) = ((LEFT + right) / 2.0, HEIGHT - 8.0);
    let [x_label, y_label] = [&chart.x_label, &chart.y_label].map(|label| escaped(label));
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{x_label}</text>");
    let _ = writeln!(svg, "<text x=\"4\" y=\"18\">{y_label}</text>");
}

/// Draws the limit and the mark, with their texts.
fn lines(svg: &mut String, chart: &Bands, (x, y): (&Scale, &Scale)) {
    let right = WIDTH - RIGHT;
    if let Some((limit, label)) = &chart.limit {
        let (at, label) = (y.place(*limit), escaped(label));
        let _ = writeln!(svg, "<line class=\"limit\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>");
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.1}\">{label}</text>", at - 6.0);
    }
    if let Some((step, label)) = &chart.mark {
        let (at, label) = (x.place(*step as f64), escaped(label));
        let (bottom, text_y) = (HEIGHT - BOTTOM, TOP - 34.0);
        let anchor = if at > (LEFT + right) / 2.0 { "end" } else { "start" };
        let _ = writeln!(svg, "<line class=\"mark\" x1=\"{at:.1}\" y1=\"{text_y}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>");
        let text_x = if anchor == "end" { at - 4.0 } else { at + 4.0 };
        let text_y = text_y + 9.0;
        let _ = writeln!(svg, "<text x=\"{text_x:.1}\" y=\"{text_y}\" text-anchor=\"{anchor}\">{label}</text>");
    }
}

/// Returns the parts of a band, from the left to the right, without those of no height.
fn levels(heights: &[f64], bottoms: &[f64]) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for (column, (height, bottom)) in heights.iter().zip(bottoms).enumerate().filter(|(_, (height, _))| **height > 0.0)
    {
        let edges = [*bottom, bottom + height];
        match levels.last_mut() {
            Some(last) if last.columns.end == column && last.edges == edges => last.columns.end += 1,
            _ => levels.push(Level { columns: column..column + 1, edges }),
        }
    }
    levels
}

/// Returns the path around the parts: the upper edges to the right, and the lower ones back, for each run of parts without
/// a gap.
fn outline(levels: &[Level], place: impl Fn(usize) -> f64, y: &Scale) -> String {
    let mut path = String::new();
    for run in levels.chunk_by(|a, b| a.columns.end == b.columns.start) {
        let _ = write!(path, "M{:.1} {:.1}", place(run[0].columns.start), y.place(run[0].edges[0]));
        for level in run {
            let _ = write!(path, "V{:.1}H{:.1}", y.place(level.edges[1]), place(level.columns.end));
        }
        for level in run.iter().rev() {
            let _ = write!(path, "V{:.1}H{:.1}", y.place(level.edges[0]), place(level.columns.start));
        }
        path.push('Z');
    }
    path
}

/// Returns where the name of a band has room, in its widest part.
fn place_of_name(levels: &[Level], name: &str, place: impl Fn(usize) -> f64, y: &Scale) -> Option<[f64; 2]> {
    let width = |level: &Level| place(level.columns.end) - place(level.columns.start);
    let height = |level: &Level| y.place(level.edges[0]) - y.place(level.edges[1]);
    let high = levels.iter().filter(|level| height(level) >= NAME_HEIGHT);
    let widest = high.max_by(|a, b| width(a).total_cmp(&width(b)))?;
    let middle = [
        (place(widest.columns.start) + place(widest.columns.end)) / 2.0,
        (y.place(widest.edges[0]) + y.place(widest.edges[1])) / 2.0 + 4.0,
    ];
    (width(widest) >= LETTER_WIDTH * name.chars().count() as f64).then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(bands: &[(&str, &[f64])]) -> Bands {
        let band = |&(name, heights): &(&str, &[f64])| Band {
            name: name.into(),
            note: "n <1>".into(),
            kind: Some(0),
            heights: heights.into(),
        };
        Bands {
            title: "t & u".into(),
            x_label: "call".into(),
            y_label: "memory".into(),
            steps: (0..=bands[0].1.len()).collect(),
            bands: bands.iter().map(band).collect(),
            kinds: vec!["graph".into(), "not used".into()],
            limit: Some((10.0, "limit".into())),
            mark: Some((1, "here".into())),
        }
    }

    #[test]
    fn bands_lie_on_one_another_up_to_the_limit() {
        let drawn = svg(&chart(&[("a", &[5.0, 5.0, 0.0, 5.0]), ("b", &[0.0, 5.0, 10.0, 5.0])]));
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let x = |column: f64| LEFT + (right - LEFT) * column / 4.0;
        let middle = (TOP + bottom) / 2.0;
        // a: two columns from the bottom to the middle, a gap, and one more.
        let a = format!(
            "M{:.1} {bottom:.1}V{middle:.1}H{:.1}V{bottom:.1}H{:.1}ZM{:.1} {bottom:.1}",
            x(0.0),
            x(2.0),
            x(0.0),
            x(3.0)
        );
        // b: on top of a, then alone from the bottom, then on top again.
        let b = format!("M{:.1} {middle:.1}V{TOP:.1}H{:.1}V{TOP:.1}H{:.1}V{TOP:.1}H{right:.1}", x(1.0), x(2.0), x(3.0));
        for path in [a, b] {
            assert!(drawn.contains(&path), "{path} in {drawn}");
        }
        assert!(drawn.contains(&format!("class=\"limit\" x1=\"{LEFT}\" y1=\"{TOP:.1}\"")), "{drawn}");
        assert!(drawn.contains("<title>a: n &lt;1&gt;</title>") && drawn.contains("t &amp; u"), "{drawn}");
        assert!(drawn.contains("kind0\"></span>graph") && !drawn.contains("not used"), "{drawn}");
    }

    #[test]
    fn a_name_is_written_where_it_has_room() {
        let long = "a name that is longer than a quarter of the picture";
        let drawn =
            svg(&chart(&[("short", &[5.0, 1.0, 5.0, 5.0]), (long, &[1.0, 2.0, 3.0, 4.0]), ("flat", &[0.1; 4])]));
        assert_eq!(drawn.matches("class=\"name\"").count(), 1);
        assert!(drawn.contains(">short</text>"), "{drawn}");
    }

    #[test]
    fn nothing_is_drawn_as_an_empty_picture() {
        let drawn = svg(&chart(&[("a", &[0.0])]));
        assert!(drawn.contains("d=\"\"") && !drawn.contains("NaN"), "{drawn}");
    }
}
