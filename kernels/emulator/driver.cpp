// An emulated NVIDIA driver (libcuda): GPUs, contexts and memory. Device memory is heap memory. Streams are in
// streams.cpp, kernels in modules.cpp, and history.cpp finds missing waits.
//
// EMULATED_GPUS is the number of GPUs (2), EMULATED_BYTES the memory of each (2 GiB), EMULATED_VERSION the driver's
// version (13000), EMULATED_CACHE the bytes of a GPU's cache (4 MiB). EMULATED_FAIL=k makes the k-th call that can fail
// do so, counted from 1. EMULATED_TELL=1 prints at the end how many graphs were launched, and the most
// bytes that were allocated.
#include "driver.h"

std::mutex Guard::lock;
std::atomic<int> Guard::waiting{0};
thread_local void* current_context;

struct Memory {
    size_t bytes;
    void* context;
};
static std::map<Address, Memory> allocated;
static std::map<void*, size_t> pinned;
// Which GPU's kernels can reach which GPU's memory. Both cuCtxEnablePeerAccess and cuMemPoolSetAccess are needed.
static std::map<std::pair<void*, void*>, int> reached;
static size_t used, most_used, most_of_pool;

long number_of(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

uint64_t draw() {
    static const uint64_t seed = number_of("EMULATED_SEED", 0);
    static uint64_t random = seed * 0x9e3779b97f4a7c15ull + 1;
    uint64_t z = random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

bool fails() {
    static const long which = number_of("EMULATED_FAIL", 0);
    static std::atomic<long> calls{0};
    return which > 0 && ++calls >= which;
}

void abort_with(const std::string& what) {
    fprintf(stderr, "emulated: %s\n", what.c_str());
    fflush(stderr);
    abort();
}

int without_context(const char* call) {
    fprintf(stderr, "emulated: %s on a thread without a current context\n", call);
    return INVALID_CONTEXT;
}

static void tell() {
    fprintf(stderr, "emulated: %ld graphs were launched, %zu bytes were allocated, %ld products of cuBLAS were queued\n",
            launched_graphs.load(), most_used, queued_products.load());
}

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
    NEEDS_CONTEXT;
    Guard guard;
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
    NEEDS_CONTEXT;
    let_others_queue();
    Guard guard;
    return synchronise_context(current_context);
}

static int take(Address* address, size_t bytes, Stream* stream) {
    if (used + bytes > size_t(number_of("EMULATED_BYTES", 2l << 30))) return OUT_OF_MEMORY;
    // The exact number of bytes, so that AddressSanitizer sees the end. The history sees it without one, but only after
    // the kernel, which must not harm anything else.
    const size_t margin = history::is_kept() ? 64 << 10 : 0;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes + margin) != 0) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);  // NaN, so that a cell that no kernel wrote is visible
    *address = (Address)memory;
    allocated[*address] = Memory{bytes, current_context};
    used += bytes;
    if (used > most_used) most_used = used;
    if (used > most_of_pool) most_of_pool = used;
    const Clock clock = stream ? history::queue(stream->clock, stream->number) : history::host();
    history::begin_memory(clock, stream ? stream->number : 0, *address, bytes);
    return SUCCESS;
}

static void give_back(Address address, const Clock& clock, uint32_t stream) {
    const auto found = allocated.find(address);
    if (found == allocated.end()) abort_with("memory that is freed twice or was never there");
    const size_t bytes = found->second.bytes;
    history::end_memory(clock, stream, address, bytes);
    used -= bytes;
    memset((void*)address, 0xff, bytes);
    allocated.erase(found);
    history::release((void*)address, bytes);
}

