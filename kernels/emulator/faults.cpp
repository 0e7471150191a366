// Programs with planted faults, over the emulated libraries: faults NAME [right]. With `right`, the same program without
// its fault. Without arguments, it prints the names and what must be said of each.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

extern "C" {
typedef void* Handle;
int cuCtxSetCurrent(Handle);
int cuMemAlloc_v2(uint64_t*, size_t);
int cuMemAllocAsync(uint64_t*, size_t, Handle);
int cuMemFreeAsync(uint64_t, Handle);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemcpyHtoDAsync_v2(uint64_t, const void*, size_t, Handle);
int cuMemcpyDtoHAsync_v2(void*, uint64_t, size_t, Handle);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, Handle);
int cuStreamCreate(Handle*, unsigned);
int cuStreamSynchronize(Handle);
int cuStreamWaitEvent(Handle, Handle, unsigned);
int cuStreamBeginCapture_v2(Handle, int);
int cuStreamEndCapture(Handle, Handle*);
int cuGraphInstantiateWithFlags(Handle*, Handle, unsigned long long);
int cuGraphLaunch(Handle, Handle);
int cuEventCreate(Handle*, unsigned);
int cuEventRecord(Handle, Handle);
int cuEventSynchronize(Handle);
int cuEventQuery(Handle);
int cuCtxSynchronize();
int cuModuleLoadData(Handle*, const void*);
int cuModuleGetFunction(Handle*, Handle, const char*);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
int nvrtcCreateProgram(Handle*, const char*, const char*, int, const char**, const char**);
int nvrtcCompileProgram(Handle, int, const char**);
int nvrtcGetCUBINSize(Handle, size_t*);
int nvrtcGetCUBIN(Handle, char*);
}

static void must(int code, int want, const char* call) {
    if (code == want) return;
    printf("%s gave %d, not %d\n", call, code, want);
    exit(1);
}
#define OK(call) must(call, 0, #call)
#define GIVES(want, call) must(call, want, #call)

// Two streams, and memory of 64 KiB on the GPU and the host.
constexpr size_t BYTES = 64 << 10;
struct Gpu {
    Handle first, second, event;
    uint64_t memory;
    void* host;

    Gpu() {
        OK(cuCtxSetCurrent((Handle)1));
        OK(cuStreamCreate(&first, 1));
        OK(cuStreamCreate(&second, 1));
        OK(cuEventCreate(&event, 0));
        OK(cuMemAlloc_v2(&memory, BYTES));
        OK(cuMemHostAlloc(&host, BYTES, 3));
        memset(host, 0, BYTES);
    }
    // Lets the second stream wait for the first, if `waits`.
    void order(bool waits) {
        OK(cuEventRecord(event, first));
        if (waits) OK(cuStreamWaitEvent(second, event, 0));
    }
};

// Returns machine code, which is kept beside this program.
static std::vector<char> compile(const std::string& source) {
    const std::string races = getenv("EMULATED_RACES") ? "races" : "plain";
    const std::string kept = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
                             ("fault-" + races + std::to_string(std::hash<std::string>()(source)));
    if (std::ifstream file{kept, std::ios::binary}) return {std::istreambuf_iterator<char>(file), {}};
    Handle program;
    OK(nvrtcCreateProgram(&program, source.c_str(), "fault.cu", 0, nullptr, nullptr));
    OK(nvrtcCompileProgram(program, 0, nullptr));
    size_t bytes;
    OK(nvrtcGetCUBINSize(program, &bytes));
    std::vector<char> code(bytes);
    OK(nvrtcGetCUBIN(program, code.data()));
    const std::string beside = kept + "." + std::to_string(getpid());
    std::ofstream(beside, std::ios::binary).write(code.data(), std::streamsize(bytes));
    std::filesystem::rename(beside, kept);
    return code;
}

