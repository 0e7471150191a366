//! Random numbers, and matrices of them on the host.

use lapidary_kernels::MatView;
use lapidary_kernels::reference::Dense;

/// Widths that cover every path through the column tiles.
pub const WIDTHS: [usize; 11] = [0, 1, 3, 7, 16, 17, 32, 41, 64, 100, 602];

/// A small generator (SplitMix64), so that tests are the same on every machine.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a number in `[-1, 1)`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    pub fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        Matrix { rows, cols, data: self.units(rows * cols) }
    }
}

/// A matrix on the host.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f32>,
}

impl Matrix {
    pub fn view(&self) -> MatView<'_> {
        MatView::new(&self.data, self.rows, self.cols).unwrap()
    }

    pub fn dense(&self) -> Dense {
        self.view().into()
    }
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

pub fn absolute(values: &[f64]) -> Vec<f64> {
    values.iter().map(|x| x.abs()).collect()
}
