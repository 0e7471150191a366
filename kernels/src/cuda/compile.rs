//! The kernel sources, and their compilation by NVRTC for one kind of GPU.

use std::ffi::{CString, c_char};
use std::fmt;

use cudarc::nvrtc::{result, sys};

use super::driver::{self, Named};
use crate::cuda::gather_kernel::GatherKind;
use crate::error::{Error, Result};
use crate::storage_type::StorageType;
use crate::version::Version;

/// The text that precedes every file.
const COMMON: &str = include_str!("common.cuh");

/// Compiler options, without the target; `ci/cubin` reads the same file.
pub(super) const OPTIONS: &str = include_str!("options.txt");

/// A source file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum File {
    Attention,
    AttentionGrad,
    AttentionRows,
    /// Each kind is compiled by itself, because most programs use one or two of them.
    Gather(GatherKind),
    LayerNorm,
    Losses,
    Optimizers,
    Product,
    /// Products by tensor cores, of f32 matrices alone.
    Product3xTf32,
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
            Self::Gather(_) => ("gather.cu", include_str!("gather.cu")),
            Self::LayerNorm => ("layer_norm.cu", include_str!("layer_norm.cu")),
            Self::Losses => ("losses.cu", include_str!("losses.cu")),
            Self::Optimizers => ("optimizers.cu", include_str!("optimizers.cu")),
            Self::Product => ("product.cu", include_str!("product.cu")),
            Self::Product3xTf32 => ("product_3xtf32.cu", include_str!("product_3xtf32.cu")),
            Self::Rows => ("rows.cu", include_str!("rows.cu")),
            Self::Sums => ("sums.cu", include_str!("sums.cu")),
        }
    }

    /// Returns the text that the files of a family share; `ci/machine_code/compile.py` finds it by its name.
    fn shared(self) -> &'static str {
        match self {
            Self::Attention | Self::AttentionGrad | Self::AttentionRows => {
                concat!("#line 1 \"attention.cuh\"\n", include_str!("attention.cuh"))
            }
            Self::Gather(_) => concat!("#line 1 \"gather.cuh\"\n", include_str!("gather.cuh")),
            Self::Product | Self::Product3xTf32 => {
                concat!("#line 1 \"product.cuh\"\n", include_str!("product.cuh"))
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
        let kind = match self.file {
            File::Gather(GatherKind { weighted, split }) => {
                format!("#define ONLY_WEIGHTED {}\n#define ONLY_SPLIT {}\n", u8::from(weighted), u8::from(split))
            }
            _ => String::new(),
        };
        let shared = self.file.shared();
        format!("{stored}{kind}#line 1 \"common.cuh\"\n{COMMON}\n{shared}\n#line 1 \"{name}\"\n{text}")
    }

    /// Returns the name of the file.
    pub(super) fn name(self) -> &'static str {
        self.file.parts().0
    }
}

/// The kind of code that the compiler makes for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Machine code for a compute capability, such as 90, that runs on later ones of the same major version.
    Machine(u32),
    /// Assembly for a compute capability, which the driver compiles for any later one.
    Assembly(u32),
}

/// Capabilities of Tegra's GPUs. Their machine code is only for themselves.
const TEGRA: [u32; 6] = [53, 62, 72, 87, 101, 110];

impl Target {
    /// Returns the best target for a GPU among the capabilities that the compiler knows; `None` if all are newer than
    /// the GPU.
    fn best(gpu: Version, known: &[u32]) -> Option<Self> {
        let capability = 10 * gpu.major + gpu.minor;
        let runs = |known: &u32| *known == capability || !TEGRA.contains(&capability) && !TEGRA.contains(known);
        let older = || known.iter().copied().filter(|&known| known <= capability);
        let machine = older().filter(|known| known / 10 == gpu.major && runs(known)).max();
        machine.map(Self::Machine).or_else(|| older().max().map(Self::Assembly))
    }

