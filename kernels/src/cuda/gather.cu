// Sums over in-neighbours: out[v] = sum over sources u of v of x[u], times the edge's weight if there are weights.
//
// A group of `lanes` threads (a power of two, at most a warp) sums one row. Each thread keeps TILES times VECTOR
// consecutive columns in registers while the row's edges stream past, four at a time. The loads of four edges do not
// wait for one another: an index that is out of range is read as another one, and reported when the row is done. So a
// warp sums one wide row or many narrow ones. Columns that do not fit the registers belong to another slice of the grid.
// Slices run one after the other, so that the columns in use stay in the L2 cache longer.
//
// Edges are added one after the other in the block's order, with a rounding after each product as on the CPU: the bits
// are the same for any grid. A row with more than HUB edges would keep its threads busy long after the others are done.
// So all groups of its block read its edges into shared memory, and one thread per column adds them, in the same order.
//
// Each kernel exists with and without WEIGHTED, and with and without SPLIT: whether the sources are a window of all, or
// are in two matrices.

constexpr u64 HUB = 1024;

struct Gather {
    const u64* indptr;
    const u32* indices;
    const float* weights;
    const Stored* own;
    const Stored* halo;
    const float* sum;  // sum over the sources before the window, or null
    void* out;         // f32 with `steps.wide`
    Fault* fault;
    u64 rows;
    u64 edges;
    u64 first_source;  // first source of the own matrix
    u64 own_sources;
    u64 sources;
    u64 windowed;  // whether a row may have sources outside of the window
    u32 d;
    u32 lanes;
    Steps steps;
};

// A source: a row of one of the two matrices, if it exists.
struct Source {
    const Stored* matrix;
    u32 row;
    bool exists;

    __device__ const Stored* at(const Gather& a, u32 column) const {
        // In bytes, which takes one instruction. A row has fewer than 2^32.
        return (const Stored*)((const char*)(matrix + column) + (u64)row * (a.d * (u32)sizeof(Stored)));
    }
};

// Returns a source. Without SPLIT there is at least one, whose row takes the place of one that does not exist.
template <bool SPLIT>
__device__ inline Source source_of(const Gather& a, u32 u) {
    const u32 own_sources = (u32)a.own_sources;
    if (!SPLIT) {
        const u32 last = own_sources - 1;
        return {a.own, u < last ? u : last, u <= last};
    }
    const u32 own = u - (u32)a.first_source;
    const bool is_own = own < own_sources;
    return {is_own ? a.own : a.halo, is_own ? own : u - own_sources, is_own || u < (u32)a.sources};
}

// Reports the first source of a row that does not exist.
template <bool SPLIT>
__device__ inline void report_missing(const Gather& a, u64 first, u64 last) {
    for (u64 edge = first; edge < last; ++edge) {
        const u32 u = a.indices[edge];
        if (source_of<SPLIT>(a, u).exists) continue;
        report(a.fault->item, ITEM, u);
        return;
    }
}

template <bool SPLIT>
__device__ inline void edges_of(const Gather& a, u64 row, u64& first, u64& last) {
    if (SPLIT) {
        edges_at_hand(a, row, first, last);
    } else {
        row_edges(a.indptr, a.edges, row, a.fault, first, last);
    }
}

template <int VECTOR, int TILES, bool WEIGHTED, bool SPLIT>
struct Sum {
    float cell[TILES][VECTOR];
    // The column of each tile. A tile that is not there reads the first one's, and is not written.
    u32 column[TILES];
    bool exists[TILES];
    // Whether all sources so far exist.
    bool valid;

