// The forward pass of attention.

// Writes the scores of a chunk, in base 2.
template <bool V2>
__device__ void write_scores(const Attention& a, const Slice& s, Chunk& chunk, u32 count, const Stored* to) {
    const u32 lane = threadIdx.x % WARP, items = count << a.head_bits, mask = (1u << a.head_bits) - 1;
    for (u32 item = lane; !V2 && item < items; item += WARP) {
        const u32 edge = item >> a.head_bits, head = s.head + (item & mask);
        if ((item & mask) >= s.heads) continue;
        float inner = widened(((const Stored*)chunk.row[edge])[a.d + head]) + widened(to[a.d + a.heads + head]);
        if (a.has_values) inner += chunk.value[edge] * a.edge_vector[head];
        chunk.weight[item] = leaky(a.slope, inner) * LOG2_E;
    }
    for (u32 next = s.head; V2 && next < s.head + s.heads;) {
        const Group g = group_of(a.heads, next);
        next += g.size;
        const u32 team = g.team(a.width), mine = lane % team, end = (g.head + g.size) * a.width;
        for (u32 base = 0; base < count; base += WARP / team) {
            const u32 edge = base + lane / team;
            const Stored* from = (const Stored*)chunk.row[edge < count ? edge : 0];
            float score = 0.0f;
            for (u32 c = g.head * a.width + mine; edge < count && c < end; c += team) {
                float inner = widened(from[c]) + widened(to[c]);
                if (a.has_values) inner += chunk.value[edge] * a.edge_vector[c];
                score += a.a[c] * leaky(a.slope, inner);
            }
            score = LOG2_E * team_sum(score, team, g.size);
            if (edge < count && mine < g.size) chunk.weight[(edge << a.head_bits) + g.head - s.head + mine] = score;
        }
    }
}

template <bool V2, int TILES>
__device__ void attention(const Attention& a) {
    __shared__ Chunk chunks[WARPS];
    Chunk& chunk = chunks[threadIdx.x / WARP];
    const u32 lane = threadIdx.x % WARP, bits = a.head_bits, mask = (1u << bits) - 1;
    const u64 row = row_of(a);
    if (blockIdx.x == 0 && threadIdx.x == 0) check_ends(a.indptr, a.rows, a.edges, a.fault);
    if (row >= a.rows) return;
    const Slice s = slice_of(a);
    const Stored* to = (const Stored*)a.at_rows + row * a.row_cols;
    const u64 state = row * (a.d + 2 * a.heads);
    // Thread i has the shift and the sum of head i of the slice.
    const bool has_head = lane < s.heads;
    float shift = 0.0f, sum = 0.0f, cell[TILES];
    if (a.sum && has_head) {
        shift = a.sum[state + a.d + s.head + lane];
        sum = a.sum[state + a.d + a.heads + s.head + lane];
    }
    u32 column[TILES], head[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        column[t] = s.column + t * WARP + lane;
        head[t] = column[t] < s.end ? head_of(a.heads, a.width, column[t]) - s.head : 0;
        cell[t] = a.sum && column[t] < s.end ? a.sum[state + column[t]] : 0.0f;
    }
    u64 first, last;
    edges_at_hand(a, row, first, last);
    const float* kept = a.clock ? chunk.other : chunk.weight;
    const u32 most = ITEMS >> bits < WARP ? ITEMS >> bits : WARP;
    u32 twin = 0;
    for (u64 edge = first; edge < last; edge += most) {
        const u32 count = last - edge < most ? last - edge : most;
        if (!load_chunk<Stored>(a, chunk, row, first, edge, count, twin)) return;
        __syncwarp();
        write_scores<V2>(a, s, chunk, count, to);
        __syncwarp();
        float by = 1.0f;
        if (has_head) {
            const float before = sum == 0.0f ? __uint_as_float(0xff800000u) : shift;
            float largest = before;
            for (u32 e = 0; e < count; ++e) {
                const float score = chunk.weight[(e << bits) + lane];
                largest = score > largest ? score : largest;
            }
            const float next = rintf(largest);
            if (next > before) {
                if (sum != 0.0f) by = power(before - next);
                sum *= by;
                shift = next;
            } else if (sum == 0.0f) {
                shift = before;
            }
        }
        const float its_shift = __shfl_sync(ALL_LANES, shift, lane & mask);
        __syncwarp();
        // The number of threads is a multiple of the heads, so each thread has items of one head.
        for (u32 item = lane; item < count << bits; item += WARP) {
            if ((item & mask) >= s.heads) continue;
            const float weight = exp2_below(chunk.weight[item], its_shift);
            chunk.weight[item] = weight;
            if (a.clock) chunk.other[item] = weight * factor(a, chunk, item >> bits, s.head + (item & mask));
        }
        __syncwarp();
        if (has_head)
            for (u32 e = 0; e < count; ++e) sum += chunk.weight[(e << bits) + lane];
#pragma unroll
        for (int t = 0; t < TILES; ++t) cell[t] *= __shfl_sync(ALL_LANES, by, head[t]);
#pragma unroll 4
        for (u32 e = 0; e < count; ++e) {
            const Stored* from = (const Stored*)chunk.row[e];
#pragma unroll
            for (int t = 0; t < TILES; ++t)
                if (column[t] < s.end) cell[t] += kept[(e << bits) + head[t]] * widened(from[column[t]]);
        }
    }
    if (a.partial) {
        float* out = (float*)a.out + state;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
            if (column[t] < s.end) out[column[t]] = cell[t];
        if (has_head && s.has_heads) {
            out[a.d + s.head + lane] = shift;
            out[a.d + a.heads + s.head + lane] = sum;
        }
        return;
    }
    const float by = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        float x[1] = {cell[t] * __shfl_sync(ALL_LANES, by, head[t])};
        if (column[t] >= s.end) continue;
        // The heads of the output are side by side.
        const u32 c = place_of(a.heads, a.width, column[t]);
        apply_steps<1>(a.steps, row, c, a.d, x);
        write_output<1>(a.out, a.steps.wide, row * a.d + c, x);
    }
    if (a.log_sum && has_head && s.has_heads)
        a.log_sum[row * a.heads + s.head + lane] = sum == 0.0f ? 0.0f : shift + log2_above(sum);
}

#define ATTENTION(TILES)                                                 \
    KERNEL(attention_##TILES, Attention) { attention<false, TILES>(a); } \
    KERNEL(attention_v2_##TILES, Attention) { attention<true, TILES>(a); }

ATTENTION(1)
ATTENTION(2)
ATTENTION(4)
