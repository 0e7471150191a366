// Losses over selected rows, their gradients, and counts of correct predictions: one warp per row.

struct Loss {
    const Stored* logits;
    const void* targets;  // u32 labels, or one u8 per cell
    const u32* split;
    const float* weights;  // of the classes; null if all are 1
    void* out;
    double* partial;
    u64 rows;
    u64 rows_of_part;
    u64 count;
    u32 classes;
    u32 select;
};

// Returns the label of row r if the row is selected and has one, else -1.
__device__ inline long long label_of(const Loss& a, u64 r) {
    const u32 label = ((const u32*)a.targets)[r];
    return a.split[r] == a.select && label < a.classes ? (long long)label : -1;
}

// Returns how much a row of this class counts.
__device__ inline double weight_of(const Loss& a, long long label) {
    return a.weights == nullptr ? 1.0 : (double)a.weights[label];
}

// Minus infinity.
__device__ inline float below_all() { return __uint_as_float(0xff800000u); }

// The largest logit of a row (NaN is ignored), exp(x - largest) at the label, and its sum over the other columns. The
// two are kept apart so that a small remainder is not lost beside a confident prediction.
struct Exponentials {
    float largest;
    float at_label;
    double others;
};

__device__ inline Exponentials exponentials(const Loss& a, const Stored* logits, u32 label) {
    float most = below_all();
    for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP) most = fmaxf(most, widened(logits[c]));
    Exponentials e;
    e.largest = warp_max(most);
    double sum = 0.0;
    for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP)
        if (c != label) sum += (double)exp_below_0(widened(logits[c]) - e.largest);
    e.others = warp_sum(sum);
    e.at_label = exp_below_0(widened(logits[label]) - e.largest);
    return e;
}

// Calls `row_loss` for each row of the block's part and writes the sum. Warps take rows in turn, and their sums are
// added in order.
template <class RowLoss>
__device__ void sum_of_part(const Loss& a, RowLoss row_loss) {
    __shared__ double partial[WARPS];
    const u64 first = blockIdx.x * a.rows_of_part;
    const u64 last = first + a.rows_of_part < a.rows ? first + a.rows_of_part : a.rows;
    const u32 warp = threadIdx.x / WARP;
    double sum = 0.0;
    for (u64 r = first + warp; r < last; r += WARPS) sum += row_loss(r);
    if (threadIdx.x % WARP == 0) partial[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 other = 1; other < WARPS; ++other) sum += partial[other];
        a.partial[blockIdx.x] = sum;
    }
}

KERNEL(softmax_cross_entropy, Loss) {
    sum_of_part(a, [&](u64 r) {
        const long long label = label_of(a, r);
        if (label < 0) return 0.0;
        const Stored* logits = a.logits + r * a.classes;
        const Exponentials e = exponentials(a, logits, label);
        const double loss = log(e.others + (double)e.at_label) - ((double)widened(logits[label]) - (double)e.largest);
        return weight_of(a, label) * loss;
    });
}

// Computes the sum of squares; the caller halves it.
KERNEL(half_squares, Loss) {
    sum_of_part(a, [&](u64 r) {
        const Stored* x = a.logits + r * a.classes;
        double sum = 0.0;
        for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP) sum += (double)widened(x[c]) * (double)widened(x[c]);
        return warp_sum(sum);
    });
}

KERNEL(softmax_cross_entropy_grad, Loss) {
    const u64 r = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (r >= a.rows) return;
    const Stored* logits = a.logits + r * a.classes;
    Stored* out = (Stored*)a.out + r * a.classes;
    const long long label = a.count == 0 ? -1 : label_of(a, r);
    if (label < 0) {
        for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP) put(out[c], 0.0f);
        return;
    }
    const Exponentials e = exponentials(a, logits, label);
    const double whole = (e.others + (double)e.at_label) * (double)a.count;
    const double weight = weight_of(a, label);
    const float factor = (float)(weight / whole);
    // exp / total - 1 at the label, in a form that avoids cancellation.
    for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP)
        put(out[c], c == label ? (float)(-weight * e.others / whole) : exp_below_0(widened(logits[c]) - e.largest) * factor);
}

