//! Sparse updates of rows: only those with a gradient change.

use rayon::prelude::*;

use crate::ranks::RowTerms;
use crate::train::Optimizer;

/// Rows of the table that one task updates.
const ROWS_A_TASK: usize = 512;

/// Rows, and the moments of their numbers.
pub(super) struct Table<'t> {
    /// The id of the first row.
    pub first: usize,
    pub width: usize,
    pub rows: &'t mut [f32],
    pub moments: Vec<&'t mut [f32]>,
}

/// One step of a sparse optimizer. Weight decay does not apply: it would change rows without a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SparseStep {
    /// `row -= rate * gradient`.
    Sgd { rate: f32 },
    /// `m += (1 - beta1) * (gradient - m)`; `v += (1 - beta2) * (gradient^2 - v)`; `row -= rate * m / (sqrt(v) + eps)`.
    /// The rate has both corrections of the bias, for the number of steps of the run.
    Adam { rate: f32, beta1: f32, beta2: f32, eps: f32 },
}

impl SparseStep {
    /// Creates step number `step`, from 1, with a learning rate.
    ///
    /// # Source
    /// `torch.optim.SparseAdam`, `torch.optim.SGD`. As there, scalars are f64 and numbers of rows f32.
    pub(super) fn new(optimizer: &Optimizer, step: u64, lr: f64) -> Self {
        // The learning rate is an f32 everywhere else.
        let lr = f64::from(lr as f32);
        match optimizer.adam_settings() {
            None => Self::Sgd { rate: lr as f32 },
            Some([beta1, beta2, eps]) => {
                let correction = |beta: f64| 1.0 - beta.powf(step as f64);
                let rate = lr * correction(beta2).sqrt() / correction(beta1);
                let [rate, beta1, beta2, eps] = [rate, 1.0 - beta1, 1.0 - beta2, eps].map(|x| x as f32);
                Self::Adam { rate, beta1, beta2, eps }
            }
        }
    }
}

