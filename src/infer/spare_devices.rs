//! Devices whose memory is used again for the next graph.

use std::fmt;

use super::Predictor;
use super::size::is_small;
use crate::dataset::Dataset;
use crate::runtime::{Devices, IdleDevice};

/// The devices that ran the last small graph or batch, with their memory: at most 1.5 times what it needed.
#[derive(Default)]
pub(super) struct SpareDevices {
    /// How they were opened, and the devices.
    devices: Option<(Devices, Vec<IdleDevice>)>,
}

impl fmt::Debug for SpareDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpareDevices").finish_non_exhaustive()
    }
}

impl SpareDevices {
    /// Returns the devices if they are those that a predictor needs; otherwise none.
    pub(super) fn take(&mut self, predictor: &Predictor) -> Vec<IdleDevice> {
        let like = self.devices.take().filter(|(devices, _)| *devices == predictor.options.devices);
        like.map_or_else(Vec::new, |(_, idle)| idle)
    }

    /// Keeps devices that ran a graph or a batch, if it is small: memory of a large one would be kept beside later ones.
    pub(super) fn keep(&mut self, predictor: &Predictor, data: &Dataset, idle: Vec<IdleDevice>) {
        let devices = &predictor.options.devices;
        let keeps = devices.in_place() && is_small(data);
        self.devices = keeps.then(|| (devices.clone(), idle));
    }
}