KERNEL(count_correct, Loss) {
    const u64 r = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (r >= a.rows) return;
    const long long label = label_of(a, r);
    if (label < 0) return;
    const Stored* logits = a.logits + r * a.classes;
    // Finds the first column with the largest logit; NaN is never the largest.
    float most = below_all();
    u32 best = a.classes;
    for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP) {
        const float x = widened(logits[c]);
        if (x == x && (best == a.classes || x > most)) most = x, best = c;
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const float x = __shfl_xor_sync(ALL_LANES, most, step);
        const u32 c = __shfl_xor_sync(ALL_LANES, best, step);
        if (c < a.classes && (best == a.classes || x > most || (x == most && c < best))) most = x, best = c;
    }
    if (threadIdx.x % WARP == 0) {
        u64* out = (u64*)a.out;
        if (best == label) atomicAdd(out, (u64)1);
        atomicAdd(out + 1, (u64)1);
    }
}

// Returns how far a logit is on the wrong side of 0.
__device__ inline float against(float x, u8 target) { return target == 0 ? x : -x; }

// Returns ln(1 + x) for x in [0, 1], by the same operations as cpu/exp.rs.
__device__ inline float ln_1p_below_1(float x) {
    const float s = x / (2.0f + x), q = s * s;
    const float series = q * (1.0f / 9.0f + q * (1.0f / 11.0f + q * (1.0f / 13.0f + q * (1.0f / 15.0f))));
    return 2.0f * s * (1.0f + q * (1.0f / 3.0f + q * (1.0f / 5.0f + q * (1.0f / 7.0f + series))));
}

KERNEL(sigmoid_cross_entropy, Loss) {
    sum_of_part(a, [&](u64 r) {
        if (a.split[r] != a.select) return 0.0;
        double sum = 0.0;
        for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP) {
            const u64 cell = r * a.classes + c;
            const float wrong = against(widened(a.logits[cell]), ((const u8*)a.targets)[cell]);
            sum += (double)((wrong > 0.0f ? wrong : 0.0f) + ln_1p_below_1(exp_below_0(-fabsf(wrong))));
        }
        return warp_sum(sum);
    });
}

KERNEL(sigmoid_cross_entropy_grad, Loss) {
    const u64 r = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (r >= a.rows) return;
    const bool selected = a.count > 0 && a.split[r] == a.select;
    const float factor = (float)(1.0 / ((double)a.count * (double)a.classes));
    for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP) {
        const u64 cell = r * a.classes + c;
        float grad = 0.0f;
        if (selected) {
            const u8 target = ((const u8*)a.targets)[cell];
            // sigmoid(z) - 1 is -sigmoid(-z); this form avoids cancellation.
            const float wrong = against(widened(a.logits[cell]), target);
            const float e = exp_below_0(-fabsf(wrong));
            grad = against((wrong >= 0.0f ? 1.0f : e) / (1.0f + e), target) * factor;
        }
        put(((Stored*)a.out)[cell], grad);
    }
}

KERNEL(count_micro, Loss) {
    const u64 r = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (r >= a.rows || a.split[r] != a.select) return;
    u64 counts[3] = {0, 0, 0};
    for (u32 c = threadIdx.x % WARP; c < a.classes; c += WARP) {
        const u64 cell = r * a.classes + c;
        const bool positive = widened(a.logits[cell]) > 0.0f, wanted = ((const u8*)a.targets)[cell] != 0;
        counts[0] += positive && wanted;
        counts[1] += positive && !wanted;
        counts[2] += wanted && !positive;
    }
    for (int i = 0; i < 3; ++i) {
        for (u32 step = WARP / 2; step > 0; step /= 2) counts[i] += __shfl_xor_sync(ALL_LANES, counts[i], step);
        if (threadIdx.x % WARP == 0 && counts[i] > 0) atomicAdd((u64*)a.out + i, counts[i]);
    }
}
