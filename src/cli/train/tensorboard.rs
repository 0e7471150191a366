//! `--tensorboard`: the numbers of each epoch as event files of TensorBoard.
//!
//! An event file is a list of records: the length as u64, its masked CRC-32C, the bytes of an `Event`, and their masked
//! CRC-32C, all little-endian. An `Event` is a message of protocol buffers with few fields, which are encoded here: the
//! crates that write such files have not been released for years, and bring a compiler of protocol buffers or images.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cli::failure;
use crate::cli::output::say;
use crate::error::{Error, Result};
use crate::model::LabelKind;
use crate::train::Epoch;

/// The version of the format. From 2 on, a reader drops steps that a later session repeats.
const VERSION: &[u8] = b"brain.Event:2";

/// The polynomial of CRC-32C (Castagnoli), reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The event file of a run.
#[derive(Debug)]
pub(super) struct Events {
    path: PathBuf,
    /// `None` after a failure.
    file: Option<File>,
    /// Bytes of whole records.
    written: u64,
    /// The last epoch that was written.
    last: Option<u64>,
}

impl Events {
    /// Creates the folder, and a new file in it, so that a folder that cannot be written is an error before the work.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let failed = |source| Error::io("write TensorBoard's events into", dir)(source);
        std::fs::create_dir_all(dir).map_err(failed)?;
        let host = gethostname::gethostname().to_string_lossy().into_owned();
        let name = format!("events.out.tfevents.{:.0}.{host}.{}.0", now().floor(), std::process::id());
        let path = dir.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
        let mut events = Self { path, file: Some(file), written: 0, last: None };
        events.append(&record(&event(0, &bytes_field(3, VERSION)))).map_err(failed)?;
        Ok(events)
    }

    /// Writes the numbers of an epoch. If that fails, it warns, and nothing more is written: the run goes on.
    pub(super) fn add(&mut self, epoch: &Epoch, labels: LabelKind) {
        if self.file.is_none() {
            return;
        }
        let score = match labels {
            LabelKind::Class => "accuracy/validation",
            LabelKind::Multi => "micro_f1/validation",
        };
        let mut values = vec![("loss/train", epoch.loss), ("seconds/epoch", epoch.seconds)];
        values.extend(epoch.accuracy.and_then(|accuracy| accuracy.val).map(|val| (score, val)));
        values
            .extend([("bytes/to_device", epoch.bytes_to_device as f64), ("bytes/to_host", epoch.bytes_to_host as f64)]);
        let mut records = Vec::new();
        // A resumed run repeats the epochs after its checkpoint, and so does one that returned to a checkpoint.
        if self.last.is_none_or(|last| epoch.epoch <= last) {
            records.extend(record(&event(epoch.epoch, &bytes_field(7, &varint_field(1, 1)))));
        }
        records.extend(record(&event(epoch.epoch, &bytes_field(5, &summary(&values)))));
        self.last = Some(epoch.epoch);
        if let Err(source) = self.append(&records) {
            failure::warn(&Error::io("write TensorBoard's events to", &self.path)(source));
            say("the run goes on without them; those of the epochs before are complete");
            self.file = None;
        }
    }

    /// Appends whole records. If that fails, the file ends with the record before.
    fn append(&mut self, records: &[u8]) -> std::io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(records) {
            // If this fails too, readers ignore the record that is cut off.
            drop(file.set_len(self.written));
            return Err(error);
        }
        self.written += records.len() as u64;
        Ok(())
    }
}

impl Drop for Events {
    /// Deletes a file without an epoch: its run has failed before.
    fn drop(&mut self) {
        if self.last.is_none() {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Frames the bytes of an event.
fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), event, &masked_crc(event).to_le_bytes()].concat()
}

/// Encodes an `Event`: wall time, step, and one more field.
fn event(step: u64, field: &[u8]) -> Vec<u8> {
    [&key(1, 1)[..], &now().to_le_bytes(), &varint_field(2, step), field].concat()
}

/// Encodes a `Summary` of scalars, as its format has them: in f32.
fn summary(values: &[(&str, f64)]) -> Vec<u8> {
    let value = |(tag, value): &(&str, f64)| {
        let scalar = [&key(2, 5)[..], &(*value as f32).to_le_bytes()].concat();
        bytes_field(1, &[bytes_field(1, tag.as_bytes()), scalar].concat())
    };
    values.iter().flat_map(value).collect()
}

/// Encodes the number and the wire type of a field: 0 is a number of variable length, 1 and 5 are 8 and 4 bytes, 2 is a
/// length with so many bytes.
fn key(field: u64, wire_type: u64) -> Vec<u8> {
    varint(field << 3 | wire_type)
}

fn varint_field(field: u64, value: u64) -> Vec<u8> {
    [key(field, 0), varint(value)].concat()
}

fn bytes_field(field: u64, bytes: &[u8]) -> Vec<u8> {
    [&key(field, 2)[..], &varint(bytes.len() as u64), bytes].concat()
}

/// Encodes a number in groups of seven bits, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Returns the CRC-32C, rotated and shifted as these files have it.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, appendix B.4, and the check value of the polynomial.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn numbers_of_variable_length_have_seven_bits_per_byte() {
        assert_eq!(
            [varint(0), varint(127), varint(128), varint(300)],
            [vec![0], vec![127], vec![128, 1], vec![172, 2]]
        );
        assert_eq!(varint(u64::MAX).len(), 10);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_ends_the_file_and_not_the_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut events = Events::create(folder.path()).expect("there is room");
        let epoch = |epoch| Epoch {
            epoch,
            loss: 1.0,
            accuracy: None,
            seconds: 1.0,
            eval_seconds: 0.0,
            stages: None,
            eval_stages: None,
            bytes_to_device: 0,
            bytes_to_host: 0,
            planned_bytes: [0, 0],
            bytes_between_devices: 0,
            planned_bytes_between_devices: 0,
        };
        events.add(&epoch(1), LabelKind::Class);
        let whole = std::fs::read(&events.path).expect("it is there");
        assert_eq!(whole.len() as u64, events.written);
        events.file = Some(OpenOptions::new().write(true).open("/dev/full").expect("Linux has it"));
        events.add(&epoch(2), LabelKind::Class);
        events.add(&epoch(3), LabelKind::Class);
        assert!(events.file.is_none());
        assert_eq!(std::fs::read(&events.path).expect("it is there"), whole);
    }
}
