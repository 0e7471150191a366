// Sums over in-neighbours: out[v] = sum over sources u of v of x[u], times the edge's weight if there are weights.
//
// A group of `lanes` threads (a power of two, at most a warp) sums one row. Each thread keeps TILES times VECTOR
// consecutive columns in registers while the row's edges stream past, four or eight at a time. Their loads do not wait
// for one another: an index that is out of range is read as another one, and reported when the row is done. The ids of
// the next edges are read before the rows of these have come. So a warp sums one wide row or many narrow ones. Columns
// that do not fit the registers belong to another slice of the grid. Slices run one after the other, so that the columns
// in use stay in the L2 cache longer.
//
// Edges are added one after the other in the block's order, with a rounding after each product as on the CPU: the bits
// are the same for any grid. The first blocks sum the hubs; see gather.cuh.
//
// Each kernel exists with and without WEIGHTED, and with and without SPLIT: whether the sources are a window of all, or
// are in several matrices, such as tiles.

template <int VECTOR, int TILES, bool WEIGHTED, bool SPLIT>
struct Sum {
    float cell[TILES][VECTOR];
    // How far each tile lies behind the first column. A tile that is not there reads the first one's, and is not written.
    u32 behind[TILES];
    bool exists[TILES];
    Finder<SPLIT> finder;

    __device__ void start(const Gather& a, u64 row, u32 first_column) {
        finder.start(a, first_column);
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const u32 c = t * a.lanes * VECTOR;
            exists[t] = t == 0 || first_column + c < a.d;
            behind[t] = exists[t] ? c : 0;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) cell[t][i] = 0.0f;
            if (a.sum) Cells<VECTOR>::load(a.sum + row * a.d + first_column + behind[t], cell[t]);
        }
    }

    // Reads the ids of the sources of COUNT edges.
    template <int COUNT>
    __device__ static void read_ids(const u32* indices, u32 (&u)[COUNT]) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) u[k] = read_once(indices + k);
    }

    // Adds the edges whose sources are `u`. All loads come before the first sum, those of the next ids too.
    template <int COUNT>
    __device__ void add_edges(const Gather& a, u32 (&u)[COUNT], const u32* next, const float* weights) {
        float weight[COUNT], x[COUNT][TILES][VECTOR];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) weight[k] = WEIGHTED ? read_once(weights + k) : 1.0f;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const u32 row = finder.find(a, u[k]);
#pragma unroll
            for (int t = 0; t < TILES; ++t) Cells<VECTOR>::load(finder.at(a, row, behind[t]), x[k][t]);
        }
        if (next) read_ids<COUNT>(next, u);
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) cell[t][i] += WEIGHTED ? weight[k] * x[k][t][i] : x[k][t][i];
    }

    // Adds COUNT edges if that bit of the number of edges is set, and steps over them.
    template <int COUNT>
    __device__ void add_rest(const Gather& a, const u32*& indices, const float*& weights, u32 count) {
        if (!(count & COUNT)) return;
        u32 u[COUNT];
        read_ids<COUNT>(indices, u);
        add_edges<COUNT>(a, u, nullptr, weights);
        indices += COUNT;
        if (WEIGHTED) weights += COUNT;
    }

    __device__ void add_range(const Gather& a, u64 first, u32 count) {
        // As many as keep the memory busy and leave registers for four blocks.
        constexpr int AT_ONCE = VECTOR * TILES <= 4 ? 8 : 4;
        const u32* indices = a.indices + first;
        const float* weights = WEIGHTED ? a.weights + first : nullptr;
        if (count >= AT_ONCE) {
            u32 u[AT_ONCE];
            read_ids<AT_ONCE>(indices, u);
#pragma unroll 1
            for (; count >= AT_ONCE; count -= AT_ONCE) {
                const u32* next = indices + AT_ONCE;
                // Behind the last round it reads ids that are there, and does not use them.
                add_edges<AT_ONCE>(a, u, count >= 2 * AT_ONCE ? next : indices, weights);
                indices = next;
                if (WEIGHTED) weights += AT_ONCE;
            }
        }
        if (AT_ONCE > 4) add_rest<4>(a, indices, weights, count);
        add_rest<2>(a, indices, weights, count);
        add_rest<1>(a, indices, weights, count);
    }

    __device__ void write(const Gather& a, u64 row) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            if (!exists[t]) continue;
            const u32 column = finder.column + behind[t];
            apply_steps<VECTOR>(a.steps, row, column, a.d, cell[t]);
            write_output<VECTOR>(a.out, a.steps.wide, row * a.d + column, cell[t]);
        }
    }
};

template <int VECTOR, int TILES, bool WEIGHTED, bool SPLIT>
__device__ void gather_rows(const Gather& a) {
    const u32 slice = blockIdx.y * TILES * a.lanes * VECTOR, hub_blocks = a.hub_groups * a.hub_slices;
    if (blockIdx.x < hub_blocks) {
        gather_hubs<VECTOR, WEIGHTED, SPLIT>(a, slice);
        return;
    }
    const u32 block = blockIdx.x - hub_blocks, groups = THREADS / a.lanes;
    const u64 row = (u64)block * groups + threadIdx.x / a.lanes;
    const u32 column = slice + threadIdx.x % a.lanes * VECTOR;
    if (block == 0 && blockIdx.y == 0 && threadIdx.x == 0) check_ends(a.indptr, a.rows, a.edges, a.fault);
    if (row >= a.rows || column >= a.d) return;
    u64 first, last;
    edges_of<SPLIT>(a, row, first, last);
    if (a.hub_groups && last - first > a.most_edges) return;
    Sum<VECTOR, TILES, WEIGHTED, SPLIT> sum;
    sum.start(a, row, column);
    sum.add_range(a, first, (u32)(last - first));
    sum.write(a, row);
    if (!sum.finder.valid) report_missing<SPLIT>(a, first, last);
}

// Returns how many blocks fit a multiprocessor: the most for which the compiler spills no registers.
__device__ constexpr u32 blocks(u32 tiles, bool weighted, bool split) {
    if (!split) return tiles == 4 ? 3 : 4;
    return tiles == 4 || (weighted && tiles == 2) ? 2 : 3;
}

// The host compiles one kind of gather at a time: that of ONLY_WEIGHTED and ONLY_SPLIT. Without them, all are compiled.
#define GATHER_KIND(NAME, VECTOR, TILES, WEIGHTED, SPLIT)                       \
    KERNEL_OF(blocks(TILES, WEIGHTED, SPLIT), NAME##VECTOR##x##TILES, Gather) { \
        gather_rows<VECTOR, TILES, WEIGHTED, SPLIT>(a);                         \
    }

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
