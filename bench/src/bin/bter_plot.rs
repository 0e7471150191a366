//! Draws the degrees and the clustering by degree of a graph and of BTER graphs generated from it, as an SVG.
//!
//!     cargo run --release -p lapidary-bench --bin bter_plot -- DATA OUT.svg [SCALE ..]
//!
//! DATA is an undirected dataset directory, builtin:karate or builtin:planted. The default scales are 1 and 16. Both
//! panels have logarithmic axes. Degrees are grouped in ranges that grow by a quarter; each is drawn at its middle.

use std::error::Error;
use std::fmt::Write;

use lapidary::Dataset;
use lapidary::dataset::generate::{BterOptions, DegreeProfile, bter};

/// Ratio of the widths of successive ranges of degrees.
const STEP: f64 = 1.25;
const COLOURS: [&str; 4] = ["#1f6fb2", "#c2410c", "#15803d", "#7e22ce"];
const WIDTH: f64 = 430.0;
const HEIGHT: f64 = 340.0;
const MARGIN: f64 = 60.0;

/// The name of a graph and its points, one per range of degrees.
struct Series {
    name: String,
    points: Vec<Point>,
}

/// The vertices with degrees in a range.
struct Point {
    degree: f64,
    /// Average share of all vertices per degree of the range.
    share: f64,
    clustering: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(data), Some(out)) = (args.next(), args.next()) else {
        return Err("usage: bter_plot DATA OUT.svg [SCALE ..]".into());
    };
    let scales: Vec<f64> = args.map(|scale| scale.parse()).collect::<Result<_, _>>()?;
    let data = Dataset::load(&data)?;
    let wanted = DegreeProfile::of(data.graph())?;
    let mut all = vec![series(format!("{}: {}", data.name(), sizes(&wanted)), &wanted)];
    report("input", &wanted);
    for scale in if scales.is_empty() { vec![1.0, 16.0] } else { scales } {
        let made = bter(&BterOptions::new(wanted.scaled(scale)?))?;
        let got = DegreeProfile::of(made.graph())?;
        report(&format!("BTER x {scale}"), &got);
        all.push(series(format!("BTER x {scale}: {}", sizes(&got)), &got));
    }
    std::fs::write(out, draw(&all))?;
    Ok(())
}

fn sizes(profile: &DegreeProfile) -> String {
    format!("{} vertices, {} edges", profile.vertices(), profile.edges())
}

fn report(name: &str, profile: &DegreeProfile) {
    let mean = profile.edges() as f64 / profile.vertices() as f64;
    println!("{name}: {}, mean degree {mean:.2}, transitivity {:.4}", sizes(profile), profile.transitivity());
}

fn series(name: String, profile: &DegreeProfile) -> Series {
    let all = profile.vertices() as f64;
    let mut points = Vec::new();
    let mut low = 1u64;
    let greatest = profile.rows().last().map_or(0, |row| row.degree);
    while low <= greatest {
        let high = ((low as f64 * STEP).ceil() as u64).max(low + 1);
        let rows = profile.rows().iter().filter(|row| (low..high).contains(&row.degree));
        let (mut vertices, mut wedges, mut closed) = (0.0, 0.0, 0.0);
        for row in rows {
            let here = row.vertices as f64 * row.degree as f64 * (row.degree as f64 - 1.0);
            vertices += row.vertices as f64;
            wedges += here;
            closed += here * row.clustering;
        }
        if vertices > 0.0 {
            let degree = (low as f64 * (high - 1) as f64).sqrt();
            let clustering = if wedges > 0.0 { closed / wedges } else { 0.0 };
            points.push(Point { degree, share: vertices / all / (high - low) as f64, clustering });
        }
        low = high;
    }
    Series { name, points }
}

fn draw(all: &[Series]) -> String {
    let height = HEIGHT + 30.0 + 20.0 * all.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{height}\" viewBox=\"0 0 {w} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        w = 2.0 * WIDTH
    );
    panel(&mut svg, 0.0, "vertices of the degree (share)", all, |point| point.share);
    panel(&mut svg, WIDTH, "clustering at the degree", all, |point| point.clustering);
    for (at, series) in all.iter().enumerate() {
        let y = HEIGHT + 20.0 + 20.0 * at as f64;
        mark(&mut svg, at, MARGIN, y - 4.0);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\">{}</text>", MARGIN + 12.0, escaped(&series.name));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws one panel with its axes. Values of 0 are left out, since the axes are logarithmic.
fn panel(svg: &mut String, left: f64, title: &str, all: &[Series], value: impl Fn(&Point) -> f64) {
    let points = || all.iter().flat_map(|series| &series.points).filter(|point| value(point) > 0.0);
    let span = |of: &dyn Fn(&Point) -> f64| {
        let logs = || points().map(|point| of(point).log10());
        (logs().fold(f64::MAX, f64::min).floor(), logs().fold(f64::MIN, f64::max).ceil())
    };
    let ((x_low, x_high), (y_low, y_high)) = (span(&|point| point.degree), span(&|point| value(point)));
    let (inner_width, inner_height) = (WIDTH - MARGIN - 20.0, HEIGHT - 2.0 * MARGIN + 20.0);
    let x = |log: f64| left + MARGIN + (log - x_low) / (x_high - x_low).max(1.0) * inner_width;
    let y = |log: f64| 30.0 + (y_high - log) / (y_high - y_low).max(1.0) * inner_height;
    let line = |svg: &mut String, [x1, y1, x2, y2]: [f64; 4]| {
        let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#d4d4d4\"/>");
    };
    let text = |svg: &mut String, x: f64, y: f64, anchor: &str, text: &str| {
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    };
    for power in x_low as i32..=x_high as i32 {
        let at = x(f64::from(power));
        line(svg, [at, y(y_low), at, y(y_high)]);
        text(svg, at, y(y_low) + 16.0, "middle", &10f64.powi(power).to_string());
    }
    for power in y_low as i32..=y_high as i32 {
        let at = y(f64::from(power));
        line(svg, [x(x_low), at, x(x_high), at]);
        text(svg, x(x_low) - 6.0, at + 4.0, "end", &format!("1e{power}"));
    }
    text(svg, left + MARGIN + inner_width / 2.0, 18.0, "middle", title);
    text(svg, left + MARGIN + inner_width / 2.0, y(y_low) + 32.0, "middle", "degree");
    for (at, series) in all.iter().enumerate() {
        for point in series.points.iter().filter(|point| value(point) > 0.0) {
            mark(svg, at, x(point.degree.log10()), y(value(point).log10()));
        }
    }
}

/// Draws a point: a ring for the input, a dot for generated graphs.
fn mark(svg: &mut String, series: usize, x: f64, y: f64) {
    let colour = COLOURS[series % COLOURS.len()];
    let _ = match series {
        0 => writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        ),
        _ => writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\" fill-opacity=\"0.8\"/>"),
    };
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
