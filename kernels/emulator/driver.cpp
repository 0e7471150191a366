// An emulated NVIDIA driver (libcuda): device memory is heap memory, and kernels are shared libraries built by
// compiler.cpp.
//
// Queued work does not run before something waits for it. Then streams take turns in an order drawn from EMULATED_SEED.
// So work that was not waited for has not happened, which reveals copies of data that changed too early and reads
// without the right order. EMULATED_GPUS is the number of GPUs (2), EMULATED_BYTES the memory of each (2 GiB),
// EMULATED_VERSION the driver's version (13000), EMULATED_CACHE the bytes of a GPU's cache (4 MiB).
// EMULATED_SLICE_MS is the extra time that a kernel seems to take per slice of its grid's second dimension (0).
// EMULATED_FAIL=k makes the k-th call that can fail do so, counted from 1. EMULATED_FORGET_WAITS=1 makes streams ignore
// waits for each other, to check whether that is found.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
};

typedef unsigned long long Address;

struct Event {
    uint64_t recorded = 0, happened = 0;
    double ms = 0;
};

struct Op {
    std::function<void()> run;
    Event* waits_for = nullptr;
    uint64_t version = 0;
};

struct Graph {
    std::vector<std::function<void()>> runs;
};

struct Stream {
    void* context = nullptr;
    std::deque<Op> queue;
    Graph* capturing = nullptr;  // where queued work goes during capture
};

struct Module {
    void* library;
};

struct Function {
    const void* kernel;
    size_t args_bytes;
    void (*launch)(const void*, const unsigned*, const unsigned*, const void*, uint64_t);
};

static std::mutex lock;
static std::vector<Stream*> streams;
struct Memory {
    size_t bytes;
    void* context;
};
static std::map<Address, Memory> allocated;
// Which GPU's kernels can reach which GPU's memory. Both cuCtxEnablePeerAccess and cuMemPoolSetAccess are needed.
static std::map<std::pair<void*, void*>, int> reached;
static size_t used, most_used, most_of_pool;
static uint64_t random_state;
static double pretended_ms;
static thread_local void* current_context;
typedef std::lock_guard<std::mutex> Guard;

static long number_of(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

static uint64_t draw() {
    static const uint64_t seed = number_of("EMULATED_SEED", 0);
    if (random_state == 0) random_state = seed * 0x9e3779b97f4a7c15ull + 1;
    uint64_t z = random_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static bool can_run(const Stream* stream) {
    if (stream->queue.empty()) return false;
    const Op& op = stream->queue.front();
    return !op.waits_for || op.waits_for->happened >= op.version;
}

// Runs one job of a randomly drawn stream. Returns whether there was one.
static bool step() {
    std::vector<Stream*> ready;
    for (Stream* stream : streams)
        if (can_run(stream)) ready.push_back(stream);
    if (ready.empty()) return false;
    Stream* stream = ready[draw() % ready.size()];
    Op op = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (op.run) op.run();
    return true;
}

template <class Done>
static int run_until(Done done) {
    while (!done()) {
        if (!step()) {
            fprintf(stderr, "emulated: streams that wait for each other\n");
            abort();
        }
    }
    return SUCCESS;
}

// Returns whether this call is the one that fails. After a failure, everything queued on the GPU fails.
static bool fails() {
    static const long which = number_of("EMULATED_FAIL", 0);
    static std::atomic<long> calls{0};
    return which > 0 && ++calls >= which;
}

static int push(void* stream, std::function<void()> run) {
    if (fails()) return LAUNCH_FAILED;
    Guard guard(lock);
    Stream* to = (Stream*)stream;
    if (to->capturing) {
        to->capturing->runs.push_back(std::move(run));
    } else {
        to->queue.push_back(Op{std::move(run)});
    }
    return SUCCESS;
}

static bool captures(void* stream) { return ((Stream*)stream)->capturing != nullptr; }

static std::atomic<long> launched_graphs{0};
static void tell() { fprintf(stderr, "emulated: %ld graphs were launched, %zu bytes were allocated\n", launched_graphs.load(), most_used); }

API int cuInit(unsigned) {
    static const bool tells = getenv("EMULATED_TELL") && atexit(tell) == 0;
    (void)tells;
    return number_of("EMULATED_GPUS", 2) > 0 ? SUCCESS : NO_DEVICE;
}
API int cuDriverGetVersion(int* version) { return *version = int(number_of("EMULATED_VERSION", 13000)), SUCCESS; }
API int cuDeviceGetCount(int* count) { return *count = int(number_of("EMULATED_GPUS", 2)), SUCCESS; }
API int cuDeviceGet(int* device, int ordinal) {
    return *device = ordinal, ordinal < number_of("EMULATED_GPUS", 2) ? SUCCESS : INVALID_DEVICE;
}
API int cuDeviceGetName(char* name, int bytes, int) {
    const char* other = getenv("EMULATED_NAME");
    return snprintf(name, bytes, "%s", other ? other : "emulated GPU"), SUCCESS;
}
API int cuDeviceGetAttribute(int* value, int attribute, int) {
    enum { L2_CACHE_SIZE = 38, COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76, POOLS = 115 };
    const int capability = int(number_of("EMULATED_CAPABILITY", 90));
    switch (attribute) {
        case L2_CACHE_SIZE: return *value = int(number_of("EMULATED_CACHE", 4 << 20)), SUCCESS;
        case COMPUTE_MAJOR: return *value = capability / 10, SUCCESS;
        case COMPUTE_MINOR: return *value = capability % 10, SUCCESS;
        default: return *value = attribute == POOLS, SUCCESS;
    }
}
API int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = number_of("EMULATED_BYTES", 2l << 30), SUCCESS; }
API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    Guard guard(lock);
    *total = number_of("EMULATED_BYTES", 2l << 30);
    *free = *total > used ? *total - used : 0;
    return SUCCESS;
}
API int cuDevicePrimaryCtxRetain(void** context, int device) {
    return *context = (void*)(size_t)(device + 1), SUCCESS;
}
API int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API int cuCtxSetCurrent(void* context) { return current_context = context, SUCCESS; }
API int cuCtxGetCurrent(void** context) { return *context = current_context, SUCCESS; }
API int cuCtxSynchronize() {
    Guard guard(lock);
    return run_until([] {
        for (Stream* stream : streams)
            if (!stream->queue.empty()) return false;
        return true;
    });
}

