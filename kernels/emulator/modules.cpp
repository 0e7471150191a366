// Kernels of the emulated driver: a module is a shared library that compiler.cpp built.
//
// EMULATED_SLICE_MS is the extra time that a kernel seems to take per slice of its grid's second dimension after the
// first one (0).
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

struct Module {
    void* library;
};

struct Function {
    std::string name;
    const void* kernel;
    size_t args_bytes;
    void (*launch)(const void*, const unsigned*, const unsigned*, const void*, uint64_t);
    const Use* (*uses)(size_t*);  // what the last launch read and wrote; null if kernels are not checked for races
};

double pretended_ms;

// Returns the length of a shared library in memory, which ends with its section table; 0 if it is not one.
static size_t library_bytes(const void* image) {
    const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) return 0;
    return head->e_shoff + size_t(head->e_shnum) * head->e_shentsize;
}

API int cuModuleLoadData(Module** module, const void* image) {
    NEEDS_CONTEXT;
    if (fails()) return LAUNCH_FAILED;
    const size_t bytes = library_bytes(image);
    // The same code is loaded only once, for any number of devices.
    static std::map<std::string, Module*> loaded;
    Guard guard;
    const std::string code((const char*)image, bytes);
    const auto known = loaded.find(code);
    if (bytes && known != loaded.end()) return *module = known->second, SUCCESS;
    const int file = bytes ? memfd_create("emulated kernels", 0) : -1;
    if (file < 0 || write(file, image, bytes) != ssize_t(bytes)) return INVALID_IMAGE;
    // The file stays open, because the loader treats a path that it has seen as the same library.
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "emulated: %s\n", dlerror());
        return INVALID_IMAGE;
    }
    return *module = loaded[code] = new Module{library}, SUCCESS;
}
API int cuModuleUnload(Module*) {
    NEEDS_CONTEXT;
    return SUCCESS;
}
API int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    NEEDS_CONTEXT;
    typedef const void* (*Find)(const char*);
    typedef size_t (*Bytes)(const void*);
    const void* kernel = ((Find)dlsym(module->library, "simt_find"))(name);
    if (!kernel) return NOT_FOUND;
    const size_t bytes = ((Bytes)dlsym(module->library, "simt_args_bytes"))(kernel);
    *function = new Function{name, kernel, bytes, (decltype(Function::launch))dlsym(module->library, "simt_launch"),
                             (decltype(Function::uses))dlsym(module->library, "simt_uses")};
    return SUCCESS;
}
API int cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned, Stream* stream, void** params, void**) {
    NEEDS_CONTEXT;
    // The limits of real devices.
    if (gx == 0 || gy == 0 || gz == 0 || gx > 0x7fffffff || gy > 65535 || gz > 65535 || bx * by * bz > 1024) return INVALID_VALUE;
    const char* first = (const char*)params[0];
    std::vector<char> args(first, first + function->args_bytes);
    const uint64_t seed = number_of("EMULATED_SEED", 0);
    if (stream) {
        Guard guard;
        if (!reaches(stream->context, args)) return ILLEGAL_ADDRESS;
    }
    return push(stream, {function->name, [=](std::vector<Use>& uses) {
                             const unsigned grid[] = {gx, gy, gz}, size[] = {bx, by, bz};
                             function->launch(function->kernel, grid, size, args.data(), seed ? draw() | 1 : 0);
                             pretended_ms += double(number_of("EMULATED_SLICE_MS", 0)) * (double(gy) - 1);
                             size_t count = 0;
                             const Use* first = function->uses ? function->uses(&count) : nullptr;
                             uses.assign(first, first + count);
                         }});
}
