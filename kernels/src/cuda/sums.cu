// Sums over rows, in an order that depends on sizes alone: first within parts of consecutive rows, then over the parts
// in order.

struct Columns {
    const Stored* x;
    double* partial;
    float* out;
    u64 rows;
    u64 rows_of_part;
    u64 parts;
    u64 d;
};

// partial[part][c] = sum over the part's rows of x[v][c]. A block has one column per lane of a warp; its warps take
// rows in turn.
KERNEL(column_partials, Columns) {
    __shared__ double partial[WARPS][WARP];
    const u64 tiles = (a.d + WARP - 1) / WARP, part = blockIdx.x / tiles;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u64 c = blockIdx.x % tiles * WARP + lane;
    const u64 first = part * a.rows_of_part;
    const u64 last = first + a.rows_of_part < a.rows ? first + a.rows_of_part : a.rows;
    double sum = 0.0;
    if (c < a.d)
        for (u64 v = first + warp; v < last; v += WARPS) sum += (double)widened(a.x[v * a.d + c]);
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < a.d) {
        for (u32 other = 1; other < WARPS; ++other) sum += partial[other][lane];
        a.partial[part * a.d + c] = sum;
    }
}

// out[c] = sum over the parts.
KERNEL(column_finish, Columns) {
    const u64 c = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (c >= a.d) return;
    double sum = 0.0;
    for (u64 part = 0; part < a.parts; ++part) sum += a.partial[part * a.d + c];
    a.out[c] = (float)sum;
}

struct Finish {
    const double* partial;
    float* out;
    u64 parts;
    double divisor;  // of the mean; 0 gives 0
};

// out = sum over the parts, divided. Runs in one block.
KERNEL(mean_finish, Finish) {
    __shared__ double partial[THREADS];
    double sum = 0.0;
    for (u64 part = threadIdx.x; part < a.parts; part += THREADS) sum += a.partial[part];
    partial[threadIdx.x] = sum;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *a.out = a.divisor > 0.0 ? (float)(partial[0] / a.divisor) : 0.0f;
}

struct Parts {
    const float* partial;
    float* out;
    u64 cells;
    u64 parts;
};

// out[i] = the sum over parts of partial[part][i], in order.
KERNEL(sum_parts, Parts) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.cells) return;
    float sum = a.partial[i];
    for (u64 part = 1; part < a.parts; ++part) sum += a.partial[part * a.cells + i];
    a.out[i] = sum;
}

struct Plus {
    const void* sum;
    void* out;
    u64 len;
};

// out[i] += sum[i], where `sum` is the result over other rows.
KERNEL(plus_floats, Plus) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.len) ((float*)a.out)[i] += ((const float*)a.sum)[i];
}

KERNEL(plus_counts, Plus) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.len) ((u64*)a.out)[i] += ((const u64*)a.sum)[i];
}
