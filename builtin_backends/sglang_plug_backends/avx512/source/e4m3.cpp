// Products with matrices of e4m3 numbers, packed once, a scale for each group of a column.
#include "functions.h"

namespace {

constexpr size_t E4M3_BLOCK = 256 << 10;  // bytes of the matrix, kept in the second-level cache for many rows
constexpr size_t AHEAD = 2048;            // bytes between what is fetched and what is used

// 32 numbers in bfloat16. The exponent's bias is 7 there and 127 here; the smallest eight, which have no leading one, are
// looked up.
static inline __attribute__((always_inline)) __m512bh decode(__m256i bytes) {
    static const uint16_t SMALLEST[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    const __m512i wide = _mm512_cvtepu8_epi16(bytes);
    const __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi16(0x7f));
    __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    const __mmask32 small = _mm512_testn_epi16_mask(wide, _mm512_set1_epi16(0x78));
    bits = _mm512_mask_permutexvar_epi16(bits, small, magnitude, _mm512_loadu_si512(SMALLEST));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(wide, _mm512_set1_epi16(0x80)), 8);
    return (__m512bh)_mm512_or_si512(bits, sign);
}

struct E4m3Product {
    const bf16* x;
    const uint8_t* packed;  // panels of PANEL columns: for each pair along the depth, PANEL pairs
    const float* scales;    // [panels, groups, PANEL]
    const bf16* bias;
    bf16* out;
    int width, depth, group, groups;

    template <int R>
    __attribute__((always_inline)) void add_group(const bf16* a, const uint8_t* at, int pairs, __m512 (&sums)[R][2]) const {
        for (int p = 0; p < pairs; ++p, at += 2 * PANEL) {
            const __m512bh left = decode(_mm256_loadu_si256((const __m256i*)at));
            const __m512bh right = decode(_mm256_loadu_si256((const __m256i*)(at + PANEL)));
            _mm_prefetch((const char*)at + AHEAD, _MM_HINT_T0);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                int32_t pair;
                __builtin_memcpy(&pair, a + (size_t)r * depth + 2 * p, sizeof pair);
                const __m512bh same = (__m512bh)_mm512_set1_epi32(pair);
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], left, same);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], right, same);
            }
        }
    }

    template <int R>
    void tile(int row, int panel) const {
        __m512 totals[R][2];
        for (int r = 0; r < R; ++r) totals[r][0] = totals[r][1] = _mm512_setzero_ps();
        for (int g = 0, d = 0; g < groups; ++g, d += group) {
            __m512 sums[R][2];
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
            const int count = depth - d < group ? depth - d : group;
            add_group<R>(x + (size_t)row * depth + d, packed + ((size_t)panel * depth + d) * PANEL, count / 2, sums);
            const float* scale = scales + ((size_t)panel * groups + g) * PANEL;
            for (int half = 0; half < 2; ++half) {
                const __m512 own = _mm512_loadu_ps(scale + 16 * half);
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) totals[r][half] = _mm512_fmadd_ps(sums[r][half], own, totals[r][half]);
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

    template <int R>
    static void call(const E4m3Product& product, int row, int panel) { product.tile<R>(row, panel); }
};

typedef void (*TileFunction)(const E4m3Product&, int, int);
template <int R>
constexpr TileFunction OF = E4m3Product::call<R>;
constexpr TileFunction TILES[ROWS + 1] = {nullptr, OF<1>, OF<2>, OF<3>, OF<4>, OF<5>, OF<6>, OF<7>, OF<8>, OF<9>, OF<10>, OF<11>, OF<12>};

}  // namespace

// weight [width, depth] in e4m3 to panels; depth is even. Room for ceil(width / PANEL) * PANEL * depth bytes.
EXPORT void pack_e4m3(const uint8_t* weight, uint8_t* packed, int width, int depth) {
    const int panels = (width + PANEL - 1) / PANEL;
#pragma omp parallel for
    for (int panel = 0; panel < panels; ++panel) {
        uint8_t* to = packed + (size_t)panel * PANEL * depth;
        for (int d = 0; d < depth; d += 2)
            for (int c = 0; c < PANEL; ++c)
                for (int i = 0; i < 2; ++i) {
                    const int row = panel * PANEL + c;
                    *to++ = row < width ? weight[(size_t)row * depth + d + i] : 0;
                }
    }
}

// out [rows, width] = x [rows, depth] times the packed matrix, plus bias [width] or null. scales are
// [panels, ceil(depth / group), PANEL]; group is even.
EXPORT void linear_e4m3(const bf16* x, const uint8_t* packed, const float* scales, const bf16* bias, bf16* out, int rows,
                        int width, int depth, int group) {
    if (rows <= 0) return;
    const E4m3Product product{x, packed, scales, bias, out, width, depth, group, (depth + group - 1) / group};
    const int panels = (width + PANEL - 1) / PANEL, groups = (rows + ROWS - 1) / ROWS;
    const long share = panels / (8 * omp_get_max_threads()), block = E4M3_BLOCK / ((size_t)PANEL * depth);
    const long run = groups == 1 ? share : block;
    Pieces pieces{panels, run < 1 ? 1 : run};
#pragma omp parallel
    {
        const auto start = [&](long index) { return (int)(index * rows / groups); };
        for (long from, to; pieces.take(from, to);)
            for (int index = 0; index < groups; ++index)
                for (long panel = from; panel < to; ++panel)
                    TILES[start(index + 1) - start(index)](product, start(index), (int)panel);
    }
}
