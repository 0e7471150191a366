// Attention: gathers whose weights are computed from the rows of both ends, and their gradients. This text precedes all
// files whose names begin with `attention`.
//
// A warp takes a row of the block and a slice of its heads: some heads, or some of the columns of wide ones. The row's
// edges come in chunks. Threads first compute the score of each edge and head into shared memory, then the weights.
// Then each thread adds the weighted rows to its columns, edge after edge in the block's order.
//
// Sums over edges are in the order of the block. The largest score so far is rounded to an integer in base 2, so a
// larger one multiplies the sums by a power of two. So the bits are the same for any chunks and windows. A sum over the
// columns of a head is divided among threads, so its last bits can differ from the CPU's.

// Edges of a chunk times heads of a slice, rounded up to a power of two.
constexpr u32 ITEMS = 256;

// Threads that share a dot product of two rows.
constexpr u32 OCTET = 8;

// Most heads whose columns alternate, see `head_groups` of op/attention.rs.
constexpr u32 TOGETHER = 8;

constexpr float LOG2_E = 1.44269504088896340736f;

struct Attention {
    const u64* indptr;
    const u32* indices;
    const void* own;      // rows of the sources; in SourceGrad, of the destinations: f32
    const void* halo;
    const void* at_rows;  // one row per row of the block; in TargetGrad, f32
    const float* sum;     // result over the sources before the window, or null
    void* out;            // f32 with `steps.wide`
    float* log_sum;       // or null
    const float* a;
    const float* target_grad;
    const float* edge_values;
    const float* edge_vector;
    const u64* clock;  // null without dropout
    const u32* ids;
    Fault* fault;
    u64 rows;
    u64 edges;
    u64 first_source;
    u64 own_sources;
    u64 sources;
    u64 windowed;
    u64 row_blocks;  // blocks per slice
    Mask mask;
    u32 own_cols;
    u32 row_cols;
    u32 d;
    u32 heads;
    u32 width;          // columns of a head
    u32 slice_heads;    // heads of a slice
    u32 slice_columns;  // columns of a slice
    u32 parts;          // slices of heads that are too wide for one
    u32 head_bits;      // logarithm of `slice_heads`, rounded up
    u32 transposed;     // whether rows are the sources of edges
    u32 has_values;     // whether edges have values
    u32 partial;        // whether the output is a state
    float slope;
    u32 unused;
    Steps steps;
};

// Finds the edges of a row whose sources are in the window.
__device__ inline void edges_at_hand(const Attention& a, u64 row, u64& first, u64& last) {
    row_edges(a.indptr, a.edges, row, a.fault, first, last);
    if (a.windowed) {
        first = first_from(a, first, last, a.first_source);
        last = first_from(a, first, last, a.first_source + a.own_sources);
    }
}

// What the threads of a warp share of a chunk.
struct Chunk {
    const void* row[WARP];
    u64 key[WARP];     // of the dropout
    u32 column[WARP];  // of the dropout, for head 0
    float value[WARP];
    float weight[ITEMS];  // a score at first
    float other[ITEMS];   // the weight after dropout, or the gradient of the score
};

// The heads and columns of a warp.
struct Slice {
    u32 head, heads, column, end;
    bool has_heads;  // whether this slice writes the results of the heads
};

__device__ inline Slice slice_of(const Attention& a) {
    const u32 slice = blockIdx.x / a.row_blocks, part = slice % a.parts;
    Slice s;
    s.head = slice / a.parts * a.slice_heads;
    s.heads = a.heads - s.head < a.slice_heads ? a.heads - s.head : a.slice_heads;
    s.column = s.head * a.width + part * a.slice_columns;
    const u32 end = (s.head + s.heads) * a.width;
    s.end = s.column + a.slice_columns < end ? s.column + a.slice_columns : end;
    s.has_heads = part == 0;
    return s;
}

__device__ inline u64 row_of(const Attention& a) {
    return blockIdx.x % a.row_blocks * WARPS + threadIdx.x / WARP;
}

// Heads whose columns alternate: column c of head h is at head * width + c * size + h - head. Their threads read
// consecutive columns, `team` at once.
struct Group {
    u32 head, size;

    __device__ u32 team(u32 width) const {
        u32 team = size;
        while (team < size * width && team < WARP) team *= 2;
        return team;
    }
};

// Returns the group of a head: as many heads as are left, up to TOGETHER, rounded down to a power of two.
__device__ inline Group group_of(u32 heads, u32 head) {
    Group g = {head / TOGETHER * TOGETHER, TOGETHER};
    while (g.size > 1 && (g.head + g.size > heads || head >= g.head + g.size)) {
        if (g.head + g.size <= heads) g.head += g.size;
        g.size /= 2;
    }
    return g;
}