static int take(Address* address, size_t bytes) {
    if (used + bytes > size_t(number_of("EMULATED_BYTES", 2l << 30))) return OUT_OF_MEMORY;
    // The exact number of bytes, so that AddressSanitizer sees the end.
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes) != 0) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);  // NaN, so that a cell that no kernel wrote is visible
    *address = (Address)memory;
    allocated[*address] = Memory{bytes, current_context};
    used += bytes;
    if (used > most_used) most_used = used;
    if (used > most_of_pool) most_of_pool = used;
    return SUCCESS;
}

static void give_back(Address address) {
    const auto found = allocated.find(address);
    if (found == allocated.end()) {
        fprintf(stderr, "emulated: memory that is freed twice or was never there\n");
        abort();
    }
    used -= found->second.bytes;
    memset((void*)address, 0xff, found->second.bytes);
    allocated.erase(found);
    free((void*)address);
}

API int cuMemAlloc_v2(Address* address, size_t bytes) {
    if (fails()) return OUT_OF_MEMORY;
    Guard guard(lock);
    return take(address, bytes);
}
API int cuMemAllocAsync(Address* address, size_t bytes, void*) { return cuMemAlloc_v2(address, bytes); }
API int cuMemFree_v2(Address address) {
    cuCtxSynchronize();
    Guard guard(lock);
    return give_back(address), SUCCESS;
}
API int cuMemFreeAsync(Address address, void* stream) {
    if (const int error = push(stream, [=] { give_back(address); })) return error;
    // Freed memory returns to the pool at once, and a new allocation of the stream may get it.
    Guard guard(lock);
    return run_until([=] { return ((Stream*)stream)->queue.empty(); });
}
API int cuDeviceGetDefaultMemPool(void** pool, int device) { return *pool = (void*)(size_t)(device + 1), SUCCESS; }
// The most bytes reserved (6) and in use (8) are one number, over all GPUs. Setting it to 0 starts again from now.
API int cuMemPoolSetAttribute(void*, int attribute, void*) {
    Guard guard(lock);
    if (attribute == 6 || attribute == 8) most_of_pool = used;
    return SUCCESS;
}
API int cuMemPoolGetAttribute(void*, int attribute, void* value) {
    Guard guard(lock);
    if (attribute != 6 && attribute != 8) return INVALID_VALUE;
    return *(uint64_t*)value = most_of_pool, SUCCESS;
}
API int cuMemPoolTrimTo(void*, size_t) { return SUCCESS; }

