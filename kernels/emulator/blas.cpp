// An emulated cuBLAS: the one product that is used, over column-major matrices, in the plainest way.
#include <cstddef>
#include <cstdint>

#define API extern "C" __attribute__((visibility("default")))

API void emulated_push(void* stream, void (*run)(const void*), const void* data, size_t bytes);

enum Result { SUCCESS = 0, INVALID_VALUE = 7 };

struct Handle {
    void* stream = nullptr;
};

struct Product {
    bool a_transposed, b_transposed;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float* c;
};

static void run(const void* data) {
    const Product* p = (const Product*)data;
    for (int64_t j = 0; j < p->n; ++j)
        for (int64_t i = 0; i < p->m; ++i) {
            float sum = 0.0f;
            for (int64_t l = 0; l < p->k; ++l) {
                const float a = p->a_transposed ? p->a[l + i * p->lda] : p->a[i + l * p->lda];
                const float b = p->b_transposed ? p->b[j + l * p->ldb] : p->b[l + j * p->ldb];
                sum += a * b;
            }
            float& c = p->c[i + j * p->ldc];
            c = p->alpha * sum + (p->beta == 0.0f ? 0.0f : p->beta * c);
        }
}

API int cublasCreate_v2(Handle** handle) { return *handle = new Handle, SUCCESS; }
API int cublasDestroy_v2(Handle* handle) { return delete handle, SUCCESS; }
API int cublasSetStream_v2(Handle* handle, void* stream) { return handle->stream = stream, SUCCESS; }
API int cublasSetWorkspace_v2(Handle*, void* at, size_t) { return (uintptr_t)at % 256 ? INVALID_VALUE : SUCCESS; }
API int cublasSgemm_v2(Handle* handle, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a, int lda,
                       const float* b, int ldb, const float* beta, float* c, int ldc) {
    // What the real one objects to.
    const bool fits = lda >= (op_a ? k : m) && ldb >= (op_b ? n : k) && ldc >= m && lda > 0 && ldb > 0 && ldc > 0;
    if (!fits || m < 0 || n < 0 || k < 0) return INVALID_VALUE;
    const Product product{op_a != 0, op_b != 0, m, n, k, lda, ldb, ldc, *alpha, *beta, a, b, c};
    emulated_push(handle->stream, run, &product, sizeof product);
    return SUCCESS;
}
