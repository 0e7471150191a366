// What the kernels of gathers share: their arguments, the rows that they read, and the sums of hubs.
//
// A hub is a row with so many edges that one group of threads would still be busy with it when all others are done. The
// first blocks of a launch sum the hubs, a few columns each. All threads of a block read edges into shared memory; one
// thread per column adds them, one behind the other, while the next edges are on their way.

// Most matrices of sources in a launch.
constexpr u32 MOST_MATRICES = 32;

struct Gather {
    const u64* indptr;
    const u32* indices;
    const float* weights;
    const float* sum;  // sum over the sources before the window, or null
    void* out;         // f32 with `steps.wide`
    Fault* fault;
    u64 rows;
    u64 edges;
    const Stored* sources[MOST_MATRICES];  // the matrices of the sources
    u32 firsts[MOST_MATRICES + 1];         // the first source of each matrix, then the end of the last one
    u32 matrices;                          // none of them is empty
    u32 sources_before;                    // whether a row may have sources before those of the matrices
    u32 sources_behind;                    // the same, behind them
    u32 d;
    u32 lanes;
    u32 most_edges;  // of a row that is no hub
    u32 hub_groups;  // groups of rows whose hubs one block sums, or 0 if there are no hubs
    u32 hub_slices;  // slices of HUB_COLUMNS columns in a slice of the grid
    u32 unused;
    Steps steps;
};

// Finds the rows of sources. Without SPLIT they are in one matrix, which has a row. With SPLIT, a finder remembers the
// matrix of the last source, because the sources of a row mostly ascend. A row that exists takes the place of one that does
// not.
template <bool SPLIT>
struct Finder {
    u32 column;
    bool valid;               // whether all sources so far exist
    const Stored* matrix;     // from the column on
    u32 number, first, rows;  // of the matrix; `first` is its first source

    // Starts to find cells in a column of the sources.
    __device__ void start(const Gather& a, u32 column) {
        this->column = column;
        valid = true;
        if (SPLIT) go_to(a, 0);
    }

    __device__ void go_to(const Gather& a, u32 to) {
        number = to;
        matrix = a.sources[to] + column;
        first = a.firsts[to];
        rows = a.firsts[to + 1] - first;
    }

    // Returns the row of a source in `matrix`.
    __device__ u32 find(const Gather& a, u32 u) {
        if (!SPLIT) {
            const u32 last = a.firsts[1] - 1;
            valid = valid && u <= last;
            return u < last ? u : last;
        }
        if (u - first >= rows) {
            u32 to = u < first ? 0 : number;
            while (to + 1 < a.matrices && u >= a.firsts[to + 1]) ++to;
            go_to(a, to);
            const bool exists = u - first < rows;
            valid = valid && exists;
            if (!exists) u = first;
        }
        return u - first;
    }

    // Returns the address of the cell of a row that lies so many columns behind the first one.
    __device__ const Stored* at(const Gather& a, u32 row, u32 behind) const {
        // In bytes, which takes one instruction. A row has fewer than 2^32.
        const u64 bytes = (u64)row * (a.d * (u32)sizeof(Stored));
        if (SPLIT) return (const Stored*)((const char*)matrix + bytes) + behind;
        return (const Stored*)((const char*)(a.sources[0] + column + behind) + bytes);
    }
};

// Reports the first source of a row that does not exist.
template <bool SPLIT>
__device__ inline void report_missing(const Gather& a, u64 first, u64 last) {
    Finder<SPLIT> finder;
    finder.start(a, 0);
    for (u64 edge = first; edge < last; ++edge) {
        const u32 u = a.indices[edge];
        finder.find(a, u);
        if (finder.valid) continue;
        report(a.fault->item, ITEM, u);
        return;
    }
}

// Finds the edges of a row whose sources are in the matrices.
template <bool SPLIT>
__device__ inline void edges_of(const Gather& a, u64 row, u64& first, u64& last) {
    row_edges(a.indptr, a.edges, row, a.fault, first, last);
    if (!SPLIT) return;
    if (a.sources_before) first = first_from(a, first, last, a.firsts[0]);
    if (a.sources_behind) last = first_from(a, first, last, a.firsts[a.matrices]);
    if (a.matrices || first == last) return;
    report(a.fault->item, ITEM, a.indices[first]);
    last = first;
}

