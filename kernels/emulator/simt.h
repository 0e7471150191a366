// Runs CUDA C++ kernels on the CPU. Results from here are called "emulated", never "run on a GPU".
//
// compiler.cpp puts this text before a file of kernels, which is otherwise the same text that NVRTC gets. One block
// runs at a time. Each of its threads is a fiber with its own stack, which runs until it waits at a barrier, a shuffle
// or a vote. The order of threads and blocks is drawn from a seed. A thread sees the writes of others only after a
// barrier, so these faults are detected: a missing barrier, a barrier that not all threads reach, and a shuffle from a
// lane that does not take part.
// Not emulated: warps in lockstep, concurrent blocks, tensor cores, inline PTX, asynchronous copies.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#ifndef __x86_64__
#error "the emulator switches stacks on x86-64 alone"
#endif

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_unpoison_memory_region(void const volatile*, size_t);
// A stack is reused by a fiber of the next block, whose frames are at other places.
#define SIMT_FRESH(stack, bytes) __asan_unpoison_memory_region(stack, bytes)
#else
#define SIMT_FRESH(stack, bytes)
#endif

struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace simt {

constexpr unsigned WARP = 32;
constexpr size_t STACK = 32 << 10;
// The value at the far end of every stack, which must still be there at the end.
constexpr uint64_t FAR_END = 0x5ca1ab1e0ddba11ull;

// The event that a fiber waits for.
enum class State : uint8_t { Ready, AtWarp, AtBlock, Ended };

struct Fiber {
    void* stack_pointer;
    uint3 thread;
    State state;
    unsigned mask;     // lanes that it waits for
    int operation;     // the operation it waits in; all lanes of a mask must be in the same one
    uint64_t value;    // value that it shows to the others
};

struct Kernel {
    const char* name;
    size_t args_bytes;
    void (*run)(const void* args);
    const Kernel* next;
    static const Kernel*& first() {
        static const Kernel* kernels = nullptr;
        return kernels;
    }
    Kernel(const char* name, size_t bytes, void (*run)(const void*)) : name(name), args_bytes(bytes), run(run), next(first()) {
        first() = this;
    }
};

// The running block.
struct Block {
    void* scheduler;
    Fiber* current;
    std::vector<Fiber> fibers;
    std::vector<unsigned> order;
    char* stacks;
    uint3 index, grid, size;
    const Kernel* kernel;
    const void* args;
    uint64_t random;
};
static Block block;

// A generator of orders (SplitMix64); seed 0 keeps the natural order.
inline uint64_t draw() {
    uint64_t z = block.random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

template <class T>
void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[draw() % i]);
}

// Saves the registers that a call must preserve, and continues where `to` stopped.
extern "C" void simt_switch(void** from, void* to);
asm(R"(
.text
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch,.-simt_switch
)");

[[noreturn]] inline void fail(const char* what) {
    const uint3 t = block.current->thread, b = block.index;
    fprintf(stderr, "emulated: %s in %s, block (%u, %u), thread %u\n", what, block.kernel->name, b.x, b.y, t.x);
    fflush(stderr);
    abort();
}

inline void wait_in(State state) {
    Fiber* self = block.current;
    self->state = state;
    simt_switch(&self->stack_pointer, block.scheduler);
}

inline void fiber_main() {
    block.kernel->run(block.args);
    block.current->state = State::Ended;
    void* nowhere;
    simt_switch(&nowhere, block.scheduler);
    __builtin_unreachable();
}

inline unsigned lane() { return (block.current - block.fibers.data()) % WARP; }
inline Fiber* warp() { return block.current - lane(); }
inline bool exists(unsigned lane) { return warp() + lane < block.fibers.data() + block.fibers.size(); }

// Waits until every living lane of `mask` is in the same operation with the same mask.
inline void meet(unsigned mask, int operation) {
    if (!(mask >> lane() & 1)) fail("a lane is not in its own mask");
    block.current->mask = mask;
    block.current->operation = operation;
    wait_in(State::AtWarp);
}

inline bool has_met(const Fiber* warp, const Fiber& fiber, size_t lanes) {
    for (unsigned q = 0; q < WARP && q < lanes; ++q) {
        if (!(fiber.mask >> q & 1) || warp[q].state == State::Ended) continue;
        if (warp[q].state != State::AtWarp || warp[q].mask != fiber.mask || warp[q].operation != fiber.operation) return false;
    }
    return true;
}

// Resumes warps whose lanes have met. Returns the number of lanes.
inline size_t release_warps() {
    size_t released = 0;
    std::vector<Fiber>& fibers = block.fibers;
    for (size_t first = 0; first < fibers.size(); first += WARP) {
        const size_t lanes = fibers.size() - first < WARP ? fibers.size() - first : WARP;
        for (unsigned i = 0; i < lanes; ++i) {
            const Fiber fiber = fibers[first + i];
            if (fiber.state != State::AtWarp || !has_met(&fibers[first], fiber, lanes)) continue;
            for (unsigned q = 0; q < lanes; ++q)
                if ((fiber.mask >> q & 1) && fibers[first + q].state == State::AtWarp)
                    fibers[first + q].state = State::Ready, ++released;
        }
    }
    return released;
}

inline void start_fiber(size_t i) {
    Fiber& fiber = block.fibers[i];
    fiber = Fiber{};
    const unsigned n = unsigned(i);
    fiber.thread = {n % block.size.x, n / block.size.x % block.size.y, n / (block.size.x * block.size.y)};
    *(uint64_t*)(block.stacks + i * STACK) = FAR_END;
    void** top = (void**)(block.stacks + (i + 1) * STACK);
    *--top = nullptr;
    *--top = (void*)fiber_main;
    top -= 6;
    memset(top, 0, 6 * sizeof(void*));
    fiber.stack_pointer = top;
}