    /// Returns the best target for a GPU among those of the installed compiler.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::NewCompiler`], [`Error::NoTarget`], [`Error::Cuda`].
    pub(super) fn of(gpu: Version) -> Result<Self> {
        let compiler = driver::find_compiler()?;
        let advice = match gpu.major {
            ..=7 => "run `pip install nvidia-cuda-nvrtc-cu12`, and name its folder in LD_LIBRARY_PATH alone",
            _ => "install another CUDA",
        };
        Self::best(gpu, &known()?).ok_or(Error::NoTarget { compiler, gpu, advice })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(capability) => write!(f, "sm_{capability}"),
            Self::Assembly(capability) => write!(f, "compute_{capability}"),
        }
    }
}

/// Returns the compute capabilities that the installed compiler knows.
fn known() -> Result<Vec<u32>> {
    const CALL: &str = "asking for the GPUs that the kernel compiler knows";
    let mut count = 0;
    // SAFETY: the number is written before the call returns.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().during(CALL)?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: NVRTC writes as many numbers as it just said.
    unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }.result().during(CALL)?;
    Ok(known.into_iter().map(i32::unsigned_abs).collect())
}

/// Returns the compiler options for a target.
fn options(target: Target) -> Vec<String> {
    let fixed = OPTIONS.split_whitespace().map(str::to_owned);
    fixed.chain([format!("--gpu-architecture={target}")]).collect()
}

/// Compiles a file. The driver loads what this returns. The compiler exists: it was asked for the target.
///
/// # Errors
/// [`Error::Compile`] with the compiler's log; [`Error::Cuda`].
pub(super) fn compile(file: Text, target: Target) -> Result<Vec<u8>> {
    let text = |text: &str| CString::new(text).expect("no kernel's text has a NUL");
    let (source, name) = (text(&file.source()), text(file.name()));
    let program = Program(result::create_program(&source, Some(&name)).during("reading kernels")?);
    // SAFETY: the program lives until the end of this function; the options do not need to.
    let compiled = unsafe { result::compile_program(program.0, &options(target)) };
    if compiled.is_err() {
        // SAFETY: the program still exists; the log is a NUL-terminated text.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<_>>();
        return Err(Error::Compile { file: file.name(), log: String::from_utf8_lossy(&log).into_owned() });
    }
    match target {
        Target::Machine(_) => program.code(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        Target::Assembly(_) => program.code(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    }
}

/// A program of NVRTC. It is destroyed on drop.
struct Program(sys::nvrtcProgram);

impl Program {
    /// Returns the code of a compiled program, by the functions for its size and its bytes.
    fn code(
        &self,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        bytes: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>> {
        const CALL: &str = "asking for compiled kernels";
        let mut len = 0;
        // SAFETY: the length is written before the call returns.
        unsafe { size(self.0, &mut len) }.result().during(CALL)?;
        let mut code = vec![0u8; len];
        // SAFETY: NVRTC writes as many bytes as it just returned as the size.
        unsafe { bytes(self.0, code.as_mut_ptr().cast()) }.result().during(CALL)?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created by `compile` and is not used any more. A failure only leaks it.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_gets_the_newest_code_that_runs_on_it() {
        const NVRTC_12_8: [u32; 12] = [50, 60, 61, 70, 75, 80, 86, 89, 90, 100, 101, 120];
        const NVRTC_13_0: [u32; 9] = [75, 80, 86, 89, 90, 100, 103, 110, 120];
        let best = |major, minor, known: &[u32]| Target::best(Version { major, minor }, known);
        assert_eq!(best(9, 0, &NVRTC_12_8), Some(Target::Machine(90)));
        assert_eq!(best(8, 9, &NVRTC_12_8), Some(Target::Machine(89)));
        // Unknown to the compiler, but a later one of a major version that it knows.
        assert_eq!(best(10, 3, &NVRTC_12_8), Some(Target::Machine(100)));
        assert_eq!(best(12, 1, &NVRTC_12_8), Some(Target::Machine(120)));
        // A major version that it does not know, and a GPU that runs no other's machine code.
        assert_eq!(best(8, 7, &NVRTC_12_8), Some(Target::Assembly(86)));
        assert_eq!(best(11, 0, &NVRTC_12_8), Some(Target::Assembly(101)));
        assert_eq!(best(7, 0, &NVRTC_13_0), None);
    }

    #[test]
    fn targets_have_the_names_of_the_compiler() {
        let names = [Target::Machine(90), Target::Assembly(101)].map(|target| target.to_string());
        assert_eq!(names, ["sm_90", "compute_101"]);
    }
}
