"""Compiles kernel files to machine code with NVRTC, with the text and the options that the runtime gives it."""

import ctypes
import glob
import os
import re
import sys
from dataclasses import dataclass

FOLDER = "kernels/src/cuda"

# Each storage type of matrices, and the text that chooses it.
STORAGE_TYPES = {"f32": b"", "bf16": b"#define STORE_BF16\n"}


@dataclass(frozen=True)
class Used:
    """The memory that one kernel uses, by the compiler's log."""

    registers: int
    shared_bytes: int
    local_bytes: int  # stack and spills


def files():
    return sorted(os.path.basename(path) for path in glob.glob(f"{FOLDER}/*.cu"))


def storage_types(file):
    """Returns the storage types that a file is compiled for."""
    return ["f32"] if file == "product_3xtf32.cu" else list(STORAGE_TYPES)


def find_nvrtc(release):
    """Returns the library of a release, such as 12.8, from this Python's packages."""
    for folder in sys.path:
        for builtins in glob.glob(os.path.join(folder, f"nvidia/*/lib/libnvrtc-builtins.so.{release}")):
            # NVRTC looks up its builtins library by name, and finds one that is already loaded.
            ctypes.CDLL(builtins)
            major = release.split(".")[0]
            return ctypes.CDLL(os.path.join(os.path.dirname(builtins), f"libnvrtc.so.{major}"))
    sys.exit(f"error: this Python has no NVRTC {release}")


def source(file, storage):
    """Returns the text of a file, behind that which all files and those of its family share."""
    families = [path for path in glob.glob(f"{FOLDER}/*.cuh") if f"{FOLDER}/{file}".startswith(path[:-4])]
    texts = [open(path, "rb").read() for path in (f"{FOLDER}/common.cuh", *families)]
    with open(f"{FOLDER}/{file}", "rb") as text:
        return STORAGE_TYPES[storage] + b"".join(texts) + b"#line 1\n" + text.read()


def compile_file(library, architecture, file, storage):
    """Returns the machine code of a file, and what each of its kernels uses. Exits if there are errors."""
    with open(f"{FOLDER}/options.txt", encoding="utf-8") as text:
        options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", *text.read().split()]
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source(file, storage), file.encode(), 0, None, None)
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = library.nvrtcCompileProgram(program, len(options), array)
    log = _bytes(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
    if failed:
        sys.exit(f"error: {file}: {log}")
    code = _bytes(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code, dict(_used(log))


def _bytes(size_of, read, program):
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    read(program, text)
    return text.raw


def _used(log):
    """Yields the name of each kernel in a log of ptxas, and what it uses."""
    for entry in re.split(r"ptxas info\s*: Compiling entry function '", log)[1:]:
        name = entry.split("'")[0]
        local = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        registers = re.search(r"Used (\d+) registers", entry)
        if not local or not registers:
            sys.exit(f"error: the log does not say what {name} uses:\n{entry}")
        shared = re.search(r"(\d+) bytes smem", entry)
        local_bytes = sum(int(bytes) for bytes in local.groups())
        yield name, Used(int(registers[1]), int(shared[1]) if shared else 0, local_bytes)
