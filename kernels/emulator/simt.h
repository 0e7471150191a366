// The CUDA C++ that kernels need, for a C++ compiler. compiler.cpp puts this text before a file of kernels, which is
// otherwise the same text that NVRTC gets. simt.cpp runs the kernels.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef __x86_64__
#error "the emulator switches stacks on x86-64 alone"
#endif

// A library of kernels has its own copy of everything.
#pragma GCC visibility push(hidden)

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

struct Kernel {
    const char* name;
    size_t args_bytes;
    void (*run)(const void* args);
    const Kernel* next;
    Kernel(const char* name, size_t bytes, void (*run)(const void*));
};

// These do not change while a thread runs.
__attribute__((const)) uint3 thread_index();
__attribute__((const)) uint3 block_index();
__attribute__((const)) uint3 block_size();
__attribute__((const)) uint3 grid_size();

// Waits for all threads of the block. Returns whether any of them gave something other than 0.
int block_barrier(int mine);
// Waits for the lanes of `mask`.
void warp_barrier(unsigned mask);
// Exchanges a value with the lanes of `mask`; `source` is the lane whose value this lane takes.
uint64_t shuffle(unsigned mask, uint64_t value, unsigned source);
uint64_t shuffle_xor(unsigned mask, uint64_t value, unsigned other);
// Returns whether any lane of `mask` gives something other than 0.
int vote(unsigned mask, int mine);
// Adds the product of matrices that the lanes of a warp hold together, as a tensor core does; see product_3xtf32.cu.
void mma_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
// A copy to shared memory that a thread began.
struct Copy {
    float* to;
    const float* from;  // null for a 0
};
void begin(Copy copy);
// Returns the copies that this thread began, one by one, and then one to null.
Copy next_begun();
// Tells the race checker of an atomic access, see races.cpp.
void atomic_access(void* at, size_t bytes);

template <class T, uint64_t exchange(unsigned, uint64_t, unsigned)>
T exchanged(unsigned mask, T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves 8 bytes at most");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = exchange(mask, word, lane);
    memcpy(&value, &word, sizeof value);
    return value;
}

}  // namespace simt

#define KERNEL(name, Args)                                                                                       \
    static void name(const Args a);                                                                              \
    static const simt::Kernel simt_kernel_##name(#name, sizeof(Args), [](const void* a) { name(*(const Args*)a); }); \
    static void name(const Args a)
#define KERNEL_OF(BLOCKS, name, Args) KERNEL(name, Args)

#define __device__
// One block runs at a time, so one copy is enough. It is global so that AddressSanitizer sees its end.
#define __shared__ static
#define threadIdx (simt::thread_index())
#define blockIdx (simt::block_index())
#define blockDim (simt::block_size())
#define gridDim (simt::grid_size())

// A hint for caches, which are not emulated.
template <class T>
T __ldcs(const T* from) { return *from; }

inline void __syncthreads() { simt::block_barrier(0); }
inline int __syncthreads_or(int mine) { return simt::block_barrier(mine); }
inline void __syncwarp(unsigned mask = ~0u) { simt::warp_barrier(mask); }

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned source) {
    return simt::exchanged<T, simt::shuffle>(mask, value, source);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned other) {
    return simt::exchanged<T, simt::shuffle_xor>(mask, value, other);
}
inline int __any_sync(unsigned mask, int mine) { return simt::vote(mask, mine); }

#define MMA_TF32 simt::mma_tf32
#define COPY_ASYNC simt_copy_async
#define WAIT_FOR_COPIES simt_wait_for_copies

// The place has no number before the wait.
inline void simt_copy_async(float* to, const float* from, bool there) {
    *to = NAN;
    simt::begin({to, there ? from : nullptr});
}
inline void simt_wait_for_copies() {
    for (simt::Copy copy = simt::next_begun(); copy.to; copy = simt::next_begun()) *copy.to = copy.from ? *copy.from : 0.0f;
}

// Fibers only switch where they wait, so this is atomic.
template <class T>
__attribute__((no_sanitize_thread)) T atomicAdd(T* at, T value) {
#ifdef __SANITIZE_THREAD__
    simt::atomic_access(at, sizeof(T));
#endif
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

#pragma GCC visibility pop