// GPUs reach each other unless EMULATED_PEERS=0. EMULATED_FORGET_LINKS=1 or 2 ignores the first or the second of the
// calls that link them, to check whether that is found.
static bool has_peers() { return number_of("EMULATED_PEERS", 1) != 0; }
API int cuDeviceCanAccessPeer(int* can, int device, int other) { return *can = device != other && has_peers(), SUCCESS; }
API int cuCtxEnablePeerAccess(void* context, unsigned) {
    if (fails()) return LAUNCH_FAILED;
    Guard guard(lock);
    if (!has_peers() || context == current_context) return INVALID_DEVICE;
    if (number_of("EMULATED_FORGET_LINKS", 0) == 1) return SUCCESS;
    int& flags = reached[{current_context, context}];
    if (flags & 1) return PEER_ACCESS_ALREADY_ENABLED;
    return flags |= 1, SUCCESS;
}
struct Access {
    int type, device, flags;
};
API int cuMemPoolSetAccess(void* pool, const Access* access, size_t count) {
    if (fails()) return LAUNCH_FAILED;
    Guard guard(lock);
    for (size_t i = 0; i < count; ++i) {
        void* const reader = (void*)(size_t)(access[i].device + 1);
        if (!has_peers() || access[i].type != 1 || access[i].flags != 3 || reader == pool) return INVALID_VALUE;
        if (number_of("EMULATED_FORGET_LINKS", 0) != 2) reached[{reader, pool}] |= 2;
    }
    return SUCCESS;
}
// Returns whether all addresses in a kernel's arguments are within its GPU's reach.
static bool reaches(void* context, const std::vector<char>& args) {
    for (size_t at = 0; at + sizeof(Address) <= args.size(); at += sizeof(Address)) {
        Address word;
        memcpy(&word, &args[at], sizeof word);
        auto found = allocated.upper_bound(word);
        if (found == allocated.begin()) continue;
        --found;
        if (word >= found->first + found->second.bytes || found->second.context == context) continue;
        if (reached[{context, found->second.context}] != 3) return false;
    }
    return true;
}
API int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    if (fails() || posix_memalign(memory, 4096, bytes) != 0) return OUT_OF_MEMORY;
    return memset(*memory, 0xff, bytes), SUCCESS;
}
API int cuMemFreeHost(void* memory) { return free(memory), SUCCESS; }

API int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
    return push(stream, [=] { memcpy((void*)to, from, bytes); });
}
API int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
    return push(stream, [=] { memcpy(to, (void*)from, bytes); });
}
API int cuMemsetD8Async(Address at, unsigned char value, size_t bytes, void* stream) {
    return push(stream, [=] { memset((void*)at, value, bytes); });
}

API int cuStreamCreate(void** stream, unsigned) {
    Guard guard(lock);
    streams.push_back(new Stream);
    streams.back()->context = current_context;
    return *stream = streams.back(), SUCCESS;
}
API int cuStreamSynchronize(void* stream) {
    Guard guard(lock);
    if (captures(stream)) return CAPTURE_UNSUPPORTED;
    return run_until([=] { return ((Stream*)stream)->queue.empty(); });
}
API int cuStreamDestroy_v2(void* stream) {
    cuStreamSynchronize(stream);
    Guard guard(lock);
    for (size_t i = 0; i < streams.size(); ++i)
        if (streams[i] == stream) streams.erase(streams.begin() + i--);
    delete (Stream*)stream;
    return SUCCESS;
}
API int cuStreamWaitEvent(void* stream, Event* event, unsigned) {
    if (getenv("EMULATED_FORGET_WAITS")) return SUCCESS;
    Guard guard(lock);
    if (captures(stream)) return CAPTURE_UNSUPPORTED;
    ((Stream*)stream)->queue.push_back(Op{nullptr, event, event->recorded});
    return SUCCESS;
}

// A graph is the list of jobs queued on a stream during capture. EMULATED_CAPTURE=0 disables graphs. EMULATED_TELL=1
// prints at the end how many were launched, and the most bytes that were allocated. The real driver lets a stream wait
// for others during capture; no program here does.
API int cuStreamBeginCapture_v2(void* stream, int) {
    if (fails() || number_of("EMULATED_CAPTURE", 1) == 0) return CAPTURE_UNSUPPORTED;
    Guard guard(lock);
    if (captures(stream)) return INVALID_VALUE;
    ((Stream*)stream)->capturing = new Graph;
    return SUCCESS;
}
API int cuStreamEndCapture(void* stream, Graph** graph) {
    Guard guard(lock);
    if (!captures(stream)) return INVALID_VALUE;
    *graph = ((Stream*)stream)->capturing;
    ((Stream*)stream)->capturing = nullptr;
    return SUCCESS;
}
API int cuGraphInstantiateWithFlags(Graph** made, Graph* graph, unsigned long long) {
    if (fails()) return OUT_OF_MEMORY;
    return *made = new Graph(*graph), SUCCESS;
}
API int cuGraphDestroy(Graph* graph) { return delete graph, SUCCESS; }
API int cuGraphExecDestroy(Graph* made) { return delete made, SUCCESS; }
API int cuGraphLaunch(Graph* made, void* stream) {
    ++launched_graphs;
    for (const auto& run : made->runs)
        if (const int error = push(stream, run)) return error;
    return SUCCESS;
}