API int cuMemAlloc_v2(Address* address, size_t bytes) {
    NEEDS_CONTEXT;
    if (fails()) return OUT_OF_MEMORY;
    Guard guard;
    return take(address, bytes, nullptr);
}
// The real driver makes allocations and frees part of a graph during capture. No program here does.
API int cuMemAllocAsync(Address* address, size_t bytes, Stream* stream) {
    NEEDS_CONTEXT;
    if (fails()) return OUT_OF_MEMORY;
    Guard guard;
    if (const int error = check_idle(stream)) return error;
    return take(address, bytes, stream);
}
API int cuMemFree_v2(Address address) {
    NEEDS_CONTEXT;
    if (const int error = cuCtxSynchronize()) return error;
    Guard guard;
    return give_back(address, history::host(), 0), SUCCESS;
}
API int cuMemFreeAsync(Address address, Stream* stream) {
    NEEDS_CONTEXT;
    if (fails()) return LAUNCH_FAILED;
    Guard guard;
    if (const int error = check_idle(stream)) return error;
    // Freed memory returns to the pool at once, and a new allocation of the stream may get it.
    const Clock clock = history::queue(stream->clock, stream->number);
    if (const int error = drain(stream)) return error;
    return give_back(address, clock, stream->number), SUCCESS;
}
API int cuDeviceGetDefaultMemPool(void** pool, int device) { return *pool = (void*)(size_t)(device + 1), SUCCESS; }
// The most bytes reserved (6) and in use (8) are one number, over all GPUs. Setting it to 0 starts again from now.
API int cuMemPoolSetAttribute(void*, int attribute, void*) {
    Guard guard;
    if (attribute == 6 || attribute == 8) most_of_pool = used;
    return SUCCESS;
}
API int cuMemPoolGetAttribute(void*, int attribute, void* value) {
    Guard guard;
    if (attribute != 6 && attribute != 8) return INVALID_VALUE;
    return *(uint64_t*)value = most_of_pool, SUCCESS;
}
API int cuMemPoolTrimTo(void*, size_t) { return SUCCESS; }

// GPUs reach each other unless EMULATED_PEERS=0. EMULATED_FORGET_LINKS=1 or 2 ignores the first or the second of the
// calls that link them, to check whether that is found.
static bool has_peers() { return number_of("EMULATED_PEERS", 1) != 0; }
API int cuDeviceCanAccessPeer(int* can, int device, int other) { return *can = device != other && has_peers(), SUCCESS; }
API int cuCtxEnablePeerAccess(void* context, unsigned) {
    NEEDS_CONTEXT;
    if (fails()) return LAUNCH_FAILED;
    Guard guard;
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
    Guard guard;
    for (size_t i = 0; i < count; ++i) {
        void* const reader = (void*)(size_t)(access[i].device + 1);
        if (!has_peers() || access[i].type != 1 || access[i].flags != 3 || reader == pool) return INVALID_VALUE;
        if (number_of("EMULATED_FORGET_LINKS", 0) != 2) reached[{reader, pool}] |= 2;
    }
    return SUCCESS;
}
bool reaches(void* context, const std::vector<char>& args) {
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
    NEEDS_CONTEXT;
    if (fails() || posix_memalign(memory, 4096, bytes) != 0) return OUT_OF_MEMORY;
    memset(*memory, 0xff, bytes);
    Guard guard;
    pinned[*memory] = bytes;
    history::begin_memory(history::host(), 0, (uint64_t)*memory, bytes);
    return SUCCESS;
}
API int cuMemFreeHost(void* memory) {
    NEEDS_CONTEXT;
    Guard guard;
    const auto found = pinned.find(memory);
    if (found == pinned.end()) return INVALID_VALUE;
    history::end_memory(history::host(), 0, (uint64_t)memory, found->second);
    history::release(memory, found->second);
    pinned.erase(found);
    return SUCCESS;
}


API int cuGetErrorName(int error, const char** name) {
    switch (error) {
        case OUT_OF_MEMORY: return *name = "CUDA_ERROR_OUT_OF_MEMORY", SUCCESS;
        case NO_DEVICE: return *name = "CUDA_ERROR_NO_DEVICE", SUCCESS;
        case ILLEGAL_ADDRESS: return *name = "CUDA_ERROR_ILLEGAL_ADDRESS", SUCCESS;
        case LAUNCH_FAILED: return *name = "CUDA_ERROR_LAUNCH_FAILED", SUCCESS;
        case INVALID_CONTEXT: return *name = "CUDA_ERROR_INVALID_CONTEXT", SUCCESS;
        case INVALID_HANDLE: return *name = "CUDA_ERROR_INVALID_HANDLE", SUCCESS;
        case INVALID_IMAGE: return *name = "CUDA_ERROR_INVALID_IMAGE", SUCCESS;
        default: return *name = "an emulated error", SUCCESS;
    }
}
API int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }
