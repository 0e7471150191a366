//! The lock that allows one run at a time in a checkpoint folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Error, LockHolder, Result};
use crate::infer::checkpoint::sweep;
use crate::plain_file;

/// Name of the lock file in the checkpoint folder.
const FILE: &str = ".lock";

/// Time limit for retries: an owner of the lock needs a moment to write its name into the file.
const PATIENCE: Duration = Duration::from_secs(1);

/// Exclusive use of a checkpoint folder by this process, until it is dropped.
///
/// The folder then has a file `.lock`, which the operating system keeps locked and which names the process. A process
/// that was killed leaves the file unlocked, and the next process takes it over ([`RunLock::taken_from`]). If the file
/// system has no locks, the text of the file decides: a run of this host that is still alive, or any run of another
/// host, keeps the folder.
///
/// ```
/// use lapidary::{Error, RunLock};
///
/// let folder = tempfile::tempdir().unwrap();
/// let lock = RunLock::take(folder.path())?;
/// assert!(matches!(RunLock::take(folder.path()), Err(Error::FolderInUse { .. })));
/// drop(lock);
/// RunLock::take(folder.path())?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
    taken_from: Option<LockHolder>,
    /// Folders that the lock created, the outermost first.
    made: Vec<PathBuf>,
}

impl LockHolder {
    fn this() -> Self {
        let host = gethostname::gethostname().to_string_lossy().into_owned();
        Self { pid: std::process::id(), host, since: utc(SystemTime::now()) }
    }

    fn text(&self) -> String {
        format!("pid {}\nhost {}\nsince {}\n", self.pid, self.host, self.since)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let mut next = |name: &str| lines.next()?.strip_prefix(name);
        let pid = next("pid ")?.parse().ok()?;
        Some(Self { pid, host: next("host ")?.into(), since: next("since ")?.into() })
    }

    /// Returns whether the holder is a process of this host that has ended; `false` if that is not known.
    fn is_dead(&self) -> bool {
        let processes = Path::new("/proc");
        let can_tell = processes.join("self").exists() && self.host == Self::this().host;
        can_tell && !processes.join(self.pid.to_string()).exists()
    }
}

impl RunLock {
    /// Takes the folder, and creates it if it does not exist. Removes incomplete checkpoints that a killed run left in it.
    ///
    /// # Errors
    /// [`Error::FolderInUse`] if another run holds it, in this process or elsewhere; [`Error::Io`] if it cannot be
    /// written.
    pub fn take(dir: impl AsRef<Path>) -> Result<Self> {
        let lock = take_with(dir.as_ref(), &File::try_lock)?;
        sweep(dir.as_ref());
        Ok(lock)
    }

    /// Writes the pid and host of this process, and the time, into the file.
    fn signed(self) -> io::Result<Self> {
        self.file.set_len(0)?;
        (&self.file).rewind()?;
        (&self.file).write_all(LockHolder::this().text().as_bytes())?;
        Ok(self)
    }

    /// Returns the previous holder if it did not release the folder: a run that was killed.
    pub fn taken_from(&self) -> Option<&LockHolder> {
        self.taken_from.as_ref()
    }
}