API int cuEventCreate(Event** event, unsigned) {
    if (fails()) return OUT_OF_MEMORY;
    return *event = new Event, SUCCESS;
}
// Streams may still hold it, so it is kept.
API int cuEventDestroy_v2(Event*) { return SUCCESS; }
API int cuEventRecord(Event* event, void* stream) {
    Guard guard(lock);
    if (captures(stream)) return CAPTURE_UNSUPPORTED;
    const uint64_t version = ++event->recorded;
    ((Stream*)stream)->queue.push_back(Op{[=] {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        event->ms = std::chrono::duration<double, std::milli>(now).count() + pretended_ms;
        if (event->happened < version) event->happened = version;
    }});
    return SUCCESS;
}
API int cuEventSynchronize(Event* event) {
    Guard guard(lock);
    return run_until([=] { return event->happened >= event->recorded; });
}
API int cuEventQuery(Event* event) {
    Guard guard(lock);
    step();
    return event->happened >= event->recorded ? SUCCESS : NOT_READY;
}
// Not cuEventElapsedTime_v2, which drivers before 12.8 do not have.
API int cuEventElapsedTime(float* ms, Event* from, Event* to) {
    Guard guard(lock);
    if (from->happened < from->recorded || to->happened < to->recorded) return NOT_READY;
    return *ms = float(to->ms - from->ms), SUCCESS;
}

// Returns the length of a shared library in memory, which ends with its section table; 0 if it is not one.
static size_t library_bytes(const void* image) {
    const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) return 0;
    return head->e_shoff + size_t(head->e_shnum) * head->e_shentsize;
}

API int cuModuleLoadData(Module** module, const void* image) {
    if (fails()) return LAUNCH_FAILED;
    const size_t bytes = library_bytes(image);
    // The same code is loaded only once, for any number of devices.
    static std::map<std::string, Module*> loaded;
    Guard guard(lock);
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
API int cuModuleUnload(Module*) { return SUCCESS; }
API int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    typedef const void* (*Find)(const char*);
    typedef size_t (*Bytes)(const void*);
    const void* kernel = ((Find)dlsym(module->library, "simt_find"))(name);
    if (!kernel) return NOT_FOUND;
    const size_t bytes = ((Bytes)dlsym(module->library, "simt_args_bytes"))(kernel);
    *function = new Function{kernel, bytes, (decltype(Function::launch))dlsym(module->library, "simt_launch")};
    return SUCCESS;
}
API int cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned, void* stream, void** params, void**) {
    // The limits of real devices.
    if (gx == 0 || gy == 0 || gz == 0 || gx > 0x7fffffff || gy > 65535 || gz > 65535 || bx * by * bz > 1024) return INVALID_VALUE;
    const char* first = (const char*)params[0];
    std::vector<char> args(first, first + function->args_bytes);
    const uint64_t seed = number_of("EMULATED_SEED", 0);
    {
        Guard guard(lock);
        if (!reaches(((Stream*)stream)->context, args)) return ILLEGAL_ADDRESS;
    }
    return push(stream, [=] {
        const unsigned grid[] = {gx, gy, gz}, size[] = {bx, by, bz};
        function->launch(function->kernel, grid, size, args.data(), seed ? draw() | 1 : 0);
        pretended_ms += double(number_of("EMULATED_SLICE_MS", 0)) * gy;
    });
}

API int cuGetErrorName(int error, const char** name) {
    switch (error) {
        case OUT_OF_MEMORY: return *name = "CUDA_ERROR_OUT_OF_MEMORY", SUCCESS;
        case NO_DEVICE: return *name = "CUDA_ERROR_NO_DEVICE", SUCCESS;
        case ILLEGAL_ADDRESS: return *name = "CUDA_ERROR_ILLEGAL_ADDRESS", SUCCESS;
        case LAUNCH_FAILED: return *name = "CUDA_ERROR_LAUNCH_FAILED", SUCCESS;
        case INVALID_IMAGE: return *name = "CUDA_ERROR_INVALID_IMAGE", SUCCESS;
        default: return *name = "an emulated error", SUCCESS;
    }
}
API int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

// For the emulated BLAS. `data` is copied, because a graph runs it more than once.
API void emulated_push(void* stream, void (*run)(const void*), const void* data, size_t bytes) {
    std::vector<char> copy((const char*)data, (const char*)data + bytes);
    push(stream, [=] { run(copy.data()); });
}
