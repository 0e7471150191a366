"""Compiles every kernel file with NVRTC, as the runtime does, and prints the registers that each kernel uses."""

import ctypes
import glob
import os
import re
import sys


def nvrtc():
    for folder in sys.path:
        for path in glob.glob(os.path.join(folder, "nvidia/*/lib/libnvrtc.so.*")):
            # NVRTC looks up its builtins library by name, and finds one that is already loaded.
            for builtins in glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.*")):
                ctypes.CDLL(builtins)
            return ctypes.CDLL(path)
    sys.exit("error: this Python has no nvidia-cuda-nvrtc")


def compile_file(library, name, source, options):
    """Returns the compiler's log. Exits if there are errors."""
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None)
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = library.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        sys.exit(f"error: {name}: {log.value.decode()}")
    return log.value.decode()


def kernels(log):
    """Yields the name, registers, and bytes of stack and spills of each kernel in a log of ptxas."""
    entries = re.split(r"ptxas info\s*: Compiling entry function '", log)[1:]
    for entry in entries:
        name = entry.split("'")[0]
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        registers = re.search(r"Used (\d+) registers", entry)
        if not frame or not registers:
            sys.exit(f"error: the log does not say what {name} uses:\n{entry}")
        yield name, int(registers[1]), [int(n) for n in frame.groups()]


def main(folder, architectures):
    library = nvrtc()
    with open("kernels/src/cuda/options.txt", encoding="utf-8") as file:
        options = file.read().split()
    with open(os.path.join(folder, "common.cuh"), "rb") as file:
        common = file.read()
    bad, count = [], 0
    for architecture in architectures:
        for path in sorted(glob.glob(os.path.join(folder, "*.cu"))):
            # The text that the files of a family share.
            headers = [header for header in glob.glob(os.path.join(folder, "*.cuh")) if path.startswith(header[:-4])]
            shared = b"".join(open(header, "rb").read() for header in headers)
            with open(path, "rb") as file:
                text = common + shared + b"#line 1\n" + file.read()
            # The storage types of matrices.
            for stored, define in ("f32", b""), ("bf16", b"#define STORE_BF16\n"):
                flags = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", *options]
                found = list(kernels(compile_file(library, os.path.basename(path), define + text, flags)))
                if not found:
                    sys.exit(f"error: {path} has no kernels")
                for name, registers, memory in found:
                    count += 1
                    print(f"{architecture} {stored:4} {os.path.basename(path):16} {name:28} {registers:3} registers")
                    if any(memory):
                        said = f"stack, spill stores and spill loads of {memory} bytes"
                        bad.append(f"{architecture} {stored} {name}: {said}")
    if bad:
        sys.exit("error: kernels that use local memory:\n" + "\n".join(bad))
    print(f"{count} kernels compiled; none spills or uses local memory")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
