// What the kernels of gathers share: their arguments, the rows that they read, and the sums of hubs.
//
// A hub is a row with so many edges that one group of threads would still be busy with it when all others are done. The
// first blocks of a launch sum the hubs, a few columns each. All threads of a block read edges into shared memory; one
// thread per column adds them, one behind the other, while the next edges are on their way.

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
    u32 most_edges;  // of a row that is no hub
    u32 hub_groups;  // groups of rows whose hubs one block sums, or 0 if there are no hubs
    u32 hub_slices;  // slices of HUB_COLUMNS columns in a slice of the grid
    u32 unused;
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

// Columns of a hub that a block sums: one sector of f32.
constexpr u32 HUB_COLUMNS = 8;
// Edges that a block reads at a time.
constexpr u32 HUB_EDGES = 256;
// Rows among which a block looks for hubs.
constexpr u32 HUB_ROWS = 1024;

// Edges of a hub on their way into shared memory. Every thread holds VECTOR cells of some of them.
template <int VECTOR, bool WEIGHTED, bool SPLIT>
struct HubEdges {
    static constexpr u32 LANES = HUB_COLUMNS / VECTOR, COUNT = HUB_EDGES * LANES / THREADS;
    u32 u[COUNT];
    float weight[COUNT];
    float x[COUNT][VECTOR];

    // Reads the ids of the sources of HUB_EDGES edges. Those behind the last edge are read as the last one.
    __device__ void read_ids(const Gather& a, u64 base, u64 last) {
#pragma unroll
        for (u32 k = 0; k < COUNT; ++k) {
            const u64 edge = base + (k * THREADS + threadIdx.x) / LANES, e = edge < last ? edge : last - 1;
            u[k] = a.indices[e];
            weight[k] = WEIGHTED ? a.weights[e] : 1.0f;
        }
    }

    // Reads cells of the sources, from a column on. Returns whether all sources exist.
    __device__ bool read_rows(const Gather& a, u32 column) {
        bool valid = true;
#pragma unroll
        for (u32 k = 0; k < COUNT; ++k) {
            const Source source = source_of<SPLIT>(a, u[k]);
            valid = valid && source.exists;
#pragma unroll
            for (u32 i = 0; i < VECTOR; ++i) x[k][i] = 0.0f;
            if (!SPLIT || source.exists) Cells<VECTOR>::load(source.at(a, column), x[k]);
#pragma unroll
            for (u32 i = 0; i < VECTOR; ++i) x[k][i] = WEIGHTED ? weight[k] * x[k][i] : x[k][i];
        }
        return valid;
    }

    // Writes the cells into shared memory, where each edge has HUB_COLUMNS of them.
    __device__ void stage(float* staged) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; ++k) Cells<VECTOR>::store(staged + (k * THREADS + threadIdx.x) * VECTOR, x[k]);
    }
};

// Adds the staged cells of a column to a sum, one behind the other. Those that are added next are read before.
__device__ inline float add_staged(const float* staged, u32 count, float sum) {
    constexpr u32 N = 8;
    float now[N], next[N];
    u32 e = 0;
    if (count >= N) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) now[i] = staged[i * HUB_COLUMNS];
        for (; e + 2 * N <= count; e += N) {
#pragma unroll
            for (u32 i = 0; i < N; ++i) next[i] = staged[(e + N + i) * HUB_COLUMNS];
#pragma unroll
            for (u32 i = 0; i < N; ++i) sum += now[i];
#pragma unroll
            for (u32 i = 0; i < N; ++i) now[i] = next[i];
        }
#pragma unroll
        for (u32 i = 0; i < N; ++i) sum += now[i];
        e += N;
    }
    for (; e < count; ++e) sum += staged[e * HUB_COLUMNS];
    return sum;
}

// Sums HUB_COLUMNS columns of a hub. All threads of the block take part.
template <int VECTOR, bool WEIGHTED, bool SPLIT>
__device__ void gather_hub(const Gather& a, float (&staged)[2][HUB_EDGES * HUB_COLUMNS], u64 row, u32 first_column) {
    using Edges = HubEdges<VECTOR, WEIGHTED, SPLIT>;
    u64 first, last;
    edges_of<SPLIT>(a, row, first, last);
    const u32 at = first_column + threadIdx.x % Edges::LANES * VECTOR, column = at < a.d ? at : first_column;
    const u32 mine = first_column + threadIdx.x;
    const bool adds = threadIdx.x < HUB_COLUMNS && mine < a.d;
    float sum[1] = {a.sum && adds ? a.sum[row * a.d + mine] : 0.0f};
    Edges edges;
    edges.read_ids(a, first, last);
    bool valid = edges.read_rows(a, column);
    edges.read_ids(a, first + HUB_EDGES, last);
    edges.stage(staged[0]);
    __syncthreads();
    u32 half = 0;
    for (u64 base = first; base < last; base += HUB_EDGES, half ^= 1) {
        const bool more = base + HUB_EDGES < last;
        if (more) {
            valid = edges.read_rows(a, column) && valid;
            edges.read_ids(a, base + 2 * HUB_EDGES, last);
        }
        if (adds) {
            const u32 count = last - base < HUB_EDGES ? (u32)(last - base) : HUB_EDGES;
            sum[0] = add_staged(staged[half] + threadIdx.x, count, sum[0]);
        }
        if (more) edges.stage(staged[half ^ 1]);
        __syncthreads();
    }
    if (!valid) report_missing<SPLIT>(a, first, last);
    if (adds) {
        apply_steps<1>(a.steps, row, mine, a.d, sum);
        write_output<1>(a.out, a.steps.wide, row * a.d + mine, sum);
    }
}

// Whether a row has too many edges for one group of threads.
template <bool SPLIT>
__device__ inline bool is_hub(const Gather& a, u64 row) {
    u64 first, last;
    row_edges(a.indptr, a.edges, row, a.fault, first, last);
    // A search for the edges in the window is only needed if there are many.
    if (SPLIT && last - first > a.most_edges) edges_of<SPLIT>(a, row, first, last);
    return last - first > a.most_edges;
}

// Sums the hubs of a group of rows. A thread looks at four rows side by side; those of the next thread lie far away,
// because hubs may lie side by side.
template <int VECTOR, bool WEIGHTED, bool SPLIT>
__device__ void gather_hubs(const Gather& a, u32 slice) {
    constexpr u32 BESIDE = HUB_ROWS / THREADS;
    alignas(16) __shared__ float staged[2][HUB_EDGES * HUB_COLUMNS];
    __shared__ u32 found[THREADS];  // a bit for each of the thread's rows
    const u32 first_column = slice + blockIdx.x % a.hub_slices * HUB_COLUMNS, group = blockIdx.x / a.hub_slices;
    if (first_column >= a.d) return;
    u32 mine = 0;
#pragma unroll
    for (u32 k = 0; k < BESIDE; ++k) {
        const u64 row = ((u64)threadIdx.x * a.hub_groups + group) * BESIDE + k;
        if (row < a.rows && is_hub<SPLIT>(a, row)) mine |= 1u << k;
    }
    found[threadIdx.x] = mine;
    if (!__syncthreads_or(mine)) return;
#pragma unroll 1
    for (u32 i = 0; i < THREADS * BESIDE; ++i) {
        if (!(found[i / BESIDE] >> i % BESIDE & 1)) continue;
        const u64 row = ((u64)(i / BESIDE) * a.hub_groups + group) * BESIDE + i % BESIDE;
        gather_hub<VECTOR, WEIGHTED, SPLIT>(a, staged, row, first_column);
    }
}
