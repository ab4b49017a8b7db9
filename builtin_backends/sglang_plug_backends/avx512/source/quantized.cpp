// Products with matrices in codes of four or eight bits without sign, packed once, a scale and a zero for each group.
//
// A group of a row of x becomes whole numbers of sixteen bits with one scale. They are cut into two bytes with a sign each,
// which are multiplied with the codes separately, exactly; what the zero takes off is the zero times the group's sum.
#ifndef __clang__
#pragma GCC optimize("no-tree-pre")  // it would keep a tile's sums in memory
#endif
#include "functions.h"

namespace {

constexpr int QUANTIZED_ROWS = 6;              // rows of a tile: 24 sums, the rest of the registers for the factors
constexpr size_t QUANTIZED_BLOCK = 256 << 10;  // bytes of the matrix, kept in the second-level cache for many rows
constexpr float MAX_WHOLE = 127 * 256;         // of the whole numbers that x becomes
constexpr size_t AHEAD = 2048;             // bytes between what is fetched and what is used

// Rows as `cut` writes them.
struct Rows {
    uint8_t* bytes;    // by groups of rows: for each four along the depth and each row, four upper bytes and four lower ones
    float* scales;     // [rows, groups]
    int32_t* sums;     // [rows, groups]
};

template <int BITS>
struct QuantizedProduct {
    Rows x;
    const uint8_t* packed;  // panels of PANEL columns, see `pack_codes`
    const float* scales;    // [panels, groups, PANEL]
    const uint8_t* zeros;   // the same
    const bf16* bias;
    bf16* out;
    int width, depth, group, groups;

    static constexpr int STEP = 32 / BITS;  // numbers of a column in four bytes

    static __m512i four(const uint8_t* at) {
        int32_t word;
        __builtin_memcpy(&word, at, sizeof word);
        return _mm512_set1_epi32(word);
    }

    template <int R>
    static __attribute__((always_inline)) void add(const uint8_t* a, __m512i left, __m512i right, __m512i (&sums)[R][4]) {
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const __m512i upper = four(a + 8 * r), lower = four(a + 8 * r + 4);
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], left, upper);
            sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], right, upper);
            sums[r][2] = _mm512_dpbusd_epi32(sums[r][2], left, lower);
            sums[r][3] = _mm512_dpbusd_epi32(sums[r][3], right, lower);
        }
    }

    // The products of a group with R rows; moves on to the next one.
    template <int R>
    __attribute__((always_inline)) void add_group(const uint8_t*& a, const uint8_t*& at, __m512i (&sums)[R][4]) const {
        const __m512i low = _mm512_set1_epi8(15);
        for (int d = 0; d < group; d += STEP, at += 4 * PANEL) {
            const __m512i left = _mm512_loadu_si512(at), right = _mm512_loadu_si512(at + 64);
            _mm_prefetch((const char*)at + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char*)at + AHEAD + 64, _MM_HINT_T0);
            if (BITS == 8) {
                add<R>(a, left, right, sums);
                a += 8 * R;
            } else {
                add<R>(a, _mm512_and_si512(left, low), _mm512_and_si512(right, low), sums);
                add<R>(a + 8 * R, _mm512_and_si512(_mm512_srli_epi16(left, 4), low),
                       _mm512_and_si512(_mm512_srli_epi16(right, 4), low), sums);
                a += 16 * R;
            }
        }
    }

    template <int R>
    void tile(int row, int panel) const {
        __m512 totals[R][2];
        for (int r = 0; r < R; ++r) totals[r][0] = totals[r][1] = _mm512_setzero_ps();
        const uint8_t *a = x.bytes + (size_t)2 * row * depth, *at = packed + (size_t)panel * depth / STEP * 4 * PANEL;
        for (int g = 0; g < groups; ++g) {
            __m512i sums[R][4];
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) sums[r][i] = _mm512_setzero_si512();
            add_group<R>(a, at, sums);
            const size_t offset = ((size_t)panel * groups + g) * PANEL;
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const __m512 scale = _mm512_loadu_ps(scales + offset + 16 * half);
                const __m512i zero = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(zeros + offset + 16 * half)));