inline void run_block(bool permuted) {
    std::vector<Fiber>& fibers = block.fibers;
    SIMT_FRESH(block.stacks, fibers.size() * STACK);
    for (size_t i = 0; i < fibers.size(); ++i) start_fiber(i);
    if (permuted) shuffle(block.order);
    for (size_t alive = fibers.size(); alive > 0;) {
        size_t ran = 0, at_block = 0;
        for (unsigned i : block.order) {
            if (fibers[i].state != State::Ready) continue;
            block.current = &fibers[i];
            simt_switch(&block.scheduler, fibers[i].stack_pointer);
            ++ran;
            alive -= fibers[i].state == State::Ended;
        }
        for (const Fiber& fiber : fibers) at_block += fiber.state == State::AtBlock;
        if (at_block > 0 && at_block == fibers.size()) {
            for (Fiber& fiber : fibers) fiber.state = State::Ready;
        } else if (alive > 0 && release_warps() == 0 && ran == 0) {
            fail(at_block > 0 ? "a barrier that not all threads reach" : "lanes that wait for each other");
        }
        if (permuted) shuffle(block.order);
    }
    for (size_t i = 0; i < fibers.size(); ++i)
        if (*(const uint64_t*)(block.stacks + i * STACK) != FAR_END) fail("a thread whose stack was too small");
}

// Runs one kernel to its end.
inline void launch(const Kernel* kernel, uint3 grid, uint3 size, const void* args, uint64_t seed) {
    const size_t threads = size_t(size.x) * size.y * size.z;
    block.fibers.resize(threads);
    block.order.resize(threads);
    for (size_t i = 0; i < threads; ++i) block.order[i] = unsigned(i);
    block.stacks = (char*)aligned_alloc(64, threads * STACK);
    block.grid = grid, block.size = size, block.kernel = kernel, block.args = args, block.random = seed;
    std::vector<uint64_t> blocks(uint64_t(grid.x) * grid.y * grid.z);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    if (seed != 0) shuffle(blocks);
    for (uint64_t i : blocks) {
        block.index = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)};
        run_block(seed != 0);
    }
    free(block.stacks);
}

// Exchanges a value with the lanes of `mask`; `source` is the lane whose value this lane takes.
template <class T>
T exchange(unsigned mask, T value, unsigned source, int operation) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves 8 bytes at most");
    memcpy(&block.current->value, &value, sizeof(T));
    meet(mask, operation);
    if (source >= WARP || !(mask >> source & 1) || !exists(source) || warp()[source].state == State::Ended)
        fail("a shuffle from a lane that does not take part");
    memcpy(&value, &warp()[source].value, sizeof(T));
    meet(mask, -operation);
    return value;
}

}  // namespace simt

// The interface to the emulated driver.
extern "C" __attribute__((visibility("default"))) const simt::Kernel* simt_find(const char* name) {
    for (const simt::Kernel* kernel = simt::Kernel::first(); kernel; kernel = kernel->next)
        if (strcmp(kernel->name, name) == 0) return kernel;
    return nullptr;
}
extern "C" __attribute__((visibility("default"))) size_t simt_args_bytes(const simt::Kernel* kernel) {
    return kernel->args_bytes;
}
extern "C" __attribute__((visibility("default"))) void simt_launch(
    const simt::Kernel* kernel, const unsigned* grid, const unsigned* size, const void* args, uint64_t seed) {
    simt::launch(kernel, {grid[0], grid[1], grid[2]}, {size[0], size[1], size[2]}, args, seed);
}

#define KERNEL(name, Args)                                                                                       \
    static void name(const Args a);                                                                              \
    static const simt::Kernel simt_kernel_##name(#name, sizeof(Args), [](const void* a) { name(*(const Args*)a); }); \
    static void name(const Args a)

#define __device__
// One block runs at a time, so one copy is enough. It is global so that AddressSanitizer sees its end.
#define __shared__ static
#define threadIdx (simt::block.current->thread)
#define blockIdx (simt::block.index)
#define blockDim (simt::block.size)
#define gridDim (simt::block.grid)

// A hint for caches, which are not emulated.
template <class T>
T __ldcs(const T* from) { return *from; }

inline void __syncthreads() { simt::wait_in(simt::State::AtBlock); }

inline int __syncthreads_or(int mine) {
    static int any;
    any = 0;
    __syncthreads();
    if (mine) any = 1;
    __syncthreads();
    const int all = any;
    __syncthreads();
    return all;
}

inline void __syncwarp(unsigned mask = ~0u) { simt::meet(mask, 1); }

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned source) {
    return simt::exchange(mask, value, source % simt::WARP, 2);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned other) {
    return simt::exchange(mask, value, simt::lane() ^ other, 3);
}

// Returns whether any lane of `mask` gives something other than 0.
inline int __any_sync(unsigned mask, int mine) {
    simt::block.current->value = mine != 0;
    simt::meet(mask, 4);
    int any = 0;
    for (unsigned lane = 0; lane < simt::WARP; ++lane)
        if ((mask >> lane & 1) && simt::exists(lane) && simt::warp()[lane].state != simt::State::Ended)
            any |= simt::warp()[lane].value != 0;
    simt::meet(mask, -4);
    return any;
}

template <class T>
T atomicAdd(T* at, T value) {
    const T old = *at;
    *at = old + value;
    return old;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