    __device__ void start(const Gather& a, u64 row, u32 first_column) {
        valid = true;
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const u32 c = first_column + t * a.lanes * VECTOR;
            exists[t] = t == 0 || c < a.d;
            column[t] = exists[t] ? c : first_column;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) cell[t][i] = 0.0f;
            if (a.sum) Cells<VECTOR>::load(a.sum + row * a.d + column[t], cell[t]);
        }
    }

    // Adds COUNT edges. All loads come before the first sum.
    template <int COUNT>
    __device__ void add_edges(const Gather& a, const u32* indices, const float* weights) {
        u32 u[COUNT];
        float weight[COUNT], x[COUNT][TILES][VECTOR];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) u[k] = read_once(indices + k);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) weight[k] = WEIGHTED ? read_once(weights + k) : 1.0f;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const Source source = source_of<SPLIT>(a, u[k]);
            valid = valid && source.exists;
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                if (SPLIT) {
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) x[k][t][i] = 0.0f;
                }
                if (!SPLIT || source.exists) Cells<VECTOR>::load(source.at(a, column[t]), x[k][t]);
            }
        }
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) cell[t][i] += WEIGHTED ? weight[k] * x[k][t][i] : x[k][t][i];
    }

    __device__ void add_range(const Gather& a, u64 first, u32 count) {
        const u32* indices = a.indices + first;
        const float* weights = WEIGHTED ? a.weights + first : nullptr;
#pragma unroll 1
        for (; count >= 4; count -= 4) {
            add_edges<4>(a, indices, weights);
            indices += 4;
            if (WEIGHTED) weights += 4;
        }
        if (count & 2) {
            add_edges<2>(a, indices, weights);
            indices += 2;
            if (WEIGHTED) weights += 2;
        }
        if (count & 1) add_edges<1>(a, indices, weights);
    }

    __device__ void write(const Gather& a, u64 row) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            if (!exists[t]) continue;
            apply_steps<VECTOR>(a.steps, row, column[t], a.d, cell[t]);
            write_output<VECTOR>(a.out, a.steps.wide, row * a.d + column[t], cell[t]);
        }
    }
};

// Sums a hub with all threads of the block. Each thread adds one column.
template <int VECTOR, int TILES, bool WEIGHTED, bool SPLIT>
__device__ void gather_hub(const Gather& a, u64 row, u64 first, u64 last) {
    constexpr u32 CELLS = VECTOR * TILES;
    // Edges that each group reads at once.
    constexpr u32 AT_ONCE = CELLS <= 4 ? 4 : 16 / CELLS;
    alignas(16) __shared__ float staged[AT_ONCE * THREADS * CELLS];
    const u32 group = threadIdx.x / a.lanes, groups = THREADS / a.lanes, lane = threadIdx.x % a.lanes;
    const u32 width = a.lanes * CELLS, slice = blockIdx.y * width, mine = slice + threadIdx.x;
    const bool has_column = threadIdx.x < width && mine < a.d;
    float sum[1] = {a.sum && has_column ? a.sum[row * a.d + mine] : 0.0f};
    bool valid = true;
    for (u64 base = first; base < last; base += AT_ONCE * groups) {
        const u32 count = last - base < AT_ONCE * groups ? (u32)(last - base) : AT_ONCE * groups;
        u32 u[AT_ONCE];
        float x[AT_ONCE][TILES][VECTOR];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            const u32 e = k * groups + group;
            u[k] = a.indices[base + (e < count ? e : 0)];
        }
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            const u32 e = k * groups + group;
            const Source source = source_of<SPLIT>(a, u[k]);
            const float weight = WEIGHTED ? a.weights[base + (e < count ? e : 0)] : 1.0f;
            valid = valid && source.exists;
#pragma unroll
            for (u32 t = 0; t < TILES; ++t) {
                const u32 c = slice + (t * a.lanes + lane) * VECTOR;
#pragma unroll
                for (u32 i = 0; i < VECTOR; ++i) x[k][t][i] = 0.0f;
                if (e < count && c < a.d && source.exists) Cells<VECTOR>::load(source.at(a, c), x[k][t]);
#pragma unroll
                for (u32 i = 0; i < VECTOR; ++i) x[k][t][i] = WEIGHTED ? weight * x[k][t][i] : x[k][t][i];
            }
        }
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k)
#pragma unroll
            for (u32 t = 0; t < TILES; ++t)
                Cells<VECTOR>::store(staged + (k * groups + group) * width + (t * a.lanes + lane) * VECTOR, x[k][t]);
        __syncthreads();
        if (has_column) {
            const float* next = staged + threadIdx.x;
            u32 e = 0;
            for (; e + 8 <= count; e += 8, next += 8 * width) {
                float y[8];
#pragma unroll
                for (u32 i = 0; i < 8; ++i) y[i] = next[i * width];
#pragma unroll
                for (u32 i = 0; i < 8; ++i) sum[0] += y[i];
            }
            for (; e < count; ++e, next += width) sum[0] += *next;
        }
        __syncthreads();
    }
    if (!valid) report_missing<SPLIT>(a, first, last);
    if (has_column) {
        apply_steps<1>(a.steps, row, mine, a.d, sum);
        write_output<1>(a.out, a.steps.wide, row * a.d + mine, sum);
    }
}

