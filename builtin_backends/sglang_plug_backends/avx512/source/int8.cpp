// Products with matrices of whole numbers in eight bits, packed once.
//
// A row of x becomes whole numbers of sixteen bits with one scale, more than bfloat16 tells apart; their upper and lower
// bytes are multiplied with the matrix separately, exactly. The instruction wants one factor without a sign, so 32768 is
// added to the row and what that adds to a product, 32768 times the sum of a column, is taken off again.
#ifndef __clang__
#pragma GCC optimize("no-tree-pre")  // it would keep a tile's sums in memory
#endif
#include "functions.h"

namespace {

constexpr int INT8_ROWS = 6;                // rows of a tile: 24 sums, the rest of the registers for the factors
constexpr int OFFSET = 32768;
constexpr size_t INT8_BLOCK = 256 << 10;    // bytes of the matrix, kept in the second-level cache for many rows

struct Int8Product {
    const uint8_t* bytes;  // groups of rows, as `split` writes them
    const float* row_scales;
    const int8_t* packed;  // panels of PANEL columns: for each four along the depth, PANEL times four
    const float *scales, *sums;  // [panels * PANEL]
    const bf16* bias;
    bf16* out;
    int width;
    size_t padded;

    static __m512i four(const uint8_t* at) {
        int32_t word;
        __builtin_memcpy(&word, at, sizeof word);
        return _mm512_set1_epi32(word);
    }

    // What four sums of products say: two bytes of a row put together, the offset taken off, scaled.
    __m512 value(__m512i up, __m512i low, int column, __m512 row_scale) const {
        const __m512 all = _mm512_fmadd_ps(_mm512_cvtepi32_ps(up), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(low));
        const __m512 product = _mm512_fnmadd_ps(_mm512_set1_ps((float)OFFSET), _mm512_loadu_ps(sums + column), all);
        return _mm512_mul_ps(_mm512_mul_ps(product, row_scale), _mm512_loadu_ps(scales + column));
    }

    void finish(__m512i up, __m512i low, int row, int column) const {
        const __mmask16 lanes = first(width - column);
        if (!lanes) return;
        __m512 result = value(up, low, column, _mm512_set1_ps(row_scales[row]));
        if (bias) result = _mm512_add_ps(result, load(bias + column, lanes));
        store(out + (size_t)row * width + column, result, lanes);
    }

    template <int R>
    void tile(int row, int panel) const {
        __m512i sums[R][4];  // upper bytes with the left and the right columns, lower bytes with them
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) sums[r][i] = _mm512_setzero_si512();
        add<R>(bytes + 2 * row * padded, packed + panel * padded * PANEL, sums);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            finish(sums[r][0], sums[r][2], row + r, panel * PANEL);
            finish(sums[r][1], sums[r][3], row + r, panel * PANEL + 16);
        }
    }

    template <int R>
    __attribute__((always_inline)) void add(const uint8_t* a, const int8_t* at, __m512i (&sums)[R][4]) const {
        for (size_t d = 0; d < padded; d += 4, at += 4 * PANEL, a += 8 * R) {
            const __m512i left = _mm512_loadu_si512(at), right = _mm512_loadu_si512(at + 64);
            _mm_prefetch((const char*)at + 2048, _MM_HINT_T0);
            _mm_prefetch((const char*)at + 2112, _MM_HINT_T0);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) {
                const __m512i upper = four(a + 8 * r), lower = four(a + 8 * r + 4);
                sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], upper, left);
                sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], upper, right);
                sums[r][2] = _mm512_dpbusd_epi32(sums[r][2], lower, left);
                sums[r][3] = _mm512_dpbusd_epi32(sums[r][3], lower, right);
            }
        }
    }

    void tiles(int count, int row, int panel) const {
        switch (count) {
            case 1: return tile<1>(row, panel);
            case 2: return tile<2>(row, panel);
            case 3: return tile<3>(row, panel);
            case 4: return tile<4>(row, panel);
            case 5: return tile<5>(row, panel);
            default: return tile<6>(row, panel);
        }
    }
};

