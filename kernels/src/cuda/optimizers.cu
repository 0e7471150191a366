// Optimizer steps, rounded where PyTorch rounds: scalars in f64, elements in f32. The step number and the learning rate
// are read from device memory; one thread per block computes the scalars from them.

struct Sgd {
    const float* param;
    const float* grad;
    const float* moment;
    float* next_moment;
    float* out;
    const u64* clock;
    const float* rate;
    u64 len;
    float momentum;
    float decay;
};

KERNEL(sgd, Sgd) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.len) return;
    const float param = a.param[i], g = a.grad[i] + a.decay * param, rate = *a.rate;
    float m = g;
    if (a.moment) {
        if (a.clock[1] > 1) m = a.momentum * a.moment[i] + g;
        a.next_moment[i] = m;
    }
    a.out[i] = param - rate * m;
}

struct Adam {
    const float* param;
    const float* grad;
    const float* m;
    const float* v;
    float* out;
    float* next_m;
    float* next_v;
    const u64* clock;
    const float* rate;
    u64 len;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    u64 decoupled;
};

KERNEL(adam, Adam) {
    __shared__ float step_size, root_correction, shrink;
    if (threadIdx.x == 0) {
        const double t = a.clock[1] > 1 ? (double)a.clock[1] : 1.0, rate = (double)*a.rate;
        step_size = (float)(rate / (1.0 - pow(a.beta1, t)));
        root_correction = (float)sqrt(1.0 - pow(a.beta2, t));
        shrink = (float)(1.0 - (a.decoupled ? rate * a.weight_decay : 0.0));
    }
    __syncthreads();
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.len) return;
    const float decay = a.decoupled ? 0.0f : (float)a.weight_decay;
    const float gain1 = (float)(1.0 - a.beta1), keep2 = (float)a.beta2, gain2 = (float)(1.0 - a.beta2);
    const float p = a.param[i] * shrink, g = a.grad[i] + decay * p;
    const float m = a.m[i] + gain1 * (g - a.m[i]);
    const float v = keep2 * a.v[i] + gain2 * g * g;
    a.next_m[i] = m;
    a.next_v[i] = v;
    a.out[i] = p - step_size * m / (sqrtf(v) / root_correction + (float)a.eps);
}
