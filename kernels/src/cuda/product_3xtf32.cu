// Dense products by tensor cores that are almost as exact as f32 products: out = a * b.
//
// A tensor core reads a number as TF32, which keeps 11 of the 24 bits of an f32 number. So each number is split into
// its rounded value and the rest, and a product is the sum of three:
//     a * b = a_rest * b_rounded + a_rounded * b_rest + a_rounded * b_rounded,
// without a_rest * b_rest, which is at most 2^-22 of it. Tensor cores do not round their sums to the nearest; therefore
// they sum DEPTH terms alone, and the threads add these sums in f32 (Ootomo and Yokota, 2022, arXiv:2203.03341).
// Infinite numbers, and those within 2^-12 of the largest, become NaN.
//
// A block computes 128 x 64 cells, a warp 32 x 32 of them. As in product.cu, a sum may be split into pieces.

#ifdef STORE_BF16
#error "bf16 numbers are exact in TF32: cuBLAS multiplies them"
#endif

constexpr u32 DOWN = 128;
constexpr u32 ACROSS = 64;
constexpr u32 DEPTH = 16;
constexpr u32 SIDE = 32;

#ifndef MMA_TF32
// Adds the product of a 16 x 8 and an 8 x 8 matrix to one of 16 x 8. With row g = lane / 4 and place t = lane % 4, a lane
// has these cells: of a [g, t], [g + 8, t], [g, t + 4], [g + 8, t + 4]; of b [t, g], [t + 4, g]; of the sum [g, 2 t],
// [g, 2 t + 1], [g + 8, 2 t], [g + 8, 2 t + 1] (PTX ISA, mma.m16n8k8).
__device__ inline void mma_tf32(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#define MMA_TF32 mma_tf32

// Begins to copy a number to shared memory, or a 0 without reading.
__device__ inline void copy_async(float* to, const float* from, bool there) {
    asm volatile("{.reg .u64 at; cvta.to.shared.u64 at, %0; cp.async.ca.shared.global [at], [%1], 4, %2;}"
                 :: "l"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
#define COPY_ASYNC copy_async

// Waits for the copies of this thread.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#define WAIT_FOR_COPIES wait_for_copies
#endif

// Splits a number into the nearest TF32 and the rest.
__device__ inline void split(float x, u32& rounded, u32& rest) {
    rounded = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    rest = __float_as_uint(x - __uint_as_float(rounded));
}

// A tile of an operand in shared memory: LINES rows of `a`, or columns of `b`, with DEPTH terms each. ALONG_TERMS says
// that the terms of a line lie side by side; otherwise the lines of a term do. Lines have gaps between them, so that the
// lanes of a warp read from different banks.
template <bool ALONG_TERMS, u32 LINES>
struct Tile {
    static constexpr u32 EACH = LINES * DEPTH / THREADS;
    static constexpr u32 STRIDE = ALONG_TERMS ? DEPTH + 4 : LINES + 8;
    static constexpr u32 CELLS = (ALONG_TERMS ? LINES : DEPTH) * STRIDE;

    // A thread has cells of one term or of one line, BETWEEN lines or terms from each other.
    static constexpr u32 BETWEEN = THREADS / (ALONG_TERMS ? DEPTH : LINES);

    __device__ static u32 line() { return ALONG_TERMS ? threadIdx.x / DEPTH : threadIdx.x % LINES; }
    __device__ static u32 term() { return ALONG_TERMS ? threadIdx.x % DEPTH : threadIdx.x / LINES; }
    __device__ static u32 place(u32 line, u32 term) {
        return ALONG_TERMS ? line * STRIDE + term : term * STRIDE + line;
    }

    const float* next;  // this thread's first cell of the next tile
    u64 stride;
    u32 lines;  // from this thread's first line on

    // Starts at the tile of `x` whose first line and term are these.
    __device__ Tile(const float* x, u64 stride, u64 first_line, u64 line_count, u64 first_term) : stride(stride) {
        // The cells of a line beyond the last one are read from the last one, and not written.
        const u64 own = first_line + line(), l = own < line_count ? own : line_count - 1, t = first_term + term();
        lines = line_count - l < LINES ? line_count - l : LINES;
        next = ALONG_TERMS ? x + l * stride + t : x + t * stride + l;
    }

    // Begins to copy this thread's cells of the next tile, which has up to `terms` terms; 0 behind them.
    __device__ void copy(u32 terms, float* tile) {
        const float* from = next;
        tile += place(line(), term());
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) {
            const bool there = term() + (ALONG_TERMS ? 0 : e * BETWEEN) < terms;
            COPY_ASYNC(tile + (ALONG_TERMS ? place(e * BETWEEN, 0) : place(0, e * BETWEEN)), from, there);
            if (!ALONG_TERMS || (e + 1) * BETWEEN < lines) from += BETWEEN * stride;
        }
        next += ALONG_TERMS ? DEPTH : DEPTH * stride;
    }
};

// Adds the product of two tiles to the cells of this warp.
template <class Left, class Right>
__device__ inline void add_product(const float* left, const float* right, float (&sum)[2][4][4]) {
    const u32 warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const u32 row = warp / 2 * SIDE + g, column = warp % 2 * SIDE + g;
    float part[2][4][4] = {};
#pragma unroll
    for (u32 s = 0; s < DEPTH; s += 8) {
        u32 b[4][2], b_rest[4][2];
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
#pragma unroll
            for (u32 e = 0; e < 2; ++e)
                split(right[Right::place(column + 8 * j, s + t + e * 4)], b[j][e], b_rest[j][e]);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            u32 a[4], a_rest[4];
#pragma unroll
            for (u32 e = 0; e < 4; ++e)
                split(left[Left::place(row + 16 * i + e % 2 * 8, s + t + e / 2 * 4)], a[e], a_rest[e]);
            // The small products first. Those with the same sum are apart, because each waits for the one before.
#pragma unroll
            for (u32 j = 0; j < 4; ++j) MMA_TF32(part[i][j], a_rest, b[j]);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) MMA_TF32(part[i][j], a, b_rest[j]);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) MMA_TF32(part[i][j], a, b[j]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) sum[i][j][e] += part[i][j][e];
}

// Returns where sum i of a thread lies in its warp's cells: 2 x 4 matrices of 16 x 8, of which it has 4 cells each.
__device__ inline u32 row_of(u32 i) { return threadIdx.x % WARP / 4 + i / 16 * 16 + i / 2 % 2 * 8; }
__device__ inline u32 column_of(u32 i) { return threadIdx.x % 4 * 2 + i / 4 % 4 * 8 + i % 2; }

template <bool A_ALONG_TERMS, bool B_ALONG_TERMS>
__device__ inline void product_of(const Product& a) {
    typedef Tile<A_ALONG_TERMS, DOWN> Left;
    typedef Tile<B_ALONG_TERMS, ACROSS> Right;
    // One pair of tiles is multiplied while the next one is copied.
    __shared__ float left[2][Left::CELLS];
    __shared__ float right[2][Right::CELLS];
    const u64 across = (a.n + ACROSS - 1) / ACROSS;
    const u64 row = blockIdx.x / across * DOWN, column = blockIdx.x % across * ACROSS;
    const u64 first = blockIdx.y * a.k_of_part;
    const u64 last = first + a.k_of_part < a.k ? first + a.k_of_part : a.k;
    const u32 warp = threadIdx.x / WARP;
    const u64 warp_row = row + warp / 2 * SIDE, warp_column = column + warp % 2 * SIDE;
    float sum[2][4][4] = {};
    if (a.adds) {
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            const u64 r = warp_row + row_of(i), c = warp_column + column_of(i);
            if (r < a.m && c < a.n) sum[i / 16][i / 4 % 4][i % 4] = output_cell(a.out, a.wide, r * a.n + c);
        }
    }
    Left left_tile((const float*)a.a, A_ALONG_TERMS ? a.a_row : a.a_column, row, a.m, first);
    Right right_tile((const float*)a.b, B_ALONG_TERMS ? a.b_column : a.b_row, column, a.n, first);
    u32 terms = first < last ? last - first : 0;
    if (terms > 0) left_tile.copy(terms, left[0]), right_tile.copy(terms, right[0]);
    for (u32 turn = 0; terms > 0; turn ^= 1) {
        WAIT_FOR_COPIES();
        __syncthreads();
        terms -= terms < DEPTH ? terms : DEPTH;
        if (terms > 0) left_tile.copy(terms, left[turn ^ 1]), right_tile.copy(terms, right[turn ^ 1]);
        add_product<Left, Right>(left[turn], right[turn], sum);
    }
    const u64 first_cell = blockIdx.y * a.m * a.n;
#pragma unroll
    for (u32 i = 0; i < 32; ++i) {
        const u64 r = warp_row + row_of(i), c = warp_column + column_of(i);
        const float cell[1] = {sum[i / 16][i / 4 % 4][i % 4]};
        if (r < a.m && c < a.n) write_output<1>(a.out, a.wide, first_cell + r * a.n + c, cell);
    }
}

// By which operand lies as its transpose: none, b, or a.
KERNEL_OF(2, product_3xtf32_nn, Product) { product_of<true, false>(a); }
KERNEL_OF(2, product_3xtf32_nt, Product) { product_of<true, true>(a); }
KERNEL_OF(2, product_3xtf32_tn, Product) { product_of<false, false>(a); }
