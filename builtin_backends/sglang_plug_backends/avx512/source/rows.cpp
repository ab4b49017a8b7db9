// Operations on each row alone: norms, rotary positions, gated activation. Computed in float32, rounded once.
#include <cmath>
#include "functions.h"

namespace {

constexpr long ALONE = 1 << 13;  // fewer numbers than this are not worth waking the other threads

inline __m512 load(const float* at, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, at); }
using ::load;

template <typename Weight>
void norm_row(const bf16* x, bf16* residual, const Weight* weight, bf16* out, int width, float eps) {
    __m512 squares = _mm512_setzero_ps();
    for (int i = 0; i < width; i += 16) {
        const __mmask16 lanes = first(width - i);
        __m512 value = load(x + i, lanes);
        if (residual) {  // the sum is rounded, and not read back: a masked store is slow to arrive at a load
            const __m256i sum = (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(value, load(residual + i, lanes)));
            _mm256_mask_storeu_epi16(residual + i, lanes, sum);
            value = widen(sum);
        }
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    const __m512 factor = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / width + eps));
    const bf16* from = residual ? residual : x;
    for (int i = 0; i < width; i += 16) {
        const __mmask16 lanes = first(width - i);
        const __m512 value = _mm512_mul_ps(load(from + i, lanes), factor);
        store(out + i, _mm512_mul_ps(value, load(weight + i, lanes)), lanes);
    }
}

void rotate(const bf16* x, const bf16* cos, const bf16* sin, bf16* out, int dim, int width) {
    const int half = width / 2;
    for (int i = 0; i < half; i += 16) {
        const __mmask16 lanes = first(half - i);
        const __m512 left = load(x + i, lanes), right = load(x + half + i, lanes);
        const __m512 turned_left = _mm512_mul_ps(left, load(cos + i, lanes));
        const __m512 turned_right = _mm512_mul_ps(right, load(cos + half + i, lanes));
        store(out + i, _mm512_fnmadd_ps(right, load(sin + i, lanes), turned_left), lanes);
        store(out + half + i, _mm512_fmadd_ps(left, load(sin + half + i, lanes), turned_right), lanes);
    }
    for (int i = width; i < dim; ++i) out[i] = x[i];
}

}  // namespace

// out = norm(x) * weight; with residual (or null): residual += x, then out = norm(residual) * weight. All [rows, width].
// The weight may be in float32 (`wide`).
EXPORT void rms_norm(const bf16* x, bf16* residual, const void* weight, bf16* out, int rows, int width, int wide, float eps) {
#pragma omp parallel for if ((long)rows * width >= ALONE)
    for (int row = 0; row < rows; ++row) {
        const size_t at = (size_t)row * width;
        bf16* sum = residual ? residual + at : nullptr;
        if (wide) norm_row(x + at, sum, (const float*)weight, out + at, width, eps);
        else norm_row(x + at, sum, (const bf16*)weight, out + at, width, eps);
    }
}

// gate_up [rows, 2 * width] to silu(gate) * up [rows, width].
EXPORT void silu_mul(const bf16* gate_up, bf16* out, int rows, int width) {
#pragma omp parallel for if ((long)rows * width >= ALONE)
    for (int row = 0; row < rows; ++row) {
        const bf16 *gate = gate_up + (size_t)row * 2 * width, *up = gate + width;
        for (int i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            const __m512 x = load(gate + i, lanes);
            const __m512 value = _mm512_mul_ps(silu(x), load(up + i, lanes));
            store(out + (size_t)row * width + i, value, lanes);
        }
    }
}

// x [tokens, heads, dim], rows and heads `token_stride` and `head_stride` apart, turned by cos/sin [tokens, width].
EXPORT void rope(const bf16* x, const bf16* cos, const bf16* sin, bf16* out, int tokens, int heads, int dim, int width,
          long token_stride, long head_stride) {
#pragma omp parallel for if ((long)tokens * heads * dim >= ALONE)
    for (int token = 0; token < tokens; ++token)
        for (int head = 0; head < heads; ++head)
            rotate(x + token * token_stride + head * head_stride, cos + (size_t)token * width,
                   sin + (size_t)token * width, out + ((size_t)token * heads + head) * dim, dim, width);
}