// The gradients of attention. The weights are computed again.

// Writes the weights of a chunk after dropout, and the gradients of the scores; of GAT, those inside the leaky ReLU.
// The gradients of the destination and the values of the source are rows of the block or of its sources.
template <bool V2, bool SOURCE>
__device__ void write_score_grads(const Attention& a, const Slice& s, Chunk& chunk, u32 count, u64 row) {
    const u32 lane = threadIdx.x % WARP, after = V2 ? 2 * a.d : a.d + a.heads;
    const void* at_row = SOURCE ? (const void*)((const Stored*)a.at_rows + row * a.row_cols)
                                : (const void*)((const float*)a.at_rows + row * a.row_cols);
    for (u32 next = s.head; next < s.head + s.heads;) {
        const Group g = group_of(a.heads, next);
        next += g.size;
        const u32 team = g.team(a.width), mine = lane % team, end = (g.head + g.size) * a.width;
        const u32 head = g.head + mine % g.size;
        for (u32 base = 0; base < count; base += WARP / team) {
            const u32 edge = base + lane / team;
            const void* source = chunk.row[edge < count ? edge : 0];
            const float* grads = (const float*)(SOURCE ? source : at_row);
            const Stored* values = (const Stored*)(SOURCE ? at_row : source);
            float score = 0.0f, dot = 0.0f, inner = 0.0f;
            for (u32 c = g.head * a.width + mine; edge < count && c < end; c += team) {
                const float x = widened(values[c]);
                dot += grads[c] * x;
                if (V2) {
                    inner = x + grads[a.d + c];
                    if (a.has_values) inner += chunk.value[edge] * a.edge_vector[c];
                    score += a.a[c] * leaky(a.slope, inner);
                }
            }
            dot = team_sum(dot, team, g.size);
            if (V2) score = team_sum(score, team, g.size);
            if (edge >= count || mine >= g.size) continue;
            if (!V2) {
                inner = widened(values[a.d + head]) + grads[a.d + head];
                if (a.has_values) inner += chunk.value[edge] * a.edge_vector[head];
                score = leaky(a.slope, inner);
            }
            const u32 item = (edge << a.head_bits) + head - s.head;
            const float weight = exp2_below(score * LOG2_E - grads[after + head], 0.0f);
            const float kept = factor(a, chunk, edge, head);
            const float d_score = weight * (dot * kept - grads[after + a.heads + head]);
            chunk.weight[item] = weight * kept;
            chunk.other[item] = V2 || inner > 0.0f ? d_score : a.slope * d_score;
        }
    }
}

