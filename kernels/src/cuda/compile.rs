//! The kernel sources, and their compilation by NVRTC for one GPU architecture.

use std::ffi::CString;

use cudarc::nvrtc::{result, sys};

use super::driver::{self, Named};
use crate::error::{Error, Result};
use crate::storage_type::StorageType;

/// The text that precedes every file.
const COMMON: &str = include_str!("common.cuh");

/// Compiler options; `ci/cubin` reads the same file.
const OPTIONS: &str = include_str!("options.txt");

/// A source file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum File {
    Attention,
    AttentionGrad,
    AttentionRows,
    Gather,
    LayerNorm,
    Losses,
    Optimizers,
    Product,
    Rows,
    Sums,
}

impl File {
    /// Returns the name and the text of the file.
    fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Attention => ("attention.cu", include_str!("attention.cu")),
            Self::AttentionGrad => ("attention_grad.cu", include_str!("attention_grad.cu")),
            Self::AttentionRows => ("attention_rows.cu", include_str!("attention_rows.cu")),
            Self::Gather => ("gather.cu", include_str!("gather.cu")),
            Self::LayerNorm => ("layer_norm.cu", include_str!("layer_norm.cu")),
            Self::Losses => ("losses.cu", include_str!("losses.cu")),
            Self::Optimizers => ("optimizers.cu", include_str!("optimizers.cu")),
            Self::Product => ("product.cu", include_str!("product.cu")),
            Self::Rows => ("rows.cu", include_str!("rows.cu")),
            Self::Sums => ("sums.cu", include_str!("sums.cu")),
        }
    }

    /// Returns the text that the files of a family share; `ci/cubin.py` finds it by its name.
    fn shared(self) -> &'static str {
        match self {
            Self::Attention | Self::AttentionGrad | Self::AttentionRows => {
                concat!("#line 1 \"attention.cuh\"\n", include_str!("attention.cuh"))
            }
            _ => "",
        }
    }

    /// Returns the file for matrices of this storage type.
    pub(super) fn over(self, stored: StorageType) -> Text {
        Text { file: self, stored }
    }
}

/// A file of kernels for matrices of one storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Text {
    file: File,
    stored: StorageType,
}

impl Text {
    /// Returns the text for the compiler. Its line numbers are those of the files.
    pub(super) fn source(self) -> String {
        let (name, text) = self.file.parts();
        let stored = match self.stored {
            StorageType::F32 => "",
            StorageType::Bf16 => "#define STORE_BF16\n",
        };
        let shared = self.file.shared();
        format!("{stored}#line 1 \"common.cuh\"\n{COMMON}\n{shared}\n#line 1 \"{name}\"\n{text}")
    }

    /// Returns the name of the file.
    pub(super) fn name(self) -> &'static str {
        self.file.parts().0
    }
}

/// Returns the compiler options for an architecture, such as `sm_90`.
pub(super) fn options(architecture: &str) -> Vec<String> {
    let fixed = OPTIONS.split_whitespace().map(str::to_owned);
    fixed.chain([format!("--gpu-architecture={architecture}")]).collect()
}

/// Compiles a file to machine code.
///
/// # Errors
/// [`Error::NoLibrary`]; [`Error::Compile`] with the compiler's log; [`Error::Cuda`].
pub(super) fn compile(file: Text, architecture: &str) -> Result<Vec<u8>> {
    driver::find_compiler()?;
    let text = |text: &str| CString::new(text).expect("no kernel's text has a NUL");
    let (source, name) = (text(&file.source()), text(file.name()));
    let program = Program(result::create_program(&source, Some(&name)).during("reading kernels")?);
    // SAFETY: the program lives until the end of this function; the options do not need to.
    let compiled = unsafe { result::compile_program(program.0, &options(architecture)) };
    if compiled.is_err() {
        // SAFETY: the program still exists; the log is a NUL-terminated text.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<_>>();
        return Err(Error::Compile { file: file.name(), log: String::from_utf8_lossy(&log).into_owned() });
    }
    let mut len = 0;
    // SAFETY: the length is written before the call returns.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut len) }.result().during("asking for machine code")?;
    let mut code = vec![0u8; len];
    // SAFETY: NVRTC writes as many bytes as it just returned as the size.
    unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }.result().during("asking for machine code")?;
    Ok(code)
}

/// A program of NVRTC. It is destroyed on drop.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created by `compile` and is not used any more. A failure only leaks it.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