impl Drop for RunLock {
    /// Removes the file, and the folders that the lock created if they are empty.
    fn drop(&mut self) {
        // The file is removed while it is locked: a process that has opened it in the meantime sees that it is gone,
        // and tries again.
        if is_at(&self.file, &self.path) {
            drop(fs::remove_file(&self.path));
        }
        self.made.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

type TryLock = dyn Fn(&File) -> std::result::Result<(), TryLockError>;

/// Result of one attempt to take a folder.
enum Attempt {
    Taken(RunLock),
    InUse {
        holder: Option<LockHolder>,
        remedy: String,
    },
    /// Another process changed the file during the attempt.
    Changed,
}

/// Does the work of [`RunLock::take`]; tests replace `try_lock`.
fn take_with(dir: &Path, try_lock: &TryLock) -> Result<RunLock> {
    let failed = |source| Error::Io { action: "write into the checkpoint folder", path: dir.into(), source };
    let start = Instant::now();
    loop {
        let is_patient = start.elapsed() < PATIENCE;
        match attempt(dir, try_lock) {
            Ok(Attempt::Taken(lock)) => return lock.signed().map_err(failed),
            // An owner that has not written its name yet gets more time.
            Ok(Attempt::InUse { holder, remedy }) if holder.is_some() || !is_patient => {
                return Err(Error::FolderInUse { path: dir.into(), holder, remedy });
            }
            Ok(Attempt::InUse { .. } | Attempt::Changed) => {}
            // The run that created the folder may have just removed it, or another run may be creating it again.
            Err(error) if is_patient && is_gone(&error) && !dir.is_file() => {}
            Err(error) => return Err(failed(error)),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn attempt(dir: &Path, try_lock: &TryLock) -> io::Result<Attempt> {
    let path = dir.join(FILE);
    let made = make_folders(dir)?;
    let (file, is_new) = open(&path)?;
    let lock = |file, taken_from, path| Attempt::Taken(RunLock { file, path, taken_from, made });
    match try_lock(&file) {
        // The previous owner may have removed the file after it was opened here.
        Ok(()) if !is_at(&file, &path) => Ok(Attempt::Changed),
        Ok(()) => {
            let earlier = read(&file);
            Ok(lock(file, earlier, path))
        }
        Err(TryLockError::WouldBlock) => {
            Ok(Attempt::InUse { holder: read(&file), remedy: "wait for it to end, or name another folder".into() })
        }
        Err(TryLockError::Error(error)) if !has_no_locks(&error) => Err(error),
        Err(_) if is_new => Ok(lock(file, None, path)),
        Err(_) => match read(&file) {
            Some(dead) if dead.is_dead() => {
                Ok(take_over(&path, &dead)?.map_or(Attempt::Changed, |file| lock(file, Some(dead), path)))
            }
            holder => {
                let remedy = format!("if that run has ended, delete {}, else name another folder", path.display());
                Ok(Attempt::InUse { holder, remedy })
            }
        },
    }
}

/// Returns whether an error may be caused by a process that removes or creates the folder at this moment.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists)
}

/// Creates a folder and its missing parents.
///
/// # Returns
/// The folders that did not exist, the outermost first.
fn make_folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let named = |folder: &&Path| !folder.as_os_str().is_empty();
    let missing = dir.ancestors().filter(named).take_while(|folder| folder.symlink_metadata().is_err());
    let mut made: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
    made.reverse();
    fs::create_dir_all(dir)?;
    Ok(made)
}

/// Opens the lock file, which is a plain file. Returns it, and whether it is new.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // A read of a pipe would wait for ever.
            plain_file::open(path)?;
            options.open(path).map(|file| (file, false))
        }
        opened => opened.map(|file| (file, true)),
    }
}

/// Replaces the file of a dead run, on a file system without locks. Returns `None` if another process was faster.
fn take_over(path: &Path, dead: &LockHolder) -> io::Result<Option<File>> {
    let aside = path.with_file_name(format!("{FILE}-{}", std::process::id()));
    // If several processes rename one file, exactly one succeeds.
    match fs::rename(path, &aside) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        renamed => renamed?,
    }
    let moved = read(&File::open(&aside)?);
    if moved.as_ref() != Some(dead) {
        // The moved file belongs to a third process, which took over first. It goes back, unless its place is taken
        // again.
        match fs::hard_link(&aside, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => fs::rename(&aside, path)?, // no hard links there
            _ => fs::remove_file(&aside)?,
        }
        return Ok(None);
    }
    fs::remove_file(&aside)?;
    let (file, is_new) = open(path)?;
    Ok(is_new.then_some(file))
}

/// Reads the holder from the file; `None` if there is no readable text.
fn read(mut file: &File) -> Option<LockHolder> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(4096).read_to_string(&mut text).ok()?;
    LockHolder::parse(&text)
}

/// Returns whether the path leads to this open file.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |found: fs::Metadata| (found.dev(), found.ino());
        file.metadata().ok().map(id) == path.symlink_metadata().ok().map(id)
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        path.exists()
    }
}

