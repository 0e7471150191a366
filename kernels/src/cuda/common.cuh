// Declarations that all kernels share. Every file in this folder is compiled with this text before it: by NVRTC for a
// GPU, and by a C++ compiler for the emulator. Neither includes any other header.
//
// A kernel takes one struct, whose fields have the same order in `args.rs`, and runs in blocks of THREADS threads.
// Products and sums are never contracted, except by `fmaf`. So a cell has the same bits as on the CPU wherever the
// order of a sum is the same.
//
// With STORE_BF16 defined, matrices are stored as bf16 (`Stored`), except sums that say otherwise; without it, as f32.
// Kernels always compute in f32: they widen cells when they read them, and round when they write.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef STORE_BF16
typedef u16 Stored;
#else
typedef float Stored;
#endif

#ifndef KERNEL
// A kernel whose registers leave room for so many blocks on a multiprocessor.
#define KERNEL_OF(BLOCKS, name, Args) extern "C" __global__ void __launch_bounds__(256, BLOCKS) name(const Args a)
#define KERNEL(name, Args) KERNEL_OF(2, name, Args)
#endif

constexpr u32 THREADS = 256;
constexpr u32 WARP = 32;
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 ALL_LANES = 0xffffffffu;

// How a kernel reports an index that is out of range. The host reads the report when the call is done; see `faults.rs`.
// A block with wrong ends has wrong rows as well. In that case the ends are reported.
struct Fault {
    u64 ends;
    u64 item;
};
constexpr u32 SITE_SHIFT = 61;
constexpr u64 FIRST_OFFSET = 1;
constexpr u64 LAST_OFFSET = 2;
constexpr u64 ROW_OFFSETS = 3;
constexpr u64 ITEM = 4;

// Reports an index by one store, which holds the site in its upper bits. If several indices are out of range, any one of
// them is reported: threads may write at the same time, which `volatile` allows.
__device__ inline void report(volatile u64& report, u64 site, u64 index) {
    constexpr u64 MOST = (1ull << SITE_SHIFT) - 1;
    report = site << SITE_SHIFT | (index < MOST ? index : MOST);
}

// Reads a value that this launch does not read again, so that it does not take the place of others in the caches.
template <class T>
__device__ inline T read_once(const T* from) { return __ldcs(from); }

