// Attention of many new tokens of one sequence: keys and values are packed once, then multiplied tile by tile, and no
// score is ever written to memory outside the cache (Dao et al., 2022).
#include <cmath>
#include "attention.h"

namespace {

constexpr int BLOCK = 256;  // keys of a tile; a multiple of PANEL

struct Packed {
    int64_t from, count, dim, value_dim;  // keys [from, from + count)
    int64_t panels, value_panels;
    bf16 *keys, *values;

    static int64_t rounded(int64_t x) { return (x + PANEL - 1) / PANEL * PANEL; }
    static size_t numbers(int64_t count, int64_t dim, int64_t value_dim) {
        return rounded(count) * (size_t)(dim + rounded(value_dim));
    }

    Packed(const Context& context, int64_t from, int64_t count, int64_t dim, int64_t value_dim, bf16* memory)
        : from(from), count(count), dim(dim), value_dim(value_dim), panels(rounded(count) / PANEL),
          value_panels(rounded(value_dim) / PANEL), keys(memory), values(memory + rounded(count) * dim) {
        for (int64_t i = 0; i < panels * PANEL; ++i) pack_key(context, i);
        for (int64_t i = 0; i < panels * PANEL; i += 2) pack_values(context, i);
    }

    const bf16* key_panel(int64_t i) const { return keys + i * PANEL * dim; }
    // The panel of 32 numbers of the values, from key `i` on.
    const bf16* value_panel(int64_t panel, int64_t i) const { return values + (panel * panels * PANEL + i) * PANEL; }

 private:
    void pack_key(const Context& context, int64_t i) {
        uint32_t* out = (uint32_t*)(keys + (i / PANEL) * PANEL * dim) + i % PANEL;
        if (i >= count) {
            for (int64_t p = 0; p < dim / 2; ++p) out[p * PANEL] = 0;
            return;
        }
        const bf16* key = context.key(from + i);
        for (int64_t p = 0; p < dim / 2; ++p) __builtin_memcpy(out + p * PANEL, key + 2 * p, 4);
    }

    void pack_values(const Context& context, int64_t i) {
        const bf16* even = i < count ? context.value(from + i) : nullptr;
        const bf16* odd = i + 1 < count ? context.value(from + i + 1) : nullptr;
        for (int64_t d = 0; d < value_panels * PANEL; d += 16) {
            const __mmask16 lanes = first(value_dim - d);
            const __m256i none = _mm256_setzero_si256();
            const __m256i low = even ? _mm256_maskz_loadu_epi16(lanes, even + d) : none;
            const __m256i high = odd ? _mm256_maskz_loadu_epi16(lanes, odd + d) : none;
            const __m512i mixed = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
            bf16* out = values + ((d / PANEL) * panels * PANEL + i) * PANEL + 2 * (d % PANEL);
            _mm512_storeu_si512(out, mixed);
        }
    }
};

struct Tile {
    const Attention& a;
    const Packed& packed;
    int64_t sequence, head, query;  // the first of its new tokens
    float* scores;                  // [ROWS, BLOCK]
    bf16* weights;                  // [ROWS, BLOCK]
    float* total;                   // [ROWS, value_panels * PANEL]
};

template <int R>
void multiply_keys(const Tile& t, int64_t at, int64_t count) {
    const bf16* q = t.a.q + (t.a.starts[t.sequence] + t.query) * t.a.q_stride + t.head * t.a.dim;
    for (int64_t i = 0; i < count; i += PANEL) {
        __m512 sums[R][2];
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        multiply<R>(q, t.a.q_stride, t.packed.key_panel((at + i) / PANEL), t.a.dim / 2, sums);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            _mm512_storeu_ps(t.scores + r * BLOCK + i, sums[r][0]);
            _mm512_storeu_ps(t.scores + r * BLOCK + i + 16, sums[r][1]);
        }
    }
}