// A row to two bytes a number, and its scale. Numbers that are not finite give a scale that is not. Of every four numbers
// the upper bytes are followed by the lower ones; `stride` bytes further, behind the other rows of the group, come the next.
float split(const bf16* x, uint8_t* to, size_t stride, int depth, size_t padded) {
    __m512 greatest = _mm512_setzero_ps(), bad = greatest;
    for (int d = 0; d < depth; d += 16) {
        const __m512 number = load(x + d, first(depth - d));
        greatest = _mm512_max_ps(greatest, _mm512_abs_ps(number));
        bad = _mm512_fmadd_ps(number, _mm512_setzero_ps(), bad);
    }
    const float scale = _mm512_reduce_max_ps(greatest) / 32767.0f;
    const __m512 factor = _mm512_set1_ps(scale > 0.0f ? 1.0f / scale : 0.0f);
    for (size_t d = 0; d < padded; d += 16) {
        const __m512 number = _mm512_mul_ps(load(x + d, first(depth - (long)d)), factor);
        const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(number), _mm512_set1_epi32(OFFSET));
        const __m128i upper = _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)), lower = _mm512_cvtepi32_epi8(whole);
        const __m128i pairs[2] = {_mm_unpacklo_epi32(upper, lower), _mm_unpackhi_epi32(upper, lower)};
        for (size_t four = 0; four < 4 && d + 4 * four < padded; ++four, to += stride)
            __builtin_memcpy(to, (const uint8_t*)pairs + 8 * four, 8);
    }
    return scale + _mm512_reduce_add_ps(bad);
}

}  // namespace

// weight [width, depth] to panels, and the sum of each row of it. Room for panels * PANEL * padded bytes and panels * PANEL
// sums; padded is the depth rounded up to a multiple of 4.
EXPORT void pack_int8(const int8_t* weight, int8_t* packed, float* sums, int width, int depth) {
    const int panels = (width + PANEL - 1) / PANEL;
    const size_t padded = (depth + 3) / 4 * 4;
#pragma omp parallel for
    for (int panel = 0; panel < panels; ++panel)
        for (int c = 0; c < PANEL; ++c) {
            const int row = panel * PANEL + c;
            int32_t sum = 0;
            for (size_t d = 0; d < padded; ++d) {
                const int8_t number = row < width && d < (size_t)depth ? weight[(size_t)row * depth + d] : 0;
                packed[panel * padded * PANEL + (d / 4 * PANEL + c) * 4 + d % 4] = number;
                sum += number;
            }
            sums[row] = (float)sum;
        }
}

// out [rows, width] = x [rows, depth] times the packed matrix, its columns scaled, plus bias [width] or null.
EXPORT void linear_int8(const bf16* x, const int8_t* packed, const float* scales, const float* sums, const bf16* bias, bf16* out,
                        int rows, int width, int depth) {
    if (rows <= 0) return;
    const size_t padded = (depth + 3) / 4 * 4;
    uint8_t* bytes = (uint8_t*)malloc(2 * rows * padded + rows * sizeof(float));
    if (!bytes) abort();
    float* row_scales = (float*)(bytes + 2 * rows * padded);
    const Int8Product product{bytes, row_scales, packed, scales, sums, bias, out, width, padded};
    const int panels = (width + PANEL - 1) / PANEL, groups = (rows + INT8_ROWS - 1) / INT8_ROWS;
    const long share = panels / (8 * omp_get_max_threads()), block = INT8_BLOCK / (PANEL * padded);
    const long run = groups == 1 ? share : block;
    Pieces pieces{panels, run < 1 ? 1 : run};
#pragma omp parallel
    {
        const auto start = [&](long group) { return (int)(group * rows / groups); };
#pragma omp for
        for (int group = 0; group < groups; ++group)
            for (int from = start(group), row = from, to = start(group + 1); row < to; ++row)
                row_scales[row] = split(x + (size_t)row * depth, bytes + 2 * from * padded + 8 * (row - from), 8 * (to - from), depth, padded);
        for (long from, to; pieces.take(from, to);)
            for (int group = 0; group < groups; ++group)
                for (long panel = from; panel < to; ++panel)
                    product.tiles(start(group + 1) - start(group), start(group), (int)panel);
    }
    free(bytes);
}