// Columns of a hub that a block sums: one sector of f32.
constexpr u32 HUB_COLUMNS = 8;
// Edges that a block reads at a time.
constexpr u32 HUB_EDGES = 256;
// Most rows among which a block looks for hubs.
constexpr u32 HUB_ROWS = 1024;

// Edges of a hub on their way into shared memory. Every thread holds VECTOR cells of some of them.
template <int VECTOR, bool WEIGHTED, bool SPLIT>
struct HubEdges {
    static constexpr u32 LANES = HUB_COLUMNS / VECTOR, COUNT = HUB_EDGES * LANES / THREADS;
    Finder<SPLIT> finder;
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

    // Reads cells of the sources.
    __device__ void read_rows(const Gather& a) {
#pragma unroll
        for (u32 k = 0; k < COUNT; ++k) {
            const u32 row = finder.find(a, u[k]);
            Cells<VECTOR>::load(finder.at(a, row, 0), x[k]);
#pragma unroll
            for (u32 i = 0; i < VECTOR; ++i) x[k][i] = WEIGHTED ? weight[k] * x[k][i] : x[k][i];
        }
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
    const u32 at = first_column + threadIdx.x % Edges::LANES * VECTOR;
    const u32 mine = first_column + threadIdx.x;
    const bool adds = threadIdx.x < HUB_COLUMNS && mine < a.d;
    float sum[1] = {a.sum && adds ? a.sum[row * a.d + mine] : 0.0f};
    Edges edges;
    edges.finder.start(a, at < a.d ? at : first_column);
    edges.read_ids(a, first, last);
    edges.read_rows(a);
    edges.read_ids(a, first + HUB_EDGES, last);
    edges.stage(staged[0]);
    __syncthreads();
    u32 half = 0;
    for (u64 base = first; base < last; base += HUB_EDGES, half ^= 1) {
        const bool more = base + HUB_EDGES < last;
        if (more) {
            edges.read_rows(a);
            edges.read_ids(a, base + 2 * HUB_EDGES, last);
        }
        if (adds) {
            const u32 count = last - base < HUB_EDGES ? (u32)(last - base) : HUB_EDGES;
            sum[0] = add_staged(staged[half] + threadIdx.x, count, sum[0]);
        }
        if (more) edges.stage(staged[half ^ 1]);
        __syncthreads();
    }
    if (!edges.finder.valid) report_missing<SPLIT>(a, first, last);
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

// Returns a row of a group. A thread looks at four rows side by side; those of the next thread lie far away, because hubs
// may lie side by side.
__device__ inline u64 row_of_group(const Gather& a, u32 group, u32 i) {
    constexpr u32 BESIDE = HUB_ROWS / THREADS;
    return ((u64)(i / BESIDE) * a.hub_groups + group) * BESIDE + i % BESIDE;
}

// Sums the hubs of a group of rows.
template <int VECTOR, bool WEIGHTED, bool SPLIT>
__device__ void gather_hubs(const Gather& a, u32 slice) {
    constexpr u32 BESIDE = HUB_ROWS / THREADS;
    alignas(16) __shared__ float staged[2][HUB_EDGES * HUB_COLUMNS];
    __shared__ u32 found[HUB_ROWS], count;
    const u32 first_column = slice + blockIdx.x % a.hub_slices * HUB_COLUMNS, group = blockIdx.x / a.hub_slices;
    if (first_column >= a.d) return;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < BESIDE; ++k) {
        const u32 i = threadIdx.x * BESIDE + k;
        const u64 row = row_of_group(a, group, i);
        // Whichever comes first: hubs do not wait for each other.
        if (row < a.rows && is_hub<SPLIT>(a, row)) found[atomicAdd(&count, 1u)] = i;
    }
    __syncthreads();
#pragma unroll 1
    for (u32 hub = 0; hub < count; ++hub)
        gather_hub<VECTOR, WEIGHTED, SPLIT>(a, staged, row_of_group(a, group, found[hub]), first_column);
}
