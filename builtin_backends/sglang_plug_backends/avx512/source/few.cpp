// Attention of one new token: keys and values are read from the pool as they lie, each once for all heads that share it.
#include <cmath>
#include "attention.h"

namespace {

constexpr int BLOCK = 256;  // keys whose scores are in the cache at once
constexpr int64_t BLOCK_BYTES = 128 << 10;  // of keys and values that are read before they are used
constexpr int TOGETHER = 4;  // heads that share the conversion of a value

// The sums of sixteen vectors, in order.
__m512 sums_of(__m512 (&x)[16]) {
    __m512 fours[4];
    for (int i = 0; i < 4; ++i) {
        const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[4 * i], x[4 * i + 1]), _mm512_unpackhi_ps(x[4 * i], x[4 * i + 1]));
        const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[4 * i + 2], x[4 * i + 3]), _mm512_unpackhi_ps(x[4 * i + 2], x[4 * i + 3]));
        const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
    }
    const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88), _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd));
    const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2], fours[3], 0x88), _mm512_shuffle_f32x4(fours[2], fours[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Products of one query with sixteen keys.
__m512 scores_of(const bf16* q, const bf16* const (&keys)[16], int64_t dim) {
    __m512 sums[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sums[i] = _mm512_setzero_ps();
    for (int64_t d = 0; d < dim; d += 32) {
        const __mmask32 lanes = first_pairs(dim - d);
        const __m512bh mine = (__m512bh)_mm512_maskz_loadu_epi16(lanes, q + d);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
            sums[i] = _mm512_dpbf16_ps(sums[i], mine, (__m512bh)_mm512_maskz_loadu_epi16(lanes, keys[i] + d));
    }
    return sums_of(sums);
}

// total[head] += the weighted values, 64 numbers from `at` on, for COUNT heads.
template <int COUNT>
void add_values(const Context& context, int64_t from, int64_t count, const float* weights, float* total, int64_t at, int64_t size) {
    __m512 sums[COUNT][4];
    __mmask16 lanes[4];
    for (int j = 0; j < 4; ++j) lanes[j] = first(size - at - 16 * j);
#pragma GCC unroll 4
    for (int h = 0; h < COUNT; ++h)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[h][j] = _mm512_maskz_loadu_ps(lanes[j], total + h * size + at + 16 * j);
    for (int64_t i = 0; i < count; ++i) {
        const bf16* value = context.value(from + i) + at;
        __m512 wide[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) wide[j] = load(value + 16 * j, lanes[j]);
#pragma GCC unroll 4
        for (int h = 0; h < COUNT; ++h) {
            const __m512 weight = _mm512_set1_ps(weights[h * BLOCK + i]);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) sums[h][j] = _mm512_fmadd_ps(weight, wide[j], sums[h][j]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < COUNT; ++h)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) _mm512_mask_storeu_ps(total + h * size + at + 16 * j, lanes[j], sums[h][j]);
}

typedef void (*AddValues)(const Context&, int64_t, int64_t, const float*, float*, int64_t, int64_t);
const AddValues ADD_VALUES[TOGETHER + 1] = {nullptr, add_values<1>, add_values<2>, add_values<3>, add_values<4>};

// One new token and the key heads [first_head, last_head), block after block of its context.
class Row {
 public:
    Row(const Attention& a, int64_t sequence, int64_t query, int64_t first_head, int64_t last_head, Scratch& scratch)
        : a(a), sequence(sequence), token(a.starts[sequence] + query), group(a.heads / a.kv_heads),
          first_head(first_head), last_head(last_head), seen(a, sequence, query) {
        const int64_t heads = group * (last_head - first_head);
        weights = (float*)scratch.get((group * BLOCK + heads * (a.value_dim + 2)) * sizeof(float));
        total = weights + group * BLOCK;
        softmax = (Softmax*)(total + heads * a.value_dim);
        for (int64_t i = 0; i < heads * a.value_dim; ++i) total[i] = 0.0f;
        for (int64_t h = 0; h < heads; ++h) softmax[h] = Softmax();
    }

    void run() {
        const int64_t size = block();
        for (int64_t from = seen.from; from < seen.to; from += size) {
            const int64_t count = seen.to - from < size ? seen.to - from : size;
            touch(from, count);
            for (int64_t head = first_head; head < last_head; ++head) {
                const Context context(a, sequence, head);
                score(context, head, from, count);
                add(context, head, from, count);
            }
        }
        for (int64_t head = first_head; head < last_head; ++head) write(head);
    }

 private:
    const Attention& a;
    const int64_t sequence, token, group, first_head, last_head;
    const Seen seen;
    float *weights, *total;  // [group, BLOCK] of the head at hand; [heads, value_dim]
    Softmax* softmax;        // [heads]

    // As many tokens as the second-level cache holds in addition to everything else.
    int64_t block() const {
        const int64_t row = (last_head - first_head) * (a.dim + (a.values_in_keys ? 0 : a.value_dim)) * sizeof(bf16);
        const int64_t count = BLOCK_BYTES / row / 16 * 16;
        return count < 16 ? 16 : count < BLOCK ? count : BLOCK;
    }

    // Reads every line of a block once, in order: much faster than prefetching, and than waiting in the loops below.
    void touch(int64_t from, int64_t count) const {
        const int64_t heads = last_head - first_head, values = a.values_in_keys ? 0 : heads * a.value_dim;
        const Context context(a, sequence, first_head);
        for (int64_t i = from; i < from + count; ++i) {
            for (int64_t d = 0; d < heads * a.dim; d += 32) read(context.key(i) + d);
            for (int64_t d = 0; d < values; d += 32) read(context.value(i) + d);
        }
    }

    static void read(const bf16* at) { (void)*(const volatile bf16*)at; }

    void score(const Context& context, int64_t head, int64_t from, int64_t count) {
        const bf16* q = a.q + token * a.q_stride + head * group * a.dim;
        for (int64_t i = 0; i < count; i += 16) {
            const bf16* keys[16];
            for (int64_t j = 0; j < 16; ++j) keys[j] = context.key(from + (i + j < count ? i + j : count - 1));
            for (int64_t h = 0; h < group; ++h)
                _mm512_storeu_ps(weights + h * BLOCK + i, scores_of(q + h * a.dim, keys, a.dim));
        }
    }

    void add(const Context& context, int64_t head, int64_t from, int64_t count) {
        const int64_t size = a.value_dim, padded = (count + 15) / 16 * 16, first_row = (head - first_head) * group;
        float* sums = total + first_row * size;
        for (int64_t h = 0; h < group; ++h) {
            const float factor = softmax[first_row + h].weigh(weights + h * BLOCK, 0, count, padded, a.scale, a.softcap);
            if (factor != 1.0f)
                for (int64_t d = 0; d < size; ++d) sums[h * size + d] *= factor;
        }
        for (int64_t h = 0; h < group; h += TOGETHER) {
            const int64_t together = group - h < TOGETHER ? group - h : TOGETHER;
            for (int64_t d = 0; d < size; d += 64)
                ADD_VALUES[together](context, from, count, weights + h * BLOCK, sums + h * size, d, size);
        }
    }

    void write(int64_t head) const {
        const int64_t size = a.value_dim, first_row = (head - first_head) * group;
        bf16* out = a.out + (token * a.heads + head * group) * size;
        for (int64_t h = 0; h < group; ++h) {
            const float sum = softmax[first_row + h].sum, *from = total + (first_row + h) * size;
            const __m512 share = _mm512_set1_ps(sum > 0.0f ? 1.0f / sum : 0.0f);
            for (int64_t d = 0; d < size; d += 16) {
                const __mmask16 lanes = first(size - d);
                store(out + h * size + d, _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, from + d), share), lanes);
            }
        }
    }
};

}  // namespace

void attend_few(const Attention& a, int64_t sequence, int64_t query, int64_t first_head, int64_t last_head, Scratch& scratch) {
    Row(a, sequence, query, first_head, last_head, scratch).run();
}
