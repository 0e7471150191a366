// An emulated cuBLAS: the products that Lapidary uses, over column-major matrices, in the simplest way.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "use.h"

#define API extern "C" __attribute__((visibility("default")))

API void emulated_push(void* stream, void (*run)(const void*), const void* data, size_t bytes, const Use* uses, size_t count);

enum Result { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

// The values of cudaDataType and cublasComputeType_t.
enum Type { R_32F = 0, R_16BF = 14 };
enum Compute { COMPUTE_32F = 68 };
enum Math { TF32_TENSOR_OP_MATH = 3 };

struct Handle {
    void* stream = nullptr;
    int math_mode = 0;
};

struct Product {
    bool a_transposed, b_transposed;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const void *a, *b;
    void* c;
    Type operands, made;
    bool in_tf32;
};

// Rounds to the nearest TF32, which has 10 bits behind the binary point.
static float tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x == x) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float read(const void* from, Type type, int64_t i) {
    if (type == R_32F) return ((const float*)from)[i];
    const uint32_t bits = (uint32_t)((const uint16_t*)from)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void write(void* to, Type type, int64_t i, float x) {
    if (type == R_32F) {
        ((float*)to)[i] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    ((uint16_t*)to)[i] = uint16_t(x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40);
}

static void run(const void* data) {
    const Product* p = (const Product*)data;
    for (int64_t j = 0; j < p->n; ++j)
        for (int64_t i = 0; i < p->m; ++i) {
            float sum = 0.0f;
            for (int64_t l = 0; l < p->k; ++l) {
                const float a = read(p->a, p->operands, p->a_transposed ? l + i * p->lda : i + l * p->lda);
                const float b = read(p->b, p->operands, p->b_transposed ? j + l * p->ldb : l + j * p->ldb);
                sum += p->in_tf32 ? tf32(a) * tf32(b) : a * b;
            }
            const int64_t at = i + j * p->ldc;
            write(p->c, p->made, at, p->alpha * sum + (p->beta == 0.0f ? 0.0f : p->beta * read(p->c, p->made, at)));
        }
}

// Adds the columns of a matrix.
static void add_uses(std::vector<Use>& uses, const void* matrix, Type type, int rows, int columns, int stride, bool writes) {
    const uint64_t cell_bytes = type == R_32F ? 4 : 2;
    for (int64_t j = 0; j < columns; ++j) uses.push_back({(uint64_t)matrix + j * stride * cell_bytes, rows * cell_bytes, writes});
}

static int queue(Handle* handle, const Product& p) {
    // The arguments that the real library rejects.
    const bool fits = p.lda >= (p.a_transposed ? p.k : p.m) && p.ldb >= (p.b_transposed ? p.n : p.k) && p.ldc >= p.m &&
                      p.lda > 0 && p.ldb > 0 && p.ldc > 0;
    if (!fits || p.m < 0 || p.n < 0 || p.k < 0) return INVALID_VALUE;
    std::vector<Use> uses;
    add_uses(uses, p.a, p.operands, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k, p.lda, false);
    add_uses(uses, p.b, p.operands, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n, p.ldb, false);
    add_uses(uses, p.c, p.made, p.m, p.n, p.ldc, true);
    emulated_push(handle->stream, run, &p, sizeof p, uses.data(), uses.size());
    return SUCCESS;
}

// EMULATED_BLAS=0 makes it fail to start, as one for a newer driver does.
API int cublasCreate_v2(Handle** handle) {
    const char* starts = getenv("EMULATED_BLAS");
    if (starts && strcmp(starts, "0") == 0) return NOT_INITIALIZED;
    return *handle = new Handle, SUCCESS;
}
API int cublasGetProperty(int property, int* value) { return *value = property == 0 ? 13 : 0, SUCCESS; }
API int cublasDestroy_v2(Handle* handle) { return delete handle, SUCCESS; }
API int cublasSetStream_v2(Handle* handle, void* stream) { return handle->stream = stream, SUCCESS; }
API int cublasSetWorkspace_v2(Handle*, void* at, size_t) { return (uintptr_t)at % 256 ? INVALID_VALUE : SUCCESS; }
API int cublasSetMathMode(Handle* handle, int mode) { return handle->math_mode = mode, SUCCESS; }
API int cublasSgemm_v2(Handle* handle, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a, int lda,
                       const float* b, int ldb, const float* beta, float* c, int ldc) {
    return queue(handle, {op_a != 0, op_b != 0, m, n, k, lda, ldb, ldc, *alpha, *beta, a, b, c, R_32F, R_32F, handle->math_mode == TF32_TENSOR_OP_MATH});
}
API int cublasGemmEx(Handle* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int a_type,
                     int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc,
                     int compute, int) {
    // Only the types that Lapidary uses: bf16 operands and f32 sums, also for partial sums.
    if (a_type != R_16BF || b_type != R_16BF || (c_type != R_16BF && c_type != R_32F) || compute != COMPUTE_32F ||
        handle->math_mode != 16)
        return NOT_SUPPORTED;
    const float one = *(const float*)alpha, zero = *(const float*)beta;
    return queue(handle, {op_a != 0, op_b != 0, m, n, k, lda, ldb, ldc, one, zero, a, b, c, R_16BF, (Type)c_type, false});
}
