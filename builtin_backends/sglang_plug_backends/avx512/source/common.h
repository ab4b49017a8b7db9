// What the kernels share: numbers in bfloat16, tiles of products, and shares of work for threads.
#pragma once
#include <immintrin.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <omp.h>

typedef uint16_t bf16;

#define EXPORT extern "C" __attribute__((visibility("default")))

// A packed matrix [columns, depth] is stored as panels of PANEL columns. A panel holds, for each pair of neighbours
// along the depth, PANEL pairs: the order in which vdpbf16ps takes them.
constexpr int PANEL = 32;
constexpr int ROWS = 12;  // rows of a tile: 24 sums, two columns of the panel and one broadcast pair fit the registers

static inline __m512bh pairs_at(const bf16* at) { return (__m512bh)_mm512_loadu_si512(at); }

static inline __mmask16 first(long count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1; }

static inline __mmask32 first_pairs(long count) { return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (1u << count) - 1; }

static inline __m512 widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

static inline __m512 load(const bf16* at, __mmask16 lanes = 0xffff) {
    return widen(_mm256_maskz_loadu_epi16(lanes, at));
}

static inline void store(bf16* at, __m512 x, __mmask16 lanes = 0xffff) {
    _mm256_mask_storeu_epi16(at, lanes, (__m256i)_mm512_cvtneps_pbh(x));
}

// exp(x) to about two units in the last place; 0 below -87. Range reduction by ln 2 in two parts, then a polynomial.
static inline __m512 exponential(__m512 x) {
    const __mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.5f));
    y = _mm512_add_ps(_mm512_fmadd_ps(y, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    return _mm512_mask_mov_ps(_mm512_scalef_ps(y, n), tiny, _mm512_setzero_ps());
}

static inline __m512 silu(__m512 x) {
    const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    return _mm512_div_ps(x, below);
}

// Adds to sums[r] the products of row r of a [R, 2 * pairs] with a packed panel. Each sum runs along the depth in order,
// so a row's result does not depend on how many rows are multiplied with it.
// What will be needed later is fetched meanwhile: at each of the first `fetches` pairs, LINES lines from `next` on. Two lines
// a pair is as fast as a panel is used up; then it is used once, and need not displace what else the caches hold.
template <int R, int LINES = 0>
static inline __attribute__((always_inline)) void multiply(const bf16* a, size_t stride, const bf16* panel, int pairs,
                                                           __m512 (&sums)[R][2], const char* next = nullptr,
                                                           int fetches = 0) {
    for (int p = 0; p < pairs; ++p, panel += 2 * PANEL) {
        const __m512bh left = pairs_at(panel), right = pairs_at(panel + PANEL);
        if (LINES > 0 && p < fetches) {
            _mm_prefetch(next, LINES > 1 ? _MM_HINT_NTA : _MM_HINT_T0);
            if (LINES > 1) _mm_prefetch(next + 64, _MM_HINT_NTA);
            next += 64 * LINES;
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            __builtin_memcpy(&pair, a + r * stride + 2 * p, sizeof pair);
            const __m512bh same = (__m512bh)_mm512_set1_epi32(pair);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], left, same);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], right, same);
        }
    }
}

// Hands out the pieces 0 .. count-1 in runs of `run`, to whichever thread asks.
struct Pieces {
    long count, run, next = 0;
    bool take(long& from, long& to) {
        from = __atomic_fetch_add(&next, run, __ATOMIC_RELAXED);
        to = from + run < count ? from + run : count;
        return from < count;
    }
};