template <int VECTOR, int TILES, bool WEIGHTED, bool SPLIT>
__device__ void gather_rows(const Gather& a) {
    const u32 groups = THREADS / a.lanes, lane = threadIdx.x % a.lanes;
    const u64 first_row = (u64)blockIdx.x * groups, row = first_row + threadIdx.x / a.lanes;
    const u32 column = (blockIdx.y * TILES * a.lanes + lane) * VECTOR;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) check_ends(a.indptr, a.rows, a.edges, a.fault);
    bool hub = false;
    if (row < a.rows && column < a.d) {
        u64 first, last;
        edges_of<SPLIT>(a, row, first, last);
        hub = last - first > HUB;
        if (!hub) {
            Sum<VECTOR, TILES, WEIGHTED, SPLIT> sum;
            sum.start(a, row, column);
            sum.add_range(a, first, (u32)(last - first));
            sum.write(a, row);
            if (!sum.valid) report_missing<SPLIT>(a, first, last);
        }
    }
    if (!__syncthreads_or(hub)) return;
    for (u64 other = first_row; other < first_row + groups && other < a.rows; ++other) {
        u64 first, last;
        edges_of<SPLIT>(a, other, first, last);
        if (last - first > HUB) gather_hub<VECTOR, TILES, WEIGHTED, SPLIT>(a, other, first, last);
    }
}

// The host compiles one kind of gather at a time: that of ONLY_WEIGHTED and ONLY_SPLIT. Without them, all are compiled.
#define GATHER_KIND(NAME, VECTOR, TILES, WEIGHTED, SPLIT) \
    KERNEL(NAME##VECTOR##x##TILES, Gather) { gather_rows<VECTOR, TILES, WEIGHTED, SPLIT>(a); }

#if !defined(ONLY_SPLIT)
#define GATHER(VECTOR, TILES)                                  \
    GATHER_KIND(gather_, VECTOR, TILES, false, false)          \
    GATHER_KIND(gather_weighted_, VECTOR, TILES, true, false)  \
    GATHER_KIND(gather_split_, VECTOR, TILES, false, true)     \
    GATHER_KIND(gather_weighted_split_, VECTOR, TILES, true, true)
#elif ONLY_SPLIT && ONLY_WEIGHTED
#define GATHER(VECTOR, TILES) GATHER_KIND(gather_weighted_split_, VECTOR, TILES, true, true)
#elif ONLY_SPLIT
#define GATHER(VECTOR, TILES) GATHER_KIND(gather_split_, VECTOR, TILES, false, true)
#elif ONLY_WEIGHTED
#define GATHER(VECTOR, TILES) GATHER_KIND(gather_weighted_, VECTOR, TILES, true, false)
#else
#define GATHER(VECTOR, TILES) GATHER_KIND(gather_, VECTOR, TILES, false, false)
#endif

#ifdef STORE_BF16
GATHER(8, 1)
#endif
GATHER(4, 1)
GATHER(4, 2)
GATHER(2, 1)
GATHER(2, 2)
GATHER(2, 4)
GATHER(1, 1)
GATHER(1, 2)
GATHER(1, 4)