// Queues `KERNEL(k, Args) { body }`, where `a.x` is memory filled with 0, and `i` numbers the threads.
static void launch(Gpu& gpu, Handle stream, const std::string& body, unsigned blocks, unsigned threads = 256,
                   bool clears = true) {
    const std::vector<char> code = compile(
        "struct Args { float* x; };\nKERNEL(k, Args) {\n    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "#line 1 \"fault.cu\"\n    " + body + "\n}\n");
    Handle module, function;
    OK(cuModuleLoadData(&module, code.data()));
    OK(cuModuleGetFunction(&function, module, "k"));
    if (clears) OK(cuMemsetD8Async(gpu.memory, 0, BYTES, stream));
    void* args[] = {&gpu.memory};
    OK(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, args, nullptr));
}

struct Fault {
    const char* name;
    const char* said;  // what must be said of it
    std::function<void(bool right)> run;
};

static Fault of_kernel(const char* name, const char* said, const char* wrong, const char* right, unsigned blocks,
                       unsigned threads = 256) {
    return {name, said, [=](bool is_right) {
                Gpu gpu;
                launch(gpu, gpu.first, is_right ? right : wrong, blocks, threads);
                OK(cuStreamSynchronize(gpu.first));
            }};
}

static Fault of_streams(const char* name, const char* said, std::function<void(Gpu&, bool)> run) {
    return {name, said, [=](bool right) {
                Gpu gpu;
                run(gpu, right);
                OK(cuCtxSynchronize());
            }};
}

static Handle captured(Gpu& gpu, const std::function<void()>& queue) {
    Handle graph, made;
    OK(cuStreamBeginCapture_v2(gpu.first, 2));
    queue();
    OK(cuStreamEndCapture(gpu.first, &graph));
    OK(cuGraphInstantiateWithFlags(&made, graph, 0));
    return made;
}

// A call that is not allowed during capture gives `error`, and makes the capture invalid.
static Fault of_capture(const char* name, int error, std::function<int(Gpu&)> call) {
    return {name, "the rule is kept", [=](bool right) {
                Gpu gpu;
                Handle graph, stream;
                OK(cuStreamCreate(&stream, 0));
                if (strcmp(name, "capture-legacy") == 0) gpu.first = stream;
                OK(cuStreamBeginCapture_v2(gpu.first, 2));
                OK(cuMemsetD8Async(gpu.memory, 0, BYTES, gpu.first));
                if (!right) {
                    GIVES(error, call(gpu));
                    GIVES(901, cuMemsetD8Async(gpu.memory, 0, BYTES, gpu.first));
                }
                GIVES(right ? 0 : 901, cuStreamEndCapture(gpu.first, &graph));
                if (!right && graph) exit(1);
                if (!right) puts("the rule is kept");
            }};
}

