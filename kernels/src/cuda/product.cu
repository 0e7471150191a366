// Dense products without cuBLAS: out = a * b. A block computes a square of 64 x 64 cells, a thread 4 x 4 of them.
//
// Rows and columns of both operands can have any stride, so that one kernel serves a layer and both of its gradients.
// With more than one part, the sum is split into pieces of `k_of_part` terms, each with an f32 output of its own.

constexpr u32 SQUARE = 64;
constexpr u32 DEPTH = 16;
constexpr u32 SIDE = 16;
constexpr u32 EACH = SQUARE / SIDE;

KERNEL(product, Product) {
    __shared__ float left[DEPTH][SQUARE + 1];
    __shared__ float right[DEPTH][SQUARE + 1];
    const u64 squares = (a.n + SQUARE - 1) / SQUARE;
    const u64 row = blockIdx.x / squares * SQUARE, column = blockIdx.x % squares * SQUARE;
    const u32 down = threadIdx.x / SIDE, across = threadIdx.x % SIDE;
    const u64 first = blockIdx.y * a.k_of_part;
    const u64 last = first + a.k_of_part < a.k ? first + a.k_of_part : a.k;
    float sum[EACH][EACH] = {};
    if (a.adds) {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u64 r = row + down + i * SIDE, c = column + across + j * SIDE;
                if (r < a.m && c < a.n) sum[i][j] = output_cell(a.out, a.wide, r * a.n + c);
            }
    }
    for (u64 k = first; k < last; k += DEPTH) {
        for (u32 i = threadIdx.x; i < SQUARE * DEPTH; i += THREADS) {
            // Neighbouring threads read along the dimension that is contiguous.
            const u32 ar = a.a_row == 1 ? i % SQUARE : i / DEPTH, ak = a.a_row == 1 ? i / SQUARE : i % DEPTH;
            const u32 bc = a.b_column == 1 ? i % SQUARE : i / DEPTH, bk = a.b_column == 1 ? i / SQUARE : i % DEPTH;
            const bool in_a = row + ar < a.m && k + ak < last, in_b = column + bc < a.n && k + bk < last;
            left[ak][ar] = in_a ? widened(a.a[(row + ar) * a.a_row + (k + ak) * a.a_column]) : 0.0f;
            right[bk][bc] = in_b ? widened(a.b[(k + bk) * a.b_row + (column + bc) * a.b_column]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 s = 0; s < DEPTH; ++s) {
            float x[EACH], y[EACH];
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) x[i] = left[s][down + i * SIDE], y[i] = right[s][across + i * SIDE];
#pragma unroll
            for (u32 i = 0; i < EACH; ++i)
#pragma unroll
                for (u32 j = 0; j < EACH; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
    const u64 first_cell = blockIdx.y * a.m * a.n;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i)
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            const u64 r = row + down + i * SIDE, c = column + across + j * SIDE;
            const float cell[1] = {sum[i][j]};
            if (r < a.m && c < a.n) write_output<1>(a.out, a.wide, first_cell + r * a.n + c, cell);
        }
}