// Returns the sum over a warp, in all of its lanes.
__device__ inline double warp_sum(double x) {
    for (u32 step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ inline float warp_max(float x) {
    for (u32 step = WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// Returns e^x for x <= 0 with a relative error of about 2e-7, by the same operations as cpu/exp.rs.
__device__ inline float exp_below_0(float x) {
    const float round = 12582912.0f;
    x = x < -87.0f ? -87.0f : x;
    const float shifted = x * 1.44269504088896340736f + round;
    const float k = shifted - round;
    const float r = x - k * 0.6933594f - k * -2.1219444e-4f;
    const float series =
        1.0f +
        r * (1.0f +
             r * (0.5f + r * (1.0f / 6.0f + r * (1.0f / 24.0f + r * (1.0f / 120.0f + r * (1.0f / 720.0f))))));
    return series * __uint_as_float((__float_as_uint(shifted) << 23) + __float_as_uint(1.0f));
}

// Reads the offsets of row v. If they are invalid, it reports them and returns an empty range.
__device__ inline void row_edges(const u64* indptr, u64 edges, u64 v, Fault* fault, u64& first, u64& last) {
    first = indptr[v];
    last = indptr[v + 1];
    if (first > last || last > edges) {
        report(fault->item, ROW_OFFSETS, first > last ? first : last);
        first = last = 0;
    }
}

// Checks the two ends of a block. One thread of a launch does this.
__device__ inline void check_ends(const u64* indptr, u64 rows, u64 edges, Fault* fault) {
    if (indptr[0] != 0) {
        report(fault->ends, FIRST_OFFSET, indptr[0]);
    } else if (indptr[rows] != edges) {
        report(fault->ends, LAST_OFFSET, indptr[rows]);
    }
}

// Returns the first edge of a row, whose sources ascend, with a source of at least `limit`.
template <class Args>
__device__ inline u64 first_from(const Args& a, u64 first, u64 last, u64 limit) {
    while (first < last) {
        const u64 middle = first + (last - first) / 2;
        if (a.indices[middle] < limit) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

// The counter-based draws of random.rs.
constexpr u64 GOLDEN = 0x9e3779b97f4a7c15ull;

__device__ inline u64 mix64(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

struct Mask {
    u64 run;  // mix64(seed + GOLDEN)
    u64 first_row;
    u32 op;
    u32 threshold;  // draws below it are dropped
    float scale;    // of the cells that are kept
    u32 first_column;
};

__device__ inline u64 row_key(const Mask& mask, u64 epoch, u64 row) {
    const u64 op = mask.op;
    const u64 call = mix64(mask.run ^ mix64((epoch * GOLDEN) ^ ((op << 40) | (op >> 24))));
    return mix64(call ^ ((mask.first_row + row) * GOLDEN));
}

__device__ inline float dropped(const Mask& mask, u64 key, u32 column, float x) {
    u32 h = (column * 0x9e3779b9u) ^ (u32)key;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h ^= (u32)(key >> 32);
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    h ^= h >> 16;
    return h >= mask.threshold ? x * mask.scale : 0.0f;
}

// A row step that is applied to an output before it is written; see `RowStep`.
enum StepKind : u32 { SCALE, ADD_BIAS, ADD, RELU, RELU_GRAD, DROPOUT, ELU, ELU_GRAD, LEAKY_RELU, LEAKY_RELU_GRAD, MULTIPLY };

struct Step {
    u64 operand;  // its address; for a dropout, the address of the clock
    u32 kind;
    float number;  // scalar argument of the step, if it has one
    Mask mask;
};

constexpr u32 MOST_STEPS = 6;

struct Steps {
    u32 count;
    u32 wide;  // whether the output and the matrices of the steps are f32 even with STORE_BF16
    Step step[MOST_STEPS];
};

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(u16 x) { return __uint_as_float((u32)x << 16); }

// Rounds to the nearest bf16, ties to even. NaN stays NaN.
__device__ inline u16 rounded(float x) {
    const u32 bits = __float_as_uint(x);
    return x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : bits >> 16 | 0x40u;
}

// Computes a cell of an ELU by the same operations as cpu/rows.rs.
__device__ inline float elu(float alpha, float x) {
    if (x > 0.0f) return x;
    const float series = 1.0f / 24.0f + x * (1.0f / 120.0f + x * (1.0f / 720.0f + x * (1.0f / 5040.0f)));
    const float near = x * (1.0f + x * (0.5f + x * (1.0f / 6.0f + x * series)));
    return alpha * (x > -0.35f ? near : exp_below_0(x) - 1.0f);
}

// Writes a cell in the storage type of the matrix.
__device__ inline void put(float& to, float x) { to = x; }
__device__ inline void put(u16& to, float x) { to = rounded(x); }

// Reads a cell of the output, or of a matrix operand of a step.
__device__ inline float output_cell(const void* from, u32 wide, u64 cell) {
#ifdef STORE_BF16
    if (!wide) return widened(((const u16*)from)[cell]);
#endif
    return ((const float*)from)[cell];
}

// Applies the steps to N consecutive cells of a row of d columns, from `column` on.
template <int N>
__device__ inline void apply_steps(const Steps& steps, u64 row, u32 column, u32 d, float (&x)[N]) {
#pragma unroll 1
    for (u32 s = 0; s < steps.count; ++s) {
        const Step& step = steps.step[s];
        const float* operand = (const float*)step.operand;
        const u64 cell = row * d + column;
        if (step.kind == SCALE) {
            const float scale = operand[row];
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = x[i] * scale;
        } else if (step.kind == ADD_BIAS) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = x[i] + operand[column + i];
        } else if (step.kind == ADD) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = x[i] + output_cell(operand, steps.wide, cell + i);
        } else if (step.kind == RELU) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = x[i] <= 0.0f ? 0.0f : x[i];
        } else if (step.kind == RELU_GRAD) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = output_cell(operand, steps.wide, cell + i) > 0.0f ? x[i] : 0.0f;
        } else if (step.kind == ELU) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = elu(step.number, x[i]);
        } else if (step.kind == ELU_GRAD) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const float y = output_cell(operand, steps.wide, cell + i);
                x[i] = y > 0.0f ? x[i] : x[i] * (y + step.number);
            }
        } else if (step.kind == LEAKY_RELU) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = x[i] > 0.0f ? x[i] : step.number * x[i];
        } else if (step.kind == LEAKY_RELU_GRAD) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                x[i] = output_cell(operand, steps.wide, cell + i) > 0.0f ? x[i] : step.number * x[i];
        } else if (step.kind == MULTIPLY) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = step.number * x[i];
        } else {
            const u64 key = row_key(step.mask, *(const u64*)step.operand, row);
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = dropped(step.mask, key, step.mask.first_column + column + i, x[i]);
        }
    }
}

