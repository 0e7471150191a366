//! Comparisons with derived tolerances.

use super::rig::{Rig, on_gpu, shapes_are_few};

/// Returns what `f` computes on one thread, after checking that three threads compute the same bits; on a GPU, a second run,
/// unless [shapes are few](shapes_are_few).
#[track_caller]
pub fn on_any_threads(what: &str, f: impl Fn(&Rig) -> Vec<f32>) -> Vec<f32> {
    let one = f(&Rig::new(1));
    if on_gpu() && shapes_are_few() {
        return one;
    }
    let three = f(&Rig::new(3));
    let others = if on_gpu() { "two runs" } else { "1 and 3 threads" };
    assert!(same_bits(&one, &three), "{what}: {others} differ");
    one
}

/// The entries of two lists of the same length, pair by pair.
#[track_caller]
pub fn pairs<'a, A, B>(a: &'a [A], b: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    assert_eq!(a.len(), b.len(), "lists of different lengths");
    a.iter().zip(b)
}

pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Returns an error unless every cell is as close to the oracle as arithmetic on `terms` terms must be.
///
/// `k` rounded terms in any order err by at most about `k * eps * sum |terms|`; `magnitude` is that sum.
pub fn compare(got: &[f32], want: &[f64], magnitude: &[f64], terms: usize) -> Result<(), String> {
    if got.len() != want.len() || want.len() != magnitude.len() {
        return Err(format!("{} cells, not {}", got.len(), want.len()));
    }
    let factor = (terms as f64 + 2.0) * f64::from(f32::EPSILON);
    for (i, ((&got, &want), &magnitude)) in got.iter().zip(want).zip(magnitude).enumerate() {
        let allowed = factor * magnitude + 1e-36;
        let error = (f64::from(got) - want).abs();
        if error.is_nan() || error > allowed {
            return Err(format!("cell {i} is {got}, not {want}: off by {error:e}, allowed {allowed:e}"));
        }
    }
    Ok(())
}

#[track_caller]
pub fn assert_close(what: &str, got: &[f32], want: &[f64], magnitude: &[f64], terms: usize) {
    if let Err(objection) = compare(got, want, magnitude, terms) {
        panic!("{what}: {objection}");
    }
}