/// Returns whether the error says that the file system has no locks.
fn has_no_locks(error: &io::Error) -> bool {
    const ENOLCK: i32 = 37;
    error.kind() == ErrorKind::Unsupported || cfg!(target_os = "linux") && error.raw_os_error() == Some(ENOLCK)
}

/// Formats a time in UTC, to the second.
///
/// # Source
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`, for days since 1970.
pub(crate) fn utc(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year_of_era + year;
    let [hour, minute, second] = [second / 3600, second / 60 % 60, second % 60];
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_locks(_: &File) -> std::result::Result<(), TryLockError> {
        Err(TryLockError::Error(ErrorKind::Unsupported.into()))
    }

    /// Returns a process that has ended.
    fn dead() -> LockHolder {
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        child.wait().expect("it ends");
        LockHolder { pid: child.id(), ..LockHolder::this() }
    }

    #[test]
    fn days_have_their_dates() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), want);
        }
    }

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        for try_lock in [&File::try_lock as &TryLock, &without_locks] {
            let folder = tempfile::tempdir().expect("a folder");
            let dir = folder.path().join("made/by/it");
            let lock = take_with(&dir, try_lock).expect("it is free");
            assert_eq!(lock.taken_from(), None);
            match take_with(&dir, try_lock) {
                Err(Error::FolderInUse { path, holder: Some(holder), .. }) => {
                    assert_eq!((path, holder.pid), (dir.clone(), std::process::id()));
                }
                other => panic!("it is taken: {other:?}"),
            }
            assert!(dir.join(FILE).exists());
            drop(lock);
            assert!(!folder.path().join("made").exists(), "it is as it was");
            drop(take_with(&dir, try_lock).expect("it is free again"));
        }
    }

    #[test]
    fn a_run_that_was_killed_keeps_nothing() {
        for try_lock in [&File::try_lock as &TryLock, &without_locks] {
            let folder = tempfile::tempdir().expect("a folder");
            let dead = dead();
            fs::write(folder.path().join(FILE), dead.text()).expect("it can be written");
            let lock = take_with(folder.path(), try_lock).expect("its owner is dead");
            assert_eq!(lock.taken_from(), Some(&dead));
            let text = fs::read_to_string(folder.path().join(FILE)).expect("it is there");
            assert_eq!(LockHolder::parse(&text).map(|holder| holder.pid), Some(std::process::id()));
            drop(lock);
            assert_eq!(folder.path().read_dir().expect("it is there").count(), 0);
        }
    }

    #[test]
    fn without_locks_a_run_elsewhere_is_taken_for_alive() {
        let folder = tempfile::tempdir().expect("a folder");
        let elsewhere = LockHolder { host: "elsewhere".into(), ..dead() };
        fs::write(folder.path().join(FILE), elsewhere.text()).expect("it can be written");
        let error = take_with(folder.path(), &without_locks).expect_err("nobody knows").to_string();
        let file = folder.path().join(FILE).display().to_string();
        assert!(error.contains("elsewhere") && error.contains(&format!("delete {file}")), "{error}");
        // The text is incomplete, and a process that is writing it would have finished by now.
        fs::write(folder.path().join(FILE), "pid").expect("it can be written");
        let error = take_with(folder.path(), &without_locks).expect_err("nobody knows").to_string();
        assert!(error.contains(&file), "{error}");
        // With locks, the kernel knows that no process holds the file.
        fs::write(folder.path().join(FILE), elsewhere.text()).expect("it can be written");
        assert_eq!(RunLock::take(folder.path()).expect("it is free").taken_from(), Some(&elsewhere));
    }

    /// Many threads take and release the lock; it never has two owners.
    #[test]
    fn a_lock_that_is_removed_while_others_wait_has_one_owner() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().expect("a folder");
        let (owners, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        match RunLock::take(folder.path().join("run")) {
                            Ok(lock) => {
                                assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                                taken.fetch_add(1, Ordering::SeqCst);
                                owners.fetch_sub(1, Ordering::SeqCst);
                                drop(lock);
                            }
                            Err(Error::FolderInUse { .. }) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
        assert!(!folder.path().join("run").join(FILE).exists());
    }
}
