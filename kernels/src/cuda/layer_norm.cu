// Layer normalisation and its gradients, in f64 and rounded once. The statistics of a row are recomputed, which is
// cheaper than storing them.

struct LayerNorm {
    const Stored* grad;
    const Stored* x;
    const float* gain;
    const float* bias;
    Stored* out;
    double* partial;
    u64 rows;
    u64 rows_of_part;
    u64 d;
    double eps;
};

// Computes a row's mean and 1 / sqrt(variance + eps), in two passes.
__device__ inline void statistics(const LayerNorm& a, const Stored* x, double& mean, double& factor) {
    double sum = 0.0;
    for (u64 c = threadIdx.x % WARP; c < a.d; c += WARP) sum += (double)widened(x[c]);
    mean = warp_sum(sum) / (double)a.d;
    double squares = 0.0;
    for (u64 c = threadIdx.x % WARP; c < a.d; c += WARP) {
        const double deviation = (double)widened(x[c]) - mean;
        squares += deviation * deviation;
    }
    factor = 1.0 / sqrt(warp_sum(squares) / (double)a.d + a.eps);
}

KERNEL(layer_norm, LayerNorm) {
    const u64 row = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= a.rows) return;
    const Stored* x = a.x + row * a.d;
    double mean, factor;
    statistics(a, x, mean, factor);
    for (u64 c = threadIdx.x % WARP; c < a.d; c += WARP)
        put(a.out[row * a.d + c],
            (float)(((double)widened(x[c]) - mean) * factor * (double)a.gain[c] + (double)a.bias[c]));
}

KERNEL(layer_norm_input_grad, LayerNorm) {
    const u64 row = (u64)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= a.rows) return;
    const Stored *x = a.x + row * a.d, *grad = a.grad + row * a.d;
    double mean, factor;
    statistics(a, x, mean, factor);
    double g_sum = 0.0, g_deviations = 0.0;
    for (u64 c = threadIdx.x % WARP; c < a.d; c += WARP) {
        const double g = (double)widened(grad[c]) * (double)a.gain[c];
        g_sum += g;
        g_deviations += g * ((double)widened(x[c]) - mean);
    }
    const double g_mean = warp_sum(g_sum) / (double)a.d;
    const double slope = warp_sum(g_deviations) / (double)a.d * factor * factor;
    for (u64 c = threadIdx.x % WARP; c < a.d; c += WARP) {
        const double g = (double)widened(grad[c]) * (double)a.gain[c];
        put(a.out[row * a.d + c], (float)((g - g_mean - ((double)widened(x[c]) - mean) * slope) * factor));
    }
}

// partial[part][c] = sum over the part's rows of grad * (x - mean) * factor. Each warp computes the statistics of one
// row; then every thread adds these rows to its columns, in order.
KERNEL(layer_norm_gain_partials, LayerNorm) {
    __shared__ double mean[WARPS], factor[WARPS];
    const u64 first = blockIdx.x * a.rows_of_part;
    const u64 last = first + a.rows_of_part < a.rows ? first + a.rows_of_part : a.rows;
    double* partial = a.partial + blockIdx.x * a.d;
    const u32 warp = threadIdx.x / WARP;
    for (u64 c = threadIdx.x; c < a.d; c += THREADS) partial[c] = 0.0;
    for (u64 low = first; low < last; low += WARPS) {
        if (low + warp < last) {
            double its_mean, its_factor;
            statistics(a, a.x + (low + warp) * a.d, its_mean, its_factor);
            if (threadIdx.x % WARP == 0) mean[warp] = its_mean, factor[warp] = its_factor;
        }
        __syncthreads();
        for (u64 c = threadIdx.x; c < a.d; c += THREADS) {
            double sum = partial[c];
            for (u32 i = 0; i < WARPS && low + i < last; ++i) {
                const u64 cell = (low + i) * a.d + c;
                sum += (double)widened(a.grad[cell]) * (((double)widened(a.x[cell]) - mean[i]) * factor[i]);
            }
            partial[c] = sum;
        }
        __syncthreads();
    }
}