impl Table<'_> {
    /// Updates the rows of these terms, whose ids are all in the table. Those of one row are added in their order.
    ///
    /// # Cost
    /// O(terms log terms + terms * width), and a look at every 512 rows of the table.
    pub(super) fn update(self, terms: &[RowTerms], step: &SparseStep) {
        let Self { first, width, rows, mut moments } = self;
        // The id, the number of the term's list, and its place there.
        let all = terms
            .iter()
            .zip(0u32..)
            .flat_map(|(terms, list)| terms.ids.iter().zip(0u32..).map(move |(&id, place)| (id, list, place)));
        let mut all: Vec<(u32, u32, u32)> = all.collect();
        all.par_sort_unstable();
        let gradient =
            |&(_, list, place): &(u32, u32, u32)| &terms[list as usize].rows[place as usize * width..][..width];
        let in_rows = |task: usize| {
            let start = first + task * ROWS_A_TASK;
            let below = |limit: usize| all.partition_point(|&(id, ..)| (id as usize) < limit);
            (start, &all[below(start)..below(start + ROWS_A_TASK)])
        };
        let update = |task: usize, rows: &mut [f32], mut moments: [&mut [f32]; 2]| {
            let (start, terms) = in_rows(task);
            let mut sum = vec![0.0; width];
            for of_row in terms.chunk_by(|a, b| a.0 == b.0) {
                sum.copy_from_slice(gradient(&of_row[0]));
                for term in &of_row[1..] {
                    sum.iter_mut().zip(gradient(term)).for_each(|(sum, more)| *sum += more);
                }
                let at = (of_row[0].0 as usize - start) * width;
                let numbers = at..at + width;
                let row = &mut rows[numbers.clone()];
                match *step {
                    SparseStep::Sgd { rate } => {
                        row.iter_mut().zip(&sum).for_each(|(x, gradient)| *x -= rate * gradient);
                    }
                    SparseStep::Adam { rate, beta1, beta2, eps } => {
                        let [m, v] = &mut moments;
                        let (m, v) = (&mut m[numbers.clone()], &mut v[numbers]);
                        for (((x, m), v), gradient) in row.iter_mut().zip(m).zip(v).zip(&sum) {
                            *m += beta1 * (gradient - *m);
                            *v += beta2 * (gradient * gradient - *v);
                            *x -= rate * (*m / (v.sqrt() + eps));
                        }
                    }
                }
            }
        };
        let size = ROWS_A_TASK * width;
        let tasks = rows.par_chunks_mut(size).enumerate();
        match &mut moments[..] {
            [m, v] => tasks
                .zip(m.par_chunks_mut(size).zip(v.par_chunks_mut(size)))
                .for_each(|((task, rows), (m, v))| update(task, rows, [m, v])),
            _ => tasks.for_each(|(task, rows)| update(task, rows, [&mut [], &mut []])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::{Adam, Sgd};

    const WIDTH: usize = 3;

    /// Returns the terms of several parts in a step: most rows have none, some have two.
    fn terms(step: u64, rows: u32) -> Vec<RowTerms> {
        let of_part = |part: u32| {
            let ids: Vec<u32> = (0..rows).filter(|id| (id * 7 + part * 3 + step as u32).is_multiple_of(5)).collect();
            let number = |id: u32, c: u32| ((id * 31 + c * 17 + part * 13 + step as u32 * 29) % 97) as f32 / 97.0 - 0.4;
            let rows = ids.iter().flat_map(|&id| (0..3).map(move |c| number(id, c))).collect();
            RowTerms { ids, rows }
        };
        (0..3).map(of_part).collect()
    }

    #[test]
    fn rows_follow_a_reference_in_f64_and_rows_without_gradient_do_not_move() {
        let (n, first, lr) = (1500u32, 100u32, 0.05);
        let (beta1, beta2, eps) = (0.8, 0.99, 1e-6);
        let adam = Adam::new(lr).betas(beta1, beta2).eps(eps).weight_decay(0.3);
        for optimizer in [Optimizer::from(adam), Optimizer::from(Sgd::new(lr))] {
            let is_adam = matches!(optimizer, Optimizer::Adam(_));
            let start: Vec<f32> = (0..n * 3).map(|i| (i % 11) as f32 / 11.0 - 0.5).collect();
            let (mut rows, mut m, mut v) = (start.clone(), vec![0.0f32; start.len()], vec![0.0f32; start.len()]);
            let (mut want, mut want_m, mut want_v): (Vec<f64>, _, _) =
                (start.iter().map(|&x| x.into()).collect(), vec![0.0f64; start.len()], vec![0.0f64; start.len()]);
            for step in 1..=40u64 {
                let mut given = terms(step, n);
                // Ids of the table begin at `first`.
                given.iter_mut().flat_map(|terms| &mut terms.ids).for_each(|id| *id += first);
                let moments = if is_adam { vec![&mut m[..], &mut v[..]] } else { Vec::new() };
                let table = Table { first: first as usize, width: WIDTH, rows: &mut rows, moments };
                table.update(&given, &SparseStep::new(&optimizer, step, lr));
                let mut sums: std::collections::BTreeMap<u32, [f64; 3]> = std::collections::BTreeMap::new();
                for terms in &given {
                    for (id, row) in terms.ids.iter().zip(terms.rows.chunks(3)) {
                        let sum = sums.entry(id - first).or_default();
                        sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
                    }
                }
                for (id, gradient) in sums {
                    for (c, g) in gradient.into_iter().enumerate() {
                        let at = id as usize * 3 + c;
                        if !is_adam {
                            want[at] -= f64::from(lr as f32) * g;
                            continue;
                        }
                        // As torch.optim.SparseAdam: moments of other rows stay; the bias is that of the run's steps.
                        want_m[at] = beta1 * want_m[at] + (1.0 - beta1) * g;
                        want_v[at] = beta2 * want_v[at] + (1.0 - beta2) * g * g;
                        let corrections = [beta1, beta2].map(|beta: f64| 1.0 - beta.powi(step as i32));
                        let rate = f64::from(lr as f32) * corrections[1].sqrt() / corrections[0];
                        want[at] -= rate * want_m[at] / (want_v[at].sqrt() + eps);
                    }
                }
            }
            let error = rows.iter().zip(&want).map(|(&got, want)| (f64::from(got) - want).abs()).fold(0.0, f64::max);
            assert!(error < 1e-5, "{optimizer}: {error}");
            assert!(rows.iter().zip(&start).filter(|(a, b)| a != b).count() > 1000);
            // A step without terms changes nothing.
            let before = rows.clone();
            let moments = if is_adam { vec![&mut m[..], &mut v[..]] } else { Vec::new() };
            let table = Table { first: first as usize, width: WIDTH, rows: &mut rows, moments };
            table.update(&[RowTerms::default()], &SparseStep::new(&optimizer, 41, lr));
            assert_eq!(rows, before);
        }
    }

    #[test]
    fn rows_are_those_of_torch() {
        // torch 2.15: SparseAdam(lr=0.1) on torch.nn.Embedding(3, 1, sparse=True) with these rows and gradients.
        let want = [0.833_684_7f32, 0.492_233_34, -0.504_104_6];
        let adam = Optimizer::from(Adam::new(0.1));
        let (mut rows, mut m, mut v) = ([1.0f32, 0.5, -0.25], [0.0f32; 3], [0.0f32; 3]);
        for step in 1..=20u64 {
            let ids: Vec<u32> = (0..3).filter(|&row| (step as u32 + row).is_multiple_of(row + 2)).collect();
            let gradient = |&row: &u32| ((step as u32 * 7 + row * 3) % 11) as f32 / 11.0 - 0.4;
            let gradients = ids.iter().map(gradient).collect();
            let moments = vec![&mut m[..], &mut v[..]];
            let table = Table { first: 0, width: 1, rows: &mut rows, moments };
            table.update(&[RowTerms { ids, rows: gradients }], &SparseStep::new(&adam, step, 0.1));
        }
        assert!(rows.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{rows:?}");
    }
}