template <int R>
void multiply_values(const Tile& t, int64_t at, int64_t count, const float (&factors)[ROWS]) {
    const int64_t width = t.packed.value_panels * PANEL;
    for (int64_t panel = 0; panel < t.packed.value_panels; ++panel) {
        float* total = t.total + panel * PANEL;
        __m512 sums[R][2];
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const __m512 factor = _mm512_set1_ps(factors[r]);
            sums[r][0] = _mm512_mul_ps(factor, _mm512_loadu_ps(total + r * width));
            sums[r][1] = _mm512_mul_ps(factor, _mm512_loadu_ps(total + r * width + 16));
        }
        multiply<R>(t.weights, BLOCK, t.packed.value_panel(panel, at), (count + 1) / 2, sums);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            _mm512_storeu_ps(total + r * width, sums[r][0]);
            _mm512_storeu_ps(total + r * width + 16, sums[r][1]);
        }
    }
}

void round_weights(const Tile& t, int row, int64_t padded) {
    for (int64_t i = 0; i < padded; i += 16) store(t.weights + row * BLOCK + i, _mm512_loadu_ps(t.scores + row * BLOCK + i));
}

template <int R>
void tile(const Tile& t) {
    const int64_t width = t.packed.value_panels * PANEL, begin = t.packed.from;
    Softmax softmax[R];
    for (int64_t i = 0; i < R * width; ++i) t.total[i] = 0.0f;
    const int64_t lowest = Seen(t.a, t.sequence, t.query).from - begin, highest = Seen(t.a, t.sequence, t.query + R - 1).to - begin;
    for (int64_t at = lowest / PANEL * PANEL; at < highest; at += BLOCK) {
        const int64_t count = highest - at < BLOCK ? highest - at : BLOCK, padded = Packed::rounded(count);
        multiply_keys<R>(t, at, count);
        float factors[ROWS];
        for (int r = 0; r < R; ++r) {
            const Seen seen(t.a, t.sequence, t.query + r);
            const int64_t from = seen.from - begin - at, to = seen.to - begin - at < count ? seen.to - begin - at : count;
            factors[r] = softmax[r].weigh(t.scores + r * BLOCK, from, to, padded, t.a.scale, t.a.softcap);
            round_weights(t, r, padded);
        }
        multiply_values<R>(t, at, count, factors);
    }
    for (int r = 0; r < R; ++r) {
        const int64_t token = t.a.starts[t.sequence] + t.query + r;
        bf16* out = t.a.out + (token * t.a.heads + t.head) * t.a.value_dim;
        const __m512 share = _mm512_set1_ps(softmax[r].sum > 0.0f ? 1.0f / softmax[r].sum : 0.0f);
        for (int64_t d = 0; d < t.a.value_dim; d += 16)
            store(out + d, _mm512_mul_ps(_mm512_loadu_ps(t.total + r * width + d), share), first(t.a.value_dim - d));
    }
}

typedef void (*TileFunction)(const Tile&);
const TileFunction TILES[ROWS + 1] = {nullptr, tile<1>, tile<2>, tile<3>, tile<4>,  tile<5>,  tile<6>,
                                      tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>};

}  // namespace

void attend_many(const Attention& a, int64_t sequence, int64_t from, int64_t to, int64_t kv_head, Scratch& scratch) {
    const int64_t group = a.heads / a.kv_heads;
    const int64_t begin = Seen(a, sequence, from).from, count = Seen(a, sequence, to - 1).to - begin;
    const int64_t width = Packed::rounded(a.value_dim);
    const size_t packed_bytes = (Packed::numbers(count, a.dim, a.value_dim) * sizeof(bf16) + 63) / 64 * 64;
    const size_t tile_bytes = ROWS * BLOCK * (sizeof(float) + sizeof(bf16)) + ROWS * width * sizeof(float);
    char* memory = scratch.get(packed_bytes + tile_bytes);
    const Packed packed(Context(a, sequence, kv_head), begin, count, a.dim, a.value_dim, (bf16*)memory);
    float* scores = (float*)(memory + packed_bytes);
    float* total = scores + ROWS * BLOCK;
    bf16* weights = (bf16*)(total + ROWS * width);
    for (int64_t query = from; query < to; query += ROWS)
        for (int64_t h = 0; h < group; ++h)
            TILES[to - query < ROWS ? to - query : ROWS]({a, packed, sequence, kv_head * group + h, query, scores, weights, total});
}
