// From logits in float32 to tokens: what grammars allow, and drawing.
#include <limits>
#include "common.h"

namespace {

constexpr long ALONE = 1 << 16;  // fewer numbers than this are not worth waking the other threads
constexpr int WORDS = 64;        // of a mask, done at once
constexpr int BLOCK = 2048;      // of a row, in draw; kernels.py knows it too

// Adds -inf, so that what is not a number stays none.
void bar(float* x, __mmask16 lanes) {
    const __m512 never = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    _mm512_mask_storeu_ps(x, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, x), never));
}

float largest(const float* x, int count) {
    __m512 largest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (int i = 0; i < count; i += 16) largest = _mm512_mask_max_ps(largest, first(count - i), largest, _mm512_maskz_loadu_ps(first(count - i), x + i));
    return _mm512_reduce_max_ps(largest);
}

// exp((x - top) / temperature), zero beyond the end.
__m512 weights(const float* x, int count, float top, float factor) {
    const __mmask16 lanes = first(count);
    const __m512 below = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x), _mm512_set1_ps(top));
    return _mm512_maskz_mov_ps(lanes, exponential(_mm512_mul_ps(below, _mm512_set1_ps(factor))));
}

double mass(const float* x, int count, float top, float factor) {
    __m512d low = _mm512_setzero_pd(), high = low;
    for (int i = 0; i < count; i += 16) {
        const __m512 sixteen = weights(x + i, count - i, top, factor);
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(sixteen)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(sixteen, 1)));
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

// The index in x at which the running sum of the weights passes `target`; the last of any weight if rounding hides it.
int passed(const float* x, int count, float top, float factor, double target) {
    double sum = 0;
    int last = 0;
    for (int i = 0; i < count; i += 16) {
        alignas(64) float lanes[16];
        _mm512_store_ps(lanes, weights(x + i, count - i, top, factor));
        for (int lane = 0; lane < 16; ++lane) {
            sum += lanes[lane];
            if (lanes[lane] > 0) last = i + lane;
            if (sum > target) return i + lane;
        }
    }
    return last;
}

}  // namespace

// -inf where the bit of a logit in `mask` [count, words] is 0, or is not there. `logits` are [.., width]; `rows` says
// which row each mask is for, or is null: all in order.
EXPORT void mask_logits(float* logits, const long* rows, const int* mask, int count, int width, int words) {
    const int blocks = (width + 32 * WORDS - 1) / (32 * WORDS);
#pragma omp parallel for collapse(2) if ((long)count * width >= ALONE)
    for (int row = 0; row < count; ++row)
        for (int block = 0; block < blocks; ++block) {
            float* out = logits + (size_t)(rows ? rows[row] : row) * width;
            const int* bits = mask + (size_t)row * words;
            for (int word = block * WORDS; word < (block + 1) * WORDS && 32 * word < width; ++word) {
                const unsigned barred = word < words ? ~(unsigned)bits[word] : ~0u;
                const int left = width - 32 * word;
                if (barred & 0xffff) bar(out + 32 * word, first(left) & barred);
                if (barred >> 16) bar(out + 32 * word + 16, first(left - 16) & (barred >> 16));
            }
        }
}

// out[row]: a token of each of `rows` rows of logits [rows, width], drawn from softmax(logits / temperature): the one at
// which the sum of the probabilities passes uniform. `tops` and `sums` are scratch, [rows, blocks].
EXPORT void draw(const float* logits, const float* temperature, const double* uniform, float* tops, double* sums,
                 int64_t* out, int rows, int width) {
    const int blocks = (width + BLOCK - 1) / BLOCK;
    const auto size = [=](int block) { return block + 1 < blocks ? BLOCK : width - block * BLOCK; };
    const auto at = [=](int row, int block) { return logits + (size_t)row * width + (size_t)block * BLOCK; };
#pragma omp parallel if ((long)rows * width >= ALONE / 4)
    {
#pragma omp for collapse(2)
        for (int row = 0; row < rows; ++row)
            for (int block = 0; block < blocks; ++block) tops[row * blocks + block] = largest(at(row, block), size(block));
#pragma omp for collapse(2)
        for (int row = 0; row < rows; ++row)
            for (int block = 0; block < blocks; ++block)
                sums[row * blocks + block] =
                    mass(at(row, block), size(block), largest(tops + row * blocks, blocks), 1 / temperature[row]);
#pragma omp for
        for (int row = 0; row < rows; ++row) {
            const double* own = sums + row * blocks;
            double total = 0, before = 0;
            int block = 0;
            for (int i = 0; i < blocks; ++i) {
                total += own[i];
                if (own[i] > 0) block = i;
            }
            const double target = uniform[row] * total;
            for (int i = 0; i < blocks; ++i) {
                if (before + own[i] > target) {
                    block = i;
                    break;
                }
                if (i < block) before += own[i];
            }
            const float top = largest(tops + row * blocks, blocks);
            out[row] = block * BLOCK + passed(at(row, block), size(block), top, 1 / temperature[row], target - before);
        }
    }
}
