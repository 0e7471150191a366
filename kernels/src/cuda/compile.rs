//! The kernels' texts, and their compilation by NVRTC for one kind of GPU.

use std::ffi::CString;

use cudarc::nvrtc::{result, sys};

use super::driver::{self, Named};
use crate::error::{Error, Result};
use crate::storage_type::StorageType;

/// What every file is compiled after.
const COMMON: &str = include_str!("common.cuh");

/// How files are compiled; `ci/cubin` reads the same.
const OPTIONS: &str = include_str!("options.txt");

/// A file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum File {
    Gather,
    LayerNorm,
    Losses,
    Optimizers,
    Product,
    Rows,
    Sums,
}

impl File {
    /// Its name and text.
    fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Gather => ("gather.cu", include_str!("gather.cu")),
            Self::LayerNorm => ("layer_norm.cu", include_str!("layer_norm.cu")),
            Self::Losses => ("losses.cu", include_str!("losses.cu")),
            Self::Optimizers => ("optimizers.cu", include_str!("optimizers.cu")),
            Self::Product => ("product.cu", include_str!("product.cu")),
            Self::Rows => ("rows.cu", include_str!("rows.cu")),
            Self::Sums => ("sums.cu", include_str!("sums.cu")),
        }
    }

    /// The file, for matrices that are stored so.
    pub(super) fn over(self, stored: StorageType) -> Text {
        Text { file: self, stored }
    }
}

/// A file of kernels over matrices that are stored one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Text {
    file: File,
    stored: StorageType,
}

impl Text {
    /// What the compiler is given. Lines are numbered as in the file.
    pub(super) fn source(self) -> String {
        let (name, text) = self.file.parts();
        let stored = match self.stored {
            StorageType::F32 => "",
            StorageType::Bf16 => "#define STORE_BF16\n",
        };
        format!("{stored}{COMMON}\n#line 1 \"{name}\"\n{text}")
    }

    /// The file's name.
    pub(super) fn name(self) -> &'static str {
        self.file.parts().0
    }
}

/// The options for a kind of GPU, as `sm_90`.
pub(super) fn options(architecture: &str) -> Vec<String> {
    let fixed = OPTIONS.split_whitespace().map(str::to_owned);
    fixed.chain([format!("--gpu-architecture={architecture}")]).collect()
}

/// Machine code of a file's kernels.
///
/// # Errors
/// [`Error::NoLibrary`]; [`Error::Compile`] with what the compiler said; [`Error::Cuda`].
pub(super) fn compile(file: Text, architecture: &str) -> Result<Vec<u8>> {
    driver::find_compiler()?;
    let text = |text: &str| CString::new(text).expect("no kernel's text has a NUL");
    let (source, name) = (text(&file.source()), text(file.name()));
    let program = Program(result::create_program(&source, Some(&name)).during("reading kernels")?);
    // SAFETY: the program lives until the end of this function; the options do not need to.
    let compiled = unsafe { result::compile_program(program.0, &options(architecture)) };
    if compiled.is_err() {
        // SAFETY: the program is still there; the log is a text that NVRTC ends with a NUL.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<_>>();
        return Err(Error::Compile { file: file.name(), log: String::from_utf8_lossy(&log).into_owned() });
    }
    let mut len = 0;
    // SAFETY: the length is written before the call returns.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut len) }.result().during("asking for machine code")?;
    let mut code = vec![0u8; len];
    // SAFETY: NVRTC writes as many bytes as it just said there are.
    unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }.result().during("asking for machine code")?;
    Ok(code)
}

/// A program of NVRTC, destroyed when it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created by `compile` and is used no more. A failure leaks it, no worse.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
