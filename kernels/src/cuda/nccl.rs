//! Sums over several GPUs by NVIDIA's NCCL.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaStream;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::version::Version;

/// Names of the library: that of the packages of Linux and of pip, and that of developers' packages.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// A communicator: one GPU's part of a group.
type Comm = *mut c_void;

/// Values of `ncclResult_t`, `ncclDataType_t` and `ncclRedOp_t` in every version 2.
const SUCCESS: c_int = 0;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// The functions of NCCL that are used. Their types are the same in every version 2.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    comm_init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int,
    comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    comm_destroy: unsafe extern "C" fn(Comm) -> c_int,
    // Dropped last: the functions are part of it.
    _library: libloading::Library,
}

impl Functions {
    /// Returns the functions of the library of this name; `None` if there is none, or one without them.
    fn load(name: &str) -> Option<Self> {
        // SAFETY: it loads NVIDIA's library by its name, whose initialisers are NVIDIA's own; the functions have the types of
        // nccl.h.
        unsafe {
            let library = libloading::Library::new(name).ok()?;
            Some(Self {
                version: *library.get(b"ncclGetVersion\0").ok()?,
                error_string: *library.get(b"ncclGetErrorString\0").ok()?,
                comm_init_all: *library.get(b"ncclCommInitAll\0").ok()?,
                all_reduce: *library.get(b"ncclAllReduce\0").ok()?,
                comm_abort: *library.get(b"ncclCommAbort\0").ok()?,
                comm_destroy: *library.get(b"ncclCommDestroy\0").ok()?,
                _library: library,
            })
        }
    }

    /// Returns NCCL, which is loaded at the first call.
    ///
    /// # Errors
    /// [`Error::NoLibrary`].
    fn get() -> Result<&'static Self> {
        static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
        let advice = "run `pip install nvidia-nccl-cu13` (or -cu12 for CUDA 12), and name the folder of libnccl.so.2 in \
                      LD_LIBRARY_PATH; or leave option `sum` at `parts`";
        let loaded = LOADED.get_or_init(|| NAMES.into_iter().find_map(Self::load));
        loaded.as_ref().ok_or(Error::NoLibrary { library: "NVIDIA's NCCL (libnccl)", advice })
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<()> {
        if result == SUCCESS {
            return Ok(());
        }
        // SAFETY: it returns a constant text for any number.
        let text = unsafe { CStr::from_ptr((self.error_string)(result)) };
        let advice = "set NCCL_DEBUG=WARN to let NCCL say more, or leave option `sum` at `parts`";
        Err(Error::Cuda { call, name: text.to_string_lossy().into_owned(), advice })
    }
}

/// Returns the version of NCCL.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::Cuda`].
pub(super) fn find() -> Result<Version> {
    let functions = Functions::get()?;
    let mut code = 0;
    // SAFETY: the number is written before the call returns.
    let asked = unsafe { (functions.version)(&raw mut code) };
    functions.check("asking for the version of NCCL", asked)?;
    // Since 2.9, a number such as 22304 for 2.23.4; before, one such as 2804 for 2.8.4.
    let code = code.unsigned_abs();
    let [major, rest] = if code < 10_000 { [code / 1000, code % 1000] } else { [code / 10_000, code % 10_000] };
    Ok(Version { major, minor: rest / 100 })
}

/// GPUs that add together ([`Device::all_reduce`](crate::Device::all_reduce)), numbered in the order in which they were given.
pub struct Group {
    functions: &'static Functions,
    /// None once it was aborted.
    comms: Vec<Mutex<Option<Handle>>>,
    /// Whether the sums that are queued may never end.
    interrupted: AtomicBool,
}

/// A group, and the place of a GPU in it.
pub type Member = (Arc<Group>, usize);

struct Handle(Comm);

// SAFETY: a communicator may be used from any thread, one at a time.
unsafe impl Send for Handle {}

impl Group {
    /// Makes a group of different GPUs that exist.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::Cuda`].
    pub(super) fn new(ordinals: &[u32]) -> Result<Self> {
        let functions = Functions::get()?;
        let numbers: Vec<c_int> = ordinals.iter().map(|&ordinal| ordinal as c_int).collect();
        let mut comms: Vec<Comm> = vec![std::ptr::null_mut(); numbers.len()];
        // SAFETY: both arrays have so many numbers.
        let made = unsafe { (functions.comm_init_all)(comms.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) };
        functions.check("making a group of GPUs", made)?;
        let comms = comms.into_iter().map(|comm| Mutex::new(Some(Handle(comm)))).collect();
        Ok(Self { functions, comms, interrupted: AtomicBool::new(false) })
    }

    /// Queues the sum of `count` f32 numbers at the first address of each GPU, to the second address of each. The context
    /// of the GPU at `place` must be current on this thread. It may wait until the others call it.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::NoGroup`] after an interruption.
    pub(super) fn all_reduce(
        &self,
        place: usize,
        [from, to]: [u64; 2],
        count: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let locked = self.comms[place].lock();
        let Some(Handle(comm)) = &*locked else { return Err(Error::NoGroup) };
        if count == 0 {
            return Ok(());
        }
        let (from, to, stream) = (from as *const c_void, to as *mut c_void, stream.cu_stream().cast());
        // SAFETY: the communicator exists; both buffers have as many numbers and live until the queued work is done.
        let queued = unsafe { (self.functions.all_reduce)(from, to, count, FLOAT32, SUM, *comm, stream) };
        drop(locked);
        // An interruption that found the communicator in use leaves it to this thread.
        if self.interrupted.load(Ordering::SeqCst) {
            self.abort(place);
            return Err(Error::NoGroup);
        }
        self.functions.check("adding over GPUs", queued)
    }

    /// Ends sums that never will be complete, because a GPU has failed.
    pub(super) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        (0..self.comms.len()).for_each(|place| self.abort(place));
    }

    /// Aborts a communicator, unless a thread is using it.
    fn abort(&self, place: usize) {
        if let Some(Handle(comm)) = self.comms[place].try_lock().and_then(|mut comm| comm.take()) {
            // SAFETY: the communicator exists, and nothing uses it from here on: it was taken. What it has queued ends. A
            // failure only leaks it.
            let _ = unsafe { (self.functions.comm_abort)(comm) };
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("gpus", &self.comms.len()).finish_non_exhaustive()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Functions { comm_abort, comm_destroy, .. } = self.functions;
        // Destroying waits for what is queued, which may never end after an interruption.
        let end = if *self.interrupted.get_mut() { comm_abort } else { comm_destroy };
        for comm in &mut self.comms {
            if let Some(Handle(comm)) = comm.get_mut().take() {
                // SAFETY: the communicator exists, and no device uses it any more. A failure only leaks it.
                let _ = unsafe { end(comm) };
            }
        }
    }
}
