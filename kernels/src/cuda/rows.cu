// Kernels that move or change single cells. All of them are bound by memory bandwidth.

// out = x after all steps; `lanes` threads per row. With `picked`, row i is x[picked[i]].
struct Rows {
    const Stored* x;
    const u32* picked;
    Stored* out;
    Fault* fault;
    u64 rows;
    u64 sources;
    u32 d;
    u32 lanes;
    Steps steps;
};

template <int VECTOR>
__device__ void change_rows(const Rows& a) {
    const u32 lane = threadIdx.x % a.lanes;
    const u64 row = (u64)blockIdx.x * (THREADS / a.lanes) + threadIdx.x / a.lanes;
    if (row >= a.rows) return;
    u64 from = row;
    if (a.picked) {
        from = a.picked[row];
        if (from >= a.sources) {
            report(a.fault->item, ITEM, from);
            return;
        }
    }
    for (u32 c = lane * VECTOR; c < a.d; c += a.lanes * VECTOR) {
        float x[VECTOR];
        Cells<VECTOR>::load(a.x + from * a.d + c, x);
        apply_steps<VECTOR>(a.steps, row, c, a.d, x);
        Cells<VECTOR>::store(a.out + row * a.d + c, x);
    }
}

KERNEL(rows_1, Rows) { change_rows<1>(a); }
KERNEL(rows_2, Rows) { change_rows<2>(a); }
KERNEL(rows_4, Rows) { change_rows<4>(a); }
#ifdef STORE_BF16
KERNEL(rows_8, Rows) { change_rows<8>(a); }
#endif

// out = x, rounded to bf16.
struct Round {
    const float* x;
    u16* out;
    u64 cells;
};

KERNEL(round_cells, Round) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.cells) a.out[i] = rounded(a.x[i]);
}

// Copies a rectangle of f32 between matrices with different lengths of rows.
struct Rectangle {
    const float* from;
    float* to;
    u64 from_stride;
    u64 to_stride;
    u64 rows;
    u64 cols;
};

KERNEL(copy_rectangle, Rectangle) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.rows * a.cols) return;
    const u64 row = i / a.cols, column = i % a.cols;
    a.to[row * a.to_stride + column] = a.from[row * a.from_stride + column];
}

// out = x^T, in squares of a warp's width that are transposed in shared memory.
struct Transpose {
    const Stored* x;
    Stored* out;
    u64 rows;
    u64 cols;
    u64 column_squares;
};

KERNEL(transpose, Transpose) {
    __shared__ Stored square[WARP][WARP + 1];
    const u64 row = blockIdx.x / a.column_squares * WARP, column = blockIdx.x % a.column_squares * WARP;
    const u32 across = threadIdx.x % WARP;
    for (u32 down = threadIdx.x / WARP; down < WARP; down += WARPS)
        if (row + down < a.rows && column + across < a.cols)
            square[down][across] = a.x[(row + down) * a.cols + column + across];
    __syncthreads();
    for (u32 down = threadIdx.x / WARP; down < WARP; down += WARPS)
        if (column + down < a.cols && row + across < a.rows)
            a.out[(column + down) * a.rows + row + across] = square[across][down];
}

// out[i] = values[permutation[i]].
struct Permute {
    const float* values;
    const u64* permutation;
    float* out;
    Fault* fault;
    u64 edges;
};

KERNEL(permute_edges, Permute) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.edges) return;
    const u64 from = a.permutation[i];
    if (from < a.edges) {
        a.out[i] = a.values[from];
    } else {
        report(a.fault->item, ITEM, from);
    }
}

// Dropout on the values of a sparse matrix: one warp per row, so that the row's key is computed once. If the block is
// transposed, its sources are the rows of the matrix, and each edge has a key of its own.
struct SparseDropout {
    const u64* indptr;
    const u32* indices;
    const float* values;
    float* out;
    const u64* clock;
    Fault* fault;
    u64 rows;
    u64 edges;
    u64 transposed;
    Mask mask;
};

KERNEL(sparse_dropout, SparseDropout) {
    const u64 row = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row == 0 && threadIdx.x == 0) check_ends(a.indptr, a.rows, a.edges, a.fault);
    if (row >= a.rows) return;
    u64 first, last;
    row_edges(a.indptr, a.edges, row, a.fault, first, last);
    const u64 key = row_key(a.mask, a.clock[0], row);
    for (u64 edge = first + threadIdx.x % WARP; edge < last; edge += WARP) {
        const u32 source = a.indices[edge];
        a.out[edge] = a.transposed ? dropped(a.mask, row_key(a.mask, a.clock[0], source), (u32)row, a.values[edge])
                                   : dropped(a.mask, key, source, a.values[edge]);
    }
}