static const std::vector<Fault> FAULTS = {
    of_kernel("misaligned", "a misaligned", "a.x[0] = ((float4*)(a.x + 1))[i].x;", "if (i == 0) a.x[0] = ((float4*)a.x)[i].x;", 1),
    of_kernel("sum-without-atomics", "a race", "a.x[0] += 1.0f;", "atomicAdd(a.x, 1.0f);", 64),
    of_kernel("two-blocks-one-cell", "a race", "if (threadIdx.x == 0) a.x[0] = 1.0f;", "if (threadIdx.x == 0) a.x[blockIdx.x] = 1.0f;", 2),
    of_kernel("block-reads-another", "a race", "a.x[i] = a.x[(i + 256) % 512];", "a.x[512 + i] = a.x[(i + 256) % 512];", 2),
    of_kernel("atomic-and-plain", "a race", "if (i == 300) a.x[0] = 1.0f; else atomicAdd(a.x, 1.0f);", "atomicAdd(a.x, 1.0f);", 2),
    of_kernel("half-words", "a race", "((unsigned short*)a.x)[i / 2] = 1;", "((unsigned short*)a.x)[i] = 1;", 1),
    of_kernel("plain-report", "a race", "a.x[0] = 1.0f;", "*(volatile float*)a.x = 1.0f;", 2),
    of_kernel("no-syncthreads", "a race",
              "__shared__ float s[256]; s[threadIdx.x] = 0.0f; __syncthreads(); s[threadIdx.x] = i; "
              "a.x[i] = s[255 - threadIdx.x];",
              "__shared__ float s[256]; s[threadIdx.x] = i; __syncthreads(); a.x[i] = s[255 - threadIdx.x];", 1),
    of_kernel("no-syncthreads-before-reuse", "a race",
              "__shared__ float s[256]; for (int k = 0; k < 2; ++k) { s[threadIdx.x] = k; __syncthreads(); "
              "a.x[i] = s[255 - threadIdx.x]; }",
              "__shared__ float s[256]; for (int k = 0; k < 2; ++k) { s[threadIdx.x] = k; __syncthreads(); "
              "a.x[i] = s[255 - threadIdx.x]; __syncthreads(); }", 1),
    of_kernel("no-syncwarp", "a race",
              "__shared__ float s[32]; s[threadIdx.x] = i; a.x[i] = __shfl_sync(~0u, 1, 0) + s[31 - threadIdx.x];",
              "__shared__ float s[32]; s[threadIdx.x] = i; __syncwarp(); "
              "a.x[i] = __shfl_sync(~0u, 1, 0) + s[31 - threadIdx.x];", 2, 32),
    of_kernel("syncwarp-of-half", "a race",
              "__shared__ float s[32]; s[threadIdx.x] = i; "
              "__syncwarp(threadIdx.x < 16 ? 0xffffu : 0xffff0000u); a.x[i] = s[31 - threadIdx.x];",
              "__shared__ float s[32]; s[threadIdx.x] = i; "
              "__syncwarp(threadIdx.x < 16 ? 0xffffu : 0xffff0000u); a.x[i] = s[threadIdx.x ^ 15];", 1, 32),
    of_kernel("shared-unwritten", "a read of shared memory",
              "__shared__ float s; if (i == 0) s = 1.0f; __syncthreads(); a.x[i] = s;",
              "__shared__ float s; if (threadIdx.x == 0) s = 1.0f; __syncthreads(); a.x[i] = s;", 2),
    of_streams("kernel-before-copy", "a missing wait", [](Gpu& gpu, bool right) {
        OK(cuMemcpyHtoDAsync_v2(gpu.memory, gpu.host, BYTES, gpu.first));
        gpu.order(right);
        launch(gpu, gpu.second, "a.x[i + 256] = a.x[i];", 1, 256, false);
    }),
    of_streams("copy-before-kernel", "a missing wait", [](Gpu& gpu, bool right) {
        launch(gpu, gpu.first, "a.x[i] = 1.0f;", 1);
        gpu.order(right);
        OK(cuMemcpyDtoHAsync_v2(gpu.host, gpu.memory, 256, gpu.second));
    }),
    of_streams("event-too-early", "a missing wait", [](Gpu& gpu, bool right) {
        if (!right) gpu.order(true);
        launch(gpu, gpu.first, "a.x[i] = 1.0f;", 1);
        if (right) gpu.order(true);
        OK(cuMemsetD8Async(gpu.memory, 0, 4, gpu.second));
    }),
    of_streams("host-waits-too-early", "a missing wait", [](Gpu& gpu, bool right) {
        OK(cuEventRecord(gpu.event, gpu.first));
        if (!right) OK(cuEventSynchronize(gpu.event));
        launch(gpu, gpu.first, "a.x[i] = 1.0f;", 1);
        OK(cuEventRecord(gpu.event, gpu.first));
        while (right && cuEventQuery(gpu.event) != 0) {}
        OK(cuMemsetD8Async(gpu.memory, 0, 4, gpu.second));
    }),
    of_streams("graph-without-wait", "a missing wait", [](Gpu& gpu, bool right) {
        const Handle graph = captured(gpu, [&] { launch(gpu, gpu.first, "a.x[i] = 1.0f;", 1); });
        OK(cuGraphLaunch(graph, gpu.first));
        gpu.order(right);
        OK(cuMemcpyDtoHAsync_v2(gpu.host, gpu.memory, 256, gpu.second));
    }),
    of_streams("source-changes-too-early", "a missing wait", [](Gpu& gpu, bool right) {
        OK(cuMemcpyHtoDAsync_v2(gpu.memory, gpu.host, 1024, gpu.first));
        OK(cuEventRecord(gpu.event, gpu.first));
        if (right) OK(cuEventSynchronize(gpu.event));
        OK(cuMemcpyHtoDAsync_v2(gpu.memory + 1024, gpu.host, 1024, gpu.second));
    }),
    of_streams("freed-too-early", "a missing wait", [](Gpu& gpu, bool right) {
        uint64_t memory;
        OK(cuMemAllocAsync(&memory, 1024, gpu.first));
        OK(cuMemsetD8Async(memory, 0, 1024, gpu.first));
        gpu.order(right);
        OK(cuMemFreeAsync(memory, gpu.second));
    }),
    of_streams("pinned-freed-too-early", "a missing wait", [](Gpu& gpu, bool right) {
        OK(cuMemcpyHtoDAsync_v2(gpu.memory, gpu.host, 1024, gpu.first));
        if (right) OK(cuStreamSynchronize(gpu.first));
        OK(cuMemFreeHost(gpu.host));
    }),
    of_streams("used-before-its-allocation", "a missing wait", [](Gpu& gpu, bool right) {
        uint64_t memory;
        OK(cuMemAllocAsync(&memory, 1024, gpu.first));
        gpu.order(right);
        OK(cuMemsetD8Async(memory, 0, 1024, gpu.second));
    }),
    of_streams("beyond-the-end", "outside of all allocations", [](Gpu& gpu, bool right) {
        launch(gpu, gpu.first, "a.x[i] = 1.0f;", unsigned(BYTES / 1024 + (right ? 0 : 1)));
    }),
    {"no-context", "the rule is kept",
     [](bool right) {
         Gpu gpu;
         void* host = gpu.host;
         uint64_t memory;
         const int want = right ? 0 : 201;
         OK(cuCtxSetCurrent(right ? (Handle)1 : nullptr));
         GIVES(want, cuMemAllocAsync(&memory, 4, gpu.first));
         GIVES(want, cuMemsetD8Async(gpu.memory, 0, 4, gpu.first));
         GIVES(want, cuEventRecord(gpu.event, gpu.first));
         GIVES(want, cuStreamSynchronize(gpu.first));
         GIVES(want, cuMemFreeHost(host));
         if (!right) puts("the rule is kept");
     }},
    of_capture("capture-synchronised", 900, [](Gpu& gpu) { return cuStreamSynchronize(gpu.first); }),
    of_capture("capture-context-synchronised", 900, [](Gpu&) { return cuCtxSynchronize(); }),
    of_capture("capture-allocates", 900, [](Gpu& gpu) { return cuMemAllocAsync(&gpu.memory, 4, gpu.first); }),
    of_capture("capture-frees", 900, [](Gpu& gpu) { return cuMemFreeAsync(gpu.memory, gpu.first); }),
    of_capture("capture-waits-for-outside", 905, [](Gpu& gpu) { return cuStreamWaitEvent(gpu.first, gpu.event, 0); }),
    of_capture("capture-legacy", 906, [](Gpu& gpu) { return cuMemsetD8Async(gpu.memory, 0, 4, nullptr); }),
    of_capture("capture-event-asked", 907, [](Gpu& gpu) {
        OK(cuEventRecord(gpu.event, gpu.first));
        return cuEventQuery(gpu.event);
    }),
    of_capture("capture-event-awaited", 907, [](Gpu& gpu) {
        OK(cuEventRecord(gpu.event, gpu.first));
        return cuEventSynchronize(gpu.event);
    }),
};

int main(int count, char** words) {
    for (const Fault& fault : FAULTS) {
        if (count == 1) printf("%s: %s\n", fault.name, fault.said);
        if (count == 1 || strcmp(words[1], fault.name) != 0) continue;
        fault.run(count > 2);
        return 0;
    }
    return count > 1;
}