// N consecutive cells, read and written by one access where their address allows it.
template <int N>
struct Cells;
template <>
struct Cells<1> {
    __device__ static void load(const float* from, float (&x)[1]) { x[0] = *from; }
    __device__ static void store(float* to, const float (&x)[1]) { *to = x[0]; }
    __device__ static void load(const u16* from, float (&x)[1]) { x[0] = widened(*from); }
    __device__ static void store(u16* to, const float (&x)[1]) { *to = rounded(x[0]); }
};

// Splits a word into two bf16 cells; the first is in its lower half.
__device__ inline void unpack(u32 pair, float& first, float& second) {
    first = __uint_as_float(pair << 16);
    second = __uint_as_float(pair & 0xffff0000u);
}
__device__ inline u32 pack(float first, float second) { return rounded(first) | (u32)rounded(second) << 16; }

template <>
struct Cells<2> {
    __device__ static void load(const float* from, float (&x)[2]) {
        const float2 v = *(const float2*)from;
        x[0] = v.x, x[1] = v.y;
    }
    __device__ static void store(float* to, const float (&x)[2]) { *(float2*)to = make_float2(x[0], x[1]); }
    __device__ static void load(const u16* from, float (&x)[2]) { unpack(*(const u32*)from, x[0], x[1]); }
    __device__ static void store(u16* to, const float (&x)[2]) { *(u32*)to = pack(x[0], x[1]); }
};
template <>
struct Cells<4> {
    __device__ static void load(const float* from, float (&x)[4]) {
        const float4 v = *(const float4*)from;
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
    __device__ static void store(float* to, const float (&x)[4]) {
        *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
    }
    __device__ static void load(const u16* from, float (&x)[4]) {
        const uint2 v = *(const uint2*)from;
        unpack(v.x, x[0], x[1]), unpack(v.y, x[2], x[3]);
    }
    __device__ static void store(u16* to, const float (&x)[4]) {
        *(uint2*)to = make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
    }
};
template <>
struct Cells<8> {
    __device__ static void load(const float* from, float (&x)[8]) {
        const float4 v = *(const float4*)from, w = *(const float4*)(from + 4);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        x[4] = w.x, x[5] = w.y, x[6] = w.z, x[7] = w.w;
    }
    __device__ static void store(float* to, const float (&x)[8]) {
        *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
        *(float4*)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
    }
    __device__ static void load(const u16* from, float (&x)[8]) {
        const uint4 v = *(const uint4*)from;
        unpack(v.x, x[0], x[1]), unpack(v.y, x[2], x[3]), unpack(v.z, x[4], x[5]), unpack(v.w, x[6], x[7]);
    }
    __device__ static void store(u16* to, const float (&x)[8]) {
        *(uint4*)to =
            make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    }
};

// Writes N consecutive cells of an output.
template <int N>
__device__ inline void write_output(void* to, u32 wide, u64 cell, const float (&x)[N]) {
#ifdef STORE_BF16
    if (!wide) {
        Cells<N>::store((u16*)to + cell, x);
        return;
    }
#endif
    Cells<N>::store((float*)to + cell, x);
}
