//! Kernels loaded on a GPU. They are compiled at their first use, or taken from the cache.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use parking_lot::Mutex;

use super::cache::{Cache, hash};
use super::compile::{OPTIONS, Target, Text, compile};
use super::driver::{self, Named};
use crate::error::Result;
use crate::version::Version;

/// Threads per block: `THREADS` of `common.cuh`.
pub(super) const THREADS: u32 = 256;

/// One launch of a kernel.
#[derive(Debug, PartialEq)]
pub(super) struct KernelCall {
    pub(super) file: Text,
    pub(super) name: &'static str,
    pub(super) grid: (u32, u32),
    /// The kernel's one argument struct, in 8-byte words.
    pub(super) args: Box<[u64]>,
}

/// The kernels of one GPU.
pub(super) struct Modules {
    context: Arc<CudaContext>,
    /// The compute capability.
    capability: Version,
    cache: Cache,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<Text, Module>,
    functions: HashMap<(Text, &'static str), Function>,
}

struct Module(sys::CUmodule);
#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: the driver's handles may be used from any thread on which the context is current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}

impl Modules {
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let capability = driver::capability(context.cu_device())?;
        Ok(Self { context: context.clone(), capability, cache: Cache::open(), loaded: Mutex::default() })
    }

    /// Queues a launch. The context must be current on this thread.
    ///
    /// # Errors
    /// [`crate::Error::NoLibrary`] and [`crate::Error::Compile`] at the first use of a file; [`crate::Error::Cuda`].
    pub(super) fn launch(&self, stream: &CudaStream, call: &KernelCall) -> Result<()> {
        let function = self.function(call.file, call.name)?;
        let mut params = [call.args.as_ptr().cast_mut().cast::<c_void>()];
        let (grid, block) = ((call.grid.0, call.grid.1, 1), (THREADS, 1, 1));
        // SAFETY: the function belongs to a module that lives as long as `self`. It takes one struct, which the driver
        // copies before the call returns; `args` has its layout (`args.rs`; tests compare the two). The addresses in it
        // are those of buffers that `prepare` found large enough, and that live until the queued work is done (the laws
        // of `Device`).
        unsafe { result::launch_kernel(function.0, grid, block, 0, stream.cu_stream(), &mut params) }
            .during("launching a kernel")
    }

    fn function(&self, file: Text, name: &'static str) -> Result<Function> {
        let mut loaded = self.loaded.lock();
        if let Some(&function) = loaded.functions.get(&(file, name)) {
            return Ok(function);
        }
        let module = match loaded.modules.entry(file) {
            Entry::Occupied(module) => module.get().0,
            Entry::Vacant(place) => place.insert(self.load(file)?).0,
        };
        let symbol = CString::new(name).expect("no kernel's name has a NUL");
        // SAFETY: the module was loaded above and is not unloaded before `self` is dropped.
        let function = unsafe { result::module::get_function(module, symbol) };
        let function = Function(function.during("looking a kernel up")?);
        loaded.functions.insert((file, name), function);
        Ok(function)
    }

    /// Loads a module from the cache, or compiles it if the cache has none or the driver rejects the entry.
    fn load(&self, file: Text) -> Result<Module> {
        let hash = hash(&[file.source().as_bytes(), OPTIONS.as_bytes()]);
        let key = format!("{}-{}-{hash:016x}", file.name().trim_end_matches(".cu"), self.capability);
        if let Some(module) = self.cache.load(&key).and_then(|code| load_code(&code).ok()) {
            return Ok(module);
        }
        let code = compile(file, Target::of(self.capability)?)?;
        let module = load_code(&code)?;
        self.cache.store(&key, &code);
        Ok(module)
    }
}

fn load_code(code: &[u8]) -> Result<Module> {
    // SAFETY: the driver reads machine code, whose header has its length, or assembly, which ends with a NUL. The code is
    // complete: it comes from the compiler, or from a cache entry with the right hash.
    unsafe { result::module::load_data(code.as_ptr().cast()) }.map(Module).during("loading kernels")
}

impl Drop for Modules {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            for (_, module) in self.loaded.get_mut().modules.drain() {
                // SAFETY: nothing is queued any more: the lanes are gone, and the engine waited for the streams.
                let _ = unsafe { result::module::unload(module.0) };
            }
        }
    }
}
