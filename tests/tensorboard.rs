//! `train --tensorboard`: the event files have the numbers of `--json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::command::{run, succeeds};

/// The scalars of an event file: for each tag, steps and values. And the steps at which sessions start.
#[derive(Default)]
struct Read {
    scalars: BTreeMap<String, Vec<(u64, f32)>>,
    sessions: Vec<u64>,
    versions: Vec<String>,
}

/// One field of a message: its number, and its number or bytes.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Splits a message of protocol buffers into its fields.
fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = bytes.split_first().expect("a number ends");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        panic!("a number is too long");
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, Field::Number(varint(&mut message))));
                continue;
            }
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (bytes, rest) = message.split_at(length);
        message = rest;
        found.push((key >> 3, Field::Bytes(bytes)));
    }
    found
}

/// The masked CRC-32C, by division of polynomials bit by bit.
fn masked_crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let feedback = (crc & 1) ^ u32::from(byte >> bit & 1);
            crc = (crc >> 1) ^ if feedback == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    let crc = !crc;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn read(file: &Path) -> Read {
    let bytes = fs::read(file).unwrap();
    let mut rest = &bytes[..];
    let mut read = Read::default();
    while !rest.is_empty() {
        let crc = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(crc(&rest[8..12]), masked_crc(&rest[..8]), "the length has its checksum");
        let event = &rest[12..12 + length];
        assert_eq!(crc(&rest[12 + length..16 + length]), masked_crc(event), "the event has its checksum");
        rest = &rest[16 + length..];
        let (mut step, mut has_time) = (0, false);
        for (number, field) in fields(event) {
            match (number, field) {
                (1, Field::Bytes(time)) => has_time = f64::from_le_bytes(time.try_into().unwrap()) > 1.6e9,
                (2, Field::Number(number)) => step = number,
                (3, Field::Bytes(version)) => read.versions.push(String::from_utf8(version.to_vec()).unwrap()),
                (5, Field::Bytes(summary)) => {
                    for (_, value) in fields(summary) {
                        let Field::Bytes(value) = value else { panic!("a value is a message") };
                        let [(1, Field::Bytes(tag)), (2, Field::Bytes(scalar))] = fields(value)[..] else {
                            panic!("a value has a tag and a scalar")
                        };
                        let scalar = f32::from_le_bytes(scalar.try_into().unwrap());
                        let tag = String::from_utf8(tag.to_vec()).unwrap();
                        read.scalars.entry(tag).or_default().push((step, scalar));
                    }
                }
                (7, Field::Bytes(session)) => {
                    assert!(matches!(fields(session)[..], [(1, Field::Number(1))]), "a session starts");
                    read.sessions.push(step);
                }
                (other, _) => panic!("field {other}"),
            }
        }
        assert!(has_time);
    }
    assert_eq!(read.versions, ["brain.Event:2"]);
    read
}

/// Returns the event files of a folder, in the order in which they were made.
fn files(folder: &Path) -> Vec<Read> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let rest = name.strip_prefix("events.out.tfevents.").unwrap();
        assert!(rest.split('.').next().unwrap().parse::<u64>().is_ok() && rest.ends_with(".0"), "{name}");
    }
    paths.iter().map(|path| read(path)).collect()
}

/// Checks that a file has the numbers of the epochs of `--json`.
fn has_the_numbers_of(read: &Read, shown: &str, score: &str, key: &str) {
    let epochs: Vec<Value> = shown
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["event"] == "epoch")
        .collect();
    assert!(!epochs.is_empty());
    for (tag, field) in [
        ("loss/train", "loss"),
        (score, key),
        ("seconds/epoch", "seconds"),
        ("bytes/to_device", "bytes_to_device"),
        ("bytes/to_host", "bytes_to_host"),
    ] {
        let wanted: Vec<(u64, f32)> = epochs
            .iter()
            .filter_map(|line| Some((line["epoch"].as_u64().unwrap(), line[field].as_f64()? as f32)))
            .collect();
        assert_eq!(read.scalars[tag], wanted, "{tag}");
    }
    assert_eq!(read.scalars.len(), 5);
}

#[test]
fn events_are_the_numbers_of_the_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("runs/first");
    let to = dir.to_str().unwrap();
    let flags = ["--devices", "sim:1", "--device-memory", "300KiB", "--epochs", "5", "--eval-every", "2"];
    let shown = succeeds(&[&["train", "--tensorboard", to, "--json"], &flags[..]].concat());
    let [read] = &files(&dir)[..] else { panic!("one file") };
    has_the_numbers_of(read, &shown, "accuracy/validation", "val_accuracy");
    assert_eq!(read.sessions, [1]);
    assert_eq!(read.scalars["accuracy/validation"].len(), 2);
    assert!(read.scalars["bytes/to_device"].iter().all(|(_, bytes)| *bytes > 0.0));
}

#[test]
fn a_resumed_run_continues_in_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, checkpoints) = (folder.path().join("events"), folder.path().join("checkpoints"));
    let [to, checkpoints] = [&dir, &checkpoints].map(|path| path.to_str().unwrap());
    let train = |more: &[&str]| {
        let flags = ["train", "--data", "builtin:karate", "--devices", "cpu", "--json"];
        succeeds(&[&flags[..], &["--tensorboard", to, "--checkpoint", checkpoints], more].concat())
    };
    let first = train(&["--epochs", "4"]);
    let second = train(&["--epochs", "7", "--resume"]);
    let [before, after] = &files(&dir)[..] else { panic!("two files") };
    has_the_numbers_of(before, &first, "accuracy/validation", "val_accuracy");
    has_the_numbers_of(after, &second, "accuracy/validation", "val_accuracy");
    // From there on, a reader drops what an earlier file has.
    assert_eq!((&before.sessions, &after.sessions), (&vec![1], &vec![5]));
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let dir = file.join("events");
    let (code, shown, errors) = run(&["train", "--tensorboard", dir.to_str().unwrap()]);
    assert_eq!((code, shown.as_str()), (Some(1), ""));
    assert!(errors.contains("write TensorBoard's events into") && errors.contains("file/events"), "{errors}");
    assert!(!errors.contains("epoch 1/"), "{errors}");
    // A run that fails before its first epoch leaves no file.
    let dir = folder.path().join("events");
    let (code, ..) = run(&["train", "--data", "/nonexistent", "--tensorboard", dir.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}
