//! Charts of lines as SVG, inside of a page.

use std::fmt::Write;

use super::html::escaped;

pub(super) const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 318.0;
/// Space for the texts on each side.
pub(super) const LEFT: f64 = 64.0;
pub(super) const RIGHT: f64 = 16.0;
pub(super) const TOP: f64 = 36.0;
pub(super) const BOTTOM: f64 = 58.0;

/// How far below the horizontal axis its numbers are.
pub(super) const TICK_BELOW: f64 = 22.0;

/// The most marks on an axis.
const MOST_TICKS: usize = 7;

/// The most points of a line that are dots as well.
const MOST_DOTS: usize = 40;

/// Lines over a common axis.
pub(in super::super) struct Chart {
    pub(in super::super) title: String,
    pub(in super::super) x: Axis,
    pub(in super::super) y: Axis,
    pub(in super::super) lines: Vec<Line>,
    /// A place on the horizontal axis that is pointed out.
    pub(in super::super) mark: Option<(f64, String)>,
}

/// An axis.
pub(in super::super) struct Axis {
    /// What it measures, with the unit.
    pub(in super::super) label: String,
    /// Whether equal distances are equal ratios. All numbers are then above 0.
    pub(in super::super) is_log: bool,
}

/// Points that are joined, in the order of the horizontal axis.
pub(in super::super) struct Line {
    pub(in super::super) name: String,
    pub(in super::super) points: Vec<(f64, f64)>,
}

/// The range of an axis, and where it is drawn.
pub(super) struct Scale {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) is_log: bool,
}

impl Scale {
    /// Makes the scale for `values`. A linear one begins at 0 if that is not far away.
    pub(super) fn of(values: impl Iterator<Item = f64>, is_log: bool, [start, end]: [f64; 2]) -> Self {
        let finite = values.filter(|value| value.is_finite() && (!is_log || *value > 0.0));
        let (mut from, mut to) =
            finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| (from.min(value), to.max(value)));
        if from > to {
            (from, to) = (1.0, 2.0);
        }
        if !is_log && from > 0.0 && from < 0.7 * to {
            from = 0.0;
        }
        if from == to {
            (from, to) = if is_log { (from / 2.0, to * 2.0) } else { (from - 1.0, to + 1.0) };
        }
        Self { from, to, start, end, is_log }
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + share * (self.end - self.start)
    }

    /// Returns round numbers within the range.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let (first, last) = (self.from.log2().ceil() as i32, self.to.log2().floor() as i32);
            let step = ((last - first).max(0) as usize / MOST_TICKS + 1) as i32;
            let powers: Vec<f64> = (first..=last).step_by(step as usize).map(|power| 2f64.powi(power)).collect();
            if powers.len() >= 2 {
                return powers;
            }
        }
        let rough = (self.to - self.from) / (MOST_TICKS - 1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|round| round * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        (first..).map(|number| number as f64 * step).take_while(|tick| *tick <= self.to * (1.0 + 1e-9)).collect()
    }
}

/// Formats a number with at most four digits that count.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Returns an entry of the legend: a patch of a colour, and its name, on one line.
pub(super) fn key(class: &str, name: &str) -> String {
    format!("<span class=\"entry\"><span class=\"key {class}\"></span>{}</span> ", escaped(name))
}

/// Draws a chart.
pub(super) fn svg(chart: &Chart) -> String {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let marked = chart.mark.iter().map(|(x, _)| *x);
    let x = Scale::of(points().map(|point| point.0).chain(marked), chart.x.is_log, [LEFT, WIDTH - RIGHT]);
    let y = Scale::of(points().map(|point| point.1), chart.y.is_log, [HEIGHT - BOTTOM, TOP]);
    let title = escaped(&chart.title);
    let mut svg = format!(
        "<figure>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n"
    );
    let mut add = |args: std::fmt::Arguments<'_>| {
        let _ = svg.write_fmt(args);
        svg.push('\n');
    };
    for tick in y.ticks() {
        let (at, text) = (y.place(tick), number(tick));
        add(format_args!(
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        ));
        add(format_args!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 8.0, at + 4.0));
    }
    for tick in x.ticks() {
        let (at, text) = (x.place(tick), number(tick));
        add(format_args!(
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            HEIGHT - BOTTOM + TICK_BELOW
        ));
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let label = escaped(&chart.x.label);
    add(format_args!("<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", HEIGHT - 8.0));
    add(format_args!("<text x=\"4\" y=\"18\">{}</text>", escaped(&chart.y.label)));
    if let Some((place, label)) = &chart.mark {
        let at = x.place(*place);
        let (anchor, text_at) = if at > middle { ("end", at) } else { ("start", at.max(middle - 60.0)) };
        add(format_args!(
            "<line class=\"mark\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{}\"/>",
            HEIGHT - BOTTOM
        ));
        let (label, text_y) = (escaped(label), TOP - 8.0);
        add(format_args!("<text x=\"{text_at:.1}\" y=\"{text_y}\" text-anchor=\"{anchor}\">{label}</text>"));
    }
    for (number, line) in chart.lines.iter().enumerate() {
        let points = line.points.iter().filter(|(_, y)| y.is_finite());
        let places: Vec<(f64, f64)> = points.map(|point| (x.place(point.0), y.place(point.1))).collect();
        let joined: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        add(format_args!("<polyline class=\"series{number}\" points=\"{}\"/>", joined.join(" ")));
        for (x, y) in places.iter().filter(|_| places.len() <= MOST_DOTS) {
            add(format_args!("<circle class=\"series{number}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"));
        }
    }
    svg += "</svg>\n<figcaption>";
    for (number, line) in chart.lines.iter().enumerate() {
        svg += &key(&format!("series{number}"), &line.name);
    }
    svg + "</figcaption>\n</figure>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, is_log: bool) -> Chart {
        let axis = |is_log| Axis { label: "x <1>".into(), is_log };
        let lines = vec![Line { name: "a & b".into(), points }];
        Chart { title: "t".into(), x: axis(is_log), y: axis(false), lines, mark: Some((4.0, "here".into())) }
    }

    #[test]
    fn points_are_where_their_numbers_say() {
        let drawn = svg(&chart(vec![(1.0, 0.0), (4.0, 5.0), (16.0, 10.0)], true));
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        for place in [
            format!("{LEFT:.1},{:.1}", HEIGHT - BOTTOM),
            format!("{middle:.1},{:.1}", (TOP + HEIGHT - BOTTOM) / 2.0),
            format!("{:.1},{TOP:.1}", WIDTH - RIGHT),
        ] {
            assert!(drawn.contains(&place), "{place} in {drawn}");
        }
        assert!(drawn.contains("x &lt;1&gt;") && drawn.contains("a &amp; b") && drawn.contains(">here<"));
    }

    #[test]
    fn few_equal_and_missing_numbers_are_drawn() {
        for points in [vec![], vec![(1.0, 2.0)], vec![(1.0, 0.0), (2.0, 0.0)], vec![(1.0, f64::NAN), (2.0, 1.0)]] {
            for is_log in [false, true] {
                let drawn = svg(&chart(points.clone(), is_log));
                assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
            }
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        let scale = |from, to, is_log| Scale { from, to, start: 0.0, end: 1.0, is_log };
        assert_eq!(scale(0.0, 10.0, false).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(scale(1.0, 40.0, true).ticks(), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        assert!(scale(1.0, 1e9, true).ticks().len() <= MOST_TICKS + 1);
        assert_eq!([0.0, 0.25, 1234.5, 1e6, 0.001].map(number), ["0", "0.25", "1234", "1000000", "0.001"]);
    }
}