// The gradients of a row that is the source of the edges (SOURCE), or their destination. Only heads have gradients in
// the second case of GAT; columns have three in that of GATv2: of the row, of `a` and of the edge vector.
template <bool V2, bool SOURCE, int TILES>
__device__ void attention_grad(const Attention& a) {
    __shared__ Chunk chunks[WARPS];
    constexpr bool COLUMNS = V2 || SOURCE;
    constexpr int SUMS = V2 && !SOURCE ? 3 : 1;
    Chunk& chunk = chunks[threadIdx.x / WARP];
    const u32 lane = threadIdx.x % WARP, bits = a.head_bits;
    const u64 row = row_of(a);
    if (blockIdx.x == 0 && threadIdx.x == 0) check_ends(a.indptr, a.rows, a.edges, a.fault);
    if (row >= a.rows) return;
    const Slice s = slice_of(a);
    // Of GAT, the gradients of the scores' parts come behind those of the columns.
    const u32 extra = a.has_values ? 1 : 0, of_heads = SOURCE ? a.d : 0;
    const u32 cols = V2 ? (SOURCE ? a.d : (2 + extra) * a.d) : (SOURCE ? a.d + 2 * a.heads : (1 + extra) * a.heads);
    const u64 out = row * cols, first_head = out + of_heads + s.head + lane;
    const bool has_head = !V2 && s.has_heads && lane < s.heads;
    float of_score = 0.0f, of_other = 0.0f;
    if (has_head) {
        if (a.sum) {
            of_score = a.sum[first_head];
            if (SOURCE || extra) of_other = a.sum[first_head + a.heads];
        } else if (SOURCE) {
            of_other = a.target_grad[row * a.heads + s.head + lane];
        }
    }
    u32 column[TILES], head[TILES];
    float cell[TILES][SUMS], own[TILES], a_cell[TILES], vector[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        const u32 c = column[t] = s.column + t * WARP + lane;
        const bool is_in = COLUMNS && c < s.end;
        head[t] = is_in ? head_of(a.heads, a.width, c) - s.head : 0;
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) cell[t][i] = is_in && a.sum && i < 2 + extra ? a.sum[out + i * a.d + c] : 0.0f;
        own[t] = a_cell[t] = vector[t] = 0.0f;
        if (V2 && is_in) {
            own[t] = SOURCE ? widened(((const Stored*)a.at_rows)[row * a.row_cols + c])
                            : ((const float*)a.at_rows)[row * a.row_cols + a.d + c];
            a_cell[t] = a.a[c];
            if (a.has_values) vector[t] = a.edge_vector[c];
        }
    }
    u64 first, last;
    edges_at_hand(a, row, first, last);
    const u32 most = ITEMS >> bits < WARP ? ITEMS >> bits : WARP;
    u32 twin = 0;
    for (u64 edge = first; edge < last; edge += most) {
        const u32 count = last - edge < most ? last - edge : most;
        bool good;
        if (SOURCE) {
            good = load_chunk<float>(a, chunk, row, first, edge, count, twin);
        } else {
            good = load_chunk<Stored>(a, chunk, row, first, edge, count, twin);
        }
        if (!good) return;
        __syncwarp();
        write_score_grads<V2, SOURCE>(a, s, chunk, count, row);
        __syncwarp();
        if (has_head) {
            for (u32 e = 0; e < count; ++e) {
                const float d_inner = chunk.other[(e << bits) + lane];
                of_score += d_inner;
                if (!SOURCE && extra) of_other += d_inner * chunk.value[e];
            }
        }
#pragma unroll 2
        for (u32 e = 0; COLUMNS && e < count; ++e) {
            const float value = a.has_values ? chunk.value[e] : 0.0f;
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const u32 c = column[t], item = (e << bits) + head[t];
                if (c >= s.end) continue;
                const float* grads = (const float*)chunk.row[e];
                if (!V2) {
                    cell[t][0] += chunk.weight[item] * grads[c];
                    continue;
                }
                const float d_score = chunk.other[item];
                float inner = own[t] + (SOURCE ? grads[a.d + c] : widened(((const Stored*)chunk.row[e])[c]));
                if (a.has_values) inner += value * vector[t];
                const float by = inner > 0.0f ? a_cell[t] : a.slope * a_cell[t];
                if (SOURCE) {
                    cell[t][0] += chunk.weight[item] * grads[c] + d_score * by;
                } else {
                    cell[t][0] += d_score * by;
                    cell[t][SUMS / 2] += d_score * leaky(a.slope, inner);
                    cell[t][SUMS - 1] += value * d_score * by;
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) {
            const float x[1] = {cell[t][i]};
            if (COLUMNS && column[t] < s.end && i < 2 + extra)
                write_output<1>(a.out, a.steps.wide, out + i * a.d + column[t], x);
        }
    }
    if (has_head) {
        const float x[1] = {of_score}, y[1] = {of_other};
        write_output<1>(a.out, a.steps.wide, first_head, x);
        if (SOURCE || extra) write_output<1>(a.out, a.steps.wide, first_head + a.heads, y);
    }
}

#define ATTENTION_GRAD(TILES)                                                                             \
    KERNEL(attention_source_grad_##TILES, Attention) { attention_grad<false, true, TILES>(a); }           \
    KERNEL(attention_v2_source_grad_##TILES, Attention) { attention_grad<true, true, TILES>(a); }         \
    KERNEL(attention_v2_target_grad_##TILES, Attention) { attention_grad<true, false, TILES>(a); }

ATTENTION_GRAD(1)
ATTENTION_GRAD(2)
ATTENTION_GRAD(4)
KERNEL(attention_target_grad, Attention) { attention_grad<false, false, 1>(a); }
