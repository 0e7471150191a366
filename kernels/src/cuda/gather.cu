// Sums over in-neighbours: out[v] = sum over sources u of v of x[u], times the edge's weight if there are weights.
//
// A group of `lanes` threads (a power of two, at most a warp) sums one row. Each thread keeps TILES times VECTOR
// consecutive columns in registers while the row's edges stream past, four at a time so that their loads are in flight
// together. So a warp sums one wide row or many narrow ones. Columns that do not fit the registers belong to another
// slice of the grid. Slices run one after the other, so that the columns in use stay in the L2 cache longer.
//
// Edges are added one after the other in the block's order, with a rounding after each product as on the CPU: the bits
// are the same for any grid. A row with more than HUB edges would keep its threads busy long after the others are done.
// So all groups of its block read its edges into shared memory, and one thread per column adds them, in the same order.

constexpr u64 HUB = 1024;

// Edges of a hub that each group reads at once.
constexpr u32 AT_ONCE = 4;

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

// Returns the row of a source. Reports a source that does not exist, and returns null.
__device__ inline const Stored* source_row(const Gather& a, u32 u) {
    const u64 own = u - a.first_source;
    if (own < a.own_sources) return a.own + own * a.d;
    if (u < a.sources) return a.halo + (u - a.own_sources) * a.d;
    report(a.fault->item, ITEM, u);
    return nullptr;
}

template <int VECTOR, int TILES, bool WEIGHTED>
struct Sum {
    float cell[TILES][VECTOR];

    __device__ void start(const Gather& a, u64 row, u32 column) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const u32 c = column + t * a.lanes * VECTOR;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) cell[t][i] = 0.0f;
            if (a.sum && c < a.d) Cells<VECTOR>::load(a.sum + row * a.d + c, cell[t]);
        }
    }

    // Adds COUNT edges from `edge` on. All loads come before the first sum.
    template <int COUNT>
    __device__ void add_edges(const Gather& a, u64 edge, u32 column) {
        const u32 apart = a.lanes * VECTOR;
        const Stored* row[COUNT];
        float x[COUNT][TILES][VECTOR];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) row[k] = source_row(a, a.indices[edge + k]);
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) x[k][t][i] = 0.0f;
                const u32 c = column + t * apart;
                if (row[k] && c < a.d) Cells<VECTOR>::load(row[k] + c, x[k][t]);
            }
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const float weight = WEIGHTED ? a.weights[edge + k] : 1.0f;
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) cell[t][i] += WEIGHTED ? weight * x[k][t][i] : x[k][t][i];
        }
    }

    __device__ void add_range(const Gather& a, u64 first, u64 last, u32 column) {
        u64 edge = first;
        for (; edge + 4 <= last; edge += 4) add_edges<4>(a, edge, column);
        for (; edge < last; ++edge) add_edges<1>(a, edge, column);
    }

    __device__ void write(const Gather& a, u64 row, u32 column) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const u32 c = column + t * a.lanes * VECTOR;
            if (c < a.d) {
                apply_steps<VECTOR>(a.steps, row, c, a.d, cell[t]);
                write_output<VECTOR>(a.out, a.steps.wide, row * a.d + c, cell[t]);
            }
        }
    }
};

// Sums a hub with all threads of the block. Each thread adds one column.
template <int VECTOR, int TILES, bool WEIGHTED>
__device__ void gather_hub(const Gather& a, u64 row, u64 first, u64 last) {
    constexpr u32 CELLS = VECTOR * TILES;
    __shared__ float staged[AT_ONCE * THREADS * CELLS];
    const u32 group = threadIdx.x / a.lanes, groups = THREADS / a.lanes, lane = threadIdx.x % a.lanes;
    const u32 width = a.lanes * CELLS, slice = blockIdx.y * width, mine = slice + threadIdx.x;
    const bool has_column = threadIdx.x < width && mine < a.d;
    float sum[1] = {a.sum && has_column ? a.sum[row * a.d + mine] : 0.0f};
    for (u64 base = first; base < last; base += AT_ONCE * groups) {
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            const u64 edge = base + k * groups + group;
            if (edge >= last) continue;
            const Stored* source = source_row(a, a.indices[edge]);
            const float weight = WEIGHTED ? a.weights[edge] : 1.0f;
#pragma unroll
            for (u32 t = 0; t < TILES; ++t) {
                const u32 c = (t * a.lanes + lane) * VECTOR;
                if (!source || slice + c >= a.d) continue;
                float x[VECTOR];
                Cells<VECTOR>::load(source + slice + c, x);
#pragma unroll
                for (u32 i = 0; i < VECTOR; ++i)
                    staged[(k * groups + group) * width + c + i] = WEIGHTED ? weight * x[i] : x[i];
            }
        }
        __syncthreads();
        if (has_column) {
            const u64 count = last - base < AT_ONCE * groups ? last - base : AT_ONCE * groups;
            for (u32 e = 0; e < count; ++e) sum[0] += staged[e * width + threadIdx.x];
        }
        __syncthreads();
    }
    if (has_column) {
        apply_steps<1>(a.steps, row, mine, a.d, sum);
        write_output<1>(a.out, a.steps.wide, row * a.d + mine, sum);
    }
}

template <int VECTOR, int TILES, bool WEIGHTED>
__device__ void gather_rows(const Gather& a) {
    const u32 groups = THREADS / a.lanes, lane = threadIdx.x % a.lanes;
    const u64 first_row = (u64)blockIdx.x * groups, row = first_row + threadIdx.x / a.lanes;
    const u32 column = (blockIdx.y * TILES * a.lanes + lane) * VECTOR;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) check_ends(a.indptr, a.rows, a.edges, a.fault);
    bool hub = false;
    if (row < a.rows) {
        u64 first, last;
        edges_at_hand(a, row, first, last);
        hub = last - first > HUB;
        if (!hub) {
            Sum<VECTOR, TILES, WEIGHTED> sum;
            sum.start(a, row, column);
            sum.add_range(a, first, last, column);
            sum.write(a, row, column);
        }
    }
    if (!__syncthreads_or(hub)) return;
    for (u64 other = first_row; other < first_row + groups && other < a.rows; ++other) {
        u64 first, last;
        edges_at_hand(a, other, first, last);
        if (last - first > HUB) gather_hub<VECTOR, TILES, WEIGHTED>(a, other, first, last);
    }
}

#define GATHER(VECTOR, TILES)                                                                                   \
    KERNEL(gather_##VECTOR##x##TILES, Gather) { gather_rows<VECTOR, TILES, false>(a); }                         \
    KERNEL(gather_weighted_##VECTOR##x##TILES, Gather) { gather_rows<VECTOR, TILES, true>(a); }

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