#pragma GCC unroll 6
                for (int r = 0; r < R; ++r) {
                    const size_t own = (size_t)(row + r) * groups + g;
                    const __m512i all = _mm512_add_epi32(_mm512_slli_epi32(sums[r][half], 8), sums[r][2 + half]);
                    const __m512i off = _mm512_mullo_epi32(zero, _mm512_set1_epi32(x.sums[own]));
                    const __m512 number = _mm512_cvtepi32_ps(_mm512_sub_epi32(all, off));
                    totals[r][half] = _mm512_fmadd_ps(number, _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[own])), totals[r][half]);
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int half = 0; half < 2; ++half) finish(totals[r][half], row + r, panel * PANEL + 16 * half);
    }

    void finish(__m512 value, int row, int column) const {
        const __mmask16 lanes = first(width - column);
        if (!lanes) return;
        if (bias) value = _mm512_add_ps(value, load(bias + column, lanes));
        store(out + (size_t)row * width + column, value, lanes);
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

    // A group of a row to two bytes a number, `stride` bytes between fours; its scale, and its sum.
    static void cut(const bf16* x, int count, uint8_t* to, size_t stride, float& scale, int32_t& sum) {
        __m512 greatest = _mm512_setzero_ps(), bad = greatest;
        for (int d = 0; d < count; d += 16) {
            const __m512 number = load(x + d, first(count - d));
            greatest = _mm512_max_ps(greatest, _mm512_abs_ps(number));
            bad = _mm512_fmadd_ps(number, _mm512_setzero_ps(), bad);
        }
        scale = _mm512_reduce_max_ps(greatest) / MAX_WHOLE;
        const __m512 factor = _mm512_set1_ps(scale > 0.0f ? 1.0f / scale : 0.0f);
        __m512i total = _mm512_setzero_si512();
        for (int d = 0; d < count; d += 16) {
            const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(load(x + d, first(count - d)), factor));
            const __m512i up = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
            const __m128i upper = _mm512_cvtepi32_epi8(up), lower = _mm512_cvtepi32_epi8(whole);
            const __m128i pairs[2] = {_mm_unpacklo_epi32(upper, lower), _mm_unpackhi_epi32(upper, lower)};
            for (int four = 0; four < 4 && d + 4 * four < count; ++four, to += stride)
                __builtin_memcpy(to, (const uint8_t*)pairs + 8 * four, 8);
            total = _mm512_add_epi32(total, whole);
        }
        sum = _mm512_reduce_add_epi32(total);
        scale += _mm512_reduce_add_ps(bad);  // what is not finite shows in every product
    }

    void prepare(const bf16* from, int row, int first_row, int count) const {
        for (int g = 0; g < groups; ++g) {
            const size_t own = (size_t)row * groups + g, at = (size_t)2 * first_row * depth + (size_t)2 * count * g * group;
            cut(from + (size_t)row * depth + (size_t)g * group, group, x.bytes + at + 8 * (row - first_row), 8 * count,
                x.scales[own], x.sums[own]);
        }
    }
};

template <int BITS>
void multiply_codes(const bf16* x, const uint8_t* packed, const float* scales, const uint8_t* zeros, const bf16* bias,
                    bf16* out, int rows, int width, int depth, int group) {
    if (rows <= 0) return;
    const int count = depth / group;
    const size_t bytes = (size_t)2 * rows * depth, cells = (size_t)rows * count;
    uint8_t* memory = (uint8_t*)malloc(bytes + cells * (sizeof(float) + sizeof(int32_t)));
    if (!memory) abort();
    float* row_scales = (float*)(memory + bytes);
    const Rows cut{memory, row_scales, (int32_t*)(row_scales + cells)};
    const QuantizedProduct<BITS> product{cut, packed, scales, zeros, bias, out, width, depth, group, count};
    const int panels = (width + PANEL - 1) / PANEL, groups = (rows + QUANTIZED_ROWS - 1) / QUANTIZED_ROWS;
    const long share = panels / (8 * omp_get_max_threads()), block = QUANTIZED_BLOCK / ((size_t)PANEL * depth * BITS / 8);
    const long run = groups == 1 ? share : block;
    Pieces pieces{panels, run < 1 ? 1 : run};
#pragma omp parallel
    {
        const auto start = [&](long index) { return (int)(index * rows / groups); };
#pragma omp for
        for (int row = 0; row < rows; ++row) {
            long own = 0;
            while (start(own + 1) <= row) ++own;
            product.prepare(x, row, start(own), start(own + 1) - start(own));
        }
        for (long from, to; pieces.take(from, to);)
            for (int index = 0; index < groups; ++index)
                for (long panel = from; panel < to; ++panel)
                    product.tiles(start(index + 1) - start(index), start(index), (int)panel);
    }
    free(memory);
}

}  // namespace

// codes [width, depth] of bits 4 or 8 to panels. Of four bytes of a column, each holds one number of eight bits, or two of
// four bits: the n-th in its lower half the n-th of eight, and in its upper half the one four further. depth is a multiple of
// 32 / bits. Room for ceil(width / PANEL) * PANEL * depth * bits / 8 bytes.
EXPORT void pack_codes(const uint8_t* codes, uint8_t* packed, int width, int depth, int bits) {
    const int panels = (width + PANEL - 1) / PANEL, step = 32 / bits;
#pragma omp parallel for
    for (int panel = 0; panel < panels; ++panel) {
        uint8_t* to = packed + (size_t)panel * depth / step * 4 * PANEL;
        for (int d = 0; d < depth; d += step)
            for (int c = 0; c < PANEL; ++c) {
                const int row = panel * PANEL + c;
                const uint8_t* at = codes + (size_t)row * depth + d;
                for (int i = 0; i < 4; ++i) *to++ = row >= width ? 0 : bits == 8 ? at[i] : at[i] | at[i + 4] << 4;
            }
    }
}

// out [rows, width] = x [rows, depth] times the packed matrix of codes, plus bias [width] or null. scales and zeros are
// [panels, depth / group, PANEL]; group divides depth and is a multiple of 8, and at most 4096.
EXPORT void linear_codes4(const bf16* x, const uint8_t* packed, const float* scales, const uint8_t* zeros, const bf16* bias,
                          bf16* out, int rows, int width, int depth, int group) {
    multiply_codes<4>(x, packed, scales, zeros, bias, out, rows, width, depth, group);
}

// The same with codes of eight bits; group is a multiple of 4, and at most 256.
EXPORT void linear_codes8(const bf16* x, const uint8_t* packed, const float* scales, const uint8_t* zeros, const bf16* bias,
                          bf16* out, int rows, int width, int depth, int group) {
    multiply_codes<8>(x, packed, scales, zeros, bias, out, rows, width, depth, group);
}
