// Operations on single rows and on parameters that belong to attention.

struct AttentionRows {
    const void* x;
    const void* second;
    const void* third;
    const void* fourth;
    void* out;
    u64 rows;  // of the output
    u64 cols;  // of the output
    u64 d;
    u64 heads;
    u64 skip;  // columns or rows to skip, or a choice: see each kernel
};

// Returns the number of this thread, or of its octet.
__device__ inline u64 thread_number() { return (u64)blockIdx.x * THREADS + threadIdx.x; }
__device__ inline u64 octet_number() { return thread_number() / OCTET; }

// Returns the place in rows whose heads alternate of a column of rows whose heads are side by side.
__device__ inline u64 alternating(const AttentionRows& a, u64 width, u64 column) {
    const Group g = group_of(a.heads, column / width);
    return g.head * width + column % width * g.size + column / width - g.head;
}

// Returns the dot product of two rows. All threads of a warp have to call it, those without a product with len = 0.
template <class A, class B>
__device__ float octet_dot(const A* x, const B* y, u64 len) {
    float dot = 0.0f;
    for (u64 c = threadIdx.x % OCTET; c < len; c += OCTET) dot += widened(x[c]) * widened(y[c]);
    return team_sum(dot, OCTET, 1);
}

// out = [dy | columns of `rows` from `skip` on | log_sum | sum of dy * y for each head]; one warp per row.
KERNEL(attention_grads, AttentionRows) {
    const u64 row = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= a.rows) return;
    const u64 lane = threadIdx.x % WARP, own = a.cols - a.d - 2 * a.heads, row_cols = a.skip + own;
    const Stored *grad = (const Stored*)a.x + row * a.d, *y = (const Stored*)a.second + row * a.d;
    const float* log_sum = (const float*)a.third + row * a.heads;
    const Stored* of_row = (const Stored*)a.fourth + row * row_cols + a.skip;
    float* out = (float*)a.out + row * a.cols;
    for (u64 c = lane; c < a.d; c += WARP) out[c] = widened(grad[place_of(a.heads, a.d / a.heads, c)]);
    for (u64 c = lane; c < own; c += WARP) out[a.d + c] = widened(of_row[c]);
    for (u64 head = lane; head < a.heads; head += WARP) out[a.d + own + head] = log_sum[head];
    const u64 width = a.d / a.heads;
    for (u64 base = 0; base < a.heads; base += WARP / OCTET) {
        const u64 head = base + lane / OCTET, first = head * width;
        const float dot = octet_dot(grad + first, y + first, head < a.heads ? width : 0);
        if (head < a.heads && lane % OCTET == 0) out[a.cols - a.heads + head] = dot;
    }
}

// out = columns of x from `skip` on; x has `d` columns.
KERNEL(columns, AttentionRows) {
    const u64 i = thread_number();
    if (i < a.rows * a.cols)
        ((Stored*)a.out)[i] = ((const Stored*)a.x)[i / a.cols * a.d + a.skip + i % a.cols];
}

// out[head] = sum over its columns of x * second.
KERNEL(head_dots, AttentionRows) {
    const u64 head = octet_number(), width = a.d / a.heads;
    const float *x = (const float*)a.x + head * width, *y = (const float*)a.second + head * width;
    const float dot = octet_dot(x, y, head < a.heads ? width : 0);
    if (head < a.heads && threadIdx.x % OCTET == 0) ((float*)a.out)[head] = dot;
}

// out[c] = x[its head] * second[c].
KERNEL(head_scale, AttentionRows) {
    const u64 c = thread_number();
    if (c < a.d) ((float*)a.out)[c] = ((const float*)a.x)[c / (a.d / a.heads)] * ((const float*)a.second)[c];
}

// out = the rows of x, heads side by side, in alternating order; with `skip`, the inverse.
KERNEL(alternate, AttentionRows) {
    const u64 i = thread_number();
    if (i >= a.rows * a.cols) return;
    const u64 row = i / a.cols, width = a.d / a.heads;
    const u64 from = a.skip ? alternating(a, width, row) : place_of(a.heads, width, row);
    ((float*)a.out)[i] = ((const float*)a.x)[from * a.cols + i % a.cols];
}

// out = [x; second x; third x], where the rows of x alternate and the last two have one row for each head.
KERNEL(score_weight, AttentionRows) {
    const u64 i = thread_number();
    if (i >= a.rows * a.cols) return;
    const float* x = (const float*)a.x;
    const u64 row = i / a.cols, k = i % a.cols, width = a.d / a.heads;
    float sum = 0.0f;
    if (row < a.d) {
        sum = x[place_of(a.heads, width, row) * a.cols + k];
    } else {
        const u64 number = row - a.d, head = number % a.heads;
        const float* vector = (const float*)(number < a.heads ? a.second : a.third);
        for (u64 c = head * width; c < (head + 1) * width; ++c) sum += vector[c] * x[c * a.cols + k];
    }
    ((float*)a.out)[i] = sum;
}

// out[c] = x[c] + second[c] * x[d + head] + third[c] * x[d + heads + head].
KERNEL(score_weight_grad, AttentionRows) {
    const u64 i = thread_number();
    if (i >= a.rows * a.cols) return;
    const float *x = (const float*)a.x, *second = (const float*)a.second, *third = (const float*)a.third;
    const u64 c = i / a.cols, k = i % a.cols, head = c / (a.d / a.heads);
    const u64 own = alternating(a, a.d / a.heads, c), of_heads = a.d + head;
    ((float*)a.out)[i] =
        x[own * a.cols + k] + second[c] * x[of_heads * a.cols + k] + third[c] * x[(of_heads + a.heads) * a.cols + k];
}

// out[c] = the dot product of row c of `second` and row skip + head of x; both have `cols` columns.
KERNEL(score_vector_grad, AttentionRows) {
    const u64 c = octet_number(), width = a.d / a.heads;
    const bool is_column = c < a.d;
    const u64 row = is_column ? a.skip + c / width : 0;
    const float *x = (const float*)a.x + row * a.cols, *w = (const float*)a.second + (is_column ? c : 0) * a.cols;
    const float dot = octet_dot(w, x, is_column ? a.cols : 0);
    if (is_column && threadIdx.x % OCTET == 0) ((float*)a.out)[c] = dot;
}