// Returns the head of a column of rows whose heads alternate, and its place in rows whose heads are side by side.
__device__ inline u32 head_of(u32 heads, u32 width, u32 column) {
    const Group g = group_of(heads, column / width);
    return g.head + (column - g.head * width) % g.size;
}
__device__ inline u32 place_of(u32 heads, u32 width, u32 column) {
    const Group g = group_of(heads, column / width);
    return head_of(heads, width, column) * width + (column - g.head * width) / g.size;
}

// Loads the edges of a chunk, one per thread. `first` is the first edge of the row; `twin` numbers the edge before the
// chunk among those with the same source. Returns false if a source does not exist.
template <class T>
__device__ bool load_chunk(const Attention& a, Chunk& chunk, u64 row, u64 first, u64 edge, u32 count, u32& twin) {
    const u32 lane = threadIdx.x % WARP;
    bool bad = false;
    u32 mine = 0;
    __syncwarp();
    if (lane < count) {
        const u32 u = a.indices[edge + lane];
        const u64 own = u - a.first_source;
        if (own < a.own_sources) {
            chunk.row[lane] = (const T*)a.own + own * a.own_cols;
        } else if (u < a.sources) {
            chunk.row[lane] = (const T*)a.halo + (u - a.own_sources) * a.own_cols;
        } else {
            report(a.fault->item, ITEM, u);
            bad = true;
        }
        if (a.has_values) chunk.value[lane] = a.edge_values[edge + lane];
        if (a.clock && !bad) {
            while (mine < lane && a.indices[edge + lane - mine - 1] == u) ++mine;
            if (mine == lane && edge > first && a.indices[edge - 1] == u) mine += twin + 1;
            const u64 id = a.ids[u], to = a.transposed ? id - a.mask.first_row : row;
            const u32 from = a.transposed ? (u32)(a.mask.first_row + row) : (u32)id;
            chunk.key[lane] = row_key(a.mask, *a.clock, to);
            chunk.column[lane] = from * a.heads + mine * 0x85ebca6bu;
        }
    }
    twin = __shfl_sync(ALL_LANES, mine, count - 1);
    return !__any_sync(ALL_LANES, bad);
}

// Returns the factor of a weight: 0 if it is dropped.
__device__ inline float factor(const Attention& a, const Chunk& chunk, u32 edge, u32 head) {
    return a.clock ? dropped(a.mask, chunk.key[edge], chunk.column[edge] + head, 1.0f) : 1.0f;
}

// Returns the sum over the threads of a team whose numbers differ by a multiple of `apart`, in all of them. Both are
// powers of two.
__device__ inline float team_sum(float x, u32 team, u32 apart) {
    for (u32 step = team / 2; step >= apart; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ inline float leaky(float slope, float x) { return x > 0.0f ? x : slope * x; }

// Returns 2^whole for an integer up to 127; 0 below -126.
__device__ inline float power(float whole) {
    const u32 bits = __float_as_uint(whole + 12582912.0f) << 23;
    return whole < -126.0f ? 0.0f : __uint_as_float(bits + __float_as_uint(1.0f));
}

// Returns 2^(x - shift), see cpu/attention/math.rs.
__device__ inline float exp2_below(float x, float shift) {
    const float whole = rintf(x), r = (x - whole) * 0.69314718055994530942f;
    const float series =
        1.0f +
        r * (1.0f +
             r * (0.5f + r * (1.0f / 6.0f + r * (1.0f / 24.0f + r * (1.0f / 120.0f + r * (1.0f / 720.0f))))));
    return whole - shift < -126.0f ? 0.0f : series * power(whole - shift);
}

// Returns the base-2 logarithm of a normal positive number, see cpu/attention/math.rs.
__device__ inline float log2_above(float x) {
    const u32 bits = __float_as_uint(x);
    const float fraction = __uint_as_float((bits & 0x007fffffu) | __float_as_uint(1.0f)) - 1.0f;
    const float s = fraction / (2.0f + fraction), q = s * s;
    const float series = q * (1.0f / 9.0f + q * (1.0f / 11.0f + q * (1.0f / 13.0f + q * (1.0f / 15.0f))));
    const float log = 2.0f * s * (1.0f + q * (1.0f / 3.0f + q * (1.0f / 5.0f + q * (1.0f / 7.0f + series))));
    return x == x ? (float)((int)(bits >> 23) - 127) + log * LOG2_E : x;
}
