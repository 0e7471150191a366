//! Checkpoints: one file of a checkpoint folder, with digests of the changed files, so that the readers behind the
//! digests are reached. The first byte selects the file. Without new digests, a change must be refused.
#![no_main]

use std::cell::RefCell;
use std::fs;
use std::sync::OnceLock;

use lapidary::{Adam, Devices, Model, Predictor, Trainer};
use lapidary_fuzz::{Folder, dense, scratch, selected};
use libfuzzer_sys::fuzz_target;

fn trainer() -> Trainer {
    let data = dense();
    let model = Model::gcn(&[data.feature_width(), 2, data.class_count()]);
    let builder = Trainer::builder(&model, &data).devices(Devices::parse("cpu:2").expect("there are CPUs"));
    builder.optimizer(Adam::new(0.01)).build().expect("the model fits the data")
}

/// Trains two epochs, and returns a copy of the folder of the newest.
fn saved() -> Folder {
    let mut trainer = trainer();
    for _ in 0..2 {
        trainer.step().expect("it trains");
    }
    let run = scratch().join("run");
    trainer.save(&run).expect("it can be saved");
    Folder::copy(&run.join("epoch-00000002"), "checkpoint/epoch-00000002")
}

/// Writes the digests of the other files.
fn digest_anew(folder: &Folder) {
    let others = folder.files.iter().filter(|(name, _)| name != "B3SUMS");
    let line = |name: &String| {
        let bytes = fs::read(folder.path.join(name)).expect("the file is there");
        format!("{}  {name}\n", blake3::hash(&bytes).to_hex())
    };
    let text: String = others.map(|(name, _)| line(name)).collect();
    fs::write(folder.path.join("B3SUMS"), text).expect("a file can be written");
}

static FOLDER: OnceLock<Folder> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    thread_local! {
        static TRAINER: RefCell<Trainer> = RefCell::new(trainer());
    }
    let folder = FOLDER.get_or_init(saved);
    let Some((first, rest)) = selected(bytes) else { return };
    let which = first % folder.files.len();
    let (name, whole) = &folder.files[which];
    let with_digests = first & 128 == 0 && name != "B3SUMS";
    TRAINER.with_borrow_mut(|trainer| {
        folder.with(which, rest, |path| {
            if with_digests {
                digest_anew(folder);
            }
            let opened = Predictor::open(path);
            let resumed = trainer.resume(path.parent().expect("it is in a folder"));
            if let Ok(Some(epoch)) = resumed {
                assert_eq!(trainer.epoch(), epoch);
                // Its numbers may be wrong, so it may fail.
                let _ = trainer.step();
            }
            let is_changed = rest != whole;
            assert!(with_digests || !is_changed || opened.is_err() && resumed.is_err(), "{name}: damage was not seen");
            assert!(is_changed || opened.is_ok() && resumed.is_ok(), "{name}: a whole checkpoint was refused");
        });
        let (_, digests) = folder.files.iter().find(|(name, _)| name == "B3SUMS").expect("there are digests");
        fs::write(folder.path.join("B3SUMS"), digests).expect("a file can be written");
    });
});
